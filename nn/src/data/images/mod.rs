//! Image files as features and labelled data sets.

mod loader;
mod transform;

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use image::{DynamicImage, ImageDecoder, ImageReader, Limits};

use meganeura_core::files::free_memory;

use super::dataset::{Dataset, reserve};
use super::error::DataError;
pub use loader::{ImageBatch, ImageLoader};
pub use transform::{ChannelOrder, ImageFit, ImageLayout, ImageTransform};

/// Extensions of the files that are read, in upper or lower case.
const ENDS: [&str; 4] = ["png", "jpg", "jpeg", "bmp"];
/// Maximum width and height of decoded images.
const MAX_SIDE: u32 = 1 << 15;
/// Maximum memory of a decoder; the actual limit is lower if less than twice of this is free.
const MAX_DECODED_BYTES: u64 = 512 << 20;

/// Images of a folder with a subfolder for each class.
#[derive(Clone, Debug, PartialEq)]
pub struct ImageFolder {
    /// The images, `[channels, height, width]` each, with values from 0 to 1.
    pub data: Dataset,
    /// Names of the classes by id: the given ones, or the names of the subfolders, sorted.
    pub class_names: Vec<String>,
    /// File of each image.
    pub files: Vec<PathBuf>,
    /// Number of entries of the class folders that were skipped because their names do not end like those of images.
    pub skipped: usize,
}

/// Reads a folder of images in PNG, JPEG or BMP, with a subfolder for each class, named after the class. All images are
/// resized to `size`, which is channels (1 for grey, 3 for red, green and blue), height and width.
///
/// Classes are the subfolders, sorted by name, or the given ones, such as those of the training
/// data. With given classes, other subfolders are errors, and a class may have none. Folders whose
/// names begin with `.` are skipped.
///
/// # Errors
///
/// [`DataError::ImageTransform`] for an invalid size; [`DataError::Images`], with the folder or file, for a folder without
/// subfolders, with one class only or with another class than the given ones, a class without
/// images, and a file that is no image or damaged; [`DataError::OutOfMemory`]; [`DataError::Io`].
pub fn image_folder(
    folder: impl AsRef<Path>,
    size: [usize; 3],
    classes: Option<&[String]>,
) -> Result<ImageFolder, DataError> {
    let folder = folder.as_ref();
    let mut found = Vec::new();
    for path in entries(folder)? {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if path.is_dir() && !name.starts_with('.') {
            found.push((name, path));
        }
    }
    let class_names: Vec<String> = match classes {
        Some(classes) => classes.to_vec(),
        None => found.iter().map(|(name, _)| name.clone()).collect(),
    };
    if found.is_empty() {
        return Err(refuse(
            folder,
            "it contains no subfolders; expected one subfolder per class",
        ));
    }
    if let [only] = &class_names[..] {
        return Err(refuse(
            folder,
            format!("expected at least two classes, found only '{only}'"),
        ));
    }
    let (mut files, mut labels, mut skipped) = (Vec::new(), Vec::new(), 0);
    for (name, path) in &found {
        let Some(label) = class_names.iter().position(|class| class == name) else {
            let known = super::error::listed(&class_names);
            return Err(refuse(
                path,
                format!("'{name}' is not a known class; there are {known}"),
            ));
        };
        let all = entries(path)?;
        let images: Vec<PathBuf> = all.iter().filter(|path| is_image(path)).cloned().collect();
        if images.is_empty() {
            return Err(refuse(
                path,
                "it contains no images (PNG, JPEG, BMP); add some, or remove the folder",
            ));
        }
        skipped += all.len() - images.len();
        labels.resize(labels.len() + images.len(), label as u32);
        files.extend(images);
    }
    let values = read_images(&files, size)?;
    let name = folder.display().to_string();
    Ok(ImageFolder {
        data: Dataset::new(name, values, size.to_vec(), labels, class_names.len())?,
        class_names,
        files,
        skipped,
    })
}

/// Returns the files in a folder whose names end like those of images, sorted; at least one.
/// Subfolders are not searched.
///
/// # Errors
///
/// [`DataError::NoImages`], with the first subfolder that contains some; [`DataError::Io`].
pub fn image_files(folder: impl AsRef<Path>) -> Result<Vec<PathBuf>, DataError> {
    let folder = folder.as_ref();
    let entries = entries(folder)?;
    let files: Vec<PathBuf> = entries.iter().filter(|path| is_image(path)).cloned().collect();
    if files.is_empty() {
        let subfolder = entries.iter().find(|path| has_images(path));
        let subfolder = subfolder.and_then(|path| path.file_name());
        return Err(DataError::NoImages {
            folder: folder.to_owned(),
            subfolder: subfolder.map(|name| name.to_string_lossy().into_owned()),
        });
    }
    Ok(files)
}

/// Returns true for a folder with images that can be read.
fn has_images(folder: &Path) -> bool {
    folder.is_dir() && entries(folder).is_ok_and(|entries| entries.iter().any(|path| is_image(path)))
}

/// Reads images, `[files.len(), channels, height, width]`, with values from 0 to 1; all are resized
/// to `size` (channels, height and width). The orientation in the camera's metadata is applied,
/// transparency is ignored.
///
/// # Errors
///
/// [`DataError::ImageTransform`] for an invalid size; [`DataError::Images`], with the file, for a file that is no image or
/// damaged; [`DataError::OutOfMemory`]; [`DataError::Io`].
pub fn read_images(files: &[PathBuf], size: [usize; 3]) -> Result<Vec<f32>, DataError> {
    let transform = ImageTransform::new(size);
    transform.check()?;
    let [channels, ..] = size;
    let mut values = reserve("images", files.len(), transform.bytes())?;
    let mut images = ImageLoader::new(files.to_vec(), transform, 1)?;
    while let Some(image) = images.next_image() {
        let (_, bytes) = image?;
        // From channels last to channels first.
        for channel in 0..channels {
            let of_channel = bytes.iter().skip(channel).step_by(channels);
            values.extend(of_channel.map(|&byte| f32::from(byte) / 255.0));
        }
    }
    Ok(values)
}

/// Decodes the image of a file, in its upright orientation, while `threads` do the same.
fn decode(path: &Path, threads: usize) -> Result<DynamicImage, DataError> {
    let unreadable = |source| DataError::Io {
        name: path.display().to_string(),
        source,
    };
    if !fs::metadata(path).map_err(unreadable)?.is_file() {
        return Err(refuse(path, "it is not a regular file"));
    }
    let damaged = |error: image::ImageError| refuse(path, format!("it is not a readable image: {error}"));
    // The format is detected from the content, because file names may be wrong.
    let reader = ImageReader::open(path).map_err(unreadable)?;
    let mut reader = reader.with_guessed_format().map_err(unreadable)?;
    let mut limits = Limits::default();
    limits.max_image_width = Some(MAX_SIDE);
    limits.max_image_height = Some(MAX_SIDE);
    // All threads together use at most half of the free memory, because rotating and resizing copy the image.
    let share = |free: u64| MAX_DECODED_BYTES.min(free / 2 / threads.max(1) as u64);
    limits.max_alloc = Some(free_memory().map_or(MAX_DECODED_BYTES, share));
    reader.limits(limits);
    let mut decoder = reader.into_decoder().map_err(damaged)?;
    let orientation = decoder.orientation().map_err(damaged)?;
    let mut image = DynamicImage::from_decoder(decoder).map_err(damaged)?;
    image.apply_orientation(orientation);
    Ok(image)
}

fn is_image(path: &Path) -> bool {
    let end = path.extension().unwrap_or_default().to_string_lossy();
    let hidden = path
        .file_name()
        .is_some_and(|name| name.to_string_lossy().starts_with('.'));
    !hidden && ENDS.iter().any(|known| end.eq_ignore_ascii_case(known)) && !path.is_dir()
}

/// Returns the entries of a folder, sorted.
fn entries(folder: &Path) -> Result<Vec<PathBuf>, DataError> {
    let unreadable = |source: io::Error| DataError::Io {
        name: folder.display().to_string(),
        source,
    };
    let mut paths = Vec::new();
    for entry in fs::read_dir(folder).map_err(unreadable)? {
        paths.push(entry.map_err(unreadable)?.path());
    }
    paths.sort();
    Ok(paths)
}

fn refuse(path: &Path, message: impl Into<String>) -> DataError {
    DataError::Images {
        path: path.to_owned(),
        message: message.into(),
    }
}

#[cfg(test)]
mod tests {
    use image::{GrayImage, Luma, Rgb, RgbImage, Rgba, RgbaImage};

    use super::*;

    /// Creates a folder with two classes, each in another format.
    fn folder() -> tempfile::TempDir {
        let home = tempfile::tempdir().unwrap();
        for (class, value) in [("dark", 0_u8), ("light", 255)] {
            let folder = home.path().join(class);
            fs::create_dir(&folder).unwrap();
            RgbImage::from_pixel(20, 10, Rgb([value; 3]))
                .save(folder.join("a.png"))
                .unwrap();
            RgbImage::from_pixel(7, 9, Rgb([value; 3]))
                .save(folder.join("b.JPG"))
                .unwrap();
            GrayImage::from_pixel(4, 4, Luma([value]))
                .save(folder.join("c.bmp"))
                .unwrap();
            fs::write(folder.join("notes.txt"), "not an image").unwrap();
        }
        fs::create_dir(home.path().join(".cache")).unwrap();
        fs::write(home.path().join("readme.md"), "text").unwrap();
        home
    }

    #[track_caller]
    fn refused<T: std::fmt::Debug>(result: Result<T, DataError>, parts: &[&str]) {
        let message = result.expect_err("refused").to_string();
        for part in parts {
            assert!(message.contains(part), "'{part}' in: {message}");
        }
    }

    #[test]
    fn folders_are_classes() {
        let home = folder();
        for channels in [1, 3] {
            let images = image_folder(home.path(), [channels, 6, 5], None).unwrap();
            assert_eq!((images.class_names.join(" "), images.skipped), ("dark light".into(), 2));
            assert_eq!(images.data.labels(), [0, 0, 0, 1, 1, 1]);
            assert_eq!(images.data.feature_shape(), [channels, 6, 5]);
            let (dark, light) = images.data.features().split_at(3 * channels * 30);
            assert!(dark.iter().all(|v| *v < 0.02) && light.iter().all(|v| *v > 0.98));
            assert!(images.files[4].ends_with("light/b.JPG"));
        }
        // Given classes keep their ids, and one may have no folder.
        let known = ["light".to_owned(), "grey".into(), "dark".into()];
        let images = image_folder(home.path(), [1, 2, 2], Some(&known)).unwrap();
        assert_eq!(
            (images.data.labels(), images.data.classes()),
            (&[2, 2, 2, 0, 0, 0][..], 3)
        );
        assert_eq!(image_files(home.path().join("dark")).unwrap().len(), 3);
    }

    #[test]
    fn channels_come_first() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("x.png");
        let image = RgbaImage::from_fn(2, 1, |x, _| Rgba([if x == 0 { 255 } else { 0 }, 51, 102, 10]));
        image.save(&path).unwrap();
        let values = read_images(&[path], [3, 1, 2]).unwrap();
        assert_eq!(values, [1.0, 0.0, 0.2, 0.2, 0.4, 0.4]);
    }

    #[test]
    fn folders_and_files_that_cannot_be_used_are_named() {
        let home = folder();
        let read = |classes: Option<&[String]>| image_folder(home.path(), [1, 4, 4], classes);
        refused(
            read(Some(&["light".into(), "grey".into()])),
            &["dark", "'light', 'grey'"],
        );
        for size in [[2, 4, 4], [1, 0, 4], [3, 4, usize::MAX], [1, 1 << 20, 1 << 20]] {
            refused(image_folder(home.path(), size, None), &["channels are 1 or 3"]);
        }
        refused(
            image_folder(home.path().join("dark"), [1, 4, 4], None),
            &["no subfolders"],
        );
        let missing = image_folder(home.path().join("nothing"), [1, 4, 4], None);
        assert!(matches!(missing, Err(DataError::Io { .. })));
        let empty = home.path().join("empty");
        fs::create_dir(&empty).unwrap();
        refused(read(None), &["empty", "no images"]);
        fs::write(empty.join("x.png"), "text").unwrap();
        refused(read(None), &["x.png", "not a readable image"]);
        fs::remove_dir_all(&empty).unwrap();
        fs::remove_dir_all(home.path().join("dark")).unwrap();
        refused(read(None), &["found only 'light'"]);
        let gone = read_images(&[home.path().join("gone.png")], [1, 4, 4]);
        assert!(matches!(gone, Err(DataError::Io { .. })));
        refused(read_images(&[home.path().to_owned()], [1, 4, 4]), &["regular file"]);
    }

    /// Reading does not panic for any truncation or flipped bit.
    #[test]
    fn no_damage_panics() {
        let home = folder();
        let path = home.path().join("damaged");
        for file in image_files(home.path().join("light")).unwrap() {
            let bytes = fs::read(file).unwrap();
            for end in 0..bytes.len().min(200) {
                fs::write(&path, &bytes[..end]).unwrap();
                let _ = read_images(std::slice::from_ref(&path), [1, 2, 2]);
            }
            for bit in 0..8 * bytes.len().min(150) {
                let mut damaged = bytes.clone();
                damaged[bit / 8] ^= 1 << (bit % 8);
                fs::write(&path, &damaged).unwrap();
                let _ = read_images(std::slice::from_ref(&path), [1, 2, 2]);
            }
        }
    }
}
