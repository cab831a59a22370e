//! Execution of the instructions of a fused program over parts of its domain, in buffers that stay in the first-level
//! cache.

use std::ops::Range;

use super::layout::Map;
use super::lower::{Instruction, LoweredProgram, MAX_LOADS, Origin, Src};
use super::scalar::{MAX_OPERANDS, Source};
use crate::kernel::CompileCx;
use crate::memory::View;
use crate::vmath::Level;

/// Number of elements of a buffer, and maximum length of a part of the domain. With 4 KiB, a first-level cache
/// contains several buffers.
pub(super) const RUN: usize = 1024;

/// The memory to which an instruction writes its result.
#[derive(Clone, Copy, Debug)]
enum Destination {
    /// A buffer of the scratch, by its index.
    Scratch(usize),
    /// The result with this index, whose elements are in the order of the domain.
    Result(usize),
}

struct ReadOperand {
    view: View<u32>,
    map: Map,
    /// Index of the scratch buffer into which elements are gathered, if necessary.
    buffer: usize,
    /// True to copy elements even if they are in order, because an instruction overwrites them meanwhile.
    copied: bool,
}

struct Write {
    view: View<u32>,
    map: Map,
    from: Src,
    /// True if an instruction writes the result directly to its memory.
    direct: bool,
}

/// A lowered program with the addresses of its operands and results.
pub(super) struct Engine {
    level: Level,
    pub(super) len: usize,
    reads: Vec<ReadOperand>,
    instructions: Vec<(Instruction, Destination)>,
    writes: Vec<Write>,
    folded: Option<Src>,
    /// Index of a scratch buffer, if `folded` is one broadcast element. The buffer repeats it, so that a reduction reads it
    /// like other values.
    spread: Option<usize>,
    buffers: usize,
    /// Number of bytes of operands and results, and cost of the instructions in nanoseconds.
    pub(super) bytes: usize,
    pub(super) nanos: u64,
}

impl Engine {
    /// Creates an engine. `head` is the result of the matmul or norm that the program begins with.
    pub(super) fn new(cx: &CompileCx, lowered: LoweredProgram, head: Option<View<u32>>) -> Result<Self, String> {
        let mut buffers = 0;
        let mut next = || {
            buffers += 1;
            buffers - 1
        };
        let mut reads = Vec::new();
        for load in &lowered.loads {
            let (view, copied) = match load.origin {
                Origin::Operand(i) => (cx.input::<u32>(i), false),
                Origin::Head => (head.ok_or("it has no matmul")?, true),
            };
            let gathered = copied || !(load.map.is_dense() || load.map.is_one());
            reads.push(ReadOperand {
                view,
                map: load.map.clone(),
                buffer: if gathered { next() } else { 0 },
                copied,
            });
        }
        let mut writes: Vec<Write> = Vec::new();
        let mut places: Vec<Option<Destination>> = vec![None; lowered.instructions.len()];
        for store in &lowered.stores {
            let direct = match store.from {
                Src::Of(i) if store.map.is_dense() && places[i].is_none() && !lowered.instructions[i].one => {
                    places[i] = Some(Destination::Result(writes.len()));
                    true
                }
                _ => false,
            };
            writes.push(Write {
                view: cx.output::<u32>(store.result),
                map: store.map.clone(),
                from: store.from,
                direct,
            });
        }
        let spread = (lowered.folded.is_some() && !lowered.folds_many()).then(&mut next);
        let last = last_uses(&lowered);
        let mut free: Vec<usize> = Vec::new();
        let mut nanos = 0;
        for (i, instruction) in lowered.instructions.iter().enumerate() {
            if places[i].is_none() {
                places[i] = Some(Destination::Scratch(free.pop().unwrap_or_else(&mut next)));
            }
            for (j, place) in places[..i].iter().enumerate() {
                if let (Some(Destination::Scratch(buffer)), true) = (place, last[j] == i) {
                    free.push(*buffer);
                }
            }
            nanos += instruction.scalar.cost() * lowered.len as u64 / 8;
        }
        let bytes = |views: usize| 4 * views;
        let instructions = lowered.instructions.into_iter().zip(places);
        Ok(Engine {
            level: cx.level,
            len: lowered.len,
            bytes: bytes(reads.iter().map(|r| r.view.len()).sum()) + bytes(writes.iter().map(|w| w.view.len()).sum()),
            reads,
            instructions: instructions.filter_map(|(i, place)| Some((i, place?))).collect(),
            writes,
            folded: lowered.folded,
            spread,
            buffers,
            nanos,
        })
    }

    /// Returns the number of `f32`s of a thread's scratch.
    pub(super) fn scratch(&self) -> usize {
        self.buffers * RUN
    }

    /// Computes a part of the domain of any length. The program must not fold values.
    ///
    /// # Safety
    /// As [`Engine::run`].
    pub(super) unsafe fn run_all(&self, part: Range<usize>, scratch: *mut f32) {
        for start in part.clone().step_by(RUN) {
            // SAFETY: forwarded.
            unsafe { self.run(start..(start + RUN).min(part.end), scratch) };
        }
    }

    /// Computes a part of the domain of at most [`RUN`] elements. Returns the values to fold, if the program folds.
    ///
    /// # Safety
    /// The executable must be alive. The scratch must have the requested size. Meanwhile, no other code may write the
    /// operands, or access the scratch or these elements of the results.
    pub(super) unsafe fn run<'a>(&self, part: Range<usize>, scratch: *mut f32) -> Option<&'a [f32]> {
        debug_assert!(part.len() <= RUN && part.end <= self.len);
        let scratch: *mut u32 = scratch.cast();
        let buffer = |i: usize| scratch.wrapping_add(i * RUN);
        let mut loaded = [Source::One(0); MAX_LOADS];
        for (source, read) in loaded.iter_mut().zip(&self.reads) {
            // SAFETY: no code writes the operand meanwhile, unless it is a head, and heads are copied. Only this read
            // uses the buffer.
            *source = unsafe { load(read, &part, buffer(read.buffer)) };
        }
        let source = |src: Src| match src {
            Src::Load(i) => loaded[i],
            Src::Of(i) => {
                let (instruction, place) = &self.instructions[i];
                let words = match *place {
                    Destination::Scratch(b) => buffer(b),
                    Destination::Result(w) => self.writes[w].view.as_ptr().wrapping_add(part.start),
                };
                if instruction.one {
                    // SAFETY: the value was computed before, because instructions come after their operands.
                    Source::One(unsafe { *words })
                } else {
                    Source::Words(words)
                }
            }
        };
        for (instruction, place) in &self.instructions {
            let mut inputs = [Source::One(0); MAX_OPERANDS];
            for (input, &src) in inputs.iter_mut().zip(&instruction.inputs[..instruction.count]) {
                *input = source(src);
            }
            let len = if instruction.one { 1 } else { part.len() };
            let out = match *place {
                Destination::Scratch(b) => buffer(b),
                Destination::Result(w) => self.writes[w].view.as_ptr().wrapping_add(part.start),
            };
            // SAFETY: buffers have RUN elements, and results have the elements of the domain. A buffer is only reused
            // after its last read. The types were checked with the program.
            unsafe { instruction.scalar.run(self.level, inputs, out, len, part.start) };
        }
        for write in self.writes.iter().filter(|w| !w.direct) {
            // SAFETY: maps are within their results, and other parts write other elements.
            unsafe { store(write, &part, source(write.from)) };
        }
        let words = match (source(self.folded?), self.spread) {
            (Source::Words(words), _) => words,
            (Source::One(value), spread) => {
                let words = buffer(spread?);
                // SAFETY: the buffer is only used for this.
                unsafe { std::slice::from_raw_parts_mut(words, part.len()) }.fill(value);
                words
            }
        };
        // SAFETY: the buffer is as long as the part, and no code writes it before the next run.
        Some(unsafe { std::slice::from_raw_parts(words.cast(), part.len()) })
    }
}

/// Returns the index of the last instruction that reads the result of each instruction. It is `usize::MAX` if a store
/// or a later consumer reads the result.
fn last_uses(lowered: &LoweredProgram) -> Vec<usize> {
    let mut last = vec![0; lowered.instructions.len()];
    for (i, instruction) in lowered.instructions.iter().enumerate() {
        for src in &instruction.inputs[..instruction.count] {
            if let Src::Of(j) = src {
                last[*j] = i;
            }
        }
    }
    let kept = lowered.stores.iter().map(|s| s.from).chain(lowered.folded);
    for src in kept {
        if let Src::Of(j) = src {
            last[j] = usize::MAX;
        }
    }
    last
}

/// Returns the elements of an operand in a part of the domain. Copies them to `buffer` if they are not contiguous.
///
/// # Safety
/// As [`Engine::run`].
unsafe fn load(read: &ReadOperand, part: &Range<usize>, buffer: *mut u32) -> Source {
    // SAFETY: maps are within their operands, by the rules of broadcasting.
    unsafe {
        if !read.copied {
            if read.map.is_one() {
                return Source::One(read.view.slice(0..1)[0]);
            }
            match read.map.run_of(part) {
                Some((offset, 1)) => return Source::Words(read.view.slice(offset..offset + part.len()).as_ptr()),
                Some((offset, 0)) => return Source::One(read.view.slice(offset..offset + 1)[0]),
                _ => {}
            }
        }
        let out = std::slice::from_raw_parts_mut(buffer, part.len());
        read.map.for_runs(part.clone(), |at, offset, stride, len| {
            let out = &mut out[at..at + len];
            match stride {
                1 => out.copy_from_slice(read.view.slice(offset..offset + len)),
                0 => out.fill(read.view.slice(offset..offset + 1)[0]),
                _ => {
                    let stride = stride as usize;
                    let from = read.view.slice(offset..offset + (len - 1) * stride + 1);
                    out.iter_mut()
                        .zip(from.iter().step_by(stride))
                        .for_each(|(o, &v)| *o = v);
                }
            }
        });
        Source::Words(buffer)
    }
}

/// Writes a part of a result, in the order of its map.
///
/// # Safety
/// As [`Engine::run`].
unsafe fn store(write: &Write, part: &Range<usize>, from: Source) {
    write.map.for_runs(part.clone(), |at, offset, stride, len| {
        for i in 0..len {
            // SAFETY: the element is within the part and, by its map, within the result.
            unsafe {
                let value = match from {
                    Source::Words(p) => *p.add(at + i),
                    Source::One(v) => v,
                };
                let to = offset + i * stride as usize;
                write.view.slice_mut(to..to + 1)[0] = value;
            }
        }
    });
}
