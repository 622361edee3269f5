//! Errors that a client gets.

use std::time::Duration;

use disco_models::text::TextError;
use serde_json::{Value, json};

use crate::admission::Full;
use crate::engine::{Failure, Refused};
use crate::health::State;

/// Why a client's request has no reply.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ApiError {
    #[error("the body is not a JSON object: {0}")]
    Json(serde_json::Error),
    #[error("the body is JSON, but not an object")]
    NoObject,
    #[error("`{param}` {why}")]
    Param { param: String, why: String },
    #[error("`{param}` is not supported by this server{instead}")]
    Unsupported { param: &'static str, instead: &'static str },
    #[error("the model {model:?} is not served here; the server has the model {served:?}")]
    NoModel { model: String, served: String },
    #[error("the prompt can't be tokenised: {0}")]
    Prompt(String),
    #[error("{0}")]
    Text(TextError),
    #[error(
        "the prompt has {prompt} tokens and up to {max_tokens} tokens are to be generated, but {bound} at most {limit} tokens in all"
    )]
    TooLong { prompt: usize, max_tokens: usize, bound: &'static str, limit: usize },
    #[error("the prompt has more than {limit} tokens, but {bound} at most {limit} tokens in all")]
    PromptTooLong { bound: &'static str, limit: usize },
    #[error("{0}")]
    Invalid(String),
    #[error("the model makes {0}")]
    Purpose(&'static str),
    #[error("the server has no route {0}")]
    NoRoute(String),
    #[error("the route {route} does not accept {method}")]
    Method { route: String, method: String },
    #[error("the body has more than {limit} bytes")]
    TooLarge { limit: usize },
    #[error("the bodies of other requests are being read, and all have at most {limit} bytes at a time")]
    Bodies { limit: usize },
    #[error("the request needs the header `Content-Type: application/json`")]
    MediaType,
    #[error("the body did not arrive within {} s", .0.as_secs_f64())]
    BodyTimeout(Duration),
    #[error("the texts were not complete within {} s", .0.as_secs_f64())]
    Timeout(Duration),
    #[error("the body can't be read: {0}")]
    Body(String),
    #[error("the request needs the header `Authorization: Bearer TOKEN` or `x-api-key: TOKEN` with the server's token")]
    Unauthorized,
    #[error("the server is not known as {0:?}, the request's `Host`: its option `--allowed-hosts` permits names")]
    Host(String),
    #[error("{limit} connections or more have requests, and the server takes no others")]
    Connections { limit: usize },
    #[error("{0}")]
    Full(#[from] Full),
    #[error("{0}")]
    Refused(#[from] Refused),
    #[error("the server takes no requests now: it is {}", words(*.0))]
    NotReady(State),
    #[error("the server ends before the reply is complete")]
    Shutdown,
    #[error("the reply can't be completed: {0}")]
    Failed(String),
    #[error("an internal error ended this request")]
    Panicked,
}

fn words(state: State) -> &'static str {
    match state {
        State::Starting => "loading its model",
        State::Ready => "ready",
        State::Repairing => "replacing its workers",
        State::Draining => "shutting down",
        State::Failed => "without workers after a failure",
    }
}

impl ApiError {
    /// An error of the parameter with this name.
    pub(crate) fn param(param: impl Into<String>, why: impl Into<String>) -> Self {
        Self::Param { param: param.into(), why: why.into() }
    }

    /// The same error with the parameter's name in another interface, if one of these pairs begins it.
    pub(crate) fn renamed(self, names: &[(&str, &str)]) -> Self {
        match self {
            Self::Param { param, why } => {
                let renamed = names.iter().find_map(|(from, to)| {
                    let rest = param.strip_prefix(from)?;
                    (rest.is_empty() || rest.starts_with(['.', '['])).then(|| format!("{to}{rest}"))
                });
                Self::Param { param: renamed.unwrap_or(param), why }
            }
            other => other,
        }
    }

    /// The number of the HTTP status.
    pub(crate) fn status(&self) -> u16 {
        match self {
            Self::Json(_) | Self::NoObject | Self::Param { .. } | Self::Unsupported { .. } => 400,
            Self::Prompt(_) | Self::Text(_) | Self::TooLong { .. } | Self::PromptTooLong { .. } => 400,
            Self::Invalid(_) | Self::Body(_) | Self::Purpose(_) => 400,
            Self::Unauthorized => 401,
            Self::Host(_) => 403,
            Self::NoModel { .. } | Self::NoRoute(_) => 404,
            Self::Method { .. } => 405,
            Self::BodyTimeout(_) => 408,
            Self::TooLarge { .. } => 413,
            Self::MediaType => 415,
            Self::Full(_) | Self::Bodies { .. } | Self::Refused(Refused::Full) => 429,
            Self::Failed(_) | Self::Panicked => 500,
            Self::Timeout(_) => 504,
            Self::Refused(Refused::Shutdown) | Self::NotReady(_) | Self::Shutdown | Self::Connections { .. } => 503,
        }
    }

    /// After how many seconds the client can try again.
    pub(crate) fn retry_after(&self) -> Option<u64> {
        match self.status() {
            429 => Some(1),
            503 => Some(5),
            _ => None,
        }
    }

    /// The error's kind, in OpenAI's words.
    fn kind(&self) -> &'static str {
        match self.status() {
            401 => "authentication_error",
            403 => "permission_error",
            429 => "rate_limit_error",
            500 | 504 => "server_error",
            503 => "service_unavailable_error",
            _ => "invalid_request_error",
        }
    }

    /// A name for programs.
    pub(crate) fn code(&self) -> &'static str {
        match self {
            Self::Json(_) | Self::NoObject => "invalid_json",
            Self::Param { .. } => "invalid_value",
            Self::Unsupported { .. } => "unsupported_parameter",
            Self::NoModel { .. } => "model_not_found",
            Self::Prompt(_) | Self::Text(_) => "invalid_prompt",
            Self::TooLong { .. } | Self::PromptTooLong { .. } => "context_length_exceeded",
            Self::Invalid(_) | Self::Body(_) => "invalid_request",
            Self::Purpose(_) => "unsupported_model",
            Self::NoRoute(_) => "not_found",
            Self::Method { .. } => "method_not_allowed",
            Self::TooLarge { .. } => "body_too_large",
            Self::MediaType => "unsupported_media_type",
            Self::BodyTimeout(_) | Self::Timeout(_) => "request_timeout",
            Self::Unauthorized => "invalid_api_key",
            Self::Host(_) => "host_not_allowed",
            Self::Connections { .. } => "too_many_connections",
            Self::Full(Full::Requests { .. }) | Self::Refused(Refused::Full) => "too_many_requests",
            Self::Bodies { .. } => "too_many_bytes",
            Self::Full(Full::Tokens { .. }) => "too_many_tokens",
            Self::NotReady(_) => "not_ready",
            Self::Refused(Refused::Shutdown) | Self::Shutdown => "shutting_down",
            Self::Failed(_) | Self::Panicked => "internal_error",
        }
    }

    fn parameter(&self) -> Option<&str> {
        match self {
            Self::Param { param, .. } => Some(param),
            Self::Unsupported { param, .. } => Some(param),
            Self::NoModel { .. } => Some("model"),
            _ => None,
        }
    }

    /// Anthropic's error object.
    pub(crate) fn anthropic(&self) -> Value {
        let kind = match self.status() {
            401 => "authentication_error",
            403 => "permission_error",
            404 => "not_found_error",
            413 => "request_too_large",
            429 => "rate_limit_error",
            500 => "api_error",
            503 => "overloaded_error",
            504 => "timeout_error",
            _ => "invalid_request_error",
        };
        // Clients look for these words of Anthropic's: they ask for fewer tokens then, or for a summary of the chat.
        let message = match self {
            Self::TooLong { prompt, max_tokens, limit, .. } if prompt < limit => {
                format!("input length and `max_tokens` exceed context limit: {prompt} + {max_tokens} > {limit}: {self}")
            }
            Self::TooLong { prompt, limit, .. } => {
                format!("prompt is too long: {prompt} tokens > {limit} maximum: {self}")
            }
            Self::PromptTooLong { .. } => format!("prompt is too long: {self}"),
            _ => self.to_string(),
        };
        json!({"type": "error", "error": {"type": kind, "message": message}})
    }

    /// OpenAI's error object.
    pub(crate) fn object(&self) -> Value {
        let (message, kind) = (self.to_string(), self.kind());
        json!({"error": {"message": message, "type": kind, "param": self.parameter(), "code": self.code()}})
    }
}

impl From<TextError> for ApiError {
    fn from(error: TextError) -> Self {
        match error {
            // The error has the prompt, which can be long and is nothing for logs.
            TextError::Prompt { why, .. } => Self::Prompt(why),
            TextError::Role { message, role } => Self::param(
                format!("messages[{message}].role"),
                format!("is {role:?}, which the chat template of the model leaves out"),
            ),
            error => Self::Text(error),
        }
    }
}

impl From<Failure> for ApiError {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Invalid(why) => Self::Invalid(why),
            Failure::Shutdown => Self::Shutdown,
            failure @ (Failure::Failed(_) | Failure::SlowReader) => Self::Failed(failure.to_string()),
        }
    }
}
