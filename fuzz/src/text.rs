//! Mutations of texts by their words and brackets, for all text formats of the targets: RON, JSON, TOML, templates,
//! rules, WGSL.

use std::ops::Range;

use crate::{SplitMix64, number};

const SIGNS: &[u8] = b" \n\"'\\(){}[]<>,.:;=#%-+*/|&^~!?0aZ_\x00\x7f\xc3";

/// Splits a text into words, runs of space, and single symbols.
fn tokens(text: &[u8]) -> Vec<Range<usize>> {
    let kind = |byte: u8| match byte {
        _ if byte.is_ascii_alphanumeric() || byte == b'_' || byte >= 128 => 0,
        _ if byte.is_ascii_whitespace() => 1,
        _ => 2,
    };
    let mut tokens: Vec<Range<usize>> = Vec::new();
    for (at, &byte) in text.iter().enumerate() {
        match tokens.last_mut() {
            Some(last) if kind(byte) < 2 && kind(text[last.start]) == kind(byte) => last.end = at + 1,
            _ => tokens.push(at..at + 1),
        }
    }
    tokens
}

/// Selects a coherent part of a text: from a bracket to its closing one, a line, or a word.
fn piece(text: &[u8], rng: &mut SplitMix64) -> Range<usize> {
    let at = rng.below(text.len());
    match rng.below(4) {
        0 => {
            let begin = text[..at].iter().rposition(|b| *b == b'\n').map_or(0, |i| i + 1);
            let end = text[at..]
                .iter()
                .position(|b| *b == b'\n')
                .map_or(text.len(), |i| at + i + 1);
            begin..end
        }
        1 | 2 => group(text, at).unwrap_or(at..at + 1),
        _ => token(text, at),
    }
}

/// Returns the token at this offset.
fn token(text: &[u8], at: usize) -> Range<usize> {
    // Only the neighbourhood of the offset is split, because texts may be long.
    let (begin, end) = (at.saturating_sub(64), (at + 64).min(text.len()));
    let found = tokens(&text[begin..end]).into_iter().find(|t| t.end > at - begin);
    found.map_or(at..at + 1, |t| begin + t.start..begin + t.end)
}

/// Returns the next group in brackets.
fn group(text: &[u8], at: usize) -> Option<Range<usize>> {
    let begin = at + text[at..].iter().position(|b| b"([{<".contains(b))?;
    let mut depth = 0usize;
    for (i, byte) in text[begin..].iter().enumerate() {
        match byte {
            b'(' | b'[' | b'{' | b'<' => depth += 1,
            b')' | b']' | b'}' | b'>' => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return Some(begin..begin + i + 1);
        }
    }
    None
}

/// Returns the next number after this offset.
fn digits(text: &[u8], at: usize) -> Option<Range<usize>> {
    let begin = at + text[at..].iter().position(u8::is_ascii_digit)?;
    let len = text[begin..].iter().take_while(|b| b.is_ascii_digit()).count();
    Some(begin..begin + len)
}

/// Applies one mutation to a text.
pub fn change(text: &mut Vec<u8>, seeds: &[Vec<u8>], rng: &mut SplitMix64) {
    let at = rng.below(text.len());
    match rng.below(9) {
        0 | 1 => {
            if let Some(place) = digits(text, at) {
                let sign = if rng.below(6) == 0 { "-" } else { "" };
                let end = ["", "", "", "", ".5", "e30", "e-30", "u"][rng.below(8)];
                text.splice(place, format!("{sign}{}{end}", number(rng)).into_bytes());
            }
        }
        2 => drop(text.drain(piece(text, rng))),
        3 => {
            let again = piece(text, rng);
            let times = if rng.below(16) == 0 { 1 << rng.below(10) } else { 1 };
            let more = text[again.clone()].repeat(times);
            text.splice(again.end..again.end, more.into_iter().take(1 << 15));
        }
        4 | 5 => {
            // Replaces a piece by one of the same text or of a seed, or inserts it.
            let from = match rng.below(2) {
                0 => text.clone(),
                _ => seeds[rng.below(seeds.len())].clone(),
            };
            let new = from[piece(&from, rng)].to_vec();
            let mut place = piece(text, rng);
            if rng.below(2) == 0 {
                place.end = place.start;
            }
            text.splice(place, new);
        }
        6 => {
            // Replaces a word by another one of the text.
            let new = text[token(text, rng.below(text.len()))].to_vec();
            text.splice(token(text, at), new);
        }
        7 => {
            let inner = piece(text, rng);
            let depth = if rng.below(8) == 0 { 1 << rng.below(12) } else { 1 };
            let (open, close) = [
                ("(", ")"),
                ("[", "]"),
                ("{", "}"),
                ("Some(", ")"),
                ("-", ""),
                ("\"", "\""),
            ][rng.below(6)];
            let wrapped = [
                open.repeat(depth).as_bytes(),
                &text[inner.clone()],
                close.repeat(depth).as_bytes(),
            ]
            .concat();
            text.splice(inner, wrapped);
        }
        _ => text[at] = SIGNS[rng.below(SIGNS.len())],
    }
}
