//! Rows of a step, and the session inputs for these rows.

use meganeura_core::Graph;
use meganeura_nn::models::{LlamaConfig, PagedCache};

use super::SequenceId;
use super::options::EngineOptions;
use crate::plans::{StepShape, decoding_file};
use crate::sampling::{DeviceOptions, Seeds};

/// Number of rows (tokens) of a block.
pub(super) const BLOCK_ROWS: usize = 16;

/// Shape of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Rows {
    /// Number of tokens that the step reads.
    pub(super) rows: usize,
    /// Number of rows with logits.
    pub(super) logits: usize,
    /// True if the step also samples tokens.
    pub(super) draws: bool,
    pub(super) cache: PagedCache,
}

impl StepShape for Rows {
    type Network = LlamaConfig;

    fn file(&self, network: &LlamaConfig) -> String {
        decoding_file(&self.name(), network)
    }

    fn name(&self) -> String {
        let PagedCache {
            blocks,
            block_rows,
            table_len,
        } = self.cache;
        let draws = if self.draws { "-drawn" } else { "" };
        format!(
            "paged-{}-{}{draws}-of-{blocks}-{block_rows}-{table_len}",
            self.rows, self.logits
        )
    }

    fn graph(&self, network: &LlamaConfig) -> Graph {
        let Rows {
            rows,
            logits,
            draws,
            cache,
        } = *self;
        if !draws {
            network.paged_graph(rows, cache, logits)
        } else {
            network.paged_sampling_graph(rows, cache, logits)
        }
    }
}

impl Rows {
    /// Returns true if every row has logits, so that no rows are selected.
    pub(super) fn has_all_logits(&self) -> bool {
        self.logits == self.rows
    }
}

/// The rows of one sequence in a step: some of its tokens, and draft tokens.
pub(super) struct Part {
    pub(super) id: SequenceId,
    /// Index of the sequence among the running ones.
    pub(super) sequence: usize,
    /// Number of tokens of the sequence to compute.
    pub(super) rows: usize,
    /// Maximum number of draft tokens after them.
    pub(super) room: usize,
    /// Draft tokens to verify, after the tokens of the sequence.
    pub(super) draft: Vec<u32>,
    /// True if the rows include the last token of the sequence, so that the step yields a next token.
    pub(super) is_read: bool,
    /// Set if the log-probabilities of the prompt need the logits of all rows.
    pub(super) is_scored: bool,
}

impl Part {
    /// Returns the number of rows whose logits are needed.
    pub(super) fn logits(&self) -> usize {
        if self.is_scored {
            self.rows + self.draft.len()
        } else if self.is_read {
            1 + self.draft.len()
        } else {
            0
        }
    }
}

/// Consecutive tokens of one sequence that a model computes in a step.
pub(super) struct Span<'a> {
    /// Position of the first token.
    pub(super) start: usize,
    /// Tokens of the sequence, and then draft tokens.
    pub(super) tokens: [&'a [u32]; 2],
    /// Blocks of the sequence.
    pub(super) blocks: &'a [usize],
    /// Number of last tokens whose logits are needed.
    pub(super) asked: usize,
    /// Options and seeds, if the device samples the next tokens.
    pub(super) draws: Option<(DeviceOptions, Seeds)>,
    /// Factors of the columns of the adapters, `[rank]`; empty without adapters.
    pub(super) adapter_scales: &'a [f32],
}

impl Span<'_> {
    pub(super) fn len(&self) -> usize {
        self.tokens.iter().map(|tokens| tokens.len()).sum()
    }
}

/// Inputs of a step.
pub(super) struct Inputs {
    shape: Rows,
    pub(super) tokens: Vec<u32>,
    pub(super) positions: Vec<u32>,
    pub(super) slots: Vec<u32>,
    pub(super) table: Vec<u32>,
    /// Indices of the rows whose logits are needed.
    pub(super) chosen: Vec<u32>,
    /// Options of each row with logits, for sampling on the device. `seeds` has two words for each.
    pub(super) temperatures: Vec<f32>,
    pub(super) top_ks: Vec<u32>,
    pub(super) top_ps: Vec<f32>,
    pub(super) min_ps: Vec<f32>,
    pub(super) seeds: Vec<u32>,
    /// Factors of the columns of the adapters, `[rows, rank]`.
    pub(super) adapter_scales: Vec<f32>,
    /// Number of earlier tokens that each row needs, and their rows in the cache, `[rows, lags]`.
    lags: usize,
    pub(super) earlier: Vec<u32>,
}

impl Inputs {
    pub(super) fn new(shape: Rows, lags: usize) -> Self {
        Inputs {
            shape,
            lags,
            earlier: Vec::with_capacity(shape.rows * lags),
            tokens: Vec::with_capacity(shape.rows),
            positions: Vec::with_capacity(shape.rows),
            slots: Vec::with_capacity(shape.rows),
            table: Vec::with_capacity(shape.rows * shape.cache.table_len),
            chosen: Vec::with_capacity(shape.logits),
            temperatures: vec![DeviceOptions::GREEDY.temperature; shape.logits],
            top_ks: vec![DeviceOptions::GREEDY.top_k; shape.logits],
            top_ps: vec![DeviceOptions::GREEDY.top_p; shape.logits],
            min_ps: vec![DeviceOptions::GREEDY.min_p; shape.logits],
            seeds: vec![0; 2 * shape.logits],
            adapter_scales: Vec::new(),
        }
    }

    pub(super) fn add(&mut self, span: &Span) {
        let [own, draft] = span.tokens;
        for (position, &token) in (span.start..).zip(own.iter().chain(draft)) {
            self.tokens.push(token);
            self.positions.push(position as u32);
            let slot =
                |position: usize| (span.blocks[position / BLOCK_ROWS] * BLOCK_ROWS + position % BLOCK_ROWS) as u32;
            self.slots.push(slot(position));
            self.earlier
                .extend((1..=self.lags).map(|lag| position.checked_sub(lag).map_or(0, slot)));
            let start = self.table.len();
            self.table.extend(span.blocks.iter().map(|&block| block as u32));
            self.table.resize(start + self.shape.cache.table_len, 0);
            self.adapter_scales.extend(span.adapter_scales);
        }
        let end = self.tokens.len();
        let rows = end - span.asked..end;
        if let Some((options, seeds)) = &span.draws {
            let first = if self.shape.has_all_logits() {
                rows.start
            } else {
                self.chosen.len()
            };
            for (row, seeds) in (first..first + rows.len()).zip(seeds.clone()) {
                self.temperatures[row] = options.temperature;
                self.top_ks[row] = options.top_k;
                self.top_ps[row] = options.top_p;
                self.min_ps[row] = options.min_p;
                self.seeds[2 * row..2 * row + 2].copy_from_slice(&seeds);
            }
        }
        self.chosen.extend(rows.map(|row| row as u32));
    }

    /// Adds padding rows; `rank` is that of the adapters.
    pub(super) fn fill(&mut self, rank: usize) {
        let rows = self.shape.rows;
        self.adapter_scales.resize(rows * rank, 0.0);
        self.earlier.resize(rows * self.lags, 0);
        self.tokens.resize(rows, 0);
        self.positions.resize(rows, 0);
        let nowhere = self.shape.cache.blocks * self.shape.cache.block_rows;
        self.slots.resize(rows, nowhere as u32);
        // Padding rows read the first key of the last sequence, so that they do not divide its tile of queries.
        let table_len = self.shape.cache.table_len;
        let last = self.table.len().saturating_sub(table_len)..self.table.len();
        while self.table.len() < rows * table_len {
            if last.is_empty() {
                self.table.resize(rows * table_len, 0);
            } else {
                self.table.extend_from_within(last.clone());
            }
        }
        self.chosen.resize(self.shape.logits, 0);
    }
}

/// Returns the maximum number of rows of a step with logits: one for each sequence, and one for each of its draft
/// tokens.
pub(super) fn logits_rows(options: &EngineOptions, draft_tokens: usize) -> usize {
    let of_sequence = draft_tokens.saturating_add(1);
    options
        .sequences
        .saturating_mul(of_sequence)
        .min(options.max_step_tokens())
}

/// Returns the step sizes of a model with `draft_tokens` draft tokens for each sequence: powers of two up to the [rows
/// with logits](logits_rows), so that few sequences are not slower than necessary; a few sizes for short prompts; and
/// the largest one.
pub(super) fn shapes(options: &EngineOptions, draft_tokens: usize, cache: PagedCache, draws: bool) -> Vec<Rows> {
    /// Smallest size for prompts, and the ratio of one size to the next.
    const FIRST: usize = 32;
    const RATIO: usize = 4;
    let most = options.max_step_tokens();
    let asked = logits_rows(options, draft_tokens);
    let powers = (0..).map(|power| 1usize << power).take_while(|&rows| rows < asked);
    let mut rows: Vec<usize> = powers.collect();
    rows.push(asked);
    let of_prompts = std::iter::successors(Some(FIRST), |&size| Some(size * RATIO));
    // Sizes that are close to the next one are left out to save memory.
    rows.extend(
        of_prompts
            .take_while(|&size| size <= most / RATIO)
            .filter(|&size| size >= 2 * asked),
    );
    rows.push(most);
    rows.dedup();
    let shape = |rows: usize| Rows {
        rows,
        logits: rows.min(asked),
        draws,
        cache,
    };
    rows.into_iter().map(shape).collect()
}
