//! Mutations of binary files, which replace numbers of all sizes at any offset.

use crate::{SplitMix64, number, text};

/// Applies one mutation: replaces a number, or removes, repeats or truncates bytes.
pub fn change(bytes: &mut Vec<u8>, seeds: &[Vec<u8>], rng: &mut SplitMix64) {
    // Headers are short, and describe the whole file.
    let within = if rng.below(2) == 0 {
        bytes.len().min(512)
    } else {
        bytes.len()
    };
    let at = rng.below(within);
    let len = (1 + rng.below(32)).min(bytes.len() - at);
    match rng.below(8) {
        0 => drop(bytes.drain(at..at + len)),
        1 => {
            let again = bytes[at..at + len].to_vec();
            bytes.splice(at..at, again);
        }
        2 if rng.below(4) == 0 => bytes.truncate(at),
        3 => {
            let from = &seeds[rng.below(seeds.len())];
            let begin = rng.below(from.len());
            let piece = &from[begin..(begin + len).min(from.len())];
            bytes.splice(at..at + len, piece.iter().copied());
        }
        _ => {
            let size = [1, 2, 4, 8][rng.below(4)];
            // Most words are aligned to their sizes.
            let at = if rng.below(2) == 0 { at / size * size } else { at };
            let word = number(rng).to_le_bytes();
            if let Some(place) = bytes.get_mut(at..at + size) {
                place.copy_from_slice(&word[..size]);
            }
        }
    }
}

/// Mutates the text at the beginning of a file (such as a NumPy header), or the binary numbers.
pub fn with_text(bytes: &mut Vec<u8>, seeds: &[Vec<u8>], rng: &mut SplitMix64) {
    match rng.below(2) {
        0 => change(bytes, seeds, rng),
        _ => text::change(bytes, seeds, rng),
    }
}

/// Mutates the header of a safetensors file, and usually updates its length.
pub fn safetensors(bytes: &mut Vec<u8>, seeds: &[Vec<u8>], rng: &mut SplitMix64) {
    let Some((length, rest)) = bytes.split_first_chunk::<8>() else {
        return;
    };
    let length = usize::try_from(u64::from_le_bytes(*length)).unwrap_or(usize::MAX);
    let (head, data) = rest.split_at(length.min(rest.len()));
    let (mut head, mut data) = (head.to_vec(), data.to_vec());
    match rng.below(6) {
        0 if !data.is_empty() => change(&mut data, seeds, rng),
        _ if !head.is_empty() => text::change(
            &mut head,
            &seeds.iter().map(|s| s[8..].to_vec()).collect::<Vec<_>>(),
            rng,
        ),
        _ => {}
    }
    let length = match rng.below(16) {
        0 => number(rng),
        _ => head.len() as u64,
    };
    *bytes = [&length.to_le_bytes(), &head[..], &data[..]].concat();
}
