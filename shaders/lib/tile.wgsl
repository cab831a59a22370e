// The columns of a workgroup, for matmuls of few rows whose epilogues may read other sums than the one at hand. A kernel that calls
// these declares N, TILE, the columns of a workgroup, HALF, the columns between the two of a pair that is rotated, or 0, and
// `products` in memory of the workgroup: all its sums, row by row.

// A column by its number in the workgroup. Of columns that are rotated, the first ones of pairs come before the second ones.
fn column_of(tile: u32, number: u32) -> u32 {
    const PAIRS: u32 = TILE / 2u;
    const SOME_HALF: u32 = max(HALF, 1u);
    let pair = tile * PAIRS + number % PAIRS;
    let rotated = pair / SOME_HALF * (2u * HALF) + number / PAIRS * HALF + pair % SOME_HALF;
    return select(tile * TILE + number, rotated, HALF > 0u);
}

// The number of a column in its workgroup.
fn number_of(column: u32) -> u32 {
    const PAIRS: u32 = TILE / 2u;
    const SOME_HALF: u32 = max(HALF, 1u);
    return select(column % TILE, column / SOME_HALF % 2u * PAIRS + column % SOME_HALF % PAIRS, HALF > 0u);
}

// The sum of an element of the result that is in the same workgroup.
fn product_at(i: u32) -> f32 {
    return products[i / N * TILE + number_of(i % N)];
}
