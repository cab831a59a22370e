//! Test of randomly changed files of language models: no crash, and no more memory than their size justifies.
// A separate binary: its allocator measures the memory of the whole process.

#[path = "common/fuzz.rs"]
mod fuzz;
#[path = "common/one_token.rs"]
mod one_token;

use std::fs;
use std::path::{Path, PathBuf};

use fuzz::{PeakAllocator, mutate, runs};
use meganeura::llm::{Adapters, ChatTemplate, Checkpoint, ModelConfig, Tokenizer};
use meganeura::random::SplitMix64;
use meganeura::{Error, Result};
use one_token::generate;

#[global_allocator]
static GLOBAL: PeakAllocator = PeakAllocator;

fn fixtures() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures")
}

fn read(path: &str) -> Vec<u8> {
    fs::read(fixtures().join(path)).expect("a fixture")
}

/// Valid file that is changed randomly, in a folder with its related files.
struct Subject {
    /// Folder of the checkpoint that the file belongs to, or could belong to.
    base: &'static str,
    /// Name of the file in the folder of a case.
    name: &'static str,
    whole: Vec<u8>,
    /// Length of the part at the start that is changed. It contains everything except plain numbers.
    head: usize,
    /// True if numbers are binary words, not digits.
    binary: bool,
    open: fn(&Path) -> Result<()>,
}

/// Checks that configuration and weights match, without allocating memory for a model.
fn check(path: &Path) -> Result<()> {
    let config = ModelConfig::open(path)?;
    Checkpoint::open(path)?.check_model(&config.network)
}

fn header_of_safetensors(whole: &[u8]) -> usize {
    8 + u64::from_le_bytes(whole[..8].try_into().expect("eight bytes")) as usize
}

fn subjects() -> Vec<Subject> {
    let text = |base, name, path: &str, open| {
        let whole = read(path);
        Subject {
            base,
            name,
            head: whole.len(),
            whole,
            binary: false,
            open,
        }
    };
    let tensors = |name, path: &str, open| {
        let all = text(LLAMA, name, path, open);
        Subject {
            head: header_of_safetensors(&all.whole),
            ..all
        }
    };
    let gguf = |path: &str, last: &str| {
        let all = text(LLAMA, "model.gguf", path, gguf);
        let mut places = all.whole.windows(last.len());
        let head = places.rposition(|w| w == last.as_bytes()).expect("the header") + last.len() + 64;
        Subject {
            head,
            binary: true,
            ..all
        }
    };
    vec![
        text(LLAMA, "config.json", "transformers/llama/config.json", check),
        text(QWEN3, "config.json", "transformers/qwen3/config.json", check),
        text(
            SHARDED,
            INDEX,
            "transformers/llama_sharded/model.safetensors.index.json",
            check,
        ),
        text(
            LLAMA,
            "adapter_config.json",
            "finetuning/lora/adapter_config.json",
            adapters,
        ),
        tensors(MATRICES, "finetuning/lora/adapter_model.safetensors", adapters),
        tensors("model.safetensors", "transformers/llama/model.safetensors", check),
        gguf("gguf/llama_q4_0.gguf", "output_norm.weight"),
        gguf("gguf/llama3_q8_0.gguf", "output_norm.weight"),
        // Only a vocabulary, without a model.
        gguf("sentencepiece/vocab.gguf", "tokenizer.ggml.token_type"),
    ]
}

const LLAMA: &str = "transformers/llama";
const QWEN3: &str = "transformers/qwen3";
const SHARDED: &str = "transformers/llama_sharded";
const INDEX: &str = "model.safetensors.index.json";
const MATRICES: &str = "adapter_model.safetensors";

fn adapters(path: &Path) -> Result<()> {
    Adapters::open(path.parent().unwrap_or(path)).map(drop)
}

/// Reads configuration, weights, tokenizer and chat template from a GGUF file, which contains all of them.
fn gguf(path: &Path) -> Result<()> {
    let outcomes = [
        check(path),
        Tokenizer::open(path).map(drop),
        ChatTemplate::open(path).map(drop),
    ];
    outcomes.into_iter().collect()
}

/// Overwrites random positions with binary numbers of all sizes.
fn mutate_words(bytes: &mut [u8], rng: &mut SplitMix64) {
    const WORDS: [u64; 9] = [0, 1, 7, 255, 1 << 31, u32::MAX as u64, 1 << 40, 1 << 63, u64::MAX];
    let size = [1, 2, 4, 8][rng.below(4)];
    let at = rng.below(bytes.len().saturating_sub(size).max(1));
    let word = match rng.below(3) {
        0 => rng.below(64) as u64,
        _ => WORDS[rng.below(WORDS.len())],
    };
    if let Some(place) = bytes.get_mut(at..at + size) {
        place.copy_from_slice(&word.to_le_bytes()[..size]);
    }
}

impl Subject {
    fn changed(&self, rng: &mut SplitMix64) -> Vec<u8> {
        let mut head = self.whole[..self.head.min(self.whole.len())].to_vec();
        let is_tensors = self.name.ends_with(".safetensors");
        // Most changes of a list of tensors make it invalid.
        let changes = if is_tensors { 1 } else { 1 + rng.below(3) };
        for _ in 0..changes {
            if head.is_empty() {
                break;
            }
            if self.binary && rng.below(3) > 0 {
                mutate_words(&mut head, rng)
            } else {
                mutate(&mut head, rng)
            }
        }
        // Most of the files that contain their header length get the right one.
        if is_tensors && rng.below(8) > 0 && head.len() > 8 {
            let length = head.len() as u64 - 8;
            head[..8].copy_from_slice(&length.to_le_bytes());
        }
        [&head, self.whole.get(self.head..).unwrap_or_default()].concat()
    }
}

// A single test, because other tests would allocate at the same time.
#[test]
fn changed_files_are_refused_or_harmless() {
    let folder = tempfile::tempdir().expect("a folder");
    let subjects = subjects();
    for (i, subject) in subjects.iter().enumerate() {
        let own = folder.path().join(i.to_string());
        fs::create_dir(&own).expect("made");
        for base in [subject.base, "finetuning/lora"] {
            for entry in fs::read_dir(fixtures().join(base)).expect("a fixture") {
                let entry = entry.expect("readable");
                fs::copy(entry.path(), own.join(entry.file_name())).expect("copied");
            }
        }
        fs::write(own.join(subject.name), &subject.whole).expect("written");
    }
    let mut rng = SplitMix64::new(3);
    let mut ratios = vec![0.0f64; subjects.len()];
    let (mut taken, mut refused) = (vec![0; subjects.len()], vec![0; subjects.len()]);
    for i in 0..runs(1600) {
        let number = i % subjects.len();
        let subject = &subjects[number];
        let own = folder.path().join(number.to_string());
        let file = own.join(subject.name);
        let bytes = subject.changed(&mut rng);
        fs::write(&file, &bytes).expect("written");
        let path = if subject.binary || subject.name.starts_with("adapter") {
            &file
        } else {
            &own
        };
        // A configuration is also compared with the weights.
        let size = bytes.len() + (1 << 16);
        PeakAllocator::forget();
        let outcome = (subject.open)(path);
        let (largest, most) = (PeakAllocator::seen(), PeakAllocator::most());
        assert!(largest < 8 * size, "change {i} of {}: {largest} bytes", subject.name);
        assert!(most < 16 * size, "change {i} of {}: {most} bytes in all", subject.name);
        ratios[number] = f64::max(ratios[number], most as f64 / size as f64);
        match outcome {
            Ok(()) => {
                taken[number] += 1;
                // A file that is accepted as a model must be one.
                if taken[number] % 16 == 1 && !subject.name.starts_with("adapter") {
                    let _ = generate(path);
                }
            }
            Err(error) => {
                refused[number] += 1;
                assert!(
                    matches!(error, Error::File { .. }),
                    "change {i} of {}: {error}",
                    subject.name
                );
            }
        }
    }
    println!("{taken:?} taken, {refused:?} refused; most bytes at a time, of the file's and 64 KB: {ratios:.1?}");
    let least = |counts: &[usize]| counts.iter().copied().min().unwrap_or(0);
    assert!(least(&refused) > 10, "{refused:?} refused");
    let taken = &taken[..subjects.len() - 1];
    assert!(least(taken) > 0, "{taken:?} taken");
}
