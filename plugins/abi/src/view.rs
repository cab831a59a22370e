//! Plans as Rust values, read with every place checked.

use crate::author::Failure;
use crate::plain::{Plain, read as plain};
use crate::types::{
    ATTR_BOOL, ATTR_DTYPE, ATTR_FLOAT, ATTR_INT, ATTR_INTS, ATTR_PROGRAM, ATTR_TEXT, Attribute, BUFFER_EXPOSED, Buffer,
    DTYPE_BF16, DTYPE_F16, DTYPE_F32, DTYPE_I32, DTYPE_U32, Dispatch, NONE, Operand, PLAN_MAGIC, PLAN_VERSION,
    PRECISION_MIXED, Plan, Program, ProgramStep, Range, STATUS_INVALID_PLAN, Segment, Slot, Table,
};

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

/// See [`Buffer`].
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

/// See [`Operand`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OperandView {
    /// Number of the buffer; [`NONE`] in a call.
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

/// See [`Dispatch`].
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

/// See [`Segment`].
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

/// See [`Program`].
#[derive(Clone, Debug, PartialEq)]
pub struct ProgramView {
    /// Number of operands.
    pub operands: usize,
    /// The calls.
    pub steps: Vec<StepView>,
    /// What it yields.
    pub results: Vec<SlotView>,
}

/// See [`ProgramStep`].
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

/// See [`Slot`].
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

type Read<T> = Result<T, Failure>;

fn wrong(message: impl Into<String>) -> Failure {
    Failure::new(STATUS_INVALID_PLAN, message)
}

struct Reader<'a> {
    bytes: &'a [u8],
    header: Plan,
}

impl<'a> Reader<'a> {
    fn new(bytes: &'a [u8]) -> Read<Self> {
        if cfg!(target_endian = "big") {
            return Err(wrong("plans are little-endian, and this processor is not"));
        }
        let header: Plan = plain(bytes, 0).ok_or_else(|| wrong("it is shorter than its header"))?;
        if header.magic != PLAN_MAGIC {
            return Err(wrong("it does not begin as a plan does"));
        }
        if header.version != PLAN_VERSION {
            let version = header.version;
            return Err(wrong(format!(
                "it has version {version} of the format, and {PLAN_VERSION} is read here"
            )));
        }
        if header.total_bytes != bytes.len() as u64 {
            return Err(wrong("its length is not the one that it names"));
        }
        Ok(Reader { bytes, header })
    }

    fn slice(&self, offset: u64, len: u64) -> Read<&'a [u8]> {
        let end = offset.checked_add(len).filter(|&end| end <= self.bytes.len() as u64);
        let end = end.ok_or_else(|| wrong("a table leaves the plan"))?;
        Ok(&self.bytes[offset as usize..end as usize])
    }

    fn table<T: Plain, R>(&self, table: Table, range: Range, read: impl Fn(&Self, T) -> Read<R>) -> Read<Vec<R>> {
        let end = u64::from(range.first) + u64::from(range.count);
        if end > u64::from(table.count) || (range.count > 0 && (table.stride as usize) < size_of::<T>()) {
            return Err(wrong("a range leaves its table"));
        }
        // Before anything is allocated: as many elements as there are bytes for.
        self.slice(table.offset, u64::from(table.count) * u64::from(table.stride))?;
        let place = |i: u32| table.offset + u64::from(i) * u64::from(table.stride);
        let elements = (range.first..range.first + range.count)
            .map(|i| plain(self.bytes, place(i)).ok_or_else(|| wrong("a table leaves the plan")));
        elements.map(|element| read(self, element?)).collect()
    }

    fn whole<T: Plain, R>(&self, table: Table, read: impl Fn(&Self, T) -> Read<R>) -> Read<Vec<R>> {
        let all = Range {
            first: 0,
            count: table.count,
        };
        self.table(table, all, read)
    }

    fn text(&self, range: Range) -> Read<String> {
        let table = self.header.bytes;
        if u64::from(range.first) + u64::from(range.count) > u64::from(table.count) {
            return Err(wrong("a text leaves its table"));
        }
        let offset = table.offset.saturating_add(u64::from(range.first));
        let bytes = self.slice(offset, u64::from(range.count))?;
        String::from_utf8(bytes.to_vec()).map_err(|_| wrong("a text is not UTF-8"))
    }

    fn integers(&self, range: Range) -> Read<Vec<i64>> {
        self.table(self.header.integers, range, |_, v: i64| Ok(v))
    }

    fn dims(&self, range: Range) -> Read<Vec<usize>> {
        let dims = self.integers(range)?.into_iter();
        let dims: Option<Vec<usize>> = dims.map(|d| usize::try_from(d).ok()).collect();
        let fits = |dims: &Vec<usize>| dims.iter().try_fold(4usize, |n, &d| n.checked_mul(d.max(1))).is_some();
        dims.filter(fits).ok_or_else(|| wrong("a shape is too large"))
    }

    fn buffer(&self, b: Buffer) -> Read<BufferView> {
        Ok(BufferView {
            bytes: usize::try_from(b.bytes).map_err(|_| wrong("a buffer is too large"))?,
            offset: b.offset,
            dtype: dtype(b.dtype)?,
            dims: self.dims(b.dims)?,
            flags: b.flags,
            name: self.text(b.name)?,
            fill: b.fill,
            data: self.slice(b.data_offset, b.data_bytes)?.to_vec(),
        })
    }

    fn operands(&self, range: Range) -> Read<Vec<OperandView>> {
        self.table(self.header.operands, range, |r, o: Operand| {
            if o.buffer != NONE && o.buffer >= r.header.buffers.count {
                return Err(wrong("an operand names a buffer that does not exist"));
            }
            Ok(OperandView {
                buffer: o.buffer,
                dtype: dtype(o.dtype)?,
                dims: r.dims(o.dims)?,
            })
        })
    }

    fn dispatch(&self, d: Dispatch) -> Read<DispatchView> {
        let inputs = self.operands(d.inputs)?;
        let index = (d.index_operand != NONE).then_some((d.index_operand as usize, d.index_rows));
        if index.is_some_and(|(operand, _)| operand >= inputs.len()) {
            return Err(wrong("indices are an operand that does not exist"));
        }
        Ok(DispatchView {
            kernel: self.text(d.kernel)?,
            version: d.version,
            label: self.text(d.label)?,
            level: d.level,
            inputs,
            outputs: self.operands(d.outputs)?,
            attributes: self.attributes(d.attributes, true)?,
            index,
        })
    }

    fn segment(&self, s: Segment) -> Read<SegmentView> {
        let (first, count) = (s.first as usize, s.count as usize);
        if first + count > self.header.dispatches.count as usize {
            return Err(wrong("a segment names dispatches that do not exist"));
        }
        Ok(SegmentView {
            name: self.text(s.name)?,
            dispatches: first..first + count,
            skip_if: (s.skip_if != NONE).then_some(s.skip_if),
        })
    }

    /// Steps of programs have no programs of their own, so that reading ends.
    fn attributes(&self, range: Range, programs: bool) -> Read<Vec<(String, Value)>> {
        self.table(self.header.attributes, range, |r, a: Attribute| {
            let value = match a.kind {
                ATTR_INT => Value::Int(a.value as i64),
                ATTR_INTS => Value::Ints(r.integers(a.list)?),
                ATTR_FLOAT => Value::Float(f64::from_bits(a.value)),
                ATTR_BOOL => Value::Bool(a.value != 0),
                ATTR_TEXT => Value::Text(r.text(a.list)?),
                ATTR_DTYPE => Value::DType(dtype(a.value as u32)?),
                ATTR_PROGRAM if programs => Value::Program(r.program(a.value)?),
                other => return Err(wrong(format!("an attribute has the unknown kind {other}"))),
            };
            Ok((r.text(a.name)?, value))
        })
    }

    fn program(&self, index: u64) -> Read<ProgramView> {
        let first = u32::try_from(index).map_err(|_| wrong("a program does not exist"))?;
        let found = self.table(self.header.programs, Range { first, count: 1 }, |r, p: Program| {
            Ok(ProgramView {
                operands: p.operands as usize,
                steps: r.table(r.header.steps, p.steps, |r, s: ProgramStep| {
                    Ok(StepView {
                        kernel: r.text(s.kernel)?,
                        version: s.version,
                        attributes: r.attributes(s.attributes, false)?,
                        inputs: r.slots(s.inputs)?,
                    })
                })?,
                results: r.slots(p.results)?,
            })
        })?;
        found
            .into_iter()
            .next()
            .ok_or_else(|| wrong("a program does not exist"))
    }

    fn slots(&self, range: Range) -> Read<Vec<SlotView>> {
        self.table(self.header.slots, range, |_, s: Slot| {
            Ok(match s.step {
                NONE => SlotView::Operand(s.index),
                step => SlotView::Result { step, port: s.index },
            })
        })
    }
}

fn dtype(number: u32) -> Read<DType> {
    DType::from_number(number).ok_or_else(|| wrong(format!("there is no element type {number}")))
}

impl PlanView {
    /// Reads a plan.
    ///
    /// # Errors
    /// [`STATUS_INVALID_PLAN`] when it has another version, or anything in it names a place outside of it.
    pub fn read(bytes: &[u8]) -> Result<Self, Failure> {
        let reader = Reader::new(bytes)?;
        let header = reader.header;
        Ok(PlanView {
            arena_bytes: header.arena_bytes,
            mixed_precision: header.precision == PRECISION_MIXED,
            buffers: reader.whole(header.buffers, Reader::buffer)?,
            dispatches: reader.whole(header.dispatches, Reader::dispatch)?,
            segments: reader.whole(header.segments, Reader::segment)?,
        })
    }

    /// Reads a plan that is a single call.
    ///
    /// # Errors
    /// As [`PlanView::read`]; one with another number of dispatches.
    pub fn read_call(bytes: &[u8]) -> Result<DispatchView, Failure> {
        let mut dispatches = PlanView::read(bytes)?.dispatches;
        match (dispatches.pop(), dispatches.is_empty()) {
            (Some(call), true) => Ok(call),
            _ => Err(wrong("it is not a single call")),
        }
    }
}
