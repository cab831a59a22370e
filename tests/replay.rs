//! Test that replaying a plan allocates nothing, and that its results do not depend on the number of threads.
// A separate binary: its allocator counts the allocations of the whole process.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use meganeura::backend::Device;
use meganeura::builder::Builder;
use meganeura::cpu::CpuDevice;
use meganeura::nn::models::{cnn_classifier, mlp_classifier};
use meganeura::{Adam, GradientClip, Graph, ParameterGroup, Session, Update};

/// Allocator that counts the allocations of the whole process.
struct CountingAllocator;

static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

// SAFETY: forwards to the system's allocator; counting has no other effect.
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: forwarded.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: forwarded.
        unsafe { System.dealloc(pointer, layout) }
    }
    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: forwarded.
        unsafe { System.realloc(pointer, layout, size) }
    }
}

#[global_allocator]
static GLOBAL: CountingAllocator = CountingAllocator;

fn session(graph: &Graph, threads: usize) -> Session {
    let device: Arc<dyn Device> = Arc::new(CpuDevice::new(threads));
    let update = Update::new(Adam::adamw(1e-3, 0.01))
        .clip(GradientClip::Norm(1.0))
        .accumulate(2)
        .group(ParameterGroup::new(["*.bias"]).weight_decay(0.0));
    let (mut session, _) = Builder::on(device).optimizer(update).build(graph).expect("builds");
    session.initialize_parameters(3);
    session
}

fn feed(session: &mut Session, images: usize, labels: usize) {
    let x: Vec<f32> = (0..images).map(|i| ((i * 37 % 101) as f32) / 101.0).collect();
    let ids: Vec<u32> = (0..labels as u32).map(|i| i % 10).collect();
    session.set_input("x", &x);
    session.set_input_u32("labels", &ids);
}

// A single test, because other tests would allocate at the same time.
#[test]
fn steps_allocate_nothing_and_agree_for_every_number_of_threads() {
    let mlp = mlp_classifier(32, 64, 10);
    let cnn = cnn_classifier(8, [1, 8, 8], 10);
    for (graph, images, labels) in [(&mlp, 32 * 64, 32), (&cnn, 8 * 64, 8)] {
        let mut losses = Vec::new();
        for threads in [1, 2, 3] {
            let mut s = session(graph, threads);
            feed(&mut s, images, labels);
            // One update.
            s.step();
            s.step();
            let x: Vec<f32> = vec![0.25; images];
            let mut six_steps = || {
                let before = ALLOCATIONS.load(Ordering::SeqCst);
                for _ in 0..6 {
                    s.set_input("x", &x);
                    s.adjust_learning_rate(1e-3);
                    s.step();
                    s.wait();
                    s.read_loss();
                }
                ALLOCATIONS.load(Ordering::SeqCst) - before
            };
            // A thread of the pool allocates when it starts, which on a busy machine is later than its first work.
            let rounds: Vec<u64> = (0..5).map(|_| six_steps()).collect();
            assert!(
                rounds.contains(&0),
                "{threads} threads: {rounds:?} allocations in six steps"
            );
            feed(&mut s, images, labels);
            s.step();
            let weights: Vec<u32> = s
                .plan()
                .parameters()
                .iter()
                .flat_map(|p| s.read_parameter(&p.name))
                .map(f32::to_bits)
                .collect();
            losses.push((s.read_loss().to_bits(), weights));
        }
        assert!(
            losses.windows(2).all(|w| w[0] == w[1]),
            "results depend on the number of threads"
        );
    }
}
