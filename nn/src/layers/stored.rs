//! Weight matrices that are stored in fewer bits than the computation uses.

use meganeura_core::graph::Value;
use meganeura_core::quantization::{BLOCK, BlockFormat};
use meganeura_core::{DType, Graph, NodeId};

use super::scoped;

/// The storage type of a model's matrices on the device. All but `F32` are for frozen weights; matmuls dequantize them
/// while reading.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum WeightStorage {
    /// 32 bits per number.
    #[default]
    F32,
    /// 16 bits per number, IEEE 754 binary16.
    F16,
    /// 8 bits per number, and one scale per 32 numbers ([`BlockFormat::Q8_0`]). Rows whose length is no multiple of 32
    /// are in `F16`.
    Q8,
    /// 6 bits per number, and one scale per 16 numbers ([`BlockFormat::Q6`]), as Q6_K of GGUF files. Rows whose length
    /// is no multiple of 32 are in `F16` here and below.
    Q6,
    /// 5 bits per number, and one scale and one minimum per 32 numbers ([`BlockFormat::Q5_1`]), as Q5_1 and Q5_K.
    Q5_1,
    /// 5 bits per number, and one scale per 32 numbers ([`BlockFormat::Q5_0`]).
    Q5_0,
    /// 4 bits per number, and one scale and one minimum per 32 numbers ([`BlockFormat::Q4_1`]), as Q4_1 and Q4_K.
    Q4_1,
    /// 4 bits per number, and one scale per 32 numbers ([`BlockFormat::Q4_0`]).
    Q4,
}

impl WeightStorage {
    /// All storage types, the widest first.
    pub const ALL: [WeightStorage; 8] = [
        WeightStorage::F32,
        WeightStorage::F16,
        WeightStorage::Q8,
        WeightStorage::Q6,
        WeightStorage::Q5_1,
        WeightStorage::Q5_0,
        WeightStorage::Q4_1,
        WeightStorage::Q4,
    ];

    /// Returns the lower-case name.
    pub fn name(self) -> &'static str {
        match self {
            WeightStorage::F32 => "f32",
            WeightStorage::F16 => "f16",
            WeightStorage::Q8 => "q8",
            WeightStorage::Q6 => "q6",
            WeightStorage::Q5_1 => "q5_1",
            WeightStorage::Q5_0 => "q5_0",
            WeightStorage::Q4_1 => "q4_1",
            WeightStorage::Q4 => "q4",
        }
    }

    /// Returns the storage of this [name](WeightStorage::name).
    pub fn from_name(name: &str) -> Option<Self> {
        WeightStorage::ALL.into_iter().find(|storage| storage.name() == name)
    }

    /// Returns the format of its blocks, if there are blocks.
    pub fn format(self) -> Option<BlockFormat> {
        match self {
            WeightStorage::F32 | WeightStorage::F16 => None,
            WeightStorage::Q8 => Some(BlockFormat::Q8_0),
            WeightStorage::Q6 => Some(BlockFormat::Q6),
            WeightStorage::Q5_1 => Some(BlockFormat::Q5_1),
            WeightStorage::Q5_0 => Some(BlockFormat::Q5_0),
            WeightStorage::Q4_1 => Some(BlockFormat::Q4_1),
            WeightStorage::Q4 => Some(BlockFormat::Q4_0),
        }
    }
}

impl From<BlockFormat> for WeightStorage {
    /// Returns the storage in blocks of a format.
    fn from(format: BlockFormat) -> Self {
        match format {
            BlockFormat::Q8_0 => WeightStorage::Q8,
            BlockFormat::Q6 => WeightStorage::Q6,
            BlockFormat::Q5_1 => WeightStorage::Q5_1,
            BlockFormat::Q5_0 => WeightStorage::Q5_0,
            BlockFormat::Q4_1 => WeightStorage::Q4_1,
            BlockFormat::Q4_0 => WeightStorage::Q4,
        }
    }
}

/// A matrix `[rows, columns]`, or several of one shape, in fewer bits.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StoredMatrix {
    /// `f16 [rows, columns]`, or words of blocks.
    pub(crate) weight: NodeId,
    scales: Option<NodeId>,
}

impl StoredMatrix {
    /// Registers `{name}.weight`, `f16 [rows, columns]`, or in blocks `u32 [rows, words]` with `{name}.weight_scales`,
    /// `f16 [rows, scales]`; of several matrices, `[matrices, rows, ...]`. `None` for matrices in `f32`.
    #[track_caller]
    pub(crate) fn build(g: &mut Graph, name: &str, shape: &[usize], storage: WeightStorage) -> Option<Self> {
        if storage == WeightStorage::F32 {
            return None;
        }
        let (&columns, rows) = shape.split_last()?;
        let (blocks, weight) = (columns / BLOCK, scoped(name, "weight"));
        let format = storage.format().filter(|_| columns.is_multiple_of(BLOCK));
        Some(match format {
            None => StoredMatrix {
                weight: g.parameter_typed(&weight, shape, DType::F16),
                scales: None,
            },
            Some(format) => StoredMatrix {
                weight: g.parameter_typed(&weight, &[rows, &[blocks * format.words()]].concat(), DType::U32),
                scales: Some(g.parameter_typed(
                    &scoped(name, "weight_scales"),
                    &[rows, &[blocks * format.scales()]].concat(),
                    DType::F16,
                )),
            },
        })
    }

    /// Multiplies `x [..., m, columns]` by the transpose, `-> [..., m, rows]`.
    #[track_caller]
    pub(crate) fn product(&self, g: &mut Graph, x: Value) -> NodeId {
        g.quantized_matmul(x, self.weight, self.scales.map(Value::from))
    }

    /// Returns the matrix in `f32 [rows, columns]`.
    #[track_caller]
    pub(crate) fn dequantized(&self, g: &mut Graph) -> NodeId {
        match self.scales {
            Some(scales) => g.dequantize(self.weight, scales),
            None => g.cast(self.weight, DType::F32),
        }
    }

    /// Multiplies each row of `x [..., columns]` by the transpose of its expert's matrix, with
    /// experts `u32 [...]`: `-> [..., rows]`.
    #[track_caller]
    pub(crate) fn product_of_experts(&self, g: &mut Graph, x: Value, experts: Value) -> NodeId {
        g.quantized_expert_matmul(x, experts, self.weight, self.scales.map(Value::from))
    }

    /// Returns the rows with these indices `u32 [...]`, as `f32 [..., columns]`.
    #[track_caller]
    pub(crate) fn rows(&self, g: &mut Graph, ids: Value) -> NodeId {
        let rows = g.embedding(ids, self.weight);
        match self.scales {
            None => g.cast(rows, DType::F32),
            Some(scales) => {
                let scales = g.embedding(ids, scales);
                g.dequantize(rows, scales)
            }
        }
    }
}
