//! Tests of exporting graphs and importing them again.

use std::path::Path;
use std::sync::Arc;

use meganeura_compiler::Builder;
use meganeura_core::backend::Device;
use meganeura_core::{Graph, NodeId};
use meganeura_onnx::{
    Dim, Error, ExportOptions, ImportOptions, Model, Runner, Tensor, export, export_open_batch, export_tensors,
};

fn device() -> Arc<dyn Device> {
    super::cases::device()
}

fn builder() -> Builder {
    Builder::on(device())
}

/// Returns numbers between -1 and 1, the same each time.
fn numbers(count: usize) -> Vec<f32> {
    (0..count)
        .map(|i| ((i * 7919 + 13) % 2003) as f32 / 1001.5 - 1.0)
        .collect()
}

/// Returns the results of a graph in a session, and the results of its exported file.
fn both(graph: &Graph, folder: &Path, limit: u64) -> (Vec<Vec<f32>>, Vec<Vec<f32>>) {
    let (mut session, _) = builder().inference().build(graph).expect("a session");
    let names: Vec<(String, usize)> = leaves(graph, true);
    for (name, count) in &names {
        session.set_parameter(name, &numbers(*count));
    }
    let inputs = leaves(graph, false);
    for (name, count) in &inputs {
        session.set_input(name, &numbers(*count));
    }
    session.step();
    session.wait();
    let mut ours = Vec::new();
    for (i, value) in graph.outputs().iter().enumerate() {
        let mut data = vec![0.0; graph.shape(*value).iter().product()];
        session.read_output_by_index(i, &mut data);
        ours.push(data);
    }
    let path = folder.join("graph.onnx");
    let mut values = |name: &str| names.iter().find(|(n, _)| n == name).map(|(_, count)| numbers(*count));
    let export_options = ExportOptions {
        max_inline_bytes: limit,
        ..ExportOptions::default()
    };
    export(graph, &mut values, &export_options, &path).expect("exported");
    let model = Model::open(&path).expect("a model");
    let tensors: Vec<Tensor> = model
        .inputs()
        .iter()
        .map(|port| {
            let id = graph.leaf_named(&port.name).expect("an input");
            let dims = graph.shape(id).to_vec();
            Tensor::f32(&dims, numbers(dims.iter().product()))
        })
        .collect();
    let mut runner = Runner::for_inputs(&model, &tensors, &builder()).expect("imported");
    let theirs = runner
        .run(&tensors)
        .expect("it runs")
        .iter()
        .map(Tensor::to_f32)
        .collect();
    (ours, theirs)
}

/// Returns names and sizes of parameters, or of inputs.
fn leaves(graph: &Graph, parameters: bool) -> Vec<(String, usize)> {
    let kind = |id: NodeId| {
        matches!(
            graph.nodes()[id.index()].kind,
            meganeura_core::graph::NodeKind::Parameter { .. }
        )
    };
    let named = graph
        .node_ids()
        .filter(|id| graph.nodes()[id.index()].is_named_leaf() && kind(*id) == parameters);
    named
        .map(|id| {
            let name = graph.nodes()[id.index()].name.as_deref().expect("a name").to_owned();
            (name, graph.shape(id).iter().product())
        })
        .collect()
}

fn assert_close(ours: &[Vec<f32>], theirs: &[Vec<f32>]) {
    assert_eq!(ours.len(), theirs.len());
    for (a, b) in ours.iter().zip(theirs) {
        assert_eq!(a.len(), b.len());
        for (x, y) in a.iter().zip(b) {
            assert!((x - y).abs() <= 1e-4 * (1.0 + x.abs()), "{x} and {y}");
        }
    }
}

/// Builds a block of a transformer: attention and norms have no ONNX operator, and are decomposed.
fn block() -> Graph {
    let mut g = Graph::new();
    let x = g.input("x", &[6, 16]);
    let weight = g.parameter("norm.weight", &[16]);
    let [q, k, v, o] = ["q", "k", "v", "o"].map(|name| g.parameter(name, &[16, 16]));
    let n = g.rms_norm(x, weight, 1e-5);
    let (q, k, v) = (g.matmul(n, q), g.matmul(n, k), g.matmul(n, v));
    let (q, k) = (g.rope(q, 10000.0, 8), g.rope(k, 10000.0, 8));
    let a = g.causal_attention(q, k, v, 2, 2, 8);
    let a = g.matmul(a, o);
    let h = g.add(x, a);
    let up = g.parameter("up", &[16, 32]);
    let down = g.parameter("down", &[32, 16]);
    let h2 = g.matmul(h, up);
    let act = g.gelu_tanh(h2);
    let y = g.matmul(act, down);
    let y = g.add(h, y);
    g.set_outputs(vec![y]);
    g
}

#[test]
fn a_transformer_block_computes_the_same_from_its_file() {
    let folder = tempfile::tempdir().expect("a folder");
    let (ours, theirs) = both(&block(), folder.path(), u64::MAX);
    assert_close(&ours, &theirs);
}

#[test]
fn large_weights_go_to_a_file_beside_the_model() {
    let folder = tempfile::tempdir().expect("a folder");
    let (ours, theirs) = both(&block(), folder.path(), 0);
    assert_close(&ours, &theirs);
    let beside = || {
        let entries = std::fs::read_dir(folder.path()).expect("a folder").flatten();
        let mut paths: Vec<_> = entries
            .map(|e| e.path())
            .filter(|p| p.extension().is_some_and(|e| e == "data"))
            .collect();
        assert_eq!(paths.len(), 1, "{paths:?}");
        paths.pop().expect("one")
    };
    let first = beside();
    assert!(first.metadata().expect("a file").len() > 4 * 16 * 16 * 4);
    // Other weights get a separate file, to which an existing model does not refer, and old files are removed.
    let mut others = |name: &str| {
        let graph = block();
        let node = graph.nodes().iter().find(|n| n.name.as_deref() == Some(name))?;
        Some(vec![0.5; node.outputs.first()?.numel()])
    };
    let options = ExportOptions {
        max_inline_bytes: 0,
        ..ExportOptions::default()
    };
    export(&block(), &mut others, &options, folder.path().join("graph.onnx")).expect("exported");
    assert_ne!(beside(), first);
}

#[test]
fn open_batches_have_any_size() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("open.onnx");
    let graph = |batch: usize| {
        let mut g = Graph::new();
        let x = g.input("x", &[batch, 4]);
        let w = g.parameter("w", &[4, 6]);
        let y = g.matmul(x, w);
        let y = g.reshape(y, &[batch * 2, 3]);
        let y = g.relu(y);
        let y = g.reshape(y, &[batch, 2, 3]);
        g.set_outputs(vec![y]);
        Ok(g)
    };
    let weights: Vec<f32> = (0..24_u8).map(|i| f32::from(i) / 7.0 - 1.5).collect();
    let mut values = |_: &str| Some(weights.clone());
    let options = ExportOptions {
        metadata: vec![("classes".into(), "[\"a\"]".into())],
        ..ExportOptions::default()
    };
    export_open_batch(&mut { graph }, &mut values, &options, &path).expect("exported");
    let model = Model::open(&path).expect("opened");
    let dims = model.inputs()[0].dims.clone().expect("known dimensions");
    assert!(
        matches!(&dims[..], [Dim::Name(name), Dim::Size(4)] if name == "batch"),
        "{dims:?}"
    );
    for batch in [1, 3] {
        let import = model
            .import(&ImportOptions::new(meganeura_onnx::Dims::new().bind("batch", batch)))
            .expect("imported");
        assert_eq!(import.graph.shape(import.graph.outputs()[0].node), [batch, 2, 3]);
    }

    // The batch is repeated, so that its size is a number in the file.
    let repeated = |batch: usize| {
        let mut g = Graph::new();
        let x = g.input("x", &[1, 4]);
        let y = g.expand(x, &[batch, 4]);
        g.set_outputs(vec![y]);
        Ok(g)
    };
    let error = export_open_batch(&mut { repeated }, &mut values, &options, &path).expect_err("one size");
    assert!(
        error
            .to_string()
            .contains("depends on the batch size; export the model for one"),
        "{error}"
    );
}

#[test]
fn what_cannot_be_exported_is_named() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("graph.onnx");
    let mut none = |_: &str| None;
    let error = export(&block(), &mut none, &ExportOptions::default(), &path).expect_err("no values");
    assert!(
        matches!(&error, Error::Input(m) if m.contains("`norm.weight` has no value")),
        "{error}"
    );

    let mut g = Graph::new();
    let bits = g.random_bits(&[4]);
    g.set_outputs(vec![bits]);
    let error = export(&g, &mut none, &ExportOptions::default(), &path).expect_err("random");
    assert!(
        error.to_string().contains("core.random_bits has no counterpart"),
        "{error}"
    );
    assert!(!path.exists());
}

/// Every model of the fixtures can be imported, exported, and imported again with the same results.
#[test]
fn imported_models_are_exported() {
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data");
    for (name, dims) in [
        ("convnet", [("batch", 3), ("rounds", 1)]),
        ("sequence", [("batch", 2), ("rounds", 4)]),
        ("recurrent", [("batch", 1), ("rounds", 6)]),
        // Weights of 8 bits are in words of 32 bits, which floats do not represent.
        ("quantized_ops", [("batch", 2), ("rounds", 1)]),
    ] {
        let model = Model::open(data.join(name).join("model.onnx")).expect("a model");
        let dims = dims
            .into_iter()
            .fold(meganeura_onnx::Dims::new(), |d, (n, s)| d.bind(n, s));
        let import = model.import(&ImportOptions::new(dims)).expect("supported");
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("again.onnx");
        let mut values = |name: &str| {
            import
                .parameters
                .iter()
                .find(|p| p.name == name)
                .map(|p| Tensor::clone(&p.tensor))
        };
        export_tensors(&import.graph, &mut values, &ExportOptions::default(), &path).expect("exported");
        let again = Model::open(&path).expect("a model");
        let again = again.import(&ImportOptions::default()).expect("supported");
        let shapes = |import: &meganeura_onnx::Import| -> Vec<Vec<usize>> {
            import.outputs.iter().map(|o| o.dims.clone()).collect()
        };
        assert_eq!(shapes(&import), shapes(&again), "{name}");
        let tensor = |input: &meganeura_onnx::TensorInfo| {
            let count: usize = input.dims.iter().product();
            if input.element.is_float() {
                Tensor::f32(&input.dims, numbers(count))
            } else {
                // Some of these are lengths of sequences: two with 0 and 1.
                Tensor::integers(input.element, &input.dims, (0..count as i64).map(|i| i % 11).collect())
            }
        };
        let tensors: Vec<Tensor> = import.inputs.iter().map(tensor).collect();
        let run = |import: &meganeura_onnx::Import| -> Vec<Vec<f32>> {
            let mut runner = Runner::of_import(import, &builder()).expect("a runner");
            runner
                .run(&tensors)
                .expect("it runs")
                .iter()
                .map(Tensor::to_f32)
                .collect()
        };
        assert_close(&run(&import), &run(&again));
    }
}
