//! `/tokenize`, `/detokenize` and `/tokenizer_info`, as vLLM has them.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::response::Response;
use disco_models::text::{Chat, Text};
use serde_json::json;

use super::respond;
use super::shared::Shared;
use crate::api::{ApiError, chat_of, check_model, tokens_of};

/// A text or a chat to tokenise.
enum Prompt {
    Text { prompt: String, adds_specials: bool },
    Chat(Chat),
}

/// The tokens of a text or a chat.
pub(super) async fn tokenize(State(shared): State<Arc<Shared>>, request: Request) -> Result<Response, ApiError> {
    let known = shared.clone();
    let read = move |mut fields| {
        check_model(&mut fields, &known.name)?;
        Ok(match fields.text("prompt")? {
            Some(prompt) => Prompt::Text { prompt, adds_specials: fields.bool("add_special_tokens")?.unwrap_or(true) },
            None => Prompt::Chat(chat_of(&mut fields)?),
        })
    };
    let (prompt, room) = shared.parse(request, read).await?;
    let tokenised = move |text: &Text| match prompt {
        Prompt::Text { prompt, adds_specials } => Ok(text.encode(&prompt, adds_specials)?),
        Prompt::Chat(chat) => Ok(text.chat(&chat)?),
    };
    let tokens = shared.tokenise(room.bytes(), tokenised).await?;
    let length = shared.limits.longest();
    let object = json!({"count": tokens.len(), "max_model_len": length, "tokens": tokens});
    Ok(respond::json(StatusCode::OK, &object))
}

/// The text of tokens.
pub(super) async fn detokenize(State(shared): State<Arc<Shared>>, request: Request) -> Result<Response, ApiError> {
    let known = shared.clone();
    let read = move |mut fields| {
        check_model(&mut fields, &known.name)?;
        tokens_of(&mut fields, known.known().vocabulary)
    };
    let (tokens, room) = shared.parse(request, read).await?;
    let prompt = shared.tokenise(room.bytes(), move |text| Ok(text.decode(&tokens)?)).await?;
    Ok(respond::json(StatusCode::OK, &json!({"prompt": prompt})))
}

/// The texts of special tokens, which `lm-eval` asks for before it tokenises with the server.
pub(super) async fn info(State(shared): State<Arc<Shared>>) -> Response {
    let end = shared.known().ends.first().and_then(|end| shared.text.piece(*end));
    let end = end.map(|end| String::from_utf8_lossy(&end).into_owned());
    respond::json(StatusCode::OK, &json!({"tokenizer_class": "disco", "eos_token": end, "bos_token": null}))
}
