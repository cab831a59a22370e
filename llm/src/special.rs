//! Spellings of special tokens, such as `<|im_end|>`.

use std::collections::HashSet;
use std::hash::{BuildHasher, RandomState};
use std::ops::Deref;

use aho_corasick::AhoCorasick;

/// Special tokens of a tokenizer by their spellings, with the automaton that finds them in text. Building it takes a while for
/// thousands of tokens: keep it for all conversations.
#[derive(Clone, Debug)]
pub struct SpecialTokens {
    spellings: Vec<String>,
    /// Automaton that finds spellings of at least two characters.
    automaton: Option<AhoCorasick>,
    edges: Edges,
}

/// Parts of spellings, to detect texts that could become a spelling together with adjacent text.
#[derive(Clone, Debug, Default)]
struct Edges {
    hasher: RandomState,
    /// Hashes of the proper prefixes and suffixes of spellings. A hash collision only results in an unnecessary guard.
    prefixes: HashSet<u64>,
    suffixes: HashSet<u64>,
    /// Length of the longest spelling in bytes.
    longest: usize,
    /// All spellings without their first and last characters, separated by zeros.
    interiors: String,
}

impl Edges {
    fn new(spellings: &[&String]) -> Self {
        let mut edges = Edges::default();
        for spelling in spellings {
            edges.longest = edges.longest.max(spelling.len());
            for (at, _) in spelling.char_indices().skip(1) {
                edges.prefixes.insert(edges.hasher.hash_one(&spelling[..at]));
                edges.suffixes.insert(edges.hasher.hash_one(&spelling[at..]));
            }
            let mut interior = spelling.chars();
            interior.next();
            interior.next_back();
            edges.interiors += interior.as_str();
            edges.interiors.push('\0');
        }
        edges
    }
}

impl SpecialTokens {
    /// Creates special tokens with these spellings.
    pub fn new(spellings: Vec<String>) -> Self {
        // Text cannot be marked within one character.
        let long: Vec<&String> = spellings
            .iter()
            .filter(|token| token.chars().nth(1).is_some())
            .collect();
        let automaton = AhoCorasick::new(&long).ok().filter(|_| !long.is_empty());
        let edges = Edges::new(&long);
        SpecialTokens {
            edges,
            spellings,
            automaton,
        }
    }

    /// Returns true for the start and for the end of a text if text before it, or after it, could complete it to a spelling.
    pub(crate) fn edges(&self, text: &str) -> (bool, bool) {
        let edges = &self.edges;
        if text.is_empty() {
            return (false, false);
        }
        if text.len() < edges.longest && edges.interiors.contains(text) {
            return (true, true);
        }
        let ends = text.char_indices().map(|(at, c)| at + c.len_utf8());
        let at_start = ends
            .take_while(|end| *end <= edges.longest)
            .any(|end| edges.suffixes.contains(&edges.hasher.hash_one(&text[..end])));
        let starts = text.char_indices().rev().map(|(at, _)| at);
        let at_end = starts
            .take_while(|at| text.len() - at <= edges.longest)
            .any(|start| edges.prefixes.contains(&edges.hasher.hash_one(&text[start..])));
        (at_start, at_end)
    }

    /// Returns the automaton, if there is a spelling that can be marked.
    pub(crate) fn automaton(&self) -> Option<&AhoCorasick> {
        self.automaton.as_ref()
    }
}

impl Deref for SpecialTokens {
    type Target = [String];

    fn deref(&self) -> &[String] {
        &self.spellings
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_spellings_are_found_at_the_edges() {
        let tokens = SpecialTokens::new(["<|im_end|>", "</s>", "é", "<öß>"].map(str::to_owned).into());
        for (text, edges) in [
            ("", (false, false)),
            ("hello", (false, false)),
            ("|im_end|", (true, true)),
            ("im", (true, true)),
            ("end|> and", (true, false)),
            (">", (true, false)),
            ("a <", (false, true)),
            ("a <|im_", (false, true)),
            ("<|im_end|>", (false, false)), // guarded within
            ("< a", (false, false)),
            ("ß> ö<ö", (true, true)),
            ("a</s> b", (false, false)),
        ] {
            assert_eq!(tokens.edges(text), edges, "{text}");
        }
    }
}
