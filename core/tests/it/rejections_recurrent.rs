//! Tests of recurrent layers: rejected calls, and sequences that are too long to be expanded.

use meganeura_core::attrs::Attrs;
use meganeura_core::graph::{Graph, Value};
use meganeura_core::ops::Call;
use meganeura_core::reference::{evaluate, expand_call};
use meganeura_core::{DType, Shape, TensorType, registry};

/// Returns the message of a call on inputs of these types.
fn rejection(name: &str, operands: &[(DType, &[usize])], attrs: Attrs) -> String {
    let op = registry::ops()
        .into_iter()
        .find(|op| op.name() == name)
        .expect("registered");
    let mut graph = Graph::new();
    let operands = operands.iter().enumerate();
    let operands: Vec<Value> = operands
        .map(|(i, (dtype, shape))| graph.input_typed(&format!("operand{i}"), shape, *dtype).into())
        .collect();
    graph.call(op, attrs, operands);
    match graph.errors() {
        [error] => error.to_string(),
        other => panic!("{name}: {other:?}"),
    }
}

const F: DType = DType::F32;

type Operands<'a> = [(DType, &'a [usize])];

/// A wrong operand: its index, its type, and words of the expected message.
type Case<'a> = (usize, (DType, &'a [usize]), &'a str);

/// Returns the operands after replacing the one at an index, or appending one.
fn with<'a>(operands: &Operands<'a>, i: usize, operand: (DType, &'a [usize])) -> Vec<(DType, &'a [usize])> {
    let mut operands = operands.to_vec();
    if i < operands.len() {
        operands[i] = operand
    } else {
        operands.push(operand)
    }
    operands
}

fn rejected(name: &str, attrs: &Attrs, good: &Operands, cases: &[Case]) {
    for (i, operand, words) in cases {
        let message = rejection(name, &with(good, *i, *operand), attrs.clone());
        assert!(message.contains(words), "{name} operand {i} {operand:?}: {message}");
    }
}

#[test]
fn lstms_that_do_not_fit() {
    let attrs = Attrs::new().with("reverse", false);
    let good: [(DType, &[usize]); 4] = [(F, &[5, 2, 12]), (F, &[12, 3]), (F, &[2, 3]), (F, &[2, 3])];
    rejected(
        "core.lstm",
        &attrs,
        &good,
        &[
            (0, (F, &[5, 12]), "[steps, batch, 4 * hidden]"),
            (0, (F, &[0, 2, 12]), "at least one step"),
            (0, (F, &[5, 2, 13]), "4 * hidden"),
            (0, (DType::U32, &[5, 2, 12]), "must be floating point"),
            (1, (F, &[12, 4]), "[12, 3]"),
            (1, (DType::F16, &[12, 3]), "recurrent weight"),
            (2, (F, &[2, 4]), "initial hidden state"),
            (3, (F, &[3, 3]), "initial cell state"),
            (4, (F, &[2]), "lengths must be u32 or i32"),
            (4, (DType::U32, &[5]), "one for each sequence of the batch"),
        ],
    );
    let message = rejection("core.lstm", &good, Attrs::new());
    assert!(message.contains("reverse"), "{message}");
    let states: &[usize] = &[5, 2, 3];
    let good: [(DType, &[usize]); 6] = [
        (F, &[12, 3]),
        (F, &[5, 2, 12]),
        (F, states),
        (F, &[2, 3]),
        (F, states),
        (F, states),
    ];
    rejected(
        "core.lstm_grad",
        &attrs,
        &good,
        &[
            (2, (F, &[5, 2, 4]), "cell state after each step"),
            (3, (F, &[5, 3]), "initial cell state"),
            (4, (F, &[5, 2, 4]), "gradient of the hidden states"),
            (5, (F, &[4, 2, 3]), "gradient of the cell states"),
            (6, (F, &[5, 2, 3]), "gradient of the activations"),
            (6, (DType::I32, &[3]), "one for each sequence of the batch"),
        ],
    );
}

#[test]
fn grus_that_do_not_fit() {
    let attrs = Attrs::new().with("linear_before_reset", true).with("reverse", true);
    let good: [(DType, &[usize]); 4] = [(F, &[5, 2, 9]), (F, &[9, 3]), (F, &[3]), (F, &[2, 3])];
    rejected(
        "core.gru",
        &attrs,
        &good,
        &[
            (0, (F, &[5, 2, 8]), "3 * hidden"),
            (1, (F, &[12, 3]), "[9, 3]"),
            (2, (F, &[9]), "bias of the candidate"),
            (3, (F, &[2, 9]), "initial hidden state"),
            (4, (F, &[2]), "lengths must be u32 or i32"),
            (4, (DType::U32, &[2, 1]), "one for each sequence of the batch"),
        ],
    );
    let message = rejection("core.gru", &good, Attrs::new().with("reverse", true));
    assert!(message.contains("linear_before_reset"), "{message}");
    let good: [(DType, &[usize]); 5] = [
        (F, &[9, 3]),
        (F, &[5, 2, 12]),
        (F, &[5, 2, 3]),
        (F, &[2, 3]),
        (F, &[5, 2, 3]),
    ];
    rejected(
        "core.gru_grad",
        &attrs,
        &good,
        &[
            (1, (F, &[5, 2, 9]), "4 * hidden"),
            (2, (F, &[4, 2, 3]), "hidden state after each step"),
            (3, (F, &[3, 3]), "initial hidden state"),
            (4, (F, &[2, 3]), "gradient of the hidden states"),
            (5, (F, &[5, 2, 9]), "gradient of the activations"),
        ],
    );
}

#[test]
fn rnns_that_do_not_fit() {
    let attrs = Attrs::new().with("relu", false).with("reverse", false);
    let good: [(DType, &[usize]); 3] = [(F, &[5, 2, 3]), (F, &[3, 3]), (F, &[2, 3])];
    rejected(
        "core.rnn",
        &attrs,
        &good,
        &[
            (0, (F, &[5, 3]), "[steps, batch, 1 * hidden]"),
            (0, (F, &[0, 2, 3]), "at least one step"),
            (0, (DType::I32, &[5, 2, 3]), "must be floating point"),
            (1, (F, &[3, 4]), "[3, 3]"),
            (1, (DType::F16, &[3, 3]), "recurrent weight"),
            (2, (F, &[3, 3]), "initial hidden state"),
            (3, (F, &[2]), "lengths must be u32 or i32"),
            (3, (DType::U32, &[5]), "one for each sequence of the batch"),
        ],
    );
    let message = rejection("core.rnn", &good, Attrs::new().with("reverse", false));
    assert!(message.contains("relu"), "{message}");
    let good: [(DType, &[usize]); 3] = [(F, &[3, 3]), (F, &[5, 2, 3]), (F, &[5, 2, 3])];
    rejected(
        "core.rnn_grad",
        &attrs,
        &good,
        &[
            (0, (F, &[4, 3]), "[3, 3]"),
            (1, (DType::F16, &[5, 2, 3]), "hidden state after each step"),
            (2, (F, &[4, 2, 3]), "gradient of the hidden states"),
            (3, (F, &[2]), "lengths must be u32 or i32"),
            (3, (DType::I32, &[3]), "one for each sequence of the batch"),
        ],
    );
}

#[test]
fn long_sequences_are_not_expanded() {
    let lstm = registry::ops()
        .into_iter()
        .find(|op| op.name() == "core.lstm")
        .expect("registered");
    let expand = |steps: usize| {
        let ty = |dims: &[usize]| TensorType::new(F, Shape::new(dims).expect("a shape"));
        let inputs = [ty(&[steps, 1, 8]), ty(&[8, 2]), ty(&[1, 2]), ty(&[1, 2])];
        let attrs = Attrs::new().with("reverse", false);
        let call = Call {
            attrs: &attrs,
            inputs: &inputs,
            outputs: &[],
        };
        let outputs = lstm.infer(&call).expect("a call that fits");
        expand_call(lstm, &attrs, &inputs, &outputs)
    };
    assert!(expand(512).is_ok());
    let message = expand(513).map(|_| ()).expect_err("too long").to_string();
    assert!(
        message.contains("core.lstm has 513 steps") && message.contains("at most 512"),
        "{message}"
    );
}

#[test]
fn masks_of_sequences() {
    let mut g = Graph::new();
    let lengths = g.input_typed("lengths", &[3], DType::I32);
    let mask = g.sequence_mask(lengths, 2);
    assert_eq!(g.shape(mask), [2, 3, 1]);
    g.set_outputs(vec![mask]);
    let feeds = [("lengths".to_owned(), vec![1.0, -1.0, 7.0])].into();
    let values = evaluate(&g, &feeds).expect("evaluates");
    assert_eq!(values.get(mask).expect("a value").data, [1.0, 0.0, 1.0, 0.0, 0.0, 1.0]);
}
