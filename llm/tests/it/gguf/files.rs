//! Test files: unchanged and changed fixtures.

use std::fs;
use std::path::PathBuf;

use meganeura_core::{Error, Result};

pub(crate) fn fixture(name: &str) -> Vec<u8> {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    fs::read(root.join("../tests/fixtures/gguf").join(format!("{name}.gguf"))).expect("a fixture")
}

/// Writes a file with these bytes in a temporary folder. The folder is deleted when the first result is dropped.
pub(crate) fn file(bytes: &[u8]) -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("model.gguf");
    fs::write(&path, bytes).expect("written");
    (folder, path)
}

/// Returns the bytes with a text replaced by another one of the same length.
pub(crate) fn replaced(bytes: &[u8], from: &str, to: &str) -> Vec<u8> {
    assert_eq!(from.len(), to.len());
    let mut bytes = bytes.to_vec();
    let all: Vec<usize> = bytes
        .windows(from.len())
        .enumerate()
        .filter(|(_, w)| *w == from.as_bytes())
        .map(|(at, _)| at)
        .collect();
    assert!(!all.is_empty(), "there is no {from}");
    for at in all {
        bytes[at..at + to.len()].copy_from_slice(to.as_bytes());
    }
    bytes
}

/// Returns the bytes with another number after a key and its type.
pub(crate) fn with_count(bytes: &[u8], key: &str, count: u32) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    let value = behind(&bytes, key) + 4;
    bytes[value..value + 4].copy_from_slice(&count.to_le_bytes());
    bytes
}

/// Returns the position of the type of a key's value.
fn behind(bytes: &[u8], key: &str) -> usize {
    // Includes the length, so that the key is not the prefix of another one.
    let key = text(key);
    let at = bytes.windows(key.len()).position(|w| w == key).expect("the key");
    at + key.len()
}

#[track_caller]
pub(crate) fn says<T>(result: Result<T>, parts: &[&str]) {
    let error = result.err().expect("an error");
    assert!(matches!(error, Error::File { .. }), "{error:?}");
    let error = error.to_string();
    for part in parts.iter().chain(&["model.gguf", "help"]) {
        assert!(error.contains(part), "{error:?} lacks {part:?}");
    }
}

/// Returns the bytes with another type after a key.
pub(crate) fn with_kind(bytes: &[u8], key: &str, kind: u32) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    let at = behind(&bytes, key);
    bytes[at..at + 4].copy_from_slice(&kind.to_le_bytes());
    bytes
}

/// Returns the bytes with one more value before the others.
pub(crate) fn with_value(bytes: &[u8], key: &str, kind: u32, value: &[u8]) -> Vec<u8> {
    let entry = |key: &str, kind: u32, value: &[u8]| {
        let length = (key.len() as u64).to_le_bytes();
        [&length, key.as_bytes(), &kind.to_le_bytes(), value].concat()
    };
    let mut new = entry(key, kind, value);
    // Tensors begin at multiples of 32, and must keep their offsets after the header.
    let name = format!("padding of {key}");
    let mut padding = entry(&name, TEXT, &text(""));
    let missing = (new.len() + padding.len()).next_multiple_of(32) - new.len() - padding.len();
    padding = entry(&name, TEXT, &text(&" ".repeat(missing)));
    new.extend(padding);
    let count = u64::from_le_bytes(bytes[16..24].try_into().expect("eight bytes")) + 2;
    [&bytes[..16], &count.to_le_bytes(), &new, &bytes[24..]].concat()
}

/// Returns a mixture-of-experts file with a tensor for each expert, as in files before March 2024. Matrices are in Q8_0.
pub(crate) fn with_a_tensor_for_each_expert(bytes: &[u8]) -> Vec<u8> {
    const MARK: &[u8] = b"_exps.weight";
    let number = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"));
    let (mut header, mut done, mut tensors) = (Vec::new(), 24, number(8));
    while let Some(mark) = bytes[done..].windows(MARK.len()).position(|w| w == MARK) {
        // The name is preceded by its length, and followed by axes, a type and an offset.
        let axes = done + mark + MARK.len();
        let start = (done..axes)
            .rev()
            .find(|&at| bytes[at..].starts_with(b"blk."))
            .expect("a name")
            - 8;
        let name = std::str::from_utf8(&bytes[start + 8..axes]).expect("a name");
        let [columns, rows, experts] = [0, 1, 2].map(|axis| number(axes + 4 + 8 * axis));
        let stored = &bytes[axes + 28..axes + 32];
        assert_eq!(stored, 8u32.to_le_bytes(), "Q8_0");
        header.extend_from_slice(&bytes[done..start]);
        for expert in 0..experts {
            let place = number(axes + 32) + expert * columns * rows / 32 * 34;
            header.extend(text(&name.replace("_exps.", &format!(".{expert}."))));
            header.extend(2u32.to_le_bytes());
            header.extend([columns, rows].map(u64::to_le_bytes).as_flattened());
            header.extend_from_slice(stored);
            header.extend(place.to_le_bytes());
        }
        tensors += experts - 1;
        done = axes + 40;
    }
    // Tensors begin at multiples of 32, and must keep their offsets after the header.
    let grown = header.len() + 24 - done;
    let padding = |size: usize| [text("padding"), TEXT.to_le_bytes().to_vec(), text(&" ".repeat(size))].concat();
    let missing = (grown + padding(0).len()).next_multiple_of(32) - grown - padding(0).len();
    let counts = [tensors, number(16) + 1].map(u64::to_le_bytes);
    [
        &bytes[..8],
        counts.as_flattened(),
        &padding(missing),
        &header,
        &bytes[done..],
    ]
    .concat()
}

pub(crate) const TEXT: u32 = 8;

/// Returns the bytes of a text as a metadata value.
pub(crate) fn text(text: &str) -> Vec<u8> {
    [&(text.len() as u64).to_le_bytes(), text.as_bytes()].concat()
}
