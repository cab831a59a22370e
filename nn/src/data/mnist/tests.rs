use std::io::Write;

use flate2::{Compression, write::GzEncoder};
use tempfile::TempDir;

use super::*;

const NAMES: [&str; 4] = [
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
];

fn idx(dims: &[u32], payload: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0, 0, 8, dims.len() as u8];
    bytes.extend(dims.iter().flat_map(|dim| dim.to_be_bytes()));
    bytes.extend(payload);
    bytes
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

/// Returns the contents of an image file with `n` images of 2×3 pixels, all of value `pixel`.
fn images(n: u32, pixel: u8) -> Vec<u8> {
    idx(&[n, 2, 3], &vec![pixel; n as usize * 6])
}

fn labels(labels: &[u8]) -> Vec<u8> {
    idx(&[labels.len() as u32], labels)
}

/// Creates a folder with a training set of 3 and a test set of 2 images.
fn folder(rename: impl Fn(&str) -> String, pack: fn(&[u8]) -> Vec<u8>) -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    let files = [images(3, 255), labels(&[9, 0, 4]), images(2, 51), labels(&[1, 2])];
    for (name, bytes) in NAMES.iter().zip(files) {
        fs::write(dir.path().join(rename(name)), pack(&bytes)).unwrap();
    }
    dir
}

fn check(dir: &TempDir) {
    let (train, test) = mnist(dir.path()).unwrap();
    assert_eq!((train.len(), test.len()), (3, 2));
    assert_eq!(train.feature_shape(), [1, 2, 3]);
    assert_eq!(train.classes(), 10);
    assert_eq!(train.labels(), [9, 0, 4]);
    assert_eq!(train.features(), [1.0; 18]);
    assert_eq!(test.features(), [0.2; 12]);
    assert!(test.name().contains("t10k-images"), "{}", test.name());
}

#[test]
fn all_four_spellings_are_found() {
    let dotted = |name: &str| name.replace("-idx", ".idx");
    check(&folder(str::to_owned, <[u8]>::to_vec));
    check(&folder(dotted, <[u8]>::to_vec));
    check(&folder(|name| format!("{name}.gz"), gzip));
    check(&folder(|name| format!("{}.gz", dotted(name)), gzip));
}

#[test]
fn plain_files_are_preferred_and_folders_skipped() {
    let dir = folder(str::to_owned, <[u8]>::to_vec);
    fs::write(dir.path().join("train-images-idx3-ubyte.gz"), b"rubbish").unwrap();
    check(&dir);

    let dir = folder(|name| format!("{name}.gz"), gzip);
    fs::create_dir(dir.path().join("train-images-idx3-ubyte")).unwrap();
    check(&dir);
}

#[test]
fn missing_files_are_listed_with_a_remedy() {
    let dir = folder(str::to_owned, <[u8]>::to_vec);
    fs::remove_file(dir.path().join(NAMES[1])).unwrap();
    fs::remove_file(dir.path().join(NAMES[2])).unwrap();
    let error = mnist(dir.path()).unwrap_err();
    let text = error.to_string();
    let start = format!(
        "{}: 2 of the 4 MNIST files are missing: train-labels-idx1-ubyte.gz, \
         t10k-images-idx3-ubyte.gz. Download exactly these original MNIST files, ",
        dir.path().display()
    );
    assert!(text.starts_with(&start), "{text}");
    assert!(text.contains("Yann LeCun's MNIST page"), "{text}");
    assert!(
        text.contains(&format!("into the folder {}", dir.path().display())),
        "{text}"
    );
}

#[test]
fn a_folder_that_does_not_exist_lacks_all_four() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("file");
    fs::write(&file, b"").unwrap();
    for absent in [dir.path().join("absent"), file] {
        let error = mnist(&absent).unwrap_err();
        let DataError::MnistMissing { missing, .. } = error else {
            panic!("{error}")
        };
        assert_eq!(missing, NAMES.map(|name| format!("{name}.gz")));
    }
}

/// Returns a folder in which file number `which` has been replaced, and the error of loading it.
fn with_replaced(which: usize, bytes: &[u8]) -> (TempDir, DataError) {
    let dir = folder(str::to_owned, <[u8]>::to_vec);
    fs::write(dir.path().join(NAMES[which]), bytes).unwrap();
    let error = mnist(dir.path()).unwrap_err();
    (dir, error)
}

#[test]
fn unequal_counts_are_refused() {
    let (dir, error) = with_replaced(1, &labels(&[1, 2]));
    let path = |which: usize| dir.path().join(NAMES[which]).display().to_string();
    assert_eq!(
        error.to_string(),
        format!(
            "{} holds 3 images but {} holds 2 labels; the two files must come from the same set",
            path(0),
            path(1)
        )
    );
}

#[test]
fn labels_above_nine_are_refused_naming_the_label_file() {
    let (dir, error) = with_replaced(3, &labels(&[1, 10]));
    let file = dir.path().join(NAMES[3]);
    let start = format!("{}: label 10 in row 1 is out of range", file.display());
    assert!(error.to_string().starts_with(&start), "{error}");
}

#[test]
fn swapped_files_are_refused() {
    let (_, error) = with_replaced(0, &labels(&[1, 2, 3]));
    let expected = "expected u8 images of shape [n, h, w], found u8 of shape [3]; \
                    is this the right file?";
    assert!(error.to_string().ends_with(expected), "{error}");
    let (_, error) = with_replaced(1, &images(3, 0));
    assert!(matches!(error, DataError::IdxKind { .. }), "{error}");
}

#[test]
fn other_element_types_are_refused() {
    let mut floats = idx(&[1], &1.0_f32.to_be_bytes());
    floats[2] = 0x0d;
    let (_, error) = with_replaced(1, &floats);
    let expected = "expected u8 labels of shape [n], found f32 of shape [1]";
    assert!(error.to_string().contains(expected), "{error}");
}

#[test]
fn image_sizes_must_agree() {
    let (_, error) = with_replaced(2, &idx(&[2, 3, 3], &[0; 18]));
    let expected = "training images have shape [1, 2, 3] but test images [1, 3, 3]; \
                    the files must come from the same set";
    assert!(error.to_string().ends_with(expected), "{error}");
}

#[test]
fn damage_is_reported_with_the_path() {
    let (dir, error) = with_replaced(2, &images(2, 0)[..20]);
    let file = dir.path().join(NAMES[2]).display().to_string();
    assert!(error.to_string().starts_with(&format!("{file}: truncated")), "{error}");
}

#[test]
fn pairs_with_other_class_numbers_load() {
    let dir = tempfile::tempdir().unwrap();
    let (x, y) = (dir.path().join("x"), dir.path().join("y"));
    fs::write(&x, images(2, 0)).unwrap();
    fs::write(&y, labels(&[46, 0])).unwrap();
    assert_eq!(idx_dataset(&x, &y, 47).unwrap().classes(), 47);
    assert!(matches!(
        idx_dataset(&x, &y, 46),
        Err(DataError::LabelOutOfRange { .. })
    ));
}
