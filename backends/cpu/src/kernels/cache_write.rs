//! Rows written into a cache, in place.

use meganeura_core::ops::CacheDims;

use crate::kernel::{CompileCx, Compiled, KernelDef, RunCx, Task, f32_or_integers, stream_nanos};

pub(super) const KERNELS: &[KernelDef] = &[KernelDef {
    name: "core.cache_write",
    supports: f32_or_integers,
    compile,
}];

/// A task for each sequence. Elements are moved as words, whatever they stand for.
fn compile(cx: &CompileCx) -> Result<Compiled, String> {
    let dims = CacheDims::of(&cx.call())?;
    let (new, cache, out) = (cx.input::<u32>(0), cx.input::<u32>(1), cx.output::<u32>(0));
    let (positions, dispatch) = (cx.input::<u32>(2), cx.index);
    let in_place = cx.input_buffer(1) == cx.output_buffer(0);
    let moved = new.len() + if in_place { 0 } else { cache.len() };
    let (own_len, new_len) = (dims.capacity * dims.width, dims.rows * dims.width);
    Ok(Compiled::one(Task {
        tasks: dims.batch,
        nanos: stream_nanos(8 * moved),
        body: move |sequence: usize, cx: &RunCx| {
            // SAFETY: positions are not written by this dispatch.
            let positions = unsafe { positions.all() };
            // All are looked at before anything is written.
            if let Some(&bad) = positions.iter().find(|&&p| p as usize >= dims.bound()) {
                return cx.index_out_of_range(dispatch, bad, dims.bound());
            }
            // SAFETY: this task alone touches the cache of this sequence; the new rows are another buffer.
            let (new, own) = unsafe {
                (
                    new.slice(sequence * new_len..(sequence + 1) * new_len),
                    out.slice_mut(sequence * own_len..(sequence + 1) * own_len),
                )
            };
            if !in_place {
                // SAFETY: the cache is another buffer than the result.
                own.copy_from_slice(unsafe { cache.slice(sequence * own_len..(sequence + 1) * own_len) });
            }
            let first = positions[sequence] as usize * dims.width;
            own[first..first + new_len].copy_from_slice(new);
        },
    }))
}
