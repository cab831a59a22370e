//! Writing of trained models and adapters, in the layouts that are read.

use std::fs;
use std::path::Path;

use meganeura_core::files::{FolderKind, read_within_memory, write_atomically};
use meganeura_core::{Error, Result, Session, Weight, Weights};
use meganeura_nn::layers::{LORA_MAGNITUDE, LoraConfig};
use meganeura_nn::models::LlamaConfig;
use serde_json::{Value, json};

use crate::adapters::{ADAPTERS, MATRICES, PREFIX, merge};
use crate::checkpoint::transposed;
use crate::config::{Projections, text_architecture, text_part};
use crate::files::{ADAPTER_CONFIG, damaged};
use crate::tensors::layout::{EXPERTS, FILTERS, FUSED, GPT_OSS_ROUTER, expert_name, to_lfm2, to_mixtral};

/// Files that describe a checkpoint, in addition to its weights.
const DESCRIPTIONS: [&str; 7] = [
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
    "vocab.json",
];

const CONFIG_FILE: &str = "config.json";
const WEIGHTS: &str = "model.safetensors";

/// Kind of folders with a model, which [`NewFolder`](meganeura_core::files::NewFolder) replaces as a whole.
pub const MODEL_FOLDER: FolderKind = FolderKind {
    names: &[
        WEIGHTS,
        "config.json",
        "generation_config.json",
        "tokenizer.json",
        "tokenizer_config.json",
        "special_tokens_map.json",
        "chat_template.jinja",
        "vocab.json",
    ],
    marker: "config.json",
    is_own: |text| has_field(text, "model_type"),
};

/// Kind of folders with adapters, replaced in the same way.
pub const ADAPTERS_FOLDER: FolderKind = FolderKind {
    names: &[ADAPTER_CONFIG, MATRICES],
    marker: ADAPTER_CONFIG,
    is_own: |text| has_field(text, "peft_type"),
};

fn has_field(text: &[u8], field: &str) -> bool {
    let fields = serde_json::from_slice::<Value>(text).ok();
    fields.is_some_and(|fields| fields.get(field).is_some())
}

/// The description of a model without its weights: names of files, and their contents.
#[derive(Clone, Debug, Default)]
pub struct Descriptions(Vec<(&'static str, Vec<u8>)>);

impl Descriptions {
    /// Reads the descriptions of a checkpoint; missing files are no error. For a multimodal model, the `config.json` of
    /// its text part is used, because only the weights of this part are loaded and saved.
    ///
    /// # Errors
    /// [`Error::File`] if a file cannot be read, or is not a configuration.
    pub fn of_checkpoint(folder: &Path) -> Result<Self> {
        let mut all = Descriptions::default();
        for name in DESCRIPTIONS {
            let path = folder.join(name);
            if path.exists() {
                let bytes = read_within_memory(&path);
                let bytes = bytes
                    .map_err(|e| Error::file(&path, format!("cannot be read: {e}"), "check the file's permissions"))?;
                all.set(name, bytes);
            }
        }
        all.adapt_config(&folder.join(CONFIG_FILE))?;
        Ok(all)
    }

    /// Replaces the configuration of a multimodal model by the one of its text part. Removes the description of packed
    /// weights, because weights are saved in `f32`.
    fn adapt_config(&mut self, path: &Path) -> Result<()> {
        let Some((_, bytes)) = self.0.iter().find(|(name, _)| *name == CONFIG_FILE) else {
            return Ok(());
        };
        let mut whole: Value = serde_json::from_slice(bytes).map_err(|e| damaged(path, e))?;
        let packing = whole
            .as_object_mut()
            .and_then(|fields| fields.remove("quantization_config"));
        if packing.is_some() {
            self.set(CONFIG_FILE, format!("{whole:#}\n").into_bytes());
        }
        if let Some(mut text) = text_part(whole)
            && let Some(architecture) = text_architecture(&text)
        {
            text["architectures"] = json!([architecture]);
            self.set(CONFIG_FILE, format!("{text:#}\n").into_bytes());
        }
        Ok(())
    }

    /// Creates the `config.json` of a model of the type `llama`; `stop` is the token that ends a
    /// text, if there is one.
    ///
    /// # Errors
    /// [`Error::InvalidUse`] for options that this type does not have.
    pub fn of_llama(model: &LlamaConfig, context: usize, stop: Option<u32>) -> Result<Self> {
        let config = config_of(model, context, stop)?;
        Ok(Descriptions(vec![(
            "config.json",
            format!("{config:#}\n").into_bytes(),
        )]))
    }

    /// Sets the `tokenizer.json`, replacing an existing one.
    pub fn set_tokenizer(&mut self, text: String) {
        self.set("tokenizer.json", text.into_bytes());
    }

    fn set(&mut self, name: &'static str, bytes: Vec<u8>) {
        self.0.retain(|(other, _)| *other != name);
        self.0.push((name, bytes));
    }

    /// Writes the files into a folder.
    ///
    /// # Errors
    /// [`Error::File`] if a file cannot be written.
    pub fn write(&self, folder: &Path) -> Result<()> {
        self.0
            .iter()
            .try_for_each(|(name, bytes)| save_text(folder, name, bytes))
    }
}

/// Makes a folder for a model, if it does not exist.
///
/// # Errors
/// [`Error::File`] if it cannot be made.
pub fn make_folder(folder: &Path) -> Result<()> {
    fs::create_dir_all(folder).map_err(|e| {
        let remedy = "name a writable folder";
        Error::file(folder, format!("could not be created: {e}"), remedy)
    })
}

/// Writes the weights of a session as `model.safetensors`, in `f32`, with projections in the layout
/// of `projections` ([`ModelConfig::projections`](crate::ModelConfig::projections) of the
/// checkpoint that the configuration belongs to). Adapters of its model are merged into the
/// weights, if their settings are given; without settings, the model must have none.
///
/// # Errors
/// [`Error::File`] if the file cannot be written; [`Error::InvalidUse`] for weights that are not
/// finite; errors of the session.
pub fn save_weights(
    folder: &Path,
    session: &mut Session,
    lora: Option<&LoraConfig>,
    projections: Projections,
) -> Result<()> {
    let mut weights = Weights::default();
    let all = parameters(session, |name| !name.contains(ADAPTERS));
    for (name, shape) in &all {
        if projections == Projections::GptOss && name.contains(EXPERTS) {
            add_experts_of_gpt_oss(&mut weights, session, (name, shape))?;
            continue;
        }
        let Some((fused, parts)) = fused(name).filter(|_| projections == Projections::Fused) else {
            let values = merged(session, name, shape, lora)?;
            let named = |name: String| match projections {
                Projections::Mixtral => to_mixtral(&name).unwrap_or(name),
                Projections::Separate | Projections::Fused => name,
                Projections::Lfm2 => to_lfm2(&name),
                Projections::GptOss => {
                    let [own, usual] = GPT_OSS_ROUTER;
                    name.replace(usual, own)
                }
            };
            let &[_, rows, columns] = shape.as_slice() else {
                let weight = match shape.as_slice() {
                    &[taps, features] if name.ends_with(FILTERS) => filters([taps, features], &values)?,
                    _ => stored(name, shape, &values)?,
                };
                weights.insert(named(name.clone()), weight);
                continue;
            };
            // One matrix per expert.
            for (expert, values) in values.chunks_exact((rows * columns).max(1)).enumerate() {
                let name = expert_name(name, expert).unwrap_or_else(|| name.clone());
                weights.insert(named(name), Weight::f32(&[rows, columns], values)?);
            }
            continue;
        };
        if parts.first() != Some(name) {
            // It was written together with the first part.
            continue;
        }
        let mut joined = Vec::new();
        for part in &parts {
            let Some((_, shape)) = all.iter().find(|(name, _)| name == part) else {
                return Err(Error::misuse(
                    format!("the model has no '{part}', which checkpoints store with '{name}'"),
                    "save its projections separately",
                ));
            };
            joined.push((shape.as_slice(), merged(session, part, shape, lora)?));
        }
        let (shape, values) = join_columns(&joined);
        weights.insert(fused.clone(), stored(&fused, &shape, &values)?);
    }
    weights.write(folder.join(WEIGHTS))
}

/// Adds a parameter of experts in the layout of gpt-oss: matrices are transposed, and the columns of gates and up-projections
/// alternate. Up-projections are added together with their gates.
fn add_experts_of_gpt_oss(weights: &mut Weights, session: &mut Session, (name, shape): (&str, &[usize])) -> Result<()> {
    let (module, kind) = name.rsplit_once('.').unwrap_or((name, ""));
    let (layer, module) = module.rsplit_once('.').unwrap_or(("", module));
    let (stored, parts) = match module {
        "gate_proj" => ("gate_up_proj", vec![name.to_owned(), format!("{layer}.up_proj.{kind}")]),
        "down_proj" => ("down_proj", vec![name.to_owned()]),
        _ => return Ok(()),
    };
    let parts: Vec<Vec<f32>> = parts.iter().map(|part| read(session, part)).collect::<Result<_>>()?;
    let (name, columns, inputs) = match *shape {
        [_, columns, inputs] => (format!("{layer}.{stored}"), columns, inputs),
        [.., columns] => (format!("{layer}.{stored}_bias"), columns, 1),
        [] => return Ok(()),
    };
    let (experts, count) = (shape[0], parts.len());
    let mut values = vec![0.0; experts * inputs * columns * count];
    for (part, numbers) in parts.iter().enumerate() {
        for (row, numbers) in numbers.chunks_exact(inputs.max(1)).enumerate() {
            let (expert, column) = (row / columns, row % columns);
            for (input, &number) in numbers.iter().enumerate() {
                values[((expert * inputs + input) * columns + column) * count + part] = number;
            }
        }
    }
    let shape = match shape.len() {
        3 => vec![experts, inputs, columns * count],
        _ => vec![experts, columns * count],
    };
    weights.insert(name, Weight::f32(&shape, &values)?);
    Ok(())
}

/// Reads the numbers of a parameter in their saved form.
///
/// # Errors
/// Some numbers are not finite: a model with them would compute only NaN.
fn read(session: &mut Session, name: &str) -> Result<Vec<f32>> {
    let values = session.try_read_parameter(name)?;
    if values.iter().all(|value| value.is_finite()) {
        Ok(values)
    } else {
        Err(Error::misuse(
            format!("'{name}' has numbers that are not finite, as training diverged; nothing was saved"),
            "train again with a lower learning rate",
        ))
    }
}

/// Returns a parameter with its adapter merged.
fn merged(session: &mut Session, name: &str, shape: &[usize], lora: Option<&LoraConfig>) -> Result<Vec<f32>> {
    let mut values = read(session, name)?;
    if let (Some(lora), Some(layer)) = (lora.filter(|_| shape.len() == 2), name.strip_suffix(".weight"))
        && lora.has(layer)
    {
        let a = read(session, &format!("{layer}.lora_A.weight"))?;
        let b = read(session, &format!("{layer}.lora_B.weight"))?;
        let magnitude = if lora.dora {
            read(session, &format!("{layer}.{LORA_MAGNITUDE}"))?
        } else {
            Vec::new()
        };
        merge(&mut values, &a, &b, &magnitude, lora);
    }
    Ok(values)
}

/// Returns the fused tensor that contains a parameter, if there is one, and the names of all its
/// parts.
fn fused(name: &str) -> Option<(String, Vec<String>)> {
    let (layer, kind) = name.rsplit_once('.')?;
    let (block, module) = layer.rsplit_once('.')?;
    let (fused, parts) = FUSED.iter().find(|(_, parts)| parts.contains(&module))?;
    let named = |module: &str| format!("{block}.{module}.{kind}");
    Some((named(fused), parts.iter().map(|part| named(part)).collect()))
}

/// Concatenates the columns of matrices `[inputs, outputs]` with equal inputs, or biases
/// `[outputs]`.
fn join_columns(parts: &[(&[usize], Vec<f32>)]) -> (Vec<usize>, Vec<f32>) {
    let width = |shape: &[usize]| shape.last().copied().unwrap_or(0);
    let rows = parts
        .first()
        .map_or(0, |(shape, values)| values.len() / width(shape).max(1));
    let mut values = Vec::new();
    for row in 0..rows {
        for (shape, part) in parts {
            let width = width(shape);
            values.extend_from_slice(&part[row * width..][..width]);
        }
    }
    let mut shape = parts.first().map_or(Vec::new(), |(shape, _)| shape.to_vec());
    if let Some(last) = shape.last_mut() {
        *last = parts.iter().map(|(shape, _)| width(shape)).sum();
    }
    (shape, values)
}

/// Writes the adapters of a session in PEFT's layout; `base` is the model's name in the settings.
///
/// # Errors
/// [`Error::File`] if a file cannot be written; [`Error::InvalidUse`] for weights that are not finite; errors of the session.
pub fn save_adapters(folder: &Path, session: &mut Session, lora: &LoraConfig, base: &str) -> Result<()> {
    let mut weights = Weights::default();
    for (name, shape) in parameters(session, |name| name.contains(ADAPTERS)) {
        let values = read(session, &name)?;
        let weight = stored(&name, &shape, &values)?;
        weights.insert(format!("{PREFIX}{name}"), weight);
    }
    weights.write(folder.join(MATRICES))?;
    let config = json!({
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base,
        "r": lora.rank,
        "lora_alpha": lora.alpha,
        "lora_dropout": 0.0,
        "bias": "none",
        "fan_in_fan_out": false,
        "inference_mode": true,
        "target_modules": lora.targets.names().collect::<Vec<_>>(),
        "use_rslora": lora.rank_stabilized,
        "use_dora": lora.dora,
    });
    write_json(&folder.join(ADAPTER_CONFIG), &config)
}

/// Writes the `config.json` of a model of the type `llama`, with the contents of [`Descriptions::of_llama`].
///
/// # Errors
/// [`Error::File`] if the file cannot be written; [`Error::InvalidUse`] for options that this type does not have.
pub fn save_config(folder: &Path, model: &LlamaConfig, context: usize, stop: Option<u32>) -> Result<()> {
    Descriptions::of_llama(model, context, stop)?.write(folder)
}

fn config_of(model: &LlamaConfig, context: usize, stop: Option<u32>) -> Result<Value> {
    // Only options that the type contains.
    let plain = LlamaConfig {
        dim: model.dim,
        layers: model.layers,
        heads: model.heads,
        head_dim: model.head_dim,
        kv_heads: model.kv_heads,
        hidden: model.hidden,
        rope_theta: model.rope_theta,
        qkv_bias: model.qkv_bias,
        attention_out_bias: model.qkv_bias,
        mlp_bias: model.mlp_bias,
        eps: model.eps,
        tied_embeddings: model.tied_embeddings,
        lora: model.lora,
        weights: model.weights,
        cache_type: model.cache_type,
        ..LlamaConfig::small(model.vocab)
    };
    if *model != plain {
        return Err(Error::misuse(
            "cannot save as type llama: the model has scaled positions, a window, norms, factors, experts, an \
             activation or biases that llama lacks",
            "copy the config.json that it came from",
        ));
    }
    Ok(json!({
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": model.vocab,
        "hidden_size": model.dim,
        "intermediate_size": model.hidden,
        "num_hidden_layers": model.layers,
        "num_attention_heads": model.heads,
        "num_key_value_heads": model.kv_heads,
        "head_dim": model.head_dim(),
        "max_position_embeddings": context,
        "rms_norm_eps": model.eps,
        "rope_theta": model.rope_theta,
        "tie_word_embeddings": model.tied_embeddings,
        "attention_bias": model.qkv_bias,
        "mlp_bias": model.mlp_bias,
        "hidden_act": "silu",
        "eos_token_id": stop,
        "dtype": "float32",
    }))
}

/// Copies the files that describe a checkpoint, without its weights; missing files are no error.
///
/// # Errors
/// [`Error::File`] if a file cannot be copied.
pub fn copy_descriptions(from: &Path, to: &Path) -> Result<()> {
    Descriptions::of_checkpoint(from)?.write(to)
}

/// Writes a file of a folder.
///
/// # Errors
/// [`Error::File`] if it cannot be written.
pub fn save_text(folder: &Path, name: &str, contents: &[u8]) -> Result<()> {
    write_atomically(&folder.join(name), |w| w.write_all(contents))
}

/// Returns the names and shapes of the parameters whose names fulfil a condition, without caches.
fn parameters(session: &Session, wanted: impl Fn(&str) -> bool) -> Vec<(String, Vec<usize>)> {
    let views = session.plan().parameters().into_iter();
    let views = views.filter(|view| wanted(&view.name));
    let mut all: Vec<_> = views.map(|view| (view.name, view.ty.shape.to_vec())).collect();
    all.sort();
    all
}

/// Converts a tensor to its form in checkpoints.
fn stored(name: &str, shape: &[usize], values: &[f32]) -> Result<Weight> {
    let weight = Weight::f32(shape, values)?;
    Ok(match transposed(name, shape) {
        None => weight,
        Some(_) => weight.try_transposed()?.unwrap_or(weight),
    })
}

/// Converts filters `[taps, features]` to the layout of checkpoints, `[features, 1, taps]`.
fn filters([taps, features]: [usize; 2], values: &[f32]) -> Result<Weight> {
    let of_feature = |feature: usize| (0..taps).map(move |tap| values[tap * features + feature]);
    let values: Vec<f32> = (0..features).flat_map(of_feature).collect();
    Weight::f32(&[features, 1, taps], &values)
}

fn write_json(path: &Path, value: &Value) -> Result<()> {
    write_atomically(path, |w| writeln!(w, "{value:#}"))
}
