//! From text to tokens and back.

mod literal;
mod pre;
mod template;
mod vocabulary;

use std::fs;
use std::io::ErrorKind;
use std::path::Path;

use anyhow::{Context, Result, anyhow, bail, ensure};
use candle_core::quantized::gguf_file::{Content, Value};
use disco_candle::weights::{Weights, foreign};
use literal::Literals;
use serde_json::Value as Json;
use template::ChatTemplate;
use tokenizers::Tokenizer;

/// The tokenizer and the chat template of a model.
pub(crate) struct Text {
    tokenizer: Tokenizer,
    template: Option<ChatTemplate>,
}

impl Text {
    /// Reads tokenizer and template from a GGUF file, or from the files beside safetensors.
    ///
    /// # Errors
    /// A file is missing or malformed; the kind of tokenizer in a GGUF file is not supported.
    pub(crate) fn open(weights: &Weights) -> Result<Self> {
        match weights.gguf() {
            Some(content) => Self::from_gguf(content),
            None if weights.path().is_dir() => Self::from_folder(weights.path()),
            None => Self::from_folder(weights.path().parent().unwrap_or(Path::new("."))),
        }
    }

    fn from_gguf(content: &Content) -> Result<Self> {
        let tokenizer = vocabulary::tokenizer(content).context("the tokenizer in the GGUF file can't be used")?;
        let specials = ["tokenizer.ggml.bos_token_id", "tokenizer.ggml.eos_token_id"];
        let specials = specials.map(|key| vocabulary::special(content, key));
        Ok(Self { tokenizer, template: ChatTemplate::from_gguf(content, specials) })
    }

    fn from_folder(folder: &Path) -> Result<Self> {
        let file = folder.join("tokenizer.json");
        let text = read(&file)?.with_context(|| format!("{}: there is no such file", file.display()))?;
        let mut tokenizer = text.parse::<Tokenizer>().map_err(|error| anyhow!("{}: {error}", file.display()))?;
        // A prompt is not cut or filled up, whatever the training of the model did, as in transformers.
        tokenizer.with_truncation(None).map_err(|error| anyhow!("{error}"))?.with_padding(None);
        Ok(Self { tokenizer, template: ChatTemplate::from_folder(folder)? })
    }

    /// The tokens of a prompt: of a chat with one message, or of the text itself if it is `raw` or the model has no
    /// template. Special tokens in a message are text; in a raw prompt they are special.
    ///
    /// # Errors
    /// The template does not accept the messages; the text has no tokens.
    pub(crate) fn tokens(&self, prompt: &str, system: Option<&str>, raw: bool) -> Result<Vec<u32>> {
        let tokens = match self.template.as_ref().filter(|_| !raw) {
            // A template writes the special tokens itself.
            Some(template) => match Literals::new(&self.tokenizer, &[prompt, system.unwrap_or_default()]) {
                None => self.encode(&template.render(system, prompt)?, false),
                Some(literals) => {
                    let system = system.map(|system| literals.mark(system));
                    literals.tokens(&self.tokenizer, &template.render(system.as_deref(), &literals.mark(prompt))?)
                }
            },
            None => self.encode(prompt, true),
        };
        let tokens = tokens.with_context(|| format!("the prompt {prompt:?} can't be tokenised"))?;
        ensure!(!tokens.is_empty(), "the prompt {prompt:?} has no tokens");
        Ok(tokens)
    }

    fn encode(&self, text: &str, adds_specials: bool) -> Result<Vec<u32>> {
        let encoding = self.tokenizer.encode(text, adds_specials).map_err(|error| anyhow!("{error}"))?;
        Ok(encoding.get_ids().to_vec())
    }

    fn decode(&self, tokens: &[u32]) -> Result<String> {
        self.tokenizer.decode(tokens, true).map_err(|error| anyhow!("tokens {tokens:?} can't be decoded: {error}"))
    }
}

/// The text of a file; `None` if there is no such file.
fn read(file: &Path) -> Result<Option<String>> {
    let bytes = match fs::read(file) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error).with_context(|| file.display().to_string()),
    };
    if let Some(what) = foreign(&bytes) {
        bail!("`{}` is {what}", file.display());
    }
    String::from_utf8(bytes).map(Some).with_context(|| file.display().to_string())
}

fn read_json(file: &Path) -> Result<Option<Json>> {
    let Some(text) = read(file)? else { return Ok(None) };
    serde_json::from_str(&text).map(Some).with_context(|| file.display().to_string())
}

/// A text in the metadata of a GGUF file.
fn metadata_text<'a>(content: &'a Content, key: &str) -> Option<&'a str> {
    match content.metadata.get(key) {
        Some(Value::String(text)) => Some(text),
        _ => None,
    }
}

/// The text of a growing sequence of tokens. A character of several bytes may have several tokens: it comes with its
/// last one.
#[derive(Debug, Default)]
pub(crate) struct Decoder {
    tokens: Vec<u32>,
    /// Tokens before this one do not influence the text of later ones.
    context: usize,
    /// Tokens before this one have been returned as text.
    done: usize,
}

impl Decoder {
    /// Adds a token. Returns the text that is complete with it.
    ///
    /// # Errors
    /// The tokens can't be decoded.
    pub(crate) fn push(&mut self, token: u32, text: &Text) -> Result<String> {
        self.tokens.push(token);
        let old = text.decode(&self.tokens[self.context..self.done])?;
        let all = text.decode(&self.tokens[self.context..])?;
        // The decoder writes this character for an incomplete one.
        if all.ends_with('\u{fffd}') || all.len() <= old.len() {
            return Ok(String::new());
        }
        let new = all.get(old.len()..).unwrap_or_default().to_owned();
        (self.context, self.done) = (self.done, self.tokens.len());
        Ok(new)
    }

    /// The text of the last tokens, even if a character is incomplete.
    ///
    /// # Errors
    /// The tokens can't be decoded.
    pub(crate) fn finish(&mut self, text: &Text) -> Result<String> {
        let old = text.decode(&self.tokens[self.context..self.done])?;
        let all = text.decode(&self.tokens[self.context..])?;
        self.done = self.tokens.len();
        self.context = self.done;
        Ok(all.get(old.len()..).unwrap_or_default().to_owned())
    }
}
