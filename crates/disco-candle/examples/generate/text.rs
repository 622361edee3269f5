//! From text to tokens and back.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, anyhow, ensure};
use candle_core::quantized::gguf_file::{Content, Value};
use candle_core::quantized::tokenizer::TokenizerFromGguf as _;
use disco_candle::weights::Weights;
use minijinja::syntax::SyntaxConfig;
use minijinja::{Environment, ErrorKind, context};
use tokenizers::Tokenizer;
use tokenizers::pre_tokenizers::PreTokenizerWrapper;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::pre_tokenizers::digits::Digits;
use tokenizers::pre_tokenizers::sequence::Sequence;

/// The tokenizer and the chat template of a model.
pub(crate) struct Text {
    tokenizer: Tokenizer,
    /// The template, and the texts of the tokens that begin and end a sequence.
    template: Option<(String, [String; 2])>,
}

impl Text {
    /// Reads tokenizer and template from a GGUF file, or from the files beside safetensors.
    ///
    /// # Errors
    /// A file is missing or malformed; the tokenizer in a GGUF file is not a byte-level BPE.
    pub(crate) fn open(weights: &Weights) -> Result<Self> {
        match weights.gguf() {
            Some(content) => Self::from_gguf(content),
            None if weights.path().is_dir() => Self::from_folder(weights.path()),
            None => Self::from_folder(weights.path().parent().unwrap_or(Path::new("."))),
        }
    }

    fn from_gguf(content: &Content) -> Result<Self> {
        let mut tokenizer = Tokenizer::from_gguf(content).context("the tokenizer in the GGUF file can't be used")?;
        let text = |key: &str| content.metadata.get(key).and_then(|value| value.to_string().ok());
        // candle has rules of its own for the names of some families, and a leading space for all others.
        let plain: PreTokenizerWrapper = ByteLevel::new(false, true, true).into();
        match text("tokenizer.ggml.pre").map(String::as_str) {
            Some("smollm") => tokenizer.with_pre_tokenizer(Some(Sequence::new(vec![Digits::new(true).into(), plain]))),
            None | Some("gpt-2" | "gpt2" | "default") => tokenizer.with_pre_tokenizer(Some(plain)),
            Some(_) => &mut tokenizer,
        };
        let special = |key: &str| {
            let token = content.metadata.get(key).and_then(|value| value.to_u32().ok());
            let tokens = content.metadata.get("tokenizer.ggml.tokens").and_then(|value| value.to_vec().ok());
            match tokens.and_then(|tokens| tokens.get(token? as usize)) {
                Some(Value::String(text)) => text.clone(),
                _ => String::new(),
            }
        };
        let specials = ["tokenizer.ggml.bos_token_id", "tokenizer.ggml.eos_token_id"].map(special);
        Ok(Self { tokenizer, template: text("tokenizer.chat_template").map(|text| (text.clone(), specials)) })
    }

    fn from_folder(folder: &Path) -> Result<Self> {
        let file = folder.join("tokenizer.json");
        let tokenizer = Tokenizer::from_file(&file).map_err(|error| anyhow!("{}: {error}", file.display()))?;
        let config = fs::read_to_string(folder.join("tokenizer_config.json")).unwrap_or_default();
        let config: serde_json::Value = serde_json::from_str(&config).unwrap_or_default();
        // A special token is a text, or an object with one.
        let special = |key: &str| config[key].as_str().or(config[key]["content"].as_str()).unwrap_or("").to_owned();
        let specials = ["bos_token", "eos_token"].map(special);
        let in_file = fs::read_to_string(folder.join("chat_template.jinja")).ok();
        let template = in_file.or(config["chat_template"].as_str().map(str::to_owned));
        Ok(Self { tokenizer, template: template.map(|template| (template, specials)) })
    }

    /// The tokens of a prompt: of a chat with one message, or of the text itself if it is `raw` or the model has no
    /// template.
    ///
    /// # Errors
    /// The template does not accept the messages; the text has no tokens.
    pub(crate) fn tokens(&self, prompt: &str, system: Option<&str>, raw: bool) -> Result<Vec<u32>> {
        let template = self.template.as_ref().filter(|_| !raw);
        let text = match template {
            Some((template, specials)) => chat(template, specials, system, prompt)?,
            None => prompt.to_owned(),
        };
        // A template writes the special tokens itself.
        let encoding = self.tokenizer.encode(text, template.is_none());
        let tokens = encoding.map_err(|error| anyhow!("the prompt {prompt:?} can't be tokenised: {error}"))?;
        ensure!(!tokens.is_empty(), "the prompt {prompt:?} has no tokens");
        Ok(tokens.get_ids().to_vec())
    }

    fn decode(&self, tokens: &[u32]) -> Result<String> {
        self.tokenizer.decode(tokens, true).map_err(|error| anyhow!("tokens {tokens:?} can't be decoded: {error}"))
    }
}

/// The text of a chat.
fn chat(template: &str, [bos, eos]: &[String; 2], system: Option<&str>, prompt: &str) -> Result<String> {
    let mut environment = Environment::new();
    // Templates of Hugging Face expect these.
    environment.set_syntax(SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build()?);
    environment.add_function("raise_exception", |text: String| -> Result<String, minijinja::Error> {
        Err(minijinja::Error::new(ErrorKind::InvalidOperation, text))
    });
    let system = system.map(|content| context! { role => "system", content });
    let messages: Vec<_> = system.into_iter().chain([context! { role => "user", content => prompt }]).collect();
    let values = context! { messages, add_generation_prompt => true, bos_token => bos, eos_token => eos };
    let text = environment.render_str(template, values);
    text.context("the chat template of the model can't be used; `--raw` continues the prompt without it")
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
