//! The fields of chats and completions, and of requests for their tokens.

use super::body::{Body, Field, Part, Refused, obeyed, refused, required};
use super::shape::{Shape, TEXT, list};

/// Values of the fields that constrain a text, which `structured_outputs` has, too.
pub(in crate::api) const STRING: Shape = TEXT;
/// A list of texts, one of which a text is.
pub(in crate::api) const CHOICE: Shape =
    Shape::List { least: 1, most: 1024, of: &Shape::Text { least: 1, most: usize::MAX } };
/// A schema, or its JSON text.
pub(in crate::api) const JSON_SCHEMA: Shape = Shape::Either(&[Shape::Object, TEXT, Shape::Bool]);

pub(super) const TEMPERATURE: Shape = Shape::Number { least: 0.0, most: 2.0 };
pub(super) const PROBABILITY: Shape = Shape::Number { least: 0.0, most: 1.0 };
pub(super) const TOP_K: Shape = Shape::Integer { least: -1, most: u32::MAX as i64 };
pub(super) const MESSAGES: Shape = Shape::List { least: 1, most: 4096, of: &Shape::Object };
/// More than the 128 of OpenAI, as programs that have other servers' tools send more to Anthropic's interface.
pub(super) const TOOLS: Shape = Shape::List { least: 0, most: 1024, of: &Shape::Object };
const BIASES: Shape = Shape::OfTokens { most: 1024, of: &Shape::Number { least: -100.0, most: 100.0 } };
const PENALTY: Shape = Shape::Number { least: -2.0, most: 2.0 };
const LOGPROBS: Shape = Shape::Integer { least: 0, most: 20 };
const STOP: Shape = Shape::Text { least: 1, most: 256 };
pub(super) const STOPS: Shape = Shape::Either(&[STOP, Shape::List { least: 0, most: 16, of: &STOP }]);
pub(super) const TOOL_CHOICE: Shape = Shape::Either(&[Shape::Object, Shape::Word(&["none", "auto", "required"])]);
const TOKENS: Shape = Shape::List { least: 1, most: usize::MAX, of: &Shape::Token };

pub(super) const ALL: Part = Part {
    title: "All requests",
    obeyed: &[obeyed("model", TEXT, "the name of the served model, if it is there")],
    without_effect: &[],
    refused: &[],
};

pub(super) const TEXTS: Part = Part {
    title: "Texts",
    obeyed: &[
        obeyed("n", Shape::Integer { least: 1, most: 16 }, "number of texts for each prompt"),
        obeyed("stream", Shape::Bool, "whether the texts are sent while they grow"),
        obeyed(
            "stream_options",
            Shape::Object,
            "`include_usage`: whether the last event of a stream has the usage; for streams only",
        ),
        obeyed("temperature", TEMPERATURE, "0 takes the most probable token"),
        obeyed("top_p", PROBABILITY, "takes the most probable tokens that have this probability together"),
        obeyed("top_k", TOP_K, "takes so many most probable tokens; 0 and -1 take all"),
        obeyed("min_p", PROBABILITY, "takes tokens with this part of the largest probability"),
        obeyed(
            "seed",
            Shape::Integer { least: i64::MIN, most: i64::MAX },
            "makes the random numbers of a text the same each time",
        ),
        obeyed("presence_penalty", PENALTY, "is subtracted from the logits of tokens that the text has"),
        obeyed("frequency_penalty", PENALTY, "the same, times their number"),
        obeyed(
            "repetition_penalty",
            Shape::Number { least: 0.01, most: 100.0 },
            "divides the logits of tokens that prompt or text have",
        ),
        obeyed("logit_bias", BIASES, "is added to the logits of tokens"),
        obeyed("stop", STOPS, "texts that end the text, and are no part of it"),
        obeyed("stop_token_ids", Shape::List { least: 0, most: 1024, of: &Shape::Token }, "tokens that end the text"),
        obeyed("ignore_eos", Shape::Bool, "whether the text goes on behind the model's own ends"),
        obeyed("min_tokens", Shape::Integer { least: 0, most: u32::MAX as i64 }, "before these, nothing ends the text"),
        obeyed("cache_salt", TEXT, "prefixes are shared with requests of the same salt only"),
        obeyed(
            "response_format",
            Shape::Object,
            "`type` `text`, `json_object` (with a `schema`, too) or `json_schema`",
        ),
        obeyed("structured_outputs", Shape::Object, "`json`, `json_object`, `regex`, `choice` or `grammar`"),
        obeyed("guided_json", JSON_SCHEMA, "the text is JSON of this schema"),
        obeyed("json_schema", JSON_SCHEMA, "the same"),
        obeyed("guided_regex", STRING, "the text matches this expression in whole"),
        obeyed("regex", STRING, "the same"),
        obeyed("guided_choice", CHOICE, "the text is one of these"),
        obeyed("guided_grammar", STRING, "the text is one of this grammar, in Lark's notation"),
    ],
    without_effect: &[
        "user",
        "metadata",
        "store",
        "service_tier",
        "safety_identifier",
        "prompt_cache_key",
        "prompt_cache_retention",
        "priority",
        "request_id",
    ],
    refused: &[],
};

pub(super) const REFUSED_IN_TEXTS: Part = Part {
    title: "Refused for texts",
    obeyed: &[],
    without_effect: &[],
    refused: &[
        refused(
            "",
            "",
            &[
                "adapter_id",
                "allowed_token_ids",
                "custom_logit_processor",
                "kv_transfer_params",
                "logits_processors",
                "lora_path",
                "prompt_logprobs",
                "samplers",
                "structural_tag",
                "think",
                "thinking_token_budget",
                "truncate",
                "truncate_prompt_tokens",
            ],
        ),
        refused("", ": use `guided_grammar`, in Lark's notation", &["ebnf", "grammar"]),
        refused("", ": use `max_tokens`", &["max_new_tokens", "num_predict"]),
        refused("", ": use `min_tokens`", &["min_new_tokens"]),
        refused(
            "false",
            "",
            &[
                "include_stop_str_in_output",
                "no_stop_trim",
                "return_hidden_states",
                "return_token_ids",
                "return_tokens_as_token_ids",
                "use_beam_search",
                "watermark",
            ],
        ),
        refused("false", ": use `echo` of /v1/completions", &["return_full_text"]),
        refused("true", "", &["detokenize", "skip_special_tokens"]),
        refused("true", ": use `temperature` 0", &["do_sample"]),
        refused(
            "0",
            "",
            &[
                "diversity_penalty",
                "dry_multiplier",
                "dynatemp_range",
                "epsilon_cutoff",
                "eta_cutoff",
                "mirostat",
                "n_indent",
                "no_repeat_ngram_size",
                "penalty_alpha",
                "smoothing_factor",
                "top_a",
                "xtc_probability",
            ],
        ),
        refused("0", ": use `logprobs`", &["n_probs", "top_n_tokens"]),
        refused("1", "", &["length_penalty", "num_beams", "tfs", "tfs_z", "typical_p"]),
        refused("1", ": use `repetition_penalty`", &["repeat_penalty"]),
        refused("-1 or 0", "", &["top_n_sigma"]),
        refused("-1", ": use `max_tokens`", &["n_predict"]),
        refused("\"\" or [] or {}", "", &["bad_words", "format", "lora", "options", "stop_regex"]),
    ],
};

/// What becomes the prompt of a chat.
pub(super) const CHAT_PROMPT: Part = Part {
    title: "The prompt of a chat",
    obeyed: &[
        required(
            "messages",
            MESSAGES,
            "messages with `role`, `content` (a string, or parts of the type `text`), `tool_calls`, `reasoning_content`",
        ),
        obeyed(
            "add_generation_prompt",
            Shape::Bool,
            "whether the prompt ends with the beginning of an answer (default: true)",
        ),
        obeyed("continue_final_message", Shape::Bool, "whether the text continues the last message"),
        obeyed("chat_template_kwargs", Shape::Object, "variables of the chat template"),
        obeyed("reasoning_effort", TEXT, "the variable `reasoning_effort` of the chat template"),
        obeyed("tools", TOOLS, "tools of the type `function`"),
        obeyed(
            "tool_choice",
            TOOL_CHOICE,
            "which calls a text has; an object of the type `function` or `allowed_tools`",
        ),
        obeyed("parallel_tool_calls", Shape::Bool, "whether a text can have several calls (default: true)"),
    ],
    without_effect: &[],
    refused: &[],
};

pub(super) const REFUSED_IN_CHATS: Part = Part {
    title: "Refused for chats",
    obeyed: &[],
    without_effect: &[],
    refused: &[
        refused("", "", &["audio", "chat_template", "prediction", "web_search_options"]),
        refused("", ": use a message of the role `system`", &["system"]),
        refused("false", "", &["add_special_tokens", "echo"]),
        BEST_OF,
        refused("[]", "", &["documents"]),
        refused("[]", ": use `tools`", &["functions"]),
        refused("\"none\" or \"auto\"", ": use `tool_choice`", &["function_call"]),
        refused("[\"text\"]", "", &["modalities"]),
        refused("\"medium\"", "", &["verbosity"]),
    ],
};

const BEST_OF: Refused = refused("1", ": use `n`, which returns all texts", &["best_of"]);

/// The most tokens of a text, by two names.
const fn lengths(least: i64) -> [Field; 2] {
    [
        obeyed(
            "max_completion_tokens",
            Shape::Limit { least },
            "the most tokens of a text; without it, the rest of the context",
        ),
        obeyed("max_tokens", Shape::Limit { least }, "the same by its old name"),
    ]
}

const CHAT_LENGTHS: Part =
    Part { title: "The length of an answer", obeyed: &lengths(1), without_effect: &[], refused: &[] };

pub(super) const CHATS: Part = Part {
    title: "Chats",
    obeyed: &[
        obeyed("logprobs", Shape::Bool, "whether the reply has the logprobs of the tokens"),
        obeyed("top_logprobs", LOGPROBS, "the logprobs of so many most probable tokens; needs `logprobs`"),
        obeyed("separate_reasoning", Shape::Bool, "whether reasoning is parted from the text (default: true)"),
    ],
    without_effect: &[],
    refused: &[],
};

const DIGESTS: Part = Part {
    title: "Digests of logits",
    obeyed: &[obeyed(
        "logits_digest",
        Shape::Bool,
        "whether the reply, which can be no stream, has digests of the logits; a field of Disco's own",
    )],
    without_effect: &[],
    refused: &[],
};

const COMPLETION_LENGTHS: Part =
    Part { title: "The length of a completion", obeyed: &lengths(0), without_effect: &[], refused: &[] };

const COMPLETIONS: Part = Part {
    title: "Completions",
    obeyed: &[
        required(
            "prompt",
            Shape::Either(&[
                TEXT,
                TOKENS,
                Shape::List { least: 1, most: usize::MAX, of: &Shape::Either(&[TEXT, TOKENS]) },
            ]),
            "a prompt, or several, as texts or tokens",
        ),
        obeyed(
            "add_special_tokens",
            Shape::Bool,
            "whether the tokenizer puts its special tokens around a prompt (default: true)",
        ),
        obeyed("echo", Shape::Bool, "whether a text begins with the prompt"),
        obeyed("logprobs", LOGPROBS, "the logprobs of the tokens and of so many most probable ones"),
    ],
    without_effect: &["separate_reasoning"],
    refused: &[
        refused("", "", &["prompt_embeds", "reasoning_effort"]),
        refused("", " here: use /v1/chat/completions", &["messages"]),
        BEST_OF,
        refused("\"\"", "", &["suffix"]),
    ],
};

const TOKEN_NAMES: Part = Part {
    title: "Tokens",
    obeyed: &[obeyed("return_token_strs", Shape::Bool, "whether the reply has the text of each token, too")],
    without_effect: &[],
    refused: &[],
};

const TOKENS_OF_TEXT: Part = Part {
    title: "Tokens of a text",
    obeyed: &[
        required("prompt", TEXT, "the text"),
        obeyed(
            "add_special_tokens",
            Shape::Bool,
            "whether the tokenizer puts its special tokens around the text (default: true)",
        ),
    ],
    without_effect: &[],
    refused: &[],
};

const TEXT_OF_TOKENS: Part = Part {
    title: "The text of tokens",
    obeyed: &[
        required("tokens", list(&Shape::Token), "the tokens"),
        obeyed("skip_special_tokens", Shape::Bool, "whether special tokens have no text"),
    ],
    without_effect: &[],
    refused: &[],
};

pub(crate) static CHAT: Body = Body {
    name: "Chat",
    parts: &[&ALL, &CHAT_PROMPT, &CHATS, &CHAT_LENGTHS, &TEXTS, &DIGESTS, &REFUSED_IN_CHATS, &REFUSED_IN_TEXTS],
};
pub(crate) static COMPLETION: Body =
    Body { name: "Completion", parts: &[&ALL, &COMPLETIONS, &COMPLETION_LENGTHS, &TEXTS, &DIGESTS, &REFUSED_IN_TEXTS] };
pub(crate) static TOKENIZE_CHAT: Body =
    Body { name: "TokenizeChat", parts: &[&ALL, &TOKEN_NAMES, &CHAT_PROMPT, &REFUSED_IN_CHATS, &REFUSED_IN_TEXTS] };
pub(crate) static TOKENIZE_TEXT: Body = Body { name: "TokenizeText", parts: &[&ALL, &TOKEN_NAMES, &TOKENS_OF_TEXT] };
pub(crate) static DETOKENIZE: Body = Body { name: "Detokenize", parts: &[&ALL, &TEXT_OF_TOKENS] };
