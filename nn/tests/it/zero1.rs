//! Tests of optimizer states sharded over ranks: memory, loss scaling, checkpoints. `distributed` tests that runs are
//! equal.

use std::sync::Arc;

use crate::distributed::{LIMIT, on_ranks};
use crate::ranks::{BATCH, Losses, Task, config, mlp};
use meganeura_core::distributed::{Communicator, Owners};
use meganeura_core::precision::Precision;
use meganeura_core::{Graph, ParameterGroup};
use meganeura_nn::layers::Linear;
use meganeura_nn::models::classifier;
use meganeura_nn::trainer::{Checkpoints, OptimizerChoice, TrainConfig, Trainer};

fn zero1(ranks: Option<Arc<dyn Communicator>>) -> TrainConfig {
    TrainConfig {
        zero1: true,
        ..config(ranks)
    }
}

fn llama() -> Task {
    Task::named("llama").expect("there is such a task")
}

#[test]
fn each_rank_has_its_share_of_the_moments() {
    let task = llama();
    let bytes = |size| {
        on_ranks(size, LIMIT, |ranks| {
            let mut config = task.config(ranks);
            config.zero1 = true;
            let trainer = Trainer::new(task.model, config).expect("builds");
            let session = trainer.session();
            let loads = Owners::of(session.plan(), size).loads().to_vec();
            (session.memory_summary(), loads)
        })
    };
    let (whole, _) = bytes(1).remove(0);
    assert!(whole.adam_state_bytes > 0);
    for size in 2..=4 {
        let shares = bytes(size);
        let sum: usize = shares.iter().map(|(share, _)| share.adam_state_bytes).sum();
        assert_eq!(sum, whole.adam_state_bytes, "nothing is stored twice");
        for (rank, (share, loads)) in shares.iter().enumerate() {
            // Two moments of four bytes.
            assert_eq!(share.adam_state_bytes, 8 * loads[rank]);
            let ideal = whole.adam_state_bytes as f64 / size as f64;
            let ratio = share.adam_state_bytes as f64 / ideal;
            println!("{size} ranks, rank {rank}: {ratio:.3} of 1/{size} of the moments");
            assert!((0.9..1.1).contains(&ratio), "rank {rank} of {size}: {ratio}");
            let saved = whole.total_buffer_bytes - share.total_buffer_bytes;
            assert!(saved as f64 > 0.8 * (whole.adam_state_bytes - share.adam_state_bytes) as f64);
        }
    }
}

/// Returns losses and parameters after steps with these inputs.
fn steps(trainer: &mut Trainer, count: usize) -> (Vec<f32>, Vec<Vec<f32>>, u64, Option<f32>) {
    let rank = trainer.config().rank();
    let rows = trainer.config().local_batch_size();
    let session = trainer.session_mut();
    let mut losses = Vec::new();
    for step in 0..count {
        // All rows of a batch, which every number of ranks divides equally.
        let value = |row: usize, i: usize| ((row * 64 + i + 7 * step) % 17) as f32 / 17.0 - 0.4;
        let own = rank * rows..(rank + 1) * rows;
        let mut x: Vec<f32> = own
            .clone()
            .flat_map(|row| (0..64).map(move |i| value(row, i)))
            .collect();
        // Only one rank sees it, and only one owns the gradients that become infinite.
        if step == 3 && own.contains(&(BATCH - 1)) {
            x.fill(f32::INFINITY);
        }
        let labels: Vec<u32> = own.map(|row| ((row + step) % 10) as u32).collect();
        session.set_input("x", &x);
        session.set_input_u32("labels", &labels);
        session.step();
        losses.push(session.read_loss());
    }
    let names: Vec<String> = session.plan().parameters().into_iter().map(|v| v.name).collect();
    let parameters = names.iter().map(|name| session.read_parameter(name)).collect();
    (losses, parameters, session.skipped_updates(), session.loss_scale())
}

#[test]
fn ranks_skip_updates_and_change_the_loss_scale_alike() {
    let run = |size, is_sharded| {
        on_ranks(size, LIMIT, |ranks| {
            let mut config = config(ranks);
            config.zero1 = is_sharded;
            config.accumulate = 1;
            config.precision = Some(Precision::Mixed);
            config.loss_scale = Some("dynamic:1024:4".parse().expect("a scale"));
            let mut trainer = Trainer::new(|batch| mlp(batch, 10), config).expect("builds");
            steps(&mut trainer, 10)
        })
    };
    let (_, whole, skipped, scale) = run(1, false).remove(0);
    assert_eq!(skipped, 1);
    for size in 2..=4 {
        for (rank, (_, parameters, own_skipped, own_scale)) in run(size, true).into_iter().enumerate() {
            assert_eq!((own_skipped, own_scale), (skipped, scale), "rank {rank} of {size}");
            for (a, b) in parameters.iter().flatten().zip(whole.iter().flatten()) {
                assert!((a - b).abs() < 1e-5, "rank {rank} of {size}: {a} and {b}");
            }
        }
    }
}

/// Builds a model of two tensors, so that with more than two ranks some ranks own none.
fn linear(batch: usize) -> Graph {
    classifier(batch, &[64], |g, x| Linear::new(g, "fc", 64, 10).forward(g, x))
}

#[test]
fn a_rank_may_own_nothing() {
    let run = |size| {
        on_ranks(size, LIMIT, |ranks| {
            let mut trainer = Trainer::new(linear, zero1(ranks)).expect("builds");
            let count = trainer.session().memory_summary().adam_state_bytes;
            let (_, parameters, ..) = steps(&mut trainer, 3);
            (count, parameters)
        })
    };
    let (_, whole) = run(1).remove(0);
    let ranks = run(4);
    assert_eq!(ranks.iter().filter(|(bytes, _)| *bytes == 0).count(), 2);
    for (_, parameters) in &ranks {
        for (a, b) in parameters.iter().flatten().zip(whole.iter().flatten()) {
            assert!((a - b).abs() < 1e-5, "{a} and {b}");
        }
    }
}

/// A checkpoint contains the states of all ranks: runs resume with other numbers of ranks, with and without shards, and
/// with momentum and parameter groups.
#[test]
fn a_checkpoint_has_the_states_of_all_ranks() {
    let task = llama();
    let settings: [fn(&mut TrainConfig); 2] = [
        |_| (),
        |config| {
            config.optimizer = OptimizerChoice::Momentum;
            config.groups = vec![
                ParameterGroup::new(["*norm*"])
                    .weight_decay(0.0)
                    .learning_rate_scale(0.5),
            ];
        },
    ];
    for change in settings {
        let folder = tempfile::tempdir().expect("a folder");
        let run = |ranks: Option<Arc<dyn Communicator>>, is_sharded, checkpoint: bool, stop_after| {
            let mut config = task.config(ranks);
            change(&mut config);
            config.zero1 = is_sharded;
            config.accumulate = 3;
            config.checkpoints = checkpoint.then(|| Checkpoints {
                folder: folder.path().to_owned(),
                every: 1000,
                resume: true,
                allow_changes: Vec::new(),
            });
            let mut trainer = Trainer::new(task.model, config).expect("builds");
            let mut observer = Losses::of_steps(stop_after);
            trainer.fit(&task.train, None, &mut observer).expect("trains");
            observer.losses
        };
        let whole = run(None, false, false, 30);
        let mut parts = Vec::new();
        for (ranks, is_sharded, steps) in [(2, true, 11), (1, false, 5), (4, true, 7), (3, false, 3), (3, true, 4)] {
            parts.extend(on_ranks(ranks, LIMIT, |c| run(c, is_sharded, true, steps)).remove(0));
        }
        assert_eq!(parts.len(), 30);
        for (part, whole) in parts.iter().zip(&whole) {
            assert!(
                (part - whole).abs() <= 2e-6 * whole.abs().max(1.0),
                "{parts:?}\n{whole:?}"
            );
        }
    }
}

#[test]
fn another_communicator_is_refused_after_sharding() {
    let errors = on_ranks(2, LIMIT, |ranks| {
        let communicator = ranks.clone().expect("two ranks");
        let mut trainer = Trainer::new(|batch| mlp(batch, 10), zero1(ranks)).expect("builds");
        let again = trainer.session_mut().try_set_communicator(communicator);
        again.expect_err("states are sharded").to_string()
    });
    assert!(errors.iter().all(|error| error.contains("sharded")), "{errors:?}");
}
