//! Text of the tokens of a choice, up to the first of some strings that end it.

use std::sync::Arc;

use meganeura_core::Result;
use meganeura_llm::{TextStream, Tokenizer};

/// What a token adds.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Added {
    /// Text that is certain.
    pub(crate) text: String,
    /// Whether a string ends it here.
    pub(crate) ends: bool,
}

/// Text that grows; what may be the beginning of a string that ends it is kept back.
pub(crate) struct Text {
    stream: TextStream<Arc<Tokenizer>>,
    stop: Vec<String>,
    kept: String,
}

impl Text {
    /// Behind these tokens, if the text goes on with theirs.
    pub(crate) fn new(tokenizer: Arc<Tokenizer>, behind: &[u32], stop: Vec<String>) -> Self {
        Text {
            stream: TextStream::behind(tokenizer, behind),
            stop,
            kept: String::new(),
        }
    }

    /// What a token adds.
    ///
    /// # Errors
    /// Those of the tokenizer.
    pub(crate) fn push(&mut self, token: u32) -> Result<Added> {
        self.kept += &self.stream.push(token)?;
        Ok(released(&mut self.kept, &self.stop))
    }

    /// What is left when no token follows.
    ///
    /// # Errors
    /// Those of the tokenizer.
    pub(crate) fn finish(self) -> Result<String> {
        let mut kept = self.kept + &self.stream.finish()?;
        let added = released(&mut kept, &self.stop);
        Ok(match added.ends {
            true => added.text,
            false => added.text + &kept,
        })
    }
}

/// Takes the text up to the first string that ends it, or up to what may be the beginning of one.
fn released(kept: &mut String, stop: &[String]) -> Added {
    let first = stop.iter().filter_map(|s| kept.find(s.as_str())).min();
    if let Some(at) = first {
        kept.truncate(at);
        return Added {
            text: std::mem::take(kept),
            ends: true,
        };
    }
    let may_begin = |at: &usize| stop.iter().any(|s| s.starts_with(&kept[*at..]));
    let at = kept
        .char_indices()
        .map(|(at, _)| at)
        .find(may_begin)
        .unwrap_or(kept.len());
    let rest = kept.split_off(at);
    Added {
        text: std::mem::replace(kept, rest),
        ends: false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pieces(pieces: &[&str], stop: &[&str]) -> (Vec<String>, String, bool) {
        let stop: Vec<String> = stop.iter().map(|s| s.to_string()).collect();
        let (mut kept, mut all) = (String::new(), Vec::new());
        for piece in pieces {
            kept += piece;
            let added = released(&mut kept, &stop);
            all.push(added.text);
            if added.ends {
                return (all, kept, true);
            }
        }
        (all, kept, false)
    }

    #[test]
    fn what_may_begin_a_stop_string_is_kept_back() {
        let (all, kept, ends) = pieces(&["ab", "cE", "N", "xEND", "y"], &["END"]);
        assert_eq!((all.concat().as_str(), kept.as_str(), ends), ("abcENx", "", true));
        assert_eq!(all, ["ab", "c", "", "ENx"]);
        let (all, kept, ends) = pieces(&["é\n", "\n"], &["\n\n", "é\nq"]);
        assert_eq!((all.concat().as_str(), kept.as_str(), ends), ("é", "", true));
        let (all, kept, ends) = pieces(&["aE"], &["END"]);
        assert_eq!((all.concat().as_str(), kept.as_str(), ends), ("a", "E", false));
        // The first place counts, whichever string is listed first.
        let (all, ..) = pieces(&["one two"], &["two", "one"]);
        assert_eq!(all, [""]);
    }
}
