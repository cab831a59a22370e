//! Lengths of the columns of weights, which DoRA trains.

use half::f16;
use meganeura_core::quantization::{BLOCK, BlockFormat};
use meganeura_core::{DType, Error, Result, Session};
use meganeura_nn::layers::LORA_MAGNITUDE;

/// Returns the lengths (Euclidean norms) of the columns of a matrix `[rows, columns]`.
pub(super) fn of_columns(matrix: &[f32], columns: usize) -> Vec<f32> {
    let mut squares = vec![0.0_f64; columns];
    for row in matrix.chunks_exact(columns.max(1)) {
        for (sum, value) in squares.iter_mut().zip(row) {
            *sum += f64::from(*value) * f64::from(*value);
        }
    }
    squares.into_iter().map(|square| square.sqrt() as f32).collect()
}

/// Returns the lengths of the rows of a matrix.
fn of_rows(rows: impl Iterator<Item = Vec<f32>>) -> Vec<f32> {
    let length = |row: Vec<f32>| row.iter().map(|v| f64::from(*v) * f64::from(*v)).sum::<f64>().sqrt();
    rows.map(|row| length(row) as f32).collect()
}

/// Sets the trained lengths of DoRA to the lengths in the weights of a session. Untrained adapters then do not change results. Does
/// nothing in a session without DoRA. Call it after the weights are loaded.
///
/// # Errors
/// The errors of the session.
pub fn set_lengths(session: &mut Session) -> Result<()> {
    let types: Vec<(String, DType, Vec<usize>)> = session
        .plan()
        .parameters()
        .into_iter()
        .map(|view| (view.name, view.ty.dtype, view.ty.shape.dims().to_vec()))
        .collect();
    let find = |name: &str| types.iter().find(|(own, ..)| own == name);
    for (name, ..) in &types {
        let Some(layer) = name.strip_suffix(LORA_MAGNITUDE) else {
            continue;
        };
        let weight = format!("{layer}weight");
        let lengths = match find(&weight) {
            Some((_, DType::F32, shape)) => of_columns(
                &session.try_read_parameter(&weight)?,
                shape.last().copied().unwrap_or(1),
            ),
            Some((_, DType::F16, shape)) => {
                let bytes = session.try_read_parameter_bytes(&weight)?;
                let row = 2 * shape.last().copied().unwrap_or(1).max(1);
                of_rows(bytes.chunks_exact(row).map(|row| halves(row).map(f32::from).collect()))
            }
            Some((_, _, shape)) => {
                let scales = format!("{weight}_scales");
                let scales_shape = find(&scales).map(|(_, _, shape)| shape.as_slice()).unwrap_or_default();
                let (words, scales_bytes) = (
                    session.try_read_parameter_bytes(&weight)?,
                    session.try_read_parameter_bytes(&scales)?,
                );
                of_blocks(&words, shape, &scales_bytes, scales_shape).ok_or_else(|| {
                    let message = format!("'{weight}' of shape {shape:?} is in no known format of blocks");
                    Error::misuse(message, "load the model again")
                })?
            }
            None => {
                let message = format!("there is no weight '{weight}' for the adapter '{name}'");
                return Err(Error::misuse(message, "use the model that the adapters belong to"));
            }
        };
        session.try_set_parameter(name, &lengths)?;
    }
    Ok(())
}

fn halves(bytes: &[u8]) -> impl Iterator<Item = f16> {
    bytes.chunks_exact(2).map(|b| f16::from_le_bytes([b[0], b[1]]))
}

/// Returns the lengths of the rows of a matrix in blocks: words `[rows, words]` and scales `[rows, scales]`.
fn of_blocks(words: &[u8], shape: &[usize], scales: &[u8], scales_shape: &[usize]) -> Option<Vec<f32>> {
    let (&words_of_row, &scales_of_row) = (shape.last()?, scales_shape.last()?);
    let format = BlockFormat::of(words_of_row, scales_of_row)?;
    let rows = words
        .chunks_exact(4 * words_of_row)
        .zip(scales.chunks_exact(2 * scales_of_row));
    Some(of_rows(rows.map(|(words, scales)| {
        let scales: Vec<f16> = halves(scales).collect();
        let row = format.dequantize(words, &scales);
        debug_assert!(row.len().is_multiple_of(BLOCK));
        row
    })))
}
