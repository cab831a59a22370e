//! Tests of key-value caches. They are written in place, and the capacity does not change the cost of a step.

use std::sync::Arc;

use meganeura_compiler::builder::Builder;
use meganeura_core::backend::Device;
use meganeura_core::{Error, Graph, Session};
use meganeura_cpu::CpuDevice;

const LAYERS: usize = 3;

/// Returns the graph of a decoding step over several layers. The position is an input, or is computed.
fn decoder(capacity: usize, computed: bool) -> Graph {
    let mut g = Graph::new();
    let mut position = g.input_u32("position", &[1]);
    if computed {
        let one = g.constant_u32(vec![1], &[1]);
        position = g.add(position, one);
    }
    let mut x = g.input("x", &[1, 8]);
    for i in 0..LAYERS {
        let [k, v] = ["k", "v"].map(|which| g.parameter(&format!("kv_cache.layer.{i}.{which}"), &[capacity, 4]));
        let new = g.slice(x, &[0, 0], &[1, 4]);
        let k = g.cache_write(new, k, position);
        let v = g.cache_write(new, v, position);
        let y = g.cached_attention(x, k, v, position, 2, 1, 4);
        x = g.add(x, y);
    }
    g.set_outputs(vec![x]);
    g
}

fn session(capacity: usize, computed: bool) -> Session {
    let device: Arc<dyn Device> = Arc::new(CpuDevice::new(2));
    let graph = decoder(capacity, computed);
    Builder::on(device).inference().build(&graph).expect("a session").0
}

#[test]
fn caches_are_written_where_they_are() {
    for capacity in [16, 4096] {
        let session = session(capacity, false);
        let plan = session.plan();
        let copies = plan
            .dispatches
            .iter()
            .filter(|d| d.kernel.name == "core.assign")
            .count();
        assert_eq!(copies, 0, "{plan}");
        let writes = plan.dispatches.iter().filter(|d| d.kernel.name == "core.cache_write");
        let mut count = 0;
        for write in writes {
            assert_eq!(write.inputs[1].buffer, write.outputs[0].buffer, "{plan}");
            count += 1;
        }
        assert_eq!(count, 2 * LAYERS);
        // Positions in inputs are checked before the step, so the step saves no state.
        let fed = plan.host_indices();
        assert_eq!(fed.len(), 3 * LAYERS);
        assert!(fed.iter().all(|f| f.bound == capacity && f.count == 1));
        let others = |i: usize| plan.dispatches[i].index_bound().is_some() && !fed.iter().any(|f| f.dispatch == i);
        assert_eq!(plan.exposed_to_faults(&others), []);
    }
}

#[test]
fn positions_are_checked_wherever_they_come_from() {
    for computed in [false, true] {
        let mut session = session(5, computed);
        let last = if computed { 3 } else { 4 };
        session.set_input("x", &[0.5; 8]);
        for position in 0..=last {
            session.set_input_u32("position", &[position]);
            session.step();
        }
        let read = |session: &mut Session| {
            let names = (0..LAYERS).flat_map(|i| ["k", "v"].map(|which| format!("kv_cache.layer.{i}.{which}")));
            names.map(|name| session.read_parameter(&name)).collect::<Vec<_>>()
        };
        let before = read(&mut session);
        session.set_input_u32("position", &[last + 1]);
        session.set_input("x", &[9.0; 8]);
        match session.try_step() {
            Err(Error::IndexOutOfRange { index: 5, rows: 5, .. }) => {}
            other => panic!("{other:?}"),
        }
        assert_eq!(read(&mut session), before);
    }
}

#[test]
fn turned_keys_go_straight_into_their_cache() {
    let mut g = Graph::new();
    let position = g.input_u32("position", &[1]);
    let k = g.input("k", &[1, 8]);
    let cache = g.parameter("cache", &[9, 8]);
    let turned = g.rope_dynamic_offset(k, 100.0, position, 4);
    let written = g.cache_write(turned, cache, position);
    g.set_outputs(vec![written]);
    let device: Arc<dyn Device> = Arc::new(CpuDevice::new(2));
    let session = Builder::on(device).inference().build(&g).expect("a session").0;
    let plan = session.plan();
    let write = plan
        .dispatches
        .iter()
        .find(|d| d.kernel.name == "core.rope_cache_write")
        .unwrap_or_else(|| panic!("{plan}"));
    assert_eq!(write.inputs[1].buffer, write.outputs[0].buffer, "{plan}");
}
