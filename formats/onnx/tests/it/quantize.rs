//! Tests of quantization after training.

use std::path::Path;

use meganeura_compiler::Builder;
use meganeura_onnx::{Error, ImportOptions, Model, QuantizeOptions, Quantizer, Runner, Tensor};

use super::fixtures::arrays;

fn data(name: &str) -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(name)
}

/// Returns samples like an input: each is the input times a factor.
fn samples(input: &Tensor) -> Vec<Vec<Tensor>> {
    let factors = [1.0, -0.8, 0.5, 0.9];
    let scaled = |f: f32| input.to_f32().iter().map(|x| x * f).collect();
    factors
        .into_iter()
        .map(|f| vec![Tensor::f32(input.dims(), scaled(f))])
        .collect()
}

fn quantized(model: &Model, samples: &[Vec<Tensor>], options: &QuantizeOptions) -> (Model, usize) {
    let builder = Builder::on(super::cases::device());
    let mut quantizer = Quantizer::new(model, &builder).expect("something to quantize");
    for inputs in samples {
        quantizer.calibrate(inputs).expect("it runs");
    }
    let (model, report) = quantizer.finish(options).expect("a model");
    assert!(report.weight_bytes[1] * 3 < report.weight_bytes[0], "{report}");
    (model, report.quantized)
}

fn results(model: &Model, inputs: &[Tensor]) -> Vec<Tensor> {
    let builder = Builder::on(super::cases::device());
    let mut runner = Runner::for_inputs(model, inputs, &builder).expect("supported");
    runner.run(inputs).expect("it runs")
}

#[test]
fn quantized_models_have_products_of_bytes_and_similar_results() {
    let model = Model::open(data("convnet/model.onnx")).expect("a model");
    let input = &arrays(&data("convnet"), "input")[0];
    let samples = samples(input);
    for per_channel in [true, false] {
        let mut options = QuantizeOptions::default();
        options.per_channel = per_channel;
        let (small, count) = quantized(&model, &samples, &options);
        assert_eq!(count, 2);
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("small.onnx");
        small.save(&path).expect("a file");
        let small = Model::open(&path).expect("the written model");
        let dims = small.dims_of([("x", input.dims())]).expect("dimensions");
        let graph = small.import(&ImportOptions::new(dims)).expect("supported").graph;
        let names: Vec<&str> = graph
            .nodes()
            .iter()
            .filter_map(|n| n.op())
            .map(|(op, _)| op.name())
            .collect();
        assert!(
            names.contains(&"core.int8_conv2d") && names.contains(&"core.int8_matmul"),
            "{names:?}"
        );
        for inputs in &samples {
            let [wanted, found] = [&model, &small].map(|m| results(m, inputs)[0].to_f64());
            let signal: f64 = wanted.iter().map(|a| a * a).sum();
            let noise: f64 = wanted.iter().zip(&found).map(|(a, b)| (a - b) * (a - b)).sum();
            assert!(noise < 1e-3 * signal, "{noise} of {signal}");
            assert!(noise > 0.0, "nothing was rounded");
        }
    }
}

#[test]
fn percentiles_clamp_outliers() {
    let model = Model::open(data("convnet/model.onnx")).expect("a model");
    let mut samples = samples(&arrays(&data("convnet"), "input")[0]);
    let mut outlier = samples[0][0].to_f32();
    outlier[0] = 1e4;
    samples.push(vec![Tensor::f32(samples[0][0].dims(), outlier)]);
    let noise = |percentile: f64| {
        let mut options = QuantizeOptions::default();
        options.percentile = percentile;
        let (small, _) = quantized(&model, &samples, &options);
        let [wanted, found] = [&model, &small].map(|m| results(m, &samples[0])[0].to_f64());
        wanted.iter().zip(&found).map(|(a, b)| (a - b) * (a - b)).sum::<f64>()
    };
    assert!(100.0 * noise(99.0) < noise(100.0));
}

#[test]
fn what_cannot_be_quantized_is_an_error() {
    let builder = Builder::on(super::cases::device());
    let model = Model::open(data("distances/model.onnx")).expect("a model");
    let error = Quantizer::new(&model, &builder).expect_err("nothing to quantize");
    assert!(
        error.to_string().contains("no convolution or matrix product"),
        "{error}"
    );
    let model = Model::open(data("convnet/model.onnx")).expect("a model");
    let quantizer = Quantizer::new(&model, &builder).expect("something to quantize");
    let error = quantizer.finish(&QuantizeOptions::default()).expect_err("no samples");
    assert!(error.to_string().contains("expected samples"), "{error}");
    let mut quantizer = Quantizer::new(&model, &builder).expect("something to quantize");
    let wrong = Tensor::f32(&[1, 1, 8, 8], vec![f32::NAN; 64]);
    let error = quantizer.calibrate(&[wrong]).expect_err("numbers that are not finite");
    assert!(matches!(&error, Error::Input(m) if m.contains("not finite")), "{error}");
    let mut options = QuantizeOptions::default();
    options.percentile = 20.0;
    quantizer
        .calibrate(&samples(&arrays(&data("convnet"), "input")[0])[0])
        .expect("it runs");
    let error = quantizer.finish(&options).expect_err("a percentile out of range");
    assert!(error.to_string().contains("from 50 to 100"), "{error}");
}
