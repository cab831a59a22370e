//! Python frameworks, each in a separate process that waits for its turns and runs `python/peer.py`.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use crate::Setup;
use crate::comparison::{Comparison, Peer, Result};
use crate::problem::Handout;

/// Environment variable with the path of the interpreter; the default is `python3`.
const VARIABLE: &str = "MEGANEURA_PEERS_PYTHON";

/// Frameworks of `peer.py` for single calls.
pub(crate) const OF_CALLS: &[&str] = &["torch eager", "torch compile", "torch reduce-overhead", "onnxruntime"];
/// Frameworks for training and language models. On the CPU `reduce-overhead` is the same as `compile`.
pub(crate) const OF_MODELS: &[&str] = &["torch eager", "torch compile"];
/// Frameworks for inference of ResNet-50.
pub(crate) const OF_IMAGES: &[&str] = &["torch eager", "torch compile", "onnxruntime"];

/// Adds frameworks to a comparison. A framework that does not support the workload is listed as skipped.
pub(crate) fn add(
    comparison: &mut Comparison<'_>,
    setup: &Setup,
    frameworks: &[&str],
    tolerance: f32,
    handout: &Handout<'_>,
) {
    for framework in frameworks.iter().filter(|name| setup.wants(name)) {
        match Python::start(framework, handout, setup.threads) {
            Ok(python) => comparison.add(*framework, tolerance, Box::new(python)),
            Err(e) => comparison.leave_out(*framework, &*e),
        }
    }
}

/// Process of a Python framework.
pub(crate) struct Python {
    process: Child,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
    /// Folder with the files of the workload, and the result.
    folder: tempfile::TempDir,
}

impl Python {
    /// Starts the interpreter and waits until the framework is loaded.
    pub(crate) fn start(framework: &str, handout: &Handout<'_>, threads: usize) -> Result<Self> {
        let folder = tempfile::tempdir()?;
        handout.write(folder.path())?;
        let interpreter = std::env::var(VARIABLE).unwrap_or_else(|_| "python3".to_owned());
        let mut process = Command::new(&interpreter)
            .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("python/peer.py"))
            .args([framework, &threads.to_string()])
            .arg(folder.path())
            .env("OMP_NUM_THREADS", threads.to_string())
            .env("PYTHONDONTWRITEBYTECODE", "1")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|e| format!("{interpreter}: {e}"))?;
        let (Some(to), Some(from)) = (process.stdin.take(), process.stdout.take()) else {
            return Err("it has no pipes".into());
        };
        let mut python = Python {
            process,
            to,
            from: BufReader::new(from),
            folder,
        };
        python.answer()?;
        Ok(python)
    }

    /// Reads a line that the process prints: `ok` with an optional value, or an error.
    fn answer(&mut self) -> Result<String> {
        let mut line = String::new();
        self.from.read_line(&mut line)?;
        match line.trim().split_once(' ') {
            Some(("ok", rest)) => Ok(rest.to_owned()),
            Some(("error", rest)) => Err(rest.into()),
            _ => Err("its process has ended".into()),
        }
    }

    fn ask(&mut self, what: &str) -> Result<String> {
        writeln!(self.to, "{what}")?;
        self.to.flush()?;
        self.answer()
    }
}

impl Peer for Python {
    fn result(&mut self) -> Result<Vec<f32>> {
        self.ask("result")?;
        let bytes = std::fs::read(self.folder.path().join("result.f32"))?;
        let numbers = bytes
            .chunks_exact(4)
            .map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]));
        Ok(numbers.collect())
    }

    fn time(&mut self, times: u32) -> Result<f64> {
        Ok(self.ask(&format!("time {times}"))?.parse()?)
    }
}

impl Drop for Python {
    fn drop(&mut self) {
        // The process ends when its input is closed; it may have ended already.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
