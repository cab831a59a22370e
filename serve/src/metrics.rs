//! Metrics of the server in the format of Prometheus.

use std::sync::atomic::Ordering;

use meganeura_llm::engine::EngineCounts;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

/// Metrics of the server. Counters of the engine are added when the metrics are read.
pub(crate) struct Metrics {
    registry: Registry,
    /// Number of responses by path and status.
    pub(crate) responses: Family<Vec<(String, String)>, Counter>,
    pub(crate) refused: Counter,
    pub(crate) prompt_tokens: Counter,
    pub(crate) generated_tokens: Counter,
    pub(crate) first_token_seconds: Histogram,
    pub(crate) token_seconds: Histogram,
    pub(crate) request_seconds: Histogram,
    engine: OfEngine,
}

#[derive(Default)]
struct OfEngine {
    running: Gauge,
    waiting: Gauge,
    blocks_used: Gauge,
    blocks: Gauge,
    steps: Counter,
    cached_tokens: Counter,
    drafted_tokens: Counter,
    accepted_tokens: Counter,
    preemptions: Counter,
}

/// Bucket bounds of histograms in seconds, from 1 ms to 100 s.
const SECONDS: [f64; 16] = [
    0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0,
];

impl Metrics {
    pub(crate) fn new() -> Self {
        let mut registry = Registry::with_prefix("meganeura");
        let histogram = || Histogram::new(SECONDS);
        let metrics = Metrics {
            responses: Family::default(),
            refused: Counter::default(),
            prompt_tokens: Counter::default(),
            generated_tokens: Counter::default(),
            first_token_seconds: histogram(),
            token_seconds: histogram(),
            request_seconds: histogram(),
            engine: OfEngine::default(),
            registry: Registry::default(),
        };
        registry.register("responses", "Responses by path and status", metrics.responses.clone());
        registry.register(
            "refused",
            "Requests rejected because the queue was full",
            metrics.refused.clone(),
        );
        registry.register("prompt_tokens", "Tokens of prompts", metrics.prompt_tokens.clone());
        registry.register(
            "generated_tokens",
            "Tokens that were sent",
            metrics.generated_tokens.clone(),
        );
        for (name, help, histogram) in [
            (
                "first_token_seconds",
                "Time to the first token",
                &metrics.first_token_seconds,
            ),
            (
                "token_seconds",
                "Time between tokens of one text",
                &metrics.token_seconds,
            ),
            (
                "request_seconds",
                "Time of requests that were completed",
                &metrics.request_seconds,
            ),
        ] {
            registry.register(name, help, histogram.clone());
        }
        let engine = &metrics.engine;
        for (name, help, gauge) in [
            ("sequences_running", "Sequences that are computed", &engine.running),
            ("sequences_waiting", "Sequences that wait", &engine.waiting),
            (
                "cache_blocks_used",
                "Blocks of the key-value cache in use",
                &engine.blocks_used,
            ),
            ("cache_blocks", "Blocks of the key-value cache", &engine.blocks),
        ] {
            registry.register(name, help, gauge.clone());
        }
        for (name, help, counter) in [
            ("steps", "Steps since the start", &engine.steps),
            (
                "prefix_cache_tokens",
                "Tokens of prompts that were found in the cache",
                &engine.cached_tokens,
            ),
            (
                "drafted_tokens",
                "Draft tokens that were checked",
                &engine.drafted_tokens,
            ),
            (
                "accepted_tokens",
                "Draft tokens that were right",
                &engine.accepted_tokens,
            ),
            (
                "preemptions",
                "Sequences that had to give their blocks back",
                &engine.preemptions,
            ),
        ] {
            registry.register(name, help, counter.clone());
        }
        Metrics { registry, ..metrics }
    }

    /// Returns the metrics as text for Prometheus.
    pub(crate) fn text(&self, counts: &EngineCounts) -> String {
        let engine = &self.engine;
        for (gauge, value) in [
            (&engine.running, counts.running),
            (&engine.waiting, counts.waiting),
            (&engine.blocks_used, counts.blocks_used),
            (&engine.blocks, counts.blocks),
        ] {
            gauge.set(i64::try_from(value).unwrap_or(i64::MAX));
        }
        for (counter, value) in [
            (&engine.steps, counts.steps),
            (&engine.cached_tokens, counts.cached_tokens),
            (&engine.drafted_tokens, counts.drafted_tokens),
            (&engine.accepted_tokens, counts.accepted_tokens),
            (&engine.preemptions, counts.preemptions),
        ] {
            // The engine has the sum, where a counter adds.
            counter.inner().store(value, Ordering::Relaxed);
        }
        let mut text = String::new();
        // Writing into a string does not fail.
        let _ = encode(&mut text, &self.registry);
        text
    }
}
