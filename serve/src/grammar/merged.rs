//! Size limits of schemas after the compiler has merged `allOf` and the targets of references into them.

use std::collections::HashMap;

use meganeura_core::{Error, Result};
use serde_json::{Map, Value};

use super::check::too_large;

/// Maximum number of property names of an object, including merged ones.
const MAX_NAMES: u64 = 1_400;
/// Maximum sum, over all objects of a schema, of the squared number of names: the compiler takes about 0.6 us for each
/// unit.
const MAX_SQUARES: u64 = 2_000_000;

/// Maximum number of property names of an object with `minProperties` or `maxProperties`: the compiler copies the object for each
/// optional name. From about 40 names on, a row of its parser may have more items than it allows.
const MAX_COUNTED_NAMES: u64 = 35;
/// Estimated time to merge one alternative of a schema with another schema, in units of [`MAX_SQUARES`].
const MERGE_COST: u64 = 25;
/// The same for each name of the merged object.
const MERGE_NAME_COST: u64 = 200;
/// Maximum number of references that lead to each other.
const MAX_CHAIN: usize = 256;

/// Totals of a schema and the schemas that are merged into it.
#[derive(Clone, Copy)]
struct Totals {
    /// Number of names in `properties` and `required`.
    names: u64,
    /// Tightest bounds of a number.
    low: f64,
    high: f64,
    /// True if an exclusive bound is an integer.
    has_exclusive_integer: bool,
    /// True if the type is `integer`.
    is_integer: bool,
    /// True if the number of properties is limited.
    counts_names: bool,
    /// Number of alternatives: values of `enum`, and branches of `anyOf` and `oneOf`. The compiler merges each alternative of one
    /// schema with each alternative of the other.
    alternatives: u64,
}

impl Totals {
    const NONE: Totals = Totals {
        names: 0,
        low: f64::NEG_INFINITY,
        high: f64::INFINITY,
        has_exclusive_integer: false,
        is_integer: false,
        counts_names: false,
        alternatives: 1,
    };

    /// Returns the totals of a schema without the schemas merged into it.
    fn of(fields: &Map<String, Value>) -> Self {
        let count = |name: &str| match fields.get(name) {
            Some(Value::Object(names)) => names.len() as u64,
            Some(Value::Array(names)) => names.len() as u64,
            _ => 0,
        };
        let number = |name: &str| fields.get(name).and_then(Value::as_f64);
        let tightest = |names: [&str; 2], start: f64, choose: fn(f64, f64) -> f64| {
            names.into_iter().filter_map(number).fold(start, choose)
        };
        let is_exclusive_integer = |name: &str| number(name).is_some_and(|bound| bound.fract() == 0.0);
        Totals {
            names: count("properties") + count("required"),
            low: tightest(["minimum", "exclusiveMinimum"], f64::NEG_INFINITY, f64::max),
            high: tightest(["maximum", "exclusiveMaximum"], f64::INFINITY, f64::min),
            has_exclusive_integer: is_exclusive_integer("exclusiveMinimum") || is_exclusive_integer("exclusiveMaximum"),
            is_integer: fields.get("type").is_some_and(|kind| kind == "integer"),
            counts_names: fields.contains_key("minProperties") || fields.contains_key("maxProperties"),
            alternatives: fields
                .get("enum")
                .and_then(Value::as_array)
                .map_or(1, |values| values.len().max(1) as u64),
        }
    }

    fn merge(self, other: Totals) -> Self {
        Totals {
            names: self.names.saturating_add(other.names),
            low: self.low.max(other.low),
            high: self.high.min(other.high),
            has_exclusive_integer: self.has_exclusive_integer || other.has_exclusive_integer,
            is_integer: self.is_integer || other.is_integer,
            counts_names: self.counts_names || other.counts_names,
            alternatives: self.alternatives.saturating_mul(other.alternatives),
        }
    }
}

/// Merges schemas of one document.
pub(super) struct Merger<'s> {
    root: &'s Value,
    /// Totals of the targets of references, by reference.
    targets: HashMap<&'s str, Totals>,
    /// Sum of the squared numbers of names so far.
    squares: u64,
    /// Estimated time to merge alternatives so far, in the same unit.
    merges: u64,
    /// Number of references that lead to the current schema.
    chain: usize,
    /// True if a chain was longer than [`MAX_CHAIN`].
    is_too_deep: bool,
}

impl<'s> Merger<'s> {
    /// Returns an estimate of the time to merge the checked objects, in units of 0.6 us: the sum of the squares of their numbers of
    /// names, and a number for each alternative.
    pub(super) fn cost(&self) -> u64 {
        self.squares.saturating_add(self.merges)
    }

    pub(super) fn new(root: &'s Value) -> Self {
        Merger {
            root,
            targets: HashMap::new(),
            squares: 0,
            merges: 0,
            chain: 0,
            is_too_deep: false,
        }
    }

    /// Checks a schema of the document.
    ///
    /// # Errors
    /// [`Error::InvalidUse`]: more names than [`MAX_NAMES`], [`MAX_SQUARES`] and [`MAX_COUNTED_NAMES`] allow; a chain of more than
    /// [`MAX_CHAIN`] references; an exclusive bound that is an integer if the other bound is at most 1 away, because the compiler
    /// would allow the bound itself.
    pub(super) fn check(&mut self, schema: &'s Value) -> Result<()> {
        let Totals {
            names,
            low,
            high,
            has_exclusive_integer,
            is_integer,
            counts_names,
            alternatives,
        } = self.totals(schema);
        if self.is_too_deep {
            return Err(too_large(format!(
                "expected at most {MAX_CHAIN} references that lead to each other"
            )));
        }
        if counts_names && names > MAX_COUNTED_NAMES {
            return Err(too_large(format!(
                "expected at most {MAX_COUNTED_NAMES} names of an object with minProperties or maxProperties, found {names}"
            )));
        }
        if counts_names {
            // Measured: 50 ms for 60 names, 0.3 s for 110.
            self.merges = self.merges.saturating_add(names.pow(3) * 3 / 8);
        }
        if names > MAX_NAMES {
            return Err(too_large(format!(
                "expected at most {MAX_NAMES} names of an object with everything that allOf and references add, found {names}"
            )));
        }
        // A reference by itself is compiled once, with its target, and alternatives count by themselves.
        let merges = schema.as_object().is_some_and(|fields| {
            let has = |name: &str| fields.contains_key(name);
            has("properties") || has("required") || has("allOf") || (has("$ref") && fields.len() > 1)
        });
        if merges {
            self.squares = self.squares.saturating_add(names * names);
        }
        let of_alternatives = ["enum", "anyOf", "oneOf"];
        let combines = |fields: &Map<String, Value>| {
            of_alternatives
                .into_iter()
                .filter(|&name| fields.contains_key(name))
                .count()
                > 1
        };
        if alternatives > 1 && (merges || schema.as_object().is_some_and(combines)) {
            let each = names.saturating_mul(MERGE_NAME_COST).saturating_add(MERGE_COST);
            self.merges = self.merges.saturating_add(alternatives.saturating_mul(each));
        }
        if self.squares > MAX_SQUARES {
            let limit = MAX_SQUARES.isqrt();
            return Err(too_large(format!(
                "expected fewer names: the squares of the numbers of names of all objects, with everything that allOf and \
                 references add, exceed the square of {limit}"
            )));
        }
        if has_exclusive_integer && !is_integer && high - low <= 1.0 {
            return Err(Error::misuse(
                format!("an exclusive bound of numbers between {low} and {high} is not supported"),
                "use minimum and maximum, or bounds that are further apart",
            ));
        }
        Ok(())
    }

    /// Returns the totals of a schema. Alternatives count as if all of them applied. A recursive reference adds
    /// nothing.
    fn totals(&mut self, schema: &'s Value) -> Totals {
        let Value::Object(fields) = schema else {
            return Totals::NONE;
        };
        let mut totals = Totals::of(fields);
        for keyword in ["allOf", "anyOf", "oneOf"] {
            let branches = fields.get(keyword).and_then(Value::as_array);
            let (mut most, mut alternatives) = (0, 0_u64);
            for branch in branches.into_iter().flatten() {
                let branch = self.totals(branch);
                if keyword == "allOf" {
                    totals = totals.merge(branch);
                    continue;
                }
                most = most.max(branch.names);
                alternatives = alternatives.saturating_add(branch.alternatives);
                // Only one alternative adds its names.
                totals = totals.merge(Totals {
                    names: 0,
                    alternatives: 1,
                    ..branch
                });
            }
            totals.names = totals.names.saturating_add(most);
            totals.alternatives = totals.alternatives.saturating_mul(alternatives.max(1));
        }
        if let Some(reference) = fields.get("$ref").and_then(Value::as_str) {
            totals = totals.merge(self.target(reference));
        }
        totals
    }

    fn target(&mut self, reference: &'s str) -> Totals {
        if let Some(&totals) = self.targets.get(reference) {
            return totals;
        }
        let Some(target) = reference.strip_prefix('#').and_then(|at| self.root.pointer(at)) else {
            return Totals::NONE;
        };
        if self.chain == MAX_CHAIN {
            self.is_too_deep = true;
            return Totals::NONE;
        }
        self.targets.insert(reference, Totals::NONE);
        self.chain += 1;
        let totals = self.totals(target);
        self.chain -= 1;
        self.targets.insert(reference, totals);
        totals
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::check::schema;
    use super::*;

    #[test]
    fn exclusive_integers_next_to_the_other_bound_are_refused() {
        for wrong in [
            json!({"exclusiveMinimum": 0, "maximum": 0.001}),
            json!({"type": "number", "minimum": -1.5, "exclusiveMaximum": -1}),
            json!({"items": {"exclusiveMinimum": 1, "exclusiveMaximum": 2}}),
            json!({"exclusiveMinimum": 1, "allOf": [{"maximum": 1.5}]}),
            json!({"properties": {"a": {"maximum": 1.5, "$ref": "#/$defs/b"}}, "$defs": {"b": {"exclusiveMinimum": 1}}}),
            json!({"exclusiveMaximum": 0, "oneOf": [{"minimum": -0.5}]}),
        ] {
            let error = schema(&wrong).expect_err("not supported").to_string();
            assert!(error.contains("exclusive bound"), "{error}");
        }
        for right in [
            json!({"exclusiveMinimum": 0, "maximum": 2}),
            json!({"exclusiveMinimum": 0}),
            json!({"exclusiveMinimum": 2.5, "maximum": 2.75}),
            json!({"type": "integer", "exclusiveMinimum": 0, "maximum": 1}),
            json!({"properties": {"a": {"exclusiveMinimum": 0}, "b": {"maximum": 1}}}),
        ] {
            assert!(schema(&right).is_ok(), "{right}");
        }
    }

    #[test]
    fn names_are_counted_with_those_that_are_merged() {
        let names = |start: usize| -> Vec<String> { (start..start + 480).map(|i| format!("n{i}")).collect() };
        let object = |start: usize| {
            let properties: Map<String, Value> = names(start).into_iter().map(|name| (name, json!({}))).collect();
            json!({"properties": properties})
        };
        let required: Vec<Value> = (0..9).map(|i| json!({"required": names(i * 480)})).collect();
        let objects: Vec<Value> = (0..9).map(|i| object(i * 480)).collect();
        let definitions: Map<String, Value> = (0..9).map(|i| (format!("d{i}"), object(i * 480))).collect();
        let references: Vec<Value> = (0..9).map(|i| json!({"$ref": format!("#/$defs/d{i}")})).collect();
        for wrong in [
            json!({"allOf": required}),
            json!({"items": {"allOf": objects}}),
            json!({"$defs": definitions, "allOf": references}),
        ] {
            let error = schema(&wrong).expect_err("too large").to_string();
            assert!(error.contains("1400 names"), "{error}");
        }
        let few = |objects: &[Value]| objects[..2].to_vec();
        let two: Map<String, Value> = definitions.into_iter().take(2).collect();
        for right in [
            json!({"anyOf": few(&objects)}),
            json!({"$defs": two, "anyOf": few(&references)}),
            json!({"anyOf": (0..40).map(|_| json!({"properties": {"a": {}, "b": {}}, "required": ["a"]})).collect::<Vec<_>>()}),
        ] {
            if let Err(error) = schema(&right) {
                panic!("{error}");
            }
        }
        // Many objects that refer to many names each.
        let short: Map<String, Value> = (0..150).map(|i| (format!("n{i}"), json!({}))).collect();
        let branches: Vec<Value> = (0..100)
            .map(|i| json!({"$ref": "#/$defs/a", "required": [format!("z{i}")]}))
            .collect();
        for wrong in [
            json!({"anyOf": objects}),
            json!({"$defs": {"a": {"properties": short}}, "anyOf": branches}),
        ] {
            let error = schema(&wrong).expect_err("too large").to_string();
            assert!(error.contains("fewer names"), "{error}");
        }
    }

    #[test]
    fn long_chains_of_references_do_not_overflow_the_stack() {
        let chain = |count: usize, nested: usize| {
            let mut all: Vec<Value> = (1..=count)
                .map(|next| {
                    let last = json!({"$ref": format!("#//{next}")});
                    (0..nested).fold(last, |inner, _| json!({"allOf": [inner]}))
                })
                .collect();
            all.push(json!({}));
            json!({"$ref": "#//0", "": all})
        };
        let checked = |chained: Value| {
            // As the threads of the server.
            let thread = std::thread::Builder::new().stack_size(16 << 20);
            let thread = thread.spawn(move || schema(&chained).map_err(|e| e.to_string()));
            thread.expect("a thread").join().expect("it ends")
        };
        for (count, nested) in [(9000, 6), (5500, 12), (990, 2), (300, 20)] {
            let error = checked(chain(count, nested)).expect_err("too long");
            assert!(error.contains("expected at most"), "{error}");
        }
        checked(chain(50, 1)).expect("short enough");
    }

    #[test]
    fn alternatives_that_are_merged_cost_their_product() {
        let either = |name: char| {
            let object = |i: usize| json!({"properties": {format!("{name}{i}"): {}}});
            json!({"anyOf": [object(0), object(1)]})
        };
        let all = |count: usize| json!({"allOf": ('a'..='z').take(count).map(either).collect::<Vec<_>>()});
        let cost = |value: Value| schema(&value).expect("within the limits");
        // 1,024 objects of 10 names take 1.7 s, and 16 of 4 names some milliseconds, in units of 0.6 us.
        assert!((2_000_000..4_000_000).contains(&cost(all(10))), "{}", cost(all(10)));
        assert!(cost(all(4)) < 20_000, "{}", cost(all(4)));
        // Nothing is merged.
        assert!(cost(either('a')) < 10);
        assert!(cost(json!({"enum": vec![1; 900]})) < 10);
        let values: Vec<String> = (0..200).map(|i| i.to_string()).collect();
        assert!(cost(json!({"allOf": [{"enum": values}, {"enum": values}]})) >= 1_000_000);
    }

    #[test]
    fn objects_that_count_their_names_have_few() {
        let names = |count: usize| -> Map<String, Value> { (0..count).map(|i| (format!("n{i}"), json!({}))).collect() };
        for wrong in [
            json!({"properties": names(200), "minProperties": 1}),
            json!({"allOf": [{"properties": names(200)}, {"maxProperties": 3}]}),
        ] {
            let error = schema(&wrong).expect_err("too many").to_string();
            assert!(error.contains("minProperties or maxProperties"), "{error}");
        }
        schema(&json!({"properties": names(35), "minProperties": 1})).expect("few enough");
        schema(&json!({"properties": names(480)})).expect("not counted");
        let error = schema(&json!({"properties": names(481)}))
            .expect_err("too many")
            .to_string();
        assert!(error.contains("at most 480 names"), "{error}");
    }

    #[test]
    fn references_in_a_circle_end() {
        let circle = json!({"$ref": "#/$defs/a", "$defs": {"a": {"allOf": [{"$ref": "#/$defs/b"}]}, "b": {"$ref": "#/$defs/a"}}});
        assert!(schema(&circle).is_ok());
    }
}
