//! A reader of plans, which checks every offset and index before use.

use std::cell::Cell;

use crate::author::Failure;
use crate::plain::{Plain, read as plain};
use crate::types::{
    ATTR_BOOL, ATTR_DTYPE, ATTR_FLOAT, ATTR_INT, ATTR_INTS, ATTR_PROGRAM, ATTR_TEXT, Attribute, Buffer, Dispatch, NONE,
    Operand, PLAN_CALL, PLAN_MAGIC, PLAN_VERSION, PLAN_WHOLE, PRECISION_F32, PRECISION_MIXED, Plan, Program,
    ProgramStep, Range, Segment, Slot, Table,
};
use crate::view::{
    BufferView, DType, DispatchView, OperandView, PlanView, ProgramView, SegmentView, SlotView, StepView, Value,
};

type ReadResult<T> = Result<T, Failure>;

/// Maximum total size of all reads, as a multiple of the plan's size. Several dispatches may refer
/// to the same elements, such as names; without a limit, ranges within ranges could expand a small
/// plan to unlimited size.
const MAX_READINGS: u64 = 64;

/// Tables begin at multiples of this.
const TABLE_ALIGNMENT: u64 = 8;

fn wrong(message: impl Into<String>) -> Failure {
    Failure::invalid_plan(message)
}

pub(crate) fn read(bytes: &[u8]) -> ReadResult<PlanView> {
    let mut reader = Reader::new(bytes)?;
    let header = reader.header;
    let buffers = reader.whole("buffers", header.buffers, Reader::buffer)?;
    reader.sizes = buffers.iter().map(|b| b.bytes).collect();
    Ok(PlanView {
        arena_bytes: header.arena_bytes,
        mixed_precision: header.precision == PRECISION_MIXED,
        buffers,
        dispatches: reader.whole("dispatches", header.dispatches, Reader::dispatch)?,
        segments: reader.whole("segments", header.segments, Reader::segment)?,
    })
}

pub(crate) fn read_call(bytes: &[u8]) -> ReadResult<DispatchView> {
    let header: Option<Plan> = plain(bytes, 0);
    let mut plan = read(bytes)?;
    match (plan.dispatches.pop(), plan.dispatches.is_empty()) {
        (Some(call), true) if header.is_some_and(|h| h.kind == PLAN_CALL) => Ok(call),
        _ => Err(wrong("it is not a single call")),
    }
}

struct Reader<'a> {
    bytes: &'a [u8],
    header: Plan,
    /// Bytes of each buffer; set when buffers were read.
    sizes: Vec<usize>,
    /// Remaining bytes that may be read.
    budget: Cell<u64>,
}

impl<'a> Reader<'a> {
    fn new(bytes: &'a [u8]) -> ReadResult<Self> {
        if cfg!(target_endian = "big") {
            return Err(wrong("plans are little-endian, but this processor is big-endian"));
        }
        let header: Plan = plain(bytes, 0).ok_or_else(|| wrong("it is shorter than its header"))?;
        if header.magic != PLAN_MAGIC {
            return Err(wrong("it does not start with the magic number of a plan"));
        }
        if header.version != PLAN_VERSION {
            let version = header.version;
            return Err(wrong(format!(
                "it has format version {version}, expected {PLAN_VERSION}"
            )));
        }
        let len = bytes.len() as u64;
        if header.total_bytes != len {
            return Err(wrong("its length differs from its declared length"));
        }
        if (header.header_size as usize) < size_of::<Plan>() || u64::from(header.header_size) > len {
            return Err(wrong(format!("its header says to have {} bytes", header.header_size)));
        }
        if ![PLAN_WHOLE, PLAN_CALL].contains(&header.kind) {
            return Err(wrong(format!("{} is not a kind of plan", header.kind)));
        }
        if ![PRECISION_F32, PRECISION_MIXED].contains(&header.precision) {
            return Err(wrong(format!("{} is not a precision", header.precision)));
        }
        let reader = Reader {
            bytes,
            header,
            sizes: Vec::new(),
            budget: Cell::new(len.saturating_mul(MAX_READINGS)),
        };
        reader.check_tables()?;
        Ok(reader)
    }

    fn is_call(&self) -> bool {
        self.header.kind == PLAN_CALL
    }

    /// Checks that tables are within the plan after its header, are aligned, and do not overlap.
    fn check_tables(&self) -> ReadResult<()> {
        let h = &self.header;
        let tables = [
            ("buffers", h.buffers, size_of::<Buffer>()),
            ("dispatches", h.dispatches, size_of::<Dispatch>()),
            ("segments", h.segments, size_of::<Segment>()),
            ("operands", h.operands, size_of::<Operand>()),
            ("attributes", h.attributes, size_of::<Attribute>()),
            ("programs", h.programs, size_of::<Program>()),
            ("steps", h.steps, size_of::<ProgramStep>()),
            ("slots", h.slots, size_of::<Slot>()),
            ("integers", h.integers, size_of::<i64>()),
            ("bytes", h.bytes, 1),
        ];
        let mut taken = Vec::with_capacity(tables.len());
        for (name, table, size) in tables {
            if table.count == 0 {
                continue;
            }
            let stride = table.stride as usize;
            // Lists and texts are read as a whole, so there must be no gaps between their elements.
            let is_list = ["integers", "bytes"].contains(&name);
            if stride < size || (is_list && stride != size) || !stride.is_multiple_of(size.min(4)) {
                return Err(wrong(format!("the table of {name} has a stride of {stride} bytes")));
            }
            let place = table.offset;
            if !place.is_multiple_of(TABLE_ALIGNMENT) || place < u64::from(h.header_size) {
                return Err(wrong(format!("the table of {name} has the offset {place}")));
            }
            let len = u64::from(table.count) * u64::from(table.stride);
            self.slice(place, len, name)?;
            taken.push((place, place + len, name));
        }
        taken.sort_unstable();
        match taken.windows(2).find(|pair| pair[0].1 > pair[1].0) {
            Some(pair) => Err(wrong(format!("the tables of {} and {} overlap", pair[0].2, pair[1].2))),
            None => Ok(()),
        }
    }

    fn slice(&self, offset: u64, len: u64, what: &str) -> ReadResult<&'a [u8]> {
        let end = offset.checked_add(len).filter(|&end| end <= self.bytes.len() as u64);
        let end = end.ok_or_else(|| wrong(format!("the offset of {what} is outside of the plan")))?;
        Ok(&self.bytes[offset as usize..end as usize])
    }

    /// Subtracts the bytes of the next read from the budget; fails if it is used up.
    fn spend(&self, bytes: u64) -> ReadResult<()> {
        let left = self.budget.get().checked_sub(bytes);
        self.budget
            .set(left.ok_or_else(|| wrong("it refers to the same elements repeatedly"))?);
        Ok(())
    }

    /// Reads elements of a checked table.
    fn table<T: Plain, R>(
        &self,
        name: &str,
        table: Table,
        range: Range,
        read: impl Fn(&Self, T) -> ReadResult<R>,
    ) -> ReadResult<Vec<R>> {
        let end = u64::from(range.first) + u64::from(range.count);
        if end > u64::from(table.count) {
            let (first, count) = (range.first, table.count);
            return Err(wrong(format!(
                "it refers to the {name} {first} to {end} (exclusive), but there are {count}"
            )));
        }
        // Check the budget before anything is allocated.
        self.spend(u64::from(range.count) * u64::from(table.stride))?;
        let place = |i: u64| table.offset + i * u64::from(table.stride);
        let mut elements = Vec::with_capacity(range.count as usize);
        for i in u64::from(range.first)..end {
            let element =
                plain(self.bytes, place(i)).ok_or_else(|| wrong(format!("an index into {name} is out of range")))?;
            elements.push(read(self, element)?);
        }
        Ok(elements)
    }

    fn whole<T: Plain, R>(
        &self,
        name: &str,
        table: Table,
        read: impl Fn(&Self, T) -> ReadResult<R>,
    ) -> ReadResult<Vec<R>> {
        let all = Range {
            first: 0,
            count: table.count,
        };
        self.table(name, table, all, read)
    }

    fn text(&self, range: Range) -> ReadResult<String> {
        let table = self.header.bytes;
        if u64::from(range.first) + u64::from(range.count) > u64::from(table.count) {
            return Err(wrong("a text leaves its table"));
        }
        self.spend(range.count.into())?;
        // An empty range may be anywhere.
        if range.count == 0 {
            return Ok(String::new());
        }
        let bytes = self.slice(table.offset + u64::from(range.first), range.count.into(), "a text")?;
        String::from_utf8(bytes.to_vec()).map_err(|_| wrong("a text is not UTF-8"))
    }

    fn integers(&self, range: Range) -> ReadResult<Vec<i64>> {
        self.table("integers", self.header.integers, range, |_, v: i64| Ok(v))
    }

    /// Reads the dimensions of a tensor. Returns them and the size of the tensor in bytes.
    fn shape(&self, range: Range, dtype: DType) -> ReadResult<(Vec<usize>, usize)> {
        let dims = self.integers(range)?.into_iter();
        let dims: Option<Vec<usize>> = dims.map(|d| usize::try_from(d).ok()).collect();
        let dims = dims.ok_or_else(|| wrong("a dimension is negative"))?;
        // Any order of multiplication stays in range, even if a zero comes last.
        let fits = |n: usize, d: usize| n.checked_mul(d.max(1));
        let within = dims.iter().try_fold(dtype.bytes(), |n, &d| fits(n, d));
        within.ok_or_else(|| wrong("a shape is too large"))?;
        let bytes = dims.iter().product::<usize>() * dtype.bytes();
        Ok((dims, bytes))
    }

    fn buffer(&self, b: Buffer) -> ReadResult<BufferView> {
        let dtype = dtype(b.dtype.into())?;
        let (dims, needed) = self.shape(b.dims, dtype)?;
        let bytes = usize::try_from(b.bytes).map_err(|_| wrong("a buffer is too large"))?;
        if needed > bytes {
            return Err(wrong(format!(
                "a buffer has {bytes} bytes, but its shape needs {needed}"
            )));
        }
        let end = b.offset.checked_add(b.bytes);
        if end.is_none_or(|end| end > self.header.arena_bytes) {
            return Err(wrong("a buffer leaves the arena"));
        }
        if b.data_bytes != 0 && b.data_bytes != b.bytes {
            let found = b.data_bytes;
            return Err(wrong(format!("a constant of {bytes} bytes has {found} bytes of data")));
        }
        self.spend(b.data_bytes)?;
        Ok(BufferView {
            bytes,
            offset: b.offset,
            dtype,
            dims,
            flags: b.flags,
            name: self.text(b.name)?,
            fill: b.fill,
            data: self.slice(b.data_offset, b.data_bytes, "a constant")?.to_vec(),
        })
    }

    fn operand(&self, o: Operand) -> ReadResult<OperandView> {
        let dtype = dtype(o.dtype.into())?;
        let (dims, needed) = self.shape(o.dims, dtype)?;
        let operand = OperandView {
            buffer: o.buffer,
            dtype,
            dims,
        };
        match (self.is_call(), self.sizes.get(o.buffer as usize)) {
            (true, _) if o.buffer == NONE => Ok(operand),
            (true, _) => Err(wrong("an operand of a call names a buffer")),
            (false, None) if o.buffer == NONE => Err(wrong("an operand of a plan names no buffer")),
            (false, None) => Err(wrong(format!("there is no buffer {} to be an operand", o.buffer))),
            (false, Some(&bytes)) if needed > bytes => Err(wrong(format!(
                "an operand takes {needed} bytes, and buffer {} has {bytes}",
                o.buffer
            ))),
            (false, Some(_)) => Ok(operand),
        }
    }

    fn operands(&self, range: Range) -> ReadResult<Vec<OperandView>> {
        self.table("operands", self.header.operands, range, Reader::operand)
    }

    fn dispatch(&self, d: Dispatch) -> ReadResult<DispatchView> {
        let inputs = self.operands(d.inputs)?;
        let index = (d.index_operand != NONE).then_some((d.index_operand as usize, d.index_rows));
        if let Some((operand, _)) = index {
            match inputs.get(operand).map(|o| o.dtype) {
                Some(DType::U32) => {}
                Some(_) => return Err(wrong("an operand with indices is not u32")),
                None => return Err(wrong("indices are an operand that does not exist")),
            }
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

    fn segment(&self, s: Segment) -> ReadResult<SegmentView> {
        let end = u64::from(s.first) + u64::from(s.count);
        if end > u64::from(self.header.dispatches.count) {
            return Err(wrong("a segment refers to dispatches that do not exist"));
        }
        let skip_if = (s.skip_if != NONE).then_some(s.skip_if);
        match skip_if.map(|buffer| self.sizes.get(buffer as usize)) {
            None | Some(Some(&4)) => {}
            Some(None) => return Err(wrong("a segment depends on a buffer that does not exist")),
            Some(Some(bytes)) => {
                return Err(wrong(format!(
                    "a segment depends on a buffer of {bytes} bytes, expected one number"
                )));
            }
        }
        Ok(SegmentView {
            name: self.text(s.name)?,
            dispatches: s.first as usize..end as usize,
            skip_if,
        })
    }

    /// Reads attributes. Programs are only allowed if `programs` is true: a step of a program contains none, so
    /// recursion ends.
    fn attributes(&self, range: Range, programs: bool) -> ReadResult<Vec<(String, Value)>> {
        self.table("attributes", self.header.attributes, range, |r, a: Attribute| {
            let value = match a.kind {
                ATTR_INT => Value::Int(a.value as i64),
                ATTR_INTS => Value::Ints(r.integers(a.list)?),
                ATTR_FLOAT => Value::Float(f64::from_bits(a.value)),
                ATTR_BOOL if a.value > 1 => return Err(wrong(format!("expected 0 or 1 as flag, found {}", a.value))),
                ATTR_BOOL => Value::Bool(a.value == 1),
                ATTR_TEXT => Value::Text(r.text(a.list)?),
                ATTR_DTYPE => Value::DType(dtype(a.value)?),
                ATTR_PROGRAM if programs => Value::Program(r.program(a.value)?),
                ATTR_PROGRAM => return Err(wrong("a step of a program has a program")),
                other => return Err(wrong(format!("an attribute has the unknown kind {other}"))),
            };
            Ok((r.text(a.name)?, value))
        })
    }

    fn program(&self, index: u64) -> ReadResult<ProgramView> {
        let missing = || wrong(format!("there is no program {index}"));
        let first = u32::try_from(index).map_err(|_| missing())?;
        let one = Range { first, count: 1 };
        let found = self.table("programs", self.header.programs, one, |r, p: Program| {
            let steps = r.table("steps", r.header.steps, p.steps, |r, s: ProgramStep| {
                Ok(StepView {
                    kernel: r.text(s.kernel)?,
                    version: s.version,
                    attributes: r.attributes(s.attributes, false)?,
                    inputs: r.slots(s.inputs)?,
                })
            })?;
            let results = r.slots(p.results)?;
            // A step may only use previous values.
            let before = |count: usize| move |slot: &SlotView| exists(*slot, p.operands, count);
            let all = steps.iter().enumerate().all(|(i, s)| s.inputs.iter().all(before(i)));
            if !all || !results.iter().all(before(steps.len())) {
                return Err(wrong("a program refers to a value that does not exist"));
            }
            Ok(ProgramView {
                operands: p.operands as usize,
                steps,
                results,
            })
        })?;
        found.into_iter().next().ok_or_else(missing)
    }

    fn slots(&self, range: Range) -> ReadResult<Vec<SlotView>> {
        self.table("slots", self.header.slots, range, |_, s: Slot| {
            Ok(match s.step {
                NONE => SlotView::Operand(s.index),
                step => SlotView::Result { step, port: s.index },
            })
        })
    }
}

/// Returns true if a slot refers to an operand of the program, or to a result of one of its first `steps` steps.
fn exists(slot: SlotView, operands: u32, steps: usize) -> bool {
    match slot {
        SlotView::Operand(i) => i < operands,
        SlotView::Result { step, .. } => (step as usize) < steps,
    }
}

fn dtype(number: u64) -> ReadResult<DType> {
    let found = u32::try_from(number).ok().and_then(DType::from_number);
    found.ok_or_else(|| wrong(format!("there is no element type {number}")))
}
