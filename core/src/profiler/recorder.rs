//! Storage of spans and passes until they are saved.

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

use crate::backend::PassTiming;
use crate::plan::{Dispatch, ExecutionPlan};

/// Maximum number of characters of a recorded text.
const MAX_CHARS: usize = 256;

/// An argument of a span.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Value {
    Unsigned(u64),
    Signed(i64),
    Flag(bool),
    Number(f64),
    Text(String),
}

/// Arguments of a span, each with its name.
pub(super) type Fields = Vec<(&'static str, Value)>;

/// A completed span, with nanoseconds since the start of the trace.
#[derive(Clone, Debug)]
pub(super) struct SpanRecord {
    pub(super) thread: u32,
    pub(super) name: &'static str,
    pub(super) start: u64,
    pub(super) end: u64,
    /// Number of spans that contain this one.
    pub(super) depth: usize,
    pub(super) fields: Fields,
}

/// Label and source line of a dispatch, for traces.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct CallPlace {
    pub(super) label: String,
    pub(super) source: Option<String>,
}

/// A recorded pass of a device.
#[derive(Clone, Debug)]
pub(super) struct PassRecord {
    pub(super) track: usize,
    pub(super) calls: Arc<[CallPlace]>,
    pub(super) label: Arc<str>,
    pub(super) dispatches: Arc<[u32]>,
    pub(super) submission: u64,
    pub(super) start: u64,
    pub(super) end: u64,
}

/// All recorded spans and passes.
#[derive(Debug, Default)]
pub(super) struct Log {
    /// Names of threads, by thread number.
    pub(super) threads: BTreeMap<u32, String>,
    pub(super) spans: Vec<SpanRecord>,
    /// Names of devices' tracks.
    pub(super) tracks: Vec<String>,
    pub(super) passes: Vec<PassRecord>,
    /// Number of records that were discarded because the log was full.
    pub(super) dropped: u64,
}

/// A span that has at least one handle, so that it may still be entered.
struct OpenSpan {
    name: &'static str,
    fields: Mutex<Fields>,
}

/// Store for all records, with a maximum number of them.
pub(crate) struct Store {
    origin: Instant,
    capacity: usize,
    /// Spans with handles, each with the number of its handles.
    held: Mutex<HashMap<u64, (Arc<OpenSpan>, usize)>>,
    log: Mutex<Log>,
}

/// A span that a thread has entered.
struct EnteredSpan {
    id: u64,
    held: Option<Arc<OpenSpan>>,
    start: Instant,
    /// `true` if the thread left it before it left the spans within it.
    left: bool,
}

// For all stores, so that numbers are unique.
static NEXT_SPAN: AtomicU64 = AtomicU64::new(1);
static NEXT_THREAD: AtomicU32 = AtomicU32::new(0);

thread_local! {
    static THREAD: u32 = NEXT_THREAD.fetch_add(1, Ordering::Relaxed);
    static STACK: RefCell<Vec<EnteredSpan>> = const { RefCell::new(Vec::new()) };
}

// A poisoned lock can be used, because no panic leaves its data half changed.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Store {
    pub(super) fn new(capacity: usize) -> Self {
        Store {
            origin: Instant::now(),
            capacity,
            held: Mutex::default(),
            log: Mutex::default(),
        }
    }

    pub(super) fn with_log<T>(&self, work: impl FnOnce(&Log) -> T) -> T {
        work(&lock(&self.log))
    }

    fn nanos(&self, time: Instant) -> u64 {
        u64::try_from(time.saturating_duration_since(self.origin).as_nanos()).unwrap_or(u64::MAX)
    }

    /// Returns the log if another record fits into it, else counts the record as discarded.
    fn room(&self) -> Option<MutexGuard<'_, Log>> {
        let mut log = lock(&self.log);
        if log.spans.len() + log.passes.len() < self.capacity {
            return Some(log);
        }
        if log.dropped == 0 {
            log::warn!(
                "the trace is full: everything after {} spans and passes is dropped",
                self.capacity
            );
        }
        log.dropped += 1;
        None
    }

    fn span(&self, entered: &EnteredSpan, end: Instant, depth: usize) {
        let Some(held) = &entered.held else { return };
        let Some(mut log) = self.room() else { return };
        let thread = THREAD.with(|&number| number);
        log.threads.entry(thread).or_insert_with(|| {
            let name = std::thread::current().name().map(str::to_owned);
            name.unwrap_or_else(|| format!("thread {thread}"))
        });
        log.spans.push(SpanRecord {
            thread,
            name: held.name,
            start: self.nanos(entered.start),
            end: self.nanos(end),
            depth,
            fields: lock(&held.fields).clone(),
        });
    }
}

/// The track for the passes of a session's device.
pub(crate) struct DeviceTrack {
    store: Arc<Store>,
    number: usize,
    calls: Arc<[CallPlace]>,
}

impl DeviceTrack {
    /// Creates a new track for the passes of a plan.
    pub(crate) fn new(store: &Arc<Store>, device: &str, plan: &ExecutionPlan) -> Self {
        let mut log = lock(&store.log);
        let number = log.tracks.len();
        log.tracks.push(format!("{device}, session {number}"));
        DeviceTrack {
            store: store.clone(),
            number,
            calls: calls(plan),
        }
    }

    /// Replaces the plan whose calls the passes refer to.
    pub(crate) fn renew(&mut self, plan: &ExecutionPlan) {
        self.calls = calls(plan);
    }

    pub(crate) fn record(&self, passes: &[PassTiming]) {
        for pass in passes {
            let Some(mut log) = self.store.room() else { continue };
            let start = self.store.nanos(pass.start);
            log.passes.push(PassRecord {
                track: self.number,
                calls: self.calls.clone(),
                label: pass.label.clone(),
                dispatches: pass.dispatches.clone(),
                submission: pass.submission.0,
                start,
                end: self.store.nanos(pass.start + pass.duration).max(start),
            });
        }
    }
}

fn calls(plan: &ExecutionPlan) -> Arc<[CallPlace]> {
    let place = |d: &Dispatch| CallPlace {
        label: d.label.clone(),
        source: plan.source_of(d).map(ToString::to_string),
    };
    plan.dispatches.iter().map(place).collect()
}

/// The subscriber of `tracing` that stores all records.
pub(super) struct Recorder(pub(super) Arc<Store>);

impl Subscriber for Recorder {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.is_span() && (*metadata.level() <= Level::INFO || metadata.target().starts_with("meganeura"))
    }

    fn new_span(&self, span: &Attributes<'_>) -> Id {
        let id = NEXT_SPAN.fetch_add(1, Ordering::Relaxed);
        let mut fields = Fields::new();
        span.record(&mut FieldVisitor(&mut fields));
        let mut held = lock(&self.0.held);
        // If a program has more open spans than the trace can store, further ones are discarded.
        if held.len() < self.0.capacity {
            let entry = OpenSpan {
                name: span.metadata().name(),
                fields: Mutex::new(fields),
            };
            held.insert(id, (Arc::new(entry), 1));
        }
        Id::from_u64(id)
    }

    fn record(&self, span: &Id, values: &Record<'_>) {
        if let Some((held, _)) = lock(&self.0.held).get(&span.into_u64()) {
            values.record(&mut FieldVisitor(&mut lock(&held.fields)));
        }
    }

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, _: &Event<'_>) {}

    fn enter(&self, span: &Id) {
        let id = span.into_u64();
        let held = lock(&self.0.held).get(&id).map(|(held, _)| held.clone());
        STACK.with_borrow_mut(|stack| {
            stack.push(EnteredSpan {
                id,
                held,
                start: Instant::now(),
                left: false,
            });
        });
    }

    fn exit(&self, span: &Id) {
        let (id, now) = (span.into_u64(), Instant::now());
        STACK.with_borrow_mut(|stack| {
            let Some(at) = stack.iter().rposition(|e| e.id == id && !e.left) else {
                return;
            };
            // A span that is left before inner ones ends together with them, so that all spans are
            // nested.
            stack[at].left = true;
            while stack.last().is_some_and(|e| e.left) {
                if let Some(entered) = stack.pop() {
                    self.0.span(&entered, now, stack.len());
                }
            }
        });
    }

    fn clone_span(&self, id: &Id) -> Id {
        if let Some((_, holders)) = lock(&self.0.held).get_mut(&id.into_u64()) {
            *holders += 1;
        }
        id.clone()
    }

    fn try_close(&self, id: Id) -> bool {
        let mut held = lock(&self.0.held);
        let Some((_, holders)) = held.get_mut(&id.into_u64()) else {
            return false;
        };
        *holders -= 1;
        let last = *holders == 0;
        if last {
            held.remove(&id.into_u64());
        }
        last
    }
}

/// Visitor that collects the arguments of a span; a later value of an argument replaces the earlier one.
struct FieldVisitor<'a>(&'a mut Fields);

impl FieldVisitor<'_> {
    fn set(&mut self, field: &Field, value: Value) {
        match self.0.iter_mut().find(|(name, _)| *name == field.name()) {
            Some((_, old)) => *old = value,
            None => self.0.push((field.name(), value)),
        }
    }
}

impl Visit for FieldVisitor<'_> {
    fn record_u64(&mut self, field: &Field, value: u64) {
        self.set(field, Value::Unsigned(value));
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.set(field, Value::Signed(value));
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.set(field, Value::Flag(value));
    }

    fn record_f64(&mut self, field: &Field, value: f64) {
        self.set(field, Value::Number(value));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.set(field, Value::Text(value.chars().take(MAX_CHARS).collect()));
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.record_str(field, &format!("{value:?}"));
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tracing::{debug_span, info_span};

    use super::*;

    fn recorded(capacity: usize, work: impl FnOnce()) -> Arc<Store> {
        let store = Arc::new(Store::new(capacity));
        tracing::subscriber::with_default(Recorder(store.clone()), work);
        store
    }

    fn spans(store: &Store) -> Vec<SpanRecord> {
        store.with_log(|log| log.spans.clone())
    }

    #[test]
    fn spans_know_their_depth_and_arguments() {
        let store = recorded(100, || {
            let outer = info_span!("outer", step = 3_u64, late = tracing::field::Empty);
            let _outer = outer.enter();
            for i in 0..2 {
                let _inner = info_span!("inner", i, name = "x".repeat(1000)).entered();
            }
            outer.record("late", true);
            // Spans of other crates are recorded from level INFO on, those of this crate at all
            // levels.
            let _quiet = tracing::debug_span!(target: "other", "quiet").entered();
            let _own = debug_span!("own").entered();
        });
        let spans = spans(&store);
        let names: Vec<(&str, usize)> = spans.iter().map(|s| (s.name, s.depth)).collect();
        assert_eq!(names, [("inner", 1), ("inner", 1), ("own", 1), ("outer", 0)]);
        assert_eq!(
            spans[3].fields,
            [("step", Value::Unsigned(3)), ("late", Value::Flag(true))]
        );
        assert_eq!(spans[1].fields[0], ("i", Value::Signed(1)));
        assert_eq!(spans[1].fields[1], ("name", Value::Text("x".repeat(MAX_CHARS))));
        assert!(spans[3].start <= spans[0].start && spans[0].end <= spans[1].start && spans[1].end <= spans[3].end);
        assert!(lock(&store.held).is_empty(), "nothing is kept of spans that are over");
    }

    #[test]
    fn a_span_that_is_left_too_early_ends_with_those_within_it() {
        let store = recorded(100, || {
            let outer = info_span!("outer").entered();
            let inner = info_span!("inner").entered();
            drop(outer);
            std::thread::sleep(Duration::from_millis(1));
            drop(inner);
        });
        let spans = spans(&store);
        let names: Vec<(&str, usize)> = spans.iter().map(|s| (s.name, s.depth)).collect();
        assert_eq!(names, [("inner", 1), ("outer", 0)]);
        assert_eq!(spans[0].end, spans[1].end);
    }

    #[test]
    fn a_full_trace_counts_what_it_drops() {
        let store = recorded(3, || {
            for _ in 0..5 {
                let _span = info_span!("span").entered();
            }
        });
        assert_eq!(spans(&store).len(), 3);
        let track = DeviceTrack::new(&store, "cpu", &ExecutionPlan::default());
        track.record(&[PassTiming::new("pass", Duration::from_micros(1))]);
        store.with_log(|log| assert_eq!((log.passes.len(), log.dropped), (0, 3)));
    }
}
