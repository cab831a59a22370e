//! Target: settings in files and variables, of the library, of `train --config`, of device rates and of language
//! models.
#![no_main]

use std::path::Path;
use std::sync::OnceLock;

use clap::{Arg, ArgAction, Command, value_parser};
use meganeura_core::calibration::Calibration;
use meganeura_core::config::Config;
use meganeura_core::debug::DebugOptions;
use meganeura_core::select::Selector;
use meganeura_fuzz::{in_file, seed, target, text};
use meganeura_llm::{EncoderConfig, ModelConfig};

// The command is not a library, so this module includes its reader of settings files.
#[allow(dead_code, reason = "the command uses all of it")]
#[path = "../../cli/src/commands/train/config_file.rs"]
mod config_file;

const LIBRARY: &str = "device = \"mine\"\nfallback = \"cpu\"\ncalibration = \"rates.ron\"\n[backend.cpu]\nthreads = 4\n\
    [rewrite]\ndisable = [\"packing\", \"norm/a\"]\nnode_limit = 1000\n[plugins]\nload = [\"/opt/libmine.so\"]\n";
const TRAIN: &str =
    "csv = \"flowers.csv\"\nlr = 0.01\nepochs = 20\nhidden = [64, 32]\npatience = 3\naugment = \"flip\"\njson = true\n";
const DEBUG: &str = "serial,no-aliasing,dump=/tmp/x";
const DEVICE: &str = "cuda:id=0x2684";
const RATES: &str = "(devices: [(backend: \"a\", name: \"b\", driver: Some(\"c\"), launch_ns: 2000, bytes_per_second: 1.0e9, \
    flops_per_second: 1e9)])";

fn seeds() -> Vec<Vec<u8>> {
    vec![
        LIBRARY.into(),
        TRAIN.into(),
        DEBUG.into(),
        DEVICE.into(),
        RATES.into(),
        seed!("tests/fixtures/transformers/llama/config.json"),
        seed!("tests/fixtures/transformers/qwen3/config.json"),
        seed!("tests/fixtures/embeddings/bert/config.json"),
    ]
}

/// Returns a command with options of all kinds that `train` has.
fn command() -> Command {
    let option = |name: &'static str| Arg::new(name).long(name).action(ArgAction::Set);
    let train = Command::new("train")
        .arg(option("csv"))
        .arg(option("lr").value_parser(value_parser!(f32)).default_value("0.01"))
        .arg(option("epochs").value_parser(value_parser!(usize)).default_value("20"))
        .arg(option("hidden").value_delimiter(',').value_parser(value_parser!(usize)))
        .arg(option("patience").conflicts_with("epochs"))
        .arg(option("augment").action(ArgAction::Append))
        .arg(Arg::new("json").long("json").action(ArgAction::SetTrue))
        .arg(
            option("config")
                .id("config_file")
                .value_parser(value_parser!(std::path::PathBuf)),
        );
    Command::new("meganeura").subcommand(train)
}

fn settings(path: &Path) {
    if let Ok(config) = Config::read(path) {
        let _ = config.backend_size("cpu", "threads");
        let _ = config.backend_choice("cpu", "math", ["fast", "exact"]);
        let _ = config.backend_path("cuda", "nvrtc");
    }
    static COMMAND: OnceLock<Command> = OnceLock::new();
    let command = COMMAND.get_or_init(command);
    let args = ["meganeura", "train", "--config"].map(Into::into).into_iter();
    if let Ok((args, file)) = config_file::with_file(command, args.chain([path.into()]).collect()) {
        match command.clone().try_get_matches_from(args) {
            Ok(matches) => drop(config_file::effective(command, &matches)),
            Err(error) => drop(file.map(|file| file.notes(&error.to_string()))),
        }
    }
}

target!(seeds: seeds, change: text::change, |data| {
    let Ok(text) = std::str::from_utf8(data) else {
        return;
    };
    match text.trim_start().bytes().next() {
        Some(b'{') => {
            let path = Path::new("config.json");
            let _ = (ModelConfig::parse(text, path), EncoderConfig::parse(text, path));
        }
        Some(b'(') => drop(in_file("rates.ron", data, |path| Calibration::read(path))),
        _ => in_file("settings.toml", data, |path| settings(path)),
    }
    if text.len() < 256 {
        let _ = DebugOptions::parse(text);
        let _ = Selector::parse(text);
    }
});
