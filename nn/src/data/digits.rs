//! The handwritten digits that come with the crate.
//!
//! The test subset of the UCI "Optical Recognition of Handwritten Digits" data
//! set; `data/digits/README.md` in this crate gives origin, citation and
//! licence (CC BY 4.0).

use super::{dataset::Dataset, error::DataError, stream::Stream};

/// The compressed file. It is embedded, so that an installed program needs no additional file.
const DIGITS_CSV_GZ: &[u8] = include_bytes!("../../data/digits/digits.csv.gz");

/// The file's name in errors.
const NAME: &str = "digits.csv.gz (embedded)";

/// Number of uncompressed bytes of the file.
const CSV_LEN: usize = 264_712;

/// Height and width of an image in pixels.
const SIDE: usize = 8;

/// Number of pixels of an image.
const PIXELS: usize = SIDE * SIDE;

/// Number of columns of the CSV text: the pixels, then the label.
const COLUMNS: usize = PIXELS + 1;

/// The largest pixel value: a pixel counts the dark points of a 4×4 block.
const FULL_SCALE: u32 = 16;

const CLASSES: usize = 10;

/// The share of examples that [`digits_split`] holds out: 360 of 1,797.
pub const DIGITS_TEST_FRACTION: f64 = 0.2;

/// The seed of [`digits_split`].
pub const DIGITS_SPLIT_SEED: u64 = 0;

/// Returns all 1,797 images of handwritten digits, 0 (paper) to 1 (ink), as `[1797, 1, 8, 8]`
/// (examples, channels, height, width) with 10 classes.
///
/// Flatten the examples with
/// [`with_feature_shape(vec![64])`](Dataset::with_feature_shape) for a network
/// that takes vectors. The data are embedded in the crate and decoded on each
/// call, which takes a few milliseconds.
///
/// # Errors
///
/// None in an intact build; damaged embedded data are reported as for a file.
pub fn digits() -> Result<Dataset, DataError> {
    let csv = Stream::from_bytes(DIGITS_CSV_GZ, NAME)?.rest(CSV_LEN, 1)?;
    let (pixels, labels) = parse_csv(&csv, NAME)?;
    Dataset::new("digits", pixels, vec![1, SIDE, SIDE], labels, CLASSES)?.normalised(FULL_SCALE as f32)
}

/// Returns [`digits`] as `(train, test)` with 1,437 and 360 examples, the same ones in every
/// release: [`Dataset::split`] with [`DIGITS_TEST_FRACTION`] and [`DIGITS_SPLIT_SEED`].
///
/// # Errors
///
/// As for [`digits`].
pub fn digits_split() -> Result<(Dataset, Dataset), DataError> {
    digits()?.split(DIGITS_TEST_FRACTION, DIGITS_SPLIT_SEED)
}

/// Parses lines of 64 pixels 0 to 16 and a label 0 to 9, separated by commas,
/// into pixels `[n, 64]` and labels `[n]`.
fn parse_csv(csv: &[u8], name: &str) -> Result<(Vec<f32>, Vec<u32>), DataError> {
    let mut pixels = Vec::new();
    let mut labels = Vec::new();
    let lines = csv.strip_suffix(b"\n").unwrap_or(csv);
    let rows = lines.split(|&byte| byte == b'\n').count();
    pixels
        .try_reserve_exact(rows * PIXELS)
        .map_err(|_| DataError::OutOfMemory {
            name: name.into(),
            rows,
            columns: PIXELS,
        })?;
    for (line, text) in (1..).zip(lines.split(|&byte| byte == b'\n')) {
        let error = |(column, reason)| DataError::Csv {
            name: name.into(),
            line,
            column,
            reason,
        };
        let row = parse_line(text).map_err(error)?;
        pixels.extend(row[..PIXELS].iter().map(|&pixel| pixel as f32));
        labels.push(row[PIXELS]);
    }
    Ok((pixels, labels))
}

/// Returns the 64 pixels and the label of one line, or the one-based column of an error and its
/// description.
fn parse_line(text: &[u8]) -> Result<[u32; COLUMNS], (usize, String)> {
    let mut row = [0; COLUMNS];
    let mut columns = 0;
    for field in text.split(|&byte| byte == b',') {
        columns += 1;
        let Some(value) = row.get_mut(columns - 1) else {
            return Err((columns, format!("expected {COLUMNS} columns, found more")));
        };
        let limit = if columns <= PIXELS {
            FULL_SCALE
        } else {
            CLASSES as u32 - 1
        };
        let parsed = str::from_utf8(field).ok().and_then(|text| text.parse().ok());
        *value = parsed.filter(|&value| value <= limit).ok_or_else(|| {
            // Only the start of the field, because a field may be very long.
            let found = String::from_utf8_lossy(&field[..field.len().min(20)]);
            let reason = format!("expected a whole number 0 to {limit}, found {found:?}");
            (columns, reason)
        })?;
    }
    if columns < COLUMNS {
        return Err((columns, format!("expected {COLUMNS} columns, found {columns}")));
    }
    Ok(row)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn has_the_documented_content() {
        let data = digits().unwrap();
        assert_eq!(data.len(), 1797);
        assert_eq!(data.feature_shape(), [1, 8, 8]);
        assert_eq!(data.classes(), 10);
        let counts: Vec<usize> = data.class_counts().into_iter().map(|(_, n)| n).collect();
        assert_eq!(counts, [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]);
        assert!(data.features().iter().all(|v| (0.0..=1.0).contains(v)));
        // All are multiples of 1/16, so the sum is exact.
        let ink: f64 = data.features().iter().map(|&v| f64::from(v) * 16.0).sum();
        assert_eq!(ink, 561_718.0);
        assert_eq!(data.labels()[..10], [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]);
        let (first, label) = data.example(0).unwrap();
        assert_eq!(first[..8], [0.0, 0.0, 5.0, 13.0, 9.0, 1.0, 0.0, 0.0].map(|v| v / 16.0));
        assert_eq!(label, 0);
    }

    #[test]
    fn hold_out_never_changes() {
        let all = digits().unwrap();
        // Computed by an independent implementation of the documented split.
        let (train, test) = all.split_indices(DIGITS_TEST_FRACTION, DIGITS_SPLIT_SEED).unwrap();
        assert_eq!(test[..10], [339, 635, 1747, 1063, 1709, 661, 1221, 774, 452, 920]);
        assert_eq!(train[..10], [1442, 155, 104, 1269, 781, 759, 1583, 1644, 738, 1109]);

        let (train, test) = digits_split().unwrap();
        assert_eq!((train.len(), test.len()), (1437, 360));
        let counts: Vec<usize> = test.class_counts().into_iter().map(|(_, n)| n).collect();
        assert_eq!(counts, [37, 38, 39, 35, 29, 42, 32, 37, 32, 39]);
        assert_eq!((train.name(), test.name()), ("digits (train)", "digits (test)"));
    }

    fn line(pixel: &str, label: &str) -> String {
        format!("{}{label}", format!("{pixel},").repeat(64))
    }

    fn message(csv: &str) -> String {
        parse_csv(csv.as_bytes(), "d").unwrap_err().to_string()
    }

    #[test]
    fn csv_lines_are_parsed() {
        let csv = format!("{}\n{}\n", line("16", "9"), line("0", "0"));
        let (pixels, labels) = parse_csv(csv.as_bytes(), "d").unwrap();
        assert_eq!(pixels.len(), 128);
        assert_eq!((pixels[63], pixels[64]), (16.0, 0.0));
        assert_eq!(labels, [9, 0]);
    }

    #[test]
    fn csv_damage_is_located() {
        let good = line("1", "1");
        for (bad, expected) in [
            (
                line("17", "1"),
                "d: line 2, column 1: expected a whole number 0 to 16, found \"17\"",
            ),
            (
                line("1", "10"),
                "d: line 2, column 65: expected a whole number 0 to 9, found \"10\"",
            ),
            (
                line("x", "1"),
                "d: line 2, column 1: expected a whole number 0 to 16, found \"x\"",
            ),
            (
                line("1", "1,1"),
                "d: line 2, column 66: expected 65 columns, found more",
            ),
            ("1,2".into(), "d: line 2, column 2: expected 65 columns, found 2"),
            (
                String::new(),
                "d: line 2, column 1: expected a whole number 0 to 16, found \"\"",
            ),
        ] {
            assert_eq!(message(&format!("{good}\n{bad}\n")), expected);
        }
    }

    #[test]
    fn damaged_embedded_bytes_are_errors() {
        let cut = &DIGITS_CSV_GZ[..DIGITS_CSV_GZ.len() - 9];
        let error = Stream::from_bytes(cut, NAME).unwrap().rest(CSV_LEN, 1).unwrap_err();
        assert!(matches!(error, DataError::Gzip { .. }), "{error}");
    }
}
