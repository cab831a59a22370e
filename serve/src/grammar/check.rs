//! Limits of schemas and grammars, checked before llguidance compiles them.
//!
//! The compiler recurses over a schema and follows its references, and its time grows faster than the number of names. Within
//! these limits it fits on the stack of its thread and ends within seconds.

use std::collections::HashMap;

use meganeura_core::{Error, Result};
use serde_json::Value;

use super::merged::Merger;
use super::numbers::{Bounds, Multiples};
use super::{Grammar, cost, optional, quotes};

/// Maximum number of values of a schema: objects, lists, texts, numbers.
const MAX_VALUES: usize = 20_000;
/// Maximum number of references of a schema.
const MAX_REFERENCES: usize = 1_000;
/// Maximum number of names or choices in one list or object of a schema.
const MAX_NAMES: usize = 1_000;
/// Maximum number of `patternProperties` of a schema: the compiler compares each pair of patterns, and each with all names.
const MAX_PATTERN_PROPERTIES: usize = 32;
/// Maximum number of patterns whose intersection the compiler may have to build: its time grows exponentially with it.
/// A schema with no more `allOf` branches than this may have more patterns.
const MAX_INTERSECTIONS: usize = 8;
/// Maximum value of keywords such as `minItems`, whose repetitions the compiler unrolls.
const MAX_REPETITION: u64 = 10_000;
/// Maximum length of a regular expression, in bytes.
const MAX_PATTERN: usize = 4_096;
/// Maximum size of all patterns of a schema, or of a grammar, after repetitions and terminals are expanded. The
/// compiler's time and memory grow with the square of it: about 2 s and 100 MB at this size.
const MAX_EXPANDED: u64 = 10_000;
/// Maximum length of a Lark grammar, in bytes.
const MAX_BYTES: usize = 64 << 10;
/// Maximum nesting depth of parentheses in a grammar.
const MAX_DEPTH: usize = 64;
/// Maximum number of rules of a grammar.
const MAX_RULES: usize = 2_000;

/// Keywords whose value the compiler unrolls.
const REPETITIONS: [&str; 6] = [
    "minItems",
    "maxItems",
    "minLength",
    "maxLength",
    "minProperties",
    "maxProperties",
];

pub(super) fn too_large(what: String) -> Error {
    Error::misuse(
        format!("the schema or grammar is too large: {what}"),
        "use a simpler one",
    )
}

/// Checks a schema or grammar.
///
/// # Errors
/// [`Error::InvalidUse`] with the limit that it exceeds.
pub(super) fn grammar(grammar: &Grammar) -> Result<()> {
    match grammar {
        Grammar::Object => Ok(()),
        Grammar::Schema(value) => schema(value).map(drop),
        Grammar::Lark(text) => lark(text),
        Grammar::Regex(text) => regex(text),
        Grammar::Choice(texts) => choice(texts),
    }
}

/// Checks only how much memory a grammar takes. It is fast, so that a grammar that is far too large is refused before its
/// request waits for the complete check.
///
/// # Errors
/// [`Error::InvalidUse`] with the limit that it exceeds.
pub(super) fn size(grammar: &Grammar) -> Result<()> {
    match grammar {
        Grammar::Object => Ok(()),
        Grammar::Schema(schema) => {
            let (mut values, mut left) = (0_usize, vec![schema]);
            while let Some(value) = left.pop() {
                values += 1;
                check_values(values)?;
                match value {
                    Value::Array(items) => {
                        check_names(items.len())?;
                        left.extend(items);
                    }
                    Value::Object(fields) => {
                        check_names(fields.len())?;
                        left.extend(fields.values());
                    }
                    _ => {}
                }
            }
            Ok(())
        }
        Grammar::Lark(text) | Grammar::Regex(text) => check_bytes(text.len()),
        Grammar::Choice(texts) => choice(texts),
    }
}

fn check_values(values: usize) -> Result<()> {
    if values > MAX_VALUES {
        return Err(too_large(format!("expected at most {MAX_VALUES} values")));
    }
    Ok(())
}

fn check_names(names: usize) -> Result<()> {
    if names > MAX_NAMES {
        return Err(too_large(format!(
            "expected at most {MAX_NAMES} names in one list or object, found {names}"
        )));
    }
    Ok(())
}

fn check_bytes(bytes: usize) -> Result<()> {
    if bytes > MAX_BYTES {
        return Err(too_large(format!("expected at most {MAX_BYTES} bytes, found {bytes}")));
    }
    Ok(())
}

/// Checks a JSON schema. Returns an estimate of the time to compile it, beyond that of its text, in units of 0.6 us.
///
/// # Errors
/// [`Error::InvalidUse`] with the limit that the schema exceeds.
pub(super) fn schema(schema: &Value) -> Result<u64> {
    if schema["x-guidance"]["lenient"] == true {
        let message = "a lenient schema, whose unknown keywords are ignored, is not supported";
        return Err(Error::misuse(message, "leave \"lenient\" out of x-guidance"));
    }
    let (mut values, mut references, mut patterns) = (0_usize, 0_usize, 0_usize);
    let (mut texts, mut branches) = (0_usize, 0_usize);
    let mut multiples = Multiples::default();
    let mut bounds = Bounds::default();
    let mut merged = Merger::new(schema);
    let mut expanded = 0_u64;
    let (mut combines, mut has_base) = (false, false);
    let root = schema;
    // A work list instead of recursion: it needs no stack.
    let mut left = vec![schema];
    let mut objects = Vec::new();
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
                let names = of_names.into_iter().flat_map(serde_json::Map::keys).map(String::as_str);
                let own = fields.get("pattern").and_then(Value::as_str);
                // Patterns of white space and separators.
                let of_options = fields.get("x-guidance").and_then(Value::as_object);
                let options = of_options
                    .into_iter()
                    .flat_map(serde_json::Map::values)
                    .filter_map(Value::as_str);
                for (pattern, is_text) in names.chain(own).map(|p| (p, true)).chain(options.map(|p| (p, false))) {
                    if pattern.len() > MAX_PATTERN {
                        return Err(too_large(format!(
                            "expected patterns of at most {MAX_PATTERN} bytes, found {}",
                            pattern.len()
                        )));
                    }
                    expanded = expanded.saturating_add(cost::regex(pattern));
                    check_expanded(expanded)?;
                    if is_text {
                        quotes::check(pattern)?;
                    }
                }
                texts += usize::from(fields.contains_key("pattern") || fields.contains_key("format"));
                branches += fields.get("allOf").and_then(Value::as_array).map_or(0, Vec::len);
                multiples.add(fields)?;
                bounds.add(fields);
                check_reference(fields)?;
                optional::check(fields)?;
                has_base |= !std::ptr::eq(value, root) && fields.get("$id").is_some_and(Value::is_string);
                objects.push(value);
                if !std::ptr::eq(value, root) && has_options(fields) {
                    let message = "x-guidance is supported only at the top of a schema";
                    return Err(Error::misuse(
                        message,
                        "leave it out, or send the schema in response_format",
                    ));
                }
                let has = |name: &&str| fields.contains_key(*name);
                combines |= ["allOf", "prefixItems"].iter().any(has)
                    || (["$ref", "anyOf", "oneOf"].iter().any(has) && fields.len() > 1);
                fields.iter().try_for_each(|(name, value)| keyword(name, value))?;
                left.extend(fields.values());
                fields.len()
            }
            Value::Number(number) if !is_exact(number) => {
                return Err(too_large(format!("expected numbers of at most 2^53, found {number}")));
            }
            _ => 0,
        };
        check_names(len)?;
        check_values(values)?;
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
    if has_base && references > 0 {
        return Err(Error::misuse(
            "`$id` inside a schema, which changes the base of references, is not supported",
            "leave `$id` out, and refer to definitions with `#/$defs/NAME`",
        ));
    }
    multiples.check()?;
    if combines {
        bounds.check()?;
    }
    // The merger recurses, so the limits above must hold first.
    objects.into_iter().try_for_each(|object| merged.check(object))?;
    // The compiler compiles the target of a reference once, unless it has to combine it with other schemas, or builds a list item
    // by item.
    let size = if combines {
        inlined(schema, schema, &mut HashMap::new())
    } else {
        0
    };
    if size > MAX_VALUES as u64 {
        return Err(too_large(format!(
            "expected at most {MAX_VALUES} values with references replaced by their targets, found {size}"
        )));
    }
    Ok(merged.cost().saturating_add(multiples.cost()))
}

/// Returns the number of values of a schema after references to `#` and `#/...` are replaced by their targets. A
/// recursive reference counts as one value.
fn inlined<'s>(schema: &'s Value, root: &'s Value, sizes: &mut HashMap<&'s str, u64>) -> u64 {
    let parts: Vec<&Value> = match schema {
        Value::Array(items) => items.iter().collect(),
        Value::Object(fields) => fields.values().collect(),
        _ => return 1,
    };
    let own = parts.into_iter().map(|part| inlined(part, root, sizes));
    let own = own.fold(1, u64::saturating_add);
    let reference = schema.get("$ref").and_then(Value::as_str);
    let Some((reference, target)) = reference.and_then(|text| Some((text, root.pointer(text.strip_prefix('#')?)?)))
    else {
        return own;
    };
    let size = match sizes.get(reference) {
        Some(size) => *size,
        None => {
            sizes.insert(reference, 1);
            let size = inlined(target, root, sizes);
            sizes.insert(reference, size);
            size
        }
    };
    own.saturating_add(size)
}

/// Returns true if the compiler, which computes in f64, represents a number exactly: up to 2^53.
fn is_exact(number: &serde_json::Number) -> bool {
    const MAX: u64 = 1 << 53;
    match (number.as_i64(), number.as_f64()) {
        (Some(integer), _) => integer.unsigned_abs() <= MAX,
        (None, Some(value)) => value.abs() <= MAX as f64,
        (None, None) => false,
    }
}

/// Refuses references that the compiler resolves differently from RFC 6901: it decodes no `~0` and `~1`, and takes `+1` as an index.
fn check_reference(fields: &serde_json::Map<String, Value>) -> Result<()> {
    let reference = fields.get("$ref").and_then(Value::as_str).unwrap_or_default();
    if reference.contains('~') || reference.contains("/+") {
        return Err(Error::misuse(
            "references with '~' or '+' are not supported",
            "use names without '~', '/' and '+' in $defs",
        ));
    }
    Ok(())
}

/// Returns true if a schema sets options of the compiler (`x-guidance`). A property with this name is not an option.
fn has_options(fields: &serde_json::Map<String, Value>) -> bool {
    let options = fields.get("x-guidance").and_then(Value::as_object);
    let known = [
        "whitespace_flexible",
        "whitespace_pattern",
        "item_separator",
        "key_separator",
        "coerce_one_of",
        "lenient",
    ];
    options.is_some_and(|options| known.iter().any(|name| options.contains_key(*name)))
}

fn keyword(name: &str, value: &Value) -> Result<()> {
    let number = value.as_u64().filter(|_| REPETITIONS.contains(&name));
    if let Some(number) = number.filter(|&number| number > MAX_REPETITION) {
        return Err(too_large(format!(
            "expected {name} of at most {MAX_REPETITION}, found {number}"
        )));
    }
    Ok(())
}

fn check_expanded(size: u64) -> Result<()> {
    if size > MAX_EXPANDED {
        return Err(too_large(format!(
            "expected at most {MAX_EXPANDED} characters and classes with repetitions and terminals written out, found {size}"
        )));
    }
    Ok(())
}

/// Checks a grammar in llguidance's dialect of Lark.
///
/// # Errors
/// [`Error::InvalidUse`] with the limit that the text exceeds.
pub(super) fn lark(text: &str) -> Result<()> {
    source(text)?;
    if cost::has_attribute(text, "temperature") {
        return Err(Error::misuse(
            "the attribute temperature of a rule is not supported",
            "set the temperature of the request",
        ));
    }
    check_expanded(cost::lark(text))
}

/// Checks a regular expression.
///
/// # Errors
/// [`Error::InvalidUse`] with the limit that the text exceeds.
pub(super) fn regex(text: &str) -> Result<()> {
    // A regular expression has no intersections.
    source(&text.replace('&', " "))?;
    check_expanded(cost::regex(text))
}

fn source(text: &str) -> Result<()> {
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
    if text.contains("%lark") {
        return Err(Error::misuse(
            "grammars inside of a grammar (%lark) are not supported",
            "write their rules into the outer grammar",
        ));
    }
    let intersections = text.matches('&').count();
    check_bytes(text.len())?;
    if deepest > MAX_DEPTH {
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

/// Checks the texts of a choice.
///
/// # Errors
/// [`Error::InvalidUse`] with the limit that they exceed.
pub(super) fn choice(texts: &[String]) -> Result<()> {
    let bytes: usize = texts.iter().map(String::len).sum();
    if texts.len() > MAX_NAMES {
        Err(too_large(format!(
            "expected at most {MAX_NAMES} choices, found {}",
            texts.len()
        )))
    } else if bytes > MAX_BYTES {
        Err(too_large(format!(
            "expected choices of at most {MAX_BYTES} bytes in all, found {bytes}"
        )))
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
            (
                json!({"items": {"x-guidance": {"item_separator": ","}}}),
                "top of a schema",
            ),
            (json!({"items": {"minItems": 10_001}}), "minItems"),
            (json!({"minimum": u64::MAX}), "2^53"),
            (json!({"const": 1e22}), "2^53"),
            (json!({"enum": [9_007_199_254_740_993_u64]}), "2^53"),
            (json!({"pattern": "a".repeat(5000)}), "patterns"),
            (json!({"items": {"pattern": "(a?){101}{100}"}}), "written out"),
            (json!({"patternProperties": {"(a?){9999}bb": {}}}), "written out"),
            (json!({"patternProperties": {"a".repeat(5000): {}}}), "patterns"),
            (
                json!({"x-guidance": {"whitespace_pattern": r"\w?\d?".repeat(800)}}),
                "patterns",
            ),
            (json!({"x-guidance": {"key_separator": "(a?){9999}bb"}}), "written out"),
            (json!({"patternProperties": many}), "patternProperties"),
            (
                json!({"allOf": vec![json!({"type": "string", "pattern": "[ab]*a[ab]{9}"}); 9]}),
                "allOf",
            ),
        ] {
            let error = schema(&schema_of).expect_err(said).to_string();
            assert!(error.contains(said), "{error}");
        }
        let both = |a: f64, b: f64| json!({"multipleOf": a, "anyOf": [{"multipleOf": b}]});
        for wrong in [
            json!({"multipleOf": 9_999_991}),
            json!({"multipleOf": 10_001}),
            json!({"multipleOf": -9_999_991}),
            json!({"items": {"multipleOf": 12.345678}}),
            json!({"multipleOf": 1e300}),
            json!({"multipleOf": 1e-12}),
            both(997.0, 991.0),
            both(-997.0, 991.0),
            json!({"prefixItems": (901..920).map(|i| json!({"multipleOf": i})).collect::<Vec<_>>()}),
            both(0.001, 997.0),
        ] {
            let error = schema(&wrong).expect_err("too large").to_string();
            assert!(error.contains("multipleOf"), "{error}");
        }
        let apart =
            json!({"properties": {"a": {"multipleOf": 997}, "b": {"multipleOf": 991}, "c": {"multipleOf": 0.01}}});
        for right in [both(5.0, 0.01), both(100.0, 7.0), apart, json!({"multipleOf": 1e4})] {
            assert!(schema(&right).is_ok(), "{right}");
        }
        assert!(schema(&json!({"properties": {"pattern": {"type": "string", "maxLength": 100}}})).is_ok());
        assert!(schema(&json!(true)).is_ok());
        // At the top, and as the name of a property, `$id` changes no reference.
        let named = json!({"$id": "http://z/", "properties": {"$id": {"$ref": "#/$defs/a"}}, "$defs": {"a": {}}});
        assert!(schema(&named).is_ok());
    }

    #[test]
    fn references_and_bounds_that_the_compiler_misreads_are_errors() {
        let nested =
            |low: Value, high: Value| json!({"allOf": [{"properties": {"a": low}}, {"properties": {"a": high}}]});
        for (wrong, said) in [
            (json!({"$defs": {"a/b": {}}, "$ref": "#/$defs/a~1b"}), "references"),
            (json!({"$defs": [{}, {}], "$ref": "#/$defs/+1"}), "references"),
            (
                json!({"$defs": {"a": {"$id": "http://z/", "$ref": "#/$defs/b"}, "b": {}}, "$ref": "#/$defs/a"}),
                "`$id` inside a schema",
            ),
            (
                nested(json!({"exclusiveMinimum": 1}), json!({"maximum": 1.5})),
                "exclusive",
            ),
            (
                nested(json!({"minimum": 0.5}), json!({"exclusiveMaximum": 1})),
                "exclusive",
            ),
            // The type is in another schema.
            (
                json!({"allOf": [{"type": "integer"}, {"exclusiveMinimum": 0}], "maximum": 1}),
                "exclusive",
            ),
            (
                json!({"items": {"exclusiveMinimum": 1}, "anyOf": [{"items": {"maximum": 2}}]}),
                "exclusive",
            ),
        ] {
            let error = schema(&wrong).expect_err("not supported").to_string();
            assert!(error.contains(said), "{error}");
        }
        for right in [
            nested(json!({"exclusiveMinimum": 1}), json!({"maximum": 3})),
            nested(json!({"exclusiveMinimum": 0}), json!({"minimum": 0})),
            nested(
                json!({"type": "integer", "exclusiveMinimum": 1}),
                json!({"maximum": 1.5}),
            ),
            json!({"properties": {"a": {"exclusiveMinimum": 1}, "b": {"maximum": 1.5}}}),
        ] {
            assert!(schema(&right).is_ok(), "{right}");
        }
    }

    #[test]
    fn references_that_double_are_errors_where_schemas_are_combined() {
        // Each level refers to the next one twice.
        let level = |i: usize, is_combined: bool| {
            let next = json!({"$ref": format!("#/$defs/d{}", i + 1)});
            let next = if is_combined {
                json!({"allOf": [next, {"type": "object"}]})
            } else {
                next
            };
            (format!("d{i}"), json!({"properties": {"a": next, "b": next}}))
        };
        let of = |is_combined: bool| {
            let mut definitions: serde_json::Map<String, Value> = (0..20).map(|i| level(i, is_combined)).collect();
            definitions.insert("d20".into(), json!({"$ref": "#/$defs/d0"}));
            json!({"$defs": definitions, "$ref": "#/$defs/d0"})
        };
        let error = schema(&of(true)).expect_err("too large").to_string();
        assert!(error.contains("replaced by their targets"), "{error}");
        let mut plain = of(false);
        plain = json!({"$defs": plain["$defs"], "items": {"$ref": "#/$defs/d0"}});
        assert!(schema(&plain).is_ok());
        let tree = json!({"allOf": [{"properties": {"left": {"$ref": "#"}, "right": {"$ref": "#"}}}]});
        assert!(schema(&tree).is_ok());
    }

    #[test]
    fn grammars_beyond_each_limit_are_errors() {
        for (text, said) in [
            ("a".repeat(70_000), "bytes"),
            ("(".repeat(65), "parentheses"),
            ("a: b\n".repeat(2001), "lines"),
            (format!("start: A\nA: /a/{}", " & /b/".repeat(9)), "`&`"),
        ] {
            let error = lark(&text).expect_err(said).to_string();
            assert!(error.contains(said), "{error}");
        }
        for (texts, said) in [
            (vec!["a".to_owned(); 1001], "choices"),
            (vec!["a".repeat(70_000)], "bytes"),
        ] {
            let error = choice(&texts).expect_err(said).to_string();
            assert!(error.contains(said), "{error}");
        }
        let doubling: String = (0..14).map(|i| format!("T{i}: T{0} T{0}\n", i + 1)).collect();
        let hyphens = doubling.replace('T', "T-");
        let comments = r"\w?\d?".repeat(3_000);
        for wrong in [
            lark(&format!("start: T0\n{doubling}T14: \"y\"?")),
            lark(&format!("start: T-0\n{hyphens}T-14: \"y\"?")),
            // A regular expression over two lines, the second of which looks like a comment.
            lark(&format!("start: T\nT: /a\n#{comments}/")),
            regex(&r"\w?\d?".repeat(10_800)),
        ] {
            let error = wrong.expect_err("too large").to_string();
            assert!(error.contains("written out"), "{error}");
        }
        assert!(regex("[a-z]{1,64}@[a-z]{1,64}").is_ok());
        assert!(lark("start: \"a\"").is_ok());
        assert!(lark("start: %json {\"minItems\": 1000000000}").is_err());
        assert!(lark("start: %lark {\nstart: \"a\"\n}").is_err());
    }
}
