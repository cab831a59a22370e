// An index that is below `rows`. One that is not is reported, and 0 stands in for it. Of several the largest is kept, so
// that the report depends on no order.
fn checked_index(index: u32, rows: u32) -> u32 {
    if (index < rows) {
        return index;
    }
    atomicStore(&fault[0], 1u);
    atomicStore(&fault[1u + 2u * reporter], 1u);
    atomicMax(&fault[2u + 2u * reporter], index);
    return 0u;
}
