//! Requests for texts, with all checks that need no tokenizer.

use disco_models::serving::Params;
use disco_models::text::Chat;
use serde_json::Value;
use sha2::{Digest as _, Sha256};

use super::fields::token;
use super::grammar::{self, Asked};
use super::known::Known;
use super::messages::chat_of;
use super::sampling::{params, stops};
use super::{ApiError, Body, CHAT, COMPLETION, Fields, Object};
use crate::calls::Tools;

/// Which interface a client uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Chat,
    Completion,
}

/// A request for texts.
#[derive(Debug)]
pub(crate) struct Order {
    pub(crate) prompts: Vec<Prompt>,
    /// Number of texts for each prompt.
    pub(crate) choices: u32,
    /// Without it, the rest of the context is taken.
    pub(crate) max_tokens: Option<usize>,
    /// Without the seed.
    pub(crate) params: Params,
    pub(crate) seed: Option<u64>,
    pub(crate) stops: Vec<String>,
    /// The tools that the model can call.
    pub(crate) tools: Option<Tools>,
    /// Whether a chat's answers are parted into reasoning and text.
    pub(crate) separates_reasoning: bool,
    /// What constrains the texts.
    pub(crate) grammar: Option<Asked>,
    /// Whether the prompt is the beginning of the text.
    pub(crate) echoes: bool,
    pub(crate) streams: bool,
    /// Whether a stream ends with the usage.
    pub(crate) tells_usage: bool,
    /// See [`Request::salt`](crate::engine::Request::salt).
    pub(crate) salt: u64,
}

/// The beginning that a text continues.
#[derive(Debug)]
pub(crate) enum Prompt {
    Chat(Chat),
    Text {
        text: String,
        /// Whether the tokenizer puts its special tokens around the text.
        adds_specials: bool,
    },
    Tokens(Vec<u32>),
}

impl Kind {
    /// The fields of its requests.
    pub(crate) fn body(self) -> &'static Body {
        match self {
            Self::Chat => &CHAT,
            Self::Completion => &COMPLETION,
        }
    }
}

impl Order {
    /// # Errors
    /// A field has a value that it can't have, or asks for something that is not supported.
    pub(crate) fn parse(kind: Kind, object: Object, model: Known<'_>) -> Result<Self, ApiError> {
        let fields = &mut object.fields(kind.body())?;
        check_model(fields, model.name)?;
        let (prompts, tools) = match kind {
            Kind::Chat => {
                let (chat, tools) = chat_of(fields)?;
                (vec![Prompt::Chat(chat)], tools)
            }
            Kind::Completion => (prompts(fields, model.vocabulary)?, None),
        };
        let mut params = params(fields, model)?;
        // The bits of a negative seed are a seed as well.
        let seed = fields.integer("seed")?.map(i64::cast_unsigned);
        let echoes = kind == Kind::Completion && fields.bool("echo")?.unwrap_or(false);
        params.logprobs = match kind {
            Kind::Chat => chat_logprobs(fields)?,
            Kind::Completion => fields.integer("logprobs")?.map(|count| count as u32),
        };
        params.prompt_logprobs = params.logprobs.filter(|_| echoes);
        let max_tokens = max_tokens(fields)?;
        if max_tokens.is_some_and(|most| params.min_tokens as usize > most) {
            return Err(ApiError::param("min_tokens", "is larger than the most tokens to generate"));
        }
        let choices = fields.integer("n")?.unwrap_or(1) as u32;
        let streams = fields.bool("stream")?.unwrap_or(false);
        params.digests_logits = fields.bool("logits_digest")?.unwrap_or(false);
        if params.digests_logits && streams {
            return Err(ApiError::param("logits_digest", "is for replies that are no streams"));
        }
        if params.digests_logits && !model.is_on_the_host {
            let why = "is for workers on the host: the bits of logits of devices may depend on the other requests";
            return Err(ApiError::param("logits_digest", why));
        }
        let options = fields.object("stream_options")?;
        if options.is_some() && !streams {
            return Err(ApiError::param("stream_options", "is only for streams: set `stream`"));
        }
        let tells_usage = match options.unwrap_or_default().get("include_usage") {
            None | Some(Value::Null) => false,
            Some(Value::Bool(tells)) => *tells,
            Some(_) => return Err(ApiError::param("stream_options.include_usage", "must be a boolean")),
        };
        let salt = fields.text("cache_salt")?.map_or(0, |salt| salt_of(&salt));
        let stops = stops(fields)?;
        let separates_reasoning = kind == Kind::Chat && fields.bool("separate_reasoning")?.unwrap_or(true);
        let grammar = grammar::asked(fields)?;
        let demanded = tools.as_ref().filter(|tools| tools.constrain()).map(|_| "tools");
        let constrains = grammar.as_ref().map(|asked| asked.param.as_str()).or(demanded);
        if let Some(param) = constrains.filter(|_| !params.ends.iter().any(|end| model.ends.contains(end))) {
            return Err(ApiError::param(param, "needs an end of the text: it can't hold with `ignore_eos`"));
        }
        Ok(Self {
            prompts,
            choices,
            max_tokens,
            params,
            seed,
            stops,
            tools,
            separates_reasoning,
            grammar,
            echoes,
            streams,
            tells_usage,
            salt,
        })
    }

    /// Number of texts for all prompts.
    pub(crate) fn texts(&self) -> usize {
        self.prompts.len().saturating_mul(self.choices as usize)
    }

    /// An upper bound of the tokens of all prompts, as often as they have texts. It is exact enough for admission: a
    /// template that writes long texts of its own is found when the chat is tokenised.
    pub(crate) fn prompt_bound(&self, longest: usize) -> usize {
        let bound = |prompt: &Prompt| match prompt {
            Prompt::Chat(chat) => {
                let all = chat.messages.iter().chain(chat.tools.iter().flatten());
                all.map(|message| message.to_string().len() + 16).sum::<usize>() + 64
            }
            // A token has a byte or more.
            Prompt::Text { text, .. } => text.len() + 2,
            Prompt::Tokens(tokens) => tokens.len(),
        };
        // Longer prompts are refused once they are tokenised.
        let bound = |prompt| bound(prompt).min(longest + 1);
        self.prompts.iter().map(bound).sum::<usize>().saturating_mul(self.choices as usize)
    }
}

/// # Errors
/// The request is for another model.
pub(crate) fn check_model(fields: &mut Fields, served: &str) -> Result<(), ApiError> {
    match fields.text("model")? {
        Some(model) if model != served => Err(ApiError::NoModel { model, served: served.to_owned() }),
        _ => Ok(()),
    }
}

/// The field `prompt`: a text, texts, tokens, or lists of tokens.
fn prompts(fields: &mut Fields, vocabulary: usize) -> Result<Vec<Prompt>, ApiError> {
    const NAME: &str = "prompt";
    let adds_specials = fields.bool("add_special_tokens")?.unwrap_or(true);
    let tokens = |values: &[Value]| values.iter().map(|value| token(NAME, value, vocabulary)).collect::<Result<_, _>>();
    let one = |value: Value| match value {
        Value::Array(values) => Ok(Prompt::Tokens(tokens(&values)?)),
        text => Ok(Prompt::Text { text: text.as_str().unwrap_or_default().to_owned(), adds_specials }),
    };
    match fields.value(NAME)?.unwrap_or_default() {
        Value::Array(values) if values.first().is_some_and(Value::is_number) => {
            Ok(vec![Prompt::Tokens(tokens(&values)?)])
        }
        Value::Array(values) => values.into_iter().map(one).collect(),
        value => Ok(vec![one(value)?]),
    }
}

/// The field `tokens` of a request for their text.
///
/// # Errors
/// It is no list of tokens of the model.
pub(crate) fn tokens_of(fields: &mut Fields, vocabulary: usize) -> Result<Vec<u32>, ApiError> {
    const NAME: &str = "tokens";
    fields.list(NAME)?.iter().map(|value| token(NAME, value, vocabulary)).collect()
}

fn chat_logprobs(fields: &mut Fields) -> Result<Option<u32>, ApiError> {
    let is_wanted = fields.bool("logprobs")?.unwrap_or(false);
    let top = fields.integer("top_logprobs")?;
    match top {
        Some(top) if top > 0 && !is_wanted => Err(ApiError::param("top_logprobs", "needs `logprobs` to be true")),
        top => Ok(is_wanted.then(|| top.unwrap_or(0) as u32)),
    }
}

/// The field `max_completion_tokens`, or `max_tokens` by its old name. A completion can have 0, for the logprobs of its
/// prompt.
fn max_tokens(fields: &mut Fields) -> Result<Option<usize>, ApiError> {
    let old = fields.count("max_tokens")?;
    Ok(fields.count("max_completion_tokens")?.or(old))
}

fn salt_of(salt: &str) -> u64 {
    let digest = Sha256::digest(salt);
    let mut bytes = [0; 8];
    bytes.copy_from_slice(&digest[..8]);
    u64::from_le_bytes(bytes)
}
