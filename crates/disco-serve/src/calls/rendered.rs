//! Calls that chat templates have rendered, read back.
//!
//! The templates here are written after the formats that the models' own templates and documents show. With `DISCO_LONG_TESTS`, those of
//! published models are tried, too; `cargo xtask fetch-clients` fetches them.

use std::path::{Path, PathBuf};

use disco_candle::weights::Weights;
use disco_conformance::Fetched;
use disco_models::text::{Chat, Text};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use serde_json::{Map, Value, json};

use super::elements::FUNCTION;
use super::pairs::QUOTE;
use super::{Form, Part, Parting, Tool};

/// A call that was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Read {
    pub(super) name: String,
    pub(super) arguments: String,
    is_complete: bool,
}

/// A complete call.
pub(super) fn called(name: &str, arguments: &str) -> Read {
    Read { name: name.into(), arguments: arguments.into(), is_complete: true }
}

/// The text and the calls of a text that comes in parts which end at these bytes.
pub(super) fn parsed(form: Form, text: &str, cuts: &[usize]) -> (String, Vec<Read>) {
    let mut parting = match form {
        Form::Harmony => Parting::channels(tools().into(), true, false),
        form => Parting::new(None, Some((form, tools().into()))),
    };
    let mut parts = Vec::new();
    let mut start = 0;
    for end in cuts.iter().map(|cut| text.floor_char_boundary(*cut)).chain([text.len()]) {
        parts.extend(parting.push(text[start..end].to_owned(), false));
        start = end;
    }
    parts.extend(parting.push(String::new(), true));
    let (mut said, mut calls) = (String::new(), Vec::<Read>::new());
    for part in parts {
        let last = calls.last_mut().filter(|call| !call.is_complete);
        match part {
            Part::Text(text) | Part::Reasoning(text) => said += &text,
            Part::Begin(name) => calls.push(Read { name, arguments: String::new(), is_complete: false }),
            Part::Arguments(arguments) => last.unwrap().arguments += &arguments,
            Part::End => last.unwrap().is_complete = true,
        }
    }
    (said, calls)
}

const NAMES: [&str; 3] = ["f", "get_weather", "a.b-c"];

fn tools() -> Vec<Tool> {
    let parameters = json!({"type": "object", "properties": {
        "text": {"type": "string", "description": "A text."},
        "count": {"type": "integer", "description": "A number."},
        "share": {"type": "number", "description": "A number."},
        "is_new": {"type": "boolean", "description": "A bit."},
        "list": {"type": "array", "description": "A list.", "items": {"type": "string"}},
        "nested": {"type": "object", "description": "An object.", "properties": {}},
    }, "required": ["text"]});
    let tool = |name: &str| Tool { name: name.into(), parameters: parameters.clone(), is_strict: false };
    NAMES.map(tool).into()
}

/// A chat template and what its chats can have.
struct Template {
    form: Form,
    text: String,
    /// What stands behind the calls of an assistant.
    end: &'static str,
    /// Whether an assistant can say something before its calls.
    says: bool,
    most_calls: usize,
}

/// A template whose messages have calls of this kind.
fn template(form: Form, calls: &str) -> Template {
    let text = format!(
        "{{{{ bos_token }}}}{{% for tool in tools or [] %}}{{{{ tool | tojson }}}}\n{{% endfor %}}{{% for m in messages %}}<|{{{{ m.role }}}}|>\n\
         {{{{ m.content }}}}{{% for call in m.tool_calls or [] %}}{{% set f = call.function %}}{calls}{{% endfor %}}<|eot|>\n{{% endfor %}}\
         {{% if add_generation_prompt %}}<|assistant|>\n{{% endif %}}"
    );
    Template { form, text, end: "<|eot|>", says: true, most_calls: 3 }
}

/// A list of calls as objects behind a mark.
fn list(form: Form, mark: &str) -> Template {
    let object = "{\"name\": \"{{ f.name }}\", \"arguments\": {{ f.arguments | tojson }}}";
    template(
        form,
        &format!("{{% if loop.first %}}{mark}{{% else %}}, {{% endif %}}{object}{{% if loop.last %}}]{{% endif %}}"),
    )
}

fn own() -> Vec<Template> {
    let object = |key: &str| format!("{{\"name\": \"{{{{ f.name }}}}\", \"{key}\": {{{{ f.arguments | tojson }}}}}}");
    vec![
        template(Form::Hermes, &format!("\n<tool_call>\n{}\n</tool_call>", object("arguments"))),
        template(
            Form::Elements,
            "\n<tool_call>\n<function={{ f.name }}>\n{% for key, value in f.arguments | items %}<parameter={{ key }}>\n\
             {{ value if value is string else value | tojson }}\n</parameter>\n{% endfor %}</function>\n</tool_call>",
        ),
        Template {
            says: false,
            ..template(
                Form::Llama,
                &format!("{{# <|python_tag|> #}}{{% if not loop.first %}}; {{% endif %}}{}", object("parameters")),
            )
        },
        list(Form::MistralList, "[TOOL_CALLS]["),
        template(Form::Mistral, "[TOOL_CALLS]{{ f.name }}[ARGS]{{ f.arguments | tojson }}"),
        list(Form::Granite, "<|tool_call|>["),
        list(Form::Functools, "functools["),
        template(
            Form::DeepSeek,
            "{% if loop.first %}<｜tool▁calls▁begin｜>{% else %}\n{% endif %}<｜tool▁call▁begin｜>function<｜tool▁sep｜>{{ f.name }}\n```json\n\
             {{ f.arguments | tojson }}\n```<｜tool▁call▁end｜>{% if loop.last %}<｜tool▁calls▁end｜>{% endif %}",
        ),
        template(
            Form::DeepSeekPlain,
            "{% if loop.first %}<｜tool▁calls▁begin｜>{% endif %}<｜tool▁call▁begin｜>{{ f.name }}<｜tool▁sep｜>{{ f.arguments | tojson }}\
             <｜tool▁call▁end｜>{% if loop.last %}<｜tool▁calls▁end｜>{% endif %}",
        ),
        template(
            Form::Gemma,
            "{% macro pair(value) %}{% if value is string %}<|\"|>{{ value }}<|\"|>{% elif value is mapping %}{{ '{' }}\
             {% for key, inner in value | items %}{{ key }}:{{ pair(inner) }}{% if not loop.last %},{% endif %}{% endfor %}{{ '}' }}\
             {% elif value is sequence %}[{% for inner in value %}{{ pair(inner) }}{% if not loop.last %},{% endif %}{% endfor %}]\
             {% else %}{{ value }}{% endif %}{% endmacro %}<|tool_call>call:{{ f.name }}{{ pair(f.arguments) }}<tool_call|>",
        ),
        Template {
            form: Form::Harmony,
            text: "{{ tools }}{% for m in messages %}<|start|>{{ m.role }}<|channel|>{% if m.tool_calls %}{% set f = m.tool_calls[0].function %}\
                   commentary to=functions.{{ f.name }} <|constrain|>json<|message|>{{ f.arguments | tojson }}<|call|>{% else %}\
                   final<|message|>{{ m.content }}<|end|>{% endif %}{% endfor %}{% if add_generation_prompt %}<|start|>assistant{% endif %}"
                .into(),
            end: "<|call|>",
            says: false,
            most_calls: 1,
        },
    ]
}

/// Those of published models, by the names that llama.cpp has for them.
fn published(folder: &Path) -> Vec<Template> {
    let of = |form, name: &str, end, says, most_calls| {
        let text = std::fs::read_to_string(folder.join(format!("{name}.jinja"))).unwrap();
        Template { form, text, end, says, most_calls }
    };
    vec![
        of(Form::Hermes, "Qwen-Qwen2.5-7B-Instruct", "<|im_end|>", true, 3),
        of(Form::Hermes, "Qwen-Qwen3-0.6B", "<|im_end|>", false, 3),
        of(Form::Hermes, "NousResearch-Hermes-3-Llama-3.1-8B-tool_use", "<|im_end|>", false, 3),
        of(Form::Hermes, "ibm-granite-granite-4.0", "<|end_of_text|>", true, 3),
        of(Form::Elements, "Qwen3-Coder", "<|im_end|>", true, 3),
        of(Form::Elements, "Qwen3.5-4B", "<|im_end|>", false, 3),
        of(Form::Llama, "meta-llama-Llama-3.1-8B-Instruct", "<|eot_id|>", false, 1),
        of(Form::Llama, "meta-llama-Llama-3.2-3B-Instruct", "<|eot_id|>", false, 1),
        of(Form::MistralList, "mistralai-Mistral-Nemo-Instruct-2407", "</s>", false, 3),
        of(Form::Mistral, "Mistral-Small-3.2-24B-Instruct-2506", "</s>", false, 3),
        of(Form::Mistral, "unsloth-mistral-Devstral-Small-2507", "</s>", true, 3),
        of(Form::Mistral, "mistralai-Ministral-3-14B-Reasoning-2512", "</s>", true, 3),
        of(
            Form::DeepSeek,
            "deepseek-ai-DeepSeek-R1-Distill-Qwen-32B",
            "<｜end▁of▁sentence｜><｜Assistant｜>",
            false,
            3,
        ),
        of(Form::DeepSeekPlain, "deepseek-ai-DeepSeek-V3.1", "<｜end▁of▁sentence｜>", true, 3),
        of(Form::Gemma, "google-gemma-4-31B-it", "<|tool_response>", false, 3),
        of(Form::Harmony, "openai-gpt-oss-120b", "<|call|>", false, 1),
    ]
}

/// A tokenizer with a chat template.
fn tokenizer(template: &str) -> Text {
    let model = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../disco-models/tests/models/llama-3");
    let folder = tempfile::tempdir().unwrap();
    for file in ["model.safetensors", "tokenizer.json"] {
        std::fs::copy(model.join(file), folder.path().join(file)).unwrap();
    }
    let config = json!({"bos_token": "<s>", "eos_token": "</s>"});
    std::fs::write(folder.path().join("tokenizer_config.json"), config.to_string()).unwrap();
    std::fs::write(folder.path().join("chat_template.jinja"), template).unwrap();
    Text::open(&Weights::open(folder.path()).unwrap()).unwrap()
}

/// Texts with marks of the form that it can carry, and with all that JSON escapes.
fn string(form: Form) -> BoxedStrategy<String> {
    let mut marks: Vec<_> = form.marks().into_iter().filter(|mark| *mark != QUOTE).collect();
    if form == Form::Elements {
        marks.extend([FUNCTION, "</parameter>x"]);
    }
    let mark = prop::sample::select(marks).prop_map(str::to_owned);
    let letters = "[ -~\t\r\n\u{7f}é€🎨\u{2028}]{0,12}";
    prop::collection::vec(prop_oneof![3 => letters.boxed(), 1 => mark.boxed()], 0..3)
        .prop_map(|all| all.concat())
        .boxed()
}

fn object(form: Form) -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        string(form).prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        (-1e9..1e9).prop_map(Value::from),
        any::<bool>().prop_map(Value::from),
    ];
    let nested = leaf.prop_recursive(2, 8, 3, |inner| {
        let object = prop::collection::btree_map("[a-zé_]{1,6}", inner.clone(), 0..3);
        let object = object.prop_map(|all| Value::Object(all.into_iter().collect::<Map<_, _>>()));
        prop_oneof![prop::collection::vec(inner, 0..3).prop_map(Value::from), object]
    });
    let maybe = |value: BoxedStrategy<Value>| prop::option::of(value);
    let list = prop::collection::vec(nested.clone(), 0..3).prop_map(Value::from);
    let inner = prop::collection::btree_map("[a-zé_]{1,6}", nested, 0..3)
        .prop_map(|all| Value::Object(all.into_iter().collect::<Map<_, _>>()));
    (
        maybe(string(form).prop_map(Value::from).boxed()),
        maybe(any::<i32>().prop_map(Value::from).boxed()),
        maybe((-1e9..1e9).prop_map(Value::from).boxed()),
        maybe(any::<bool>().prop_map(Value::from).boxed()),
        maybe(list.boxed()),
        maybe(inner.boxed()),
    )
        .prop_map(|(text, count, share, is_new, list, nested)| {
            let all = [
                ("text", text),
                ("count", count),
                ("share", share),
                ("is_new", is_new),
                ("list", list),
                ("nested", nested),
            ];
            let all = all.into_iter().filter_map(|(key, value)| Some((key.to_owned(), value?)));
            Value::Object(all.collect::<Map<_, _>>())
        })
}

/// Renders 50 chats with random calls, and reads these back, cut at every byte.
fn check(template: &Template) {
    let Template { form, text, end, says, most_calls } = template;
    assert_eq!(Form::of(text), Some(*form));
    let tokenizer = tokenizer(text);
    let function = |tool: &Tool| json!({"type": "function", "function": {"name": tool.name, "description": "Does it.", "parameters": tool.parameters}});
    let listed: Vec<_> = tools().iter().map(function).collect();
    let calls = prop::collection::vec((prop::sample::select(&NAMES[..]), object(*form)), 1..=*most_calls);
    let said = if *says { "[A-Za-zé][A-Za-z <\\[{]{0,8}" } else { "" };
    let mut runner = TestRunner::new(Config { cases: 50, failure_persistence: None, ..Config::default() });
    let result = runner.run(&(calls, said), |(calls, said)| {
        let made = calls.iter().enumerate().map(|(number, (name, arguments))| {
            let id = format!("call{number:05}");
            json!({"type": "function", "id": id, "function": {"name": name, "arguments": arguments}})
        });
        let user = json!({"role": "user", "content": "Is it raining?"});
        let assistant = json!({"role": "assistant", "content": said, "tool_calls": made.collect::<Vec<_>>()});
        let render = |messages: Vec<Value>, is_prompt: bool| {
            let mut chat = Chat::new(messages);
            // A template of DeepSeek has calls, but no tools.
            chat.tools = text.contains("tools").then(|| listed.clone());
            chat.add_generation_prompt = is_prompt;
            tokenizer.render(&chat).unwrap()
        };
        let prompt = render(vec![user.clone()], true);
        let history = render(vec![user, assistant], false);
        // A template can close the reasoning in the prompt, and leave it out of the history.
        let thought = [
            "<think>\n\n</think>\n\n",
            "<think>\n</think>",
            "<think>\n",
            "<|channel>thought\n<channel|>",
            "<think></think>",
        ];
        let shown =
            thought.into_iter().chain([""]).find_map(|thought| history.strip_prefix(prompt.strip_suffix(thought)?));
        let text = shown.unwrap_or_else(|| panic!("{history:?} does not begin with {prompt:?}"));
        let text = thought.iter().find_map(|thought| text.strip_prefix(thought)).unwrap_or(text);
        let text = &text[..text.rfind(end).unwrap()];
        let check = |cuts: &[usize]| {
            let (shown, found) = parsed(*form, text, cuts);
            prop_assert_eq!(shown.trim(), said.trim(), "cut at {:?}: {}", cuts, text);
            let found = found.into_iter().map(|call| {
                assert!(call.is_complete, "{text}");
                (call.name, serde_json::from_str::<Value>(&call.arguments).map_err(|_| call.arguments))
            });
            let expected: Vec<_> =
                calls.iter().map(|(name, arguments)| ((*name).to_owned(), Ok(arguments.clone()))).collect();
            prop_assert_eq!(found.collect::<Vec<_>>(), expected, "cut at {:?}: {}", cuts, text);
            Ok(())
        };
        for cut in 0..text.len() {
            check(&[cut])?;
        }
        check(&(1..text.len()).collect::<Vec<_>>())
    });
    result.unwrap_or_else(|error| panic!("{form:?}: {error}\n{text}"));
}

#[test]
fn rendered_calls_are_read_back_wherever_they_are_cut() {
    let own = own();
    assert_eq!(own.iter().map(|template| template.form).collect::<Vec<_>>(), Form::ALL);
    own.iter().for_each(check);
}

#[test]
fn calls_that_templates_of_published_models_have_rendered_are_read_back() {
    const TEMPLATES: Fetched = Fetched::long("llama-cpp-templates-0.3.36").required_by("clients");
    if std::env::var_os("DISCO_LONG_TESTS").is_none() {
        eprintln!("skipped: templates of published models are tried with DISCO_LONG_TESTS=1 only");
    } else if let Some(folder) = TEMPLATES.find() {
        published(&folder).iter().for_each(check);
    }
}

proptest! {
    #[test]
    fn a_text_without_calls_stays_as_it_is(
        form in prop::sample::select(&Form::ALL[..]), text in "[a-z <>/_|\\[\\]{}\"\n]{0,40}", cut in 0usize..40,
    ) {
        prop_assert_eq!(parsed(form, &text, &[cut.min(text.len())]), (text, vec![]));
    }

    #[test]
    fn the_parts_of_a_text_do_not_matter(
        (form, text) in prop::sample::select(&Form::ALL[..]).prop_flat_map(|form| (Just(form), pieces(form))),
        cuts in prop::collection::vec(0usize..200, 0..6),
    ) {
        let mut cuts: Vec<_> = cuts.into_iter().map(|cut| cut.min(text.len())).collect();
        cuts.sort_unstable();
        prop_assert_eq!(parsed(form, &text, &cuts), parsed(form, &text, &[]));
        prop_assert_eq!(parsed(form, &text, &(1..text.len()).collect::<Vec<_>>()), parsed(form, &text, &[]));
    }
}

/// Texts of marks and of parts of calls in any order.
fn pieces(form: Form) -> impl Strategy<Value = String> {
    const PIECES: [&str; 24] = [
        "{\"name\": \"f\", ",
        "\"arguments\": ",
        "{\"a\": \"x\"}",
        "{",
        "}",
        "[",
        "]",
        "\"",
        "\\",
        ",",
        ":",
        "é",
        " ",
        "\n",
        "f",
        "1",
        "<function=f>",
        "<parameter=a>",
        "</parameter>",
        "</function>",
        "call:f",
        "commentary to=functions.f",
        "analysis",
        "```json",
    ];
    let marks = form.marks().into_iter().chain(PIECES).collect::<Vec<_>>();
    prop::collection::vec(prop::sample::select(marks), 0..16).prop_map(|pieces| pieces.concat())
}
