use std::io::Write;
use std::path::PathBuf;

use tempfile::TempDir;
use zip::write::SimpleFileOptions;
use zip::{CompressionMethod, ZipWriter};

use super::super::npy::tests::npy;
use super::super::npy::text_tests::utf32;
use super::*;

/// Writes an archive as NumPy does.
fn npz(arrays: &[(&str, Vec<u8>)], method: CompressionMethod) -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.npz");
    let mut writer = ZipWriter::new(File::create(&path).unwrap());
    for (name, bytes) in arrays {
        let options = SimpleFileOptions::default().compression_method(method);
        writer.start_file(format!("{name}.npy"), options).unwrap();
        writer.write_all(bytes).unwrap();
    }
    writer.finish().unwrap();
    (folder, path)
}

fn f32s(shape: &str, values: &[f32]) -> Vec<u8> {
    let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
    npy("<f4", false, shape, &bytes)
}

fn i64s(shape: &str, values: &[i64]) -> Vec<u8> {
    let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
    npy("<i8", false, shape, &bytes)
}

/// Builds the data set of an archive with these two arrays.
fn dataset(x: Vec<u8>, y: Vec<u8>) -> Result<Arrays, DataError> {
    let (_folder, path) = npz(&[("x", x), ("y", y)], CompressionMethod::Stored);
    npz_dataset(path, "x", "y", None)
}

#[track_caller]
fn refused<T>(result: Result<T, DataError>, parts: &[&str]) {
    let message = result.map(|_| ()).expect_err("refused").to_string();
    for part in ["a.npz"].iter().chain(parts) {
        assert!(message.contains(part), "'{part}' in: {message}");
    }
}

#[test]
fn plain_and_compressed_archives_become_data_sets() {
    for method in [CompressionMethod::Stored, CompressionMethod::Deflated] {
        let x = f32s(
            "(3, 2, 2)",
            &[0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0, 11.0],
        );
        let (_folder, path) = npz(&[("y", i64s("(3,)", &[7, -1, 7])), ("x", x)], method);
        assert_eq!(npz_names(&path).unwrap(), ["x", "y"]);
        let Arrays { data, class_names } = npz_dataset(&path, "x", "y.npy", None).unwrap();
        assert_eq!((data.feature_shape(), data.labels()), (&[2, 2][..], &[1, 0, 1][..]));
        assert_eq!(data.features()[8..], [8.0, 9.0, 10.0, 11.0]);
        assert_eq!((class_names, data.classes()), (vec!["-1".into(), "7".into()], 2));
        assert!(data.name().ends_with("a.npz: array 'x'"), "{}", data.name());
    }
}

#[test]
fn labels_may_be_columns_and_floats_and_features_vectors() {
    let arrays = dataset(f32s("(2,)", &[0.5, 0.25]), f32s("(2, 1)", &[3.0, 0.0])).unwrap();
    assert_eq!(
        (arrays.data.feature_shape(), arrays.data.labels()),
        (&[1][..], &[1, 0][..])
    );
}

#[test]
fn classes_of_the_training_data_hold_for_the_test_data() {
    let (_folder, path) = npz(
        &[("x", f32s("(2, 1)", &[1.0, 2.0])), ("y", i64s("(2,)", &[30, 10]))],
        CompressionMethod::Stored,
    );
    let classes = ["10".to_owned(), "20".into(), "30".into()];
    let arrays = npz_dataset(&path, "x", "y", Some(&classes)).unwrap();
    assert_eq!((arrays.data.labels(), arrays.data.classes()), (&[2, 0][..], 3));
    refused(
        npz_dataset(&path, "x", "y", Some(&classes[..2])),
        &["row 0", "'30' is none of the 2"],
    );
}

#[test]
fn labels_may_be_text() {
    let x = || f32s("(4, 1)", &[1.0, 2.0, 3.0, 4.0]);
    let words = npy("<U4", false, "(4,)", &utf32(&["rose", "iris", "10", "rose"], 4, false));
    let arrays = dataset(x(), words.clone()).unwrap();
    assert_eq!(arrays.class_names, ["10", "iris", "rose"]);
    assert_eq!(arrays.data.labels(), [2, 1, 0, 2]);
    // Texts are compared exactly: these are four classes.
    let arrays = dataset(x(), npy("|S3", false, "(4, 1)", b"9\x00\x0010\x0009\x009.0")).unwrap();
    assert_eq!(arrays.class_names, ["09", "10", "9", "9.0"]);

    let (_folder, path) = npz(&[("x", x()), ("y", words)], CompressionMethod::Stored);
    let classes = ["rose", "iris", "10", "lily"].map(str::to_owned);
    let arrays = npz_dataset(&path, "x", "y", Some(&classes)).unwrap();
    assert_eq!((arrays.data.labels(), arrays.data.classes()), (&[0, 1, 2, 0][..], 4));
    refused(
        npz_dataset(&path, "x", "y", Some(&classes[..1])),
        &["row 1", "'iris' is none of the 1"],
    );
    refused(npz_dataset(&path, "y", "y", None), &["'y'", "only labels may be text"]);
    refused(
        dataset(x(), npy("|S1", false, "(4,)", b"a\0bc")),
        &["'y'", "row 1", "label is empty"],
    );
    refused(
        dataset(x(), npy("|S1", false, "(4,)", b"a\xffbc")),
        &["element 1", "UTF-8"],
    );
    refused(dataset(x(), npy("|S1", false, "(2, 2)", b"abcd")), &["[2, 2]"]);
}

#[test]
fn arrays_that_do_not_fit_are_refused() {
    let x = || f32s("(2, 1)", &[1.0, 2.0]);
    refused(
        dataset(f32s("()", &[1.0]), i64s("(1,)", &[1])),
        &["'x'", "single number"],
    );
    refused(
        dataset(x(), i64s("(2, 2)", &[0, 1, 1, 0])),
        &["'y'", "[2, 2]", "argmax"],
    );
    refused(dataset(x(), i64s("()", &[0])), &["'y'", "[examples]"]);
    refused(dataset(x(), i64s("(3,)", &[0, 1, 2])), &["'x' holds 2", "'y' holds 3"]);
    refused(dataset(x(), f32s("(2,)", &[0.0, 0.5])), &["'y'", "element 1 is 0.5"]);
    refused(
        dataset(f32s("(2, 1)", &[1.0, f32::NAN]), i64s("(2,)", &[0, 1])),
        &["row 1", "NaN"],
    );
    refused(dataset(f32s("(0, 4)", &[]), i64s("(0,)", &[])), &["no examples"]);
    refused(
        dataset(f32s("(2, 0)", &[]), i64s("(2,)", &[0, 1])),
        &["feature shape [0]"],
    );
    let (_folder, path) = npz(&[("images", x()), ("labels", x())], CompressionMethod::Stored);
    refused(
        npz_dataset(&path, "x", "y", None),
        &["no array 'x'", "'images', 'labels'"],
    );
}

#[test]
fn pairs_of_files_work_too() {
    let folder = tempfile::tempdir().unwrap();
    let (x, y) = (folder.path().join("x.npy"), folder.path().join("y.npy"));
    std::fs::write(&x, f32s("(2, 3)", &[0.0; 6])).unwrap();
    std::fs::write(&y, i64s("(2,)", &[1, 0])).unwrap();
    assert_eq!(npy_dataset(&x, &y, None).unwrap().data.labels(), [1, 0]);
    assert!(matches!(
        npy_dataset(&x, folder.path().join("no.npy"), None),
        Err(DataError::Io { .. })
    ));
}

#[test]
fn files_that_are_no_archives_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.npz");
    assert!(matches!(npz_names(&path), Err(DataError::Io { .. })));
    for bytes in [&b""[..], b"PK\x03\x04 and no more", &i64s("(1,)", &[1])] {
        std::fs::write(&path, bytes).unwrap();
        refused(npz_names(&path), &["not a .npz file", "numpy.savez"]);
        refused(read_npz(&path, "x"), &["not a .npz file"]);
    }
}

/// Reading does not panic for any truncation or flipped bit.
#[test]
fn no_damage_panics() {
    for method in [CompressionMethod::Stored, CompressionMethod::Deflated] {
        let arrays = [("x", f32s("(2, 1)", &[1.0, 2.0])), ("y", i64s("(2,)", &[0, 1]))];
        let (_folder, path) = npz(&arrays, method);
        let bytes = std::fs::read(&path).unwrap();
        let good = npz_dataset(&path, "x", "y", None).unwrap();
        let read = |bytes: &[u8]| {
            std::fs::write(&path, bytes).unwrap();
            npz_dataset(&path, "x", "y", None)
        };
        for end in 0..bytes.len() {
            assert!(read(&bytes[..end]).is_err(), "cut to {end}");
        }
        for at in 0..bytes.len() {
            let mut damaged = bytes.clone();
            damaged[at] ^= 1 << (at % 8);
            // Checksums find what changes the data.
            if let Ok(arrays) = read(&damaged) {
                assert_eq!(arrays, good, "byte {at}");
            }
        }
    }
}
