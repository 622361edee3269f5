//! `/tokenize`, `/detokenize` and `/tokenizer_info`, as vLLM has them.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::response::Response;
use disco_models::text::Text;
use serde_json::json;

use super::prompts::tokens;
use super::respond;
use super::shared::Shared;
use crate::api::{
    ApiError, DETOKENIZE, Message, Object, Prompt, TOKENIZE_CHAT, TOKENIZE_TEXT, chat_of, check_model, name_of_token,
    tokens_of,
};

/// The tokens of a text or a chat.
pub(super) async fn tokenize(State(shared): State<Arc<Shared>>, request: Request) -> Result<Response, ApiError> {
    let known = shared.clone();
    let read = move |object: Object| {
        let is_text = object.has("prompt");
        let mut fields = object.fields(if is_text { &TOKENIZE_TEXT } else { &TOKENIZE_CHAT })?;
        check_model(&mut fields, &known.name)?;
        let names_tokens = fields.bool("return_token_strs")?.unwrap_or(false);
        if !is_text {
            return Ok((Prompt::Chat(chat_of(&mut fields)?.0), names_tokens));
        }
        let text = fields.text("prompt")?.unwrap_or_default();
        let adds_specials = fields.bool("add_special_tokens")?.unwrap_or(true);
        Ok((Prompt::Text { text, adds_specials }, names_tokens))
    };
    let ((prompt, names_tokens), room) = shared.parse(request, read).await?;
    let length = shared.limits.longest();
    let tokenised = move |text: &Text| {
        let tokens = tokens(prompt, text)?;
        let names: Option<Vec<_>> =
            names_tokens.then(|| tokens.iter().map(|token| name_of_token(*token, text)).collect());
        Ok(json!({"count": tokens.len(), "max_model_len": length, "tokens": tokens, "token_strs": names}))
    };
    Ok(respond::json(StatusCode::OK, &shared.tokenise(room.bytes(), tokenised).await?))
}

/// The number of tokens of a message's prompt.
pub(super) async fn count(State(shared): State<Arc<Shared>>, request: Request) -> Result<Response, ApiError> {
    let known = shared.clone();
    let read = move |object| Message::parse(object, true, known.known());
    let (Message { order, .. }, room) = shared.parse(request, read).await?;
    let count = move |text: &Text| {
        order.prompts.into_iter().map(|prompt| Ok(tokens(prompt, text)?.len())).sum::<Result<usize, ApiError>>()
    };
    let count = shared.tokenise(room.bytes(), count).await?;
    Ok(respond::json(StatusCode::OK, &json!({"input_tokens": count})))
}

/// The text of tokens, also of special ones.
pub(super) async fn detokenize(State(shared): State<Arc<Shared>>, request: Request) -> Result<Response, ApiError> {
    let known = shared.clone();
    let read = move |object: Object| {
        let mut fields = object.fields(&DETOKENIZE)?;
        check_model(&mut fields, &known.name)?;
        let skips_specials = fields.bool("skip_special_tokens")?.unwrap_or(false);
        Ok((tokens_of(&mut fields, known.known().vocabulary)?, skips_specials))
    };
    let ((tokens, skips_specials), room) = shared.parse(request, read).await?;
    let decode = move |text: &Text| {
        let decoded = if skips_specials { text.decode(&tokens) } else { text.decode_with_specials(&tokens) };
        Ok(decoded?)
    };
    let prompt = shared.tokenise(room.bytes(), decode).await?;
    Ok(respond::json(StatusCode::OK, &json!({"prompt": prompt})))
}

/// The texts of special tokens, which `lm-eval` asks for before it tokenises with the server.
pub(super) async fn info(State(shared): State<Arc<Shared>>) -> Response {
    let text = &shared.text;
    // A model whose tokenizer has no end may have one itself.
    let end = || Some(String::from_utf8_lossy(&text.piece(*shared.known().ends.first()?)?).into_owned());
    let end = text.special("eos_token").map(str::to_owned).or_else(end);
    let [begin, pad] = ["bos_token", "pad_token"].map(|name| text.special(name));
    let object = json!({"tokenizer_class": "disco", "eos_token": end, "bos_token": begin, "pad_token": pad});
    respond::json(StatusCode::OK, &object)
}
