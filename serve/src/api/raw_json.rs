//! A JSON parser that returns parts of the text unchanged: numbers keep their digits, and nesting has no limit.

use serde::de::IgnoredAny;

/// Splits a text after its first JSON value. Returns the text of the value, and the rest.
pub(super) fn value(text: &str) -> Option<(&str, &str)> {
    let text = text.trim_start();
    let mut values = serde_json::Deserializer::from_str(text).into_iter::<IgnoredAny>();
    values.next()?.ok()?;
    Some(text.split_at(values.byte_offset()))
}

/// Splits a JSON list into the texts of its items. Returns `None` if the text is not exactly one list.
pub(super) fn list(text: &str) -> Option<Vec<&str>> {
    let mut rest = text.trim().strip_prefix('[')?;
    let mut items = Vec::new();
    if let Some(end) = rest.trim_start().strip_prefix(']') {
        return end.is_empty().then_some(items);
    }
    loop {
        let (item, after) = value(rest)?;
        items.push(item);
        match after.trim_start().split_at_checked(1)? {
            (",", after) => rest = after,
            ("]", "") => return Some(items),
            _ => return None,
        }
    }
}

/// Splits a JSON object into the names and the texts of its values. Returns `None` if the text is not exactly one
/// object.
pub(super) fn object(text: &str) -> Option<Vec<(String, &str)>> {
    let mut rest = text.trim().strip_prefix('{')?;
    let mut fields = Vec::new();
    if let Some(end) = rest.trim_start().strip_prefix('}') {
        return end.is_empty().then_some(fields);
    }
    loop {
        let (name, after) = value(rest)?;
        let (item, after) = value(after.trim_start().strip_prefix(':')?)?;
        fields.push((serde_json::from_str(name).ok()?, item));
        match after.trim_start().split_at_checked(1)? {
            (",", after) => rest = after,
            ("}", "") => return Some(fields),
            _ => return None,
        }
    }
}

/// Returns true if an object in a JSON text has a name that serde_json reserves. serde_json would parse the value of
/// such a field as JSON again, without a limit of nesting.
pub(super) fn has_reserved_name(text: &[u8]) -> bool {
    const RESERVED: &str = "$serde_json::private::";
    let mut rest = text;
    while let Some(start) = rest.iter().position(|&byte| byte == b'"') {
        let inner = &rest[start + 1..];
        let mut is_escaped = false;
        let end = inner.iter().position(|&byte| {
            let ends = byte == b'"' && !is_escaped;
            is_escaped = byte == b'\\' && !is_escaped;
            ends
        });
        let Some(end) = end else { return false };
        let after = inner[end + 1..].trim_ascii_start();
        // Letters may be written as escapes.
        let name = &rest[start..start + end + 2];
        let may_be = after.first() == Some(&b':') && (name.contains(&b'$') || name.contains(&b'\\'));
        if may_be && serde_json::from_slice::<String>(name).is_ok_and(|name| name.starts_with(RESERVED)) {
            return true;
        }
        rest = &inner[end + 1..];
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reserved_names_are_found_however_they_are_written() {
        for text in [
            r#"{"a": [{"$serde_json::private::RawValue": "1"}]}"#,
            r#"{"\u0024serde_json::private::RawValue" : "1"}"#,
            r#"{"a\"":1,"$serde_json::priv\u0061te::Number":"1"}"#,
        ] {
            assert!(has_reserved_name(text.as_bytes()), "{text}");
        }
        for text in [
            r#"{"a": "$serde_json::private::RawValue"}"#,
            r#"{"a": "\"$serde_json::private::RawValue\":1"}"#,
            r#"{"$serde_json": 1, "\\": ":"}"#,
            r#"{"$serde_json::private::RawValue"#,
        ] {
            assert!(!has_reserved_name(text.as_bytes()), "{text}");
        }
    }

    #[test]
    fn parts_are_as_they_are_written() {
        let text = r#" {"a" : 88829473588882593307, "b\n":[1, {"c": "}"}],"d":-0 , "e":44E307} "#;
        let fields = object(text).expect("an object");
        let fields: Vec<(&str, &str)> = fields.iter().map(|(name, value)| (name.as_str(), *value)).collect();
        let wanted = [
            ("a", "88829473588882593307"),
            ("b\n", r#"[1, {"c": "}"}]"#),
            ("d", "-0"),
            ("e", "44E307"),
        ];
        assert_eq!(fields, wanted);
        assert_eq!(list(r#"[1, {"c": "]"} ,2]"#), Some(vec!["1", r#"{"c": "]"}"#, "2"]));
        assert_eq!(list("[ ]"), Some(vec![]));
        assert_eq!(object("{}"), Some(vec![]));
        assert_eq!(value(" {} more"), Some(("{}", " more")));
        let deep = format!("{}1{}", "[".repeat(10_000), "]".repeat(10_000));
        assert_eq!(value(&deep), Some((deep.as_str(), "")));
    }

    #[test]
    fn other_texts_have_no_parts() {
        for wrong in ["", "[1", "[1,]", "[1] 2", "{}", "[1 2]"] {
            assert_eq!(list(wrong), None, "{wrong}");
        }
        for wrong in [
            "",
            "[]",
            "{\"a\"}",
            "{\"a\":}",
            "{\"a\":1",
            "{\"a\":1} 2",
            "{a:1}",
            "{1:1}",
        ] {
            assert_eq!(object(wrong), None, "{wrong}");
        }
    }
}
