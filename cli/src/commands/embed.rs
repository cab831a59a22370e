//! Command `meganeura embed`.

use std::io::{self, BufRead};
use std::path::PathBuf;
use std::process::ExitCode;

use meganeura::llm::{Embedder, EmbedderOptions, Pooling, check_vectors};
use serde_json::json;

use super::Outcome;
use super::language::{locate, plans_of};
use crate::output::{line, notice};

/// Options of `embed`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Checkpoint folder of a BERT-family encoder in Hugging Face's layout (config.json, safetensors files,
    /// tokenizer.json, optionally the files of sentence-transformers), a GGUF file with the architecture bert, or a
    /// name from `meganeura models`. With the feature `hub`, a name on the Hugging Face Hub, such as
    /// sentence-transformers/all-MiniLM-L6-v2, is downloaded.
    #[arg(long, value_name = "DIR|NAME")]
    model: PathBuf,

    /// Texts to embed [default: the lines of standard input]
    #[arg(value_name = "TEXT")]
    texts: Vec<String>,

    /// Pooling of the token vectors: their mean, or the first token (cls) [default: the model's setting, else mean]
    #[arg(long, value_name = "mean|cls", value_parser = clap::value_parser!(Pooling))]
    pooling: Option<Pooling>,

    /// Do not normalize vectors to length 1 [default: the model's setting, else normalized]
    #[arg(long)]
    no_normalize: bool,

    /// Truncate texts that exceed the model's maximum length, instead of reporting an error.
    #[arg(long)]
    truncate: bool,

    /// Print the cosine similarity of each pair of texts instead of the vectors.
    #[arg(long)]
    similarity: bool,

    /// Device to run on; see `meganeura devices`.
    #[arg(long, value_name = "SEL")]
    device: Option<String>,

    /// Compile plans at each start, instead of keeping them in the user's cache folder.
    #[arg(long)]
    no_plan_cache: bool,
}

/// Number of texts that are embedded before their vectors are printed.
const BATCH: usize = 64;

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
    let texts = if args.texts.is_empty() {
        io::stdin().lock().lines().collect::<io::Result<_>>()?
    } else {
        args.texts.clone()
    };
    if args.similarity {
        let vectors = embedder.embed(&texts)?;
        check_vectors(&vectors)?;
        return print_similarities(&texts, &vectors);
    }
    let mut tokens = 0;
    for texts in texts.chunks(BATCH) {
        let encoded: Vec<Vec<u32>> = texts
            .iter()
            .map(|text| embedder.text_encoder().tokens(text))
            .collect::<meganeura::Result<_>>()?;
        tokens += encoded.iter().map(Vec::len).sum::<usize>();
        let vectors = embedder.embed_tokens(&encoded)?;
        check_vectors(&vectors)?;
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

/// Prints a line for each text, with its similarity to each text.
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

/// Returns the cosine of the angle between two vectors; 0 for a zero vector.
fn cosine(a: &[f32], b: &[f32]) -> f64 {
    let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(&x, &y)| f64::from(x) * f64::from(y)).sum::<f64>();
    let lengths = (dot(a, a) * dot(b, b)).sqrt();
    if lengths > 0.0 { dot(a, b) / lengths } else { 0.0 }
}
