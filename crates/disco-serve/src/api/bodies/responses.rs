//! The fields of OpenAI's responses.

use super::body::{Body, Part, obeyed, refused, required};
use super::shape::{Shape, TEXT, list};
use super::texts::{
    ALL, CHAT_PROMPT, CHATS, PROBABILITY, REFUSED_IN_CHATS, REFUSED_IN_TEXTS, TEMPERATURE, TEXTS, TOOL_CHOICE,
};

const ELSEWHERE: &str = " here: use /v1/chat/completions";

const RESPONSES: Part = Part {
    title: "Responses",
    obeyed: &[
        required(
            "input",
            Shape::Either(&[TEXT, list(&Shape::Object)]),
            "a text, or messages, calls of functions, their outputs and reasoning",
        ),
        obeyed("instructions", TEXT, "a message of the system in front"),
        obeyed("max_output_tokens", Shape::Limit { least: 1 }, "the most tokens of the text"),
        obeyed("metadata", Shape::Object, "is repeated in the response"),
        obeyed("parallel_tool_calls", Shape::Bool, "whether a text can have several calls (default: true)"),
        obeyed("reasoning", Shape::Object, "`effort`: a variable of the chat template"),
        obeyed("temperature", TEMPERATURE, "0 takes the most probable token"),
        obeyed("text", Shape::Object, "`format`: `text`, `json_object` or `json_schema`"),
        obeyed(
            "tool_choice",
            TOOL_CHOICE,
            "which calls a text has; an object of the type `function` or `allowed_tools`",
        ),
        obeyed(
            "tools",
            list(&Shape::Object),
            "tools; those of other types than `function` and `namespace` are left out",
        ),
        obeyed("top_p", PROBABILITY, "takes the most probable tokens that have this probability together"),
        obeyed("include", list(&TEXT), "must not have `message.output_text.logprobs`; other values have no effect"),
    ],
    without_effect: &["stream_options"],
    refused: &[
        refused(
            "false",
            ": the server stores nothing; send the whole input",
            &["background", "conversation", "previous_response_id", "prompt"],
        ),
        refused("\"disabled\"", "", &["truncation"]),
        refused("", ": use `parallel_tool_calls`", &["max_tool_calls"]),
        refused("false", ELSEWHERE, &["echo", "logits_digest", "logprobs"]),
        refused("0", ELSEWHERE, &["top_logprobs"]),
        refused("1", ELSEWHERE, &["n"]),
        refused(
            "",
            ELSEWHERE,
            &["max_completion_tokens", "max_tokens", "messages", "reasoning_effort", "response_format"],
        ),
    ],
};

// A field of a chat that is none of the response's own goes to the chat.
pub(crate) static RESPONSE: Body = Body {
    name: "Response",
    parts: &[&RESPONSES, &ALL, &CHAT_PROMPT, &CHATS, &TEXTS, &REFUSED_IN_CHATS, &REFUSED_IN_TEXTS],
};
