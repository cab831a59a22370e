//! Command `meganeura pull`.

use std::io::{self, IsTerminal};
use std::path::PathBuf;
use std::process::ExitCode;

use indicatif::{ProgressBar, ProgressStyle};
use meganeura::Error;
use meganeura::llm::hub::{self, Progress, PullError, PullRequest};

use super::Outcome;
use super::models::bytes;
use crate::output::{line, notice, printable};

/// Options of `pull`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Name on the Hugging Face Hub, such as HuggingFaceTB/SmolLM2-135M. REVISION is a branch, a tag or a commit
    /// [default: main]
    #[arg(value_name = "NAME[@REVISION]")]
    name: String,

    /// GGUF file of the repository to download, instead of its safetensors files. Name the first part of a split model.
    #[arg(long, value_name = "X.gguf")]
    file: Option<String>,
}

pub(crate) fn run(args: &Args) -> Outcome {
    let request = PullRequest {
        file: args.file.clone(),
        ..PullRequest::parse(&args.name).map_err(Error::from)?
    };
    let path = with_bars(&request).map_err(Error::from)?;
    line(path.display())?;
    let name = if path.is_dir() {
        args.name.clone()
    } else {
        let stem = path.file_stem().unwrap_or_default().to_string_lossy();
        format!("{}/{stem}", args.name)
    };
    notice(format_args!("available as '{name}'; `meganeura models` lists it"))?;
    Ok(ExitCode::SUCCESS)
}

/// Downloads a model. Shows a progress bar for each file on a terminal, otherwise a line.
pub(super) fn with_bars(request: &PullRequest) -> Result<PathBuf, PullError> {
    hub::pull(
        request,
        &mut Bars {
            bar: None,
            file: String::new(),
        },
    )
}

/// The progress bar of the current file.
struct Bars {
    bar: Option<ProgressBar>,
    file: String,
}

impl Progress for Bars {
    fn begin(&mut self, file: &str, size: u64) {
        let is_new = self.file != file;
        file.clone_into(&mut self.file);
        if !io::stderr().is_terminal() {
            if is_new {
                // If standard error is closed, the download still completes.
                let _ = notice(format_args!("downloading {file}, {}", bytes(size)));
            }
            return;
        }
        let bar = self.bar.get_or_insert_with(|| ProgressBar::new(size));
        if is_new {
            *bar = ProgressBar::new(size);
            let template = "{msg}  {bar:30}  {bytes}/{total_bytes}  {bytes_per_sec}  ETA {eta}";
            if let Ok(style) = ProgressStyle::with_template(template) {
                bar.set_style(style);
            }
            bar.set_message(printable(file).into_owned());
        }
        bar.set_length(size);
        bar.set_position(0);
    }

    fn advance(&mut self, bytes: u64) {
        if let Some(bar) = &self.bar {
            bar.inc(bytes);
        }
    }

    fn finish(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish();
        }
    }
}
