//! Spellings of special tokens, such as `<|im_end|>`.

use std::ops::Deref;

use aho_corasick::AhoCorasick;

/// Special tokens of a tokenizer by their spellings, with the automaton that finds them in text. Building it takes a while for
/// thousands of tokens: keep it for all conversations.
#[derive(Clone, Debug)]
pub struct SpecialTokens {
    spellings: Vec<String>,
    /// Finds the spellings of two characters and more.
    automaton: Option<AhoCorasick>,
}

impl SpecialTokens {
    /// Special tokens with these spellings.
    pub fn new(spellings: Vec<String>) -> Self {
        // Text cannot be marked within one character.
        let long: Vec<&String> = spellings
            .iter()
            .filter(|token| token.chars().nth(1).is_some())
            .collect();
        let automaton = AhoCorasick::new(&long).ok().filter(|_| !long.is_empty());
        SpecialTokens { spellings, automaton }
    }

    /// The automaton, if there is a spelling that can be marked.
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
