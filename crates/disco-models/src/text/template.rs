//! Chat templates: Jinja as transformers renders it.

use std::fmt::Write as _;
use std::path::Path;

use candle_core::quantized::gguf_file::Content;
use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, Value};
use minijinja::{Environment, ErrorKind, context};
use minijinja_contrib::pycompat::unknown_method_callback;
use serde::Serialize as _;
use serde_json::Value as Json;
use serde_json::ser::{Formatter, PrettyFormatter, Serializer};

use super::{Because as _, TextError, Why, metadata_text, read, read_json};

/// The most spaces before a line of JSON.
const MAX_INDENT: usize = 64;

/// A template, and the texts of the special tokens that it can name.
pub(super) struct ChatTemplate {
    text: String,
    bos: String,
    eos: String,
}

impl ChatTemplate {
    /// The template in the metadata of a GGUF file.
    pub(super) fn from_gguf(content: &Content, [bos, eos]: [String; 2]) -> Option<Self> {
        metadata_text(content, "tokenizer.chat_template").map(|text| Self { text: text.into(), bos, eos })
    }

    /// The template of a folder: `chat_template.jinja`, else the key `chat_template` of `tokenizer_config.json`, else that
    /// of `chat_template.json`. Of several named templates, the one named `default`.
    ///
    /// # Errors
    /// A file is not what its name says; `chat_template` is neither a text nor a list of templates with a default.
    pub(super) fn from_folder(folder: &Path) -> Result<Option<Self>, TextError> {
        let file = folder.join("tokenizer_config.json");
        let config = read_json(&file)?.unwrap_or_default();
        // A special token is a text, or an object with one.
        let special = |key: &str| config[key].as_str().or(config[key]["content"].as_str()).unwrap_or("").to_owned();
        let (bos, eos) = (special("bos_token"), special("eos_token"));
        let text = match read(&folder.join("chat_template.jinja"))? {
            Some(text) => Some(text),
            None if !config["chat_template"].is_null() => {
                Some(default(&config["chat_template"]).map_err(|why| TextError::file(&file, why))?)
            }
            None => {
                let file = folder.join("chat_template.json");
                let json = read_json(&file)?.unwrap_or_default();
                let template = &json["chat_template"];
                if template.is_null() {
                    None
                } else {
                    Some(default(template).map_err(|why| TextError::file(&file, why))?)
                }
            }
        };
        Ok(text.map(|text| Self { text, bos, eos }))
    }

    /// The text of a chat with one message of the user.
    ///
    /// # Errors
    /// The template can't be used, or does not accept the messages.
    pub(super) fn render(&self, system: Option<&str>, prompt: &str) -> Why<String> {
        let system = system.map(|content| context! { role => "system", content });
        let messages: Vec<_> = system.into_iter().chain([context! { role => "user", content => prompt }]).collect();
        // As transformers: a chat without tools and documents has `None` for them.
        let values = context! {
            messages, add_generation_prompt => true, bos_token => &self.bos, eos_token => &self.eos,
            tools => (), documents => (),
        };
        let text =
            environment().and_then(|environment| environment.render_str(&without_generation(&self.text), values));
        text.because("the chat template of the model can't be used; `--raw` continues the prompt without it")
    }
}

/// The template of the key `chat_template`: a text, or the default of a list of named templates.
fn default(json: &Json) -> Why<String> {
    if let Some(text) = json.as_str() {
        return Ok(text.to_owned());
    }
    let Some(list) = json.as_array() else {
        return Err("`chat_template` is neither a text nor a list of named templates".into());
    };
    let named = |wanted: &str| list.iter().find(|entry| entry["name"] == wanted);
    let entry = match list.as_slice() {
        [only] => Some(only),
        _ => named("default"),
    };
    match entry.and_then(|entry| entry["template"].as_str()) {
        Some(text) => Ok(text.to_owned()),
        None => {
            let names: Vec<_> = list.iter().map(|entry| entry["name"].to_string()).collect();
            let names = names.join(", ");
            Err(format!("`chat_template` has the templates {names}, and none that is named \"default\""))
        }
    }
}

/// The tags `generation` and `endgeneration`, which mark what an assistant says and write nothing, as a condition that
/// always holds.
fn without_generation(template: &str) -> String {
    let mut text = String::with_capacity(template.len());
    let mut rest = template;
    while let Some(start) = rest.find("{%") {
        let Some(end) = rest[start..].find("%}").map(|end| start + end) else { break };
        let tag = &rest[start..end];
        let plain = match tag.trim_matches(['{', '%', '-', '+']).trim() {
            "generation" => tag.replace("generation", "if true"),
            "endgeneration" => tag.replace("endgeneration", "endif"),
            _ => tag.to_owned(),
        };
        text.push_str(&rest[..start]);
        text.push_str(&plain);
        rest = &rest[end..];
    }
    text + rest
}

/// What templates of Hugging Face expect: the blocks' white space, Python's methods, and functions of transformers.
fn environment() -> Result<Environment<'static>, minijinja::Error> {
    let mut environment = Environment::new();
    environment.set_syntax(SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build()?);
    environment.set_unknown_method_callback(unknown_method_callback);
    environment.add_filter("tojson", to_json);
    environment.add_function("strftime_now", strftime_now);
    environment.add_function("raise_exception", |text: String| -> Result<String, minijinja::Error> {
        Err(minijinja::Error::new(ErrorKind::InvalidOperation, text))
    });
    Ok(environment)
}

/// The local time, as Python's `strftime` writes it.
fn strftime_now(format: String) -> Result<String, minijinja::Error> {
    let mut text = String::new();
    // chrono notices a wrong format while it writes.
    let written = write!(text, "{}", chrono::Local::now().format(&format));
    let wrong = format!("strftime_now: {format:?} is no format");
    written.map(|()| text).map_err(|_| minijinja::Error::new(ErrorKind::InvalidOperation, wrong))
}

/// JSON as Python writes it, without the escapes of HTML.
fn to_json(value: Value, options: Kwargs) -> Result<String, minijinja::Error> {
    let indent = options.get::<Option<usize>>("indent")?.map(|indent| indent.min(MAX_INDENT));
    // transformers' filter never escapes characters beyond ASCII unless it is asked to.
    if options.get::<Option<bool>>("ensure_ascii")? == Some(true) {
        return Err(minijinja::Error::new(ErrorKind::InvalidOperation, "tojson can't escape characters beyond ASCII"));
    }
    options.assert_all_used()?;
    let mut bytes = Vec::new();
    match indent {
        Some(indent) => {
            let spaces = " ".repeat(indent);
            serialize(&value, &mut bytes, PrettyFormatter::with_indent(spaces.as_bytes()))
        }
        None => serialize(&value, &mut bytes, PythonFormatter),
    }
    .map_err(|error| minijinja::Error::new(ErrorKind::InvalidOperation, error.to_string()))?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

fn serialize(value: &Value, bytes: &mut Vec<u8>, formatter: impl Formatter) -> serde_json::Result<()> {
    value.serialize(&mut Serializer::with_formatter(bytes, formatter))
}

/// One line with a space after each comma and colon.
struct PythonFormatter;

impl Formatter for PythonFormatter {
    fn begin_array_value<W: ?Sized + std::io::Write>(&mut self, writer: &mut W, first: bool) -> std::io::Result<()> {
        if first { Ok(()) } else { writer.write_all(b", ") }
    }

    fn begin_object_key<W: ?Sized + std::io::Write>(&mut self, writer: &mut W, first: bool) -> std::io::Result<()> {
        if first { Ok(()) } else { writer.write_all(b", ") }
    }

    fn begin_object_value<W: ?Sized + std::io::Write>(&mut self, writer: &mut W) -> std::io::Result<()> {
        writer.write_all(b": ")
    }
}
