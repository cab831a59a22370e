// An index that is below `rows`. One that is not is reported, the first of the step with its dispatch, and 0 stands
// in for it.
fn checked_index(index: u32, rows: u32) -> u32 {
    if (index < rows) {
        return index;
    }
    if (atomicAdd(&fault[0], 1u) == 0u) {
        atomicStore(&fault[1], dispatch);
        atomicStore(&fault[2], index);
    }
    return 0u;
}
