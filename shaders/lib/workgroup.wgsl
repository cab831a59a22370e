// Reductions over all threads of a workgroup. A kernel that calls `join_all` declares in memory of the workgroup `folded`,
// a vec4<f32> for each thread, and `few`, an f32 for each of FEW threads, of which each reads EACH numbers; both are 16.

// Four numbers of threads, from one on, and four of those few that have joined them.
fn folded_at(at: u32) -> vec4<f32> {
    return vec4<f32>(folded[at].x, folded[at + 1u].x, folded[at + 2u].x, folded[at + 3u].x);
}

fn few_at(at: u32) -> vec4<f32> {
    return vec4<f32>(few[at], few[at + 1u], few[at + 2u], few[at + 3u]);
}

// The greatest number of four, or their sum.
fn join_four(x: vec4<f32>, greatest: bool) -> f32 {
    return select((x.x + x.y) + (x.z + x.w), max(max(x.x, x.y), max(x.z, x.w)), greatest);
}

// The greatest number of all threads, or their sum: neighbours are joined, then what comes of them.
fn join_all(value: f32, local: u32, greatest: bool) -> f32 {
    folded[local].x = value;
    workgroupBarrier();
    if (local < FEW) {
        let at = local * EACH;
        few[local] = join_four(vec4<f32>(join_four(folded_at(at), greatest), join_four(folded_at(at + 4u), greatest),
            join_four(folded_at(at + 8u), greatest), join_four(folded_at(at + 12u), greatest)), greatest);
    }
    workgroupBarrier();
    return join_four(vec4<f32>(join_four(few_at(0u), greatest), join_four(few_at(4u), greatest),
        join_four(few_at(8u), greatest), join_four(few_at(12u), greatest)), greatest);
}
