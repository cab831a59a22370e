//! Names of GGUF files, and of the parts of split ones.

/// Returns the name of a GGUF file without its extension.
pub(crate) fn stem(name: &str) -> Option<&str> {
    let (stem, end) = name.rsplit_once('.')?;
    (end.eq_ignore_ascii_case("gguf") && !stem.is_empty()).then_some(stem)
}

/// Splits the [stem] of a file that is a part of a model: the name of the model, the number of the
/// part, and the number of all parts.
pub(crate) fn part_of(stem: &str) -> Option<(&str, [usize; 2])> {
    const DIGITS: usize = 5;
    let number = |text: &str| -> Option<usize> {
        let is_number = text.len() == DIGITS && text.bytes().all(|digit| digit.is_ascii_digit());
        text.parse().ok().filter(|&number| is_number && number > 0)
    };
    let (rest, count) = stem.rsplit_once("-of-")?;
    let (name, part) = rest.rsplit_once('-')?;
    Some((name, [number(part)?, number(count)?]))
}

/// Returns the [stem] of a part of a model.
pub(crate) fn name(model: &str, part: usize, count: usize) -> String {
    format!("{model}-{part:05}-of-{count:05}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_models_are_told_by_their_names() {
        assert_eq!(part_of("a-b-00002-of-00010"), Some(("a-b", [2, 10])));
        assert_eq!(name("a-b", 2, 10), "a-b-00002-of-00010");
        for no in [
            "a-2-of-10",
            "a-00002-of-0001x",
            "00001-of-00002",
            "a-00000-of-00001",
            "a",
        ] {
            assert_eq!(part_of(no), None, "{no}");
        }
        assert_eq!(stem("a.b.GGUF"), Some("a.b"));
        assert_eq!((stem(".gguf"), stem("gguf")), (None, None));
    }
}
