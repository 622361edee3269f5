//! The fields of Anthropic's messages.

use super::body::{Body, Field, Part, obeyed, refused, required};
use super::shape::{Shape, TEXT, list};
use super::texts::{ALL, MESSAGES, PROBABILITY, STOPS, TEMPERATURE, TOOLS, TOP_K};

const OF_MESSAGES: Part = Part {
    title: "Messages",
    obeyed: &[
        required("messages", MESSAGES, "messages with texts, `tool_use`, `tool_result` and `thinking`"),
        obeyed("system", Shape::Either(&[TEXT, list(&Shape::Object)]), "a text, or blocks of texts, in front"),
        obeyed("stop_sequences", STOPS, "texts that end the text, and are no part of it"),
        obeyed("stream", Shape::Bool, "whether the text is sent while it grows"),
        obeyed("temperature", TEMPERATURE, "0 takes the most probable token"),
        obeyed("top_p", PROBABILITY, "takes the most probable tokens that have this probability together"),
        obeyed("top_k", TOP_K, "takes so many most probable tokens; 0 and -1 take all"),
        obeyed("tools", TOOLS, "tools of the type `custom`"),
        obeyed("tool_choice", Shape::Object, "`type` `auto`, `any`, `none` or `tool`; `disable_parallel_tool_use`"),
        obeyed("thinking", Shape::Object, "`type` `enabled` or `adaptive`: the reply has the reasoning"),
        obeyed("output_config", Shape::Object, "`format`: a `json_schema`; `effort` has no effect"),
        obeyed("output_format", Shape::Object, "the same `format` by its old name"),
        obeyed("context_management", Shape::Object, "`edits` of the type `clear_thinking_20251015`"),
    ],
    without_effect: &["cache_control", "metadata", "service_tier"],
    refused: &[
        refused("[] or {}", "", &["container", "mcp_servers"]),
        refused("false", ": use /v1/chat/completions", &["logits_digest"]),
    ],
};

const MAX_TOKENS: Shape = Shape::Limit { least: 1 };
const LENGTH: Field = required("max_tokens", MAX_TOKENS, "the most tokens of the text; -1: the rest of the context");
const COUNTED_LENGTH: Field = obeyed("max_tokens", MAX_TOKENS, "is checked only");

const OF_LENGTH: Part = Part { title: "The length of a message", obeyed: &[LENGTH], without_effect: &[], refused: &[] };
const OF_COUNTED_LENGTH: Part =
    Part { title: "The length of a counted message", obeyed: &[COUNTED_LENGTH], without_effect: &[], refused: &[] };

pub(crate) static MESSAGE: Body = Body { name: "Message", parts: &[&ALL, &OF_MESSAGES, &OF_LENGTH] };
pub(crate) static COUNTED_MESSAGE: Body =
    Body { name: "CountedMessage", parts: &[&ALL, &OF_MESSAGES, &OF_COUNTED_LENGTH] };
