//! Tests of models whose shapes depend on computed data, on the CPU.

use super::*;

fn runner(model: &Model, inputs: &[Tensor]) -> crate::Result<Runner> {
    meganeura_compiler::link_plugins!(meganeura_cpu, meganeura_rules).expect("they are linked");
    let builder = meganeura_compiler::Builder::on(Arc::new(meganeura_cpu::CpuDevice::new(2)));
    Runner::for_inputs(model, inputs, &builder)
}

/// Returns a model of some nodes with the float input `x`, of 100 elements so that it does not become a constant.
fn model(nodes: Vec<NodeProto>, initializers: Vec<TensorProto>, outputs: &[&str]) -> Model {
    changed(|g| {
        g.node = nodes;
        g.initializer = initializers;
        g.input = vec![value("x", &[100])];
        g.output = outputs.iter().map(|name| value(name, &[])).collect();
        g.output.iter_mut().for_each(|o| o.r#type = open_type());
    })
}

/// Returns the type of a float tensor of any shape.
fn open_type() -> Option<TypeProto> {
    let mut open = value("", &[]).r#type;
    if let Some(type_proto::Value::Tensor(tensor)) = open.as_mut().and_then(|t| t.value.as_mut()) {
        tensor.shape = None;
    }
    open
}

/// Returns the numbers 0 to 99, negated except for multiples of `step`.
fn numbers(step: usize) -> Tensor {
    let sign = |i: usize| if i.is_multiple_of(step) { 1.0 } else { -1.0 };
    Tensor::f32(&[100], (0..100).map(|i| sign(i) * i as f32).collect())
}

/// Returns a model with three results: `y` contains the positive elements of `relu(x)`, `total` is their sum, and
/// `twice` is `2 x`.
fn positive() -> Model {
    model(
        vec![
            node("Relu", "relu", &["x"], &["r"]),
            node("Add", "double", &["x", "x"], &["twice"]),
            node("NonZero", "find", &["r"], &["at"]),
            node("Transpose", "turn", &["at"], &["indices"]),
            node("GatherND", "take", &["r", "indices"], &["y"]),
            node("ReduceSum", "sum", &["y"], &["total"]),
        ],
        vec![],
        &["y", "total", "twice"],
    )
}

#[test]
fn a_number_of_elements_may_depend_on_results() {
    let mut runner = runner(&positive(), &[numbers(10)]).expect("supported");
    assert_eq!(runner.stages(), 2);
    assert_eq!(runner.outputs()[0].dims, [9]);
    for step in [10, 25, 10] {
        let found = runner.run(&[numbers(step)]).expect("it runs");
        let wanted: Vec<f32> = (1..100).filter(|i| i % step == 0).map(|i| i as f32).collect();
        assert_eq!(found[0].to_f32(), wanted);
        assert_eq!(found[0].dims(), [wanted.len()]);
        assert_eq!(runner.outputs()[0].dims, [wanted.len()]);
        assert_eq!(found[1].to_f32(), [wanted.iter().sum::<f32>()]);
        assert_eq!(found[2].to_f32()[99], -198.0);
    }
    let error = runner
        .run(&[Tensor::f32(&[3], vec![0.0; 3])])
        .expect_err("another shape");
    assert!(error.to_string().contains("[100]"), "{error}");
}

#[test]
fn stages_follow_each_other() {
    // Shapes depend on data twice: by the number of positive elements, and by the largest of them, the length of a
    // range.
    let nodes = vec![
        node("Relu", "relu", &["x"], &["r"]),
        node("NonZero", "find", &["r"], &["at"]),
        node("Transpose", "turn", &["at"], &["indices"]),
        node("GatherND", "take", &["r", "indices"], &["positive"]),
        node("ReduceMax", "max", &["positive"], &["most"]),
        node("Reshape", "flat", &["most", "none"], &["scalar"]),
        node("Range", "range", &["zero", "scalar", "one"], &["range"]),
        node("Add", "shift", &["range", "one"], &["y"]),
    ];
    let scalar = |name: &str, v: f32| floats(name, &[], &[v]);
    let none = TensorProto {
        dims: vec![0],
        ..ints("none", &[])
    };
    let model = model(nodes, vec![none, scalar("zero", 0.0), scalar("one", 1.0)], &["y"]);
    let mut runner = runner(&model, &[numbers(30)]).expect("supported");
    assert_eq!(runner.stages(), 3);
    let found = runner.run(&[numbers(30)]).expect("it runs");
    assert_eq!(found[0].to_f32(), (1..=90).map(|i| i as f32).collect::<Vec<_>>());
}

#[test]
fn nothing_may_be_found() {
    let negative = Tensor::f32(&[100], vec![-1.0; 100]);
    let mut runner = runner(&positive(), std::slice::from_ref(&negative)).expect("supported");
    let found = runner.run(&[negative]).expect("it runs");
    assert_eq!(found[0].dims(), [0]);
    assert_eq!(found[1].to_f32(), [0.0]);
    assert_eq!(runner.run(&[numbers(50)]).expect("it runs")[0].to_f32(), [50.0]);
}

#[test]
fn other_problems_are_reported_as_ever() {
    let mut nodes = positive().proto.graph.expect("a graph").node;
    nodes.push(node("Unheard", "odd", &["y"], &["z"]));
    let model = model(nodes, vec![], &["z"]);
    let error = runner(&model, &[numbers(10)]).expect_err("not supported").to_string();
    assert!(error.contains("Unheard"), "{error}");
}

#[test]
fn random_numbers_have_their_mean_and_deviation() {
    let attribute = |name: &str, f: f32| AttributeProto {
        name: name.into(),
        r#type: 1,
        f,
        ..AttributeProto::default()
    };
    let mut normal = node("RandomNormalLike", "normal", &["wide"], &["y"]);
    normal.attribute = vec![attribute("mean", 2.0), attribute("scale", 3.0)];
    let mut uniform = node("RandomUniformLike", "uniform", &["wide"], &["z"]);
    uniform.attribute = vec![attribute("low", -1.0), attribute("high", 3.0)];
    let nodes = vec![node("Expand", "widen", &["x", "shape"], &["wide"]), normal, uniform];
    let model = model(nodes, vec![ints("shape", &[500, 100])], &["y", "z"]);
    let mut runner = runner(&model, &[numbers(1)]).expect("supported");
    let first = runner.run(&[numbers(1)]).expect("it runs");
    let moments = |t: &Tensor| {
        let data = t.to_f64();
        let mean = data.iter().sum::<f64>() / data.len() as f64;
        let variance = data.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / data.len() as f64;
        (mean, variance.sqrt())
    };
    // Six standard errors of 50,000 numbers.
    let near = |found: f64, wanted: f64, deviation: f64| (found - wanted).abs() < 6.0 * deviation / 50_000f64.sqrt();
    let (mean, deviation) = moments(&first[0]);
    assert!(near(mean, 2.0, 3.0) && near(deviation, 3.0, 3.0), "{mean} {deviation}");
    let (mean, deviation) = moments(&first[1]);
    let wanted = 4.0 / 12f64.sqrt();
    assert!(
        near(mean, 1.0, wanted) && near(deviation, wanted, wanted),
        "{mean} {deviation}"
    );
    let in_range = |v: &f32| (-1.0..=3.0).contains(v);
    assert!(first[1].to_f32().iter().all(in_range));
    let second = runner.run(&[numbers(1)]).expect("it runs");
    assert_ne!(first[0], second[0], "each step has its own numbers");
}
