//! Limits of schemas and grammars, checked before they are compiled.
//!
//! The compiler recurses over a schema and follows its references, and its time grows faster than the number of names. Within
//! these limits it fits on the stack of its thread and ends within seconds.

use meganeura_core::{Error, Result};
use serde_json::Value;

/// Maximum number of values of a schema: objects, lists, texts, numbers.
const MAX_VALUES: usize = 20_000;
/// Maximum number of references of a schema.
const MAX_REFERENCES: usize = 1_000;
/// Maximum number of names or choices in one list or object of a schema.
const MAX_NAMES: usize = 1_000;
/// Maximum number of `patternProperties` of a schema: the compiler compares each pair of patterns, and each with all names.
const MAX_PATTERN_PROPERTIES: usize = 32;
/// Maximum number of patterns whose intersection the compiler may have to build: its time grows exponentially. More patterns are
/// allowed in a schema with at most that number of `allOf` branches.
const MAX_INTERSECTIONS: usize = 8;
/// Maximum repetition of a schema, such as `minItems`, that the compiler unrolls.
const MAX_REPETITION: u64 = 10_000;
/// Maximum length of a regular expression.
const MAX_PATTERN: usize = 4_096;
/// Maximum length of a Lark grammar, or of the regular expression of a request.
const MAX_BYTES: usize = 64 << 10;
/// Maximum nesting of parentheses of a grammar.
const MAX_DEPTH: usize = 64;
/// Maximum number of rules of a grammar.
const MAX_RULES: usize = 2_000;

/// Keywords whose number is unrolled.
const REPETITIONS: [&str; 6] = [
    "minItems",
    "maxItems",
    "minLength",
    "maxLength",
    "minProperties",
    "maxProperties",
];

fn too_large(what: String) -> Error {
    Error::misuse(
        format!("the schema or grammar is too large: {what}"),
        "use a simpler one",
    )
}

/// Checks a JSON schema.
///
/// # Errors
/// [`Error::InvalidUse`] with the limit that the schema exceeds.
pub(super) fn schema(schema: &Value) -> Result<()> {
    if schema["x-guidance"]["lenient"] == true {
        let message = "a lenient schema, whose unknown keywords are ignored, is not supported";
        return Err(Error::misuse(message, "leave \"lenient\" out of x-guidance"));
    }
    let (mut values, mut references, mut patterns) = (0_usize, 0_usize, 0_usize);
    let (mut texts, mut branches) = (0_usize, 0_usize);
    // A work list instead of recursion: it needs no stack.
    let mut left = vec![schema];
    while let Some(value) = left.pop() {
        values += 1;
        let len = match value {
            Value::Array(items) => {
                left.extend(items);
                items.len()
            }
            Value::Object(fields) => {
                references += usize::from(fields.contains_key("$ref"));
                let of_names = fields.get("patternProperties").and_then(Value::as_object);
                patterns += of_names.map_or(0, serde_json::Map::len);
                texts += usize::from(fields.contains_key("pattern") || fields.contains_key("format"));
                branches += fields.get("allOf").and_then(Value::as_array).map_or(0, Vec::len);
                fields.iter().try_for_each(|(name, value)| keyword(name, value))?;
                left.extend(fields.values());
                fields.len()
            }
            _ => 0,
        };
        if len > MAX_NAMES {
            return Err(too_large(format!(
                "expected at most {MAX_NAMES} names in one list or object, found {len}"
            )));
        }
        if values > MAX_VALUES {
            return Err(too_large(format!("expected at most {MAX_VALUES} values")));
        }
        if texts > MAX_INTERSECTIONS && branches > MAX_INTERSECTIONS {
            return Err(too_large(format!(
                "expected at most {MAX_INTERSECTIONS} patterns, or at most {MAX_INTERSECTIONS} branches of allOf"
            )));
        }
        if patterns > MAX_PATTERN_PROPERTIES {
            return Err(too_large(format!(
                "expected at most {MAX_PATTERN_PROPERTIES} patternProperties"
            )));
        }
        if references > MAX_REFERENCES {
            return Err(too_large(format!("expected at most {MAX_REFERENCES} references")));
        }
    }
    Ok(())
}

fn keyword(name: &str, value: &Value) -> Result<()> {
    let number = value.as_u64().filter(|_| REPETITIONS.contains(&name));
    if let Some(number) = number.filter(|&number| number > MAX_REPETITION) {
        return Err(too_large(format!(
            "expected {name} of at most {MAX_REPETITION}, found {number}"
        )));
    }
    match value.as_str() {
        Some(text) if name == "pattern" && text.len() > MAX_PATTERN => Err(too_large(format!(
            "expected patterns of at most {MAX_PATTERN} bytes, found {}",
            text.len()
        ))),
        _ => Ok(()),
    }
}

/// Checks a grammar in llguidance's dialect of Lark, or a regular expression.
///
/// # Errors
/// [`Error::InvalidUse`] with the limit that the text exceeds.
pub(super) fn source(text: &str) -> Result<()> {
    let (mut depth, mut deepest) = (0_usize, 0);
    for byte in text.bytes() {
        match byte {
            b'(' | b'[' | b'{' => depth += 1,
            b')' | b']' | b'}' => depth = depth.saturating_sub(1),
            _ => {}
        }
        deepest = deepest.max(depth);
    }
    let rules = text.lines().count();
    if text.contains("%json") {
        return Err(Error::misuse(
            "grammars with %json are not supported",
            "send the schema in response_format or guided_json",
        ));
    }
    let intersections = text.matches('&').count();
    if text.len() > MAX_BYTES {
        Err(too_large(format!(
            "expected at most {MAX_BYTES} bytes, found {}",
            text.len()
        )))
    } else if deepest > MAX_DEPTH {
        Err(too_large(format!(
            "expected at most {MAX_DEPTH} nested parentheses, found {deepest}"
        )))
    } else if intersections > MAX_INTERSECTIONS {
        Err(too_large(format!(
            "expected at most {MAX_INTERSECTIONS} characters `&`, found {intersections}"
        )))
    } else if rules > MAX_RULES {
        Err(too_large(format!("expected at most {MAX_RULES} lines, found {rules}")))
    } else {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn schemas_beyond_each_limit_are_errors() {
        let names: Vec<String> = (0..1001).map(|i| format!("n{i}")).collect();
        let references: Vec<Value> = (0..1001).map(|_| json!({"$ref": "#/$defs/a"})).collect();
        let many: serde_json::Map<String, Value> = (0..33).map(|i| (format!("^a{i}"), json!({}))).collect();
        let lists: Vec<Value> = (0..900).map(|_| json!(vec![0; 30])).collect();
        for (schema_of, said) in [
            (json!({"required": names}), "names"),
            (json!({"anyOf": [references[..600], references[..600]]}), "references"),
            (json!({"enum": lists}), "values"),
            (json!({"x-guidance": {"lenient": true}}), "lenient"),
            (json!({"items": {"minItems": 10_001}}), "minItems"),
            (json!({"pattern": "a".repeat(5000)}), "patterns"),
            (json!({"patternProperties": many}), "patternProperties"),
            (
                json!({"allOf": vec![json!({"type": "string", "pattern": "[ab]*a[ab]{9}"}); 9]}),
                "allOf",
            ),
        ] {
            let error = schema(&schema_of).expect_err(said).to_string();
            assert!(error.contains(said), "{error}");
        }
        assert!(schema(&json!({"properties": {"pattern": {"type": "string", "maxLength": 100}}})).is_ok());
        assert!(schema(&json!(true)).is_ok());
    }

    #[test]
    fn grammars_beyond_each_limit_are_errors() {
        for (text, said) in [
            ("a".repeat(70_000), "bytes"),
            ("(".repeat(65), "parentheses"),
            ("a: b\n".repeat(2001), "lines"),
            (format!("start: A\nA: /a/{}", " & /b/".repeat(9)), "`&`"),
        ] {
            let error = source(&text).expect_err(said).to_string();
            assert!(error.contains(said), "{error}");
        }
        assert!(source("start: \"a\"").is_ok());
        assert!(source("start: %json {\"minItems\": 1000000000}").is_err());
    }
}
