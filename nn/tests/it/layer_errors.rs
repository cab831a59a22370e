//! Tests that errors of layers and models contain the wrong field and the caller's line.

use meganeura_core::Graph;
use meganeura_nn::layers::{
    BatchNormConfig, Conv2d, Conv2dConfig, Embedding, LayerNormConfig, Linear, LinearConfig, LoraConfig, QueryGrowth,
    RecurrentConfig, RmsNorm, RnnActivation, SelfAttentionConfig,
};
use meganeura_nn::models::{CnnConfig, LayerSet, LlamaConfig, MlpConfig, MoeConfig, Routing, VitConfig};

/// Returns the first error of a graph, which a build reports.
fn first_error(build: impl FnOnce(&mut Graph)) -> String {
    let mut g = Graph::new();
    build(&mut g);
    g.errors().first().expect("an error").to_string()
}

/// Checks that its location is the given line of this file, not a line of the library.
#[track_caller]
fn is_here(error: &str, line: u32) {
    assert!(
        error.contains(&format!("layer_errors.rs:{line}")),
        "line {line}: {error}"
    );
    assert!(!error.contains("nn/src"), "{error}");
}

#[test]
fn a_language_model_of_wrong_sizes_names_its_fields() {
    let with_experts = |experts: usize, experts_per_token: usize| LlamaConfig {
        moe: Some(MoeConfig {
            routing: Routing::Softmax,
            experts,
            experts_per_token,
            hidden: 16,
            normalize: true,
            shared_hidden: None,
            biases: false,
            dense_layers: LayerSet::NONE,
        }),
        ..LlamaConfig::small(17)
    };
    let cases: [(LlamaConfig, &[&str]); 11] = [
        (
            LlamaConfig {
                query_growth: Some(QueryGrowth { beta: 0.1, context: 0 }),
                ..LlamaConfig::small(17)
            },
            &["growth of queries is 0.1 for 0 positions", "at least one position"],
        ),
        (with_experts(4, 5), &["moe.experts_per_token is 5", "moe.experts 4"]),
        (with_experts(0, 0), &["moe.experts is 0", "at least 1"]),
        (
            LlamaConfig {
                dim: 30,
                ..LlamaConfig::small(17)
            },
            &["dim is 30", "not a multiple of heads = 4"],
        ),
        (
            LlamaConfig {
                dim: 28,
                ..LlamaConfig::small(17)
            },
            &["dim is 28 and heads is 4", "7 features", "even head size"],
        ),
        (
            LlamaConfig {
                head_dim: Some(5),
                ..LlamaConfig::small(17)
            },
            &["head_dim is 5", "even head size"],
        ),
        (
            LlamaConfig {
                kv_heads: 3,
                ..LlamaConfig::small(17)
            },
            &["kv_heads is 3", "heads = 4", "divisor"],
        ),
        (LlamaConfig::small(0), &["vocab is 0", "at least 1"]),
        (
            LlamaConfig {
                rope_theta: -1.0,
                ..LlamaConfig::small(17)
            },
            &["rope_theta", "-1", "above 0"],
        ),
        (
            LlamaConfig {
                eps: f32::NAN,
                ..LlamaConfig::small(17)
            },
            &["eps is NaN", "at least 0"],
        ),
        (
            LlamaConfig {
                window: Some(0),
                ..LlamaConfig::small(17)
            },
            &["window is 0", "1 or more"],
        ),
    ];
    for (config, words) in cases {
        let (error, line) = (first_error(|g| drop(config.build(g, "m"))), line!());
        is_here(&error, line);
        let checked = config.check().expect_err("the same").to_string();
        for word in words {
            assert!(error.contains(word), "{word}: {error}");
            assert!(
                checked.contains(word) && checked.contains("LlamaConfig"),
                "{word}: {checked}"
            );
        }
        assert!(error.contains("LlamaConfig") && !error.contains("core."), "{error}");
    }
    LlamaConfig::small(17).check().expect("a model");
}

#[test]
fn settings_of_layers_are_checked_when_they_are_built() {
    type Build = fn(&mut Graph);
    let lora = LoraConfig {
        rank: 0,
        ..LoraConfig::new(4)
    };
    let error = first_error(|g| drop(LinearConfig::new(4, 4).lora(Some(lora)).build(g, "a.q_proj")));
    assert!(error.contains("linear 'a.q_proj'") && error.contains("rank"), "{error}");
    let cases: [(&[&str], Build); 9] = [
        (&["conv2d 'a'", "stride is [0, 1]", "at least 1"], |g| {
            Conv2dConfig::new(3, 4, [3, 3]).stride([0, 1]).build(g, "a");
        }),
        (&["conv2d 'a'", "dilation is [1, 0]"], |g| {
            Conv2dConfig::new(3, 4, [3, 3]).dilation([1, 0]).build(g, "a");
        }),
        (&["layer_norm 'a'", "eps is -1"], |g| {
            LayerNormConfig::new(4).eps(-1.0).build(g, "a");
        }),
        (&["rms_norm 'a'", "eps is inf"], |g| {
            RmsNorm::new(g, "a", 4, f32::INFINITY);
        }),
        (&["batch_norm 'a'", "momentum is 1.5", "0 to 1"], |g| {
            BatchNormConfig::new(4).momentum(1.5).build(g, "a");
        }),
        (&["self_attention 'a'", "dim is 10", "heads = 4"], |g| {
            SelfAttentionConfig::new(10, 4).build(g, "a");
        }),
        (&["self_attention 'a'", "kv_heads is 3"], |g| {
            SelfAttentionConfig::new(8, 4).kv_heads(3).build(g, "a");
        }),
        (&["self_attention 'a'", "window is 3", "causal"], |g| {
            SelfAttentionConfig::new(8, 4).window(3).build(g, "a");
        }),
        (&["self_attention 'm.blocks.0.attention'", "heads = 5"], |g| {
            VitConfig::new([3, 8, 8], 4, 10).size(64, 1, 5, 8).build(g, "m");
        }),
    ];
    for (words, build) in cases {
        let error = first_error(build);
        for word in words {
            assert!(error.contains(word), "{word}: {error}");
        }
        assert!(
            error.contains("layer_errors.rs:") && !error.contains("nn/src"),
            "{error}"
        );
    }
}

#[test]
fn an_operand_that_does_not_fit_names_the_layer_its_sizes_and_the_line() {
    type Apply = fn(&mut Graph) -> u32;
    let cases: [(&[&str], Apply); 7] = [
        (&["linear 'fc' (4 to 3 features)", "core.matmul"], |g| {
            let x = g.input("x", &[2, 5]);
            let layer = Linear::new(g, "fc", 4, 3);
            layer.forward(g, x);
            line!() - 1
        }),
        (&["conv2d 'c' (3 to 8 channels, kernel 5x3)"], |g| {
            let x = g.input("x", &[2, 4, 9, 9]);
            let layer = Conv2d::new(g, "c", 3, 8, [5, 3]);
            layer.forward(g, x);
            line!() - 1
        }),
        (&["embedding 'e' (7 rows of 4 features)"], |g| {
            let x = g.input("x", &[2]);
            let layer = Embedding::new(g, "e", 7, 4);
            layer.forward(g, x);
            line!() - 1
        }),
        (&["linear 'a.q_proj' (8 to 8 features)"], |g| {
            let x = g.input("x", &[2, 6]);
            let layer = SelfAttentionConfig::new(8, 2).rope(10.0).build(g, "a");
            layer.forward(g, x);
            line!() - 1
        }),
        (
            &["self_attention 'a' (dim 8, 2 heads of 4 features, 1 key-value heads)"],
            |g| {
                let x = g.input("x", &[2, 3, 8]);
                let mask = g.input("mask", &[3, 4]);
                let layer = SelfAttentionConfig::new(8, 2).kv_heads(1).build(g, "a");
                layer.forward_masked(g, x, mask);
                line!() - 1
            },
        ),
        (&["linear 'm.fc1'", "linear"], |g| {
            let x = g.input("x", &[2, 5]);
            let model = MlpConfig::new(4, 3).build(g, "m");
            model.forward(g, x);
            line!() - 1
        }),
        (&["embedding 'm.model.embed_tokens'"], |g| {
            let x = g.input("x", &[2, 5]);
            let model = LlamaConfig::small(17).build(g, "m");
            model.forward(g, x);
            line!() - 1
        }),
    ];
    for (words, apply) in cases {
        let mut line = 0;
        let error = first_error(|g| line = apply(g));
        is_here(&error, line);
        for word in words {
            assert!(error.contains(word), "{word}: {error}");
        }
    }
}

#[test]
fn nodes_of_models_are_at_the_line_that_built_them() {
    let mut g = Graph::new();
    let x = g.input("x", &[2, 3, 8, 8]);
    let model = CnnConfig::new([3, 8, 8], 10).build(&mut g, "m");
    let built = line!() - 1;
    let y = model.forward(&mut g, x);
    assert!(g.errors().is_empty());
    let weight = g.leaf_named("m.fc1.weight").expect("registered");
    let location = |id: meganeura_core::NodeId| g.nodes()[id.index()].location.expect("a line");
    assert_eq!(location(weight).line, built, "{}", location(weight));
    assert!(location(y).file.ends_with("layer_errors.rs"), "{}", location(y));
}

#[test]
fn recurrent_layers_name_themselves_and_what_is_wrong() {
    type Build = fn(&mut Graph);
    let cases: [(&[&str], Build); 6] = [
        (&["rnn 'a'", "initial hidden state", "[2, 6]"], |g| {
            let x = g.input("x", &[5, 2, 4]);
            let hidden = g.input("h", &[3, 6]);
            RecurrentConfig::new(4, 6)
                .rnn(g, "a", RnnActivation::Tanh)
                .forward_from(g, x, hidden, None);
        }),
        (&["lstm 'a'", "inputs is 0"], |g| {
            RecurrentConfig::new(0, 4).lstm(g, "a");
        }),
        (&["gru 'a'", "hidden features is 0"], |g| {
            RecurrentConfig::new(4, 0).gru(g, "a");
        }),
        (&["lstm 'a'", "3 features", "4 inputs"], |g| {
            let x = g.input("x", &[5, 2, 3]);
            RecurrentConfig::new(4, 6).lstm(g, "a").forward(g, x);
        }),
        (&["gru 'a'", "[5, 4]", "[steps, batch, inputs]"], |g| {
            let x = g.input("x", &[5, 4]);
            RecurrentConfig::new(4, 6).gru(g, "a").forward(g, x);
        }),
        (&["lstm 'a'", "initial cell state", "[2, 6]"], |g| {
            let x = g.input("x", &[5, 2, 4]);
            let states = [g.input("h", &[2, 6]), g.input("c", &[3, 6])];
            RecurrentConfig::new(4, 6)
                .lstm(g, "a")
                .forward_from(g, x, states[0], states[1], None);
        }),
    ];
    for (words, build) in cases {
        let error = first_error(build);
        assert!(
            error.contains("layer_errors.rs") && !error.contains("nn/src"),
            "{error}"
        );
        for word in words {
            assert!(error.contains(word), "{word}: {error}");
        }
    }
}
