//! From text to tokens and back.

mod chat;
mod decoder;
mod json;
mod literal;
mod messages;
mod piece;
mod pre;
mod template;
mod vocabulary;

use std::borrow::Cow;
use std::fmt::Display;
use std::fs;
use std::io::ErrorKind;
use std::ops::Range;
use std::path::{Path, PathBuf};

pub use chat::Chat;
pub use decoder::Decoder;
use disco_candle::weights::{Weights, foreign, gguf};
use literal::Literals;
use piece::Spelling;
use serde_json::Value as Json;
use template::{ChatTemplate, Specials};
use tokenizers::Tokenizer;

/// Reasons why texts can't be turned into tokens or back.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TextError {
    /// A file beside the weights is missing or malformed.
    #[error("{path}: {why}", path = path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The reason.
        why: String,
    },
    /// The tokenizer in a GGUF file can't be used.
    #[error("the tokenizer in the GGUF file can't be used: {0}")]
    Tokenizer(String),
    /// A prompt has no tokens, or the template of the model does not accept it.
    #[error("the prompt {prompt:?} can't be tokenised: {why}")]
    Prompt {
        /// The prompt.
        prompt: String,
        /// The reason.
        why: String,
    },
    /// The template of the model does not accept a chat, or there is no template.
    #[error("the chat can't be turned into a text: {0}")]
    Chat(String),
    /// The template of the model has nothing of a message.
    #[error("message {message} of the chat has the role {role:?}, which the chat template of the model leaves out")]
    Role {
        /// The number of the message, from 0 on.
        message: usize,
        /// Its role.
        role: String,
    },
    /// Tokens are no text.
    #[error("tokens {tokens:?} can't be decoded: {why}")]
    Decode {
        /// The tokens.
        tokens: Vec<u32>,
        /// The reason.
        why: String,
    },
}

/// Bytes of a token in most texts, or fewer.
const USUAL_BYTES: usize = 8;
/// Bytes of the pieces of a prompt that are tokenised alone.
const PIECE_BYTES: usize = 16 << 10;
/// The most tokens that a piece can have more, because it is cut out of its prompt. Some tokenizers have one token for a long
/// word, and up to 100 for a shorter part of it.
const CUT_TOKENS: usize = 256;

/// A result, or the reason why there is none.
type Why<T> = Result<T, String>;

/// Names what an error is about.
trait Because<T> {
    fn because(self, what: &str) -> Why<T>;
}

impl<T, E: Display> Because<T> for Result<T, E> {
    fn because(self, what: &str) -> Why<T> {
        self.map_err(|error| format!("{what}: {error}"))
    }
}

/// The tokenizer and the chat template of a model.
pub struct Text {
    tokenizer: Tokenizer,
    template: Option<ChatTemplate>,
    specials: Specials,
    /// The tokens that end a text.
    ends: Vec<u32>,
    spelling: Spelling,
    literals: Literals,
}

impl Text {
    /// Reads tokenizer and template from a GGUF file, or from the files beside safetensors.
    ///
    /// # Errors
    /// A file is missing or malformed; the kind of tokenizer in a GGUF file is not supported.
    pub fn open(weights: &Weights) -> Result<Self, TextError> {
        match weights.gguf() {
            Some(metadata) => Self::from_gguf(metadata).map_err(TextError::Tokenizer),
            None if weights.path().is_dir() => Self::from_folder(weights.path()),
            None => Self::from_folder(weights.path().parent().unwrap_or(Path::new("."))),
        }
    }

    fn from_gguf(metadata: &gguf::Metadata) -> Why<Self> {
        let tokenizer = vocabulary::tokenizer(metadata)?;
        Self::new(tokenizer, ChatTemplate::from_gguf(metadata), template::specials_of_gguf(metadata))
    }

    fn from_folder(folder: &Path) -> Result<Self, TextError> {
        let file = folder.join("tokenizer.json");
        let error = |why: String| TextError::file(&file, why);
        let text = read(&file)?.ok_or_else(|| error("there is no such file".into()))?;
        let mut tokenizer = text.parse::<Tokenizer>().map_err(|why| error(why.to_string()))?;
        // A prompt is not cut or filled up, whatever the training of the model did, as in transformers.
        tokenizer.with_truncation(None).map_err(|why| error(why.to_string()))?.with_padding(None);
        let config = read_json(&folder.join("tokenizer_config.json"))?.unwrap_or_default();
        let template = ChatTemplate::from_folder(folder, &config)?;
        let mut text = Self::new(tokenizer, template, template::specials_of_config(&config)).map_err(error)?;
        text.ends.extend(text.special("eos_token").and_then(|end| text.tokenizer.token_to_id(end)));
        Ok(text)
    }

    fn new(tokenizer: Tokenizer, template: Option<ChatTemplate>, specials: Specials) -> Why<Self> {
        let (spelling, literals) = (Spelling::new(&tokenizer), Literals::new(&tokenizer)?);
        Ok(Self { tokenizer, template, specials, ends: Vec::new(), spelling, literals })
    }

    /// The text of a special token by its name, such as `bos_token`.
    pub fn special(&self, name: &str) -> Option<&str> {
        self.specials.iter().find(|(known, _)| *known == name).map(|(_, text)| text.as_str())
    }

    /// The tokens that end a text by `tokenizer_config.json` (`eos_token`). None for a GGUF file, whose ends
    /// [`Config::eos`](crate::Config::eos) has.
    ///
    /// They are for models whose `config.json` and `generation_config.json` name no end, whose texts would never end
    /// otherwise. The other files come first, and transformers' `generate` reads only them: the end of a tokenizer can be
    /// one of the pre-training, which a chat model also writes inside of a text.
    pub fn ends(&self) -> &[u32] {
        &self.ends
    }

    /// The tokens of a prompt: of a chat with one message, or of the text itself if it is `raw` or the model has no
    /// template. Special tokens in a message are text; in a raw prompt they are special.
    ///
    /// # Errors
    /// The template does not accept the messages; the text has no tokens.
    pub fn tokens(&self, prompt: &str, system: Option<&str>, raw: bool) -> Result<Vec<u32>, TextError> {
        let error = |why| TextError::Prompt { prompt: prompt.to_owned(), why };
        let tokens = match self.template.as_ref().filter(|_| !raw) {
            Some(template) => {
                let tokens = self.encode_chat(template, &Chat::with_prompt(prompt, system));
                let why = |error| match error {
                    TextError::Chat(why) => why,
                    error => error.to_string(),
                };
                tokens.map_err(|error| format!("{}; `--raw` continues the prompt without it", why(error)))
            }
            None => self.encoded(prompt, true),
        };
        let tokens = tokens.map_err(error)?;
        if tokens.is_empty() { Err(error("it has no tokens".into())) } else { Ok(tokens) }
    }

    /// The tokens of a chat. Special tokens in its messages, tools, documents and variables are text. If the template refuses or leaves out
    /// a message, instructions behind other messages are a part of the user's, and messages of the user in a row are one.
    ///
    /// # Errors
    /// The model has no chat template, or it does not accept the chat or leaves out a message; the text has no tokens.
    pub fn chat(&self, chat: &Chat) -> Result<Vec<u32>, TextError> {
        let template = self.template()?;
        let tokens = fitted(chat, |chat| self.encode_chat(template, chat))?;
        if tokens.is_empty() { Err(TextError::Chat("it has no tokens".into())) } else { Ok(tokens) }
    }

    /// The text of a chat, as the template of the model renders it, with messages as in [`chat`](Self::chat).
    ///
    /// # Errors
    /// The model has no chat template, or it does not accept the chat or leaves out a message.
    pub fn render(&self, chat: &Chat) -> Result<String, TextError> {
        let template = self.template()?;
        fitted(chat, |chat| {
            let text = template.render(chat, &self.specials).map_err(TextError::Chat)?;
            self.check_roles(template, chat).map(|()| text)
        })
    }

    /// The chat template for chats with or without tools.
    pub fn chat_template(&self, has_tools: bool) -> Option<&str> {
        self.template.as_ref().map(|template| template.of(has_tools))
    }

    /// Number of tokens of the tokenizer.
    pub fn vocabulary(&self) -> usize {
        self.tokenizer.get_vocab_size(true)
    }

    /// The special token of a text.
    pub fn special_token(&self, text: &str) -> Option<u32> {
        self.tokenizer.token_to_id(text).filter(|token| self.is_left_out(*token))
    }

    fn template(&self) -> Result<&ChatTemplate, TextError> {
        self.template.as_ref().ok_or_else(|| TextError::Chat("the model has no chat template".into()))
    }

    /// # Errors
    /// The template leaves out a message.
    fn check_roles(&self, template: &ChatTemplate, chat: &Chat) -> Result<(), TextError> {
        let Some(message) = template.left_out(chat, &self.specials) else { return Ok(()) };
        let role = chat.messages[message]["role"].as_str().unwrap_or_default().to_owned();
        Err(TextError::Role { message, role })
    }

    /// The tokens of a chat. The template writes the special tokens itself.
    fn encode_chat(&self, template: &ChatTemplate, chat: &Chat) -> Result<Vec<u32>, TextError> {
        let literals = &self.literals;
        let tokens = if literals.are_in(chat) {
            let marked = chat.map(&|text| literals.mark(text));
            let text = template.render(&marked, &self.specials).map_err(|why| literals.unmark(&why));
            text.and_then(|text| literals.tokens(&self.tokenizer, &text).map_err(|error| error.to_string()))
        } else {
            template.render(chat, &self.specials).and_then(|text| self.encoded(&text, false))
        };
        let tokens = tokens.map_err(TextError::Chat)?;
        self.check_roles(template, chat).map(|()| tokens)
    }

    /// Whether a prompt has more than `tokens` tokens for certain, without the time that it takes to tokenise all of it. A
    /// prompt of at most eight bytes a token is not examined, and of a longer one only the beginning that tells.
    ///
    /// # Errors
    /// The text can't be tokenised.
    pub fn exceeds(&self, prompt: &str, tokens: usize) -> Result<bool, TextError> {
        if prompt.len() <= tokens.saturating_mul(USUAL_BYTES) {
            return Ok(false);
        }
        let (mut rest, mut count) = (prompt, 0);
        while !rest.is_empty() && count <= tokens {
            let (piece, others) = rest.split_at(rest.floor_char_boundary(PIECE_BYTES));
            count += self.encode(piece, false)?.len().saturating_sub(CUT_TOKENS);
            rest = others;
        }
        Ok(count > tokens)
    }

    /// The same for a chat.
    ///
    /// # Errors
    /// The model has no chat template, or it does not accept the chat; the text can't be tokenised.
    pub fn chat_exceeds(&self, chat: &Chat, tokens: usize) -> Result<bool, TextError> {
        let bytes: usize = chat.texts().into_iter().map(str::len).sum();
        Ok(bytes > tokens.saturating_mul(USUAL_BYTES) && self.exceeds(&self.render(chat)?, tokens)?)
    }

    /// The tokens of a text, in which special tokens are special. With `adds_specials`, also those that the tokenizer puts
    /// around a text, such as the token for its beginning.
    ///
    /// # Errors
    /// The text can't be tokenised.
    pub fn encode(&self, text: &str, adds_specials: bool) -> Result<Vec<u32>, TextError> {
        self.encoded(text, adds_specials).map_err(|why| TextError::Prompt { prompt: text.to_owned(), why })
    }

    /// The tokens of two texts, with those that the tokenizer puts around and between them.
    ///
    /// # Errors
    /// They can't be tokenised.
    pub fn encode_pair(&self, first: &str, second: &str) -> Result<Vec<u32>, TextError> {
        let encoding = self.tokenizer.encode((first, second), true);
        let error = |why: tokenizers::Error| TextError::Prompt { prompt: second.to_owned(), why: why.to_string() };
        Ok(encoding.map_err(error)?.get_ids().to_vec())
    }

    fn encoded(&self, text: &str, adds_specials: bool) -> Why<Vec<u32>> {
        let encoding = self.tokenizer.encode(text, adds_specials).map_err(|error| error.to_string())?;
        Ok(encoding.get_ids().to_vec())
    }

    /// The text of tokens, without special ones. An incomplete character is U+FFFD.
    ///
    /// # Errors
    /// The decoder of the tokenizer does not accept the tokens.
    pub fn decode(&self, tokens: &[u32]) -> Result<String, TextError> {
        self.decoded(tokens, true)
    }

    /// The same with special tokens.
    ///
    /// # Errors
    /// Errors of [`decode`](Self::decode).
    pub fn decode_with_specials(&self, tokens: &[u32]) -> Result<String, TextError> {
        self.decoded(tokens, false)
    }

    fn decoded(&self, tokens: &[u32], skips_specials: bool) -> Result<String, TextError> {
        let error = |why: tokenizers::Error| TextError::Decode { tokens: tokens.to_vec(), why: why.to_string() };
        self.tokenizer.decode(tokens, skips_specials).map_err(error)
    }

    /// The places of tokens without those at both ends that the tokenizer puts around each text.
    pub fn inner(&self, tokens: &[u32]) -> Range<usize> {
        let Ok(example) = self.tokenizer.encode("a", true) else { return 0..tokens.len() };
        let is_put = |mask: &&u32| **mask == 1;
        let (ids, mask) = (example.get_ids(), example.get_special_tokens_mask());
        let (first, rest) = ids.split_at(mask.iter().take_while(is_put).count());
        let last = &rest[rest.len() - mask[first.len()..].iter().rev().take_while(is_put).count()..];
        let start = if tokens.starts_with(first) { first.len() } else { 0 };
        let is_last = tokens[start..].ends_with(last);
        start..tokens.len() - if is_last { last.len() } else { 0 }
    }

    /// The bytes of one token, which can be a part of a character; `None` if the vocabulary has no such token.
    pub fn piece(&self, token: u32) -> Option<Vec<u8>> {
        self.tokenizer.id_to_token(token).map(|piece| self.spelling.bytes(&piece))
    }

    /// Whether [`decode`](Self::decode) leaves a token out: a special one, or one that the vocabulary does not have.
    pub fn is_left_out(&self, token: u32) -> bool {
        let piece = self.tokenizer.id_to_token(token);
        piece.is_none_or(|piece| self.tokenizer.get_added_vocabulary().is_special_token(&piece))
    }
}

impl TextError {
    fn file(path: &Path, why: String) -> Self {
        Self::File { path: path.to_owned(), why }
    }
}

/// What `render` makes of a chat, or else of the chat for strict templates.
///
/// # Errors
/// The error of the chat as it is, if both fail.
fn fitted<T>(chat: &Chat, render: impl Fn(&Chat) -> Result<T, TextError>) -> Result<T, TextError> {
    render(chat).or_else(|why| match chat.strict() {
        Some(changed) => render(&changed).map_err(|_| why),
        None => Err(why),
    })
}

/// The text of a file; `None` if there is no such file.
fn read(file: &Path) -> Result<Option<String>, TextError> {
    let bytes = match fs::read(file) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(TextError::file(file, error.to_string())),
    };
    if let Some(what) = foreign(&bytes) {
        return Err(TextError::file(file, format!("it is {what}")));
    }
    String::from_utf8(bytes).map(Some).map_err(|error| TextError::file(file, error.to_string()))
}

fn read_json(file: &Path) -> Result<Option<Json>, TextError> {
    let Some(text) = read(file)? else { return Ok(None) };
    serde_json::from_str(&text).map(Some).map_err(|error| TextError::file(file, error.to_string()))
}

/// A text in the metadata of a GGUF file.
fn metadata_text<'a>(metadata: &'a gguf::Metadata, key: &str) -> Option<Cow<'a, str>> {
    metadata.get(key)?.text()
}
