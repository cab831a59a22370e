//! Tests of collectives between threads, and of their errors if ranks differ or fail.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use meganeura_core::distributed::{
    Call, Collective, CollectiveError, CollectiveFailure, Communicator, CommunicatorOptions, PendingCollective,
    ThreadGroup, agree, gather_texts, open,
};
use meganeura_core::error::Error;

const LIMIT: Duration = Duration::from_secs(20);

/// Runs a function on every rank of a group.
fn on_ranks<T: Send>(size: usize, limit: Duration, f: impl Fn(Arc<dyn Communicator>) -> T + Sync) -> Vec<T> {
    let group = ThreadGroup::new(size, limit);
    thread::scope(|scope| {
        let threads: Vec<_> = group.into_iter().map(|rank| scope.spawn(|| f(rank))).collect();
        threads.into_iter().map(|t| t.join().expect("no panic")).collect()
    })
}

#[test]
fn every_collective_gives_what_it_says() {
    for size in 1..=5 {
        on_ranks(size, LIMIT, |c| {
            let rank = c.rank() as f32;
            let total = (size * (size - 1) / 2) as f32;
            for _ in 0..20 {
                let mut data = [rank, 2.0 * rank, 1.0];
                c.all_reduce_sum("x", &mut data).expect("a sum");
                assert_eq!(data, [total, 2.0 * total, size as f32]);

                let all: Vec<f32> = (0..2 * size).map(|i| i as f32).collect();
                let mut own = [0.0; 2];
                c.reduce_scatter_sum("x", &all, &mut own).expect("a part");
                let first = (2 * c.rank() * size) as f32;
                assert_eq!(own, [first, first + size as f32]);

                let mut gathered = vec![0; size];
                c.all_gather("x", &[c.rank() as u8], &mut gathered).expect("all");
                assert!(gathered.iter().enumerate().all(|(i, &value)| usize::from(value) == i));

                let mut data = [c.rank() as u8; 3];
                c.broadcast("x", size - 1, &mut data).expect("the last");
                assert_eq!(data, [(size - 1) as u8; 3]);
                c.barrier("x").expect("all come");
            }
            let texts = gather_texts(&*c, "names", &"n".repeat(c.rank())).expect("texts");
            assert!(texts.iter().enumerate().all(|(i, text)| text.len() == i));
        });
    }
}

#[test]
fn sums_are_in_the_order_of_the_ranks() {
    // In another order, or as a tree, this is 0 or 2.
    let values = [1e8, 1.0, -1e8, 1.0];
    let sums = on_ranks(4, LIMIT, |c| {
        let mut data = [values[c.rank()]];
        c.all_reduce_sum("x", &mut data).expect("a sum");
        data[0]
    });
    assert_eq!(sums, [((1e8_f32 + 1.0) - 1e8) + 1.0; 4]);
}

fn collective(error: Error) -> CollectiveError {
    match error {
        Error::Collective(error) => *error,
        other => panic!("{other}"),
    }
}

fn failure(error: &CollectiveError) -> (usize, Collective, &str) {
    (error.rank, error.operation, &error.tensor)
}

#[test]
fn calls_that_differ_are_errors_on_every_rank() {
    let errors = on_ranks(3, LIMIT, |c| {
        let mut data = vec![0.0; if c.rank() == 2 { 5 } else { 4 }];
        collective(c.all_reduce_sum("weights", &mut data).expect_err("sizes differ"))
    });
    for (rank, error) in errors.iter().enumerate() {
        assert_eq!(failure(error), (rank, Collective::AllReduce, "weights"));
        let expected = if rank == 2 { 0 } else { 2 };
        assert!(
            matches!(&error.failure, CollectiveFailure::Mismatch { peer, what } if *peer == expected && what.contains("bytes")),
            "{error}"
        );
    }
    let errors = on_ranks(2, LIMIT, |c| match c.rank() {
        0 => c.barrier("the end").expect_err("differs"),
        _ => c.all_reduce_sum("w", &mut [0.0]).expect_err("differs"),
    });
    assert!(errors[0].to_string().contains("all-reduce of w"), "{}", errors[0]);
    assert!(errors[1].to_string().contains("barrier of the end"), "{}", errors[1]);
}

#[test]
fn a_rank_that_is_gone_ends_the_others() {
    let errors = on_ranks(3, LIMIT, |c| {
        if c.rank() == 1 {
            return None;
        }
        Some(collective(
            c.all_reduce_sum("bucket 0", &mut [0.0]).expect_err("one is gone"),
        ))
    });
    for error in errors.into_iter().flatten() {
        assert!(
            // The other rank may have ended by then, because of the first one.
            matches!(error.failure, CollectiveFailure::PeerLost { .. }),
            "{error}"
        );
        let text = error.to_string();
        assert!(text.contains("all-reduce of bucket 0"), "{text}");
    }
}

#[test]
fn a_rank_that_does_not_come_is_named_within_the_time_limit() {
    let limit = Duration::from_millis(200);
    let errors = on_ranks(2, limit, |c| {
        if c.rank() == 1 {
            thread::sleep(3 * limit);
            return None;
        }
        Some(collective(c.barrier("x").expect_err("too late")))
    });
    let error = errors[0].clone().expect("rank 0 waited");
    assert_eq!(
        error.failure,
        CollectiveFailure::TimedOut {
            missing: vec![1],
            limit
        }
    );
    assert!(
        error.to_string().contains("rank 1 did not arrive within 0.2 s"),
        "{error}"
    );
}

#[test]
fn a_difference_is_seen_by_every_rank() {
    let errors = on_ranks(3, LIMIT, |c| {
        let batch = if c.rank() == 1 { "16" } else { "32" };
        agree(&*c, "the settings", &[("seed", "1".into()), ("batch", batch.into())]).expect_err("they differ")
    });
    for (rank, error) in errors.into_iter().map(collective).enumerate() {
        assert_eq!(failure(&error), (rank, Collective::Agreement, "the settings"));
        assert!(error.to_string().contains("its batch is"), "{error}");
    }
    on_ranks(3, LIMIT, |c| {
        agree(&*c, "x", &[("seed", "1".into())]).expect("the same")
    });
}

#[test]
fn an_unknown_communicator_is_an_error_with_a_remedy() {
    let error = open("carrier-pigeon", &CommunicatorOptions::default()).expect_err("there is none");
    assert!(
        matches!(&error, Error::Plugin { plugin, .. } if plugin == "carrier-pigeon"),
        "{error}"
    );
    let error = open("mpi", &CommunicatorOptions::default()).expect_err("it is not linked");
    assert!(error.to_string().contains("--features mpi"), "{error}");
}

#[test]
fn started_collectives_are_made_in_their_order() {
    for size in 1..=4 {
        on_ranks(size, LIMIT, |c| {
            let rank = c.rank();
            let total = (size * (size - 1) / 2) as f32;
            let sums: Vec<PendingCollective> = (0..5)
                .map(|i| {
                    c.start(
                        Call::AllReduceSum,
                        &format!("bucket {i}"),
                        vec![(rank + i) as f32; 100 * i + 1],
                    )
                })
                .collect();
            let root = size - 1;
            let reduced = c.start(Call::ReduceSum { root }, "to the last", vec![rank as f32; 7]);
            let sent = c.start(Call::Broadcast { root }, "from the last", vec![rank as f32; 3]);
            // A blocking collective waits for earlier ones.
            let mut data = [1.0];
            c.all_reduce_sum("blocking", &mut data).expect("a sum");
            assert_eq!(data, [size as f32]);
            for (i, pending) in sums.into_iter().enumerate() {
                let sum = pending.wait().expect("a sum");
                assert_eq!(sum, vec![total + (size * i) as f32; 100 * i + 1]);
            }
            let reduced = reduced.wait().expect("a sum");
            if rank == root {
                assert_eq!(reduced, [total; 7]);
            }
            assert_eq!(sent.wait().expect("data"), [root as f32; 3]);
            // No rank waits for this collective, but it still completes.
            let _ = c.start(Call::AllReduceSum, "dropped", vec![1.0]);
            c.barrier("the end").expect("all come");
        });
    }
}

/// A rank that starts a collective continues before the other ranks have started theirs.
#[test]
fn a_started_collective_does_not_block() {
    let start = Instant::now();
    let wait = Duration::from_millis(300);
    let took = on_ranks(2, LIMIT, |c| {
        if c.rank() == 1 {
            thread::sleep(wait);
        }
        let pending = c.start(Call::AllReduceSum, "x", vec![1.0; 4]);
        let started = start.elapsed();
        assert_eq!(pending.wait().expect("a sum"), [2.0; 4]);
        (started, start.elapsed())
    });
    assert!(took[0].0 < wait && took[0].1 >= wait, "{took:?}");
}

#[test]
fn errors_of_started_collectives_come_when_they_are_waited_for() {
    let errors = on_ranks(2, LIMIT, |c| {
        let data = vec![1.0; 3 + c.rank()];
        let first = c.start(Call::AllReduceSum, "bucket 0", data);
        let second = c.start(Call::AllReduceSum, "bucket 1", vec![1.0]);
        let texts = [first, second].map(|pending| pending.wait().expect_err("sizes differ").to_string());
        assert!(c.start(Call::ReduceSum { root: 9 }, "y", vec![1.0]).wait().is_err());
        texts
    });
    for texts in errors {
        assert!(
            texts[0].contains("all-reduce of bucket 0") && texts[0].contains("differs"),
            "{texts:?}"
        );
        assert!(texts[1].contains("all-reduce of bucket 1"), "{texts:?}");
    }
}

#[test]
fn a_sum_for_one_rank_names_a_rank_that_is_not_there() {
    let errors = on_ranks(2, LIMIT, |c| {
        c.reduce_sum("x", 2, &mut [1.0]).expect_err("there are two").to_string()
    });
    assert!(
        errors.iter().all(|error| error.contains("rank 2 does not exist")),
        "{errors:?}"
    );
}
