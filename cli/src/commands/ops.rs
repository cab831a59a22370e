//! Command `meganeura ops`.

use std::process::ExitCode;

use meganeura::ops::{OpRef, document};
use meganeura::registry;

use super::Outcome;
use crate::output::{line, lines};

/// Options of `ops`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Show the operators whose names contain this text [default: list all operators]
    name: Option<String>,

    /// Print the reference of all operators as Markdown.
    #[arg(long, conflicts_with = "name")]
    markdown: bool,
}

pub(crate) fn run(args: &Args) -> Outcome {
    let ops = registry::ops();
    if args.markdown {
        // Only operators of the core: plugins have separate references.
        let own: Vec<OpRef> = ops.into_iter().filter(|op| is_builtin(op.name())).collect();
        line(document::markdown(&own).trim_end())?;
        return Ok(ExitCode::SUCCESS);
    }
    let Some(part) = &args.name else {
        for op in ops {
            let call = match op.signature() {
                method if method.is_empty() => "(no method)".into(),
                method => method,
            };
            lines(format_args!("{:<32} {call:<44} {}", op.name(), op.doc().formula), 33)?;
        }
        return Ok(ExitCode::SUCCESS);
    };
    let found: Vec<OpRef> = ops.iter().copied().filter(|op| op.name().contains(part)).collect();
    if found.is_empty() {
        let closest = meganeura::error::closest(part, ops.iter().map(|op| op.name()));
        let closest = if closest.is_empty() {
            String::new()
        } else {
            format!("; the closest are {closest}")
        };
        return Err(
            format!("no operator's name contains '{part}'\n  help: `meganeura ops` lists them{closest}").into(),
        );
    }
    for op in found {
        line(document::section(op).trim_end())?;
        line("")?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Returns true if no plugin announces the operator.
fn is_builtin(name: &str) -> bool {
    !registry::plugins().iter().any(|p| p.ops.contains(&name))
}
