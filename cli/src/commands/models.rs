//! Command `meganeura models`.

use std::path::PathBuf;
use std::process::ExitCode;

use meganeura::backend::DeviceKind;
use meganeura::config::Config;
use meganeura::files::free_memory;
use meganeura::llm::library::{self, LocalModel, MemoryEstimate, ModelFolders, Support, USUAL_CONTEXT};
use meganeura::llm::{CacheType, WeightStorage};
use meganeura::select;
use serde_json::{Map, Value, json};

use super::Outcome;
use super::language::{cache_type, storage};
use crate::output::{aligned, line, lines};

/// Options of `models`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Additional folder to search, which contains models or folders of models. May be repeated. Always searched: the
    /// cache of the Hugging Face Hub (HF_HUB_CACHE, HF_HOME), `models` in the cache folder, and the folders of
    /// MEGANEURA_MODELS.
    #[arg(long, value_name = "DIR")]
    dir: Vec<PathBuf>,

    /// Device whose memory is compared with that of the models; see `meganeura devices` [default: all devices]
    #[arg(long, value_name = "SEL")]
    device: Option<String>,

    /// Storage type of the weights in the memory estimate: f32, f16, or blocks of 8, 6, 5 or 4 bits with scales
    /// [default: for GGUF files the type of each matrix in the file, else f32]
    #[arg(long, value_name = "f32|f16|q8|q6|q5_1|q5_0|q4_1|q4", value_parser = storage)]
    weights: Option<WeightStorage>,

    /// Storage type of the KV cache in the memory estimate.
    #[arg(long, value_name = "f32|f16|q8", value_parser = cache_type, default_value = "f32")]
    cache_type: CacheType,

    /// Sequence length in the memory estimate, in tokens [default: 4096, or the model's context if that is shorter]
    #[arg(long, value_name = "TOKENS", value_parser = clap::value_parser!(u32).range(1..))]
    context: Option<u32>,

    /// Print one JSON object per line.
    #[arg(long)]
    json: bool,
}

/// A device and the bytes that are available for a model.
struct AvailableMemory {
    selector: String,
    bytes: u64,
}

pub(crate) fn run(args: &Args) -> Outcome {
    let rooms = rooms(args.device.as_deref())?;
    let folders = ModelFolders::from_environment().with(args.dir.iter().cloned());
    let context = args.context.map(|tokens| tokens as usize);
    let models = library::list(&folders);
    let described = models
        .iter()
        .map(|model| (model, model.memory(args.weights, context, args.cache_type)));
    if args.json {
        for (model, memory) in described {
            line(object(model, memory, &rooms))?;
        }
        return Ok(ExitCode::SUCCESS);
    }
    if models.is_empty() {
        let searched: Vec<String> = folders
            .all()
            .map(|folder| cell(&folder.display().to_string()))
            .collect();
        let download = if cfg!(feature = "hub") {
            "`meganeura pull NAME` downloads one"
        } else {
            "`hf download NAME --local-dir DIR` downloads one"
        };
        line(format_args!(
            "no models found in {}\n{download}; --dir and MEGANEURA_MODELS add folders",
            searched.join(", ")
        ))?;
        return Ok(ExitCode::SUCCESS);
    }
    let titles = [
        "name",
        "architecture",
        "parameters",
        "size",
        "weights",
        "context",
        "memory",
        "fits",
        "supported",
    ];
    let mut rows = vec![titles.map(str::to_owned).to_vec()];
    rows.extend(described.map(|(model, memory)| row(model, memory, &rooms)));
    for row in aligned(&rows) {
        lines(row, 4)?;
    }
    let free: Vec<String> = rooms
        .iter()
        .map(|room| format!("{} {}", room.selector, bytes(room.bytes)))
        .collect();
    let tokens = context.unwrap_or(USUAL_CONTEXT);
    line("")?;
    lines(
        format_args!(
            "memory: weights and the KV cache of {tokens} tokens, or of the model's context if shorter, in {}; steps \
             need some more. Available: {}",
            args.cache_type.name(),
            free.join(", ")
        ),
        4,
    )?;
    Ok(ExitCode::SUCCESS)
}

/// Returns the devices with the memory for models: the memory of a GPU, or the free memory of the host.
fn rooms(device: Option<&str>) -> meganeura::Result<Vec<AvailableMemory>> {
    let config = Config::load()?;
    let room = |selector: String, kind: DeviceKind, memory: Option<u64>| {
        let free = free_memory().filter(|_| kind == DeviceKind::Cpu);
        let bytes = [memory, free].into_iter().flatten().min()?;
        Some(AvailableMemory { selector, bytes })
    };
    if device.is_some() {
        let selected = select::select(device, &config)?;
        let info = selected.info;
        return Ok(room(selected.selector, info.kind, info.memory_bytes)
            .into_iter()
            .collect());
    }
    let mut rooms = Vec::new();
    for entry in select::list(&config) {
        for info in entry.devices.iter().flatten() {
            let is_used = info.rejected.is_none() && info.kind != DeviceKind::Software;
            let selector = select::selector_of(&entry.name, info);
            rooms.extend(room(selector, info.kind, info.memory_bytes).filter(|_| is_used));
        }
    }
    Ok(rooms)
}

fn row(model: &LocalModel, memory: Option<MemoryEstimate>, rooms: &[AvailableMemory]) -> Vec<String> {
    let or_dash = |text: Option<String>| text.map_or_else(|| "-".into(), |text| cell(&text));
    let fits = memory.map(|memory| {
        let fitting = rooms.iter().filter(|room| memory.total() <= room.bytes);
        let names: Vec<&str> = fitting.map(|room| room.selector.as_str()).collect();
        if names.is_empty() {
            "none".into()
        } else {
            names.join(",")
        }
    });
    vec![
        cell(&model.name),
        or_dash(model.architecture.clone()),
        or_dash(model.parameters.map(count)),
        bytes(model.disk_bytes),
        or_dash(model.stored.clone()),
        or_dash(model.context.map(|context| context.to_string())),
        or_dash(memory.map(|memory| bytes(memory.total()))),
        or_dash(fits),
        match &model.support {
            Support::Text => "yes".into(),
            Support::Encoder => "yes, for embeddings".into(),
            Support::Unsupported(reason) | Support::Broken(reason) => format!("no: {}", cell(reason)),
        },
    ]
}

fn object(model: &LocalModel, memory: Option<MemoryEstimate>, rooms: &[AvailableMemory]) -> Value {
    let fits = memory.map(|memory| -> Map<String, Value> {
        let each = rooms.iter();
        each.map(|room| (room.selector.clone(), json!(memory.total() <= room.bytes)))
            .collect()
    });
    json!({
        "name": model.name,
        "path": model.path.to_string_lossy(),
        "origin": model.origin.name(),
        "revision": model.revision,
        "architecture": model.architecture,
        "parameters": model.parameters,
        "disk_bytes": model.disk_bytes,
        "weights": model.stored,
        "context": model.context,
        "kind": model.support.name(),
        "supported": model.support.is_usable(),
        "reason": model.support.reason(),
        "memory_bytes": memory.map(MemoryEstimate::total),
        "weights_bytes": memory.map(|memory| memory.weights),
        "cache_bytes": memory.map(|memory| memory.cache),
        "fits": fits,
    })
}

/// Returns a text from a file as one line without control characters.
fn cell(text: &str) -> String {
    text.chars()
        .map(|c| if c.is_control() { '\u{fffd}' } else { c })
        .collect()
}

/// Formats bytes with three digits and a unit.
pub(super) fn bytes(count: u64) -> String {
    in_units(count, &["B", "kB", "MB", "GB", "TB"])
}

/// Formats a number of parameters as in model names.
fn count(count: u64) -> String {
    in_units(count, &["", "k", "M", "B", "T"]).trim_end().to_owned()
}

fn in_units(count: u64, units: &[&str]) -> String {
    let (mut number, mut unit) = (count as f64, 0);
    // Numbers that would be shown as 1000 become 1.00 of the next unit.
    while number >= 999.5 && unit + 1 < units.len() {
        number /= 1000.0;
        unit += 1;
    }
    let digits = match number {
        _ if unit == 0 => 0,
        ..9.995 => 2,
        ..99.95 => 1,
        _ => 0,
    };
    format!("{number:.digits$} {}", units[unit])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_three_digits() {
        for (number, shown) in [
            (0, "0 B"),
            (999, "999 B"),
            (1000, "1.00 kB"),
            (999_499, "999 kB"),
            (999_500, "1.00 MB"),
            (9_996_000, "10.0 MB"),
            (270_000_000, "270 MB"),
            (u64::MAX, "18446744 TB"),
        ] {
            assert_eq!(bytes(number), shown);
        }
        assert_eq!([count(134_515_008), count(12)], ["135 M", "12"]);
    }

    #[test]
    fn cells_are_one_line_and_steer_nothing() {
        assert_eq!(cell("a\u{1b}[2J\nb\tµ"), "a\u{fffd}[2J\u{fffd}b\u{fffd}µ");
    }
}
