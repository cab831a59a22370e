//! Tests of rejected calls of attention, rotary embedding and gated units, and of their messages.

use meganeura_core::attrs::Attrs;
use meganeura_core::dtype::DType;
use meganeura_core::graph::{Graph, NodeId};
use meganeura_core::ops::{AttentionOptions, OpRef, RopeScaling};
use meganeura_core::registry;

/// Returns the error of the graph that `build` creates; it is reported once, and `verify` returns the same error.
fn rejection(build: impl FnOnce(&mut Graph) -> NodeId) -> String {
    let mut graph = Graph::new();
    let node = build(&mut graph);
    graph.set_outputs(vec![node]);
    assert_eq!(graph.errors().len(), 1, "{:?}", graph.errors());
    let error = graph.errors()[0].to_string();
    assert_eq!(graph.verify().expect_err("a wrong graph").to_string(), error);
    error
}

#[track_caller]
fn says(message: &str, parts: &[&str]) {
    for part in parts {
        assert!(message.contains(part), "{message:?} lacks {part:?}");
    }
}

/// Returns the error of attention with operands of these shapes.
fn attention(shapes: [&[usize]; 3], options: AttentionOptions) -> String {
    rejection(|g| {
        let [q, k, v] = ["q", "k", "v"].map(|name| name.to_owned());
        let q = g.input(&q, shapes[0]);
        let k = g.input(&k, shapes[1]);
        let v = g.input(&v, shapes[2]);
        g.attention(q, k, v, options)
    })
}

fn op(name: &str) -> OpRef {
    let found = registry::ops().into_iter().find(|op| op.name() == name);
    found.expect("a registered operator")
}

#[test]
fn heads_that_do_not_divide() {
    let message = attention([&[4, 12], &[4, 8], &[4, 8]], AttentionOptions::new(3, 2, 4));
    says(&message, &["3 query heads", "2 key-value heads", "multiple"]);
    let message = attention([&[4, 8], &[4, 16], &[4, 16]], AttentionOptions::new(2, 4, 4));
    says(&message, &["more key-value heads (4) than query heads (2)"]);
    for (heads, kv, width) in [(0, 1, 4), (1, 0, 4), (1, 1, 0)] {
        let message = attention([&[4, 8], &[4, 8], &[4, 8]], AttentionOptions::new(heads, kv, width));
        says(&message, &["at least one head of at least one element"]);
    }
}

#[test]
fn widths_that_do_not_fit() {
    let options = AttentionOptions::new(2, 1, 4);
    let message = attention([&[4, 9], &[4, 4], &[4, 4]], options);
    says(&message, &["the queries", "9 elements", "2 heads of 4"]);
    let message = attention([&[4, 8], &[4, 8], &[4, 4]], options);
    says(&message, &["the keys", "8 elements", "1 heads of 4"]);
    let message = attention([&[4, 8], &[4, 4], &[4, 5]], options);
    says(&message, &["the values", "5 elements"]);
    let message = attention([&[8], &[4, 4], &[4, 4]], options);
    says(&message, &["the queries", "[..., rows, heads * head_dim]"]);
    // An overflowing product of heads and width does not panic.
    let huge = AttentionOptions::new(u32::MAX, u32::MAX, u32::MAX);
    let message = attention([&[4, 8], &[4, 8], &[4, 8]], huge);
    says(&message, &["were announced"]);
}

#[test]
fn rows_that_do_not_fit() {
    let options = AttentionOptions::new(1, 1, 4);
    let message = attention([&[2, 4], &[3, 4], &[5, 4]], options);
    says(&message, &["3 keys", "5 values"]);
    let message = attention([&[2, 4], &[0, 4], &[0, 4]], options);
    says(&message, &["nothing to attend to"]);
    let message = attention([&[2, 2, 4], &[3, 2, 4], &[2, 2, 4]], options);
    says(&message, &["leading axes"]);
    let message = attention([&[2, 4], &[1, 2, 4], &[1, 2, 4]], options);
    says(&message, &["leading axes"]);
    let causal = AttentionOptions {
        causal: true,
        ..options
    };
    let message = attention([&[5, 4], &[3, 4], &[3, 4]], causal);
    says(&message, &["5 queries", "not 3", "without a mask use `attention`"]);
}

#[test]
fn windows_and_scales() {
    let options = AttentionOptions::new(1, 1, 4);
    let shapes: [&[usize]; 3] = [&[4, 4]; 3];
    let message = rejection(|g| {
        let x = g.input("x", &[4, 4]);
        g.sliding_window_attention(x, x, x, 1, 1, 4, 0)
    });
    says(&message, &["window of 0"]);
    let window = AttentionOptions {
        window: Some(2),
        ..options
    };
    says(&attention(shapes, window), &["must be causal"]);
    for scale in [f32::NAN, f32::INFINITY] {
        let scaled = AttentionOptions {
            scale: Some(scale),
            ..options
        };
        says(&attention(shapes, scaled), &["not a finite number"]);
    }
}

#[test]
fn element_types_of_attention() {
    let options = AttentionOptions::new(1, 1, 4);
    let message = rejection(|g| {
        let x = g.input_u32("x", &[4, 4]);
        g.attention(x, x, x, options)
    });
    says(&message, &["floating point", "cast"]);
    let message = rejection(|g| {
        let q = g.input("q", &[4, 4]);
        let k = g.input_typed("k", &[4, 4], DType::F16);
        g.attention(q, k, q, options)
    });
    says(&message, &["different element types", "cast"]);
}

/// Returns the error of a call with raw attributes, as a plugin or a file could create it.
fn raw(name: &str, shapes: &[&[usize]], attrs: Attrs) -> String {
    rejection(|g| {
        let inputs = shapes.iter().enumerate();
        let inputs = inputs.map(|(i, shape)| g.input(&format!("x{i}"), shape).into());
        let inputs = inputs.collect();
        g.call(op(name), attrs, inputs)
    })
}

fn attention_attrs() -> Attrs {
    Attrs::new()
        .with("num_heads", 2i64)
        .with("num_kv_heads", 1i64)
        .with("head_dim", 4i64)
        .with("causal", true)
        .with("window", 0i64)
        .with("scale", 0.5)
}

#[test]
fn attributes_of_attention() {
    let shapes: [&[usize]; 3] = [&[4, 8], &[4, 4], &[4, 4]];
    for name in ["num_heads", "num_kv_heads", "head_dim", "window"] {
        let message = raw("core.attention", &shapes, attention_attrs().with(name, -1i64));
        says(&message, &[name, "negative"]);
        let message = raw("core.attention", &shapes, attention_attrs().with(name, true));
        says(&message, &[name, "an integer"]);
    }
    says(
        &raw("core.attention", &shapes, attention_attrs().with("causal", 1i64)),
        &["causal", "a flag"],
    );
    says(
        &raw("core.attention", &shapes, attention_attrs().with("scale", 1i64)),
        &["scale", "a real number"],
    );
    says(&raw("core.attention", &shapes, Attrs::new()), &["missing"]);
    says(&raw("core.attention", &shapes[..2], attention_attrs()), &["3 operands"]);
}

#[test]
fn operands_of_attention_grad() {
    let good: [&[usize]; 6] = [&[3, 8], &[4, 4], &[4, 4], &[2, 3], &[2, 3], &[3, 8]];
    let with = |i: usize, shape: &'static [usize]| {
        let mut shapes = good;
        shapes[i] = shape;
        raw("core.attention_grad", &shapes, attention_attrs())
    };
    says(&with(3, &[3, 2]), &["lse", "must be"]);
    says(&with(4, &[1, 3]), &["delta", "must be"]);
    says(&with(5, &[3, 4]), &["gradient of the result", "must be"]);
    says(&with(1, &[4, 5]), &["the keys"]);
    let message = raw("core.attention_grad", &good[..5], attention_attrs());
    says(&message, &["6 operands"]);
}

#[test]
fn wrong_rotations() {
    let rope = |shape: &'static [usize], theta: f32, head_dim: u32| {
        rejection(|g| {
            let x = g.input("x", shape);
            g.rope(x, theta, head_dim)
        })
    };
    says(&rope(&[4, 6], 1e4, 3), &["3 elements", "pairs", "even"]);
    says(&rope(&[4, 6], 1e4, 0), &["0 elements", "above 0"]);
    says(&rope(&[4, 6], 1e4, 4), &["6 elements", "heads of 4"]);
    says(&rope(&[6], 1e4, 2), &["two axes"]);
    for theta in [0.0, -1.0, f32::NAN, f32::INFINITY] {
        says(&rope(&[4, 6], theta, 2), &["theta", "positive and finite"]);
    }
    let message = rejection(|g| {
        let x = g.input_u32("x", &[4, 6]);
        g.rope(x, 1e4, 2)
    });
    says(&message, &["floating point"]);
    let attrs = || {
        Attrs::new()
            .with("theta", 1e4)
            .with("offset", 0i64)
            .with("head_dim", 2i64)
            .with("inverse", false)
    };
    let shape: &[usize] = &[4, 6];
    says(
        &raw("core.rope", &[shape], attrs().with("offset", -1i64)),
        &["offset", "negative"],
    );
    says(
        &raw("core.rope", &[shape], attrs().with("inverse", 0i64)),
        &["inverse", "a flag"],
    );
}

#[test]
fn wrong_gates() {
    for name in ["core.swiglu", "core.geglu"] {
        says(
            &raw(name, &[&[2, 3], &[3]], Attrs::new()),
            &["shapes must be equal", "[2, 3]"],
        );
        says(&raw(name, &[&[2, 3]], Attrs::new()), &["2 operands"]);
        let message = rejection(|g| {
            let x = g.input_u32("x", &[2]);
            g.call(op(name), Attrs::new(), vec![x.into(), x.into()])
        });
        says(&message, &["floating point"]);
    }
    for name in ["core.swiglu_grad", "core.geglu_grad"] {
        says(
            &raw(name, &[&[2, 3], &[2, 3], &[2, 1]], Attrs::new()),
            &["shapes must be equal"],
        );
    }
    let message = rejection(|g| {
        let gate = g.input("gate", &[2]);
        let up = g.input_typed("up", &[2], DType::F16);
        g.swiglu(gate, up)
    });
    says(&message, &["different element types"]);
    says(
        &raw("core.swiglu_concat", &[&[2, 3]], Attrs::new()),
        &["3 must be even"],
    );
    says(&raw("core.swiglu_concat", &[&[]], Attrs::new()), &["no axis"]);
    says(
        &raw("core.swiglu_concat_grad", &[&[2, 6], &[2, 6]], Attrs::new()),
        &["must be", "[2, 3]"],
    );
}

#[test]
fn caches_that_do_not_fit() {
    let write = |new: &[usize], cache: &[usize], position: &[usize]| {
        rejection(|g| {
            let new = g.input("new", new);
            let cache = g.state("cache", cache);
            let position = g.input_u32("position", position);
            g.cache_write(new, cache, position)
        })
    };
    says(&write(&[3, 4], &[2, 4], &[1]), &["3 rows", "into the 2"]);
    says(&write(&[0, 4], &[2, 4], &[1]), &["no rows to write"]);
    says(
        &write(&[1, 4], &[2, 5], &[1]),
        &["all axes but the one before the last"],
    );
    says(
        &write(&[2, 1, 4], &[3, 8, 4], &[2]),
        &["all axes but the one before the last"],
    );
    says(&write(&[4], &[8, 4], &[1]), &["at least two axes"]);
    says(
        &write(&[2, 1, 4], &[2, 8, 4], &[1]),
        &["one position for each sequence", "[2]"],
    );
    says(
        &write(&[1, 4], &[8, 4], &[]),
        &["one position for each sequence", "[1]"],
    );
    let message = rejection(|g| {
        let [new, position] = ["new", "position"].map(|name| name.to_owned());
        let new = g.input(&new, &[1, 4]);
        let cache = g.state("cache", &[8, 4]);
        let position = g.input(&position, &[1]);
        g.cache_write(new, cache, position)
    });
    says(&message, &["must be u32", "input_u32"]);
    let message = rejection(|g| {
        let new = g.input("new", &[1, 4]);
        let cache = g.input("cache", &[8, 4]);
        let position = g.input_u32("position", &[1]);
        g.cache_write(new, cache, position)
    });
    says(&message, &["not a state or parameter"]);
    let typed = |rows: DType, cache: DType, width: usize| {
        rejection(|g| {
            let new = g.input_typed("new", &[1, width], rows);
            let cache = g.parameter_typed("cache", &[8, width], cache);
            let position = g.input_u32("position", &[1]);
            g.cache_write(new, cache, position)
        })
    };
    says(
        &typed(DType::F32, DType::F16, 3),
        &["rows of 3 elements", "even number"],
    );
    for (rows, cache) in [(DType::F16, DType::F32), (DType::F32, DType::BF16)] {
        says(
            &typed(rows, cache, 4),
            &["another element type", "of their type, or of f16"],
        );
    }
}

#[test]
fn cached_attention_that_does_not_fit() {
    let attend = |q: &[usize], cache: &[usize], position: &[usize], options: AttentionOptions| {
        rejection(|g| {
            let q = g.input("q", q);
            let [k, v] = ["k", "v"].map(|name| g.state(name, cache));
            let position = g.input_u32("position", position);
            g.cached_attention_with(q, k, v, position, options)
        })
    };
    let options = AttentionOptions::new(4, 2, 3);
    says(&attend(&[9, 12], &[8, 6], &[1], options), &["9 queries", "not 8"]);
    says(
        &attend(&[1, 12], &[8, 12], &[1], options),
        &["rows of 12 elements", "2 heads of 3"],
    );
    says(
        &attend(&[2, 1, 12], &[2, 8, 6], &[1], options),
        &["one position for each sequence"],
    );
    let window = AttentionOptions {
        window: Some(0),
        ..options
    };
    says(&attend(&[1, 12], &[8, 6], &[1], window), &["window of 0"]);
    let message = rejection(|g| {
        let q = g.input("q", &[1, 12]);
        let k = g.parameter_typed("k", &[8, 6], DType::F16);
        let v = g.state("v", &[8, 6]);
        let position = g.input_u32("position", &[1]);
        g.cached_attention_with(q, k, v, position, options)
    });
    says(&message, &["different element types"]);
}

#[test]
fn rotations_that_cannot_be() {
    let turn = |x: &[usize], offset: &[usize], scaling: RopeScaling| {
        rejection(|g| {
            let x = g.input("x", x);
            let offset = g.input_u32("offset", offset);
            g.rope_scaled(x, 10.0, offset, 4, scaling)
        })
    };
    says(&turn(&[3, 6], &[1], RopeScaling::None), &["no whole number of heads"]);
    says(
        &turn(&[3, 8], &[3], RopeScaling::None),
        &["the offset", "one position for each sequence"],
    );
    let linear = RopeScaling::Linear { factor: 0.0 };
    says(&turn(&[3, 8], &[1], linear), &["factor 0", "positive"]);
    let llama3 = RopeScaling::Llama3 {
        factor: 2.0,
        low_freq_factor: 4.0,
        high_freq_factor: 1.0,
        original_context: 8,
    };
    says(
        &turn(&[3, 8], &[1], llama3),
        &["low_freq_factor is 4", "the second the larger"],
    );
}
