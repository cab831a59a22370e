//! The `meganeura` command.

mod commands;
mod memory;
mod output;
mod signals;

use std::error::Error;
use std::io::Write;
use std::process::ExitCode;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};

use meganeura::DebugOptions;
use meganeura::profiler::{self, TraceFile};

#[cfg(feature = "serve")]
use commands::serve;
use commands::tune;
use commands::{
    bench, chat, completions, conformance, data, devices, diff, doctor, embed, evaluation, explain, generate, models,
    onnx, ops, plugins, predict, pull, train,
};

/// Train and run neural networks on any hardware.
#[derive(Debug, Parser)]
#[command(name = "meganeura", version, about, after_help = AFTER_HELP, max_term_width = 80)]
struct Cli {
    /// Print more log messages (device choice, timings); -vv adds debug messages. MEGANEURA_LOG sets levels per module.
    #[arg(short, long, global = true, action = clap::ArgAction::Count)]
    verbose: u8,

    /// Exit with an error if a plugin of MEGANEURA_PLUGINS or of the configuration file cannot be loaded. By default
    /// the command continues without it.
    #[arg(long, global = true)]
    strict_plugins: bool,

    #[command(subcommand)]
    command: Command,
}

const AFTER_HELP: &str = "\
Devices: --device overrides MEGANEURA_DEVICE_ID, which overrides `device = ...` in meganeura.toml \
(MEGANEURA_CONFIG names another file). A selector (SEL) is auto, cpu, BACKEND, BACKEND:INDEX, BACKEND:name=PART or \
BACKEND:id=NUMBER; `meganeura devices` lists the selectors of this machine.

Plugins: MEGANEURA_PLUGINS is a list of absolute paths of shared objects with backends, and of folders of plugins without \
native code.

MEGANEURA_TRACE=FILE writes a trace of the command, which https://ui.perfetto.dev shows.
MEGANEURA_DEBUG=serial,no-aliasing,dump=FOLDER runs one dispatch after the other, gives each \
buffer its own memory, and writes generated kernels to a folder.";

#[derive(Debug, Subcommand)]
enum Command {
    /// Train a network on handwritten digits or your own data, and report its quality on held-out examples.
    Train(Box<train::Args>),
    /// Print the format and the columns of a CSV file, and what `train` does with each column.
    Data(data::Args),
    /// Predict classes or numbers for new examples with a model saved by `train --out`.
    Predict(predict::PredictArgs),
    /// Evaluate a saved model on labelled examples: accuracy, precision, recall, F1 and confusion matrix, or error
    /// metrics of regression.
    Evaluate(evaluation::EvaluateArgs),
    /// Check whether an ONNX model can run: list its inputs, unsupported operators and the cost of a run.
    Check(onnx::CheckArgs),
    /// Run an ONNX model on NumPy arrays or image files.
    Run(onnx::RunArgs),
    /// Quantize an ONNX model to 8 bits (W8A8).
    Quantize(onnx::QuantizeArgs),
    /// Export a trained model to an ONNX file.
    Export(onnx::ExportArgs),
    /// Continue a text with a language model.
    Generate(Box<generate::Args>),
    /// Chat with an instruction-tuned language model.
    Chat(Box<chat::Args>),
    /// Print embeddings of texts, or their pairwise similarity, with an encoder of the BERT family.
    Embed(embed::Args),
    /// Serve a language model, or an encoder for embeddings, over HTTP with an OpenAI-compatible API.
    #[cfg(feature = "serve")]
    Serve(Box<serve::Args>),
    /// List the language models and encoders on this machine, and the devices with enough memory for each.
    Models(models::Args),
    /// Download a model from the Hugging Face Hub.
    Pull(pull::Args),
    /// List the devices and their selectors.
    Devices(devices::Args),
    /// List drivers and devices, test and measure each device, and show the one that is used by default.
    Doctor(doctor::Args),
    /// List backends, operators and rule sets with their origin. `plugins verify` tests rules;
    /// `plugins check` tests a plugin.
    Plugins(plugins::Args),
    /// Look up operators: formula, shapes, element types, gradient, source.
    Ops(ops::Args),
    /// Show how a model is rewritten for a device: the rules that apply, where, and the time that each saves.
    Explain(explain::Args),
    /// Benchmark model steps and matmuls on a device.
    Bench(bench::Args),
    /// Measure schedules of matmuls, reductions and attention on a device, and save the fastest for later runs.
    Tune(tune::Args),
    /// Test a device against the reference implementation of every operator.
    Conformance(conformance::Args),
    /// Print a shell completion script, or the manual page.
    Completions(completions::Args),
    /// Replay a plan on two devices with the same data, and report the first dispatch with different results.
    Diff(diff::Args),
}

impl Command {
    fn checks_a_plugin(&self) -> bool {
        matches!(self, Command::Plugins(args) if args.checks())
    }
}

fn main() -> ExitCode {
    signals::report_large_files();
    #[cfg(feature = "serve")]
    if let Some(code) = serve::check_grammars() {
        return code;
    }
    let cli = match parse() {
        Ok(cli) => cli,
        Err(error) => {
            output::report(&*error);
            return ExitCode::FAILURE;
        }
    };
    if let Err(error) = start_logging(cli.verbose) {
        output::report(&*error);
        return ExitCode::FAILURE;
    }
    meganeura::select::name_api_selectors("--device");
    // This program tests plugins in a child process; `plugins check` is this process.
    if let (false, Ok(program)) = (cli.command.checks_a_plugin(), std::env::current_exe()) {
        meganeura::plugins::try_plugins_with(program);
    }
    // Also checked if the command creates no session, so that mistakes are reported.
    let debugging = DebugOptions::from_environment().and_then(|options| options.make_folder());
    let traced = debugging.and_then(|()| profiler::from_environment()).and_then(|trace| {
        let code = run(&cli);
        trace.map_or(Ok(()), TraceFile::finish)?;
        Ok(code)
    });
    traced.unwrap_or_else(|error| {
        output::report(&error);
        ExitCode::FAILURE
    })
}

/// Parses the command line, including the options of a config file. Mistakes end the program in the same way as in clap.
fn parse() -> Result<Cli, Box<dyn Error>> {
    let command = Cli::command();
    let (args, file) = train::with_file(&command, std::env::args_os().collect())?;
    let matches = command.clone().try_get_matches_from(args).unwrap_or_else(|error| {
        let Some(file) = file else { error.exit() };
        let notes = file.notes(&error.to_string());
        // Output errors are ignored, because standard error is the only place to report them.
        let _ = error.print();
        for note in notes {
            let _ = output::notice(note);
        }
        std::process::exit(error.exit_code())
    });
    commands::check_outputs(&matches)?;
    let mut cli = Cli::from_arg_matches(&matches).unwrap_or_else(|error| error.exit());
    if let (Command::Train(args), Some(settings)) = (&mut cli.command, train::effective(&command, &matches)) {
        args.note_settings(settings);
    }
    Ok(cli)
}

fn run(cli: &Cli) -> ExitCode {
    let refused = if cli.strict_plugins {
        plugins::refuse_if_any_is_refused()
    } else {
        Ok(())
    };
    let outcome = refused.and_then(|()| run_command(cli));
    match outcome {
        Ok(code) => code,
        // The reader has closed the pipe.
        Err(error) if output::is_closed_pipe(&*error) => ExitCode::SUCCESS,
        Err(error) => {
            output::report(&*error);
            ExitCode::FAILURE
        }
    }
}

fn run_command(cli: &Cli) -> commands::Outcome {
    match &cli.command {
        Command::Train(args) => train::run(args),
        Command::Data(args) => data::run(args),
        Command::Predict(args) => predict::predict(args),
        Command::Evaluate(args) => evaluation::evaluate(args),
        Command::Check(args) => onnx::check(args),
        Command::Run(args) => onnx::run(args),
        Command::Quantize(args) => onnx::quantize(args),
        Command::Export(args) => onnx::export(args),
        Command::Generate(args) => generate::run(args),
        Command::Chat(args) => chat::run(args),
        Command::Embed(args) => embed::run(args),
        #[cfg(feature = "serve")]
        Command::Serve(args) => serve::run(args),
        Command::Models(args) => models::run(args),
        Command::Pull(args) => pull::run(args),
        Command::Devices(args) => devices::run(args),
        Command::Doctor(args) => doctor::run(args),
        Command::Plugins(args) => plugins::run(args),
        Command::Ops(args) => ops::run(args),
        Command::Explain(args) => explain::run(args),
        Command::Bench(args) => bench::run(args),
        Command::Tune(args) => tune::run(args),
        Command::Conformance(args) => conformance::run(args, cli.verbose > 0),
        Command::Completions(args) => completions::run(args, &mut Cli::command()),
        Command::Diff(args) => diff::run(args),
    }
}

fn start_logging(verbose: u8) -> Result<(), Box<dyn Error>> {
    let default = match verbose {
        // A missing driver is not an error of the program: `devices` and `doctor` report why a backend has no devices.
        0 => "warn,blade_graphics=off",
        // Messages of the e-graph are only useful for debugging rules.
        1 => "info,blade_graphics=warn,egglog=warn",
        _ => "debug",
    };
    if let Some(filter) = std::env::var_os(LOG_VARIABLE) {
        check_filter(&filter.to_string_lossy())?;
    }
    let environment = env_logger::Env::new().filter_or(LOG_VARIABLE, default);
    env_logger::Builder::from_env(environment)
        .format(|out, record| {
            let (level, style) = (record.level(), out.default_level_style(record.level()));
            // Messages contain names from files.
            let text = record.args().to_string();
            writeln!(out, "[{style}{level:<5}{style:#}] {}", output::printable(&text))
        })
        .init();
    Ok(())
}

const LOG_VARIABLE: &str = "MEGANEURA_LOG";

/// Returns an error for invalid filters, which would suppress all messages.
fn check_filter(filter: &str) -> Result<(), String> {
    let levels = ["off", "error", "warn", "info", "debug", "trace"];
    let is_level = |word: &str| levels.contains(&word.to_lowercase().as_str());
    let is_module = |word: &str| !word.is_empty() && word.chars().all(|c| c.is_alphanumeric() || "_:-".contains(c));
    // The text after a slash is a pattern of messages.
    let words = filter.split('/').next().unwrap_or_default().split(',').map(str::trim);
    for word in words.filter(|word| !word.is_empty()) {
        let good = match word.split_once('=') {
            None => is_level(word) || is_module(word),
            Some((module, level)) => is_module(module) && is_level(level),
        };
        if !good {
            return Err(format!(
                "{LOG_VARIABLE}: '{word}' is not a filter; give levels ({}) or MODULE=LEVEL, separated by commas",
                levels.join(", ")
            ));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::check_filter;

    #[test]
    fn filters_are_levels_of_modules() {
        for good in [
            "",
            "debug",
            "WARN,blade_graphics=off",
            "meganeura_core=trace,info",
            "meganeura_core::plan",
            "info/a+",
        ] {
            assert_eq!(check_filter(good), Ok(()), "{good}");
        }
        for bad in ["!!!", "warn,meganeura=loud", "=debug", "a b"] {
            assert!(check_filter(bad).is_err_and(|e| e.contains("is not a filter")), "{bad}");
        }
    }
}
