//! Tests of the thread pool.

use super::*;

/// Returns the number of repetitions of a test. Under Miri it is smaller: Miri interprets the code slowly, and
/// each run tries another interleaving of the threads.
fn rounds(rounds: usize) -> usize {
    if cfg!(miri) { rounds.div_ceil(500) } else { rounds }
}

fn sum(pool: &ThreadPool, tasks: usize) -> usize {
    let total = AtomicUsize::new(0);
    pool.run(tasks, &|task, worker| {
        assert!(worker < pool.threads());
        total.fetch_add(task + 1, Ordering::Relaxed);
    });
    total.into_inner()
}

#[test]
fn every_task_runs_once() {
    for threads in [0, 1, 2, 3, 8] {
        let pool = ThreadPool::new(threads);
        assert_eq!(pool.threads(), threads.max(1));
        for tasks in [0, 1, 2, 3, 17, rounds(1000)] {
            assert_eq!(sum(&pool, tasks), tasks * (tasks + 1) / 2);
        }
    }
}

#[test]
fn what_a_busy_thread_leaves_others_do() {
    let pool = ThreadPool::new(2);
    let done = AtomicUsize::new(0);
    let others = if pool.threads() == 2 { 7 } else { 0 };
    pool.run(8, &|task, _| {
        // The first task of a share waits until other threads have taken the remaining tasks.
        while task == 0 && done.load(Ordering::Acquire) < others {
            thread::yield_now();
        }
        done.fetch_add(1, Ordering::Release);
    });
    assert_eq!(done.into_inner(), 8);
}

#[test]
fn worker_numbers_of_a_job_are_exclusive() {
    let pool = ThreadPool::new(4);
    thread::scope(|scope| {
        for tasks in [1, 5, 40] {
            let pool = &pool;
            scope.spawn(move || {
                let busy: Vec<AtomicBool> = (0..4).map(|_| AtomicBool::new(false)).collect();
                let job = |_: usize, worker: usize| {
                    assert!(!busy[worker].swap(true, Ordering::SeqCst));
                    thread::yield_now();
                    busy[worker].store(false, Ordering::SeqCst);
                };
                (0..rounds(200)).for_each(|_| pool.run(tasks, &job));
            });
        }
    });
}

#[test]
fn a_panic_reaches_the_caller_and_the_pool_lives_on() {
    for threads in [1, 2, 4] {
        let pool = ThreadPool::new(threads);
        for bad in [0, 5, 63] {
            let caught = catch_unwind(AssertUnwindSafe(|| {
                pool.run(64, &|task, _| {
                    assert!(task != bad, "task {task} is bad");
                });
            }));
            let payload = caught.expect_err("the job must panic");
            let text = payload.downcast_ref::<String>().expect("a message");
            assert_eq!(*text, format!("task {bad} is bad"));
            assert_eq!(sum(&pool, 100), 5050);
        }
    }
}

#[test]
fn all_tasks_may_panic() {
    let pool = ThreadPool::new(3);
    for _ in 0..rounds(50) {
        let caught = catch_unwind(AssertUnwindSafe(|| pool.run(8, &|_, _| panic!("all"))));
        assert!(caught.is_err());
    }
    assert_eq!(sum(&pool, 10), 55);
}

#[test]
fn what_a_panic_carries_may_panic_as_well() {
    struct Bomb;
    impl Drop for Bomb {
        fn drop(&mut self) {
            std::panic::panic_any(());
        }
    }
    let pool = ThreadPool::new(3);
    for _ in 0..rounds(50) {
        let caught = catch_unwind(AssertUnwindSafe(|| {
            pool.run(8, &|_, _| std::panic::panic_any(Bomb));
        }));
        let payload = caught.expect_err("all tasks panic");
        assert!(payload.is::<Bomb>());
        std::mem::forget(payload);
    }
    assert_eq!(sum(&pool, 10), 55);
}

#[test]
fn many_tiny_jobs() {
    let pool = ThreadPool::new(2);
    let total = AtomicUsize::new(0);
    let rounds = rounds(100_000);
    for _ in 0..rounds {
        pool.run(2, &|_, _| {
            total.fetch_add(1, Ordering::Relaxed);
        });
    }
    assert_eq!(total.into_inner(), 2 * rounds);
}

#[test]
fn workers_that_sleep_are_woken() {
    let pool = ThreadPool::new(2);
    for _ in 0..5 {
        thread::sleep(SPIN * 20);
        // Each task waits for the other, so each thread must run one of them.
        let met = AtomicUsize::new(0);
        pool.run(2, &|_, _| {
            met.fetch_add(1, Ordering::SeqCst);
            while met.load(Ordering::SeqCst) < 2 {
                thread::yield_now();
            }
        });
    }
}

#[test]
fn a_slow_worker_is_awaited() {
    let pool = ThreadPool::new(2);
    let done = AtomicUsize::new(0);
    let arrived = AtomicUsize::new(0);
    pool.run(2, &|_, worker| {
        arrived.fetch_add(1, Ordering::SeqCst);
        while arrived.load(Ordering::SeqCst) < 2 {
            thread::yield_now();
        }
        if worker == 1 {
            thread::sleep(SPIN * 100);
        }
        done.fetch_add(1, Ordering::Relaxed);
    });
    assert_eq!(done.into_inner(), 2);
}

/// With few callers they take turns, with many some run their tasks themselves.
#[test]
fn several_threads_have_jobs() {
    for (threads, callers) in [(4, 2), (2, 4)] {
        let pool = ThreadPool::new(threads);
        thread::scope(|scope| {
            for _ in 0..callers {
                scope.spawn(|| (0..rounds(2000)).for_each(|_| assert_eq!(sum(&pool, 4), 10)));
            }
        });
        assert_eq!(pool.callers.load(Ordering::Relaxed), 0);
    }
}

#[test]
fn a_caller_of_a_busy_pool_does_not_wait() {
    let pool = ThreadPool::new(2);
    let ended = AtomicBool::new(false);
    pool.run(2, &|task, _| {
        if task > 0 {
            return;
        }
        // The other caller must end while this job is running.
        thread::scope(|scope| {
            scope.spawn(|| {
                assert_eq!(sum(&pool, 4), 10);
                ended.store(true, Ordering::SeqCst);
            });
        });
        assert!(ended.load(Ordering::SeqCst));
    });
}

#[test]
fn a_nested_run_stays_on_its_thread() {
    let pool = ThreadPool::new(3);
    let total = AtomicUsize::new(0);
    pool.run(10, &|_, outer| {
        let here = thread::current().id();
        pool.run(10, &|_, inner| {
            assert_eq!((inner, thread::current().id()), (outer, here));
            total.fetch_add(1, Ordering::Relaxed);
        });
    });
    assert_eq!(total.into_inner(), 100);
}

#[test]
fn dropping_ends_the_threads() {
    for _ in 0..rounds(50) {
        let pool = ThreadPool::new(4);
        assert_eq!(sum(&pool, 4), 10);
        let shared = Arc::downgrade(&pool.shared);
        drop(pool);
        assert!(shared.upgrade().is_none());
    }
}
