//! Trial of a schema or grammar in another process before this one compiles it.
//!
//! The checks of a schema bound the compiler's time and memory for the cases that were found. In other cases, only the other
//! process dies: its memory and time are limited. One process serves many trials, one after the other.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::io::{BufRead, BufReader, BufWriter, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Mutex, OnceLock};
use std::time::{Duration, Instant};

use llguidance::ParserFactory;
use meganeura_core::{Error, Result};
use meganeura_llm::large_stack::{STACK, process_size};
use serde::{Deserialize, Serialize};

use super::check::too_large;
use super::mask_pool::MaskTime;
use super::{PackedGrammar, compile, factory, on_large_stack, refused};
use crate::lock::lock;
use crate::preparation::{Abandonment, GRAMMAR_LIMITS, GrammarLimits};

/// Maximum duration of a trial, as a multiple of its limit of processor time. On a busy machine, the process waits for a processor.
const MAX_WAIT: u32 = 3;
/// Maximum time until a new process has read the tokens.
const START: Duration = Duration::from_secs(10);
/// Period of the check whether the client has left.
const POLL: Duration = Duration::from_millis(50);
/// Time of a trial after which its process is replaced, because its allocator keeps memory.
const LONG: Duration = Duration::from_millis(200);
/// Maximum number of grammars whose trials are remembered.
const MAX_KNOWN: usize = 4096;

/// Argument of the program of [`ServerOptions::grammar_checker`](crate::ServerOptions::grammar_checker) that makes it call
/// [`check_grammars`].
pub const CHECK_GRAMMARS: &str = "check-grammars";

/// The tokens of a model, as far as grammars can name them.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct TrialTokens {
    /// Number of tokens.
    pub(super) count: usize,
    /// Special tokens: identifier and word, as in the compiler's table.
    pub(super) special: Vec<(u32, Vec<u8>)>,
    /// Token that ends a text.
    pub(super) end: u32,
}

/// Line that starts a trial.
#[derive(Debug, Serialize, Deserialize)]
struct Task {
    /// Maximum memory of the compiler, in bytes.
    memory: u64,
    grammar: PackedGrammar,
}

/// Result of a trial that ended.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Outcome {
    Compiled,
    /// The error of the compiler.
    Refused(String),
    /// The process has no thread for the compiler.
    NoThread,
}

/// Results of earlier trials of a grammar.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct TrialRecord {
    /// Processor time of the trial that it passed, if any.
    pub(crate) time: Option<Duration>,
    /// Highest limit of time of a size that it exceeded, in its trial or by its first mask.
    exceeded: Duration,
}

impl TrialRecord {
    /// Returns true if the grammar exceeded these limits before.
    pub(crate) fn exceeds(&self, limits: &GrammarLimits) -> bool {
        self.exceeded >= limits.trial
    }

    /// Notes that the grammar exceeded these limits. The highest ones are tried again each time, because a busy machine may be the
    /// reason.
    fn exceed(&mut self, limits: &GrammarLimits) {
        if limits.trial < GRAMMAR_LIMITS[GRAMMAR_LIMITS.len() - 1].trial {
            self.exceeded = self.exceeded.max(limits.trial);
        }
    }
}

/// The trials of a server.
pub(super) struct Trials {
    /// Program that runs trials; `None` skips them.
    program: Option<PathBuf>,
    /// First line of the input of each process: [`TrialTokens`] as JSON.
    tokens: OnceLock<String>,
    /// Processes without a trial.
    idle: Mutex<Vec<TrialProcess>>,
    /// Results of trials, by the hash of the grammar, with the time of the masks of its newest request.
    known: Mutex<HashMap<u64, (TrialRecord, MaskTime)>>,
    hasher: RandomState,
}

/// Reason why a trial did not succeed, except for its time.
#[derive(Debug, PartialEq, Eq)]
enum TrialError {
    /// The error of the compiler.
    Refused(String),
    /// The process ended.
    Ended,
    /// The process could not start.
    NotStarted,
    /// The process has used its time.
    TooSlow,
    /// The client left.
    Abandoned,
}

/// A process that runs trials. It is killed on drop.
struct TrialProcess {
    child: Child,
    requests: BufWriter<ChildStdin>,
    /// True once the process has read the tokens.
    is_ready: bool,
    /// Receives the result of each trial, and one result before the first trial.
    replies: Receiver<Outcome>,
}

impl Trials {
    pub(super) fn new(program: Option<PathBuf>) -> Self {
        Trials {
            program,
            tokens: OnceLock::new(),
            idle: Mutex::default(),
            known: Mutex::default(),
            hasher: RandomState::new(),
        }
    }

    /// Returns the results of earlier trials of the grammar.
    pub(super) fn known(&self, grammar: &PackedGrammar) -> TrialRecord {
        let mut known = lock(&self.known);
        let Some((record, masks)) = known.get_mut(&self.hasher.hash_one(grammar)) else {
            return TrialRecord::default();
        };
        if masks.is_slow() {
            // Grammars of the next size have their own room.
            record.exceed(&GRAMMAR_LIMITS[0]);
        }
        *record
    }

    /// Notes the time of the masks of a request with the grammar, which increases later.
    pub(super) fn watch(&self, grammar: &PackedGrammar, masks: MaskTime) {
        self.remember(grammar, |_, newest| *newest = masks);
    }

    /// Notes that the grammar exceeded the limits of its size.
    pub(super) fn remember_slow(&self, grammar: &PackedGrammar, limits: &GrammarLimits) {
        self.remember(grammar, |record, _| record.exceed(limits));
    }

    fn remember(&self, grammar: &PackedGrammar, change: impl FnOnce(&mut TrialRecord, &mut MaskTime)) {
        let hash = self.hasher.hash_one(grammar);
        let mut known = lock(&self.known);
        if known.len() >= MAX_KNOWN && !known.contains_key(&hash) {
            known.clear();
        }
        let (record, masks) = known.entry(hash).or_default();
        change(record, masks);
    }

    /// Compiles a grammar in another process, and returns the processor time. Returns `None` if it takes more time or memory than the
    /// limits, and soon after `abandoned` is set. Systems other than Linux do not report processor time, so the whole duration is
    /// limited. `tokens` returns the tokens of the model for the first process.
    ///
    /// # Errors
    /// [`Error::InvalidUse`] for an error in the grammar, and if the process exceeds the highest limit of memory or dies;
    /// [`Error::HostMemory`] if no process can be started.
    pub(super) fn check(
        &self,
        grammar: &PackedGrammar,
        limits: &GrammarLimits,
        abandoned: &Abandonment,
        tokens: impl Fn() -> TrialTokens,
    ) -> Result<Option<Duration>> {
        let Some(program) = &self.program else {
            return Ok(Some(Duration::ZERO));
        };
        let text = serde_json::to_string(grammar).map_err(|e| Error::misuse(e.to_string(), ""))?;
        let task = format!("{{\"memory\":{},\"grammar\":{text}}}", limits.memory);
        let start = || {
            let tokens = self
                .tokens
                .get_or_init(|| serde_json::to_string(&tokens()).unwrap_or_default());
            TrialProcess::start(program, tokens).map_err(|e| {
                log::warn!("the process that checks grammars cannot be started: {e}");
                not_started()
            })
        };
        let idle = lock(&self.idle).pop();
        let is_new = idle.is_none();
        let mut process = idle.map_or_else(start, Ok)?;
        let begun = Instant::now();
        let mut result = process.run(&task, limits.trial, abandoned);
        if !is_new && result == Err(TrialError::Ended) {
            // It may have ended while it was idle.
            process = start()?;
            result = process.run(&task, limits.trial, abandoned);
        }
        let highest = GRAMMAR_LIMITS[GRAMMAR_LIMITS.len() - 1].memory;
        match result {
            Ok(time) => {
                if begun.elapsed() < LONG {
                    lock(&self.idle).push(process);
                }
                self.remember(grammar, |record, _| record.time = Some(time));
                Ok(Some(time))
            }
            Err(TrialError::Abandoned) => Ok(None),
            Err(TrialError::Refused(error)) => Err(refused(&error)),
            Err(TrialError::NotStarted) => Err(not_started()),
            Err(TrialError::Ended) if limits.memory >= highest => Err(too_large(format!(
                "compiling it takes more than {} MiB of memory, or its process was ended",
                highest >> 20
            ))),
            Err(TrialError::TooSlow | TrialError::Ended) => {
                self.remember_slow(grammar, limits);
                Ok(None)
            }
        }
    }
}

fn not_started() -> Error {
    Error::HostMemory {
        what: "a process that checks the grammar".into(),
        bytes: STACK,
    }
}

impl TrialProcess {
    fn start(program: &Path, tokens: &str) -> std::io::Result<Self> {
        let mut command = Command::new(program);
        command.arg(CHECK_GRAMMARS);
        // Settings of this process, such as traces, are not for the other one.
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("MEGANEURA_") {
                command.env_remove(name);
            }
        }
        // Ctrl-C ends the server, which ends its processes.
        #[cfg(unix)]
        std::os::unix::process::CommandExt::process_group(&mut command, 0);
        let pipes = command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = pipes.stderr(Stdio::null()).spawn()?;
        let (Some(requests), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(std::io::Error::other("it has no pipes"));
        };
        let (sender, replies) = channel();
        let listen = move || {
            for line in BufReader::new(output).lines().map_while(std::io::Result::ok) {
                let Ok(outcome) = serde_json::from_str(&line) else {
                    break;
                };
                if sender.send(outcome).is_err() {
                    break;
                }
            }
        };
        let thread = std::thread::Builder::new().name("grammar trial".into());
        if let Err(error) = thread.spawn(listen) {
            let _ = child.kill();
            let _ = child.wait();
            return Err(error);
        }
        let mut process = TrialProcess {
            child,
            requests: BufWriter::new(requests),
            replies,
            is_ready: false,
        };
        writeln!(process.requests, "{tokens}").and_then(|()| process.requests.flush())?;
        Ok(process)
    }

    /// Runs a task, given as JSON, and returns its processor time.
    fn run(
        &mut self,
        task: &str,
        limit: Duration,
        abandoned: &Abandonment,
    ) -> std::result::Result<Duration, TrialError> {
        if !self.is_ready {
            self.wait(START, abandoned).map_err(|error| match error {
                TrialError::Abandoned => error,
                _ => TrialError::NotStarted,
            })?;
            self.is_ready = true;
        }
        let sent = writeln!(self.requests, "{task}").and_then(|()| self.requests.flush());
        sent.map_err(|_| TrialError::Ended)?;
        self.wait(limit, abandoned)
    }

    /// Waits for the next result, for at most `limit` of processor time, and returns this time.
    fn wait(&self, limit: Duration, abandoned: &Abandonment) -> std::result::Result<Duration, TrialError> {
        let begun = Instant::now();
        let begun_cpu = self.processor_time();
        let used = || {
            let used = begun_cpu.zip(self.processor_time());
            used.map_or_else(|| begun.elapsed(), |(begin, now)| now.saturating_sub(begin))
        };
        let mut left = limit;
        loop {
            match self.replies.recv_timeout(left.min(POLL)) {
                Ok(Outcome::Compiled) => return Ok(used()),
                Ok(Outcome::Refused(error)) => return Err(TrialError::Refused(error)),
                Ok(Outcome::NoThread) => return Err(TrialError::NotStarted),
                Err(RecvTimeoutError::Disconnected) => return Err(TrialError::Ended),
                Err(RecvTimeoutError::Timeout) => {}
            }
            if abandoned.is_set() {
                return Err(TrialError::Abandoned);
            }
            left = limit.saturating_sub(used());
            if left.is_zero() || begun.elapsed() >= limit * MAX_WAIT {
                return Err(TrialError::TooSlow);
            }
            // The clock of the process has steps of this length.
            left = left.max(Duration::from_millis(10));
        }
    }

    /// Returns the processor time of all threads of the process, which only Linux reports.
    fn processor_time(&self) -> Option<Duration> {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.child.id())).ok()?;
        // The name in parentheses may contain blanks. User and system time are the fields 14 and 15, in hundredths of a second.
        let (_, fields) = stat.rsplit_once(')')?;
        let ticks: Vec<u64> = fields
            .split_whitespace()
            .skip(11)
            .take(2)
            .map_while(|f| f.parse().ok())
            .collect();
        let [user, system] = ticks[..] else { return None };
        Some(Duration::from_millis(10 * (user + system)))
    }
}

impl Drop for TrialProcess {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Runs the trials of a server: reads its tokens and then grammars, a line of JSON each, compiles each grammar, and prints a line of
/// JSON with the result of each line. It returns at the end of the input, even if another thread still compiles: the process should then end.
///
/// # Errors
/// Errors of the input; invalid tokens.
pub fn check_grammars(input: impl Read, mut output: impl Write + Send + 'static) -> std::io::Result<()> {
    // Only Linux reports it, and only there memory is limited.
    let begun = process_size().unwrap_or(1 << 30);
    limit_memory(begun, GRAMMAR_LIMITS[GRAMMAR_LIMITS.len() - 1].memory)?;
    let mut lines = BufReader::new(input).lines();
    let tokens: TrialTokens = serde_json::from_str(&lines.next().unwrap_or_else(|| Ok(String::new()))?)?;
    let factory = small_factory(tokens).map_err(std::io::Error::other)?;
    print(&mut output, &Outcome::Compiled)?;
    let (sender, tasks) = channel::<String>();
    let work = move || {
        for line in tasks {
            let outcome = match serde_json::from_str::<Task>(&line) {
                Err(error) => Outcome::Refused(error.to_string()),
                Ok(task) => {
                    // Without a limit, the trial only takes more memory.
                    let _ = limit_memory(begun, task.memory);
                    let grammar = task.grammar.unpacked();
                    match on_large_stack(0, || Ok(compile(&factory, &grammar).map(drop))) {
                        Ok(Ok(())) => Outcome::Compiled,
                        Ok(Err(error)) => Outcome::Refused(error),
                        Err(Error::HostMemory { .. }) => Outcome::NoThread,
                        Err(error) => Outcome::Refused(error.to_string()),
                    }
                }
            };
            if print(&mut output, &outcome).is_err() {
                break;
            }
        }
    };
    std::thread::Builder::new().name("grammars".into()).spawn(work)?;
    for line in lines {
        if sender.send(line?).is_err() {
            break;
        }
    }
    Ok(())
}

/// Prints a result as a line.
fn print(output: &mut impl Write, outcome: &Outcome) -> std::io::Result<()> {
    let line = serde_json::to_string(outcome).map_err(std::io::Error::other)?;
    writeln!(output, "{line}")?;
    output.flush()
}

/// Limits the memory of this process to `more` bytes beyond the size `begun`, on Linux.
fn limit_memory(begun: u64, more: u64) -> std::io::Result<()> {
    #[cfg(target_os = "linux")]
    {
        use rlimit::Resource;
        // Two threads have large stacks.
        let limit = begun + 2 * STACK as u64 + more;
        let (_, hard) = Resource::AS.get()?;
        Resource::AS.set(limit.min(hard), hard)?;
        let (_, hard) = Resource::CORE.get()?;
        Resource::CORE.set(0, hard)?;
    }
    let _ = (begun, more);
    Ok(())
}

/// Returns a compiler for the special tokens of a model; its other tokens are single bytes. The limits of lexers apply again when
/// masks are computed with all tokens.
fn small_factory(tokens: TrialTokens) -> std::result::Result<ParserFactory, String> {
    let mut words = vec![Vec::new(); tokens.count];
    for (token, word) in tokens.special {
        let place = words
            .get_mut(token as usize)
            .ok_or("a special token is not in the vocabulary")?;
        *place = word;
    }
    let mut bytes = 0..=u8::MAX;
    let is_free = |(token, word): &(usize, &mut Vec<u8>)| word.is_empty() && *token != tokens.end as usize;
    for ((_, word), byte) in words.iter_mut().enumerate().filter(is_free).zip(&mut bytes) {
        word.push(byte);
    }
    words.extend(bytes.map(|byte| vec![byte]));
    factory(&words, tokens.end)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::Grammar;
    use super::*;

    #[test]
    fn grammars_are_compiled_with_the_special_tokens_of_the_model() {
        let tokens = TrialTokens {
            count: 300,
            special: vec![(7, b"\xff<|im_end|>".to_vec()), (299, b"\xff<|end|>".to_vec())],
            end: 299,
        };
        let factory = small_factory(tokens).expect("a compiler");
        for (grammar, is_valid) in [
            (Grammar::Schema(json!({"properties": {"a": {"type": "integer"}}})), true),
            (Grammar::Lark("start: \"a\" <|im_end|> <[280]>\n".into()), true),
            (Grammar::Lark("start: <|unknown|>\n".into()), false),
            (Grammar::Lark("start: <[301]>\n".into()), false),
            (Grammar::Regex("(".into()), false),
        ] {
            let line = serde_json::to_string(&grammar.clone().packed()).expect("JSON");
            let sent: PackedGrammar = serde_json::from_str(&line).expect("a line");
            assert_eq!(sent.unpacked(), grammar);
            let compiled = on_large_stack(0, || compile(&factory, &grammar).map(drop).map_err(|e| refused(&e)));
            assert_eq!(compiled.is_ok(), is_valid, "{line}: {compiled:?}");
        }
    }

    /// A program that answers, ends or blocks, by the text of the grammar.
    #[cfg(unix)]
    #[test]
    fn processes_that_end_or_block_refuse_their_grammar() {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().expect("a folder");
        let program = folder.path().join("program");
        let script = "#!/bin/sh\nread -r tokens; echo '\"compiled\"'; while read -r line; do case $line in *end*) exit 1;; *block*) while :; do :; done;; *slow*) sleep 0.3; echo '\"compiled\"';; *wrong*) echo '{\"refused\":\"why\"}';; *thread*) echo '\"no_thread\"';; *) echo '\"compiled\"';; esac; done\n";
        std::fs::write(&program, script).expect("written");
        std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).expect("its own");
        let trials = Trials::new(Some(program));
        let waited = Abandonment::default();
        let [small, medium, large] = GRAMMAR_LIMITS;
        let quick = GrammarLimits {
            trial: Duration::from_secs(1),
            ..large
        };
        let text = |text: &str| Grammar::Regex(text.into()).packed();
        let check = |name: &str, limits: &GrammarLimits| {
            let checked = trials.check(&text(name), limits, &waited, TrialTokens::default);
            checked.map(|time| time.is_some()).map_err(|e| e.to_string())
        };
        for round in 0..2 {
            assert_eq!(check("a", &quick), Ok(true), "{round}");
            let error = check("end", &quick).expect_err("it ended");
            assert!(error.contains("512 MiB of memory"), "{error}");
            // Larger grammars may take more memory.
            assert_eq!(check("end", &small), Ok(false));
            assert_eq!(check("block", &quick), Ok(false));
            let error = check("wrong", &quick).expect_err("it is wrong");
            assert!(error.contains("why"), "{error}");
            let error = check("thread", &quick).expect_err("no thread");
            assert!(error.contains("process that checks the grammar"), "{error}");
            assert_eq!(check(&format!("b{round}"), &quick), Ok(true));
        }
        assert!(trials.known(&text("block")).exceeds(&quick) && !trials.known(&text("block")).exceeds(&large));
        // A grammar that exceeded the limits of a size is not tried with them again.
        assert_eq!(check("slow", &large), Ok(true));
        assert!(trials.known(&text("slow")).time.is_some());
        assert!(!trials.known(&text("slow")).exceeds(&small));
        trials.remember_slow(&text("slow"), &small);
        assert!(trials.known(&text("slow")).exceeds(&small) && !trials.known(&text("slow")).exceeds(&medium));
        trials.remember_slow(&text("slow"), &large);
        assert!(!trials.known(&text("slow")).exceeds(&large));
        // A trial ends when its client leaves.
        let begun = Instant::now();
        let left = Abandonment::default();
        left.set();
        let result = trials.check(&text("blocks"), &large, &left, TrialTokens::default);
        assert!(matches!(result, Ok(None)) && begun.elapsed() < large.trial / 2);
        assert_eq!(trials.known(&text("blocks")), TrialRecord::default());
        let missing = Trials::new(Some(folder.path().join("missing")));
        let error = missing.check(&text("a"), &quick, &waited, TrialTokens::default);
        assert!(matches!(error, Err(Error::HostMemory { .. })), "{error:?}");
        let none = Trials::new(None).check(&text("a"), &quick, &waited, TrialTokens::default);
        assert!(none.is_ok_and(|time| time.is_some()));
    }
}
