// Finds tiles of queries of one sequence, for attention over a paged cache. A workgroup has a tile of ROWS queries. The
// tile is of one sequence if each query reads its keys from the same blocks as the query with the largest position. For
// each tile, the kernel stores 1 or 0, the smallest and the largest position, and the query with the largest position.
//
// Twin in the oracle: core/src/ops/attention/paged.rs.

const ROWS_Q: u32 = 512u;
const ROWS_K: u32 = 4096u;
const TABLE_LEN: u32 = 256u;
const BLOCK_ROWS: u32 = 16u;
const BLOCKS: u32 = 64u;
const ROWS: u32 = 32u;
const THREADS: u32 = 256u;

var<storage, read> positions: array<u32>;
var<storage, read> block_table: array<u32>;
var<storage, read_write> tiles: array<vec4<u32>>;

var<workgroup> differences: array<u32, THREADS>;

fn load_position(row: u32) -> u32 { return positions[row]; }

// Returns an entry of the block table.
fn load_block(index: u32) -> u32 { return block_table[index]; }

// lib/fault.wgsl
fn checked_index(index: u32, rows: u32) -> u32 { return min(index, rows - 1u); }

fn position_of(row: u32) -> u32 { return min(load_position(row), ROWS_K - 1u); }

@compute @workgroup_size(THREADS)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) local: u32) {
    let group_number = group.x;
    let first = group_number * ROWS;
    let count = min(ROWS, ROWS_Q - first);
    var longest = first;
    var least = position_of(first);
    var most = least;
    for (var row = first + 1u; row < first + count; row += 1u) {
        let position = position_of(row);
        least = min(least, position);
        if (position > most) {
            most = position;
            longest = row;
        }
    }
    var difference = 0u;
    for (var i = local; i < count * TABLE_LEN; i += THREADS) {
        let row = first + i / TABLE_LEN;
        let entry = i % TABLE_LEN;
        let block = load_block(row * TABLE_LEN + entry);
        let reported = checked_index(block, BLOCKS);
        let is_read = entry <= position_of(row) / BLOCK_ROWS;
        difference |= select(0u, 1u, is_read && block != load_block(longest * TABLE_LEN + entry));
    }
    differences[local] = difference;
    workgroupBarrier();
    if (local == 0u) {
        for (var i = 1u; i < THREADS; i += 1u) {
            difference |= differences[i];
        }
        tiles[group_number] = vec4<u32>(1u - difference, least, most, longest);
    }
}
