//! Rows written into the blocks of a cache, in place.

use meganeura_core::ops::PagedWriteDims;

use crate::kernel::{CompileCx, Compiled, KernelDef, RunCx, Task, f32_or_integers, stream_nanos};

pub(super) const KERNELS: &[KernelDef] = &[KernelDef {
    name: "core.paged_cache_write",
    supports: f32_or_integers,
    compile,
}];

/// One task, as there are few rows. Elements are moved as words, whatever they stand for.
fn compile(cx: &CompileCx) -> Result<Compiled, String> {
    let dims = PagedWriteDims::of(&cx.call())?;
    let (new, cache, out) = (cx.input::<u32>(0), cx.input::<u32>(1), cx.output::<u32>(0));
    let (slots, dispatch) = (cx.input::<u32>(2), cx.index);
    let in_place = cx.input_buffer(1) == cx.output_buffer(0);
    let moved = new.len() + if in_place { 0 } else { cache.len() };
    Ok(Compiled::one(Task {
        tasks: 1,
        nanos: stream_nanos(8 * moved),
        body: move |_: usize, cx: &RunCx| {
            // SAFETY: the only task; the new rows and the slots are other buffers than the result.
            let (slots, new, out) = unsafe { (slots.all(), new.all(), out.slice_mut(0..dims.slots * dims.width)) };
            // All are looked at before anything is written.
            if let Some(&bad) = slots.iter().find(|&&slot| slot as usize > dims.slots) {
                return cx.index_out_of_range(dispatch, bad, dims.slots + 1);
            }
            if !in_place {
                // SAFETY: the cache is another buffer than the result.
                out.copy_from_slice(unsafe { cache.all() });
            }
            for (row, &slot) in slots
                .iter()
                .enumerate()
                .filter(|(_, slot)| (**slot as usize) < dims.slots)
            {
                let to = slot as usize * dims.width;
                out[to..to + dims.width].copy_from_slice(&new[row * dims.width..(row + 1) * dims.width]);
            }
        },
    }))
}
