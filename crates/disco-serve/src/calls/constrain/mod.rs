//! Grammars of texts that have the calls which a request demands.

mod channels;
mod pairs;

pub(crate) use channels::in_final;
use serde_json::{Value, json};

use super::form::{ARGS, CALL, DEEPSEEK};
use super::{Choice, Form, Tool, Tools};
use crate::grammar::{Grammar, MAX_BYTES, bounded};

/// The number of a mark that is a special token.
pub(crate) type Mark<'a> = dyn Fn(&str) -> Option<u32> + 'a;

/// Rules in Lark's notation.
struct Rules<'a> {
    form: Form,
    tools: &'a Tools,
    text: String,
    special: &'a Mark<'a>,
    /// A mark as a special token, or else as a text.
    mark: &'a dyn Fn(&str) -> String,
}

/// The grammar of texts with the calls that `tools` demand. A text without calls, if there may be one, is one of `answer`. `special` is the
/// number of a mark that is a special token.
///
/// # Errors
/// The name of the tool whose schema can't be used, and the reason.
pub(crate) fn grammar(
    form: Form,
    tools: &Tools,
    answer: Option<&Grammar>,
    special: &Mark<'_>,
) -> Result<Grammar, (String, String)> {
    let mark = |mark: &str| marked(mark, special);
    let mut rules = Rules { form, tools, text: String::new(), special, mark: &mark };
    let mut calls = Vec::new();
    let too_large = |tool: &Tool| (tool.name.clone(), format!("makes a grammar of more than {MAX_BYTES} bytes"));
    for tool in &tools.all {
        if matches!(&tools.choice, Choice::Named(name) if *name != tool.name) {
            continue;
        }
        let number = calls.len();
        rules.call(number, tool).map_err(|why| (tool.name.clone(), why))?;
        if rules.text.len() > MAX_BYTES {
            return Err(too_large(tool));
        }
        calls.push(format!("call_{number}"));
    }
    rules.add("call", &calls.join(" | "));
    if form == Form::Harmony {
        rules.channels(answer);
    } else {
        rules.start(answer, special(form.begin()).is_some());
    }
    Ok(Grammar::Lark(rules.text))
}

impl Rules<'_> {
    fn add(&mut self, name: &str, definition: &str) {
        self.text += &format!("{name}: {definition}\n");
    }

    /// The rule of one call, without the mark before calls.
    fn call(&mut self, number: usize, tool: &Tool) -> Result<(), String> {
        let Tool { name, .. } = tool;
        let arguments = format!("arguments_{number}");
        if self.form == Form::Elements {
            self.elements(number, tool)?;
        } else if self.form == Form::Gemma {
            self.pairs(number, tool)?;
        } else {
            let schema = self.tools.schema(tool).cloned().unwrap_or_else(|| json!({"type": "object"}));
            let schema = bounded(schema)?;
            self.add(&arguments, &format!("%json {schema}"));
        }
        let key = if self.form == Form::Llama { "parameters" } else { "arguments" };
        let object = format!("{} {arguments} \"}}\"", literal(&format!("{{\"name\": {}, \"{key}\": ", json!(name))));
        let [_, begin, separator, end, _] = DEEPSEEK.map(|mark| (self.mark)(mark));
        let definition = match self.form {
            Form::Hermes => format!("\"\\n\" {object} \"\\n\" {}", (self.mark)("</tool_call>")),
            Form::Elements => {
                let function = literal(&format!("\n<function={name}>\n"));
                format!("{function} {arguments} \"</function>\\n\" {}", (self.mark)("</tool_call>"))
            }
            Form::Llama | Form::MistralList | Form::Granite | Form::Functools => object,
            Form::Mistral => format!("{} {} {arguments}", literal(name), (self.mark)(ARGS)),
            Form::DeepSeek => {
                let head = literal(&format!("{name}\n```json\n"));
                format!("{begin} \"function\" {separator} {head} {arguments} \"\\n```\" {end}")
            }
            Form::DeepSeekPlain => format!("{begin} {} {separator} {arguments} {end}", literal(name)),
            Form::Gemma => {
                format!("{} {arguments} {}", literal(&format!("{CALL}{name}")), (self.mark)("<tool_call|>"))
            }
            Form::Harmony => self.message(name, &arguments),
        };
        self.add(&format!("call_{number}"), &definition);
        Ok(())
    }

    /// Arguments as elements, in the order of the schema. Without a schema, any texts.
    fn elements(&mut self, number: usize, tool: &Tool) -> Result<(), String> {
        let end = "\n</parameter>\n";
        let any = format!("any_{number}");
        self.add(&format!("{any}[lazy]"), &format!("/(?s:.*)/ {}", literal(end)));
        let Some(schema) = self.tools.schema(tool) else {
            self.add(&format!("arguments_{number}"), &format!("(\"<parameter=\" /[^>\\n]+/ \">\\n\" {any})*"));
            return Ok(());
        };
        let mut all = Vec::new();
        let definitions = ["$defs", "definitions"].into_iter().filter_map(|name| Some((name, schema.get(name)?)));
        let definitions: Vec<_> = definitions.collect();
        for (place, (key, value)) in schema["properties"].as_object().into_iter().flatten().enumerate() {
            let head = literal(&format!("<parameter={key}>\n"));
            if self.text.len() > MAX_BYTES {
                return Err(format!("makes a grammar of more than {MAX_BYTES} bytes"));
            }
            let choices = value.get("const").map(|only| vec![only]);
            let choices = choices.or_else(|| value["enum"].as_array().map(|all| all.iter().collect()));
            let texts: Option<Vec<&str>> = choices.and_then(|all| all.into_iter().map(Value::as_str).collect());
            let definition = match texts {
                Some(texts) => {
                    let texts: Vec<_> = texts.into_iter().map(literal).collect();
                    format!("{head} ({}) {}", texts.join(" | "), literal(end))
                }
                None if value["type"] == "string" => {
                    let known = ["type", "minLength", "maxLength", "title", "description", "default", "examples"];
                    let mut keys = value.as_object().into_iter().flatten().map(|(key, _)| key);
                    if let Some(key) = keys.find(|key| !known.contains(&key.as_str())) {
                        return Err(format!("has a text with `{key}`, to which calls of this model can't be held"));
                    }
                    match (value["minLength"].as_u64(), value["maxLength"].as_u64()) {
                        (None, None) => format!("{head} {any}"),
                        (least, most) => {
                            let most = most.map_or_else(String::new, |most| most.to_string());
                            let text = format!("/(?s:.){{{},{most}}}/ {}", least.unwrap_or(0), literal(end));
                            self.add(&format!("TEXT_{number}_{place}"), &text);
                            format!("{head} TEXT_{number}_{place}")
                        }
                    }
                }
                None => {
                    let mut value = value.clone();
                    // References are to the whole.
                    for (name, found) in &definitions {
                        if let Some(value) = value.as_object_mut() {
                            value.insert((*name).to_owned(), (*found).clone());
                        }
                    }
                    self.add(&format!("value_{number}_{place}"), &format!("%json {}", bounded(value)?));
                    format!("{head} value_{number}_{place} {}", literal(end))
                }
            };
            let is_required = schema["required"].as_array().is_some_and(|all| all.iter().any(|it| it == key));
            self.add(&format!("parameter_{number}_{place}"), &definition);
            all.push(format!("parameter_{number}_{place}{}", if is_required { "" } else { "?" }));
        }
        let all = if all.is_empty() { "\"\"".to_owned() } else { all.join(" ") };
        self.add(&format!("arguments_{number}"), &all);
        Ok(())
    }

    /// The whole text: calls, or also an answer, or else other texts, of which only the mark tells them.
    fn start(&mut self, answer: Option<&Grammar>, is_special: bool) {
        let begin = (self.mark)(self.form.begin());
        let many = |separator: &str| {
            if self.tools.parallel { format!("call ({separator} call)*") } else { "call".to_owned() }
        };
        // Behind the first mark.
        let calls = match self.form {
            Form::Hermes | Form::Elements => many(&format!("\"\\n\" {begin}")),
            Form::Llama => many("\"; \""),
            Form::MistralList | Form::Granite => format!("\"[\" {} \"]\"", many("\", \"")),
            // Its bracket is a part of the mark.
            Form::Functools => format!("{} \"]\"", many("\", \"")),
            Form::Mistral | Form::Gemma => many(&begin),
            // DeepSeek-V3.1 writes nothing between calls.
            Form::DeepSeekPlain => format!("{} {}", many(""), (self.mark)(DEEPSEEK[4])),
            Form::DeepSeek => format!("{} {}", many("\"\\n\""), (self.mark)(DEEPSEEK[4])),
            // Its whole text is messages.
            Form::Harmony => return,
        };
        self.add("calls", &calls);
        let is_due = self.tools.choice != Choice::Auto;
        if let Some(answer) = answer.filter(|_| !is_due) {
            self.add("answer", &answer.definition());
            let calls = if self.form == Form::Llama { "calls".to_owned() } else { format!("{begin} calls") };
            self.add("start", &format!("answer | {calls}"));
            return;
        }
        let start = match self.form {
            Form::Llama if is_due => "calls".to_owned(),
            Form::Llama => "calls | TEXT".to_owned(),
            _ if is_due => format!("{begin} calls"),
            _ if is_special => format!("TEXT | {begin} calls | TEXT {begin} calls"),
            _ => "TEXT | lead calls".to_owned(),
        };
        if !is_due {
            let text = match self.form {
                Form::Llama => "/[^{](?s:.*)/".to_owned(),
                form => excluding("/(?s:.+)/", form.begin(), self.special),
            };
            self.add("TEXT", &text);
            if !is_special && self.form != Form::Llama {
                self.add("lead[lazy]", &format!("/(?s:.*)/ {}", literal(self.form.begin())));
            }
        }
        self.add("start", &start);
    }
}

/// A text in Lark's notation.
fn literal(text: &str) -> String {
    Value::from(text).to_string()
}

/// A mark as a special token, or else as a text.
fn marked(mark: &str, special: &Mark<'_>) -> String {
    special(mark).map_or_else(|| literal(mark), |token| format!("<[{token}]>"))
}

/// Texts of a regular expression without a mark. A special token is in no text.
fn excluding(regex: &str, mark: &str, special: &Mark<'_>) -> String {
    match special(mark) {
        Some(_) => regex.to_owned(),
        None => format!("{regex} & ~/(?s:.*){}(?s:.*)/", regex_of(mark)),
    }
}

/// A regular expression that matches a text, between slashes.
fn regex_of(text: &str) -> String {
    text.chars().fold(String::new(), |regex, letter| {
        let is_plain = !letter.is_ascii() || letter.is_alphanumeric() || ['_', '<', '>'].contains(&letter);
        if is_plain { regex + &letter.to_string() } else { format!("{regex}\\{letter}") }
    })
}
