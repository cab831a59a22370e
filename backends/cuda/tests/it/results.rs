//! Tests of the results of translated kernels. They run on the CPU.

use meganeura_cuda::{Binding, Bounds, Call, CudaSource, Options, read, write, write_merged};

use crate::{host, snapshots};
use meganeura_cuda::Nvrtc;

fn written(text: &str, bounds: Bounds) -> CudaSource {
    let (module, info) = read(text).unwrap_or_else(|error| panic!("{error}"));
    let options = Options {
        bounds,
        ..Options::default()
    };
    write(&module, &info, "main", &options).unwrap_or_else(|error| panic!("{error}"))
}

fn snapshot(name: &str) -> CudaSource {
    let texts = snapshots::texts();
    let text = texts.get(name).unwrap_or_else(|| panic!("no call has a kernel {name}"));
    written(text, Bounds::Unchecked)
}

/// Returns pseudorandom multiples of 1/4 from -1 to 1.
fn quarters(count: usize, seed: usize) -> Vec<f32> {
    let number = |i: usize| ((i * 7919 + seed * 104_729) % 8191 % 9) as f32 / 4.0 - 1.0;
    (0..count).map(number).collect()
}

fn bits(numbers: &[f32]) -> Vec<u32> {
    numbers.iter().map(|number| number.to_bits()).collect()
}

fn floats(words: &[u32]) -> Vec<f32> {
    words.iter().map(|word| f32::from_bits(*word)).collect()
}

/// Converts numbers to pairs of `f16` in words.
fn halves(numbers: &[f32]) -> Vec<u32> {
    let half = |number: f32| match number {
        0.0 => 0,
        // The exponent bias of `f16` is lower by 112, and the truncated bits are zero.
        _ => {
            let bits = number.to_bits();
            (bits >> 16 & 0x8000) | ((bits & 0x7fff_ffff) >> 13).wrapping_sub(112 << 10)
        }
    };
    numbers
        .chunks(2)
        .map(|pair| half(pair[0]) | half(pair[1]) << 16)
        .collect()
}

/// Multiplies `a [m, k]` by `b [k, n]`.
fn product(a: &[f32], b: &[f32], [m, n, k]: [usize; 3]) -> Vec<f32> {
    let element = |i: usize| (0..k).map(|t| a[i / n * k + t] * b[t * n + i % n]).sum();
    (0..m * n).map(element).collect()
}

#[test]
fn a_softmax_of_many_columns() {
    let (rows, columns) = (4, 1000);
    let x = quarters(rows * columns, 1);
    let mut buffers = [("b0", bits(&x)), ("b1", vec![0; rows * columns])];
    let Some(()) = host::run(&snapshot("reduce.softmax"), rows as u32, &mut buffers) else {
        return;
    };
    let found = floats(&buffers[1].1);
    for row in 0..rows {
        let x: Vec<f64> = x[row * columns..][..columns]
            .iter()
            .map(|x| f64::from(*x).exp())
            .collect();
        let sum: f64 = x.iter().sum();
        for (x, found) in x.iter().zip(&found[row * columns..][..columns]) {
            assert!((x / sum - f64::from(*found)).abs() < 1e-8, "{} {found}", x / sum);
        }
    }
}

#[test]
fn a_product_by_tiles() {
    // The first row of blocks is sufficient.
    let [m, n, k] = [16, 120, 96];
    let (a, b) = (quarters(m * k, 6), quarters(k * n, 7));
    let mut buffers = [("b0", vec![0; m * n]), ("b1", bits(&a)), ("b2", bits(&b))];
    let Some(()) = host::run(&snapshot("matmul_tiled.tiled-plain"), 8, &mut buffers) else {
        return;
    };
    assert_eq!(floats(&buffers[0].1), product(&a, &b, [m, n, k]));
}

/// Checks the first rows of a matmul on cooperative matrices. `a` and `b` contain the words of the operands.
fn assert_matrices(name: &str, a: Vec<u32>, b: Vec<u32>, expected: &[f32]) {
    let mut buffers = [("b1", a), ("b2", b), ("tiles", vec![0; expected.len()])];
    let Some(()) = host::run(&snapshot(name), 8, &mut buffers) else {
        return;
    };
    assert!(floats(&buffers[2].1) == expected, "{name}");
}

#[test]
fn products_by_cooperative_matrices() {
    let [m, all, n, k] = [64, 768, 512, 96];
    let (a, b) = (quarters(m * k, 2), quarters(k * n, 3));
    let expected = product(&a, &b, [m, n, k]);
    // A has all rows that the kernel expects, but only the first `m` are checked.
    let whole: Vec<f32> = a.iter().copied().chain(quarters((all - m) * k, 4)).collect();
    let transposed = |x: &[f32], [rows, columns]: [usize; 2]| -> Vec<f32> {
        (0..rows * columns).map(|i| x[i % rows * columns + i / rows]).collect()
    };
    assert_matrices("matmul_coop.coop16-f16", halves(&whole), halves(&b), &expected);
    let a = bits(&transposed(&whole, [all, k]));
    assert_matrices("matmul_coop.coop16-transposed-a", a, bits(&b), &expected);
    let b = bits(&transposed(&b, [k, n]));
    assert_matrices("matmul_coop.coop16-transposed-b", bits(&whole), b, &expected);
}

/// Checks the results of expressions. A kernel with one thread writes them as words.
fn words(expressions: &[(&str, u32)], bounds: Bounds) {
    let body: String = expressions
        .iter()
        .enumerate()
        .map(|(i, (expression, _))| format!("    to[{i}] = {expression};\n"))
        .collect();
    // The operands are read from memory, so that the compiler cannot evaluate the expressions.
    let text = format!(
        "enable f16;
        struct Pair {{ a: vec3<f32>, b: u32, c: array<vec3<u32>, 2>, d: array<u32> }}
        var<storage, read_write> to: array<u32>;
        var<storage, read> u: array<u32>;
        var<storage, read> i: array<i32>;
        var<storage, read> f: array<f32>;
        var<storage, read> p: Pair;
        var<private> calls: u32 = 5u;
        const TABLE = array<u32, 4>(10u, 11u, 12u, 13u);
        struct Both {{ a: u32, b: vec3<f32>, c: vec2<f16> }}
        const HALVES = array<vec4<f16>, 2>(vec4<f16>(1.0h, 2.0h, -3.0h, 4.0h), vec4<f16>(vec2<f16>(5.0h), vec2<f16>()));
        const THREES = array<vec3<u32>, 2>(vec3<u32>(1u, 2u, 3u), vec3<u32>(4u));
        const BOTH = Both(3u, vec3<f32>(1.0, 2.0, 3.0), vec2<f16>(6.0h, 7.0h));
        fn bump(p: ptr<private, u32>) -> u32 {{ *p += 1u; return *p; }}
        fn last(p: ptr<function, array<vec3<u32>, 2>>, n: u32) -> u32 {{ (*p)[n].y = 9u; return (*p)[n].y + (*p)[1].x; }}
        fn of_array(n: u32) -> u32 {{ var all = THREES; all[0] = p.c[1]; return last(&all, n) + all[0].x; }}
        fn of_structure(n: u32) -> u32 {{
            var both = BOTH;
            both.c[n] = f16(f[4]);
            both.b.y += f32(both.c.y);
            let copy = both;
            return copy.a + u32(copy.b.y);
        }}
        fn halves_of(n: u32) -> f32 {{
            var all = HALVES[n];
            all.w = 0.5h;
            all[n] += 1.0h;
            return dot(vec4<f32>(all), vec4<f32>(1.0, 10.0, 100.0, 1000.0));
        }}
        fn called(by: u32) -> u32 {{ calls += by; return calls; }}
        fn add_to(x: ptr<function, u32>, by: u32) {{ *x += by; }}
        fn through_pointer(x: u32) -> u32 {{ var sum = x; add_to(&sum, 4u); return sum; }}
        fn rounds(skip: u32) -> u32 {{
            var sum = 0u;
            for (var n = 0u; n < 10u; n++) {{
                if (n == skip) {{ continue; }}
                if (n == 8u) {{ break; }}
                sum += n;
            }}
            return sum;
        }}
        fn until(last: u32) -> u32 {{
            var n = 0u;
            var sum = 0u;
            loop {{
                let doubled = 2u * n;
                if ((n & 1u) == 1u) {{ continue; }}
                sum += n;
                continuing {{
                    sum += doubled;
                    n += 1u;
                    break if n > last;
                }}
            }}
            return sum;
        }}
        fn chosen(by: i32) -> u32 {{
            switch by {{
                case -3: {{ return 1u; }}
                case 4, 5: {{ if (u[0] == 77u) {{ break; }} return 2u; }}
                default: {{ return 3u; }}
            }}
            return 4u;
        }}
        @compute @workgroup_size(1)
        fn main() {{\n{body}}}\n"
    );
    let float = f32::to_bits;
    let buffers = [
        vec![0; expressions.len()],
        vec![0, 7, 33, 0xffff_ffff, 0x3c00_bc00],
        vec![0, -1_i32 as u32, i32::MIN as u32, -7_i32 as u32, 3],
        [0.0, f32::NAN, 3e10, -3e10, 2.5, -1.75].map(float).to_vec(),
        vec![
            float(1.5),
            float(2.5),
            float(3.5),
            9,
            1,
            2,
            3,
            0,
            4,
            5,
            6,
            0,
            70,
            71,
            0,
            0,
        ],
    ];
    let names = ["to", "u", "i", "f", "p"];
    let mut buffers: Vec<_> = names.into_iter().zip(buffers).collect();
    let kernel = written(&text, bounds);
    if let Ok(nvrtc) = Nvrtc::open() {
        nvrtc
            .compile(&kernel.source, "sm_80")
            .unwrap_or_else(|log| panic!("{log}"));
    }
    let Some(()) = host::run(&kernel, 1, &mut buffers) else {
        return;
    };
    for ((expression, expected), found) in expressions.iter().zip(&buffers[0].1) {
        assert_eq!(found, expected, "{expression}: {found:#x}, not {expected:#x}");
    }
}

#[test]
fn what_operators_do_where_cpp_leaves_it_open() {
    let smallest = i32::MIN as u32;
    words(
        &[
            ("u[1] / u[0]", 7),
            ("u[1] % u[0]", 0),
            ("u32(i[3] / i[0])", -7_i32 as u32),
            ("u32(i[3] % i[0])", 0),
            ("u32(i[2] / i[1])", smallest),
            ("u32(i[2] % i[1])", 0),
            ("u32(i[3] / i[4])", -2_i32 as u32),
            ("u32(i[3] % i[4])", -1_i32 as u32),
            ("u32(i[2] - 1)", 0x7fff_ffff),
            ("u32(-i[2])", smallest),
            ("u32(abs(i[2]))", smallest),
            ("u32(i[2] * i[4])", smallest),
            ("u[1] << u[2]", 14),
            ("u[3] >> u[2]", 0x7fff_ffff),
            ("u32(i[3] >> u[2])", -4_i32 as u32),
            ("u32(i[3] << u[2])", -14_i32 as u32),
            ("u32(i32(f[1]))", 0),
            ("u32(i32(f[2]))", 0x7fff_ffff),
            ("u32(i32(f[3]))", smallest),
            ("u32(f[2])", u32::MAX),
            ("u32(f[3])", 0),
            ("u32(i32(f[5]))", -1_i32 as u32),
            ("u32(round(f[4]))", 2),
            ("u32(f[5] % f[4] == f[5])", 1),
            ("u32(bool(f[1]))", 1),
            ("countLeadingZeros(u[0])", 32),
            ("countTrailingZeros(u[0])", 32),
            ("countOneBits(u[3])", 32),
            ("firstLeadingBit(u[0])", u32::MAX),
            ("firstTrailingBit(u[2])", 0),
            ("u32(firstLeadingBit(i[3]))", 2),
            ("reverseBits(u[1])", 0xe000_0000),
            ("extractBits(u[3], 4u, 40u)", 0x0fff_ffff),
            ("insertBits(u[0], u[3], 4u, 8u)", 0x0ff0),
            ("u32(extractBits(i[3], 0u, 3u))", 1),
        ],
        Bounds::Unchecked,
    );
}

#[test]
fn vectors_structures_loops_and_calls() {
    let float = f32::to_bits;
    words(
        &[
            ("bitcast<u32>(p.a.z)", float(3.5)),
            ("p.b", 9),
            ("p.c[1].y", 5),
            ("p.d[1]", 71),
            ("bitcast<u32>(dot(p.a, vec3<f32>(1.0, 2.0, 3.0)))", float(17.0)),
            ("bitcast<u32>(cross(p.a, p.a.zyx).y)", float(10.0)),
            ("bitcast<u32>((p.a * f[4]).y)", float(6.25)),
            (
                "bitcast<u32>(select(p.a, p.a.zyx, vec3<bool>(true, false, true)).x)",
                float(3.5),
            ),
            ("vec4<u32>(p.c[0].xy, u[1], p.b).w", 9),
            ("vec4<u32>(p.c[0], 8u)[u[1] - 5u]", 3),
            ("u32(all(p.c[0] < p.c[1]))", 1),
            ("u32(any(p.c[0] > p.c[1]))", 0),
            ("TABLE[u[1] - 4u]", 13),
            ("called(2u) + 100u * called(3u)", 1007),
            ("called(0u)", 10),
            ("through_pointer(3u)", 7),
            ("bump(&calls)", 11),
            ("of_array(u[1] - 7u)", 17),
            ("of_array(u[1] - 6u)", 17),
            ("of_structure(u[1] - 6u)", 7),
            ("BOTH.a + u32(BOTH.b.z)", 6),
            ("bitcast<u32>(halves_of(u[1] - 7u))", float(222.0)),
            ("bitcast<u32>(halves_of(u[1] - 6u))", float(565.0)),
            ("rounds(20u)", 28),
            ("rounds(3u)", 25),
            ("until(4u)", 26),
            ("chosen(i[3] + 4)", 1),
            ("chosen(4) * 10u + chosen(5)", 22),
            ("chosen(6)", 3),
            ("pack2x16float(vec2<f32>(1.0, -1.0))", 0xbc00_3c00),
            ("bitcast<u32>(unpack2x16float(u[4]).x)", float(-1.0)),
            ("bitcast<u32>(f32(f16(f[4]) * f16(f[5])))", float(-4.375)),
            ("bitcast<u32>(f32(f16(0.1) / f16(f[4])))", float(0.039_978_027)),
            ("bitcast<u32>(f32(max(f16(f[4]), 3.0h)))", float(3.0)),
            ("u32(f16(f[4]) < f16(f[5]))", 0),
            ("bitcast<u32>(f32(vec2<f16>(f16(f[4])).y))", float(2.5)),
            ("dot4U8Packed(u[3], 0x01010101u)", 1020),
            ("u32(dot4I8Packed(u[3], 0x01010101u))", -4_i32 as u32),
            ("unpack4xU8(0x04030201u).z", 3),
            ("pack4xU8Clamp(vec4<u32>(300u, 1u, 2u, 3u))", 0x0302_01ff),
            ("arrayLength(&u)", 5),
            ("arrayLength(&p.d)", 4),
        ],
        Bounds::Unchecked,
    );
}

#[test]
fn indices_that_are_out_of_bounds_become_the_last_ones() {
    words(
        &[
            ("u[u[3]]", 0x3c00_bc00),
            ("u[100]", 0x3c00_bc00),
            ("u32(i[i[1]])", 3),
            ("p.d[u[2]]", 0),
            ("p.d[u[1] - 6u]", 71),
            ("p.c[u[3]].z", 6),
            ("p.c[1][u[2]]", 6),
            ("TABLE[u[2]]", 13),
            ("vec2<u32>(u[1], u[2])[i[1]]", 33),
        ],
        Bounds::Restrict,
    );
}

/// Cooperative matrices of each role are correct if they are loaded from buffers or from shared memory, in both
/// orders.
#[test]
fn matrices_of_one_warp() {
    let text = "enable wgpu_cooperative_matrix;
        enable f16;
        alias Left = coop_mat16x16<f16,A>;
        alias Right = coop_mat16x16<f16,B>;
        alias Sum = coop_mat16x16<f32,C>;
        var<storage, read> a: array<vec2<f16>>;
        var<storage, read> b: array<vec4<f16>>;
        var<storage, read> c: array<f32>;
        var<storage, read_write> to: array<f32>;
        var<workgroup> w: array<vec2<f16>, 128>;
        @compute @workgroup_size(32)
        fn main(@builtin(local_invocation_index) local: u32) {
            for (var i = local; i < 128u; i += 32u) { w[i] = a[i]; }
            workgroupBarrier();
            let before = coopLoad<Sum>(&c[0], 16u);
            let rows = coopMultiplyAdd(coopLoadT<Left>(&a[0], 8u), coopLoadT<Right>(&b[0], 4u), before);
            let columns = coopMultiplyAdd(coopLoad<Left>(&a[0], 8u), coopLoad<Right>(&b[0], 4u), rows);
            let shared_rows = coopMultiplyAdd(coopLoadT<Left>(&w[0], 8u), coopLoad<Right>(&w[0], 8u), columns - before);
            coopStoreT(shared_rows * 2.0 + coopLoadT<Sum>(&c[0], 16u), &to[0], 16u);
            coopStore(rows, &to[256], 16u);
        }";
    let [a, b, c] = [quarters(256, 1), quarters(256, 2), quarters(256, 3)];
    let mut buffers = [
        ("a", halves(&a)),
        ("b", halves(&b)),
        ("c", bits(&c)),
        ("to", vec![0; 512]),
    ];
    let Some(()) = host::run(&written(text, Bounds::Unchecked), 1, &mut buffers) else {
        return;
    };
    let found = floats(&buffers[3].1);
    // Returns an element of a matrix that is stored by rows or by columns.
    let of = |x: &[f32], in_rows: bool, row: usize, column: usize| {
        if in_rows {
            x[row * 16 + column]
        } else {
            x[column * 16 + row]
        }
    };
    for (row, column) in (0..256).map(|i| (i / 16, i % 16)) {
        let sum = |x: &[f32], x_rows: bool, y: &[f32], y_rows: bool| -> f32 {
            (0..16).map(|k| of(x, x_rows, row, k) * of(y, y_rows, k, column)).sum()
        };
        let rows = sum(&a, true, &b, true) + of(&c, false, row, column);
        let shared = rows + sum(&a, false, &b, false) - of(&c, false, row, column) + sum(&a, true, &a, false);
        assert_eq!(
            found[row * 16 + column],
            2.0 * shared + of(&c, true, row, column),
            "{row} {column}"
        );
        assert_eq!(found[256 + column * 16 + row], rows, "{row} {column}");
    }
}

/// Attention on cooperative matrices is correct for the last queries of a causal attention. Its weights and values are
/// rounded to `f16`.
#[test]
fn attention_by_cooperative_matrices() {
    let ([queries, keys], [heads, kv_heads], dim) = ([300, 310], [4, 2], 64);
    let q = quarters(queries * heads * dim, 1);
    let [k, v] = [quarters(keys * kv_heads * dim, 2), quarters(keys * kv_heads * dim, 3)];
    let mut buffers = [
        ("b0", vec![0; queries * heads]), // logarithms of sums
        ("b1", vec![0; queries * heads * dim]),
        ("b2", bits(&q)),
        ("b3", bits(&k)),
        ("b4", bits(&v)),
    ];
    // A workgroup has 32 queries of a head. The workgroups of the last queries come first.
    let kernel = snapshot("attention_forward_coop.coop16-attention");
    let Some(()) = host::run(&kernel, heads as u32, &mut buffers) else {
        return;
    };
    let found = floats(&buffers[1].1);
    for (query, head) in (288..queries).flat_map(|query| (0..heads).map(move |head| (query, head))) {
        let start = (query * heads + head) * dim;
        let of = |x: &[f32], key: usize, d: usize| x[(key * kv_heads + head * kv_heads / heads) * dim + d];
        let seen = keys - queries + query + 1;
        let score = |key: usize| (0..dim).map(|d| q[start + d] * of(&k, key, d)).sum::<f32>() / 8.0;
        let weights: Vec<f32> = (0..seen).map(|key| score(key).exp()).collect();
        let all: f32 = weights.iter().sum();
        for d in 0..dim {
            let expected = weights
                .iter()
                .enumerate()
                .map(|(key, w)| w * of(&v, key, d))
                .sum::<f32>()
                / all;
            let found = found[start + d];
            assert!(
                (found - expected).abs() < 1e-3,
                "{query} {head} {d}: {found}, not {expected}"
            );
        }
    }
}

#[test]
fn several_kernels_as_one() {
    let kernel = |value: u32| {
        format!(
            "var<storage, read> a: array<u32>;\nvar<storage, read_write> b: array<u32>;\nvar<workgroup> w: array<u32, 64>;\n\
             @compute @workgroup_size(64)\n\
             fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>, \
             @builtin(local_invocation_index) i: u32) {{\n\
             w[63u - i] = a[i];\nworkgroupBarrier();\n\
             if (group.z == 1u && i == 3u) {{ return; }}\n\
             let number = (group.z * groups.y + group.y) * groups.x + group.x;\n\
             b[number * 64u + i] = w[i] * {value}u + 1000u * number;\n}}"
        )
    };
    let texts = [kernel(3), kernel(5)];
    let parsed = texts
        .each_ref()
        .map(|text| read(text).unwrap_or_else(|error| panic!("{error}")));
    let options = Options {
        bounds: Bounds::Unchecked,
        ..Options::default()
    };
    let modules = parsed.each_ref().map(|(module, info)| (module, info, &options));
    let call = |module, blocks| Call {
        module,
        blocks,
        entry: "main",
    };
    // The first module is called twice, with different numbers of blocks.
    let calls = [call(0, [2, 1, 1]), call(1, [3, 2, 2]), call(0, [1, 1, 2])];
    let merged = write_merged(&modules, &calls).expect("one kernel");
    assert_eq!(
        (merged.blocks, merged.threads, merged.bindings.len()),
        (16, [64, 1, 1], 6)
    );
    let bindings = merged.bindings.into_iter().map(|(call, binding)| Binding {
        name: format!("{}{call}", binding.name),
        ..binding
    });
    let whole = CudaSource {
        source: merged.source,
        entry: merged.entry,
        threads: merged.threads,
        shared_bytes: 0,
        bindings: bindings.collect(),
    };
    let input = |call: u32| (0..64).map(|i| i + 7 * call).collect::<Vec<u32>>();
    let mut buffers = [
        ("a0", input(0)),
        ("b0", vec![0; 2 * 64]),
        ("a1", input(1)),
        ("b1", vec![0; 12 * 64]),
        ("a2", input(2)),
        ("b2", vec![0; 2 * 64]),
    ];
    let Some(()) = host::run(&whole, merged.blocks, &mut buffers) else {
        return;
    };
    for (call, (blocks, in_layer, value)) in [(2, 2, 3), (12, 6, 5), (2, 1, 3)].into_iter().enumerate() {
        let a = input(call as u32);
        for block in 0..blocks {
            for i in 0..64 {
                let left_out = i == 3 && block / in_layer == 1;
                let expected = if left_out {
                    0
                } else {
                    a[63 - i] * value + 1000 * block as u32
                };
                assert_eq!(
                    buffers[2 * call + 1].1[block * 64 + i],
                    expected,
                    "call {call}, block {block}, {i}"
                );
            }
        }
    }
    let sizes = [texts[0].replace("size(64)", "size(32)"), texts[1].clone()];
    let parsed = sizes
        .each_ref()
        .map(|text| read(text).unwrap_or_else(|error| panic!("{error}")));
    let modules = parsed.each_ref().map(|(module, info)| (module, info, &options));
    let error = write_merged(&modules, &calls[..2]).expect_err("two sizes").to_string();
    assert!(error.contains("different sizes"), "{error}");
}
