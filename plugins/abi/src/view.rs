//! Plans as Rust values, read with every place checked.

use crate::author::Failure;
use crate::reader;
use crate::types::{BUFFER_EXPOSED, DTYPE_BF16, DTYPE_F16, DTYPE_F32, DTYPE_I32, DTYPE_U32};

/// Element type of a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DType {
    /// IEEE 754 binary32.
    F32,
    /// IEEE 754 binary16.
    F16,
    /// The upper half of a binary32.
    BF16,
    /// Unsigned 32-bit integer.
    U32,
    /// Signed 32-bit integer.
    I32,
}

impl DType {
    /// The type of that number.
    pub fn from_number(number: u32) -> Option<Self> {
        Some(match number {
            DTYPE_F32 => DType::F32,
            DTYPE_F16 => DType::F16,
            DTYPE_BF16 => DType::BF16,
            DTYPE_U32 => DType::U32,
            DTYPE_I32 => DType::I32,
            _ => return None,
        })
    }

    /// Its number.
    pub fn number(self) -> u32 {
        match self {
            DType::F32 => DTYPE_F32,
            DType::F16 => DTYPE_F16,
            DType::BF16 => DTYPE_BF16,
            DType::U32 => DTYPE_U32,
            DType::I32 => DTYPE_I32,
        }
    }

    /// Bytes of an element.
    pub fn bytes(self) -> usize {
        match self {
            DType::F16 | DType::BF16 => 2,
            DType::F32 | DType::U32 | DType::I32 => 4,
        }
    }
}

/// A plan, or a single call.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PlanView {
    /// Bytes of the arena in which buffers have their offset.
    pub arena_bytes: u64,
    /// Whether operands of products may be rounded to `f16`.
    pub mixed_precision: bool,
    /// Buffers; none, if it is a call.
    pub buffers: Vec<BufferView>,
    /// Dispatches, segment after segment, sorted by level within each.
    pub dispatches: Vec<DispatchView>,
    /// Parts of a step.
    pub segments: Vec<SegmentView>,
}

/// See [`Buffer`](crate::Buffer).
#[derive(Clone, Debug, PartialEq)]
pub struct BufferView {
    /// Bytes.
    pub bytes: usize,
    /// Place in the arena.
    pub offset: u64,
    /// Element type.
    pub dtype: DType,
    /// Dimensions.
    pub dims: Vec<usize>,
    /// `BUFFER_...`.
    pub flags: u32,
    /// Name of a leaf, or nothing.
    pub name: String,
    /// First value of each element of a state.
    pub fill: f32,
    /// Contents of a constant.
    pub data: Vec<u8>,
}

impl BufferView {
    /// Whether a faulty step has to put its contents back.
    pub fn is_exposed(&self) -> bool {
        self.flags & BUFFER_EXPOSED != 0
    }
}

/// See [`Operand`](crate::Operand).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OperandView {
    /// Number of the buffer; [`NONE`](crate::NONE) in a call.
    pub buffer: u32,
    /// Element type.
    pub dtype: DType,
    /// Dimensions.
    pub dims: Vec<usize>,
}

impl OperandView {
    /// Number of elements.
    pub fn elements(&self) -> usize {
        self.dims.iter().product()
    }
}

/// See [`Dispatch`](crate::Dispatch).
#[derive(Clone, Debug, PartialEq)]
pub struct DispatchView {
    /// Name of the operator.
    pub kernel: String,
    /// Version of its meaning.
    pub version: u32,
    /// Where it comes from.
    pub label: String,
    /// Position in the order of its segment.
    pub level: u32,
    /// What it reads.
    pub inputs: Vec<OperandView>,
    /// What it writes.
    pub outputs: Vec<OperandView>,
    /// Attributes by name.
    pub attributes: Vec<(String, Value)>,
    /// The operand that holds indices, and what they must be below.
    pub index: Option<(usize, u64)>,
}

impl DispatchView {
    /// The attribute of that name.
    pub fn attribute(&self, name: &str) -> Option<&Value> {
        self.attributes.iter().find(|(n, _)| n == name).map(|(_, v)| v)
    }

    /// An integer attribute.
    pub fn int(&self, name: &str) -> Option<i64> {
        match self.attribute(name) {
            Some(Value::Int(v)) => Some(*v),
            _ => None,
        }
    }

    /// A list of integers.
    pub fn ints(&self, name: &str) -> Option<&[i64]> {
        match self.attribute(name) {
            Some(Value::Ints(v)) => Some(v),
            _ => None,
        }
    }

    /// A number.
    pub fn float(&self, name: &str) -> Option<f64> {
        match self.attribute(name) {
            Some(Value::Float(v)) => Some(*v),
            _ => None,
        }
    }

    /// A flag.
    pub fn flag(&self, name: &str) -> Option<bool> {
        match self.attribute(name) {
            Some(Value::Bool(v)) => Some(*v),
            _ => None,
        }
    }
}

/// See [`Segment`](crate::Segment).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SegmentView {
    /// Name.
    pub name: String,
    /// Numbers of its dispatches.
    pub dispatches: std::ops::Range<usize>,
    /// Where this buffer does not hold 0, the segment is left out.
    pub skip_if: Option<u32>,
}

/// The value of an attribute.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// An integer.
    Int(i64),
    /// Integers.
    Ints(Vec<i64>),
    /// A number.
    Float(f64),
    /// A flag.
    Bool(bool),
    /// A text.
    Text(String),
    /// An element type.
    DType(DType),
    /// Several calls as one.
    Program(ProgramView),
}

/// See [`Program`](crate::Program).
#[derive(Clone, Debug, PartialEq)]
pub struct ProgramView {
    /// Number of operands.
    pub operands: usize,
    /// The calls.
    pub steps: Vec<StepView>,
    /// What it yields.
    pub results: Vec<SlotView>,
}

/// See [`ProgramStep`](crate::ProgramStep).
#[derive(Clone, Debug, PartialEq)]
pub struct StepView {
    /// Name of the operator.
    pub kernel: String,
    /// Version of its meaning.
    pub version: u32,
    /// Attributes by name.
    pub attributes: Vec<(String, Value)>,
    /// Operands.
    pub inputs: Vec<SlotView>,
}

/// See [`Slot`](crate::Slot).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SlotView {
    /// An operand of the program.
    Operand(u32),
    /// A result of a step.
    Result {
        /// The step.
        step: u32,
        /// Which result.
        port: u32,
    },
}

impl PlanView {
    /// Reads a plan.
    ///
    /// # Errors
    /// [`STATUS_INVALID_PLAN`](crate::STATUS_INVALID_PLAN) when it has another version, or anything in it names a place
    /// outside of it, something that does not exist, or memory that it does not have.
    pub fn read(bytes: &[u8]) -> Result<Self, Failure> {
        reader::read(bytes)
    }

    /// Reads a plan that is a single call.
    ///
    /// # Errors
    /// As [`PlanView::read`]; a whole plan, or another number of dispatches.
    pub fn read_call(bytes: &[u8]) -> Result<DispatchView, Failure> {
        reader::read_call(bytes)
    }
}
