//! Tests of language models and encoders on a Vulkan device, against the CPU.

use std::fs;
use std::path::{Path, PathBuf};

use half::{bf16, f16};
use meganeura::nn::data::read_npy;
use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensors};

use super::{json_lines, meganeura, ran_on_vulkan, run};

/// Maximum error, relative to the largest number.
const TOLERANCE: f32 = 2e-3;

fn fixture(name: &str) -> PathBuf {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    root.join("../tests/fixtures").join(name)
}

/// Runs a command on a Vulkan device. Without one, returns `None`, or fails if one is required.
fn on_vulkan(args: &[&str]) -> Option<String> {
    let (output, out, _) = run(&mut meganeura(&[args, &["--device", "blade"]].concat()));
    ran_on_vulkan(&output, "language models").then_some(out)
}

fn on_cpu(args: &[&str]) -> String {
    let (output, out, err) = run(&mut meganeura(&[args, &["--device", "cpu"]].concat()));
    assert!(output.status.success(), "{args:?}: {err}");
    out
}

fn text(path: &Path) -> &str {
    path.to_str().expect("text")
}

#[track_caller]
fn assert_close(what: &str, found: &[f32], wanted: &[f32]) {
    assert_eq!(found.len(), wanted.len(), "{what}");
    assert!(found.iter().all(|x| x.is_finite()), "{what}");
    let size = wanted.iter().fold(0.0_f32, |size, x| size.max(x.abs()));
    let pairs = found.iter().zip(wanted);
    let error = pairs.fold(0.0_f32, |error, (a, b)| error.max((a - b).abs())) / size;
    assert!(error < TOLERANCE, "{what}: off by {error}");
}

/// Files of one test.
struct Files {
    folder: tempfile::TempDir,
    /// Text to train on.
    data: PathBuf,
    logits: PathBuf,
}

impl Files {
    fn new() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let data = folder.path().join("text.txt");
        fs::write(&data, "The Queen said no. ".repeat(40)).expect("written");
        Files {
            data,
            logits: folder.path().join("logits.npy"),
            folder,
        }
    }

    /// Compares logits with an `f16` cache and adapters, and the loss after training of new adapters. Without Vulkan, returns
    /// `None`.
    fn compare(&self, model: &Path, lora: &Path, weights: &[&str]) -> Option<()> {
        let (model, lora, logits, data) = (text(model), text(lora), text(&self.logits), text(&self.data));
        let what = format!("{model} {weights:?}");
        let args = format!(
            "generate --model {model} --lora {lora} --cache-type f16 --prompt-ids 41,75,260,9 --max-tokens 1 --logits \
             {logits} --no-plan-cache"
        );
        let args: Vec<&str> = args.split(' ').chain(weights.iter().copied()).collect();
        on_vulkan(&args)?;
        let found = read_npy(logits).expect("logits").to_f32();
        on_cpu(&args);
        let wanted = read_npy(logits).expect("logits").to_f32();
        assert_close(&what, &found, &wanted);

        let args = format!("train text --model {model} --data {data} --lora 4 --seq 16 --batch 4 --steps 4 --json");
        let args: Vec<&str> = args.split(' ').chain(weights.iter().copied()).collect();
        let test_loss = |out: &str| {
            let summary = json_lines(out).pop().expect("a summary");
            summary["test_loss"].as_f64().expect("a loss")
        };
        let (found, wanted) = (test_loss(&on_vulkan(&args)?), test_loss(&on_cpu(&args)));
        assert!((found / wanted - 1.0).abs() < 1e-4, "{what}: {found}, not {wanted}");
        Some(())
    }

    /// Trains adapters of a model on the CPU, with steps that change its logits.
    fn adapters(&self, model: &Path, name: &str) -> PathBuf {
        let out = self.folder.path().join(name);
        let args = format!(
            "train text --model {} --data {} --lora 4 --seq 16 --batch 4 --steps 4 --lr 0.05 --out {}",
            text(model),
            text(&self.data),
            text(&out)
        );
        on_cpu(&args.split(' ').collect::<Vec<_>>());
        out
    }
}

#[test]
fn packed_weights_with_adapters_agree() {
    let files = Files::new();
    let (model, lora) = (fixture("transformers/llama"), fixture("finetuning/lora"));
    for weights in ["f32", "f16", "q8", "q6", "q5_1", "q5_0", "q4_1", "q4"] {
        if files.compare(&model, &lora, &["--weights", weights]).is_none() {
            return;
        }
    }
}

/// GGUF files, with adapters and with each matrix in its own type, give the same results as on the CPU.
#[test]
fn gguf_files_with_adapters_agree() {
    let files = Files::new();
    for name in ["llama_q4_k", "llama_bf16", "qwen2_q8_0"] {
        let model = fixture(&format!("gguf/{name}.gguf"));
        let lora = files.adapters(&model, name);
        if files.compare(&model, &lora, &[]).is_none() {
            return;
        }
    }
}

#[test]
fn safetensors_in_16_bits_with_adapters_agree() {
    let files = Files::new();
    let llama = fixture("transformers/llama");
    let stored = fs::read(llama.join("model.safetensors")).expect("a fixture");
    for dtype in [Dtype::BF16, Dtype::F16] {
        let model = files.folder.path().join(format!("{dtype:?}"));
        fs::create_dir(&model).expect("made");
        for name in ["config.json", "tokenizer.json"] {
            fs::copy(llama.join(name), model.join(name)).expect("copied");
        }
        let tensors = SafeTensors::deserialize(&stored).expect("safetensors").tensors();
        let halves = tensors.into_iter().map(|(name, view)| {
            assert_eq!(view.dtype(), Dtype::F32);
            let numbers = view.data().as_chunks().0.iter().map(|&bytes| f32::from_le_bytes(bytes));
            let halves: Vec<u8> = match dtype {
                Dtype::F16 => numbers.flat_map(|x| f16::from_f32(x).to_le_bytes()).collect(),
                _ => numbers.flat_map(|x| bf16::from_f32(x).to_le_bytes()).collect(),
            };
            (name, view.shape().to_vec(), halves)
        });
        let halves = halves.collect::<Vec<_>>();
        let views = halves.iter().map(|(name, shape, data)| {
            let view = TensorView::new(dtype, shape.clone(), data).expect("a tensor");
            (name, view)
        });
        let bytes = safetensors::serialize(views, None).expect("serialized");
        fs::write(model.join("model.safetensors"), bytes).expect("written");
        if files.compare(&model, &fixture("finetuning/lora"), &[]).is_none() {
            return;
        }
    }
}

#[test]
fn encoders_agree() {
    let vectors = |out: &str| -> Vec<f32> {
        let lines = json_lines(out);
        assert_eq!(lines.len(), 2, "{out}");
        let numbers = lines
            .iter()
            .flat_map(|line| line["embedding"].as_array().expect("a vector"));
        numbers.map(|x| x.as_f64().expect("a number") as f32).collect()
    };
    for model in [
        "embeddings/bert",
        "embeddings/roberta",
        "embeddings/distilbert",
        "gguf/bert_f32.gguf",
    ] {
        let path = fixture(model);
        for pooling in ["mean", "cls"] {
            let texts = ["Alice was not a bit hurt.", "Rabbit"];
            let options = ["--no-plan-cache", "--model", text(&path), "--pooling", pooling];
            let args = [&["embed"], &texts[..], &options].concat();
            let Some(out) = on_vulkan(&args) else { return };
            assert_close(&format!("{model}, {pooling}"), &vectors(&out), &vectors(&on_cpu(&args)));
        }
    }
}
