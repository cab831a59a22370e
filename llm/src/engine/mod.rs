//! Many sequences at the same time (continuous batching; Yu et al., "Orca", 2022).
//!
//! An [`Engine`] has one session, whose steps each read some tokens of any sequences: one of each that generates, and beside
//! them pieces of new prompts, so that those who generate keep their pace. Keys and values are in blocks that all sequences
//! share (PagedAttention; Kwon et al., 2023); equal beginnings are computed once and found again. Where blocks run out, the
//! sequence that came last gives its own back, and is computed again when there are some.
//!
//! Nothing runs by itself: [`Engine::step`] makes one step, and says what came of it.

mod blocks;
mod draft_model;
mod inputs;
mod model;
mod ngrams;
mod options;
mod request;
mod sequence;

use std::collections::VecDeque;
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
pub use request::{Chosen, Constraint, EngineCounts, Event, Finish, SequenceId, SequenceRequest};
use sequence::{Choice, Row, Sequence};

/// A language model that goes on with many sequences.
pub struct Engine {
    config: ModelConfig,
    selector: String,
    options: EngineOptions,
    /// Tokens of a sequence at most.
    context: usize,
    model: Model,
    draft_model: Option<DraftModel>,
    cache: PagedCache,
    pool: BlockPool,
    /// In the order in which they came.
    running: Vec<Sequence>,
    waiting: VecDeque<Sequence>,
    next_id: u64,
    counts: EngineCounts,
    adapters: PackedAdapters,
}

impl Engine {
    /// Opens the checkpoint in a folder: `config.json` and safetensors files. Or a GGUF file. And the draft model of the options.
    ///
    /// # Errors
    /// What [`ModelConfig::open`] and [`Checkpoint::open`] find; a device that cannot be selected; what [`Engine::on`] finds.
    pub fn open(folder: &Path, options: EngineOptions) -> Result<Self> {
        let config = ModelConfig::open(folder)?;
        let mut checkpoint = Checkpoint::open(folder)?;
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
            // Before the model is loaded, which may take a while.
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

    /// An engine on a device that is open already; the options' device and draft model are ignored
    /// ([`Engine::with_draft_model`] adds one).
    ///
    /// # Errors
    /// Options that make no sense; weights of another model ([`Checkpoint::check_model`]); what building sessions and loading
    /// weights find, memory that is not there among it.
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

    /// With a smaller model of the same vocabulary, on an open device, that guesses the next [`EngineOptions::draft_tokens`] of
    /// each sequence. Where only one of both devices draws tokens ([`EngineOptions::device_sampling`]), few guesses are right above a
    /// temperature of 0.
    ///
    /// # Errors
    /// A model with another vocabulary, or with fewer positions than a sequence may have tokens; no draft tokens; sequences that run
    /// already; what [`Engine::on`] finds.
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
                "a draft model for sequences that run already",
                "add it first",
            ));
        }
        draft_model::check(&config, &self.config, self.context, &self.options)?;
        config.network.weights = self.options.storage(checkpoint);
        config.network.cache_type = self.options.cache_type;
        self.draft_model = Some(DraftModel::new(plans, &config, checkpoint, &self.options, self.cache)?);
        // What there may be in the cache, the draft model has not computed.
        self.pool = BlockPool::new(self.cache.blocks);
        Ok(())
    }

    fn with_plans(
        plans: Plans<Rows>,
        selector: String,
        mut config: ModelConfig,
        checkpoint: &Checkpoint,
        adapters: PackedAdapters,
        options: EngineOptions,
    ) -> Result<Self> {
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
            next_id: 0,
            counts: EngineCounts::default(),
            adapters,
            options,
        })
    }

    /// The model.
    pub fn config(&self) -> &ModelConfig {
        &self.config
    }

    /// The string that selects the device.
    pub fn device(&self) -> &str {
        &self.selector
    }

    /// Tokens of a sequence at most, the prompt included.
    pub fn context(&self) -> usize {
        self.context
    }

    /// The memory that the model's session takes, caches among the parameters; that of a draft model comes on top.
    pub fn memory_forecast(&self) -> MemoryForecast {
        self.model.memory_forecast()
    }

    /// What was done, and what there is to do.
    pub fn counts(&self) -> EngineCounts {
        EngineCounts {
            running: self.running.len(),
            waiting: self.waiting.len(),
            blocks_used: self.pool.used(),
            blocks: self.cache.blocks,
            ..self.counts
        }
    }

    /// Whether no sequence is left.
    pub fn is_idle(&self) -> bool {
        self.running.is_empty() && self.waiting.is_empty()
    }

    /// Adds a text to go on with; the steps that follow do it.
    ///
    /// # Errors
    /// A prompt without tokens, or with one that is not in the vocabulary; one that with `max_tokens` does not fit into a
    /// sequence; sampling that makes no sense.
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
        self.waiting.push_back(Sequence::new(id, request)?);
        self.next_id += 1;
        Ok(id)
    }

    /// Ends a sequence; nothing happens if it has ended.
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

    /// One step: reads tokens of as many sequences as it may, and chooses the next token of each that is read to its end.
    /// Without sequences it does nothing.
    ///
    /// # Errors
    /// What the session finds; sequences are as before then.
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
            // What it has guessed until then is as good as any guess.
            log::warn!("the draft model fails, and guesses fewer tokens in this step: {error}");
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

    /// Chooses the tokens that waited for their constraints, as far as these are ready.
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

    /// Takes the next waiting sequence. A quarter of the slots is for sequences without constraints, because masks may take
    /// seconds.
    fn next_waiting(&mut self) -> Option<Sequence> {
        let slots = self.options.sequences;
        let limit = if slots > 1 { slots - slots.div_ceil(4) } else { slots };
        let constrained = self.running.iter().filter(|sequence| !sequence.may_draft()).count();
        let at = self
            .waiting
            .iter()
            .position(|sequence| sequence.may_draft() || constrained < limit)?;
        self.waiting.remove(at)
    }

    /// Lets sequences that wait run, as long as there is room for what they have and a token more.
    fn admit(&mut self) {
        while self.running.len() < self.options.sequences
            && let Some(mut next) = self.next_waiting()
        {
            if self.options.prefix_cache {
                next.find_beginning(&mut self.pool, BLOCK_ROWS);
            }
            // Those that run take theirs piece by piece.
            let missing = |sequence: &Sequence| {
                (sequence.tokens.len() + 1)
                    .div_ceil(BLOCK_ROWS)
                    .saturating_sub(sequence.blocks.len())
            };
            let promised: usize = self.running.iter().map(missing).sum();
            if promised + missing(&next) > self.pool.available() && !self.running.is_empty() {
                next.give_back(&mut self.pool);
                self.waiting.push_front(next);
                return;
            }
            self.counts.cached_tokens += next.computed as u64;
            self.running.push(next);
        }
    }

    /// The rows of the next step.
    fn schedule(&mut self) -> Vec<Part> {
        let mut left = self.options.step_tokens;
        let mut parts: Vec<Part> = Vec::new();
        // Those who generate first, so that they keep their pace; the rest in the order in which they came.
        let mut scores = logits_rows(&self.options, self.options.draft_tokens);
        let (generating, reading): (Vec<SequenceId>, Vec<SequenceId>) = {
            let ids = |reads: bool| {
                let due = self.running.iter().filter(|s| !s.is_held());
                let of_kind = due.filter(move |s| (s.due() > 1) == reads);
                of_kind.map(|s| s.id).collect()
            };
            (ids(false), ids(true))
        };
        let waiting = generating.len();
        for (number, id) in generating.into_iter().chain(reading).enumerate() {
            // It may have given its blocks back to one before it.
            let Some(place) = self.running.iter().position(|s| s.id == id) else {
                continue;
            };
            let others = waiting.saturating_sub(number + 1);
            let mut most = left.saturating_sub(others);
            if self.running[place].is_scored() {
                most = most.min(scores.saturating_sub(others));
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
        // Places may have moved while blocks were given back.
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

    /// The next rows of a sequence, at most so many.
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
        // While prompts are read, these have the rest of the step.
        let nobody_reads = self.running.iter().all(|other| other.due() == 1);
        if is_read && nobody_reads && sequence.may_draft() {
            // Those that are right are chosen, and there is one more token then.
            part.room = self.options.draft_tokens.min(most - rows).min(sequence.left() - 1);
            if self.draft_model.is_none() {
                part.draft = ngrams::lookup(&sequence.tokens, part.room).to_vec();
                part.room = part.draft.len();
            }
        }
        part
    }

    /// Sees to it that a sequence has blocks for so many tokens; the sequence that came last gives its own back where there
    /// are none. Returns whether it has them.
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

    /// Gets blocks for the draft tokens of a part behind so many tokens, without taking any from others; those that find no
    /// room are left out.
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

    /// Runs a step; returns what is needed of the rows that parts ask for.
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

    /// Chooses the next tokens of the sequences that a step has read, where the device has not drawn them; side by side: with a large
    /// vocabulary and a small model that takes longer than the step.
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

    /// Takes what was chosen for a sequence; returns whether it ended.
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
            // Chosen behind a draft token that was right.
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

/// Adds the events of a choice; returns whether the sequence ended.
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
