//! The rows of a step, and what a session is fed with for them.

use meganeura_core::Graph;
use meganeura_nn::models::{LlamaConfig, PagedCache};

use super::SequenceId;
use super::options::EngineOptions;
use crate::plans::{StepShape, decoding_file};
use crate::sampling::Seeds;

/// Rows of a block.
pub(super) const BLOCK_ROWS: usize = 16;

/// A step that reads so many tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Rows {
    pub(super) rows: usize,
    /// Rows that there are logits of.
    pub(super) logits: usize,
    /// Whether tokens are drawn, too.
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
        match draws {
            false => network.paged_graph(rows, cache, logits),
            true => network.paged_sampling_graph(rows, cache, logits),
        }
    }
}

impl Rows {
    /// Whether there are logits of every row, so that they need not be asked for.
    pub(super) fn has_all_logits(&self) -> bool {
        self.logits == self.rows
    }
}

/// Rows of one sequence in a step.
pub(super) struct Part {
    pub(super) id: SequenceId,
    /// Its place among those that run.
    pub(super) sequence: usize,
    /// Its own tokens, behind those that are computed.
    pub(super) rows: usize,
    /// Most draft tokens behind them.
    pub(super) room: usize,
    /// Tokens behind those that the sequence has, to be checked.
    pub(super) draft: Vec<u32>,
    /// Whether the last token of the sequence is among the rows, so that there is a next one to choose.
    pub(super) is_read: bool,
    /// Set if the log-probabilities of the prompt need the logits of all rows.
    pub(super) is_scored: bool,
}

impl Part {
    /// Rows whose logits are asked for.
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

/// Neighbouring tokens of one sequence, as a model reads them.
pub(super) struct Span<'a> {
    /// Position of the first one.
    pub(super) start: usize,
    /// Tokens, those of the sequence and then draft tokens.
    pub(super) tokens: [&'a [u32]; 2],
    /// Blocks of the sequence.
    pub(super) blocks: &'a [usize],
    /// How many of the last ones are asked for.
    pub(super) asked: usize,
    /// What the device draws tokens with for these, if it does.
    pub(super) draws: Option<(f32, Seeds)>,
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
    /// Rows whose logits are asked for.
    pub(super) chosen: Vec<u32>,
    /// What the device draws tokens with: of each row that there are logits of.
    pub(super) temperatures: Vec<f32>,
    pub(super) seeds: Vec<u32>,
    /// Factors of the columns of the adapters, `[rows, rank]`.
    pub(super) adapter_scales: Vec<f32>,
}

impl Inputs {
    pub(super) fn new(shape: Rows) -> Self {
        Inputs {
            shape,
            tokens: Vec::with_capacity(shape.rows),
            positions: Vec::with_capacity(shape.rows),
            slots: Vec::with_capacity(shape.rows),
            table: Vec::with_capacity(shape.rows * shape.cache.table_len),
            chosen: Vec::with_capacity(shape.logits),
            temperatures: vec![0.0; shape.logits],
            seeds: vec![0; 2 * shape.logits],
            adapter_scales: Vec::new(),
        }
    }

    pub(super) fn add(&mut self, span: &Span) {
        let [own, draft] = span.tokens;
        for (position, &token) in (span.start..).zip(own.iter().chain(draft)) {
            self.tokens.push(token);
            self.positions.push(position as u32);
            let block = span.blocks[position / BLOCK_ROWS];
            self.slots.push((block * BLOCK_ROWS + position % BLOCK_ROWS) as u32);
            let start = self.table.len();
            self.table.extend(span.blocks.iter().map(|&block| block as u32));
            self.table.resize(start + self.shape.cache.table_len, 0);
            self.adapter_scales.extend(span.adapter_scales);
        }
        let end = self.tokens.len();
        let rows = end - span.asked..end;
        if let Some((temperature, seeds)) = &span.draws {
            let first = match self.shape.has_all_logits() {
                true => rows.start,
                false => self.chosen.len(),
            };
            let to = self.temperatures[first..].iter_mut();
            let to = to.zip(self.seeds[2 * first..].as_chunks_mut().0);
            for ((to, of_row), seeds) in to.zip(seeds.clone()).take(rows.len()) {
                (*to, *of_row) = (*temperature, seeds);
            }
        }
        self.chosen.extend(rows.map(|row| row as u32));
    }

    /// Adds padding rows; `rank` is that of the adapters.
    pub(super) fn fill(&mut self, rank: usize) {
        let rows = self.shape.rows;
        self.adapter_scales.resize(rows * rank, 0.0);
        self.tokens.resize(rows, 0);
        self.positions.resize(rows, 0);
        let nowhere = self.shape.cache.blocks * self.shape.cache.block_rows;
        self.slots.resize(rows, nowhere as u32);
        self.table.resize(rows * self.shape.cache.table_len, 0);
        self.chosen.resize(self.shape.logits, 0);
    }
}

/// Maximum number of rows of a step whose logits are computed: one for each sequence and each of its draft tokens.
pub(super) fn logits_rows(options: &EngineOptions, draft_tokens: usize) -> usize {
    let of_sequence = draft_tokens.saturating_add(1);
    options.sequences.saturating_mul(of_sequence).min(options.step_tokens)
}

/// The steps that a model makes with so many draft tokens of each sequence: some of few tokens, so that few sequences are not
/// slower than they have to be, and the largest.
pub(super) fn shapes(options: &EngineOptions, draft_tokens: usize, cache: PagedCache, draws: bool) -> Vec<Rows> {
    let most = options.step_tokens;
    let asked = logits_rows(options, draft_tokens);
    let powers = (0..).map(|power| 1usize << power).take_while(|&rows| rows < asked);
    let mut rows: Vec<usize> = powers.collect();
    rows.extend([asked, most]);
    rows.dedup();
    let shape = |rows: usize| Rows {
        rows,
        logits: rows.min(asked),
        draws,
        cache,
    };
    rows.into_iter().map(shape).collect()
}
