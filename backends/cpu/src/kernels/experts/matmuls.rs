//! Matmuls with the matrix of one expert, planned for every number of rows.

use meganeura_core::ops::ExpertDims;
use meganeura_core::quantization::BLOCK;

use super::groups::SEGMENT_ROWS;
use crate::gemm::{Gemm, GemmSpec, PackedGemm, Rows, Storage, Strides};
use crate::kernel::CompileCx;
use crate::memory::{View, aligned};

/// Matmuls of 1, 2, ... rows with the matrix of an expert.
pub(super) enum Matmuls {
    Plain { gemms: Vec<Gemm>, weights: View<f32> },
    Packed { gemms: Vec<PackedGemm>, weights: Packed },
}

/// The quantised or `f16` matrices of all experts.
pub(super) struct Packed {
    storage: Storage,
    numbers: View<u8>,
    scales: View<u16>,
}

impl Packed {
    /// Returns the matrix of an expert.
    pub(super) fn matrix(&self, dims: &ExpertDims, expert: usize) -> Rows {
        let (&ExpertDims { n, k, .. }, storage) = (dims, self.storage);
        let row = expert * n;
        Rows {
            numbers: self.numbers.as_ptr().wrapping_add(row * storage.bytes(k)),
            scales: self.scales.as_ptr().wrapping_add(row * (k / BLOCK) * storage.scales()),
            k,
        }
    }
}

/// Returns the matmul of `rows` consecutive rows with an `f32` matrix.
fn spec(dims: &ExpertDims, rows: usize) -> GemmSpec {
    let &ExpertDims { n, k, transpose_b, .. } = dims;
    GemmSpec {
        m: rows,
        n,
        k,
        a: Strides { row: k, col: 1 },
        b: if transpose_b {
            Strides { row: 1, col: k }
        } else {
            Strides { row: n, col: 1 }
        },
        ldc: n,
        accumulate: false,
    }
}

impl Matmuls {
    pub(super) fn new(cx: &CompileCx, dims: &ExpertDims) -> Self {
        let counts = 1..=dims.rows.min(SEGMENT_ROWS);
        let call = cx.call();
        if dims.format.is_none() && call.inputs[2].dtype == call.inputs[0].dtype {
            return Matmuls::Plain {
                gemms: counts.map(|rows| Gemm::new(spec(dims, rows))).collect(),
                weights: cx.input(2),
            };
        }
        let storage = dims.format.map_or(Storage::F16, Storage::Blocks);
        // Scales are in panels if the numbers are.
        let in_panels = cx.panels(2).is_some();
        let gemm = |rows| PackedGemm::new([rows, dims.n, dims.k], storage, in_panels);
        Matmuls::Packed {
            gemms: counts.map(gemm).collect(),
            weights: Packed {
                storage,
                numbers: cx.input(2),
                // `f16` weights have no scales.
                scales: cx.input(call.inputs.len() - 1),
            },
        }
    }

    /// Returns the number of bytes of all matrices, without scales.
    pub(super) fn bytes(&self) -> usize {
        match self {
            Matmuls::Plain { weights, .. } => size_of::<f32>() * weights.len(),
            // Views count the elements of an operand: `f16` numbers or words.
            Matmuls::Packed { weights, .. } => match weights.storage {
                Storage::F16 => size_of::<u16>() * weights.numbers.len(),
                Storage::Blocks(_) => size_of::<u32>() * weights.numbers.len(),
            },
        }
    }

    /// Returns the number of `f32`s of the private scratch. If a plain matmul has two phases, one task runs both of
    /// them, so the scratch that the phases share is in the private scratch.
    pub(super) fn private_len(&self) -> usize {
        let all = |len: &mut dyn Iterator<Item = usize>| len.max().unwrap_or(0);
        match self {
            Matmuls::Plain { gemms, .. } => {
                all(&mut gemms.iter().map(|gemm| aligned(gemm.worker_len()) + gemm.shared_len()))
            }
            Matmuls::Packed { gemms, .. } => all(&mut gemms.iter().map(PackedGemm::worker_len)),
        }
    }

    /// Returns the number of `f32`s to reserve for the prepared data of a segment: per segment, and per row of the
    /// segment. They suffice for any number of rows, so that the offset of a segment follows from its index and its
    /// first row.
    pub(super) fn prepared_len(&self) -> [usize; 2] {
        let Matmuls::Packed { gemms, .. } = self else {
            return [0, 0];
        };
        let of_row = gemms
            .last()
            .map_or(0, |gemm| aligned(gemm.shared_len().div_ceil(gemms.len())));
        let beside = gemms
            .iter()
            .zip(1..)
            .map(|(gemm, rows)| gemm.shared_len().saturating_sub(rows * of_row));
        [aligned(beside.max().unwrap_or(0)), of_row]
    }
}
