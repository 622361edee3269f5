//! Known parameters that the server does not support, of OpenAI and of other servers with its interface (vLLM, SGLang, TGI,
//! llama.cpp, Ollama). Each one changes the reply, so ignoring it would give the client another reply than the one it asked for.
//!
//! The guide has the same tables (docs/serving.md), which a test compares with these.

use serde_json::Value;

use super::{ApiError, Fields};

/// Parameters that have the same values without an effect.
struct Group {
    /// These values, as JSON with ` or ` between them.
    harmless: &'static str,
    names: &'static [&'static str],
}

const BOTH: &[Group] = &[
    Group {
        harmless: "",
        names: &[
            "adapter_id",
            "allowed_token_ids",
            "custom_logit_processor",
            "ebnf",
            "grammar",
            "kv_transfer_params",
            "logits_processors",
            "lora_path",
            "max_new_tokens",
            "min_new_tokens",
            "num_predict",
            "prompt_logprobs",
            "samplers",
            "structural_tag",
            "think",
            "thinking_token_budget",
            "truncate",
            "truncate_prompt_tokens",
        ],
    },
    Group {
        harmless: "false",
        names: &[
            "include_stop_str_in_output",
            "no_stop_trim",
            "return_full_text",
            "return_hidden_states",
            "return_token_ids",
            "return_tokens_as_token_ids",
            "use_beam_search",
            "watermark",
        ],
    },
    Group { harmless: "true", names: &["detokenize", "do_sample", "skip_special_tokens"] },
    Group {
        harmless: "0",
        names: &[
            "diversity_penalty",
            "dry_multiplier",
            "dynatemp_range",
            "epsilon_cutoff",
            "eta_cutoff",
            "mirostat",
            "n_indent",
            "n_probs",
            "no_repeat_ngram_size",
            "penalty_alpha",
            "smoothing_factor",
            "top_a",
            "top_n_tokens",
            "xtc_probability",
        ],
    },
    Group { harmless: "1", names: &["length_penalty", "num_beams", "repeat_penalty", "tfs", "tfs_z", "typical_p"] },
    Group { harmless: "-1 or 0", names: &["top_n_sigma"] },
    Group { harmless: "-1", names: &["n_predict"] },
    Group { harmless: "\"\" or [] or {}", names: &["bad_words", "format", "lora", "options", "stop_regex"] },
];

const CHAT: &[Group] = &[
    Group { harmless: "", names: &["audio", "chat_template", "prediction", "system", "web_search_options"] },
    Group { harmless: "false", names: &["add_special_tokens", "echo"] },
    Group { harmless: "1", names: &["best_of"] },
    Group { harmless: "[]", names: &["documents", "functions"] },
    Group { harmless: "\"none\" or \"auto\"", names: &["function_call"] },
    Group { harmless: "[\"text\"]", names: &["modalities"] },
    Group { harmless: "\"medium\"", names: &["verbosity"] },
];

const COMPLETION: &[Group] = &[
    Group { harmless: "", names: &["messages", "prompt_embeds", "reasoning_effort"] },
    Group { harmless: "1", names: &["best_of"] },
    Group { harmless: "\"\"", names: &["suffix"] },
];

/// Advice for the client, which completes the sentence of the error.
const INSTEAD: &[(&str, &str)] = &[
    ("best_of", ": use `n`, which returns all texts"),
    ("do_sample", ": use `temperature` 0"),
    ("ebnf", ": use `guided_grammar`, in Lark's notation"),
    ("grammar", ": use `guided_grammar`, in Lark's notation"),
    ("max_new_tokens", ": use `max_tokens`"),
    ("messages", " here: use /v1/chat/completions"),
    ("min_new_tokens", ": use `min_tokens`"),
    ("function_call", ": use `tool_choice`"),
    ("functions", ": use `tools`"),
    ("n_predict", ": use `max_tokens`"),
    ("n_probs", ": use `logprobs`"),
    ("num_predict", ": use `max_tokens`"),
    ("repeat_penalty", ": use `repetition_penalty`"),
    ("return_full_text", ": use `echo` of /v1/completions"),
    ("system", ": use a message of the role `system`"),
    ("top_n_tokens", ": use `logprobs`"),
];

impl Group {
    fn is_harmless(&self, value: &Value) -> bool {
        let number = value.as_f64();
        self.values().any(|harmless| harmless == *value || (number.is_some() && number == harmless.as_f64()))
    }

    fn values(&self) -> impl Iterator<Item = Value> {
        self.harmless.split(" or ").filter_map(|value| serde_json::from_str(value).ok())
    }
}

/// # Errors
/// A field of a chat asks for something that is not supported.
pub(crate) fn refuse_in_chat(fields: &mut Fields) -> Result<(), ApiError> {
    // The chat goes without functions that the model may not call.
    if fields.is("function_call", "none") {
        fields.take("functions");
    }
    refuse(fields, CHAT).and_then(|()| refuse(fields, BOTH))
}

/// # Errors
/// A field of a completion asks for something that is not supported.
pub(super) fn refuse_in_completion(fields: &mut Fields) -> Result<(), ApiError> {
    refuse(fields, COMPLETION).and_then(|()| refuse(fields, BOTH))
}

fn refuse(fields: &mut Fields, groups: &[Group]) -> Result<(), ApiError> {
    for group in groups {
        for &param in group.names {
            if fields.take(param).is_some_and(|value| !group.is_harmless(&value)) {
                let instead = INSTEAD.iter().find(|(name, _)| *name == param).map_or("", |(_, instead)| instead);
                return Err(ApiError::Unsupported { param, instead });
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use serde_json::json;

    use super::*;

    type Refuse = fn(&mut Fields) -> Result<(), ApiError>;

    /// The tables, the requests that each one is for, and the functions that use it.
    fn tables() -> [(&'static str, &'static [Group], Vec<Refuse>); 3] {
        [
            ("all", BOTH, vec![refuse_in_chat, refuse_in_completion]),
            ("chats", CHAT, vec![refuse_in_chat]),
            ("completions", COMPLETION, vec![refuse_in_completion]),
        ]
    }

    fn refused(refuse: Refuse, name: &str, value: &Value) -> Option<String> {
        let mut fields = Fields::parse(json!({name: value}).to_string().as_bytes()).unwrap();
        refuse(&mut fields).err().map(|error| error.object()["error"]["param"].as_str().unwrap().to_owned())
    }

    #[test]
    fn each_field_is_refused_by_its_name_unless_its_value_changes_nothing() {
        let values = json!([true, false, 0.5, 2, "x", "json", ["x"], {"x": 1}]);
        for (_, groups, functions) in tables() {
            for (group, refuse) in groups.iter().flat_map(|group| functions.iter().map(move |refuse| (group, *refuse)))
            {
                let harmless: Vec<Value> = group.values().collect();
                assert_eq!(harmless.is_empty(), group.harmless.is_empty());
                for name in group.names {
                    for value in &harmless {
                        assert_eq!(refused(refuse, name, value), None, "{name}: {value}");
                    }
                    for value in values.as_array().unwrap().iter().filter(|value| !harmless.contains(value)) {
                        assert_eq!(refused(refuse, name, value).as_deref(), Some(*name), "{name}: {value}");
                    }
                    assert_eq!(refused(refuse, name, &Value::Null), None, "{name}");
                }
            }
        }
    }

    #[test]
    fn advice_is_for_fields_of_the_tables() {
        let names: Vec<_> =
            tables().into_iter().flat_map(|(_, groups, _)| groups).flat_map(|group| group.names).collect();
        for (name, _) in INSTEAD {
            assert!(names.contains(&name), "{name}");
        }
    }

    #[test]
    fn the_guide_has_the_same_tables() {
        let mut table = String::from("| requests | fields | accepted values |\n|---|---|---|\n");
        for (requests, groups, _) in tables() {
            for Group { harmless, names } in groups {
                let names: Vec<_> = names.iter().map(|name| format!("`{name}`")).collect();
                let values = harmless.split(" or ").filter(|value| !value.is_empty());
                let values: Vec<_> = values.map(|value| format!("`{value}`")).collect();
                table += &format!("| {requests} | {} | {} |\n", names.join(", "), values.join(", "));
            }
        }
        let guide = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/serving.md");
        let guide = fs::read_to_string(guide).unwrap();
        assert!(guide.contains(&table), "docs/serving.md needs this table:\n{table}");
    }
}
