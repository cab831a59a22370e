//! Tests of the work of building a model, counted in allocated bytes: it is proportional to the size of the model. The counter
//! covers the whole process, so these tests have a separate binary.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use meganeura_compiler::Builder;
use meganeura_core::graph::{Graph, Value};

struct CountingAllocator;

static BYTES: AtomicU64 = AtomicU64::new(0);

// SAFETY: every call is forwarded to the system allocator.
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        BYTES.fetch_add(layout.size() as u64, Ordering::Relaxed);
        // SAFETY: the caller fulfils the contract of `GlobalAlloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: the caller fulfils the contract of `GlobalAlloc`.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

/// Returns the bytes that are allocated to build a graph with `count` calls.
fn work(graph: fn(&mut Graph, Value, usize), count: usize) -> u64 {
    let mut g = Graph::new();
    let x = g.input("x", &[4]);
    graph(&mut g, x.into(), count);
    let before = BYTES.load(Ordering::Relaxed);
    let builder = Builder::on(Arc::new(meganeura_cpu::CpuDevice::new(1))).inference();
    builder.build(&g).expect("a session");
    BYTES.load(Ordering::Relaxed) - before
}

/// Adds a concatenation of results of different calls.
fn concatenation(g: &mut Graph, x: Value, count: usize) {
    let parts: Vec<Value> = (0..count)
        .map(|i| {
            let factor = g.scalar_of(meganeura_core::DType::F32, i as f64);
            g.mul(x, factor).into()
        })
        .collect();
    let y = g.concat(&parts, 0);
    g.set_outputs(vec![y]);
}

/// Adds a chain of calls.
fn chain(g: &mut Graph, x: Value, count: usize) {
    let mut y = x;
    for i in 0..count {
        y = if i % 2 == 0 {
            g.add(y, x).into()
        } else {
            g.relu(y).into()
        };
    }
    g.set_outputs(vec![y]);
}

#[test]
fn work_grows_in_proportion_to_the_graph() {
    meganeura_compiler::link_plugins!(meganeura_cpu, meganeura_rules).expect("they are linked");
    for (name, graph, count) in [
        ("concatenation", concatenation as fn(&mut Graph, Value, usize), 500),
        ("chain", chain, 2000),
    ] {
        // One-time allocations are not counted.
        work(graph, 8);
        let (half, whole) = (work(graph, count), work(graph, 2 * count));
        assert!(
            whole < half * 5 / 2,
            "{name}: {half} bytes for {count} calls, {whole} for twice as many"
        );
    }
}
