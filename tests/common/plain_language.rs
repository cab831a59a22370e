//! Detection of wording that readers of these texts stumbled over. CONTRIBUTING.md contains the rules.
//!
//! A hit is a hint: rewrite the sentence, do not replace the word.

use fancy_regex::Regex;

/// Marked wording in any text: the reason why readers stumble over it, and a pattern.
const ANYWHERE: [(&str, &str); 14] = [
    (
        "'place' for a location, index or slot",
        r"(?<!in )\bplaces?\b(?! ?holder)",
    ),
    (
        "things that say, tell or know",
        r"\b(is said|says|said|tells?|told|knows?|known)\b",
    ),
    (
        "things that bring or take along",
        r"\b(brings?|brought|takes? along|goes along|come along)\b",
    ),
    ("'alone' for 'only'", r"\balone\b"),
    ("'anew' for 'again'", r"\banew\b"),
    (
        "'beside' and 'behind' for 'next to' and 'after'",
        r"\b(beside|behind)\b",
    ),
    (
        "'so many' for 'this number of'",
        r"\b(so many|as many|so long|so few)\b",
    ),
    (
        "'whoever', 'nobody', 'whatever'",
        r"\b(whoever|nobody|somebody|whatever|nothing else)\b",
    ),
    ("'those' and 'others' as nouns", r"\b(those|others)\b"),
    ("'is of' for 'has' or 'comes from'", r"\b(is|are) of\b"),
    (
        "'goes on', 'stands', 'lies' for 'continues', 'is'",
        r"\b(goes on|go on|stands|stand for|lies|lie)\b",
    ),
    ("'mend' and 'heed'", r"\b(mend(s|ed)?|heed(s|ed)?)\b"),
    (
        "a clause with 'what is' or 'which is'",
        r"(?<!^)\b(what|which) (is|are|was|were|it|they|a|the)\b",
    ),
    (
        "words that the glossary has replaced",
        r"\b(matrix units|contestants?|taken apart|on (its|their) way|surroundings|modelled)\b",
    ),
];

/// Finder of marked wording.
pub(crate) struct Finder {
    patterns: Vec<(&'static str, Regex)>,
    any: Regex,
}

impl Finder {
    /// Creates a finder of [`ANYWHERE`] and of `more`.
    pub(crate) fn new(more: &[(&'static str, &'static str)]) -> Self {
        let wording = [&ANYWHERE[..], more].concat();
        let compile = |pattern: &str| Regex::new(pattern).expect("a valid pattern");
        let any: Vec<String> = wording.iter().map(|(_, pattern)| format!("(?:{pattern})")).collect();
        Finder {
            patterns: wording.iter().map(|&(why, pattern)| (why, compile(pattern))).collect(),
            any: compile(&any.join("|")),
        }
    }

    /// Returns true if a line contains marked wording.
    pub(crate) fn is_marked(&self, line: &str) -> bool {
        self.any.is_match(line).expect("patterns do not backtrack much")
    }

    /// Returns the reason for each occurrence in a line.
    pub(crate) fn reasons<'f>(&'f self, line: &str) -> Vec<&'f str> {
        let mut reasons = Vec::new();
        if self.is_marked(line) {
            for (why, pattern) in &self.patterns {
                reasons.extend(pattern.find_iter(line).map(|_| *why));
            }
        }
        reasons
    }
}
