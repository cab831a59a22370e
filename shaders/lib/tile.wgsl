// Columns of a workgroup, for matmuls of few rows whose epilogues read several sums of the workgroup. A kernel that
// calls these functions declares N; TILE, the number of columns of a workgroup; HALF, the distance in columns of the
// two elements of a rotated pair, or 0; and in workgroup memory `products`, all sums of the workgroup, row by row.

// Column of the result, by its number in the workgroup. If pairs are rotated, the first columns of all pairs come
// before the second ones.
fn column_of(tile: u32, number: u32) -> u32 {
    const PAIRS: u32 = TILE / 2u;
    const SOME_HALF: u32 = max(HALF, 1u);
    let pair = tile * PAIRS + number % PAIRS;
    let rotated = pair / SOME_HALF * (2u * HALF) + number / PAIRS * HALF + pair % SOME_HALF;
    return select(tile * TILE + number, rotated, HALF > 0u);
}

// Number of a column in its workgroup: the inverse of `column_of`.
fn number_of(column: u32) -> u32 {
    const PAIRS: u32 = TILE / 2u;
    const SOME_HALF: u32 = max(HALF, 1u);
    return select(column % TILE, column / SOME_HALF % 2u * PAIRS + column % SOME_HALF % PAIRS, HALF > 0u);
}

// Sum of the element `i` of the result, which must belong to this workgroup.
fn product_at(i: u32) -> f32 {
    return products[i / N * TILE + number_of(i % N)];
}
