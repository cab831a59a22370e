//! Writing of arrays to NumPy files.

use std::path::Path;

use meganeura_core::files::write_atomically;
use meganeura_core::{Error, Result};

use super::NpyType;

/// Writes an array of `f32` in row-major order to a `.npy` file. An existing file at `path` is
/// replaced atomically.
///
/// # Errors
/// [`Error::InvalidUse`] if the shape has another number of elements; [`Error::File`] if the file
/// cannot be written.
pub fn write_npy(path: impl AsRef<Path>, shape: &[usize], values: &[f32]) -> Result<()> {
    let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
    write_npy_bytes(path, NpyType::F32, shape, &bytes)
}

/// Writes an array of any type, given as its little-endian elements in row-major order, like [`write_npy`].
///
/// # Errors
/// As [`write_npy`].
pub fn write_npy_bytes(path: impl AsRef<Path>, dtype: NpyType, shape: &[usize], bytes: &[u8]) -> Result<()> {
    let count = shape
        .iter()
        .try_fold(dtype.size(), |product, &dim| product.checked_mul(dim));
    if count != Some(bytes.len()) {
        return Err(Error::misuse(
            format!(
                "{} numbers do not match the shape {shape:?}",
                bytes.len() / dtype.size()
            ),
            "pass the number of elements of the shape",
        ));
    }
    // Tuples of one element end in a comma.
    let dims: String = shape.iter().map(|dim| format!("{dim}, ")).collect();
    let order = if dtype.size() == 1 { '|' } else { '<' };
    let mut header = format!(
        "{{'descr': '{order}{}', 'fortran_order': False, 'shape': ({}), }}",
        dtype.code(),
        dims.trim_end()
    );
    // The elements begin at a multiple of 64 bytes.
    const BEFORE: usize = 10;
    let padded = (BEFORE + header.len() + 1).next_multiple_of(64) - BEFORE - 1;
    header.push_str(&" ".repeat(padded - header.len()));
    header.push('\n');
    write_atomically(path.as_ref(), |file| {
        file.write_all(b"\x93NUMPY\x01\x00")?;
        file.write_all(&(header.len() as u16).to_le_bytes())?;
        file.write_all(header.as_bytes())?;
        file.write_all(bytes)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::read_npy;

    #[test]
    fn what_is_written_is_read() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("a.npy");
        for shape in [&[][..], &[7], &[2, 3], &[2, 0, 3], &[1, 2, 3, 4]] {
            let values: Vec<f32> = (0..shape.iter().product()).map(|i| i as f32 - 1.5).collect();
            write_npy(&path, shape, &values).expect("written");
            let found = read_npy(&path).expect("an array");
            assert_eq!((found.shape(), found.to_f32()), (shape, values));
            assert!(std::fs::metadata(&path).expect("a file").len() % 64 == (4 * found.to_f32().len() as u64) % 64);
        }
        assert!(write_npy(&path, &[2], &[1.0]).is_err());
        for dtype in [NpyType::Bool, NpyType::U8, NpyType::I64, NpyType::F64] {
            let bytes = [1, 0, 0, 0, 0, 0, 0, 0];
            write_npy_bytes(&path, dtype, &[8 / dtype.size()], &bytes).expect("written");
            let found = read_npy(&path).expect("an array");
            assert_eq!((found.dtype(), found.shape()), (dtype, &[8 / dtype.size()][..]));
        }
        assert_eq!(read_npy(&path).expect("an array").to_f64(), [f64::from_bits(1)]);
        assert!(write_npy(folder.path().join("no/a.npy"), &[1], &[1.0]).is_err());
    }
}
