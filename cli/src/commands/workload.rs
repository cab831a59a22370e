//! Workloads by their names on the command line: models and matmuls.

use meganeura::nn::layers::WeightStorage;
use meganeura::nn::models::{CacheType, LogitsOf, PRESETS, Preset, preset};
use meganeura::{DType, Graph, Mode};

use super::language::{cache_type, storage};
use super::onnx::{self, DimOptions};

/// Options for models.
#[derive(Debug, clap::Args)]
pub(crate) struct ModelOptions {
    /// Measure training steps with plain gradient descent, instead of inference.
    #[arg(long, conflicts_with = "suite")]
    pub(super) train: bool,

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

    /// Number of sequences, each with its own cache.
    #[arg(long, value_name = "N", requires = "cache", default_value_t = 1)]
    pub(super) sequences: usize,

    /// Storage type of the weights, for language models with --cache.
    #[arg(long, value_name = "f32|f16|q8|q6|q5_1|q5_0|q4_1|q4", requires = "cache", value_parser = storage, default_value = "f32")]
    pub(super) weights: WeightStorage,

    /// Storage type of the KV cache.
    #[arg(long, value_name = "f32|f16", requires = "cache", value_parser = cache_type, default_value = "f32")]
    pub(super) cache_type: CacheType,

    /// Number of layers, for language models with --cache [default: all]
    #[arg(long, value_name = "N", requires = "cache", value_parser = clap::value_parser!(u32).range(1..))]
    pub(super) layers: Option<u32>,

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

/// A graph to run, and the FLOPs of a step if known.
pub(super) struct Workload {
    pub(super) graph: Graph,
    pub(super) mode: Mode,
    pub(super) flops: Option<f64>,
}

impl ModelOptions {
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
        if let Some(model) = preset(name) {
            if self.operands != DType::F32 {
                return Err(format!(
                    "--operands works only with matmuls, and '{name}' is not one; see --weights"
                ));
            }
            let graph = match self.cache {
                Some(capacity) => self.cached_graph(model, capacity)?,
                None => model.graph(self.seq.unwrap_or(model.rows)),
            };
            return Ok(Workload {
                graph,
                mode: if self.train { Mode::Training } else { Mode::Inference },
                flops: None,
            });
        }
        if self.cache.is_some() {
            return Err(format!(
                "--cache works only with language models, and '{name}' is not one"
            ));
        }
        let sizes: Vec<Option<usize>> = name.split('x').map(|size| size.parse().ok()).collect();
        let [Some(m), Some(n), Some(k)] = sizes[..] else {
            let known: Vec<&str> = PRESETS.iter().map(|p| p.name).collect();
            return Err(format!(
                "there is no model '{name}', and it is neither an ONNX file nor a matmul such as 512x512x512; the models are: {}",
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
        Ok(Workload {
            graph,
            mode: Mode::Inference,
            flops: Some(2.0 * m as f64 * n as f64 * k as f64),
        })
    }

    /// Returns the workload of an ONNX model.
    fn imported(&self, path: &str) -> Result<Workload, String> {
        if self.train || self.seq.is_some() || self.cache.is_some() || self.operands != DType::F32 {
            return Err(format!(
                "--train, --seq, --cache and --operands do not work with ONNX files such as '{path}'; see --dim"
            ));
        }
        Ok(Workload {
            graph: onnx::graph(path, &self.dims).map_err(|e| e.to_string())?,
            mode: Mode::Inference,
            flops: None,
        })
    }

    /// Returns a graph that appends some tokens of each sequence to the cached ones.
    fn cached_graph(&self, model: &Preset, capacity: usize) -> Result<Graph, String> {
        let Some(mut config) = model.language_model() else {
            return Err(format!(
                "--cache works only with language models, and '{}' is not one",
                model.name
            ));
        };
        let (rows, cached) = (self.seq.unwrap_or(1), self.cached as usize);
        if rows == 0 || self.sequences == 0 || cached.saturating_add(rows) > capacity {
            return Err(format!(
                "{} sequences of {cached} cached tokens and {rows} more do not fit caches of {capacity} rows; raise --cache",
                self.sequences
            ));
        }
        if let Some(layers) = self.layers {
            if layers as usize > config.layers {
                return Err(format!(
                    "'{}' has {} layers, fewer than --layers {layers}",
                    model.name, config.layers
                ));
            }
            config.layers = layers as usize;
        }
        config.weights = self.weights.into();
        config.cache_type = self.cache_type;
        let logits = if rows == 1 { LogitsOf::AllRows } else { LogitsOf::OneRow };
        Ok(match self.sequences {
            1 => config.decode_graph(&[], rows, capacity, logits),
            sequences => config.decode_graph(&[sequences], rows, capacity, logits),
        })
    }
}
