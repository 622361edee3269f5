//! Chat templates: Jinja as transformers renders it.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;

use disco_candle::weights::gguf;
use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, Serde, Value};
use minijinja::{Environment, ErrorKind};
use minijinja_contrib::pycompat::unknown_method_callback;
use serde_json::Value as Json;
use serde_json::ser::PrettyFormatter;

use super::json::{PythonFormatter, serialize};
use super::{Because as _, Chat, TextError, Why, messages, metadata_text, read, read_json, vocabulary};

/// The most spaces before a line of JSON.
const MAX_INDENT: usize = 64;

/// The most steps of a template, which a client's chat can make long.
const FUEL: u64 = 10_000_000;

/// The names of special tokens that a template can use.
const SPECIALS: [&str; 7] =
    ["bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"];
/// The template for chats with tools, in lists of named templates.
const TOOL_USE: &str = "tool_use";

/// What the template of SmolLM3 calls the tools.
const XML_TOOLS: &str = "xml_tools";

/// The name and the text of each special token of a model.
pub(super) type Specials = Vec<(&'static str, String)>;

/// The special tokens of a GGUF file.
pub(super) fn specials_of_gguf(metadata: &gguf::Metadata) -> Specials {
    // In GGUF files, some have other names.
    let names = SPECIALS.into_iter().map(|name| match name {
        "unk_token" => (name, "unknown_token"),
        "sep_token" => (name, "seperator_token"),
        "pad_token" => (name, "padding_token"),
        _ => (name, name),
    });
    let text = |name| vocabulary::special(metadata, &format!("tokenizer.ggml.{name}_id"));
    names.filter_map(|(name, of_gguf)| Some((name, text(of_gguf)?))).collect()
}

/// The special tokens of a `tokenizer_config.json`: each is a text, or an object with one.
pub(super) fn specials_of_config(config: &Json) -> Specials {
    let text = |name: &str| config[name].as_str().or(config[name]["content"].as_str()).map(str::to_owned);
    SPECIALS.into_iter().filter_map(|name| Some((name, text(name)?))).collect()
}

/// The templates of a model.
pub(super) struct ChatTemplate {
    default: String,
    /// That for chats with tools, if it is another one.
    tool_use: Option<String>,
}

impl ChatTemplate {
    /// The template in the metadata of a GGUF file.
    pub(super) fn from_gguf(metadata: &gguf::Metadata) -> Option<Self> {
        let default = metadata_text(metadata, "tokenizer.chat_template")?.into_owned();
        let tool_use = metadata_text(metadata, "tokenizer.chat_template.tool_use").map(Cow::into_owned);
        Some(Self { default, tool_use })
    }

    /// The template of a folder whose `tokenizer_config.json` is `config`: `chat_template.jinja`, else the key `chat_template` of `tokenizer_config.json`, else that
    /// of `chat_template.json`. Of several named templates, those named `default` and `tool_use`; beside
    /// `chat_template.jinja`, the latter is `additional_chat_templates/tool_use.jinja`.
    ///
    /// # Errors
    /// A file is not what its name says; `chat_template` is neither a text nor a list of templates with a default.
    pub(super) fn from_folder(folder: &Path, config: &Json) -> Result<Option<Self>, TextError> {
        Ok(match read(&folder.join("chat_template.jinja"))? {
            Some(default) => {
                let tool_use = read(&folder.join("additional_chat_templates").join("tool_use.jinja"))?;
                Some(Self { default, tool_use })
            }
            None if !config["chat_template"].is_null() => {
                Some(Self::read(&folder.join("tokenizer_config.json"), config)?)
            }
            None => {
                let file = folder.join("chat_template.json");
                let json = read_json(&file)?.unwrap_or_default();
                if json["chat_template"].is_null() { None } else { Some(Self::read(&file, &json)?) }
            }
        })
    }

    /// The text of a chat. Messages of the role `developer` are the system's for a template that does not name this role.
    /// The arguments of calls are JSON texts for a template that does not accept them as objects.
    ///
    /// # Errors
    /// The template can't be used, does not accept the chat, or has nothing of its tools, documents or variables.
    pub(super) fn render(&self, chat: &Chat, specials: &Specials) -> Why<String> {
        let template = self.of(chat.tools.is_some());
        // What a template does not name would be left out of the chat without a word.
        let given = [("tools", &chat.tools), ("documents", &chat.documents)].into_iter();
        let given = given.filter(|(_, values)| values.as_ref().is_some_and(|values| !values.is_empty()));
        let names = given.map(|(name, _)| name).chain(chat.variables.keys().map(String::as_str));
        let names = names.chain(messages::have_calls(&chat.messages).then_some("tool_calls"));
        if let Some(name) = names.into_iter().find(|name| !template.contains(name)) {
            return Err(format!("the chat template of the model has no {name}"));
        }
        // Templates write these two, whether the model has them or not.
        let mut values: BTreeMap<&str, Value> = [("bos_token", "".into()), ("eos_token", "".into())].into();
        values.extend(specials.iter().map(|(name, text)| (*name, text.into())));
        if chat.tools.is_some() && template.contains(XML_TOOLS) {
            values.insert(XML_TOOLS, Value::from(Serde(&chat.tools)));
        }
        values.extend(chat.variables.iter().map(|(name, value)| (name.as_str(), Value::from(Serde(value)))));
        values.extend([
            // As transformers: a chat without tools and documents has `None` for them.
            ("tools", Value::from(Serde(&chat.tools))),
            ("documents", Value::from(Serde(&chat.documents))),
            ("add_generation_prompt", (chat.add_generation_prompt && !chat.continues).into()),
        ]);
        let mut render = |messages: &[Json]| {
            values.insert("messages", Value::from(Serde(messages)));
            let text =
                environment().and_then(|environment| environment.render_str(&without_generation(template), &values));
            text.because("the chat template of the model can't be used")
        };
        let mut messages = chat.messages.clone();
        if !template.contains(messages::DEVELOPER) {
            messages::rename(&mut messages, messages::DEVELOPER, messages::SYSTEM);
        }
        if chat.continues && !messages::mark_last(&mut messages) {
            return Err("the last message, which is to be continued, has no text of the assistant".into());
        }
        let text = render(&messages).or_else(|why| match messages::with_argument_texts(&messages) {
            Some(messages) => render(&messages).map_err(|_| why),
            None => Err(why),
        })?;
        match text.find(messages::LAST) {
            Some(end) if chat.continues => Ok(text[..end].to_owned()),
            None if chat.continues => Err("the chat template of the model leaves out the last message".into()),
            _ => Ok(text),
        }
    }

    /// The template for chats with or without tools.
    pub(super) fn of(&self, has_tools: bool) -> &str {
        self.tool_use.as_ref().filter(|_| has_tools).unwrap_or(&self.default)
    }

    /// The first message of a chat whose text the template leaves out. Users and assistants are not looked at: all templates
    /// have them, and leave out parts of what assistants have said.
    pub(super) fn left_out(&self, chat: &Chat, specials: &Specials) -> Option<usize> {
        let marked = messages::marked(&chat.messages)?;
        // A template that only accepts some texts is not asked.
        let text = self.render(&Chat { messages: marked.messages, ..chat.clone() }, specials).ok()?;
        marked.marks.into_iter().find(|(_, mark)| !text.contains(mark)).map(|(index, _)| index)
    }

    /// The templates of the key `chat_template` of a file: a text, or a list of named templates.
    fn read(file: &Path, json: &Json) -> Result<Self, TextError> {
        Self::from_json(&json["chat_template"]).map_err(|why| TextError::file(file, why))
    }

    fn from_json(json: &Json) -> Why<Self> {
        if let Some(text) = json.as_str() {
            return Ok(Self { default: text.to_owned(), tool_use: None });
        }
        let Some(list) = json.as_array() else {
            return Err("`chat_template` is neither a text nor a list of named templates".into());
        };
        let text = |entry: &Json| entry["template"].as_str().map(str::to_owned);
        let named = |wanted: &str| list.iter().find(|entry| entry["name"] == wanted).and_then(text);
        let default = match list.as_slice() {
            [only] => text(only),
            _ => named("default"),
        };
        match default {
            Some(default) => Ok(Self { default, tool_use: named(TOOL_USE) }),
            None => {
                let names: Vec<_> = list.iter().map(|entry| entry["name"].to_string()).collect();
                let names = names.join(", ");
                Err(format!("`chat_template` has the templates {names}, and none that is named \"default\""))
            }
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
    environment.set_fuel(Some(FUEL));
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
