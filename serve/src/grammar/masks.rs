//! Masks of a grammar: the tokens that it allows next.
//!
//! An ambiguous grammar can take seconds for one token. The engine therefore never waits for a mask: it computes the logits of
//! the token meanwhile, and continues with other sequences until the mask is ready.

use std::sync::mpsc::{Receiver, RecvTimeoutError, TryRecvError, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use llguidance::{CancellationHandle, TokenParser};
use meganeura_core::{Error, Result};
use meganeura_llm::engine::Constraint;
use toktrie::SimpleVob;

use super::mask_pool::{CountedGrammar, MaskPool, MaskTime, ParserItems};
use crate::lock::lock;
use crate::preparation::GrammarRoom;
use meganeura_llm::processor_time::ThreadTime;

/// Maximum time that a sequence waits, after its last token, for the check whether the grammar allows its text to end there.
const LAST_WAIT: Duration = Duration::from_secs(1);

/// Result of a job: the parser, and the mask of the next token. There is no mask if the text is complete.
pub(crate) struct Answer {
    parser: TokenParser,
    mask: std::result::Result<Option<SimpleVob>, String>,
}

/// Consumes `token`, and returns the number of items that the parser keeps for it.
fn consume(parser: &mut TokenParser, token: u32) -> std::result::Result<u64, String> {
    let before = parser.parser_stats().all_items;
    let consumed = parser.consume_token(token).and_then(|_| parser.check_stop());
    consumed.map_err(|e| parser.augment_err(e))?;
    Ok(parser.parser_stats().all_items.saturating_sub(before) as u64)
}

/// Returns the mask of the next token, or `None` if the text is complete.
fn mask(parser: &mut TokenParser) -> std::result::Result<Option<SimpleVob>, String> {
    if let Some(error) = parser.error_message() {
        return Err(error);
    }
    if parser.stopped() {
        return Ok(None);
    }
    parser.compute_mask().map(Some).map_err(|e| parser.augment_err(e))
}

/// The state of a grammar before its first token.
pub(crate) struct FirstMask {
    /// The parser, which cannot be cancelled: each sequence gets a copy with its own cancellation.
    parser: TokenParser,
    mask: Option<SimpleVob>,
}

impl FirstMask {
    /// Computes the first mask on this thread. Returns `None` if it takes longer than `limit`.
    ///
    /// # Errors
    /// [`Error::InvalidUse`] if the grammar exceeds a limit of the parser; [`Error::HostMemory`] if no thread can be started.
    pub(crate) fn of(parser: TokenParser, limit: Duration, spent: &MaskTime) -> Result<Option<Self>> {
        let mut tried = parser.clone();
        let cancel = tried.enable_cancellation();
        let begun = ThreadTime::now();
        let mask = std::thread::scope(|scope| {
            let (done, ended) = channel::<()>();
            let of_timer = cancel.clone();
            let stop = move || {
                if ended.recv_timeout(limit) == Err(RecvTimeoutError::Timeout) {
                    of_timer.cancel();
                }
            };
            let timer = std::thread::Builder::new().name("first mask".into());
            timer.spawn_scoped(scope, stop).map_err(|_| Error::HostMemory {
                what: "a thread that limits the time of a mask".into(),
                bytes: 0,
            })?;
            let mask = mask(&mut tried);
            drop(done);
            Ok::<_, Error>(mask)
        })?;
        spent.add(begun.elapsed());
        if cancel.is_cancelled() {
            return Ok(None);
        }
        let mask = mask.map_err(|e| failed(&e))?;
        Ok(Some(FirstMask { parser, mask }))
    }

    /// Returns the state for one sequence. Sequences share the tables of the lexer, which take megabytes for a large grammar.
    pub(super) fn answer(&self) -> Answer {
        Answer {
            parser: self.parser.clone(),
            mask: Ok(self.mask.clone()),
        }
    }
}

/// State of a [`GrammarConstraint`].
enum State {
    Ready(Box<Answer>),
    /// The job for the next mask is queued or running. `began` is set when it starts; `answer` receives its result.
    Busy {
        answer: Receiver<Answer>,
        began: Arc<Mutex<Option<Instant>>>,
        cancel: CancellationHandle,
    },
    Failed(String),
}

/// Constraint of a sequence by a grammar, with masks computed by a [`MaskPool`].
pub(crate) struct GrammarConstraint {
    pool: Arc<MaskPool>,
    spent: MaskTime,
    /// Tokens that end a text.
    ends: Arc<[u32]>,
    state: State,
    /// Time of the first question whether the text is complete.
    asked: Option<Instant>,
    items: Arc<ParserItems>,
    _counted: CountedGrammar,
    /// Room of the compiled grammar, shared by the sequences of a request.
    _room: Arc<GrammarRoom>,
}

impl GrammarConstraint {
    /// Creates the constraint from the first mask of its grammar.
    pub(crate) fn new(
        pool: Arc<MaskPool>,
        first: Answer,
        spent: MaskTime,
        ends: Arc<[u32]>,
        room: Arc<GrammarRoom>,
    ) -> Self {
        GrammarConstraint {
            _counted: CountedGrammar::new(pool.clone()),
            items: ParserItems::new(pool.clone()),
            pool,
            spent,
            ends,
            state: State::Ready(Box::new(first)),
            asked: None,
            _room: room,
        }
    }

    /// Submits a job that consumes `token` and computes the next mask.
    fn compute(&mut self, mut parser: TokenParser, token: u32) {
        let cancel = parser.enable_cancellation();
        let (sender, answer) = channel();
        let began = Arc::new(Mutex::new(None));
        let (of_job, spent, items) = (began.clone(), self.spent.clone(), self.items.clone());
        let wake = self.pool.wake_on_drop();
        let work = move || {
            // Also after a panic, when the sender is gone.
            let _wake = wake;
            let sender = sender;
            *lock(&of_job) = Some(Instant::now());
            let begun = ThreadTime::now();
            let consumed = consume(&mut parser, token).and_then(|new| items.add(new));
            let mask = consumed.and_then(|()| mask(&mut parser));
            spent.add(begun.elapsed());
            // A sequence that was cancelled receives nothing.
            let _ = sender.send(Answer { parser, mask });
        };
        self.pool.submit(self.spent.clone(), Box::new(work));
        self.state = State::Busy { answer, began, cancel };
    }

    /// Receives a mask that is ready, and cancels one that takes too long.
    fn poll(&mut self) {
        let State::Busy { answer, began, cancel } = &self.state else {
            return;
        };
        let began = *lock(began);
        match answer.try_recv() {
            Ok(answer) => self.state = State::Ready(Box::new(answer)),
            Err(TryRecvError::Disconnected) => self.state = State::Failed("its thread panicked".into()),
            Err(TryRecvError::Empty) => {
                let limit = self.pool.step_budget(&self.spent);
                let is_late = began.is_some_and(|began| began.elapsed() > limit);
                let message = if is_late {
                    format!("one token takes longer than {} ms", limit.as_millis())
                } else {
                    let budget = self.pool.budget(&self.spent);
                    if self.spent.get() <= budget {
                        return;
                    }
                    format!(
                        "the request took longer than {:.1} s for its grammar",
                        budget.as_secs_f64()
                    )
                };
                cancel.cancel();
                self.state = State::Failed(message);
            }
        }
    }
}

fn failed(error: &str) -> Error {
    let error: String = error.chars().take(300).collect();
    Error::misuse(
        format!("the grammar cannot be continued: {error}"),
        "use a simpler schema or grammar",
    )
}

impl Constraint for GrammarConstraint {
    fn is_ready(&mut self) -> bool {
        self.poll();
        !matches!(self.state, State::Busy { .. })
    }

    fn mask(&mut self, logits: &mut [f32]) -> Result<bool> {
        self.poll();
        let answer = match &self.state {
            State::Ready(answer) => answer,
            State::Busy { .. } => return Err(failed("its mask is not ready")),
            State::Failed(message) => return Err(failed(message)),
        };
        let Some(mask) = answer.mask.as_ref().map_err(|e| failed(e))? else {
            return Ok(false);
        };
        if mask.is_zero() {
            return Err(failed("no token can follow"));
        }
        // Where the text may end, any token that ends texts may end it.
        let may_end = self.ends.first().is_some_and(|&end| mask.is_allowed(end));
        for (token, logit) in (0u32..).zip(logits) {
            let is_allowed = mask.is_allowed(token) || (may_end && self.ends.contains(&token));
            if !is_allowed {
                *logit = f32::NEG_INFINITY;
            }
        }
        Ok(true)
    }

    fn accept(&mut self, token: u32) -> Result<bool> {
        match std::mem::replace(&mut self.state, State::Failed("its mask is not ready".into())) {
            State::Ready(answer) => self.compute(answer.parser, token),
            State::Failed(message) => return Err(failed(&message)),
            busy @ State::Busy { .. } => {
                self.state = busy;
                return Err(failed("its mask is not ready"));
            }
        }
        Ok(false)
    }

    fn is_complete(&mut self) -> Option<bool> {
        self.poll();
        match &self.state {
            State::Ready(answer) => Some(matches!(answer.mask, Ok(None))),
            State::Failed(_) => Some(false),
            State::Busy { .. } => {
                let asked = *self.asked.get_or_insert_with(Instant::now);
                (asked.elapsed() > LAST_WAIT).then_some(false)
            }
        }
    }
}

impl Drop for GrammarConstraint {
    fn drop(&mut self) {
        if let State::Busy { cancel, .. } = &self.state {
            cancel.cancel();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Grammar, compile, factory};
    use super::*;

    #[test]
    fn slow_first_masks_are_given_up() {
        // Tokens of one byte, and 200,000 of up to 40 letters.
        let bytes = (0..=u8::MAX).map(|byte| vec![byte]);
        let letters = (0..200_000_usize).map(|n| (0..n % 40).map(|at| b'a' + (n >> (at % 17)) as u8 % 26).collect());
        let words: Vec<Vec<u8>> = bytes.chain(letters).chain([Vec::new()]).collect();
        let factory = factory(&words, words.len() as u32 - 1).expect("a compiler");
        let first_with = |limit| {
            let grammar = Grammar::Lark("start: (/[a-z]/ /[a-m]/)+".into());
            let parser = compile(&factory, &grammar).expect("a grammar");
            FirstMask::of(parser, limit, &MaskTime::default()).expect("a mask")
        };
        assert!(first_with(Duration::from_secs(60)).is_some());
        // The thread that measures the time may start late.
        assert!((0..100).any(|_| first_with(Duration::ZERO).is_none()));
    }
}
