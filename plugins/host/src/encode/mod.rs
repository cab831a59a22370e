//! Encoding of plans in the flat form that plugins read.

use meganeura_core::attrs::{Attr, Attrs};
use meganeura_core::backend::KernelDesc;
use meganeura_core::plan::{BufferRef, ExecutionPlan};
use meganeura_core::precision::Precision;
use meganeura_core::program::{Program, Slot};
use meganeura_core::shape::TensorType;
use meganeura_core::{DType, Error, Result};
use meganeura_plugin_abi as abi;
use meganeura_plugin_abi::plain::{self, Plain};

/// Alignment of plans, their tables and constants, in bytes.
const ALIGNMENT: usize = 64;

/// Encodes a whole plan.
///
/// # Errors
/// A plan with more entries than fit into 32-bit numbers.
pub(crate) fn plan(plan: &ExecutionPlan) -> Result<Block> {
    let mut writer = Writer::default();
    let offsets = if !plan.memory.offsets.is_empty() {
        (plan.memory.offsets.clone(), plan.memory.bytes)
    } else {
        side_by_side(&plan.buffers)?
    };
    writer.buffers(plan, &offsets.0)?;
    for dispatch in &plan.dispatches {
        let (inputs, outputs) = (operands(&dispatch.inputs), operands(&dispatch.outputs));
        let name = (&*dispatch.kernel.name, dispatch.kernel.version, &*dispatch.label);
        writer.dispatch(name, &dispatch.attrs, &inputs, &outputs, dispatch.index_operand())?;
        if let Some(last) = writer.dispatches.last_mut() {
            last.level = dispatch.level;
        }
    }
    for segment in &plan.segments {
        let name = writer.text(&segment.name)?;
        writer.segments.push(abi::Segment {
            name,
            first: number(segment.first)?,
            count: number(segment.count)?,
            skip_if: segment.skip_if.map_or(abi::NONE, |b| b.0),
            reserved: 0,
        });
    }
    writer.finish(abi::PLAN_WHOLE, plan.precision, offsets.1)
}

/// Encodes a call, to ask a device whether it has a kernel for it.
///
/// # Errors
/// As [`plan`].
pub(crate) fn call(kernel: &KernelDesc) -> Result<Block> {
    let mut writer = Writer::default();
    let types = |list: &[TensorType]| list.iter().map(|ty| (abi::NONE, ty.clone())).collect::<Vec<_>>();
    let (inputs, outputs) = (types(kernel.inputs), types(kernel.outputs));
    let op = meganeura_core::registry::op(kernel.name);
    let index = op.and_then(|op| op.index_bound(&kernel.call()));
    let name = (kernel.name, kernel.version, kernel.name);
    writer.dispatch(name, kernel.attrs, &inputs, &outputs, index)?;
    writer.finish(abi::PLAN_CALL, Precision::F32, 0)
}

/// Returns the number of an element type.
///
/// # Errors
/// A type without a number in this version of the interface.
pub(crate) fn dtype(dtype: DType) -> Result<u32> {
    Ok(match dtype {
        DType::F32 => abi::DTYPE_F32,
        DType::F16 => abi::DTYPE_F16,
        DType::BF16 => abi::DTYPE_BF16,
        DType::U32 => abi::DTYPE_U32,
        DType::I32 => abi::DTYPE_I32,
        other => return Err(Error::plan(format!("the plugin interface has no element type {other}"))),
    })
}

fn operands(list: &[meganeura_core::plan::Operand]) -> Vec<(u32, TensorType)> {
    list.iter().map(|o| (o.buffer.0, o.ty.clone())).collect()
}

fn number(value: usize) -> Result<u32> {
    u32::try_from(value).map_err(|_| Error::plan("it has more entries than the plugin interface supports"))
}

/// Returns offsets for the buffers of a plan without a memory layout, one after the other, and their total size.
fn side_by_side(sizes: &[usize]) -> Result<(Vec<usize>, usize)> {
    let too_large = || Error::plan("its buffers have more bytes than memory can address");
    let mut offsets = Vec::with_capacity(sizes.len());
    let mut end = 0usize;
    for size in sizes {
        offsets.push(end);
        let padded = size.checked_next_multiple_of(ALIGNMENT).ok_or_else(too_large)?;
        end = end.checked_add(padded).ok_or_else(too_large)?;
    }
    Ok((offsets, end))
}

#[derive(Default)]
struct Writer {
    buffers: Vec<abi::Buffer>,
    dispatches: Vec<abi::Dispatch>,
    segments: Vec<abi::Segment>,
    operands: Vec<abi::Operand>,
    attributes: Vec<abi::Attribute>,
    programs: Vec<abi::Program>,
    steps: Vec<abi::ProgramStep>,
    slots: Vec<abi::Slot>,
    integers: Vec<i64>,
    bytes: Vec<u8>,
    /// Contents of constants, each with the index of its buffer.
    constants: Vec<(usize, Vec<u8>)>,
}

/// Adds elements to a table and returns their range.
fn append<T>(table: &mut Vec<T>, elements: impl IntoIterator<Item = T>) -> Result<abi::Range> {
    let first = table.len();
    table.extend(elements);
    Ok(abi::Range {
        first: number(first)?,
        count: number(table.len() - first)?,
    })
}

impl Writer {
    fn text(&mut self, text: &str) -> Result<abi::Range> {
        append(&mut self.bytes, text.bytes())
    }

    fn dims(&mut self, ty: &TensorType) -> Result<abi::Range> {
        append(&mut self.integers, ty.shape.dims().iter().map(|&d| d as i64))
    }

    fn buffers(&mut self, plan: &ExecutionPlan, offsets: &[usize]) -> Result<()> {
        for (i, ty) in plan.buffer_types.iter().enumerate() {
            self.buffers.push(abi::Buffer {
                bytes: plan.buffers[i] as u64,
                offset: offsets[i] as u64,
                data_offset: 0,
                data_bytes: 0,
                dtype: dtype(ty.dtype)?,
                flags: 0,
                dims: append(&mut self.integers, ty.shape.dims().iter().map(|&d| d as i64))?,
                name: abi::Range { first: 0, count: 0 },
                fill: 0.0,
                reserved: 0,
                reserved2: 0,
            });
        }
        let named = [
            (abi::BUFFER_PARAMETER, &plan.param_buffers),
            (abi::BUFFER_INPUT, &plan.input_buffers),
            (abi::BUFFER_SCALAR, &plan.scalar_buffers),
        ];
        for (flag, list) in named {
            for (name, buffer) in list {
                self.buffers[buffer.index()].name = append(&mut self.bytes, name.bytes())?;
                self.buffers[buffer.index()].flags |= flag;
            }
        }
        for state in &plan.state_buffers {
            let buffer = &mut self.buffers[state.buffer.index()];
            buffer.name = append(&mut self.bytes, state.name.bytes())?;
            buffer.flags |= abi::BUFFER_STATE;
            buffer.fill = state.fill;
        }
        let mut mark = |flag: u32, buffer: BufferRef| self.buffers[buffer.index()].flags |= flag;
        plan.output_buffers.iter().for_each(|b| mark(abi::BUFFER_OUTPUT, *b));
        plan.gradient_buffers
            .iter()
            .for_each(|(_, b)| mark(abi::BUFFER_GRADIENT, *b));
        let reads = |i: usize| plan.dispatches[i].index_bound().is_some();
        let exposed = plan.exposed_to_faults(&reads);
        exposed.into_iter().for_each(|b| mark(abi::BUFFER_EXPOSED, b));
        for (buffer, data) in plan.constants() {
            self.buffers[buffer.index()].flags |= abi::BUFFER_CONSTANT;
            self.constants.push((buffer.index(), data));
        }
        Ok(())
    }

    fn operands(&mut self, list: &[(u32, TensorType)]) -> Result<abi::Range> {
        let operands = list.iter().map(|(buffer, ty)| {
            Ok(abi::Operand {
                buffer: *buffer,
                dtype: dtype(ty.dtype)?,
                dims: self.dims(ty)?,
            })
        });
        let operands = operands.collect::<Result<Vec<_>>>()?;
        append(&mut self.operands, operands)
    }

    fn dispatch(
        &mut self,
        (kernel, version, label): (&str, u32, &str),
        attrs: &Attrs,
        inputs: &[(u32, TensorType)],
        outputs: &[(u32, TensorType)],
        index: Option<(usize, usize)>,
    ) -> Result<()> {
        let dispatch = abi::Dispatch {
            kernel: self.text(kernel)?,
            label: self.text(label)?,
            version,
            level: 0,
            inputs: self.operands(inputs)?,
            outputs: self.operands(outputs)?,
            attributes: self.attributes(attrs)?,
            index_operand: index.map_or(Ok(abi::NONE), |(operand, _)| number(operand))?,
            reserved: 0,
            index_rows: index.map_or(0, |(_, rows)| rows as u64),
            reserved2: 0,
        };
        self.dispatches.push(dispatch);
        Ok(())
    }

    fn attributes(&mut self, attrs: &Attrs) -> Result<abi::Range> {
        let mut found = Vec::new();
        for (name, attr) in attrs.iter() {
            let mut out = abi::Attribute {
                name: self.text(name)?,
                kind: abi::ATTR_INT,
                reserved: 0,
                value: 0,
                list: abi::Range { first: 0, count: 0 },
            };
            (out.kind, out.value) = match attr {
                Attr::Int(v) => (abi::ATTR_INT, *v as u64),
                Attr::Float(v) => (abi::ATTR_FLOAT, v.to_bits()),
                Attr::Bool(v) => (abi::ATTR_BOOL, u64::from(*v)),
                Attr::DType(v) => (abi::ATTR_DTYPE, dtype(*v)?.into()),
                Attr::Program(p) => (abi::ATTR_PROGRAM, self.program(p)?),
                Attr::Ints(v) => {
                    out.list = append(&mut self.integers, v.iter().copied())?;
                    (abi::ATTR_INTS, 0)
                }
                Attr::Str(v) => {
                    out.list = self.text(v)?;
                    (abi::ATTR_TEXT, 0)
                }
            };
            found.push(out);
        }
        append(&mut self.attributes, found)
    }

    fn program(&mut self, program: &Program) -> Result<u64> {
        let mut steps = Vec::new();
        for step in program.steps() {
            steps.push(abi::ProgramStep {
                kernel: self.text(step.op.name())?,
                version: step.op.version(),
                reserved: 0,
                attributes: self.attributes(&step.attrs)?,
                inputs: append(&mut self.slots, step.inputs.iter().map(slot))?,
            });
        }
        let program = abi::Program {
            operands: number(program.operands())?,
            reserved: 0,
            steps: append(&mut self.steps, steps)?,
            results: append(&mut self.slots, program.results().iter().map(slot))?,
        };
        self.programs.push(program);
        Ok(self.programs.len() as u64 - 1)
    }

    fn finish(mut self, kind: u32, precision: Precision, arena: usize) -> Result<Block> {
        let mut file = Block::default();
        // Reserve the header, which is written last, when all offsets are final.
        file.append(&[0; size_of::<abi::Plan>()]);
        // Constants come first, as buffers contain their offsets.
        for (buffer, data) in std::mem::take(&mut self.constants) {
            let buffer = &mut self.buffers[buffer];
            buffer.data_offset = file.append(&data);
            buffer.data_bytes = data.len() as u64;
        }
        let mut header = abi::Plan {
            magic: abi::PLAN_MAGIC,
            version: abi::PLAN_VERSION,
            header_size: size_of::<abi::Plan>() as u32,
            total_bytes: 0,
            arena_bytes: arena as u64,
            kind,
            precision: match precision {
                Precision::Mixed => abi::PRECISION_MIXED,
                _ => abi::PRECISION_F32,
            },
            buffers: file.table(&self.buffers)?,
            dispatches: file.table(&self.dispatches)?,
            segments: file.table(&self.segments)?,
            operands: file.table(&self.operands)?,
            attributes: file.table(&self.attributes)?,
            programs: file.table(&self.programs)?,
            steps: file.table(&self.steps)?,
            slots: file.table(&self.slots)?,
            integers: file.table(&self.integers)?,
            bytes: abi::Table {
                offset: file.append(&self.bytes),
                count: number(self.bytes.len())?,
                stride: 1,
            },
            reserved: 0,
            reserved2: 0,
        };
        header.total_bytes = file.len as u64;
        file.begin_with(plain::bytes(&[header]));
        Ok(file)
    }
}

fn slot(slot: &Slot) -> abi::Slot {
    let (step, index) = match *slot {
        Slot::Operand(i) => (abi::NONE, i),
        Slot::Step(i) => (i, 0),
        Slot::Port { step, port } => (step, port),
    };
    abi::Slot { step, index }
}

/// 64 bytes of memory, with the alignment of plans.
#[repr(C, align(64))]
#[derive(Clone, Copy)]
struct Line([u8; ALIGNMENT]);

// SAFETY: it is an array of bytes, and its size equals its alignment.
unsafe impl Plain for Line {}

/// Bytes of a plan. They begin at a multiple of [`ALIGNMENT`], because plugins read structures without copying them.
#[derive(Default)]
pub(crate) struct Block {
    lines: Vec<Line>,
    /// Number of used bytes; the rest of the last [`Line`] is padding.
    len: usize,
}

impl std::ops::Deref for Block {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &plain::bytes(&self.lines)[..self.len]
    }
}

impl Block {
    /// Appends data at the next multiple of the alignment, and returns its offset.
    fn append(&mut self, data: &[u8]) -> u64 {
        let place = size_of_val(&self.lines[..]);
        self.lines.extend(data.chunks(ALIGNMENT).map(line));
        self.len = place + data.len();
        place as u64
    }

    /// Overwrites the first bytes with `data`.
    fn begin_with(&mut self, data: &[u8]) {
        for (to, from) in self.lines.iter_mut().zip(data.chunks(ALIGNMENT)) {
            to.0[..from.len()].copy_from_slice(from);
        }
    }

    fn table<T: Plain>(&mut self, elements: &[T]) -> Result<abi::Table> {
        Ok(abi::Table {
            offset: self.append(plain::bytes(elements)),
            count: number(elements.len())?,
            stride: size_of::<T>() as u32,
        })
    }
}

/// Returns up to 64 bytes, padded with zeros.
fn line(bytes: &[u8]) -> Line {
    let mut line = Line([0; ALIGNMENT]);
    line.0[..bytes.len()].copy_from_slice(bytes);
    line
}

#[cfg(test)]
mod tests;
