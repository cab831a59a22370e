//! Request fields that constrain the output: OpenAI's `response_format`, and the fields of vLLM and llama.cpp.

use serde::Deserialize;
use serde_json::Value;

use super::error::{ApiError, quoted};
use super::raw_json;
use crate::grammar::Grammar;

/// Constraints of vLLM's API (`structured_outputs`).
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct StructuredOutputs {
    pub(super) json: Option<Value>,
    pub(super) regex: Option<String>,
    pub(super) choice: Option<Vec<String>>,
    pub(super) grammar: Option<String>,
}

/// Output format of OpenAI's API (`response_format`).
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ResponseFormat {
    r#type: String,
    json_schema: Option<JsonSchema>,
    /// Schema, which llama.cpp's format `json_object` and `/v1/responses` have at this level.
    schema: Option<Value>,
    /// Name of the schema. Name, description and `strict` have no effect, as output always follows the schema exactly.
    #[serde(rename = "name")]
    _name: Option<String>,
    #[serde(rename = "description")]
    _description: Option<String>,
    #[serde(rename = "strict")]
    _strict: Option<bool>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct JsonSchema {
    schema: Option<Value>,
    /// Name of the schema. Name, description and `strict` have no effect, as output always follows the schema exactly.
    #[serde(rename = "name")]
    _name: Option<String>,
    #[serde(rename = "description")]
    _description: Option<String>,
    #[serde(rename = "strict")]
    _strict: Option<bool>,
}

impl ResponseFormat {
    pub(crate) fn grammar(self) -> Result<Option<Grammar>, ApiError> {
        let is_used = match self.r#type.as_str() {
            "json_object" => self.json_schema.is_none(),
            "json_schema" => self.json_schema.is_none() || self.schema.is_none(),
            "text" => self.json_schema.is_none() && self.schema.is_none(),
            _ => true,
        };
        if !is_used {
            let message = "response_format has a schema that its type does not use; leave the schema out, or use the type json_schema";
            return Err(ApiError::field("response_format", message));
        }
        match self.r#type.as_str() {
            "text" => Ok(None),
            "json_object" => Ok(Some(self.schema.map_or(Grammar::Object, Grammar::Schema))),
            "json_schema" => match self.json_schema.and_then(|s| s.schema).or(self.schema) {
                Some(schema) => Ok(Some(Grammar::Schema(schema))),
                None => Err(ApiError::field(
                    "response_format",
                    "response_format of type json_schema needs json_schema.schema",
                )),
            },
            other => Err(ApiError::field(
                "response_format",
                format!(
                    "expected the response_format text, json_object or json_schema, found {}",
                    quoted(other)
                ),
            )),
        }
    }
}

/// Returns the grammar that allows exactly the given texts.
pub(super) fn choice(choices: Vec<String>) -> Result<Grammar, ApiError> {
    if choices.is_empty() {
        return Err(ApiError::field(
            "guided_choice",
            "expected at least one choice, found none",
        ));
    }
    Ok(Grammar::Choice(choices))
}

/// Returns the grammar of a JSON schema. A string is parsed as JSON first, as in llama.cpp's API.
pub(super) fn schema(schema: Value) -> Result<Grammar, ApiError> {
    match schema {
        Value::String(text) => {
            if raw_json::has_reserved_name(text.as_bytes()) {
                return Err(ApiError::field("guided_json", "the schema has a reserved name"));
            }
            let schema = serde_json::from_str(&text);
            let wrong = |e| ApiError::field("guided_json", format!("expected a JSON schema: {e}"));
            schema.map(Grammar::Schema).map_err(wrong)
        }
        schema => Ok(Grammar::Schema(schema)),
    }
}
