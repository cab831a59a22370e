//! Trial of a schema or grammar in another process before this one compiles it.
//!
//! The checks of a schema bound the compiler's time and memory as far as its algorithms are known. If they miss a case, only the other
//! process dies: its memory and time are limited. One process serves many trials, one after the other.

use std::collections::HashSet;
use std::hash::{BuildHasher, RandomState};
use std::io::{BufRead, BufReader, BufWriter, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use llguidance::ParserFactory;
use meganeura_core::{Error, Result};
use toktrie::{ApproximateTokEnv, TokEnv, TokRxInfo, TokTrie};

use super::check::too_large;
use super::{Grammar, STACK, compile, on_large_stack};

/// Maximum memory of the compiler in a trial, in bytes. A usual schema of 100 kB takes 100 MB.
const MAX_MEMORY: u64 = 512 << 20;
/// Time of a trial after which its process is replaced, because its allocator keeps memory.
const LONG: Duration = Duration::from_millis(200);
/// Maximum number of texts that are remembered because their trial succeeded.
const MAX_PASSED: usize = 4096;

/// Argument of the program that runs trials.
pub(crate) const COMMAND: &str = "check-grammars";

/// The trials of a server.
pub(super) struct Trials {
    /// Program that runs trials; `None` skips them.
    program: Option<PathBuf>,
    /// Processes without a trial.
    idle: Mutex<Vec<TrialProcess>>,
    /// Hashes of texts whose trial succeeded.
    passed: Mutex<HashSet<u64>>,
    hasher: RandomState,
}

/// A process that runs trials. It is killed on drop.
struct TrialProcess {
    child: Child,
    requests: BufWriter<ChildStdin>,
    /// Receives a value after each trial.
    replies: Receiver<()>,
}

impl Trials {
    pub(super) fn new(program: Option<PathBuf>) -> Self {
        Trials {
            program,
            idle: Mutex::default(),
            passed: Mutex::default(),
            hasher: RandomState::new(),
        }
    }

    /// Compiles a grammar in another process, unless that was done before. Returns false if it takes longer than `limit`.
    ///
    /// # Errors
    /// [`Error::InvalidUse`] if the process exceeds its limit of memory or dies; [`Error::HostMemory`] if no process can be started.
    /// An error in the grammar is none of the trial: this process reports it.
    pub(super) fn check(&self, grammar: &Grammar, limit: Duration) -> Result<bool> {
        let Some(program) = &self.program else { return Ok(true) };
        let text = serde_json::to_string(grammar).map_err(|e| Error::misuse(e.to_string(), ""))?;
        let hash = self.hasher.hash_one(&text);
        if lock(&self.passed).contains(&hash) {
            return Ok(true);
        }
        let idle = lock(&self.idle).pop();
        let mut process = match idle {
            Some(process) => process,
            None => TrialProcess::start(program).map_err(|e| {
                log::warn!("the process that checks grammars cannot be started: {e}");
                Error::HostMemory {
                    what: "a process that checks the grammar".into(),
                    bytes: MAX_MEMORY as usize,
                }
            })?,
        };
        let begun = Instant::now();
        if !process.run(&text, limit)? {
            return Ok(false);
        }
        if begun.elapsed() < LONG {
            lock(&self.idle).push(process);
        }
        let mut passed = lock(&self.passed);
        if passed.len() >= MAX_PASSED {
            passed.clear();
        }
        passed.insert(hash);
        Ok(true)
    }
}

impl TrialProcess {
    fn start(program: &Path) -> std::io::Result<Self> {
        let mut command = Command::new(program);
        command.arg(COMMAND);
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
            for _ in BufReader::new(output).lines().map_while(std::io::Result::ok) {
                if sender.send(()).is_err() {
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
        Ok(TrialProcess {
            child,
            requests: BufWriter::new(requests),
            replies,
        })
    }

    /// Compiles a grammar, given as JSON. Returns false if it takes longer than `limit`.
    fn run(&mut self, text: &str, limit: Duration) -> Result<bool> {
        let sent = writeln!(self.requests, "{text}").and_then(|()| self.requests.flush());
        match sent.map_or(Err(RecvTimeoutError::Disconnected), |()| {
            self.replies.recv_timeout(limit)
        }) {
            Ok(()) => Ok(true),
            Err(RecvTimeoutError::Timeout) => Ok(false),
            Err(RecvTimeoutError::Disconnected) => {
                let limit = MAX_MEMORY >> 20;
                Err(too_large(format!("compiling it takes more than {limit} MiB of memory")))
            }
        }
    }
}

impl Drop for TrialProcess {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs the trials of a server: compiles each grammar of the input, a line of JSON each, and prints a line after it. It returns at
/// the end of the input.
///
/// # Errors
/// Errors of the input and output; an invalid line.
pub fn check_grammars(input: impl Read, mut output: impl Write) -> std::io::Result<()> {
    limit_memory()?;
    let factory = bytes_factory().map_err(std::io::Error::other)?;
    for line in BufReader::new(input).lines() {
        let grammar: Grammar = serde_json::from_str(&line?)?;
        // The server compiles it again, and reports its errors.
        let _ = on_large_stack(|| compile(&factory, &grammar));
        writeln!(output, "done")?;
        output.flush()?;
    }
    Ok(())
}

/// Limits the memory of this process. Only Linux reports its current size, to which the limit is added.
fn limit_memory() -> std::io::Result<()> {
    #[cfg(target_os = "linux")]
    {
        use rlimit::Resource;
        let status = std::fs::read_to_string("/proc/self/status")?;
        let size = status.lines().find_map(|line| line.strip_prefix("VmSize:"));
        let kilobytes = size.and_then(|size| size.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok());
        let limit = kilobytes.unwrap_or(1 << 20) * 1024 + STACK as u64 + MAX_MEMORY;
        let (soft, hard) = Resource::AS.get()?;
        Resource::AS.set(soft.min(limit), hard.min(limit))?;
        let (soft, hard) = Resource::CORE.get()?;
        Resource::CORE.set(soft.min(0), hard)?;
    }
    Ok(())
}

/// Returns a compiler for tokens that are single bytes. Trials need no others, because the limits of lexers apply again when masks
/// are computed.
fn bytes_factory() -> std::result::Result<ParserFactory, String> {
    let mut words: Vec<Vec<u8>> = (0..=u8::MAX).map(|byte| vec![byte]).collect();
    let end = words.len() as u32;
    words.push(Vec::new());
    let info = TokRxInfo::new(words.len() as u32, end);
    let env: TokEnv = std::sync::Arc::new(ApproximateTokEnv::new(TokTrie::from(&info, &words)));
    super::factory(&env)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn grammars_are_compiled_line_by_line() {
        let grammars = [
            Grammar::Schema(json!({"type": "object", "properties": {"a": {"type": "integer"}}})),
            Grammar::Lark("start: \"a\"\n".into()),
            Grammar::Regex("(".into()),
        ];
        let lines: Vec<String> = grammars
            .iter()
            .map(|g| serde_json::to_string(g).expect("JSON"))
            .collect();
        let factory = bytes_factory().expect("a compiler");
        for (line, is_valid) in lines.iter().zip([true, true, false]) {
            let grammar: Grammar = serde_json::from_str(line).expect("the same grammar");
            let compiled = on_large_stack(|| compile(&factory, &grammar).map(drop));
            assert_eq!(compiled.is_ok(), is_valid, "{line}");
        }
    }

    /// A program that answers, ends, or blocks, as the text of the grammar says.
    #[cfg(unix)]
    #[test]
    fn processes_that_end_or_block_refuse_their_grammar() {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().expect("a folder");
        let program = folder.path().join("program");
        let script = "#!/bin/sh\nwhile read -r line; do case $line in *end*) exit 1;; *block*) sleep 20;; *) echo done;; esac; done\n";
        std::fs::write(&program, script).expect("written");
        std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).expect("its own");
        let trials = Trials::new(Some(program));
        let limit = Duration::from_secs(2);
        let check = |text: &str| {
            trials
                .check(&Grammar::Regex(text.into()), limit)
                .map_err(|e| e.to_string())
        };
        for round in 0..2 {
            assert_eq!(check("a"), Ok(true), "{round}");
            let error = check("end").expect_err("it ended");
            assert!(error.contains("MiB of memory"), "{error}");
            assert_eq!(check("block"), Ok(false));
            assert_eq!(check(&format!("b{round}")), Ok(true));
        }
        assert_eq!(lock(&trials.idle).len(), 1);
        let missing = Trials::new(Some(folder.path().join("missing")));
        let error = missing
            .check(&Grammar::Regex("a".into()), limit)
            .expect_err("no program");
        assert!(matches!(error, Error::HostMemory { .. }));
        assert!(Trials::new(None).check(&Grammar::Regex("a".into()), limit).is_ok());
    }
}
