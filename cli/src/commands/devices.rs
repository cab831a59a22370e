//! Command `meganeura devices`.

use std::process::ExitCode;

use meganeura::backend::DeviceInfo;
use meganeura::config::Config;
use meganeura::select::{self, BackendListing};
use serde_json::{Value, json};

use super::Outcome;
use crate::output::{line, lines};

/// Options of `devices`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Print one JSON object per line.
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &Args) -> Outcome {
    let config = Config::load()?;
    let listing = select::list(&config);
    if args.json {
        for value in listing.iter().flat_map(objects) {
            line(value)?;
        }
        return Ok(ExitCode::SUCCESS);
    }
    lines(select::format_listing(&listing), 15)?;
    // An invalid selector in the environment is an error here too, but after the listing, which helps to correct it.
    let selected = select::select(None, &config)?;
    line(format_args!(
        "\nin use: {} ({}), chosen by {}",
        selected.selector, selected.info.name, selected.source
    ))?;
    Ok(ExitCode::SUCCESS)
}

fn objects(entry: &BackendListing) -> Vec<Value> {
    let devices = match &entry.devices {
        Ok(devices) => devices,
        Err(e) => return vec![json!({ "backend": entry.name, "error": e.to_string() })],
    };
    devices.iter().map(|d| object(&entry.name, d)).collect()
}

/// Returns a device as JSON for listings.
pub(super) fn object(backend: &str, d: &DeviceInfo) -> Value {
    json!({
        "backend": backend,
        "selector": select::selector_of(backend, d),
        "name": d.name,
        "kind": d.kind.name(),
        "id": d.numeric_id,
        "memory_bytes": d.memory_bytes,
        "driver": d.driver,
        "note": d.note,
        "rejected": d.rejected,
    })
}
