//! A model with its caches and the plans of its steps.

use meganeura_core::plan::MemoryForecast;
use meganeura_core::{Error, Result, Session};
use meganeura_nn::models::{
    ADAPTER_SCALES, BLOCK_TABLE, EARLIER_ROWS, LOGITS_ROW, MIN_PS, POSITIONS, PagedCache, SEEDS, SLOTS, TEMPERATURES,
    TOKENS, TOP_KS, TOP_PS,
};

use super::inputs::{Inputs, Rows, Span, shapes};
use super::options::EngineOptions;
use crate::checkpoint::Checkpoint;
use crate::config::ModelConfig;
use crate::plans::{Plans, SharedSession, Step};

/// A session that computes tokens of any sequences.
pub(super) struct Model {
    joined: SharedSession<Rows>,
    vocab: usize,
    /// Rank of the adapters that rows select; 0 if there are none.
    rank: usize,
    /// Number of earlier tokens that each row needs.
    lags: usize,
}

/// The outputs of a step for the requested rows.
pub(super) struct Outputs {
    /// Logits of the rows, `[rows, vocab]`; empty if the device has drawn all tokens.
    pub(super) logits: Vec<f32>,
    /// Tokens that the device has drawn, each with a number above 0 if the draw succeeded,
    /// `[rows, 2]`; empty if it draws none.
    pub(super) drawn: Vec<f32>,
}

impl Model {
    /// Creates a model whose steps have room for this number of draft tokens of each sequence.
    pub(super) fn new(
        mut plans: Plans<Rows>,
        config: &ModelConfig,
        checkpoint: &Checkpoint,
        options: &EngineOptions,
        draft_tokens: usize,
        cache: PagedCache,
    ) -> Result<Self> {
        checkpoint.check_model(&config.network)?;
        let has_own_memory = !plans.device().capabilities().unified_memory;
        // Drawn tokens are read as `f32`, which represents all integers up to this limit.
        let are_exact = config.network.vocab <= 1 << f32::MANTISSA_DIGITS;
        let draws = options.device_sampling.unwrap_or(has_own_memory) && are_exact;
        let shapes = shapes(options, draft_tokens, cache, draws);
        let mut joined = plans.session(&config.network, &shapes)?;
        checkpoint.load_into(&mut joined.session)?;
        Ok(Model {
            joined,
            vocab: config.network.vocab,
            lags: config.network.earlier_rows(),
            rank: config
                .network
                .lora
                .filter(|_| config.network.lora_per_row)
                .map_or(0, |lora| lora.rank),
        })
    }

    /// Returns the session, so that the caller can set adapters.
    pub(super) fn session(&mut self) -> &mut Session {
        &mut self.joined.session
    }

    pub(super) fn memory_forecast(&self) -> MemoryForecast {
        self.joined.session.plan().memory_forecast()
    }

    /// Returns the number of tokens in the vocabulary.
    pub(super) fn vocab(&self) -> usize {
        self.vocab
    }

    /// Computes the tokens of spans; returns the outputs for the requested tokens, in order.
    pub(super) fn run(&mut self, spans: &[Span]) -> Result<Outputs> {
        let rows: usize = spans.iter().map(Span::len).sum();
        let asked: usize = spans.iter().map(|span| span.asked).sum();
        let fits = |rows_of: &Rows| rows_of.rows >= rows && rows_of.logits >= asked;
        let SharedSession { session, steps } = &mut self.joined;
        let step = steps.iter().filter(|step| fits(&step.shape));
        let Some(step) = step.min_by_key(|step| step.shape.rows) else {
            return Err(Error::misuse(format!("no step reads {rows} tokens"), ""));
        };
        let shape = step.shape;
        let mut inputs = Inputs::new(shape, self.lags);
        spans.iter().for_each(|span| inputs.add(span));
        let chosen = inputs.chosen.clone();
        inputs.fill(self.rank);
        session.try_set_input_u32(&step.input(TOKENS), &inputs.tokens)?;
        session.try_set_input_u32(&step.input(POSITIONS), &inputs.positions)?;
        session.try_set_input_u32(&step.input(SLOTS), &inputs.slots)?;
        session.try_set_input_u32(&step.input(BLOCK_TABLE), &inputs.table)?;
        if self.lags > 0 {
            session.try_set_input_u32(&step.input(EARLIER_ROWS), &inputs.earlier)?;
        }
        if self.rank > 0 {
            session.try_set_input(&step.input(ADAPTER_SCALES), &inputs.adapter_scales)?;
        }
        if !shape.has_all_logits() {
            session.try_set_input_u32(&step.input(LOGITS_ROW), &inputs.chosen)?;
        }
        if shape.draws {
            session.try_set_input(&step.input(TEMPERATURES), &inputs.temperatures)?;
            session.try_set_input_u32(&step.input(TOP_KS), &inputs.top_ks)?;
            session.try_set_input(&step.input(TOP_PS), &inputs.top_ps)?;
            session.try_set_input(&step.input(MIN_PS), &inputs.min_ps)?;
            session.try_set_input_u32(&step.input(SEEDS), &inputs.seeds)?;
        }
        step.run(session)?;
        let places: Vec<usize> = if shape.has_all_logits() {
            chosen.iter().map(|&row| row as usize).collect()
        } else {
            (0..chosen.len()).collect()
        };
        let needs_logits = spans
            .iter()
            .any(|span| span.asked > 0 && !(shape.draws && span.draws.is_some()));
        Ok(Outputs {
            logits: if needs_logits {
                let rows = places.last().map_or(0, |&row| row + 1);
                read_rows(session, step, (0, rows), &places, self.vocab)?
            } else {
                Vec::new()
            },
            // Reads always have the same size, so that the session copies the data right after the step, without a
            // separate request.
            drawn: if shape.draws {
                read_rows(session, step, (1, shape.logits), &places, 2)?
            } else {
                Vec::new()
            },
        })
    }
}

/// Returns rows of an output, in ascending order, from a single read of the first `rows` rows.
fn read_rows(
    session: &mut Session,
    step: &Step<Rows>,
    (output, rows): (usize, usize),
    places: &[usize],
    width: usize,
) -> Result<Vec<f32>> {
    let mut numbers = step.read(session, output, rows * width)?;
    for (to, &row) in places.iter().enumerate() {
        numbers.copy_within(row * width..(row + 1) * width, to * width);
    }
    numbers.truncate(places.len() * width);
    Ok(numbers)
}
