//! Generation of many sequences at the same time (continuous batching; Yu et al., "Orca", 2022).
//!
//! An [`Engine`] has one session. Each step reads some tokens of any sequences: one token of each
//! sequence in decode, and chunks of new prompts (prefill), so that decoding sequences keep their
//! pace. Keys and values are in blocks that all sequences share (PagedAttention; Kwon et al.,
//! 2023); equal prefixes are computed once and reused. If blocks run out, the most recent sequence
//! is preempted: it returns its blocks, and is computed again when blocks are available.
//!
//! Nothing runs in the background: [`Engine::step`] makes one step, and returns its events.

mod admission;
mod blocks;
mod draft_model;
mod inputs;
mod model;
mod ngrams;
mod options;
mod request;
mod sequence;

use std::collections::{HashMap, VecDeque};
use std::path::Path;
use std::sync::Arc;

use meganeura_core::backend::Device;
use meganeura_core::config::Config;
use meganeura_core::plan::MemoryForecast;
use meganeura_core::{Error, Result, select};
use meganeura_nn::models::PagedCache;
use rayon::prelude::*;

use crate::adapters::PackedAdapters;
use crate::checkpoint::Checkpoint;
use crate::config::ModelConfig;
use crate::plans::Plans;
use blocks::BlockPool;
use draft_model::DraftModel;
use inputs::{BLOCK_ROWS, Part, Rows, Span, logits_rows};
use model::{Model, Outputs};
pub use options::{DraftOptions, EngineOptions};
pub use request::{ChosenToken, Constraint, EngineCounts, Event, Finish, SequenceId, SequenceRequest};
use sequence::{Choice, Row, Sequence};

/// A language model that generates many sequences.
pub struct Engine {
    config: ModelConfig,
    selector: String,
    options: EngineOptions,
    /// Maximum tokens of a sequence.
    context: usize,
    model: Model,
    draft_model: Option<DraftModel>,
    cache: PagedCache,
    pool: BlockPool,
    /// Running sequences in the order of their arrival.
    running: Vec<Sequence>,
    waiting: VecDeque<Sequence>,
    /// Number of the last turn (admission of a sequence) of each waiting group, and of all groups; see
    /// [`SequenceRequest::group`].
    turns: HashMap<u64, u64>,
    last_turn: u64,
    next_id: u64,
    counts: EngineCounts,
    adapters: PackedAdapters,
}

impl Engine {
    /// Opens the checkpoint in a folder, with `config.json` and safetensors files, or a GGUF file;
    /// and the draft model of the options.
    ///
    /// # Errors
    /// The errors of [`ModelConfig::open`], [`Checkpoint::open`] and [`Engine::on`]; a device that
    /// cannot be selected.
    pub fn open(folder: &Path, options: EngineOptions) -> Result<Self> {
        let config = ModelConfig::open(folder)?;
        let mut checkpoint = Checkpoint::open(folder)?.with_observer(options.observer.clone());
        let adapters = match options.adapters_to_merge(&checkpoint)? {
            Some(adapters) => {
                checkpoint = checkpoint.with_adapters(adapters)?;
                PackedAdapters::default()
            }
            None => options.packed_adapters(&checkpoint)?,
        };
        let draft = options.draft_model.clone();
        let draft = draft.map(|draft| Ok::<_, Error>((ModelConfig::open(&draft.model)?, draft)));
        let draft = draft.transpose()?;
        if let Some((draft, _)) = &draft {
            // Checked before the model is loaded, which may take a while.
            let context = options.context.unwrap_or(config.context);
            draft_model::check(draft, &config, context, &options)?;
        }
        let settings = Config::load()?;
        let selected = select::select(options.device.as_deref(), &settings)?;
        let device = selected.open(&settings)?;
        let mut engine = Engine::with_plans(
            Plans::with_rewrite(device.clone(), options.plans.clone(), settings.rewrite.clone()),
            selected.selector,
            config,
            &checkpoint,
            adapters,
            options,
        )?;
        if let Some((config, DraftOptions { model, plans })) = draft {
            let plans = Plans::with_rewrite(device, plans, settings.rewrite);
            engine.add_draft_model(plans, config, &Checkpoint::open(&model)?)?;
        }
        Ok(engine)
    }

    /// Creates an engine on a device that is already open; the options' device and draft model are
    /// ignored ([`Engine::with_draft_model`] adds one).
    ///
    /// # Errors
    /// Invalid options; weights of another model ([`Checkpoint::check_model`]); errors while
    /// building sessions and loading weights, such as insufficient memory.
    pub fn on(
        device: Arc<dyn Device>,
        config: ModelConfig,
        checkpoint: &Checkpoint,
        options: EngineOptions,
    ) -> Result<Self> {
        let name = device.capabilities().name.clone();
        let plans = Plans::new(device, options.plans.clone());
        let adapters = options.packed_adapters(checkpoint)?;
        Engine::with_plans(plans, name, config, checkpoint, adapters, options)
    }

    /// Adds a draft model on an open device: a smaller model with the same vocabulary that drafts
    /// the next [`EngineOptions::draft_tokens`] of each sequence. If only one of the two devices
    /// draws tokens ([`EngineOptions::device_sampling`]), few drafts are correct above a
    /// temperature of 0.
    ///
    /// # Errors
    /// A model with another vocabulary, or with fewer positions than a sequence may have tokens; no
    /// draft tokens; sequences that are already running; the errors of [`Engine::on`].
    pub fn with_draft_model(
        mut self,
        device: Arc<dyn Device>,
        config: ModelConfig,
        checkpoint: &Checkpoint,
    ) -> Result<Self> {
        self.add_draft_model(Plans::new(device, None), config, checkpoint)?;
        Ok(self)
    }

    fn add_draft_model(&mut self, plans: Plans<Rows>, mut config: ModelConfig, checkpoint: &Checkpoint) -> Result<()> {
        if !self.is_idle() {
            return Err(Error::misuse(
                "a draft model cannot be added while sequences are running",
                "add it first",
            ));
        }
        draft_model::check(&config, &self.config, self.context, &self.options)?;
        config.network.weights = self.options.storage(checkpoint);
        config.network.cache_type = self.options.cache_type;
        self.draft_model = Some(DraftModel::new(plans, &config, checkpoint, &self.options, self.cache)?);
        // The draft model has not computed the present content of the cache.
        self.pool = BlockPool::new(self.cache.blocks);
        Ok(())
    }

    fn with_plans(
        plans: Plans<Rows>,
        selector: String,
        mut config: ModelConfig,
        checkpoint: &Checkpoint,
        adapters: PackedAdapters,
        mut options: EngineOptions,
    ) -> Result<Self> {
        options.set_step_tokens(plans.device());
        config.network.weights = options.storage(checkpoint);
        config.network.cache_type = options.cache_type;
        config.network.lora = adapters.config();
        config.network.lora_per_row = config.network.lora.is_some();
        let context = options.context.unwrap_or(config.context);
        options.check(context, config.context)?;
        let table_len = context.div_ceil(BLOCK_ROWS);
        let usual = context.saturating_mul(options.sequences).div_ceil(2).max(context);
        let tokens = options.cache_tokens.unwrap_or(usual).max(context);
        let cache = PagedCache {
            blocks: tokens.div_ceil(BLOCK_ROWS),
            block_rows: BLOCK_ROWS,
            table_len,
        };
        let mut model = Model::new(plans, &config, checkpoint, &options, options.draft_tokens, cache)?;
        adapters.load_into(model.session())?;
        Ok(Engine {
            config,
            selector,
            context,
            model,
            draft_model: None,
            cache,
            pool: BlockPool::new(cache.blocks),
            running: Vec::new(),
            waiting: VecDeque::new(),
            turns: HashMap::new(),
            last_turn: 0,
            next_id: 0,
            counts: EngineCounts::default(),
            adapters,
            options,
        })
    }

    /// Returns the configuration of the model.
    pub fn config(&self) -> &ModelConfig {
        &self.config
    }

    /// Returns the string that selects the device.
    pub fn device(&self) -> &str {
        &self.selector
    }

    /// Returns the maximum tokens of a sequence, including the prompt.
    pub fn context(&self) -> usize {
        self.context
    }

    /// Returns the memory of the model's session, with caches among the parameters, but without
    /// that of a draft model.
    pub fn memory_forecast(&self) -> MemoryForecast {
        self.model.memory_forecast()
    }

    /// Returns counters of completed work, and the current load.
    pub fn counts(&self) -> EngineCounts {
        EngineCounts {
            running: self.running.len(),
            waiting: self.waiting.len(),
            blocks_used: self.pool.used(),
            blocks: self.cache.blocks,
            ..self.counts
        }
    }

    /// Returns true if no sequence is running or waiting.
    pub fn is_idle(&self) -> bool {
        self.running.is_empty() && self.waiting.is_empty()
    }

    /// Adds a text to continue in the following steps.
    ///
    /// # Errors
    /// A prompt without tokens, or with one that is not in the vocabulary; a prompt that with
    /// `max_tokens` does not fit into a sequence; invalid sampling options.
    pub fn submit(&mut self, request: SequenceRequest) -> Result<SequenceId> {
        sequence::check(&request, &self.config, self.context)?;
        if let Some(adapter) = request
            .adapter
            .filter(|&adapter| adapter >= self.options.named_adapters.len())
        {
            return Err(Error::misuse(
                format!(
                    "expected an adapter below {}, found {adapter}",
                    self.options.named_adapters.len()
                ),
                "use an index of EngineOptions::named_adapters",
            ));
        }
        let id = SequenceId(self.next_id);
        self.waiting.push_back(Sequence::new(id, request, self.last_turn)?);
        self.next_id += 1;
        Ok(id)
    }

    /// Cancels a sequence; does nothing if it has already ended.
    pub fn cancel(&mut self, id: SequenceId) {
        self.waiting.retain(|sequence| sequence.id != id);
        if let Some(place) = self.running.iter().position(|sequence| sequence.id == id) {
            self.end(place);
        }
    }

    fn end(&mut self, place: usize) {
        let mut sequence = self.running.remove(place);
        sequence.give_back(&mut self.pool);
    }

    /// Runs one step: computes tokens of the scheduled sequences, and chooses the next token of each sequence whose
    /// last token was computed. Without sequences it does nothing.
    ///
    /// # Errors
    /// The errors of the session; sequences are then unchanged.
    pub fn step(&mut self) -> Result<Vec<Event>> {
        let mut events = Vec::new();
        self.choose_held(&mut events);
        self.admit();
        let mut parts = self.schedule();
        if parts.is_empty() {
            return Ok(events);
        }
        if let Some(draft_model) = &mut self.draft_model
            && let Err(error) = draft_model.draft(&mut self.running, &mut parts)
        {
            // The tokens drafted so far are still usable.
            log::warn!("the draft model failed and proposes fewer tokens in this step: {error}");
        }
        let mut outputs = self.run(&parts)?;
        self.counts.steps += 1;
        let chosen = self.choose(&parts, &mut outputs);
        let mut ended = Vec::new();
        for (part, chosen) in parts.iter().zip(chosen) {
            if self.take(part, chosen, &mut events) {
                ended.push(part.sequence);
            }
        }
        for &place in ended.iter().rev() {
            self.end(place);
        }
        Ok(events)
    }

    /// Chooses the tokens of sequences that waited for their constraints, if these are ready.
    fn choose_held(&mut self, events: &mut Vec<Event>) {
        let mut ended = Vec::new();
        for (place, sequence) in self.running.iter_mut().enumerate() {
            if let Some(choice) = sequence.choose_held()
                && report(sequence.id, choice, &mut self.counts, events)
            {
                ended.push(place);
            }
        }
        for &place in ended.iter().rev() {
            self.end(place);
        }
    }

    /// Returns true if all running sequences wait for their constraints, so that a step would do nothing.
    pub fn waits_for_constraints(&self) -> bool {
        !self.running.is_empty() && self.running.iter().all(Sequence::is_held)
    }

    /// Schedules the rows of the next step.
    fn schedule(&mut self) -> Vec<Part> {
        let mut left = self.options.max_step_tokens();
        let mut parts: Vec<Part> = Vec::new();
        let mut scores = logits_rows(&self.options, self.options.draft_tokens);
        let due = |reads: bool| {
            let due = self.running.iter().filter(|s| !s.is_held());
            due.filter(move |s| (s.due() > 1) == reads)
        };
        // Decoding sequences come first, so that they keep their pace.
        let generating: Vec<SequenceId> = due(false).map(|s| s.id).collect();
        let mut reading: Vec<&Sequence> = due(true).collect();
        let oldest = reading.first().map(|s| s.id);
        // Groups take turns, and short prompts come first. A quarter of the rows is for the oldest sequence, so that it makes
        // progress.
        let rank = |sequence: &Sequence| match sequence.group {
            Some(_) => due(true)
                .take_while(|s| s.id != sequence.id)
                .filter(|s| s.group == sequence.group)
                .count(),
            None => 0,
        };
        reading.sort_by_cached_key(|s| (rank(s), s.due()));
        // Each of these may need the logits of its last row.
        let mut unscored = reading.iter().filter(|s| !s.is_scored()).count();
        let reading: Vec<SequenceId> = reading.into_iter().map(|s| s.id).collect();
        let waiting = generating.len();
        let (mut reserved, mut reserved_scores) = (0, 0);
        for (number, id) in generating.into_iter().chain(reading).enumerate() {
            // The sequence may have been preempted by an earlier one.
            let Some(place) = self.running.iter().position(|s| s.id == id) else {
                continue;
            };
            let others = waiting.saturating_sub(number + 1);
            // Its own logits, if any, are part of `scores` from now on.
            unscored -= usize::from(number >= waiting && !self.running[place].is_scored()).min(unscored);
            let mut most = left.saturating_sub(others);
            if number == waiting {
                reserved = left.div_ceil(4);
                // If the oldest sequence is scored, it also needs logits.
                let is_scored = self.running.iter().any(|s| Some(s.id) == oldest && s.is_scored());
                reserved_scores = if is_scored { scores.div_ceil(4) } else { 0 };
            }
            if oldest == Some(id) {
                (reserved, reserved_scores) = (0, 0);
            }
            most = most.saturating_sub(reserved);
            if self.running[place].is_scored() {
                most = most.min(scores.saturating_sub(others + unscored + reserved_scores));
            }
            let mut part = self.part_of(place, most);
            if part.rows == 0 || part.logits() > scores {
                continue;
            }
            let end = self.running[place].computed + part.rows;
            if !self.make_room(id, end) {
                continue;
            }
            self.make_room_for_draft(&mut part, end);
            left -= part.rows + part.room;
            scores -= part
                .logits()
                .max(usize::from(part.is_read) * (1 + part.room))
                .min(scores);
            parts.push(part);
        }
        // Positions may have changed by preemptions.
        parts.retain_mut(|part| match self.running.iter().position(|s| s.id == part.id) {
            Some(place) => {
                part.sequence = place;
                true
            }
            None => false,
        });
        parts.sort_by_key(|part| part.sequence);
        parts
    }

    /// Returns the part of a running sequence, by its index, for the next step, with at most `most` rows.
    fn part_of(&self, place: usize, most: usize) -> Part {
        let sequence = &self.running[place];
        let rows = sequence.due().min(most);
        let is_read = rows == sequence.due();
        let mut part = Part {
            id: sequence.id,
            sequence: place,
            rows,
            room: 0,
            draft: Vec::new(),
            is_read,
            is_scored: sequence.is_scored(),
        };
        // During prefill of any sequence, prompts use the rest of the step instead of draft tokens.
        let nobody_reads = self.running.iter().all(|other| other.due() <= 1);
        if is_read && nobody_reads && sequence.may_draft() {
            // The correct draft tokens are accepted, and one more token is chosen.
            part.room = self
                .options
                .draft_tokens
                .min(most - rows)
                .min(sequence.left().saturating_sub(1));
            if self.draft_model.is_none() {
                part.draft = ngrams::lookup(&sequence.tokens, part.room).to_vec();
                part.room = part.draft.len();
            }
        }
        part
    }

    /// Ensures that a sequence has blocks for `tokens` tokens. If there are none, the most recent
    /// sequence is preempted. Returns true if it has the blocks.
    fn make_room(&mut self, id: SequenceId, tokens: usize) -> bool {
        loop {
            let Some(place) = self.running.iter().position(|s| s.id == id) else {
                return false;
            };
            if self.running[place].blocks.len() * BLOCK_ROWS >= tokens {
                return true;
            }
            if let Some(block) = self.pool.take() {
                self.running[place].blocks.push(block);
                continue;
            }
            let Some(mut last) = self.running.pop() else {
                return false;
            };
            last.give_back(&mut self.pool);
            self.counts.preemptions += 1;
            self.waiting.push_front(last);
        }
    }

    /// Allocates blocks for the draft tokens of a part that ends at `end`, without preempting other
    /// sequences; draft tokens without room are dropped.
    fn make_room_for_draft(&mut self, part: &mut Part, end: usize) {
        let Some(sequence) = self.running.iter_mut().find(|s| s.id == part.id) else {
            return;
        };
        while sequence.blocks.len() * BLOCK_ROWS < end + part.room
            && let Some(block) = self.pool.take()
        {
            sequence.blocks.push(block);
        }
        part.room = part.room.min(sequence.blocks.len() * BLOCK_ROWS - end);
        part.draft.truncate(part.room);
    }

    /// Runs a step; returns the outputs for the requested rows of the parts.
    fn run(&mut self, parts: &[Part]) -> Result<Outputs> {
        let spans = parts.iter().map(|part| {
            let sequence = &self.running[part.sequence];
            let start = sequence.computed;
            Span {
                start,
                tokens: [&sequence.tokens[start..start + part.rows], &part.draft],
                blocks: &sequence.blocks,
                asked: part.logits(),
                draws: sequence.device_draws(),
                adapter_scales: self.adapters.scales(sequence.adapter),
            }
        });
        let spans: Vec<Span> = spans.collect();
        self.model.run(&spans)
    }

    /// Chooses the next tokens of the sequences whose last token a step has computed, unless the device has drawn them.
    /// Sequences are processed in parallel, because with a large vocabulary and a small model this takes longer than
    /// the step.
    fn choose(&mut self, parts: &[Part], outputs: &mut Outputs) -> Vec<Vec<Result<Choice>>> {
        let draws = !outputs.drawn.is_empty();
        let mut rows = outputs.logits.chunks_exact_mut(self.config.network.vocab);
        let mut drawn = outputs.drawn.as_chunks().0.iter();
        // Parts are in the order of the sequences.
        let mut parts = parts.iter().peekable();
        let mut work = Vec::with_capacity(parts.len());
        let mut on_host = 0;
        for (place, sequence) in self.running.iter_mut().enumerate() {
            if let Some(part) = parts.next_if(|part| part.sequence == place) {
                if sequence.due() > 1 {
                    self.counts.prompt_tokens += part.rows as u64;
                }
                let is_drawn = draws && sequence.device_draws().is_some();
                on_host += usize::from(part.is_read && !is_drawn);
                let of_part = (0..part.logits()).filter_map(|_| {
                    let (logits, drawn) = (rows.next(), drawn.next());
                    match (is_drawn, drawn) {
                        (true, Some(&[token, sound])) => Some(Row::Drawn(token as u32, sound > 0.0)),
                        _ => logits.map(Row::Logits),
                    }
                });
                let of_part: Vec<Row> = of_part.collect();
                work.push((sequence, part, of_part));
            }
        }
        let choose = |(sequence, part, mut rows): (&mut Sequence, &Part, Vec<Row>)| {
            sequence.score(sequence.computed, &mut rows);
            if part.is_read {
                sequence.choose_all(part, rows)
            } else {
                Vec::new()
            }
        };
        match on_host {
            0 | 1 => work.into_iter().map(choose).collect(),
            _ => work.into_par_iter().map(choose).collect(),
        }
    }

    /// Adds the chosen tokens to a sequence; returns true if it ended.
    fn take(&mut self, part: &Part, chosen: Vec<Result<Choice>>, events: &mut Vec<Event>) -> bool {
        let sequence = &mut self.running[part.sequence];
        self.counts.drafted_tokens += part.draft.len() as u64;
        let mut computed = sequence.computed + part.rows;
        let mut ended = false;
        if part.is_read
            && let Some((cached, scored)) = sequence.take_prompt()
        {
            events.push(Event::Prompt(sequence.id, cached, scored));
        }
        for (number, choice) in chosen.into_iter().enumerate() {
            // Chosen after a correct draft token.
            if number > 0 {
                self.counts.accepted_tokens += 1;
                computed += 1;
            }
            ended |= report(sequence.id, choice, &mut self.counts, events);
        }
        let pool = self.options.prefix_cache.then_some(&mut self.pool);
        sequence.advance(computed, self.draft_model.is_some(), pool, BLOCK_ROWS);
        ended
    }
}

/// Adds the events of a choice; returns true if the sequence ended.
fn report(id: SequenceId, choice: Result<Choice>, counts: &mut EngineCounts, events: &mut Vec<Event>) -> bool {
    let (chosen, finish) = match choice {
        Ok(choice) => choice,
        Err(error) => {
            events.push(Event::Failed(id, error));
            return true;
        }
    };
    if let Some(chosen) = chosen {
        counts.generated_tokens += 1;
        events.push(Event::Token(id, chosen));
    }
    if let Some(finish) = finish {
        events.push(Event::Finished(id, finish));
    }
    finish.is_some()
}

impl std::fmt::Debug for Engine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Engine")
            .field("network", &self.config.network)
            .field("device", &self.selector)
            .field("cache", &self.cache)
            .field("counts", &self.counts())
            .finish_non_exhaustive()
    }
}
