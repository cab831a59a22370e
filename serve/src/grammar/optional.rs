//! Limit of the names of objects that are not required.

use std::collections::HashSet;

use meganeura_core::Result;
use serde_json::{Map, Value};

use super::check::too_large;

/// Maximum number of names of an object that are not required. The parser has four items for each in a row, of at most 2,000.
const MAX_OPTIONAL: usize = 480;

/// Checks the number of names in `properties` that are not `required`.
pub(super) fn check(fields: &Map<String, Value>) -> Result<()> {
    let Some(properties) = fields.get("properties").and_then(Value::as_object) else {
        return Ok(());
    };
    let required = fields.get("required").and_then(Value::as_array).into_iter().flatten();
    let required = required.filter_map(Value::as_str);
    let required: HashSet<&str> = required.filter(|name| properties.contains_key(*name)).collect();
    let optional = properties.len() - required.len();
    if optional > MAX_OPTIONAL {
        return Err(too_large(format!(
            "expected at most {MAX_OPTIONAL} names of an object that are not required, found {optional}"
        )));
    }
    Ok(())
}
