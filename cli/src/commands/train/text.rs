//! Command `meganeura train text`.

use std::error::Error;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use meganeura::files::{FolderError, NewFolder, prepare_folder};
use meganeura::llm::adapters::set_lengths;
use meganeura::llm::saving::{self, Descriptions};
use meganeura::llm::tokenizer::END_OF_TEXT;
use meganeura::llm::{ChatTemplate, Checkpoint, ModelConfig, Projections, Tokenizer, WeightStorage};
use meganeura::nn::data::{Dataset, Parts};
use meganeura::nn::layers::{LoraConfig, LoraTargets};
use meganeura::nn::models::{LlamaConfig, TARGETS, TOKENS, language_model, weighted_language_model};
use meganeura::nn::trainer::{OptimizerChoice, TrainConfig, TrainReport, Trainer};
use meganeura::{GradientClip, Graph, NodeId, ParameterGroup};
use serde_json::{Value, json};

use super::corpus::{Corpus, CountedTokens, DataFormat, Source, Tokenization};
use super::display::SpeedUnit;
use super::logs::Logs;
use super::options::RunOptions;
use super::report::{finite, introduce_plan, parameters, steps_per_second};
use super::{default_rate, display, ended, interrupt, is_interrupted};
use crate::commands::Outcome;
use crate::commands::language::{locate, storage};
use crate::commands::outputs::keep_inputs;
use crate::commands::ranks::Ranks;
use crate::commands::slow_stage::SlowStage;
use crate::output::{self, line};

const EXAMPLES: &str = "\
Examples:
  meganeura train text --data data/alice/alice.txt --model tiny --out alice
  meganeura generate --model alice --prompt \"The rabbit-hole went straight on like\"
  meganeura train text --data letters.txt --model SmolLM2-135M --lora 8 --out letters
  meganeura train text --data chats.jsonl --model SmolLM2-135M-Instruct --lora 8 --out assistant
  meganeura train text --data letters.txt --model SmolLM2-135M --lora 8 --weights q4 --out letters
  meganeura generate --model SmolLM2-135M --lora letters --prompt \"Dear\"";

/// Name of the model that is trained from scratch.
const TINY: &str = "tiny";

/// Options of `train text`.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Args {
    /// File to train on, in UTF-8: a text, or JSON objects, one per line or in a list. Objects have the fields messages
    /// (conversations), prompt and completion, instruction and output, conversations (ShareGPT), or text (documents).
    #[arg(long, value_name = "FILE")]
    data: PathBuf,

    /// Format of the file.
    #[arg(long, value_name = "FORMAT", value_enum, default_value_t = DataFormat::Auto)]
    format: DataFormat,

    /// Tokens of JSON data that the loss counts.
    #[arg(long, value_name = "TOKENS", value_enum, default_value_t = CountedTokens::Answers)]
    loss_on: CountedTokens,

    /// Join short JSON objects to full sequences of --seq tokens (default 2048), which takes fewer steps. Tokens then see the earlier
    /// objects of their sequence.
    #[arg(long)]
    pack: bool,

    /// Initial model: tiny (a small model with random weights), a checkpoint folder, a GGUF file, or a name from
    /// `meganeura models`. With the feature `hub`, a name on the Hugging Face Hub is downloaded.
    #[arg(long, value_name = "tiny|DIR|FILE.gguf|NAME")]
    model: PathBuf,

    /// tokenizer.json to use instead of the model's; for tiny, instead of a tokenizer trained on the text.
    #[arg(long, value_name = "FILE")]
    tokenizer: Option<PathBuf>,

    /// Vocabulary size of the tokenizer that is trained for tiny.
    #[arg(long, value_name = "N", default_value_t = 512, conflicts_with = "tokenizer")]
    vocab: usize,

    /// Sequence length of an example, in tokens. Longer JSON objects are cut off, shorter ones are filled up [default: 64 for a
    /// text, the longest example up to 2048 for JSON; at most the model's context]
    #[arg(long, value_name = "N")]
    seq: Option<usize>,

    /// Number of steps [default: 400 for tiny, 100 for a checkpoint, rounded up to whole epochs]
    #[arg(long, value_name = "N", conflicts_with = "epochs")]
    steps: Option<usize>,

    /// Fraction of the data, at its end, to hold out for testing, from 0 to below 1.
    #[arg(long, value_name = "FRACTION", default_value_t = 0.1)]
    test_fraction: f64,

    /// Rank of LoRA adapters to train, with the model frozen [default: train the model]
    #[arg(long, value_name = "RANK")]
    lora: Option<usize>,

    /// Alpha of the adapters: their output is scaled by alpha / rank, see also --rslora [default: twice the rank]
    #[arg(long, value_name = "ALPHA", requires = "lora")]
    lora_alpha: Option<f32>,

    /// Scale the output of adapters by alpha / sqrt(rank) (rsLoRA), for ranks of 32 and more.
    #[arg(long, requires = "lora")]
    rslora: bool,

    /// Also train the lengths of the columns of the adapted weights (DoRA): more accurate at low ranks, and slower.
    #[arg(long, requires = "lora")]
    dora: bool,

    /// Layers with adapters: all, or a list of q, k, v, o, gate, up and down.
    #[arg(long, value_name = "LIST", requires = "lora", default_value = "q,v")]
    lora_targets: LoraTargets,

    /// Save the whole model with the adapters merged in, instead of only the adapters.
    #[arg(long, requires = "lora", conflicts_with = "weights")]
    merge: bool,

    /// Storage type of the frozen weights (QLoRA): f32, f16, or blocks of 8, 6, 5 or 4 bits with scales. f16 takes half
    /// of the memory of f32, 4 bits about an eighth [default: f32, also for GGUF files]
    #[arg(long, value_name = "f32|f16|q8|q6|q5_1|q5_0|q4_1|q4", requires = "lora", value_parser = storage)]
    weights: Option<WeightStorage>,

    /// Folder to save the trained model or the adapters to. Without it, nothing is saved.
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,

    #[command(flatten)]
    pub(super) run: RunOptions,
}

/// A model, its tokenizer, and its source.
struct Model {
    config: ModelConfig,
    tokenizer: Tokenizer,
    /// Folder of the checkpoint; `None` for a new model.
    folder: Option<PathBuf>,
}

pub(super) fn run(args: &Args) -> Outcome {
    if args.run.print_config {
        output::text(&args.run.settings)?;
        return Ok(ExitCode::SUCCESS);
    }
    let ranks = Ranks::join(&args.run.ranks)?;
    ranks.end(train(args, &ranks))
}

fn train(args: &Args, ranks: &Ranks) -> Outcome {
    let inputs = std::iter::once(&args.data).chain(&args.tokenizer).map(PathBuf::as_path);
    keep_inputs(&[("--log", args.run.log.as_deref())], inputs)?;
    args.run.outlast_reader(args.out.is_some());
    // Comes first, so that a path that cannot be written is reported immediately.
    let logs = if ranks.is_first() {
        Logs::try_paths(&args.run)?
    } else {
        Logs::none(&args.run)
    };
    let out = args.out.as_ref().filter(|_| ranks.is_first());
    let lora = adapters(args)?;
    let kind = if lora.is_some() && !args.merge {
        saving::ADAPTERS_FOLDER
    } else {
        saving::MODEL_FOLDER
    };
    if let Some(out) = out {
        prepare_folder(out, kind).map_err(FolderError::into_error)?;
    }
    let source = Source::read(&args.data, args.format)?;
    let model = Model::open(args, &source)?;
    // Some models cannot be described; this is checked before training.
    let descriptions = if (lora.is_some() && !args.merge) || out.is_none() {
        None
    } else {
        Some(describe(&model)?)
    };
    let template = model.folder.as_deref().map(ChatTemplate::find).transpose()?.flatten();
    let corpus = Tokenization {
        path: &args.data,
        tokenizer: &model.tokenizer,
        template: template.as_ref(),
        stop: &model.config.stop,
        vocab: model.config.network.vocab,
        context: model.config.context,
        rows: args.seq,
        test_fraction: args.test_fraction,
        counted: args.loss_on,
        pack: args.pack,
    };
    let corpus = corpus.corpus(&source)?;
    let network = LlamaConfig {
        lora,
        weights: args.weights.unwrap_or_default().into(),
        ..model.config.network
    };
    let mut config = config(args, &corpus.train, &model);
    config.distributed = ranks.communicator();
    config.zero1 = args.run.zero1;
    let logits = |g: &mut Graph, tokens: NodeId| network.build(g, "").forward(g, tokens);
    let graph = |batch| {
        if corpus.is_weighted {
            weighted_language_model(batch, corpus.rows, logits)
        } else {
            language_model(batch, corpus.rows, logits)
        }
    };
    let checkpoint = model.folder.as_deref().map(Checkpoint::open).transpose()?;
    if let Some(checkpoint) = &checkpoint {
        // The check comes before allocations of the sizes in the configuration.
        checkpoint.check_model(&network)?;
    }
    let graph = graph(config.local_batch_size());
    let unit = SpeedUnit::Tokens(config.batch_size * corpus.rows);
    let compiling = SlowStage::begin("compiling the training step");
    let mut trainer = Trainer::from_graph(&graph, config)?;
    drop(compiling);
    if let Some(checkpoint) = checkpoint {
        let _loading = SlowStage::begin("loading the weights");
        checkpoint.load_into(trainer.session_mut())?;
        // Adapters change nothing at first.
        set_lengths(trainer.session_mut())?;
    }
    interrupt::watch(&args.run);
    if !args.run.json {
        introduce(args, &trainer, &corpus)?;
        ranks.introduce(trainer.config().batch_size, &graph)?;
        logs.introduce()?;
    }
    let (tokens, counted) = (corpus.tokens, corpus.counted);
    let parts = Parts {
        train: corpus.train,
        validation: None,
        test: corpus.test,
    };
    let logs = logs.with_unit(unit);
    let report = logs.fit(&mut trainer, &parts, args.run.json)?.training;
    interrupt::note_end(ranks, &report);
    if let Some(out) = out {
        let new = NewFolder::begin(out, kind).map_err(FolderError::into_error)?;
        let session = trainer.session_mut();
        match (descriptions, &lora) {
            (Some(descriptions), lora) => {
                descriptions.write(new.path())?;
                saving::save_weights(new.path(), session, lora.as_ref(), model.config.projections)?;
            }
            (None, Some(lora)) => {
                saving::save_adapters(new.path(), session, lora, &args.model.display().to_string())?;
            }
            (None, None) => {}
        }
        new.put().map_err(FolderError::into_error)?;
    }
    conclude(args, &report, &trainer, ([tokens, counted], unit), logs.folder())?;
    ended(&args.run, &report)
}

/// Returns the requested adapters.
fn adapters(args: &Args) -> Result<Option<LoraConfig>, Box<dyn Error>> {
    let Some(rank) = args.lora else { return Ok(None) };
    if rank == 0 {
        return Err("--lora: expected a rank of at least 1, found 0".into());
    }
    let usual = LoraConfig::new(rank);
    let alpha = args.lora_alpha.unwrap_or(usual.alpha);
    if !alpha.is_finite() {
        return Err(format!("--lora-alpha: expected a finite number, found {alpha}").into());
    }
    Ok(Some(LoraConfig {
        alpha,
        targets: args.lora_targets,
        rank_stabilized: args.rslora,
        dora: args.dora,
        ..usual
    }))
}

impl Model {
    fn open(args: &Args, source: &Source) -> Result<Self, Box<dyn Error>> {
        if args.model.as_os_str() != TINY {
            let folder = locate(&args.model)?;
            let config = ModelConfig::open(&folder)?;
            let tokenizer = match &args.tokenizer {
                Some(path) => Tokenizer::read(path)?,
                None => Tokenizer::open(&folder)?,
            };
            tokenizer.check(&config)?;
            return Ok(Model {
                config,
                tokenizer,
                folder: Some(folder),
            });
        }
        if args.lora.is_some() {
            return Err("--lora needs a trained model: pass a checkpoint folder with --model".into());
        }
        let tokenizer = match &args.tokenizer {
            Some(path) => Tokenizer::read(path)?,
            None => Tokenizer::train(&source.text(), args.vocab)?,
        };
        const CONTEXT: usize = 256;
        let context = args.seq.unwrap_or(0).max(CONTEXT);
        let stop = tokenizer.token(END_OF_TEXT).into_iter().collect();
        Ok(Model {
            config: ModelConfig {
                network: LlamaConfig::small(tokenizer.vocab()),
                context,
                stop,
                sampling: Default::default(),
                projections: Projections::Separate,
            },
            tokenizer,
            folder: None,
        })
    }
}

fn config(args: &Args, train: &Dataset, model: &Model) -> TrainConfig {
    const BATCH: usize = 8;
    let is_new = model.folder.is_none();
    let batch = args.run.batch.unwrap_or_else(|| BATCH.min(train.len()));
    let steps = args.steps.unwrap_or(if is_new { 400 } else { 100 });
    let epochs = args
        .run
        .epochs
        .unwrap_or_else(|| steps.div_ceil((train.len() / batch.max(1)).max(1)));
    let rate = match &args.run.optimizer {
        OptimizerChoice::Adam | OptimizerChoice::AdamW { .. } => match (is_new, args.lora) {
            (true, _) => 3e-3,
            (false, Some(_)) => 1e-3,
            (false, None) => 1e-4,
        },
        rule => default_rate(rule),
    };
    let usual = args.run.config(batch, epochs, rate);
    let mut groups = usual.groups.clone();
    if groups.is_empty() && args.lora.is_none() {
        groups.push(ParameterGroup::new(["*norm.weight"]).weight_decay(0.0));
    }
    TrainConfig {
        max_steps: args.steps.map(|steps| steps as u64),
        clip: usual.clip.or(Some(GradientClip::Norm(1.0))),
        groups,
        features: TOKENS.to_owned(),
        labels: TARGETS.to_owned(),
        ..usual
    }
}

fn introduce(args: &Args, trainer: &Trainer, corpus: &Corpus) -> std::io::Result<()> {
    let parameters = match args.lora {
        None => format!("{} parameters", parameters(trainer)),
        // Words of packed weights are not parameters.
        Some(_) => {
            let trained = trainer.session().plan().gradients();
            let count: usize = trained.iter().map(|view| view.ty.numel()).sum();
            format!(
                "{count} adapter parameters, all others frozen in {}",
                args.weights.unwrap_or_default().name()
            )
        }
    };
    line(format_args!(
        "{} on {}: {}; {} examples of {} to train, {parameters}",
        args.model.display(),
        trainer.session().device().capabilities().name,
        corpus.about,
        corpus.train.len(),
        corpus.rows,
    ))?;
    let batch = trainer.config().batch_size;
    let left_out = corpus.train.len() % batch;
    if left_out > 0 {
        line(format_args!(
            "{left_out} examples do not fill a batch of {batch}; each epoch skips {left_out} random examples"
        ))?;
    }
    introduce_plan(trainer)
}

/// Returns the files that describe the model, including the tokenizer.
fn describe(model: &Model) -> meganeura::Result<Descriptions> {
    let mut descriptions = match &model.folder {
        Some(folder) if folder.is_dir() => Descriptions::of_checkpoint(folder)?,
        // A new model, or a GGUF file.
        _ => {
            let stop = model.config.stop.first().copied();
            Descriptions::of_llama(&model.config.network, model.config.context, stop)?
        }
    };
    descriptions.set_tokenizer(model.tokenizer.to_json()?);
    Ok(descriptions)
}

fn conclude(
    args: &Args,
    report: &TrainReport,
    trainer: &Trainer,
    ([tokens, counted], unit): ([usize; 2], SpeedUnit),
    logs: Option<&Path>,
) -> std::io::Result<()> {
    let evaluation = report.evaluation;
    if args.run.json {
        return line(json!({
            "data": args.data.display().to_string(),
            "model": args.model.display().to_string(),
            "tokens": tokens,
            "counted_tokens": counted,
            "seed": args.run.seed,
            "device": trainer.session().device().capabilities().name,
            "epochs": report.epochs.len(),
            "steps": report.total_steps,
            "interrupted": is_interrupted(report),
            "train_loss": finite(report.epochs.last().map_or(f64::NAN, |e| e.train_loss)),
            "test_loss": evaluation.map_or(Value::Null, |e| finite(e.loss)),
            "test_perplexity": evaluation.map_or(Value::Null, |e| finite(e.loss.exp())),
            "test_accuracy": evaluation.map(|e| e.accuracy()),
            "precision": trainer.session().plan().precision.to_string(),
            "skipped_updates": report.skipped_updates,
            "steps_per_second": steps_per_second(report),
            "compile_seconds": report.compile_seconds,
            "seconds": report.seconds,
            "log_dir": logs,
            "out": args.out.as_ref().map(|out| out.display().to_string()),
        }));
    }
    let test = evaluation.map_or_else(String::new, |e| {
        format!(
            ", test loss {:.4} (perplexity {:.2}), {:.1} % of the tokens right",
            e.loss,
            e.loss.exp(),
            100.0 * e.accuracy()
        )
    });
    line(format_args!(
        "{} steps{}{test}, compiled in {:.1} s, {:.1} s in all",
        report.total_steps,
        display::training(
            report.epochs.last().map_or(f64::NAN, |e| e.train_loss),
            steps_per_second(report),
            unit
        ),
        report.compile_seconds,
        report.compile_seconds + report.seconds
    ))?;
    match &args.out {
        Some(out) => line(format_args!("saved to {}", out.display())),
        None => Ok(()),
    }
}
