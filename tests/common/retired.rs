//! Words that the documents no longer use, and how they are found.

/// Retired words. In names they count as parts of an identifier, in texts as whole words.
pub(crate) const RETIRED: [&str; 20] = [
    "brought",
    "contestant",
    "contestants",
    "coop_at_once",
    "coop_between",
    "ENOUGH_",
    "fed_indices",
    "FEWEST_",
    "halves",
    "lasting",
    "LONGEST_",
    "matrix units",
    "matrix_units",
    "memory_beside",
    "modelled",
    "MOST_",
    "on its way",
    "on their way",
    "surroundings",
    "taken apart",
];

/// Uses that are meant, by what they occur in.
const ALLOWED: [&str; 1] = [
    // A verb.
    "`\"f16\"` halves the memory traffic",
];

/// Whether a line has a word between characters that are not part of a word.
pub(crate) fn has_word(line: &str, word: &str) -> bool {
    let is_part = |c: Option<char>| c.is_some_and(|c| c.is_alphanumeric());
    line.match_indices(word).any(|(at, _)| {
        let (before, after) = (line[..at].chars().next_back(), line[at + word.len()..].chars().next());
        !is_part(before) && (word.ends_with('_') || !is_part(after))
    })
}

/// The retired words of a line, with where it is.
pub(crate) fn complaints(place: &str, line: &str) -> Vec<String> {
    if ALLOWED.iter().any(|allowed| line.contains(allowed)) {
        return Vec::new();
    }
    let words = RETIRED.iter().filter(|word| has_word(line, word));
    words
        .map(|word| format!("{place}: '{word}' in: {}", line.trim()))
        .collect()
}

pub(crate) fn complaints_of_text(place: &str, text: &str) -> Vec<String> {
    let lines = text.lines().enumerate();
    lines
        .flat_map(|(i, line)| complaints(&format!("{place}:{}", i + 1), line))
        .collect()
}
