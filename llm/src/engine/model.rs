//! A model with its caches, and the steps that it makes.

use meganeura_core::plan::MemoryForecast;
use meganeura_core::{Error, Result, Session};
use meganeura_nn::models::{
    ADAPTER_SCALES, BLOCK_TABLE, LOGITS_ROW, POSITIONS, PagedCache, SEEDS, SLOTS, TEMPERATURES, TOKENS,
};

use super::inputs::{Inputs, Rows, Span, shapes};
use super::options::EngineOptions;
use crate::checkpoint::Checkpoint;
use crate::config::ModelConfig;
use crate::plans::{Joined, Plans, Step};

/// A session that reads tokens of any sequences.
pub(super) struct Model {
    joined: Joined<Rows>,
    vocab: usize,
    /// Rank of the adapters that rows select; 0 if there are none.
    rank: usize,
}

/// What a step gives for the rows that are asked for.
pub(super) struct Outputs {
    /// Their logits, `[rows, vocab]`; empty if the device has drawn all tokens.
    pub(super) logits: Vec<f32>,
    /// The tokens that the device has drawn, each with a number above 0 if it could, `[rows, 2]`; empty if it draws none.
    pub(super) drawn: Vec<f32>,
}

impl Model {
    /// With steps for so many draft tokens of each sequence.
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
        // Drawn tokens are read as `f32`, which has all integers up to there.
        let are_exact = config.network.vocab <= 1 << f32::MANTISSA_DIGITS;
        let draws = options.device_sampling.unwrap_or(has_own_memory) && are_exact;
        let shapes = shapes(options, draft_tokens, cache, draws);
        let mut joined = plans.session(&config.network, &shapes)?;
        checkpoint.load_into(&mut joined.session)?;
        Ok(Model {
            joined,
            vocab: config.network.vocab,
            rank: config
                .network
                .lora
                .filter(|_| config.network.lora_per_row)
                .map_or(0, |lora| lora.rank),
        })
    }

    /// The session, to set adapters.
    pub(super) fn session(&mut self) -> &mut Session {
        &mut self.joined.session
    }

    pub(super) fn memory_forecast(&self) -> MemoryForecast {
        self.joined.session.plan().memory_forecast()
    }

    /// Tokens of a vocabulary.
    pub(super) fn vocab(&self) -> usize {
        self.vocab
    }

    /// Reads tokens; returns what is needed of those that are asked for, one after the other.
    pub(super) fn run(&mut self, spans: &[Span]) -> Result<Outputs> {
        let rows: usize = spans.iter().map(Span::len).sum();
        let asked: usize = spans.iter().map(|span| span.asked).sum();
        let fits = |rows_of: &Rows| rows_of.rows >= rows && rows_of.logits >= asked;
        let Joined { session, steps } = &mut self.joined;
        let step = steps.iter().filter(|step| fits(&step.shape));
        let Some(step) = step.min_by_key(|step| step.shape.rows) else {
            return Err(Error::misuse(format!("no step reads {rows} tokens"), ""));
        };
        let shape = step.shape;
        let mut inputs = Inputs::new(shape);
        spans.iter().for_each(|span| inputs.add(span));
        let chosen = inputs.chosen.clone();
        inputs.fill(self.rank);
        session.try_set_input_u32(&step.input(TOKENS), &inputs.tokens)?;
        session.try_set_input_u32(&step.input(POSITIONS), &inputs.positions)?;
        session.try_set_input_u32(&step.input(SLOTS), &inputs.slots)?;
        session.try_set_input_u32(&step.input(BLOCK_TABLE), &inputs.table)?;
        if self.rank > 0 {
            session.try_set_input(&step.input(ADAPTER_SCALES), &inputs.adapter_scales)?;
        }
        if !shape.has_all_logits() {
            session.try_set_input_u32(&step.input(LOGITS_ROW), &inputs.chosen)?;
        }
        if shape.draws {
            session.try_set_input(&step.input(TEMPERATURES), &inputs.temperatures)?;
            session.try_set_input_u32(&step.input(SEEDS), &inputs.seeds)?;
        }
        step.run(session)?;
        let places: Vec<usize> = match shape.has_all_logits() {
            true => chosen.iter().map(|&row| row as usize).collect(),
            false => (0..chosen.len()).collect(),
        };
        let needs_logits = spans
            .iter()
            .any(|span| span.asked > 0 && !(shape.draws && span.draws.is_some()));
        Ok(Outputs {
            logits: match needs_logits {
                true => {
                    let rows = places.last().map_or(0, |&row| row + 1);
                    read_rows(session, step, (0, rows), &places, self.vocab)?
                }
                false => Vec::new(),
            },
            // Always as many: what is read as before is copied behind the step, without being asked for.
            drawn: match shape.draws {
                true => read_rows(session, step, (1, shape.logits), &places, 2)?,
                false => Vec::new(),
            },
        })
    }
}

/// Rows of an output, in ascending order, among so many that are read at once.
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
