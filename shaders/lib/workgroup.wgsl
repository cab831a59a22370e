// Reductions over all threads of a workgroup. A kernel that calls `join_all` declares in workgroup memory `folded`, a
// vec4<f32> per thread, and `few`, an f32 for each of FINAL_THREADS threads, each of which reads FINAL_VALUES values; both constants are
// 16.

// Values of four adjacent threads, and results of four of the FINAL_THREADS threads, each of which combines values of
// several threads.
fn folded_at(at: u32) -> vec4<f32> {
    return vec4<f32>(folded[at].x, folded[at + 1u].x, folded[at + 2u].x, folded[at + 3u].x);
}

fn few_at(at: u32) -> vec4<f32> {
    return vec4<f32>(few[at], few[at + 1u], few[at + 2u], few[at + 3u]);
}

// Maximum of four numbers, or their sum.
fn join_four(x: vec4<f32>, greatest: bool) -> f32 {
    return select((x.x + x.y) + (x.z + x.w), max(max(x.x, x.y), max(x.z, x.w)), greatest);
}

// Maximum or sum over all threads: adjacent values are combined first, then their results.
fn join_all(value: f32, local: u32, greatest: bool) -> f32 {
    folded[local].x = value;
    workgroupBarrier();
    if (local < FINAL_THREADS) {
        let at = local * FINAL_VALUES;
        few[local] = join_four(vec4<f32>(join_four(folded_at(at), greatest), join_four(folded_at(at + 4u), greatest),
            join_four(folded_at(at + 8u), greatest), join_four(folded_at(at + 12u), greatest)), greatest);
    }
    workgroupBarrier();
    return join_four(vec4<f32>(join_four(few_at(0u), greatest), join_four(few_at(4u), greatest),
        join_four(few_at(8u), greatest), join_four(few_at(12u), greatest)), greatest);
}
