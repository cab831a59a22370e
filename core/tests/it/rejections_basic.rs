//! Tests of rejected calls: the messages describe the errors.

use meganeura_core::attrs::{Attr, Attrs};
use meganeura_core::graph::{Graph, Value};
use meganeura_core::{DType, registry};

/// Builds an invalid call, and checks that its only error contains all the words.
#[track_caller]
fn rejects(words: &[&str], build: impl FnOnce(&mut Graph)) {
    let mut g = Graph::new();
    build(&mut g);
    let errors: Vec<String> = g.errors().iter().map(ToString::to_string).collect();
    assert_eq!(errors.len(), 1, "{errors:?}");
    assert!(words.iter().all(|w| errors[0].contains(w)), "{words:?}: {}", errors[0]);
}

/// Calls an operator with attributes that no builder method creates.
#[track_caller]
fn rejects_attrs(words: &[&str], name: &str, inputs: &[(DType, &[usize])], attrs: Attrs) {
    rejects(words, |g| {
        let op = registry::op(name).expect("an operator");
        let operands: Vec<Value> = (0..)
            .zip(inputs)
            .map(|(i, (dtype, shape))| g.input_typed(&format!("x{i}"), shape, *dtype).into())
            .collect();
        g.call(op, attrs, operands);
    });
}

const F32: DType = DType::F32;

#[test]
fn elementwise() {
    for dtype in [DType::U32, DType::I32] {
        rejects(&["core.floor", dtype.name(), "cast"], |g| {
            let x = g.input_typed("x", &[3], dtype);
            g.floor(x);
        });
    }
    rejects(&["core.sign", "u32", "cast"], |g| {
        let x = g.input_u32("x", &[3]);
        g.sign(x);
    });
    for alpha in [f32::NAN, f32::INFINITY] {
        rejects(&["core.elu", "alpha must be a finite number"], |g| {
            let x = g.input("x", &[3]);
            g.elu(x, alpha);
        });
    }
}

#[test]
fn integers() {
    rejects(&["core.bit_and", "u32 or i32, not on f32"], |g| {
        let x = g.input("x", &[3]);
        g.bit_and(x, x);
    });
    rejects(&["core.bit_xor", "different element types"], |g| {
        let x = g.input_u32("x", &[3]);
        let y = g.input_typed("y", &[3], DType::I32);
        g.bit_xor(x, y);
    });
    rejects(&["core.bit_or", "do not broadcast"], |g| {
        let x = g.input_u32("x", &[3]);
        let y = g.input_u32("y", &[4]);
        g.bit_or(x, y);
    });
    rejects(&["core.bit_not", "not on f32"], |g| {
        let x = g.input("x", &[3]);
        g.bit_not(x);
    });
    type Build = fn(&mut Graph, Value);
    let words: [(&str, Build); 6] = [
        ("core.shift_left", |g, x| {
            g.shift_left(x, x);
        }),
        ("core.shift_right", |g, x| {
            g.shift_right(x, x);
        }),
        ("core.logical_and", |g, x| {
            g.logical_and(x, x);
        }),
        ("core.logical_or", |g, x| {
            g.logical_or(x, x);
        }),
        ("core.logical_xor", |g, x| {
            g.logical_xor(x, x);
        }),
        ("core.logical_not", |g, x| {
            g.logical_not(x);
        }),
    ];
    for (name, build) in words {
        rejects(&[name, "u32, not on i32", "cast"], |g| {
            let x = g.input_typed("x", &[3], DType::I32);
            build(g, x.into());
        });
    }
}

#[test]
fn reductions() {
    rejects(&["core.min_reduce", "axis 2 is out of range"], |g| {
        let x = g.input("x", &[3, 4]);
        g.min(x, &[2], false);
    });
    rejects(&["core.min_reduce", "smallest of no elements"], |g| {
        let x = g.input("x", &[3, 0]);
        g.min(x, &[1], false);
    });
    let permuted = |axes: &'static [i32]| {
        move |g: &mut Graph| {
            let x = g.input("x", &[3, 4, 5]);
            g.permute(x, axes);
        }
    };
    rejects(&["core.permute", "axis 3 is out of range"], permuted(&[0, 1, 3]));
    rejects(&["core.permute", "axis -4 is out of range"], permuted(&[0, 1, -4]));
    rejects(&["core.permute", "name axis 2 twice"], permuted(&[2, 0, -1]));
    rejects(&["core.permute", "not all axes"], permuted(&[2, -3]));
    rejects_attrs(
        &["axis -1 of a call must count from the first"],
        "core.permute",
        &[(F32, &[3, 4])],
        Attrs::new().with("axes", vec![-1i64, 0]),
    );
    rejects(&["core.prod", "name one axis twice"], |g| {
        let x = g.input("x", &[3, 4]);
        g.prod(x, &[0, -2], false);
    });
    rejects(
        &["core.variance", "variance of 4 elements with the correction 4"],
        |g| {
            let x = g.input("x", &[3, 4]);
            g.variance(x, &[1], 4, false);
        },
    );
    rejects(&["core.variance", "variance of 0 elements"], |g| {
        let x = g.input("x", &[3, 0]);
        g.std_dev(x, &[1], 0, false);
    });
    rejects(&["core.variance", "floating point", "cast"], |g| {
        let x = g.input_u32("x", &[3]);
        g.variance(x, &[], 0, false);
    });
    let attrs = Attrs::new()
        .with("axes", vec![0])
        .with("keep_dims", false)
        .with("correction", -1i64);
    rejects_attrs(&["'correction' is negative"], "core.variance", &[(F32, &[3])], attrs);
    rejects(&["core.cumsum", "axis -3 is out of range"], |g| {
        let x = g.input("x", &[3, 4]);
        g.cumsum(x, -3, false, false);
    });
    rejects(&["core.cumsum", "axis 0 is out of range"], |g| {
        let x = g.input("x", &[]);
        g.cumsum(x, 0, false, false);
    });
    rejects_attrs(
        &["'reverse' is missing"],
        "core.cumsum",
        &[(F32, &[3])],
        Attrs::new().with("axis", 0).with("exclusive", true),
    );
    rejects(&["core.argmin", "axis 1 of f32[3, 0] has no elements"], |g| {
        let x = g.input("x", &[3, 0]);
        g.argmin(x, 1);
    });
}

#[test]
fn indices() {
    rejects(&["core.top_k", "k = 5", "4 elements of axis 1"], |g| {
        let x = g.input("x", &[3, 4]);
        g.top_k(x, 1, 5);
    });
    rejects(&["core.top_k", "axis 2 is out of range"], |g| {
        let x = g.input("x", &[3, 4]);
        g.top_k(x, 2, 1);
    });
    let attrs = Attrs::new().with("k", -1i64).with("axis", 0);
    rejects_attrs(&["'k' is negative"], "core.top_k", &[(F32, &[3])], attrs);
    rejects(&["core.take_along_axis", "must be u32", "f32[3, 4]"], |g| {
        let x = g.input("x", &[3, 4]);
        g.take_along_axis(x, x, 0);
    });
    for shape in [&[2, 5][..], &[4], &[3, 4, 1]] {
        rejects(
            &["core.take_along_axis", "the shape of f32[3, 4] but for axis 1"],
            |g| {
                let x = g.input("x", &[3, 4]);
                let i = g.input_u32("i", shape);
                g.take_along_axis(x, i, 1);
            },
        );
    }
    rejects(&["core.put_along_axis", "the same shape", "u32[3]", "f32[4]"], |g| {
        let i = g.input_u32("i", &[3]);
        let x = g.input("x", &[4]);
        g.put_along_axis(x, i, 0, 9);
    });
    rejects(&["core.put_along_axis", "must be u32"], |g| {
        let x = g.input("x", &[4]);
        g.put_along_axis(x, x, 0, 9);
    });
    let attrs = Attrs::new().with("size", -2i64).with("axis", 0);
    let inputs: [(DType, &[usize]); 2] = [(DType::U32, &[3]), (F32, &[3])];
    rejects_attrs(&["'size' is negative"], "core.put_along_axis", &inputs, attrs);
    rejects(&["core.put_along_axis", "more elements than memory"], |g| {
        let i = g.input_u32("i", &[3, 4]);
        let x = g.input("x", &[3, 4]);
        g.put_along_axis(x, i, 0, usize::MAX / 4);
    });
    rejects(&["core.one_hot", "ids must be u32"], |g| {
        let x = g.input("x", &[4]);
        g.one_hot(x, 3);
    });
    let attrs = Attrs::new().with("classes", 3).with("dtype", 1i64);
    let ids: [(DType, &[usize]); 1] = [(DType::U32, &[3])];
    rejects_attrs(&["'dtype' should be an element type"], "core.one_hot", &ids, attrs);
}

#[test]
fn scatters() {
    let call = |x: &'static [usize], i: &'static [usize], u: &'static [usize], axis| {
        move |g: &mut Graph| {
            let (x, i, u) = (g.input("x", x), g.input_u32("i", i), g.input("u", u));
            g.scatter(x, i, u, axis);
        }
    };
    rejects(&["core.scatter", "one axis"], call(&[4], &[2, 1], &[2], 0));
    rejects(&["core.scatter", "axis 1 is out of range"], call(&[4], &[2], &[2], 1));
    rejects(
        &["core.scatter", "the 2 elements of the indices at axis 0"],
        call(&[4, 3], &[2], &[3, 3], 0),
    );
    rejects(
        &["core.scatter", "the shape of f32[4, 3]"],
        call(&[4, 3], &[2], &[2, 4], 0),
    );
    rejects(&["core.scatter", "another element type"], |g| {
        let (x, i) = (g.input("x", &[4]), g.input_u32("i", &[2]));
        g.scatter(x, i, i, 0);
    });
    rejects(&["core.scatter", "indices must be u32"], |g| {
        let x = g.input("x", &[4]);
        g.scatter(x, x, x, 0);
    });
    rejects(&["core.masked_fill", "mask must be u32"], |g| {
        let x = g.input("x", &[4]);
        g.masked_fill(x, x, 0.0);
    });
    for mask in [&[3][..], &[2, 4]] {
        rejects(
            &["core.masked_fill", "does not broadcast to the shape of f32[4]"],
            |g| {
                let (x, m) = (g.input("x", &[4]), g.input_u32("m", mask));
                g.masked_fill(x, m, 0.0);
            },
        );
    }
    for value in [0.5, -1.0, f32::NAN, 1e10] {
        rejects(&["core.masked_fill", "not a number of the element type u32"], |g| {
            let m = g.input_u32("m", &[4]);
            g.masked_fill(m, m, value);
        });
    }
    rejects(&["core.masked_scatter", "another element type"], |g| {
        let (x, m) = (g.input("x", &[4]), g.input_u32("m", &[4]));
        g.masked_scatter(x, m, m);
    });
    rejects(&["core.masked_scatter", "no elements"], |g| {
        let (x, m, s) = (g.input("x", &[4]), g.input_u32("m", &[4]), g.input("s", &[0]));
        g.masked_scatter(x, m, s);
    });
    rejects(&["core.masked_scatter", "does not broadcast"], |g| {
        let (x, m) = (g.input("x", &[4]), g.input_u32("m", &[5]));
        g.masked_scatter(x, m, x);
    });
}

#[test]
fn movement() {
    rejects(&["core.split", "add up to 6", "axis 1 of f32[3, 4] has 4"], |g| {
        let x = g.input("x", &[3, 4]);
        assert_eq!(g.split(x, 1, &[3, 3]).len(), 2);
    });
    rejects(&["core.split", "more than can be counted"], |g| {
        let x = g.input("x", &[3, 4]);
        // Attributes are signed, so three sizes are needed for an overflow.
        g.split(x, 1, &[isize::MAX as usize; 3]);
    });
    rejects(&["core.split", "list of sizes is empty"], |g| {
        let x = g.input("x", &[0]);
        g.split(x, 0, &[]);
    });
    rejects(&["core.split", "axis 2 is out of range"], |g| {
        let x = g.input("x", &[3, 4]);
        g.split(x, 2, &[3]);
    });
    rejects(&["core.split", "cut into no parts"], |g| {
        let x = g.input("x", &[3, 4]);
        g.chunk(x, 1, 0);
    });
    rejects(&["core.split", "axis -3 is out of range"], |g| {
        let x = g.input("x", &[3, 4]);
        g.chunk(x, -3, 2);
    });
    let sizes = Attrs::new().with("axis", 0).with("sizes", Attr::Ints(vec![4, -1]));
    rejects_attrs(&["negative entry -1"], "core.split", &[(F32, &[3])], sizes);
    rejects(&["core.tile", "[2]", "each of the 2 axes of f32[3, 4]"], |g| {
        let x = g.input("x", &[3, 4]);
        g.tile(x, &[2]);
    });
    rejects(&["core.tile", "more elements than memory"], |g| {
        let x = g.input("x", &[3, 4]);
        g.tile(x, &[1 << 40, 1 << 40]);
    });
    let repeats = Attrs::new().with("repeats", Attr::Ints(vec![-1]));
    rejects_attrs(&["negative entry -1"], "core.tile", &[(F32, &[3])], repeats);
    rejects(&["core.flip", "axis 2 is out of range"], |g| {
        let x = g.input("x", &[3, 4]);
        g.flip(x, &[0, 2]);
    });
    rejects(&["core.flip", "name one axis twice"], |g| {
        let x = g.input("x", &[3, 4]);
        g.flip(x, &[1, -1]);
    });
    rejects(&["core.tril", "less than two axes"], |g| {
        let x = g.input("x", &[3]);
        g.tril(x, 0);
    });
    rejects(&["core.triu", "less than two axes"], |g| {
        let x = g.input("x", &[]);
        g.triu(x, 0);
    });
    let far = Attrs::new().with("diagonal", 1i64 << 40);
    rejects_attrs(
        &["diagonal 1099511627776 is out of range"],
        "core.tril",
        &[(F32, &[3, 3])],
        far,
    );
}

#[test]
fn windows_far_larger_than_the_image() {
    use meganeura_core::ops::Pool2dOptions;
    let errors = |size: u32| {
        let mut g = Graph::new();
        let x = g.input("x", &[1, 1, 1, 1]);
        let options = Pool2dOptions {
            kernel: [size; 2],
            stride: [1, 1],
            padding: [size / 2; 2],
        };
        g.max_pool2d(x, options);
        g.errors().iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    assert!(errors(4096).is_empty());
    let found = errors(4098);
    assert!(
        matches!(found.as_slice(), [e] if e.contains("far larger than the image")),
        "{found:?}"
    );
}
