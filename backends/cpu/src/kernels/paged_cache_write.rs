//! Kernels that write rows into the blocks of a paged cache, in place.

use meganeura_core::ops::PagedWriteDims;

use super::cached_rows::{copy, has_halves, round, supports_write};
use crate::kernel::{CompileCx, Compiled, KernelDef, RunCx, Task, stream_nanos};

pub(super) const KERNELS: &[KernelDef] = &[KernelDef {
    name: "core.paged_cache_write",
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

/// Compiles a cache write with a single task, because there are few rows. `put` converts and stores a row.
fn write<N: Copy + Send + Sync + 'static, C: Copy + Send + Sync + 'static>(
    cx: &CompileCx,
    put: fn(&[N], &mut [C]),
) -> Result<Compiled, String> {
    let dims = PagedWriteDims::of(&cx.call())?;
    let (new, cache, out) = (cx.input::<N>(0), cx.input::<C>(1), cx.output::<C>(0));
    let (slots, dispatch) = (cx.input::<u32>(2), cx.index);
    let in_place = cx.input_buffer(1) == cx.output_buffer(0);
    let moved = new.len() + if in_place { 0 } else { cache.len() };
    Ok(Compiled::one(Task {
        tasks: 1,
        nanos: stream_nanos(8 * moved),
        body: move |_: usize, cx: &RunCx| {
            // SAFETY: this is the only task, and the new rows and the slots are in other buffers than the result.
            let (slots, new, out) = unsafe { (slots.all(), new.all(), out.slice_mut(0..dims.slots * dims.width)) };
            // All slots are checked before anything is written.
            if let Some(&bad) = slots.iter().find(|&&slot| slot as usize > dims.slots) {
                return cx.index_out_of_range(dispatch, bad, dims.slots + 1);
            }
            if !in_place {
                // SAFETY: the old cache is in another buffer than the result.
                out.copy_from_slice(unsafe { cache.all() });
            }
            for (row, &slot) in slots
                .iter()
                .enumerate()
                .filter(|(_, slot)| (**slot as usize) < dims.slots)
            {
                let to = slot as usize * dims.width;
                put(
                    &new[row * dims.width..(row + 1) * dims.width],
                    &mut out[to..to + dims.width],
                );
            }
        },
    }))
}
