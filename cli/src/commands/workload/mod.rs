//! Workloads by their names on the command line: models and matmuls.

mod language;

use meganeura::nn::models::{CacheType, LogitsOf, PRESETS, preset};
use meganeura::ops::graph_flops;
use meganeura::{Adam, DType, Graph, Mode, Sgd, Update};

pub(super) use self::language::{LanguageModel, LanguageOptions};
use super::language::cache_type;
use super::onnx::{self, DimOptions};

/// Options for models.
#[derive(Debug, clap::Args)]
pub(crate) struct ModelOptions {
    /// Measure training steps instead of inference.
    #[arg(long, conflicts_with = "suite")]
    pub(super) train: bool,

    /// Update rule of training steps: plain gradient descent, or AdamW [default: sgd]
    #[arg(long, value_enum, requires = "train")]
    pub(super) optimizer: Option<Rule>,

    /// Number of rows of models: tokens of a sequence, or examples of a batch.
    #[arg(long, value_name = "N", conflicts_with = "suite")]
    pub(super) seq: Option<usize>,

    /// Run language models with a KV cache of this size in tokens. A step appends `--seq` tokens (default 1) to the
    /// cache and computes the logits of the last one.
    #[arg(long, value_name = "ROWS", conflicts_with_all = ["train", "suite"])]
    pub(super) cache: Option<usize>,

    /// Number of tokens in the cache before a step.
    #[arg(long, value_name = "N", requires = "cache", default_value_t = 0)]
    pub(super) cached: u32,

    /// Storage type of the KV cache.
    #[arg(long, value_name = "f32|f16|q8", requires = "cache", value_parser = cache_type, default_value = "f32")]
    pub(super) cache_type: CacheType,

    #[command(flatten)]
    pub(super) language: LanguageOptions,

    #[command(flatten)]
    pub(super) dims: DimOptions,

    /// Storage type of matmul operands.
    #[arg(long, value_name = "f32|f16|bf16", conflicts_with = "suite", value_parser = operands, default_value = "f32")]
    pub(super) operands: DType,
}

fn operands(text: &str) -> Result<DType, String> {
    let known = [DType::F32, DType::F16, DType::BF16];
    let found = known.into_iter().find(|dtype| dtype.to_string() == text);
    found.ok_or_else(|| format!("expected f32, f16 or bf16, found '{text}'"))
}

/// An update rule of measured training steps.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
pub(super) enum Rule {
    Sgd,
    #[value(name = "adamw")]
    AdamW,
}

/// A graph to run.
pub(super) struct Workload {
    pub(super) graph: Graph,
    pub(super) mode: Mode,
    /// Update rule of training steps.
    pub(super) optimizer: Option<Update>,
    /// Arithmetic operations of a step by the usual count for models: those of the forward pass, in training twice as many for
    /// the gradients of activations and weights. Recomputation and updates do not count.
    pub(super) flops: f64,
    /// Number of tokens that a step of a language model processes.
    pub(super) tokens: Option<usize>,
}

impl ModelOptions {
    /// Checks that the options fit suites. The parser cannot, because `explain` has the same options and no suites.
    ///
    /// # Errors
    /// An option works only with named workloads.
    pub(super) fn check_suites(&self) -> Result<(), String> {
        match self.language.given() {
            Some(option) => Err(format!("{option} works only with named workloads, not with --suite")),
            None => Ok(()),
        }
    }

    /// Returns the workload with a name.
    ///
    /// # Errors
    /// There is no such model, or it does not support an option.
    pub(super) fn workload(&self, name: &str) -> Result<Workload, String> {
        if onnx::is_file(name) {
            return self.imported(name);
        }
        if self.dims.any() {
            return Err(format!(
                "--dim and --set work only with ONNX files, and '{name}' is not one"
            ));
        }
        if let Some(workload) = self.model(name)? {
            return Ok(workload);
        }
        if let Some(option) = self.cache.map(|_| "--cache").or(self.language.given()) {
            return Err(format!(
                "{option} works only with language models, and '{name}' is not one"
            ));
        }
        let sizes: Vec<Option<usize>> = name.split('x').map(|size| size.parse().ok()).collect();
        let [Some(m), Some(n), Some(k)] = sizes[..] else {
            let known: Vec<&str> = PRESETS.iter().map(|p| p.name).collect();
            return Err(format!(
                "there is no model '{name}', and it is neither an ONNX file, a checkpoint folder, a GGUF file nor a matmul such as \
                 512x512x512; the models are: {}",
                known.join(", ")
            ));
        };
        if self.train || self.seq.is_some() {
            return Err(format!(
                "--train and --seq work only with models, and '{name}' is not one"
            ));
        }
        let mut graph = Graph::new();
        let operand = |graph: &mut Graph, name: &str, shape: [usize; 2]| match self.operands {
            DType::F32 => graph.input(name, &shape),
            dtype => {
                let stored = graph.input_typed(name, &shape, dtype);
                graph.cast(stored, DType::F32)
            }
        };
        let (a, b) = (operand(&mut graph, "a", [m, k]), operand(&mut graph, "b", [k, n]));
        let product = graph.matmul(a, b);
        graph.set_outputs(vec![product]);
        Ok(self.of(graph, None))
    }

    /// Returns the workload of a model: a preset, or a language model in files. `None`: there is none with this name.
    fn model(&self, name: &str) -> Result<Option<Workload>, String> {
        let language = LanguageModel::named(name)?;
        let preset = preset(name);
        if language.is_none() && preset.is_none() {
            return Ok(None);
        }
        if self.operands != DType::F32 {
            return Err(format!(
                "--operands works only with matmuls, and '{name}' is not one; see --weights"
            ));
        }
        if let Some(model) = language {
            let (graph, rows) = match self.cache {
                Some(capacity) => self.cached_graph(&model, capacity)?,
                None => self.language.graph(&model, self.seq, self.train)?,
            };
            return Ok(Some(self.of(graph, Some(rows * self.language.sequences()))));
        }
        let Some(preset) = preset.filter(|_| self.cache.is_none() && self.language.given().is_none()) else {
            return Ok(None);
        };
        Ok(Some(self.of(preset.graph(self.seq.unwrap_or(preset.rows)), None)))
    }

    /// Returns the workload of a graph.
    fn of(&self, graph: Graph, tokens: Option<usize>) -> Workload {
        let passes = match (self.train, self.language.is_lora()) {
            (false, _) => 1.0,
            // Frozen weights have no gradients.
            (true, true) => 2.0,
            (true, false) => 3.0,
        };
        Workload {
            mode: if self.train { Mode::Training } else { Mode::Inference },
            optimizer: self.train.then(|| match self.optimizer {
                None | Some(Rule::Sgd) => Sgd::new(1e-3).into(),
                Some(Rule::AdamW) => Adam::adamw(1e-3, 0.01).into(),
            }),
            flops: passes * graph_flops(&graph) as f64,
            graph,
            tokens,
        }
    }

    /// Returns the workload of an ONNX model.
    fn imported(&self, path: &str) -> Result<Workload, String> {
        if self.train || self.seq.is_some() || self.cache.is_some() || self.operands != DType::F32 {
            return Err(format!(
                "--train, --seq, --cache and --operands do not work with ONNX files such as '{path}'; see --dim"
            ));
        }
        if let Some(option) = self.language.given() {
            return Err(format!("{option} does not work with ONNX files such as '{path}'"));
        }
        Ok(self.of(onnx::graph(path, &self.dims).map_err(|e| e.to_string())?, None))
    }

    /// Returns a graph that appends some tokens of each sequence to the cached ones, and their number.
    fn cached_graph(&self, model: &LanguageModel, capacity: usize) -> Result<(Graph, usize), String> {
        let sequences = self.language.sequences();
        let (rows, cached) = (self.seq.unwrap_or(1), self.cached as usize);
        if rows == 0 || cached.saturating_add(rows) > capacity {
            return Err(format!(
                "{sequences} sequences of {cached} cached tokens and {rows} more do not fit caches of {capacity} rows; raise --cache"
            ));
        }
        let mut config = self.language.configure(model, false)?;
        config.cache_type = self.cache_type;
        let logits = if rows == 1 { LogitsOf::AllRows } else { LogitsOf::OneRow };
        let graph = match sequences {
            1 => config.decode_graph(&[], rows, capacity, logits),
            sequences => config.decode_graph(&[sequences], rows, capacity, logits),
        };
        Ok((graph, rows))
    }
}
