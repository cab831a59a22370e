//! Plans as Rust values, read with checks of all offsets.

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
    /// Returns the type with this number.
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

    /// Returns its number.
    pub fn number(self) -> u32 {
        match self {
            DType::F32 => DTYPE_F32,
            DType::F16 => DTYPE_F16,
            DType::BF16 => DTYPE_BF16,
            DType::U32 => DTYPE_U32,
            DType::I32 => DTYPE_I32,
        }
    }

    /// Returns the bytes of an element.
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
    /// Size in bytes of the arena that contains all buffers.
    pub arena_bytes: u64,
    /// True if operands of products may be rounded to `f16`.
    pub mixed_precision: bool,
    /// Buffers; empty for a plan that is a single call.
    pub buffers: Vec<BufferView>,
    /// Dispatches, segment after segment, sorted by level within each.
    pub dispatches: Vec<DispatchView>,
    /// Parts of a step.
    pub segments: Vec<SegmentView>,
}

/// See [`Buffer`](crate::Buffer).
#[derive(Clone, Debug, PartialEq)]
pub struct BufferView {
    /// Size in bytes.
    pub bytes: usize,
    /// Offset in the arena.
    pub offset: u64,
    /// Element type.
    pub dtype: DType,
    /// Dimensions.
    pub dims: Vec<usize>,
    /// `BUFFER_...`.
    pub flags: u32,
    /// Name of a leaf; empty for other buffers.
    pub name: String,
    /// Initial value of each element of a state.
    pub fill: f32,
    /// Contents of a constant.
    pub data: Vec<u8>,
}

impl BufferView {
    /// Returns true if its contents must be restored after a step with a fault.
    pub fn is_exposed(&self) -> bool {
        self.flags & BUFFER_EXPOSED != 0
    }
}

/// See [`Operand`](crate::Operand).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OperandView {
    /// Index of the buffer; [`NONE`](crate::NONE) in a call.
    pub buffer: u32,
    /// Element type.
    pub dtype: DType,
    /// Dimensions.
    pub dims: Vec<usize>,
}

impl OperandView {
    /// Returns the number of elements.
    pub fn elements(&self) -> usize {
        self.dims.iter().product()
    }
}

/// See [`Dispatch`](crate::Dispatch).
#[derive(Clone, Debug, PartialEq)]
pub struct DispatchView {
    /// Name of the operator.
    pub kernel: String,
    /// Version of the operator's definition.
    pub version: u32,
    /// Origin of the dispatch, for messages.
    pub label: String,
    /// Level in its segment: dispatches of one level are independent of each other.
    pub level: u32,
    /// Operands.
    pub inputs: Vec<OperandView>,
    /// Results.
    pub outputs: Vec<OperandView>,
    /// Attributes by name.
    pub attributes: Vec<(String, Value)>,
    /// Index of the operand that contains indices, and their exclusive upper bound.
    pub index: Option<(usize, u64)>,
}

impl DispatchView {
    /// Returns the attribute with this name.
    pub fn attribute(&self, name: &str) -> Option<&Value> {
        self.attributes.iter().find(|(n, _)| n == name).map(|(_, v)| v)
    }

    /// Returns an integer attribute, if it exists.
    pub fn int(&self, name: &str) -> Option<i64> {
        match self.attribute(name) {
            Some(Value::Int(v)) => Some(*v),
            _ => None,
        }
    }

    /// Returns an attribute that is a list of integers, if it exists.
    pub fn ints(&self, name: &str) -> Option<&[i64]> {
        match self.attribute(name) {
            Some(Value::Ints(v)) => Some(v),
            _ => None,
        }
    }

    /// Returns a floating-point attribute, if it exists.
    pub fn float(&self, name: &str) -> Option<f64> {
        match self.attribute(name) {
            Some(Value::Float(v)) => Some(*v),
            _ => None,
        }
    }

    /// Returns a Boolean attribute, if it exists.
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
    /// Name of the segment.
    pub name: String,
    /// Indices of the segment's dispatches.
    pub dispatches: std::ops::Range<usize>,
    /// Buffer that makes the step skip the segment if its value is not 0.
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
    /// Program: several calls combined into one.
    Program(ProgramView),
}

/// See [`Program`](crate::Program).
#[derive(Clone, Debug, PartialEq)]
pub struct ProgramView {
    /// Number of operands.
    pub operands: usize,
    /// Calls of the program, in order.
    pub steps: Vec<StepView>,
    /// Results.
    pub results: Vec<SlotView>,
}

/// See [`ProgramStep`](crate::ProgramStep).
#[derive(Clone, Debug, PartialEq)]
pub struct StepView {
    /// Name of the operator.
    pub kernel: String,
    /// Version of the operator's definition.
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
        /// Index of the result.
        port: u32,
    },
}

impl PlanView {
    /// Reads a plan.
    ///
    /// # Errors
    /// [`STATUS_INVALID_PLAN`](crate::STATUS_INVALID_PLAN) if it has another version, or refers to
    /// an offset outside of it, to something that does not exist, or to memory that it does not
    /// have.
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
