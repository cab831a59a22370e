//! Tests of concurrent sessions on two devices, each in a separate thread.

use std::sync::{Arc, Barrier};

use meganeura::backend::Device;
use meganeura::builder::Builder;
use meganeura::config::Config;
use meganeura::cpu::CpuDevice;
use meganeura::{Adam, Graph, select};

const STEPS: usize = 25;

fn graph() -> Graph {
    let mut g = Graph::new();
    let x = g.input("x", &[16, 12]);
    let labels = g.input_u32("labels", &[16]);
    let w1 = g.parameter("w1", &[12, 20]);
    let w2 = g.parameter("w2", &[20, 4]);
    let h = g.matmul(x, w1);
    let h = g.tanh(h);
    let logits = g.matmul(h, w2);
    let loss = g.cross_entropy_loss(logits, labels);
    g.set_outputs(vec![loss]);
    g
}

fn spread(count: usize, seed: usize) -> Vec<f32> {
    (0..count).map(|i| ((i * 7 + seed) % 11) as f32 / 11.0 - 0.5).collect()
}

/// Trains on a device, and returns the losses. Every step begins at the same time as the steps of the other sessions.
fn train(device: &Arc<dyn Device>, together: &Barrier) -> Vec<f32> {
    let built = Builder::on(device.clone()).optimizer(Adam::new(0.01)).build(&graph());
    let (mut session, _) = built.expect("a session");
    session.set_parameter("w1", &spread(240, 1));
    session.set_parameter("w2", &spread(80, 2));
    let labels: Vec<u32> = (0..16).map(|i| i % 4).collect();
    session.set_input_u32("labels", &labels);
    let step = |step: usize| {
        together.wait();
        session.set_input("x", &spread(192, step % 5));
        session.step();
        session.read_loss()
    };
    (0..STEPS).map(step).collect()
}

/// Returns the first Vulkan or Metal device, if there is one.
fn gpu() -> Option<Arc<dyn Device>> {
    let config = Config::default();
    let selected = select::select(Some("blade"), &config).ok();
    assert!(
        selected.is_some() || std::env::var("MEGANEURA_REQUIRE_VULKAN").as_deref() != Ok("1"),
        "no Vulkan device"
    );
    Some(selected?.open(&config).expect("it opens"))
}

#[test]
fn two_devices_and_four_threads_work_side_by_side() {
    let cpu: Arc<dyn Device> = Arc::new(CpuDevice::new(2));
    let alone = train(&cpu, &Barrier::new(1));
    // Without a GPU, another CPU device.
    let other = gpu().unwrap_or_else(|| Arc::new(CpuDevice::new(1)));
    let devices = [&cpu, &other, &cpu, &other];
    let together = Barrier::new(devices.len());
    let losses: Vec<Vec<f32>> = std::thread::scope(|scope| {
        let threads: Vec<_> = devices.map(|device| scope.spawn(|| train(device, &together))).into();
        threads.into_iter().map(|t| t.join().expect("no panic")).collect()
    });
    assert_eq!([&losses[0], &losses[2]], [&alone; 2], "as if alone");
    assert_eq!(losses[1], losses[3]);
    for (a, b) in alone.iter().zip(&losses[1]) {
        assert!((a - b).abs() < 1e-4, "{a} {b}");
    }
}

/// A model folder that is written on one device and read on another one is written there with identical bytes.
#[test]
fn a_model_folder_goes_from_device_to_device_bit_for_bit() {
    use meganeura::nn::model::{Architecture, Loss, Model, Preprocessing, Task};

    let Some(gpu) = gpu() else {
        println!("VULKAN-NOT-TESTED: no Vulkan device");
        return;
    };
    // Batch norms have states as well as parameters.
    let architecture = Architecture::resnet18([1, 8, 8], true, 3);
    let task = Task::Classification {
        target: "kind".into(),
        classes: ["a", "b", "c"].map(str::to_owned).to_vec(),
    };
    let graph = architecture.training_graph(4, Loss::Classes).expect("a graph");
    let cpu: Arc<dyn Device> = Arc::new(CpuDevice::new(2));
    let session_on = |device: &Arc<dyn Device>| {
        let built = Builder::on(device.clone()).optimizer(Adam::new(0.01)).build(&graph);
        built.expect("a session").0
    };
    let folder = tempfile::tempdir().expect("a folder");
    let save = |session: &mut meganeura::Session, name: &str| -> Vec<u8> {
        let preprocessing = Preprocessing::Array { scale: None };
        let model = Model::from_session(session, architecture.clone(), task.clone(), preprocessing).expect("a model");
        let path = folder.path().join(name);
        model.save(&path).expect("writable");
        std::fs::read(path.join("model.safetensors")).expect("weights")
    };
    for (first, second) in [(&cpu, &gpu), (&gpu, &cpu)] {
        let mut session = session_on(first);
        session.initialize_parameters(3);
        session.set_input("x", &spread(4 * 64, 1));
        session.set_input_u32("labels", &[0, 1, 2, 0]);
        session.step();
        session.wait();
        let written = save(&mut session, "first");
        let model = Model::load(folder.path().join("first")).expect("readable");
        let mut other = session_on(second);
        model.load_into(&mut other).expect("the same tensors");
        assert!(written == save(&mut other, "second"), "the weights changed on the way");
    }
}
