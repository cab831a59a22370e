//! Checks of request fields that the server does not implement: some have no effect and are accepted, the rest are
//! refused.
//!
//! No field is ignored silently. A field of OpenAI's API, vLLM or llama.cpp is honoured, accepted if its value changes
//! nothing, or refused by its name. Any other field is unknown.

use serde_json::{Map, Value, json};

use super::error::{ApiError, quoted};

/// Returns a field that contains text, or `None` if it is missing or `null`.
///
/// # Errors
/// The field has another type.
pub(crate) fn text_of<'a>(object: &'a Value, name: &str) -> Result<Option<&'a str>, String> {
    match &object[name] {
        Value::Null => Ok(None),
        Value::String(text) => Ok(Some(text)),
        _ => Err(format!("has a {name} that is not a text")),
    }
}

/// Fields that never influence the result.
const WITHOUT_EFFECT: &[&str] = &[
    "user",
    "metadata",
    "safety_identifier",
    "prompt_cache_key",
    "prompt_cache_retention",
    "request_id",
    "timings_per_token",
    "return_progress",
    // Responses are never stored, and say so.
    "store",
];

/// Returns the values that are accepted for a field that is only partly supported, or `None` for other fields. `null`
/// is always accepted.
fn accepted(name: &str) -> Option<Vec<Value>> {
    Some(match name {
        "use_beam_search"
        | "include_stop_str_in_output"
        | "continue_final_message"
        | "echo"
        | "return_tokens_as_token_ids"
        | "post_sampling_probs"
        | "stream"
        | "background" => {
            vec![json!(false)]
        }
        "skip_special_tokens" | "spaces_between_special_tokens" | "add_special_tokens" => vec![json!(true)],
        "service_tier" => vec![json!("auto"), json!("default")],
        // All requests share the cache of prompts.
        "cache_prompt" => vec![json!(true)],
        "cache_salt" => Vec::new(),
        "suffix" => vec![json!("")],
        "modalities" => vec![json!(["text"])],
        "length_penalty" | "typical_p" | "tfs_z" => vec![json!(1), json!(1.0)],
        "mirostat" | "xtc_probability" | "dry_multiplier" | "dynatemp_range" | "n_probs" | "n_keep" | "n_indent"
        | "min_keep" | "priority" | "top_logprobs" => vec![json!(0), json!(0.0)],
        "best_of" => vec![json!(1)],
        "top_n_sigma" | "id_slot" | "t_max_predict_ms" => vec![json!(-1), json!(-1.0), json!(0)],
        "bad_words" | "allowed_token_ids" | "logits_processors" | "lora" | "functions" | "response_fields"
        | "include" => {
            vec![json!([])]
        }
        "verbosity" => vec![json!("medium")],
        "truncation" => vec![json!("disabled")],
        "function_call" => vec![json!("none")],
        "audio"
        | "prediction"
        | "web_search_options"
        | "chat_template"
        | "mm_processor_kwargs"
        | "truncate_prompt_tokens"
        | "prompt_logprobs"
        | "previous_response_id"
        | "conversation"
        | "samplers"
        | "repeat_last_n"
        | "dynatemp_exponent"
        | "mirostat_tau"
        | "mirostat_eta"
        | "xtc_threshold"
        | "dry_base"
        | "dry_allowed_length"
        | "dry_penalty_last_n"
        | "dry_sequence_breakers" => Vec::new(),
        _ => return None,
    })
}

/// Checks the fields of a body that no handler reads.
///
/// # Errors
/// The first field whose value asks for something that is not supported, or that is unknown.
pub(super) fn check(others: &Map<String, Value>) -> Result<(), ApiError> {
    for (name, value) in others {
        if value.is_null() || WITHOUT_EFFECT.contains(&name.as_str()) {
            continue;
        }
        let shown: String = name.chars().take(60).collect();
        let message = match accepted(name) {
            Some(values) if values.contains(value) => continue,
            Some(values) => match values.first() {
                Some(neutral) => format!("{shown} is supported only as {neutral}; leave it out"),
                None => format!("{shown} is not supported; leave it out"),
            },
            None => format!("unknown field '{shown}'; leave it out"),
        };
        return Err(ApiError::bad(message).of_any(shown));
    }
    Ok(())
}

/// Checks that a nested object has only allowed fields, or `null` for the rest.
///
/// # Errors
/// The first other field.
pub(super) fn only(object: &Value, allowed: &[&str]) -> Result<(), String> {
    let fields = object.as_object().into_iter().flatten();
    let mut others = fields.filter(|(name, value)| !value.is_null() && !allowed.contains(&name.as_str()));
    match others.next() {
        Some((name, _)) => Err(format!("has the unknown field {}; leave it out", quoted(name))),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checked(body: Value) -> Result<(), String> {
        let Value::Object(fields) = body else {
            panic!("no object")
        };
        check(&fields).map_err(|e| e.body().to_string())
    }

    #[test]
    fn fields_are_accepted_or_refused_by_name() {
        let neutral = json!({"user": "me", "store": false, "service_tier": "auto", "suffix": "", "length_penalty": 1.0,
            "use_beam_search": false, "audio": null, "modalities": ["text"], "mirostat": 0, "anything": null});
        assert_eq!(checked(neutral), Ok(()));
        for (body, said) in [
            (
                json!({"use_beam_search": true}),
                "use_beam_search is supported only as false",
            ),
            (json!({"audio": {"voice": "a"}}), "audio is not supported"),
            (json!({"suffix": "x"}), "suffix"),
            (json!({"cache_salt": "mine"}), "cache_salt is not supported"),
            (json!({"cache_prompt": false}), "cache_prompt is supported only as true"),
            (json!({"temprature": 1}), "unknown field 'temprature'"),
        ] {
            let error = checked(body).expect_err(said);
            assert!(error.contains(said), "{error}");
        }
        let long = Map::from_iter([("x".repeat(10_000), json!(1))]);
        assert!(check(&long).expect_err("unknown").body().to_string().len() < 400);
    }
}
