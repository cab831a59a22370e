//! Tests of models that the package `gguf` split into several files.

use std::fs;
use std::path::{Path, PathBuf};

use meganeura_core::Error;
use meganeura_llm::library::{ModelFolders, Support, list};
use meganeura_llm::{CacheType, ChatTemplate, Checkpoint, ModelConfig, Tokenizer, WeightStorage};

use super::files::with_count;
use super::{TOLERANCE, error_at};

const MODEL: &str = "llama3_q8_0";
const COUNT: usize = 3;

fn name(part: usize) -> String {
    format!("{MODEL}-{part:05}-of-{COUNT:05}.gguf")
}

fn fixtures() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures")
}

fn part(number: usize) -> Vec<u8> {
    fs::read(fixtures().join("gguf_parts").join(name(number))).expect("a fixture")
}

/// Creates a folder with the parts of these numbers, under the names of the parts that they replace.
fn folder(parts: &[(usize, usize)]) -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().expect("a folder");
    for &(number, stands_for) in parts {
        fs::write(folder.path().join(name(stands_for)), part(number)).expect("written");
    }
    let first = folder.path().join(name(1));
    (folder, first)
}

#[test]
fn parts_are_the_model_that_they_were() {
    let first = fixtures().join("gguf_parts").join(name(1));
    let whole = fixtures().join("gguf").join(format!("{MODEL}.gguf"));
    for weights in [Some(WeightStorage::F32), None] {
        let [of_parts, of_whole] = [&first, &whole].map(|path| error_at(path, MODEL, weights, 5));
        assert_eq!(of_parts, of_whole);
    }
    assert!(error_at(&first, MODEL, Some(WeightStorage::F32), 5) <= TOLERANCE);
    // Factors of positions are not in the first part.
    let configs = [&first, &whole].map(|path| ModelConfig::open(path).expect("a configuration"));
    assert_eq!(configs[0].network, configs[1].network);
    let tokenizers = [&first, &whole].map(|path| Tokenizer::open(path).expect("a tokenizer").vocab());
    assert_eq!(tokenizers[0], tokenizers[1]);
    assert!(ChatTemplate::open(&first).is_ok());
    let listed = |folder: &str| list(&ModelFolders::default().with([fixtures().join(folder)]));
    let [model] = &listed("gguf_parts")[..] else {
        panic!("not one model");
    };
    assert_eq!((&*model.name, &model.support), (MODEL, &Support::Text));
    let all = listed("gguf");
    let one = all.iter().find(|model| model.name == MODEL).expect("the file");
    assert_eq!(model.parameters, one.parameters);
    assert_eq!(
        model.memory(None, None, CacheType::F32),
        one.memory(None, None, CacheType::F32)
    );
}

#[track_caller]
fn refused(path: &Path, said: &[&str]) {
    let error = Checkpoint::open(path).expect_err("an error");
    assert!(matches!(error, Error::File { .. }), "{error:?}");
    let error = error.to_string();
    for part in said {
        assert!(error.contains(part), "{error:?} lacks {part:?}");
    }
}

#[test]
fn parts_that_are_no_model() {
    let all = [(1, 1), (2, 2), (3, 3)];
    let (files, first) = folder(&all);
    refused(
        &files.path().join(name(2)),
        &["part 2 of 3", "give the first part", &name(1)],
    );
    let other = files.path().join("model.gguf");
    fs::copy(&first, &other).expect("copied");
    refused(&other, &["one of 3 parts", "NAME-00001-of-00003.gguf"]);

    let (_files, first) = folder(&all[..2]);
    refused(&first, &[&name(3), "cannot be read"]);
    let (_files, first) = folder(&[(1, 1), (3, 2), (2, 3)]);
    refused(&first, &[&name(2), "its part number"]);
    let (_files, first) = folder(&[(1, 1), (2, 2), (2, 3)]);
    refused(&first, &[&name(3), "its part number"]);
    let (_files, first) = folder(&[(1, 1), (1, 2), (3, 3)]);
    refused(&first, &[&name(2), "its part number"]);

    // Numbers that do not match. Files that are not listed are not opened.
    let (_files, first) = folder(&all);
    let of = |key: &str, count: u32| fs::write(&first, changed(&part(1), key, count)).expect("written");
    of("split.tensors.count", 13);
    refused(&first, &["12 tensors in total", "expected 13"]);
    of("split.count", 60_000);
    refused(&first, &["one of 60000 parts"]);
    of("split.no", 2);
    refused(&first, &["part 3 of 3"]);
    // A tensor that is in two parts.
    let (files, first) = folder(&all);
    let twice = replaced_first(&part(3), "token_embd.weight", "blk.0.attn_v.weight");
    fs::write(files.path().join(name(3)), twice).expect("written");
    refused(&first, &["damaged or of another format"]);
}

/// Returns the bytes with another number after a key: 16 bits wide for indices and numbers of parts, 32 for tensors.
fn changed(bytes: &[u8], key: &str, count: u32) -> Vec<u8> {
    if key == "split.tensors.count" {
        return with_count(bytes, key, count);
    }
    let mut bytes = bytes.to_vec();
    let at = bytes
        .windows(key.len())
        .position(|w| w == key.as_bytes())
        .expect("the key")
        + key.len()
        + 4;
    bytes[at..at + 2].copy_from_slice(&(count as u16).to_le_bytes());
    bytes
}

/// Returns the bytes with another name of the first tensor, which has another length.
fn replaced_first(bytes: &[u8], from: &str, to: &str) -> Vec<u8> {
    let at = bytes
        .windows(from.len())
        .position(|w| w == from.as_bytes())
        .expect("the name")
        - 8;
    let mut changed = bytes[..at].to_vec();
    changed.extend((to.len() as u64).to_le_bytes());
    changed.extend(to.as_bytes());
    changed.extend(&bytes[at + 8 + from.len()..]);
    changed
}
