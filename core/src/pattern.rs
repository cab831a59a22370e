//! Name patterns in options for groups of parameters.

/// Returns `true` if a name matches a pattern in which `*` matches any characters.
pub fn matches(pattern: &str, name: &str) -> bool {
    let Some((head, rest)) = pattern.split_once('*') else {
        return pattern == name;
    };
    let Some(mut name) = name.strip_prefix(head) else {
        return false;
    };
    let mut parts: Vec<&str> = rest.split('*').collect();
    let tail = parts.pop().unwrap_or_default();
    for part in parts {
        match name.find(part) {
            Some(at) => name = &name[at + part.len()..],
            None => return false,
        }
    }
    name.ends_with(tail)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_match_whole_names() {
        for (pattern, name, expected) in [
            ("fc1.bias", "fc1.bias", true),
            ("fc1.bias", "fc1.bias2", false),
            ("*.bias", "block.fc.bias", true),
            ("*.bias", "bias", false),
            ("*", "", true),
            ("layer*.norm*.weight", "layer3.norm2.weight", true),
            ("layer*.norm*.weight", "layer3.weight", false),
            ("a*a", "a", false),
            ("a*a", "aa", true),
            ("*ab*ab", "ab", false),
            ("*ab*ab", "xabab", true),
        ] {
            assert_eq!(matches(pattern, name), expected, "{pattern} {name}");
        }
    }
}
