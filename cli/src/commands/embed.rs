//! `meganeura embed`.

use std::io::{self, BufRead};
use std::path::PathBuf;
use std::process::ExitCode;

use meganeura::llm::{Embedder, EmbedderOptions, Pooling};
use serde_json::json;

use super::Outcome;
use super::language::{locate, plans_of};
use crate::output::{line, notice};

/// Options of `embed`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Folder of an encoder of the BERT family in Hugging Face's layout (config.json, safetensors files and tokenizer.json), with
    /// the files that sentence-transformers adds, if there are any; or a GGUF file of the architecture bert; or a name that `meganeura models` lists. With the feature
    /// `hub`, a name on the Hugging Face Hub, such as sentence-transformers/all-MiniLM-L6-v2, is downloaded.
    #[arg(long, value_name = "DIR|NAME")]
    model: PathBuf,

    /// Texts to embed; without any, each line of standard input is one.
    #[arg(value_name = "TEXT")]
    texts: Vec<String>,

    /// How the rows of tokens become one vector: their mean, or the row of the first token [default: as the model says, else mean]
    #[arg(long, value_name = "mean|cls", value_parser = clap::value_parser!(Pooling))]
    pooling: Option<Pooling>,

    /// Leave vectors as long as they are [default: as the model says, else vectors have the length 1]
    #[arg(long)]
    no_normalize: bool,

    /// Truncate texts that are longer than the model takes, instead of refusing them.
    #[arg(long)]
    truncate: bool,

    /// Print the cosine similarity of each text with every other instead of the vectors.
    #[arg(long)]
    similarity: bool,

    /// Device to run on; see `meganeura devices`.
    #[arg(long, value_name = "SEL")]
    device: Option<String>,

    /// Build plans each time instead of keeping them in the user's cache folder.
    #[arg(long)]
    no_plan_cache: bool,
}

/// Texts that are embedded before their vectors are printed.
const TOGETHER: usize = 64;

pub(crate) fn run(args: &Args) -> Outcome {
    let model = locate(&args.model)?;
    let options = EmbedderOptions {
        device: args.device.clone(),
        pooling: args.pooling,
        normalize: args.no_normalize.then_some(false),
        truncate: args.truncate,
        plans: if args.no_plan_cache { None } else { plans_of(&model) },
    };
    let mut embedder = Embedder::open(&model, options)?;
    let texts = match args.texts.is_empty() {
        true => io::stdin().lock().lines().collect::<io::Result<_>>()?,
        false => args.texts.clone(),
    };
    if args.similarity {
        let vectors = embedder.embed(&texts)?;
        return print_similarities(&texts, &vectors);
    }
    let mut tokens = 0;
    for texts in texts.chunks(TOGETHER) {
        let encoded: Vec<Vec<u32>> = texts
            .iter()
            .map(|text| embedder.text_encoder().tokens(text))
            .collect::<meganeura::Result<_>>()?;
        tokens += encoded.iter().map(Vec::len).sum::<usize>();
        let vectors = embedder.embed_tokens(&encoded)?;
        for ((text, ids), vector) in texts.iter().zip(&encoded).zip(vectors) {
            line(json!({"text": text, "tokens": ids.len(), "embedding": vector}))?;
        }
    }
    notice(format_args!(
        "{} texts of {tokens} tokens, {} numbers each, on {}",
        texts.len(),
        embedder.dim(),
        embedder.device()
    ))?;
    Ok(ExitCode::SUCCESS)
}

/// A line for each text, with its similarity to each.
fn print_similarities(texts: &[String], vectors: &[Vec<f32>]) -> Outcome {
    for (text, vector) in texts.iter().zip(vectors) {
        let row: Vec<String> = vectors
            .iter()
            .map(|other| format!("{:6.3}", cosine(vector, other)))
            .collect();
        line(format_args!("{}  {text}", row.join(" ")))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// The cosine of the angle between two vectors; 0 for one without a direction.
fn cosine(a: &[f32], b: &[f32]) -> f64 {
    let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(&x, &y)| f64::from(x) * f64::from(y)).sum::<f64>();
    let lengths = (dot(a, a) * dot(b, b)).sqrt();
    match lengths > 0.0 {
        true => dot(a, b) / lengths,
        false => 0.0,
    }
}
