//! Tests of models that several threads run with inputs of any size.

use std::path::PathBuf;
use std::thread;

use meganeura_compiler::Builder;
use meganeura_cpu as _;
use meganeura_onnx::{Dim, ElementType, Model, Runner, SharedRunner, Tensor};

fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/data")
}

fn builder() -> Builder {
    Builder::new().device("cpu")
}

/// Returns an input for each port of a model, with this size of its open dimensions.
fn inputs(model: &Model, size: usize) -> Vec<Tensor> {
    let one = |port: &meganeura_onnx::Port| {
        let dims = port.dims.iter().flatten().map(|dim| match dim {
            Dim::Size(size) => *size,
            _ => size,
        });
        let dims: Vec<usize> = dims.collect();
        let count: usize = dims.iter().product();
        let data: Vec<f64> = (0..count).map(|i| ((i * 7 + size) % 13) as f64 / 13.0 - 0.4).collect();
        assert!(port.element.is_float());
        Tensor::floats(ElementType::F32, &dims, data)
    };
    model.inputs().iter().map(one).collect()
}

#[test]
fn threads_share_the_weights_and_bring_any_batch() {
    let model = Model::open(folder().join("convnet/model.onnx")).expect("a model");
    let runner = SharedRunner::new(&model, &builder()).expect("a runner");
    let expected: Vec<Vec<f32>> = (1..9)
        .map(|size| {
            let inputs = inputs(&model, size);
            let mut alone = Runner::for_inputs(&model, &inputs, &builder()).expect("a runner");
            alone.run(&inputs).expect("it runs").remove(0).to_f32()
        })
        .collect();
    thread::scope(|scope| {
        for start in 0..8 {
            let (runner, model, expected) = (runner.clone(), &model, &expected);
            scope.spawn(move || {
                for size in (1..9).map(|round| (start + round) % 8 + 1) {
                    let results = runner.run(&inputs(model, size)).expect("it runs");
                    assert_eq!(results[0].to_f32(), expected[size - 1], "{size}");
                }
            });
        }
    });
    assert!(runner.shared_bytes() > 0);
}

#[test]
fn wrong_inputs_are_refused_and_the_next_run_works() {
    let model = Model::open(folder().join("convnet/model.onnx")).expect("a model");
    let runner = SharedRunner::new(&model, &builder()).expect("a runner");
    assert!(runner.run(&[]).is_err());
    assert!(runner.run(&[Tensor::f32(&[1, 2], vec![0.0; 2])]).is_err());
    assert!(runner.run(&inputs(&model, 3)).is_ok());
    assert!(runner.run(&[]).is_err());
}
