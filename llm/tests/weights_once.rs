//! Test that a generator stores its weights and caches in memory only once, with little overhead, by its forecast and
//! by a measurement.
// A separate binary: its allocator measures the memory of the whole process.

use std::alloc::{GlobalAlloc, Layout, System};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use meganeura_core::random::SplitMix64;
use meganeura_cpu::CpuDevice;
use meganeura_llm::{Checkpoint, Generator, GeneratorOptions, ModelConfig, Projections, Request};
use meganeura_nn::layers::WeightStorage;
use meganeura_nn::models::LlamaConfig;
use safetensors::tensor::{Dtype, TensorView};

/// Allocator that counts the current and maximum bytes of the process.
struct CountingAllocator;

static NOW: AtomicUsize = AtomicUsize::new(0);
static MAX: AtomicUsize = AtomicUsize::new(0);

// SAFETY: forwards to the system's allocator; counting has no other effect.
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let now = NOW.fetch_add(layout.size(), Ordering::Relaxed) + layout.size();
        MAX.fetch_max(now, Ordering::Relaxed);
        // SAFETY: forwarded.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        NOW.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: forwarded.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static GLOBAL: CountingAllocator = CountingAllocator;

const ROWS: usize = 512;
const MODEL: LlamaConfig = LlamaConfig {
    dim: 448,
    layers: 10,
    heads: 7,
    kv_heads: 7,
    hidden: 1216,
    ..LlamaConfig::small(2000)
};

/// Writes a checkpoint with random weights; returns the number of weights in matrices, and of others.
fn write(folder: &std::path::Path) -> [usize; 2] {
    let graph = MODEL.decode_graph(&[], 1, ROWS, meganeura_nn::models::LogitsOf::AllRows);
    let mut rng = SplitMix64::new(1);
    let mut tensors: Vec<(String, Vec<usize>, Vec<u8>)> = Vec::new();
    for node in graph.nodes().iter().filter(|n| n.is_named_leaf()) {
        let name = node.name.as_deref().unwrap_or_default().to_owned();
        if !name.ends_with(".weight") {
            continue;
        }
        let mut shape = node.outputs[0].shape.to_vec();
        if !name.contains("embed") {
            shape.reverse();
        }
        let count = shape.iter().product::<usize>();
        let bytes = (0..count).flat_map(|_| half::bf16::from_f64(0.02 * rng.normal()).to_le_bytes());
        tensors.push((name, shape, bytes.collect()));
    }
    let views = tensors.iter().map(|(name, shape, bytes)| {
        let view = TensorView::new(Dtype::BF16, shape.clone(), bytes).expect("a tensor");
        (name, view)
    });
    let file = folder.join("model.safetensors");
    safetensors::serialize_to_file(views, None::<HashMap<String, String>>, &file).expect("written");
    [true, false].map(|is_matrix| {
        let counted = tensors.iter().filter(|(_, shape, _)| (shape.len() == 2) == is_matrix);
        counted.map(|(_, shape, _)| shape.iter().product::<usize>()).sum()
    })
}

/// Returns the bytes of such weights: blocks of 32 numbers have a 16-bit scale.
fn bytes([in_matrices, others]: [usize; 2], storage: WeightStorage) -> usize {
    let matrices = match storage {
        WeightStorage::Q8 => in_matrices / 32 * 34,
        _ => in_matrices * size_of::<f32>(),
    };
    matrices + others * size_of::<f32>()
}

// A single test, because other tests would allocate at the same time.
#[test]
fn memory_is_that_of_weights_and_caches() {
    let folder = tempfile::tempdir().expect("a folder");
    let weights = write(folder.path());
    for storage in [WeightStorage::F32, WeightStorage::Q8] {
        generate(folder.path(), storage, bytes(weights, storage));
    }
}

/// Generates with weights of this size, and checks the memory.
fn generate(folder: &std::path::Path, storage: WeightStorage, weights: usize) {
    let caches = 2 * MODEL.layers * ROWS * MODEL.kv_width() * size_of::<f32>();
    let config = ModelConfig {
        network: MODEL,
        context: ROWS,
        stop: Vec::new(),
        sampling: Default::default(),
        projections: Projections::Separate,
    };
    // Like a user of the command: with plans from an earlier run.
    let options = GeneratorOptions {
        plans: Some(folder.to_owned()),
        weights: Some(storage),
        ..GeneratorOptions::default()
    };
    let run = || {
        let checkpoint = Checkpoint::open(folder).expect("weights");
        let device = Arc::new(CpuDevice::new(2));
        let mut generator = Generator::on(device, config.clone(), checkpoint, &options).expect("a generator");
        let prompt: Vec<u32> = (0..100).map(|i| i * 17 % 2000).collect();
        let request = Request {
            max_tokens: 5,
            ..Request::default()
        };
        let generation = generator.generate(&prompt, &request).expect("it begins");
        let tokens: Vec<u32> = generation.map(|token| token.expect("a token")).collect();
        (tokens, generator.memory_forecast().expect("a session"))
    };
    let (tokens, _) = run();
    let before = NOW.load(Ordering::Relaxed);
    MAX.store(before, Ordering::Relaxed);
    let (again, forecast) = run();
    assert_eq!(again, tokens);
    let measured = MAX.load(Ordering::Relaxed) - before;
    let wanted = weights + caches;
    println!(
        "{storage:?}: weights {weights}, caches {caches}, forecast {}, measured {measured}",
        forecast.planned
    );
    assert!(
        forecast.parameters >= wanted && measured >= wanted,
        "{storage:?}: something was not counted"
    );
    for (what, bytes) in [("the forecast", forecast.planned), ("what was measured", measured)] {
        assert!(
            bytes * 5 <= wanted * 6,
            "{storage:?}: {what}, {bytes}, is more than 1.2 times {wanted}"
        );
    }
}
