//! Kernels that write rows into a cache, in place.

use meganeura_core::ops::CacheDims;

use super::cached_rows::{copy, has_halves, round, supports_write};
use crate::kernel::{CompileCx, Compiled, KernelDef, RunCx, Task, stream_nanos};

pub(super) const KERNELS: &[KernelDef] = &[KernelDef {
    name: "core.cache_write",
    supports: supports_write,
    compile,
}];

fn compile(cx: &CompileCx) -> Result<Compiled, String> {
    if has_halves(cx.input_type(1)) {
        write(cx, round)
    } else {
        write(cx, copy)
    }
}

/// Compiles a cache write with one task for each sequence. `put` converts and stores a row.
fn write<N: Copy + Send + Sync + 'static, C: Copy + Send + Sync + 'static>(
    cx: &CompileCx,
    put: fn(&[N], &mut [C]),
) -> Result<Compiled, String> {
    let dims = CacheDims::of(&cx.call())?;
    let (new, cache, out) = (cx.input::<N>(0), cx.input::<C>(1), cx.output::<C>(0));
    let (positions, dispatch) = (cx.input::<u32>(2), cx.index);
    let in_place = cx.input_buffer(1) == cx.output_buffer(0);
    let moved = new.len() + if in_place { 0 } else { cache.len() };
    let (own_len, new_len) = (dims.capacity * dims.width, dims.rows * dims.width);
    Ok(Compiled::one(Task {
        tasks: dims.batch,
        nanos: stream_nanos(8 * moved),
        body: move |sequence: usize, cx: &RunCx| {
            // SAFETY: this dispatch does not write positions.
            let positions = unsafe { positions.all() };
            // All positions are checked before anything is written.
            if let Some(&bad) = positions.iter().find(|&&p| p as usize >= dims.bound()) {
                return cx.index_out_of_range(dispatch, bad, dims.bound());
            }
            // SAFETY: only this task accesses the cache of this sequence, and the new rows are in another buffer.
            let (new, own) = unsafe {
                (
                    new.slice(sequence * new_len..(sequence + 1) * new_len),
                    out.slice_mut(sequence * own_len..(sequence + 1) * own_len),
                )
            };
            if !in_place {
                // SAFETY: the old cache is in another buffer than the result.
                own.copy_from_slice(unsafe { cache.slice(sequence * own_len..(sequence + 1) * own_len) });
            }
            let first = positions[sequence] as usize * dims.width;
            put(new, &mut own[first..first + new_len]);
        },
    }))
}
