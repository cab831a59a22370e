//! Tests of randomly changed plugins: each is accepted or refused with an error, within a short time.

use std::collections::BTreeMap;
use std::path::Path;

use meganeura_core::random::SplitMix64;
use meganeura_plugin_data::{Manifest, Plugin};

const NAMES: [&str; 3] = ["plugin.toml", "router.egg", "choose.wgsl"];

fn texts() -> Vec<String> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/router");
    let read = |name: &&str| std::fs::read_to_string(folder.join(name)).expect("it is there");
    NAMES.iter().map(read).collect()
}

/// Mutates a text: removes, inserts or repeats a part, or copies one from elsewhere in the text.
fn mutated(text: &str, rng: &mut SplitMix64) -> String {
    let mut chars: Vec<char> = text.chars().collect();
    for _ in 0..1 + rng.below(3) {
        let at = rng.below(chars.len().max(1)).min(chars.len());
        let len = rng.below(12).min(chars.len() - at);
        match rng.below(5) {
            0 => _ = chars.drain(at..at + len),
            1 => {
                let piece: Vec<char> = chars[at..at + len].to_vec();
                let to = rng.below(chars.len() + 1);
                chars.splice(to..to, piece);
            }
            2 => {
                const ODD: [&str; 14] = [
                    "0",
                    "-1",
                    "4294967296",
                    "1e38",
                    "(",
                    ")",
                    "{",
                    "\"",
                    "...",
                    "[",
                    "k",
                    "loop {",
                    "0.5",
                    "experts",
                ];
                let odd = ODD[rng.below(ODD.len())].chars();
                chars.splice(at..at + len.min(4), odd);
            }
            3 => {
                let digit = chars.iter().skip(at).position(char::is_ascii_digit);
                if let Some(found) = digit {
                    chars[at + found] = char::from(b'0' + rng.below(10) as u8);
                }
            }
            _ => {
                let last = chars.len().saturating_sub(1);
                chars.swap(at.min(last), 0);
            }
        }
    }
    chars.into_iter().collect()
}

#[test]
fn no_text_does_anything_but_answer() {
    let originals = texts();
    let mut rng = SplitMix64::new(5);
    let (mut fine, mut refused) = (0, 0);
    for round in 0..240 {
        let mut texts = originals.clone();
        let which = round % NAMES.len();
        texts[which] = mutated(&texts[which], &mut rng);
        let files: BTreeMap<String, String> = NAMES[1..]
            .iter()
            .zip(&texts[1..])
            .map(|(name, text)| ((*name).to_owned(), text.clone()))
            .collect();
        let answer = Manifest::parse(&texts[0]).and_then(|manifest| {
            manifest.files()?;
            Plugin::new(&manifest, &files)
        });
        match answer {
            Ok(_) => fine += 1,
            Err(fault) => {
                assert!(
                    !fault.message.is_empty() && !fault.message.contains("panicked"),
                    "{fault}: {texts:?}"
                );
                refused += 1;
            }
        }
    }
    assert!(fine > 10 && refused > 60, "{fine} are fine and {refused} are refused");
}
