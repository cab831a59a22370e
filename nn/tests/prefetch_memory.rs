//! Test that steps do not cost memory: it counts the bytes in use at every step of a run with prefetched, augmented
//! batches.
//!
//! A single test, because the counter covers the whole process.
// A separate binary: its allocator measures the memory of the whole process.

mod common;

use std::alloc::{GlobalAlloc, Layout, System};
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use common::{config, flat_digits, head, linear_model};
use meganeura_nn::data::Augmentation;
use meganeura_nn::trainer::{Observer, StepInfo, TrainConfig, Trainer};

struct CountingAllocator;

/// Bytes in use.
static LIVE: AtomicUsize = AtomicUsize::new(0);

// SAFETY: every call is forwarded to the system allocator unchanged.
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        LIVE.fetch_add(layout.size(), Relaxed);
        // SAFETY: the caller fulfils the contract of `System.alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        LIVE.fetch_sub(layout.size(), Relaxed);
        // SAFETY: `pointer` came from `System.alloc` with this layout.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

/// Bytes in use after each step, stored in preallocated memory.
struct Meter(Vec<usize>);

impl Observer for Meter {
    fn on_step(&mut self, _: &StepInfo) -> ControlFlow<()> {
        self.0.push(LIVE.load(Relaxed));
        ControlFlow::Continue(())
    }
}

#[test]
fn memory_does_not_grow_with_the_steps() {
    let (train, _) = flat_digits();
    let train = head(&train, 640);
    for prefetch in [0, 3] {
        let config = TrainConfig {
            epochs: 20,
            loss_every: 1,
            augmentation: Augmentation::new().noise(0.1),
            prefetch,
            ..config()
        };
        let mut trainer = Trainer::new(linear_model, config).expect("builds");
        let mut meter = Meter(Vec::with_capacity(400));
        trainer.fit(&train, None, &mut meter).expect("trains");
        let most = |steps: &[usize]| steps.iter().copied().max().unwrap_or_default();
        // All buffers are filled within the first epochs; the order of an epoch takes 5 KiB for some time.
        let (early, late) = (most(&meter.0[..80]), most(&meter.0[80..]));
        assert_eq!(meter.0.len(), 400);
        assert!(late <= early + 1024, "{early} and {late} with {prefetch}");
    }
}
