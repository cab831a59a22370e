//! Tests of the results of small models on the CPU.

use super::*;

/// Returns the results of a model with the given inputs, on the CPU.
pub(super) fn results(model: &Model, inputs: &[Tensor]) -> Vec<Tensor> {
    constant_results(model, inputs, &[])
}

/// Returns the results of a model with some constants.
fn constant_results(model: &Model, inputs: &[Tensor], constants: &[(&str, Tensor)]) -> Vec<Tensor> {
    meganeura_compiler::link_plugins!(meganeura_cpu, meganeura_rules).expect("they are linked");
    let builder = meganeura_compiler::Builder::on(Arc::new(meganeura_cpu::CpuDevice::new(2)));
    let constants = constants.iter().map(|(name, t)| ((*name).to_owned(), t.clone()));
    let runner = Runner::with_constants(model, inputs, &constants.collect(), &builder);
    runner.expect("supported").run(inputs).expect("it runs")
}

#[test]
fn an_initializer_that_is_an_input_is_its_default() {
    let model = changed(|g| g.input.push(value("w", &[3, 2])));
    assert_eq!(model.defaults()[0].name, "w");
    let x = Tensor::f32(&[2, 3], vec![1.0, 0.0, 0.0, 0.0, 0.0, 1.0]);
    let found = results(&model, std::slice::from_ref(&x));
    assert_eq!(found[0].to_f32(), [1.0, 2.0, 5.0, 6.0]);
    let w = Tensor::f32(&[3, 2], vec![10.0, 20.0, 30.0, 40.0, 50.0, 60.0]);
    let found = constant_results(&model, std::slice::from_ref(&x), &[("w", w)]);
    assert_eq!(found[0].to_f32(), [10.0, 20.0, 50.0, 60.0]);
}

#[test]
fn float_initializers_of_any_size_decide_shapes() {
    let data: Vec<f32> = (0..40).map(|i| (i % 5) as f32).collect();
    let unique = changed(|g| {
        g.node = vec![
            node("Mul", "twice", &["m", "m"], &["p"]),
            node("Unique", "unique", &["p"], &["y"]),
        ];
        g.initializer = vec![floats("m", &[40], &data)];
        g.input.clear();
        g.output = vec![value("y", &[5])];
    });
    assert_eq!(results(&unique, &[])[0].to_f32(), [0.0, 1.0, 4.0, 9.0, 16.0]);
    let large: Vec<f32> = (0..100_000).map(|i| f32::from(u8::from(i == 77_777))).collect();
    let non_zero = changed(|g| {
        g.node = vec![node("NonZero", "non_zero", &["m"], &["y"])];
        g.initializer = vec![floats("m", &[100_000], &large)];
        g.input.clear();
        g.output = vec![value("y", &[1, 1])];
    });
    assert_eq!(results(&non_zero, &[])[0].to_i64(), [77_777]);
}

#[test]
fn scales_of_a_layer_norm_broadcast() {
    for (dims, scale) in [(vec![3, 1], [1.0, 10.0, 100.0]), (vec![2, 1, 1], [1.0, 10.0, 0.0])] {
        let count: i64 = dims.iter().product();
        let model = changed(|g| {
            let mut norm = node("LayerNormalization", "norm", &["x", "scale"], &["y"]);
            norm.attribute = vec![int_attribute("axis", 1)];
            g.node = vec![norm];
            g.initializer = vec![floats("scale", &dims, &scale[..count as usize])];
            g.input = vec![value("x", &[2, 3, 2])];
            g.output = vec![value("y", &[2, 3, 2])];
        });
        let row = [1.0, -1.0, 1.0, -1.0, 1.0, -1.0];
        let found = results(&model, &[Tensor::f32(&[2, 3, 2], [row, row].concat())]);
        for (i, (y, x)) in found[0].to_f32().iter().zip([row, row].concat()).enumerate() {
            let scale = if dims.len() == 2 {
                scale[i / 2 % 3]
            } else {
                scale[i / 6]
            };
            assert!((y - x * scale).abs() < 1e-3 * scale, "{i}: {y}");
        }
    }
}

#[test]
fn a_softmax_over_nothing_is_empty() {
    for op in ["Softmax", "LogSoftmax", "Hardmax"] {
        for (dims, axis) in [([0, 3], 0), ([3, 0], 1)] {
            let model = changed(|g| {
                let mut softmax = node(op, "softmax", &["x"], &["y"]);
                softmax.attribute = vec![int_attribute("axis", axis)];
                g.node = vec![softmax];
                g.initializer.clear();
                g.input = vec![value("x", &dims)];
                g.output = vec![value("y", &dims)];
            });
            let dims = dims.map(|d| d as usize);
            let found = results(&model, &[Tensor::f32(&dims, Vec::new())]);
            assert_eq!((found[0].dims(), found[0].len()), (&dims[..], 0), "{op}");
        }
    }
}

#[test]
fn loops_of_no_rounds_collect_nothing() {
    let body = GraphProto {
        node: vec![
            node("Identity", "go", &["condition"], &["going"]),
            node("Add", "add", &["v", "v"], &["next"]),
            node("Concat", "rows", &["v", "v"], &["collected"]),
        ],
        input: vec![value("i", &[]), value("condition", &[]), value("v", &[3])],
        output: vec![value("going", &[]), value("next", &[3]), value("collected", &[6])],
        ..GraphProto::default()
    };
    let mut body = body;
    body.node[2].attribute = vec![int_attribute("axis", 0)];
    let model = changed(|g| {
        let mut repeat = node("Loop", "loop", &["count", "", "x"], &["last", "all"]);
        repeat.attribute = vec![graph_attribute("body", body)];
        g.node = vec![repeat];
        g.initializer = vec![ints("count", &[0])];
        g.input = vec![value("x", &[3])];
        g.output = vec![value("last", &[3]), value("all", &[0, 6])];
    });
    let found = results(&model, &[Tensor::f32(&[3], vec![1.0, 2.0, 3.0])]);
    assert_eq!(found[0].to_f32(), [1.0, 2.0, 3.0]);
    assert_eq!((found[1].dims(), found[1].element()), (&[0, 6][..], ElementType::F32));
}

/// The size of a region determines the number of samples: one per pixel of a bin. The maximum is taken over the
/// weighted neighbours of the samples.
#[test]
fn regions_decide_their_samples() {
    for (mode, expected) in [("avg", [2.5, 7.5]), ("max", [1.25, 10.0])] {
        let model = changed(|g| {
            let mut align = node("RoiAlign", "align", &["x", "rois", "batch"], &["y"]);
            align.attribute = vec![AttributeProto {
                name: "mode".into(),
                s: mode.as_bytes().to_vec().into(),
                r#type: attribute_type::STRING,
                ..AttributeProto::default()
            }];
            g.node = vec![align];
            // The first region is one pixel between four, the second has four pixels of the lower right corner.
            g.initializer = vec![
                floats("rois", &[2, 4], &[0.5, 0.5, 1.5, 1.5, 1.0, 1.0, 3.0, 3.0]),
                ints("batch", &[0, 0]),
            ];
            g.input = vec![value("x", &[1, 1, 4, 4])];
            g.output = vec![value("y", &[2, 1, 1, 1])];
        });
        let x: Vec<f32> = (0..16).map(|i| i as f32).collect();
        let found = results(&model, &[Tensor::f32(&[1, 1, 4, 4], x)]);
        assert_eq!(found[0].to_f32(), expected, "{mode}");
    }
}

#[test]
fn integers_beyond_32_bits_are_refused_in_a_graph() {
    // The sum of constants is exact, and compared exactly.
    let exact = changed(|g| {
        let mut cast = node("Cast", "cast", &["less"], &["y"]);
        cast.attribute = vec![int_attribute("to", 1)];
        g.node = vec![
            node("Add", "add", &["a", "b"], &["sum"]),
            node("Less", "less", &["b", "sum"], &["less"]),
            cast,
        ];
        g.initializer = vec![ints("a", &[1]), ints("b", &[1 << 40])];
        g.input.clear();
        g.output = vec![value("y", &[1])];
    });
    assert_eq!(results(&exact, &[])[0].to_f32(), [1.0]);
    let (_, message) = issue(|g| {
        g.node = vec![node("Gather", "gather", &["table", "index"], &["y"])];
        g.initializer = vec![ints("table", &[1 << 40, 7])];
        let mut index = value("index", &[1]);
        if let Some(type_proto::Value::Tensor(tensor)) = index.r#type.as_mut().and_then(|t| t.value.as_mut()) {
            tensor.elem_type = 7;
        }
        g.input = vec![index];
        g.output = vec![value("y", &[1])];
    });
    assert!(
        message.contains("`table`: 1099511627776 does not fit into i32"),
        "{message}"
    );
}
