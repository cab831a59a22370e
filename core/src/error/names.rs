//! Suggestions for misspelled names in error messages.

use super::quoted;

/// Returns the known names that may have been meant, as a list for a message; empty if none is
/// similar.
pub fn closest<'a>(name: &str, known: impl Iterator<Item = &'a str>) -> String {
    const SHOWN: usize = 5;
    let mut known: Vec<&str> = known.filter(|k| is_close(name, k)).collect();
    known.sort_by_key(|k| (distance(name, k), *k));
    known.truncate(SHOWN);
    known.join(", ")
}

/// Returns the part of a message that lists existing names: all if they are few, only the similar ones if they are
/// many. It is part of a sentence, such as `there are a, b`, or empty.
pub fn names_there_are<'a>(name: &str, known: impl Iterator<Item = &'a str>) -> String {
    const FEW: usize = 12;
    let known: Vec<&str> = known.collect();
    match (known.len(), closest(name, known.iter().copied())) {
        (0, _) => "there are none".into(),
        (..=FEW, _) => format!("there are {}", known.join(", ")),
        (_, close) if close.is_empty() => String::new(),
        (_, close) => format!("the closest are {close}"),
    }
}

/// Returns `true` if a name may be a misspelling: at most a third of its last part differs, or one
/// name contains the other.
fn is_close(name: &str, known: &str) -> bool {
    const MIN_PART: usize = 3;
    let part = |a: &str, b: &str| a.len() >= MIN_PART && b.contains(a);
    // A common prefix of all names, such as `core.`, does not make names similar.
    let last = name.rsplit('.').next().unwrap_or(name);
    let allowed = (last.chars().count() / 3).max(1);
    distance(name, known) <= allowed || part(name, known) || part(known, name)
}

/// Returns the edit distance of a name from another one or from that one's last part (`matmul` of `core.matmul`): the
/// smaller of the two.
fn distance(name: &str, known: &str) -> usize {
    let last = known.rsplit('.').next().unwrap_or(known);
    edit_distance(known, name).min(edit_distance(last, name))
}

pub(super) fn known(name: &str, candidates: &[String]) -> String {
    const SHOWN: usize = 8;
    if candidates.is_empty() {
        return "; there are none of that kind".to_owned();
    }
    if candidates.len() <= SHOWN {
        return format!("; there are {}", quoted(candidates));
    }
    let close: Vec<String> = candidates
        .iter()
        .filter(|c| is_close(name, c))
        .take(SHOWN)
        .cloned()
        .collect();
    if !close.is_empty() {
        format!("; of {} the closest are {}", candidates.len(), quoted(&close))
    } else {
        format!(
            "; none of {} is like it: there are {} and {} more",
            candidates.len(),
            quoted(&candidates[..SHOWN]),
            candidates.len() - SHOWN
        )
    }
}

/// Returns the Levenshtein distance.
pub(super) fn edit_distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, ca) in a.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, cb) in b.iter().enumerate() {
            let substituted = diagonal + usize::from(ca != *cb);
            diagonal = row[j + 1];
            row[j + 1] = substituted.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::{Error, TensorKind};

    #[test]
    fn only_close_names_are_called_close() {
        let known = ["core.matmul", "core.matmul_bt", "core.relu", "core.softmax"];
        let closest = |name: &str| closest(name, known.into_iter());
        assert_eq!(closest("matmull"), "core.matmul");
        assert_eq!(closest("core.rellu"), "core.relu");
        assert_eq!(closest("lstm"), "", "nothing is like it");
        assert_eq!(closest("core.lstm"), "");
        assert_eq!(closest(""), "");
    }

    #[test]
    fn few_names_are_all_listed_and_many_are_not() {
        let few = ["sgd", "adam"];
        assert_eq!(names_there_are("lion", few.into_iter()), "there are sgd, adam");
        assert_eq!(names_there_are("lion", std::iter::empty()), "there are none");
        let many: Vec<String> = (0..20).map(|i| format!("layers.{i}.weight")).collect();
        let of = |name: &str| names_there_are(name, many.iter().map(String::as_str));
        assert_eq!(
            of("layer.7.weight").split(", ").next(),
            Some("the closest are layers.7.weight")
        );
        assert_eq!(of("optimizer"), "");
        let error =
            |name| Error::unknown_tensor(TensorKind::Parameter, name, many.iter().map(String::as_str)).to_string();
        assert!(error("layer.7.weight").contains("of 20 the closest are 'layers.7.weight'"));
        assert!(error("zzz").contains("none of 20 is like it"), "{}", error("zzz"));
    }
}
