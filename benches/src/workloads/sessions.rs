//! Workloads of the overhead of sessions: building, opening, replay and transfers.

use super::adamw;
use crate::{Sizes, Suite, Task, Workload};
use meganeura::nn::models::{LlamaConfig, language_model, mlp_classifier};
use meganeura::{Graph, Mode};

/// Name of a model, and function that builds its graph.
type Model = (&'static str, fn() -> Graph);

pub(super) fn session(sizes: Sizes) -> Vec<Workload> {
    let mlp: Model = ("mlp, training", || mlp_classifier(32, 784, 10));
    let small: Model = ("llama of 4 blocks, training", || {
        let config = LlamaConfig::small(1000);
        language_model(1, 32, |g, tokens| config.build(g, "").forward(g, tokens))
    });
    let smollm2: Model = ("smollm2-135m, training", || {
        let config = LlamaConfig::smollm2_135m();
        language_model(1, 128, |g, tokens| config.build(g, "").forward(g, tokens))
    });
    let models = sizes.pick([mlp, small], [mlp, smollm2], [mlp, smollm2]);
    let tasks = [
        ("plan is made", Task::Build),
        ("plan is read from its file", Task::CachedBuild),
        ("session is opened for its plan", Task::Open),
    ];
    let mut workloads: Vec<Workload> = Vec::new();
    for (name, graph) in models {
        workloads.extend(tasks.map(|(what, task)| {
            Workload::of(Suite::Session, format!("{name}: {what}"), Mode::Training, graph)
                .updating(adamw())
                .timing(task)
        }));
    }
    let lengths: &[usize] = sizes.pick(&[1, 10, 100], &[1, 10, 100, 1000], &[1, 10, 100, 1000]);
    workloads.extend(lengths.iter().map(|&calls| {
        // Only overhead: each matmul depends on the previous one, and chains of matmuls are not fused. This matrix swaps columns,
        // so that numbers keep their size.
        Workload::inference(Suite::Session, format!("a step of {calls} matmuls of 2x2"), move |g| {
            let x = g.input("x", &[2, 2]);
            let swap = g.constant(vec![0.0, 1.0, 1.0, 0.0], &[2, 2]);
            (0..calls).fold(x, |x, _| g.matmul(x, swap))
        })
        .in_series("replay", "dependent calls", calls)
    }));
    let lengths: &[u32] = sizes.pick(&[12, 18], &[12, 18, 22], &[12, 18, 22, 24]);
    for &log in lengths {
        let length = 1usize << log;
        let kilobytes = length * 4 / 1024;
        workloads.push(
            Workload::inference(Suite::Session, format!("upload of {kilobytes} KiB"), move |g| {
                let x = g.input("x", &[length]);
                let some = g.slice(x, &[0], &[16]);
                g.neg(some)
            })
            .timing(Task::Upload)
            .in_series("upload", "bytes", length * 4),
        );
        workloads.push(
            Workload::inference(Suite::Session, format!("read-back of {kilobytes} KiB"), move |g| {
                let x = g.input("x", &[length]);
                g.neg(x)
            })
            .timing(Task::ReadBack)
            .in_series("read-back", "bytes", length * 4),
        );
    }
    workloads
}
