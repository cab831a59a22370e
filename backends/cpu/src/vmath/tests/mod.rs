//! Tests of special values and invariants at every level that this CPU supports, and of accuracy.

mod accuracy;

use super::*;
use rand::{Rng, SeedableRng, rngs::StdRng};
use std::f32::consts::SQRT_2;

const INF: f32 = f32::INFINITY;
const NAN: f32 = f32::NAN;
const TINY: f32 = f32::from_bits(1);
const LENGTHS: [usize; 8] = [0, 1, 7, 8, 9, 31, 33, 1000];

const UNARY: [Unary; 33] = [
    Unary::Neg,
    Unary::Abs,
    Unary::Exp,
    Unary::Exp2,
    Unary::Log,
    Unary::Log2,
    Unary::Sin,
    Unary::Reciprocal,
    Unary::Sqrt,
    Unary::Rsqrt,
    Unary::Square,
    Unary::Tanh,
    Unary::Sigmoid,
    Unary::Relu,
    Unary::LeakyRelu(0.1),
    Unary::Softplus,
    Unary::Silu,
    Unary::GeluTanh,
    Unary::GeluErf,
    Unary::GeluTanhDerivative,
    Unary::GeluErfDerivative,
    Unary::Erf,
    Unary::Clamp(-0.5, 2.0),
    Unary::Cos,
    Unary::Expm1,
    Unary::Log1p,
    Unary::Elu(0.75),
    Unary::HardSigmoid,
    Unary::HardSwish,
    Unary::Sign,
    Unary::Floor,
    Unary::Ceil,
    Unary::Round,
];
const BINARY: [Binary; 8] = [
    Binary::Add,
    Binary::Sub,
    Binary::Mul,
    Binary::Div,
    Binary::Pow,
    Binary::Min,
    Binary::Max,
    Binary::Mod,
];

fn run(op: Unary, level: Level, x: &[f32]) -> Vec<f32> {
    let mut out = vec![NAN; x.len()];
    unary(op, level, x, &mut out);
    out
}

/// Returns true if two numbers are equal, including the sign of zero. Any NaN equals any NaN.
fn same(a: f32, b: f32) -> bool {
    a.to_bits() == b.to_bits() || a.is_nan() && b.is_nan()
}

#[track_caller]
fn check_unary(op: Unary, cases: &[(f32, f32)]) {
    for level in Level::available() {
        for &(x, want) in cases {
            // The length covers the vectorised loop and its remainder.
            for got in run(op, level, &[x; 37]) {
                assert!(
                    same(got, want),
                    "{op:?}({x:e}) = {got:e}, not {want:e}, {}",
                    level.name()
                );
            }
        }
    }
}

#[test]
fn nan_stays_nan() {
    for op in UNARY {
        check_unary(op, &[(NAN, NAN), (-NAN, NAN)]);
    }
}

#[test]
fn special_values_of_exponentials() {
    check_unary(Unary::Neg, &[(0.0, -0.0), (INF, -INF)]);
    check_unary(Unary::Abs, &[(-0.0, 0.0), (-INF, INF)]);
    check_unary(
        Unary::Exp,
        &[(0.0, 1.0), (-0.0, 1.0), (INF, INF), (-INF, 0.0), (88.8, INF)],
    );
    check_unary(
        Unary::Exp,
        &[(-103.5, TINY), (-104.0, 0.0), (f32::MAX, INF), (f32::MIN, 0.0)],
    );
    check_unary(Unary::Exp2, &[(0.0, 1.0), (10.0, 1024.0), (128.0, INF), (-149.0, TINY)]);
    check_unary(
        Unary::Exp2,
        &[(-151.0, 0.0), (INF, INF), (-INF, 0.0), (-126.0, f32::MIN_POSITIVE)],
    );
}

#[test]
fn special_values_of_logarithms_and_roots() {
    for op in [Unary::Log, Unary::Log2] {
        check_unary(op, &[(0.0, -INF), (-0.0, -INF), (1.0, 0.0), (INF, INF)]);
        check_unary(op, &[(-1.0, NAN), (-INF, NAN), (-TINY, NAN)]);
    }
    check_unary(Unary::Log2, &[(TINY, -149.0), (8.0, 3.0), (0.25, -2.0)]);
    check_unary(Unary::Reciprocal, &[(0.0, INF), (-0.0, -INF), (-INF, -0.0)]);
    check_unary(Unary::Sqrt, &[(-0.0, -0.0), (-1.0, NAN), (INF, INF)]);
    check_unary(Unary::Rsqrt, &[(0.0, INF), (INF, 0.0), (-1.0, NAN), (4.0, 0.5)]);
}

#[test]
fn special_values_of_sine_and_activations() {
    check_unary(
        Unary::Sin,
        &[(0.0, 0.0), (-0.0, -0.0), (INF, NAN), (-INF, NAN), (TINY, TINY)],
    );
    check_unary(Unary::Sin, &[(2e9, 2e9f32.sin()), (f32::MAX, f32::MAX.sin())]);
    check_unary(
        Unary::Tanh,
        &[(0.0, 0.0), (-0.0, -0.0), (INF, 1.0), (-INF, -1.0), (TINY, TINY)],
    );
    check_unary(Unary::Sigmoid, &[(0.0, 0.5), (INF, 1.0), (-INF, 0.0), (-1e30, 0.0)]);
    check_unary(
        Unary::Relu,
        &[(-0.0, 0.0), (-1.0, 0.0), (-INF, 0.0), (INF, INF), (TINY, TINY)],
    );
    check_unary(
        Unary::LeakyRelu(0.5),
        &[(-2.0, -1.0), (2.0, 2.0), (-INF, -INF), (-0.0, -0.0)],
    );
    check_unary(Unary::Softplus, &[(INF, INF), (-INF, 0.0), (1e30, 1e30), (-1e30, 0.0)]);
    for op in [Unary::Silu, Unary::GeluErf, Unary::GeluTanh] {
        check_unary(op, &[(0.0, 0.0), (-0.0, -0.0), (INF, INF), (-INF, -0.0)]);
        check_unary(op, &[(f32::MAX, f32::MAX), (f32::MIN, -0.0), (-1e3, -0.0), (1e3, 1e3)]);
    }
    for op in [Unary::GeluErfDerivative, Unary::GeluTanhDerivative] {
        check_unary(
            op,
            &[
                (0.0, 0.5),
                (-0.0, 0.5),
                (INF, 1.0),
                (-INF, 0.0),
                (1e3, 1.0),
                (-1e3, 0.0),
            ],
        );
    }
    check_unary(
        Unary::Erf,
        &[(0.0, 0.0), (-0.0, -0.0), (INF, 1.0), (-INF, -1.0), (4.0, 1.0)],
    );
    check_unary(Unary::Clamp(-1.0, SQRT_2), &[(INF, SQRT_2), (-INF, -1.0), (-0.0, -0.0)]);
}

#[test]
fn special_values_near_zero_and_of_pieces() {
    check_unary(
        Unary::Cos,
        &[(0.0, 1.0), (-0.0, 1.0), (TINY, 1.0), (INF, NAN), (-INF, NAN)],
    );
    check_unary(Unary::Cos, &[(2e9, 2e9f32.cos()), (f32::MAX, f32::MAX.cos())]);
    for op in [Unary::Expm1, Unary::Log1p] {
        check_unary(
            op,
            &[(0.0, 0.0), (-0.0, -0.0), (TINY, TINY), (-TINY, -TINY), (INF, INF)],
        );
        check_unary(op, &[(3e-20, 3e-20), (-3e-20, -3e-20)]);
    }
    check_unary(
        Unary::Expm1,
        &[(-INF, -1.0), (-50.0, -1.0), (89.5, INF), (f32::MAX, INF)],
    );
    check_unary(Unary::Log1p, &[(-1.0, -INF), (-1.5, NAN), (-INF, NAN)]);
    check_unary(Unary::Elu(0.5), &[(2.0, 2.0), (INF, INF), (-INF, -0.5), (-200.0, -0.5)]);
    check_unary(
        Unary::HardSigmoid,
        &[(-INF, 0.0), (-3.0, 0.0), (0.0, 0.5), (3.0, 1.0), (INF, 1.0)],
    );
    check_unary(
        Unary::HardSwish,
        &[(-4.0, -0.0), (-3.0, -0.0), (3.0, 3.0), (7.5, 7.5), (INF, INF)],
    );
    check_unary(
        Unary::Sign,
        &[(0.0, 0.0), (-0.0, -0.0), (INF, 1.0), (-INF, -1.0), (-TINY, -1.0)],
    );
}

/// All rounding functions are exact for numbers of all magnitudes, including exact halves.
#[test]
fn rounding_is_exact() {
    let mut x: Vec<f32> = (0..400_000u32)
        .map(|i| f32::from_bits(i.wrapping_mul(10_739)))
        .collect();
    x.extend((-100..100).map(|i| i as f32 / 2.0));
    x.extend([0.499_999_97, 8_388_607.5, 8_388_609.0, INF, TINY, 0.0]);
    x.extend(x.clone().iter().map(|x| -x));
    type Exact = fn(f32) -> f32;
    let cases: [(Unary, Exact); 3] = [
        (Unary::Floor, f32::floor),
        (Unary::Ceil, f32::ceil),
        (Unary::Round, f32::round_ties_even),
    ];
    for level in Level::available() {
        for (op, want) in cases {
            let want: Vec<f32> = x.iter().map(|&x| want(x)).collect();
            assert_same(&run(op, level, &x), &want, &op);
        }
    }
}

/// Returns operands for which binary functions have special cases.
fn edge_values() -> Vec<f32> {
    let positive = [
        0.0,
        f32::from_bits(1),
        f32::MIN_POSITIVE,
        0.5,
        1.0 - f32::EPSILON / 2.0,
        1.0,
        1.0 + f32::EPSILON,
        1.5,
        2.0,
        3.0,
        127.0,
        8_388_607.5,
        8_388_609.0,
        16_777_215.0,
        16_777_216.0,
        f32::MAX,
        INF,
        NAN,
    ];
    positive.iter().flat_map(|&x| [x, -x]).collect()
}

/// Compares `op` with `want` for all pairs of edge values, in every form of the operands.
fn check_pairs(op: Binary, want: impl Fn(f32, f32) -> f32, agree: impl Fn(f32, f32) -> bool) {
    let edges = edge_values();
    let mut out = vec![0.0; edges.len()];
    for level in Level::available() {
        for &a in &edges {
            let check = |x: f32, y: f32, got: f32| {
                let want = want(x, y);
                assert!(agree(got, want), "{op:?}({x:e}, {y:e}) = {got:e}, not {want:e}");
            };
            let repeated = vec![a; edges.len()];
            binary(op, level, Operand::Scalar(a), Operand::Slice(&edges), &mut out);
            edges.iter().zip(&out).for_each(|(&b, &got)| check(a, b, got));
            binary(op, level, Operand::Slice(&edges), Operand::Scalar(a), &mut out);
            edges.iter().zip(&out).for_each(|(&b, &got)| check(b, a, got));
            binary(op, level, Operand::Slice(&repeated), Operand::Slice(&edges), &mut out);
            edges.iter().zip(&out).for_each(|(&b, &got)| check(a, b, got));
            binary(op, level, Operand::Scalar(a), Operand::Scalar(2.0), &mut out);
            out.iter().for_each(|&got| check(a, 2.0, got));
        }
    }
}

#[test]
fn special_values_of_binary() {
    let pick = |a: f32, b: f32, first: bool| if first { a } else { b };
    check_pairs(Binary::Add, |a, b| a + b, same);
    check_pairs(Binary::Sub, |a, b| a - b, same);
    check_pairs(Binary::Mul, |a, b| a * b, same);
    check_pairs(Binary::Div, |a, b| a / b, same);
    check_pairs(
        Binary::Max,
        |a, b| match a.partial_cmp(&b) {
            None => NAN,
            Some(std::cmp::Ordering::Equal) => pick(a, b, a.is_sign_positive()),
            Some(order) => pick(a, b, order.is_gt()),
        },
        same,
    );
    check_pairs(
        Binary::Min,
        |a, b| match a.partial_cmp(&b) {
            None => NAN,
            Some(std::cmp::Ordering::Equal) => pick(a, b, a.is_sign_negative()),
            Some(order) => pick(a, b, order.is_lt()),
        },
        same,
    );
    // The last bit of `f32::powf` depends on the platform. Zeros, infinities, NaN and signs have to agree exactly.
    check_pairs(Binary::Pow, f32::powf, |got, want| {
        same(got, want) || got.is_normal() && (got / want - 1.0).abs() < 3e-7
    });
}

#[test]
fn modulo_is_floored() {
    let cases = [
        (7.0, 3.0, 1.0),
        (-7.0, 3.0, 2.0),
        (7.0, -3.0, -2.0),
        (-7.0, -3.0, -1.0),
        (6.0, -3.0, -0.0),
        (-6.0, 3.0, 0.0),
        (1e10, 3.0, 1.0),
        (1.0, INF, 1.0),
        (-1.0, INF, INF),
        (1.0, -INF, -INF),
        (1.0, 0.0, NAN),
        (INF, 1.0, NAN),
        (NAN, 1.0, NAN),
        (1.0, NAN, NAN),
    ];
    for level in Level::available() {
        for (a, b, want) in cases {
            let mut out = [0.0; 19];
            binary(
                Binary::Mod,
                level,
                Operand::Slice(&[a; 19]),
                Operand::Scalar(b),
                &mut out,
            );
            assert!(
                out.iter().all(|&got| same(got, want)),
                "{a} mod {b}: {out:?}, not {want}"
            );
        }
    }
}

#[test]
fn comparisons_and_select() {
    let (a, b) = ([1.0, 2.0, NAN, -0.0, INF], [2.0, 2.0, NAN, 0.0, -INF]);
    let cases = [
        (Compare::Less, [1, 0, 0, 0, 0]),
        (Compare::LessEqual, [1, 1, 0, 1, 0]),
        (Compare::Greater, [0, 0, 0, 0, 1]),
        (Compare::GreaterEqual, [0, 1, 0, 1, 1]),
        (Compare::Equal, [0, 1, 0, 1, 0]),
        (Compare::NotEqual, [1, 0, 1, 0, 1]),
    ];
    for level in Level::available() {
        for (op, want) in cases {
            let mut out = [7; 5];
            compare(op, level, Operand::Slice(&a), Operand::Slice(&b), &mut out);
            assert_eq!(out, want, "{op:?}");
        }
        let (a, b) = (Operand::Slice(&[1u32, 2, 3][..]), Operand::Scalar(9));
        let mut out = [0; 3];
        for (cond, want) in [
            (Operand::Slice(&[0u32, 1, 5][..]), [9, 2, 3]),
            (Operand::Scalar(0), [9, 9, 9]),
            (Operand::Scalar(1), [1, 2, 3]),
        ] {
            select(level, cond, a, b, &mut out);
            assert_eq!(out, want);
        }
        let mut out = [0.0; 2];
        let b = [-1.0, -2.0];
        select(
            level,
            Operand::Slice(&[1, 0]),
            Operand::Scalar(5.0),
            Operand::Slice(&b),
            &mut out,
        );
        assert_eq!(out, [5.0, -2.0]);
    }
}

#[test]
fn integers() {
    fn check<T: Int + std::fmt::Debug>(op: IntBinary, cases: &[(T, T, T)]) {
        for level in Level::available() {
            for &(a, b, want) in cases {
                let mut out = [T::default(); 11];
                binary_int(op, level, Operand::Slice(&[a; 11]), Operand::Scalar(b), &mut out);
                assert_eq!(out, [want; 11], "{op:?} of {a:?} and {b:?}");
            }
        }
    }
    check(IntBinary::Add, &[(u32::MAX, 2, 1)]);
    check(IntBinary::Sub, &[(0, 1, u32::MAX)]);
    check(IntBinary::Mul, &[(i32::MAX, 2, -2), (-3, 5, -15)]);
    check(IntBinary::Div, &[(7, -2, -3), (1, 0, 0), (i32::MIN, -1, i32::MIN)]);
    check(IntBinary::Div, &[(7u32, 2, 3), (u32::MAX, 0, 0)]);
    check(
        IntBinary::Mod,
        &[(-7, 3, 2), (7, -3, -2), (-6, 3, 0), (5, 0, 0), (i32::MIN, -1, 0)],
    );
    check(IntBinary::Mod, &[(7u32, 3, 1), (7, 0, 0)]);
    check(IntBinary::Min, &[(u32::MAX, 1, 1)]);
    check(IntBinary::Max, &[(-1, 1, 1)]);
    let mut out = [0; 2];
    let b = Operand::Slice(&[0, -2][..]);
    compare_int(Compare::Less, detect(), Operand::Scalar(-1), b, &mut out);
    assert_eq!(out, [1, 0]);
}

#[test]
fn bits_of_words() {
    let cases = [
        (Bits::And, 0b1100, 0b1010, 0b1000),
        (Bits::Or, 0b1100, 0b1010, 0b1110),
        (Bits::Xor, 0b1100, 0b1010, 0b0110),
        (Bits::ShiftLeft, 3, 31, 1 << 31),
        (Bits::ShiftLeft, 3, 32, 0),
        (Bits::ShiftLeft, 3, u32::MAX, 0),
        (Bits::ShiftRight, u32::MAX, 31, 1),
        (Bits::ShiftRight, u32::MAX, 33, 0),
        (Bits::LogicalAnd, 4, 2, 1),
        (Bits::LogicalAnd, 4, 0, 0),
        (Bits::LogicalOr, 0, 2, 1),
        (Bits::LogicalOr, 0, 0, 0),
        (Bits::LogicalXor, 4, 2, 0),
        (Bits::LogicalXor, 4, 0, 1),
    ];
    for level in Level::available() {
        for (op, a, b, want) in cases {
            let (a, b) = ([a; 19], [b; 19]);
            for (a, b) in [
                (Operand::Slice(&a[..]), Operand::Slice(&b[..])),
                (Operand::Scalar(a[0]), Operand::Slice(&b)),
                (Operand::Slice(&a), Operand::Scalar(b[0])),
                (Operand::Scalar(a[0]), Operand::Scalar(b[0])),
            ] {
                let mut out = [7; 19];
                bits(op, level, a, b, &mut out);
                assert_eq!(out, [want; 19], "{op:?}");
            }
        }
    }
}

/// Returns numbers of all magnitudes, with some zeros, infinities and large arguments.
fn mixed(len: usize, seed: u64) -> Vec<f32> {
    let mut rng = StdRng::seed_from_u64(seed);
    let special = [0.0, -0.0, INF, -INF, 3e7, -1e-40];
    let pick = |rng: &mut StdRng| match rng.random_range(0..20) {
        i @ 0..6 => special[i],
        _ => rng.random_range(-20.0..20.0),
    };
    (0..len).map(|_| pick(&mut rng)).collect()
}

fn assert_same(got: &[f32], want: &[f32], what: &dyn std::fmt::Debug) {
    assert_eq!(got.len(), want.len());
    for (i, (&a, &b)) in got.iter().zip(want).enumerate() {
        assert!(same(a, b), "{what:?}: element {i} is {a:e}, not {b:e}");
    }
}

/// Results have the same bits for single elements, for pieces at any offset, and in place.
#[test]
fn results_do_not_depend_on_the_cut() {
    for (level, len) in Level::available().into_iter().flat_map(|l| LENGTHS.map(|n| (l, n))) {
        let (x, y) = (mixed(len, 2), mixed(len, 3));
        for op in UNARY {
            let whole = run(op, level, &x);
            let single: Vec<f32> = x.iter().map(|x| run(op, level, &[*x])[0]).collect();
            assert_same(&single, &whole, &op);
            let mut in_place = x.clone();
            unary_in_place(op, level, &mut in_place);
            assert_same(&in_place, &whole, &op);
            for piece in [3, 13, 64] {
                let pieces = x.chunks(piece).flat_map(|x| run(op, level, x));
                assert_same(&pieces.collect::<Vec<_>>(), &whole, &op);
            }
        }
        for op in BINARY {
            let mut whole = vec![0.0; len];
            binary(op, level, Operand::Slice(&x), Operand::Slice(&y), &mut whole);
            let mut pieces = vec![0.0; len];
            for ((x, y), out) in x.chunks(13).zip(y.chunks(13)).zip(pieces.chunks_mut(13)) {
                binary(op, level, Operand::Slice(x), Operand::Slice(y), out);
            }
            assert_same(&pieces, &whole, &op);
        }
    }
}

#[test]
fn rows_are_summed_as_slices_are() {
    for width in [0, 1, 7, 16, 31, 32, 33, 64, 100, 1000] {
        let mut rng = StdRng::seed_from_u64(5);
        let x: Vec<f32> = (0..width * 13).map(|_| rng.random_range(-5.0..5.0)).collect();
        for level in Level::available() {
            let mut sums = vec![NAN; 13];
            row_sums(level, &x, width, &mut sums);
            let own: Vec<f32> = (0..13).map(|i| sum(level, &x[i * width..][..width])).collect();
            assert_same(&sums, &own, &width);
        }
    }
}

#[test]
fn reductions() {
    for len in LENGTHS.into_iter().chain([1024, 5000]) {
        let mut rng = StdRng::seed_from_u64(4);
        let x: Vec<f32> = (0..len).map(|_| rng.random_range(-5.0..5.0)).collect();
        let greatest = x.iter().copied().fold(-INF, f32::max);
        let exact: f64 = x.iter().map(|x| f64::from(*x)).sum();
        let reference = sum(Level::BASELINE, &x);
        for level in Level::available() {
            let total = sum(level, &x);
            assert_eq!(total.to_bits(), reference.to_bits());
            assert!((f64::from(total) - exact).abs() < 1e-6 * 5.0 * len as f64 + 1e-6);
            assert_eq!(max(level, &x), greatest);
            assert_eq!(min(level, &x), x.iter().copied().fold(INF, f32::min));
            let near_one: Vec<f32> = x.iter().map(|x| 1.0 + x / 500.0).collect();
            let exact: f64 = near_one.iter().map(|x| f64::from(*x)).product();
            assert!((f64::from(product(level, &near_one)) / exact - 1.0).abs() < 1e-3);
            assert_eq!(
                product(level, &near_one).to_bits(),
                product(Level::BASELINE, &near_one).to_bits()
            );

            let mut numerators = vec![0.0; len];
            let denominator = sum_exp_sub(level, &x, 5.0, &mut numerators);
            let shifted: Vec<f32> = x.iter().map(|x| x - 5.0).collect();
            assert_same(&numerators, &run(Unary::Exp, level, &shifted), &"sum_exp_sub");
            assert_eq!(denominator.to_bits(), sum(level, &numerators).to_bits());

            for i in (0..len).step_by(7) {
                let mut with_nan = x.clone();
                with_nan[i] = NAN;
                assert!(max(level, &with_nan).is_nan());
                assert!(min(level, &with_nan).is_nan() && product(level, &with_nan).is_nan());
                min_assign(level, &mut with_nan, &x);
                assert!(with_nan[i].is_nan());
                max_assign(level, &mut with_nan, &x);
                assert!(with_nan[i].is_nan());
            }
            let (mut added, mut largest) = (x.clone(), x.clone());
            let (mut multiplied, mut smallest) = (x.clone(), x.clone());
            mul_assign(level, &mut multiplied, &shifted);
            min_assign(level, &mut smallest, &shifted);
            add_assign(level, &mut added, &shifted);
            max_assign(level, &mut largest, &shifted);
            for i in 0..len {
                assert_eq!(added[i], x[i] + shifted[i]);
                assert_eq!(largest[i], x[i]);
                assert_eq!(multiplied[i], x[i] * shifted[i]);
                assert_eq!(smallest[i], shifted[i]);
            }
        }
    }
}

#[test]
#[should_panic(expected = "lengths differ")]
fn lengths_are_checked() {
    let mut out = [0.0; 2];
    binary(
        Binary::Add,
        detect(),
        Operand::Slice(&[1.0]),
        Operand::Scalar(1.0),
        &mut out,
    );
}

#[test]
fn exponentials_of_nonpositive_numbers() {
    for step in 0..200_000 {
        let x = -0.000_5 * step as f32;
        let want = f64::from(x).exp();
        for found in [
            kernels::exp_nonpositive::<true>(x),
            kernels::exp_nonpositive::<false>(x),
        ] {
            if x < -87.3 {
                assert_eq!(found, 0.0, "{x}");
            } else {
                assert!(
                    (f64::from(found) - want).abs() <= 1.3e-7 * want,
                    "{x}: {found}, not {want}"
                );
            }
        }
    }
    assert_eq!(kernels::exp_nonpositive::<true>(f32::NEG_INFINITY), 0.0);
    assert_eq!(kernels::exp_nonpositive::<true>(0.0), 1.0);
    assert!(kernels::exp_nonpositive::<true>(NAN).is_nan());
}
