//! From prompts to tokens.

use std::sync::Arc;

use disco_models::text::Text;

use super::Limits;
use crate::api::{ApiError, Prompt};

/// A prompt that was tokenised.
pub(super) struct Tokenised {
    pub(super) tokens: Arc<[u32]>,
    /// The prompt's text, if it is the beginning of the reply.
    pub(super) echo: Option<String>,
}

/// The tokens of prompts.
///
/// # Errors
/// A prompt has no tokens, or more than the context; the template of the model does not accept a chat.
pub(super) fn tokenised(
    prompts: Vec<Prompt>,
    echoes: bool,
    text: &Text,
    limits: &Limits,
) -> Result<Vec<Tokenised>, ApiError> {
    prompts.into_iter().map(|prompt| one(prompt, echoes, text, limits)).collect()
}

fn one(prompt: Prompt, echoes: bool, text: &Text, limits: &Limits) -> Result<Tokenised, ApiError> {
    let limit = limits.longest();
    let is_too_long = match &prompt {
        Prompt::Chat(chat) => text.chat_exceeds(chat, limit)?,
        Prompt::Text { text: prompt, .. } => text.exceeds(prompt, limit)?,
        // Its number of tokens is known, and the error names it.
        Prompt::Tokens(_) => false,
    };
    if is_too_long {
        return Err(ApiError::PromptTooLong { bound: bound(limits), limit });
    }
    let written = match &prompt {
        Prompt::Text { text, .. } if echoes => Some(text.clone()),
        _ => None,
    };
    let tokens = tokens(prompt, text)?;
    if tokens.is_empty() {
        return Err(ApiError::param("prompt", "has no tokens"));
    }
    let echo = match written {
        None if echoes => Some(text.decode_with_specials(&tokens[text.inner(&tokens)])?),
        written => written,
    };
    Ok(Tokenised { tokens: tokens.into(), echo })
}

/// The tokens of a prompt.
///
/// # Errors
/// The template of the model does not accept the chat; the text can't be tokenised.
pub(super) fn tokens(prompt: Prompt, text: &Text) -> Result<Vec<u32>, ApiError> {
    Ok(match prompt {
        Prompt::Chat(chat) => text.chat(&chat)?,
        Prompt::Text { text: prompt, adds_specials } => text.encode(&prompt, adds_specials)?,
        Prompt::Tokens(tokens) => tokens,
    })
}

/// The most tokens of a text after a prompt of `prompt` tokens: as many as the client wants, else the rest of the context.
///
/// # Errors
/// They do not fit into the context or the cache.
pub(super) fn most_tokens(prompt: usize, wanted: Option<usize>, limits: &Limits) -> Result<usize, ApiError> {
    let limit = limits.longest();
    let max_tokens = wanted.unwrap_or_else(|| limit.saturating_sub(prompt).max(1));
    if prompt.saturating_add(max_tokens) <= limit {
        return Ok(max_tokens);
    }
    Err(ApiError::TooLong { prompt, max_tokens, bound: bound(limits), limit })
}

/// What limits a prompt and its text.
fn bound(limits: &Limits) -> &'static str {
    let is_context = limits.context <= limits.cache_tokens;
    if is_context { "the context of the model has" } else { "the cache of the server has" }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_fits_into_the_context_and_the_cache() {
        let limits = Limits::new(100, 80);
        assert_eq!(most_tokens(30, Some(50), &limits).unwrap(), 50);
        assert_eq!(most_tokens(30, None, &limits).unwrap(), 50);
        assert_eq!(most_tokens(80, Some(0), &limits).unwrap(), 0);
        for (prompt, wanted) in [(30, Some(51)), (80, None), (usize::MAX, Some(usize::MAX))] {
            let error = most_tokens(prompt, wanted, &limits).unwrap_err().to_string();
            assert!(error.contains(&prompt.to_string()) && error.contains("cache") && error.contains("80"), "{error}");
        }
        assert!(most_tokens(101, None, &Limits::new(100, 1000)).unwrap_err().to_string().contains("context"));
    }
}
