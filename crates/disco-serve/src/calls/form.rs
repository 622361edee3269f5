//! The forms in which models write calls.
//!
//! Arguments in JSON can have all marks in their texts. What other forms can't carry is with their readers:
//! [`elements`](super::elements), [`pairs`](super::pairs), [`channels`].

use super::channels;
use super::elements::FUNCTION;
use super::pairs::QUOTE;

/// How a family of models writes calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    /// `<tool_call>{"name": …, "arguments": …}</tool_call>`: Hermes, Qwen 2.5 and 3, Granite 4, SmolLM3. Granite 3.1 has a list
    /// behind `<tool_call>`, and no end.
    Hermes,
    /// `<tool_call><function=NAME><parameter=KEY>VALUE</parameter></function></tool_call>`: Qwen3-Coder, Qwen 3.5.
    Elements,
    /// `{"name": …, "parameters": …}`, alone or behind `<|python_tag|>`: Llama 3.
    Llama,
    /// `[TOOL_CALLS][{"name": …, "arguments": …}]`: Mistral before its 11th tokenizer.
    MistralList,
    /// `[TOOL_CALLS]NAME[ARGS]{…}`: Mistral.
    Mistral,
    /// `<|tool_call|>[{"name": …, "arguments": …}]`: Granite 3.0.
    Granite,
    /// `functools[{"name": …, "arguments": …}]`: Phi-4-mini.
    Functools,
    /// `<｜tool▁call▁begin｜>function<｜tool▁sep｜>NAME`, and the arguments in a fence: DeepSeek-V3.
    DeepSeek,
    /// `<｜tool▁call▁begin｜>NAME<｜tool▁sep｜>{…}`: DeepSeek-V3.1.
    DeepSeekPlain,
    /// `<|tool_call>call:NAME{KEY:<|"|>TEXT<|"|>}<tool_call|>`: Gemma 4.
    Gemma,
    /// `<|channel|>commentary to=functions.NAME <|constrain|>json<|message|>{…}<|call|>`: gpt-oss, whose texts are messages in channels.
    Harmony,
}

/// Marks of DeepSeek's calls.
pub(super) const DEEPSEEK: [&str; 5] = [
    "<｜tool▁calls▁begin｜>",
    "<｜tool▁call▁begin｜>",
    "<｜tool▁sep｜>",
    "<｜tool▁call▁end｜>",
    "<｜tool▁calls▁end｜>",
];
/// Marks of Mistral's calls.
pub(super) const ARGS: &str = "[ARGS]";
pub(super) const CALL_ID: &str = "[CALL_ID]";
/// Begins the arguments of a call of DeepSeek-V3, and ends them without `json`.
pub(super) const FENCE: &str = "```json";
/// Begins the name of a call of Gemma.
pub(super) const CALL: &str = "call:";

impl Form {
    /// All forms.
    #[cfg(any(fuzzing, test))]
    pub(crate) const ALL: [Self; 11] = [
        Self::Hermes,
        Self::Elements,
        Self::Llama,
        Self::MistralList,
        Self::Mistral,
        Self::Granite,
        Self::Functools,
        Self::DeepSeek,
        Self::DeepSeekPlain,
        Self::Gemma,
        Self::Harmony,
    ];

    /// The form that a chat template shows.
    pub(crate) fn of(template: &str) -> Option<Self> {
        let has = |mark: &str| template.contains(mark);
        Some(match () {
            () if has(DEEPSEEK[1]) && has(FENCE) => Self::DeepSeek,
            () if has(DEEPSEEK[1]) => Self::DeepSeekPlain,
            () if has("<|channel|>") => Self::Harmony,
            () if has("<|tool_call>") => Self::Gemma,
            () if has("<|tool_call|>") => Self::Granite,
            () if has("<tool_call>") && has("<function=") => Self::Elements,
            () if has("<tool_call>") => Self::Hermes,
            () if has("[TOOL_CALLS]") && has(ARGS) => Self::Mistral,
            () if has("[TOOL_CALLS]") => Self::MistralList,
            () if has("functools") || has("<|tool|>") => Self::Functools,
            () if has("<|python_tag|>") || (has("<|start_header_id|>") && has("\"parameters\"")) => Self::Llama,
            () => return None,
        })
    }

    /// What begins calls.
    pub(super) fn begin(self) -> &'static str {
        match self {
            Self::Hermes | Self::Elements => "<tool_call>",
            Self::Llama => "<|python_tag|>",
            Self::MistralList | Self::Mistral => "[TOOL_CALLS]",
            Self::Granite => "<|tool_call|>",
            Self::Functools => "functools[",
            Self::DeepSeek | Self::DeepSeekPlain => DEEPSEEK[0],
            Self::Gemma => "<|tool_call>",
            Self::Harmony => channels::CHANNEL,
        }
    }

    /// What ends them; `None`: the end of the text.
    pub(super) fn end(self) -> Option<&'static str> {
        match self {
            Self::Hermes | Self::Elements => Some("</tool_call>"),
            Self::DeepSeek | Self::DeepSeekPlain => Some(DEEPSEEK[4]),
            Self::Gemma => Some("<tool_call|>"),
            _ => None,
        }
    }

    /// What another call behind the first one can begin with, instead of the mark that begins calls.
    pub(super) fn next(self) -> Option<&'static str> {
        match self {
            Self::Elements => Some(FUNCTION),
            Self::DeepSeek | Self::DeepSeekPlain => Some(DEEPSEEK[1]),
            _ => self.has_objects().then_some("{"),
        }
    }

    /// What can stand between the arguments of a call and what ends calls.
    pub(super) fn closes(self) -> &'static [&'static str] {
        match self {
            Self::DeepSeek => &["```", DEEPSEEK[3]],
            Self::DeepSeekPlain => &[DEEPSEEK[3]],
            _ if self.has_objects() => &["]"],
            _ => &[],
        }
    }

    /// Whether calls are JSON objects.
    pub(super) fn has_objects(self) -> bool {
        matches!(self, Self::Hermes | Self::Llama | Self::MistralList | Self::Granite | Self::Functools)
    }

    /// All marks, some of which are special tokens of models.
    pub(crate) fn marks(self) -> Vec<&'static str> {
        let mut marks: Vec<_> = [Some(self.begin()), self.end()].into_iter().flatten().collect();
        match self {
            Self::Mistral => marks.extend([ARGS, CALL_ID]),
            Self::DeepSeek | Self::DeepSeekPlain => marks.extend(&DEEPSEEK[1..4]),
            Self::Gemma => marks.push(QUOTE),
            Self::Harmony => marks.extend(channels::MARKS),
            _ => {}
        }
        marks
    }

    /// Whether a text that is a JSON object is a call, without a mark.
    pub(super) fn may_be_bare(self) -> bool {
        self == Self::Llama
    }

    /// Whether ids of calls have nine letters and digits, which the template checks.
    pub(crate) fn has_short_ids(self) -> bool {
        matches!(self, Self::MistralList | Self::Mistral)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_template_shows_its_form() {
        for (template, expected) in [
            ("{{ '<tool_call>\\n{\"name\": ' }}", Some(Form::Hermes)),
            ("<tool_call>\n<function=example>", Some(Form::Elements)),
            ("[AVAILABLE_TOOLS] [TOOL_CALLS]", Some(Form::MistralList)),
            ("[TOOL_CALLS]{{ name }}[ARGS]", Some(Form::Mistral)),
            ("<|start_header_id|>ipython {\"name\": function name, \"parameters\": {}}", Some(Form::Llama)),
            ("<|tool_call|>", Some(Form::Granite)),
            ("<｜tool▁call▁begin｜>function```json", Some(Form::DeepSeek)),
            ("<｜tool▁call▁begin｜>", Some(Form::DeepSeekPlain)),
            ("<|channel|>commentary to=functions", Some(Form::Harmony)),
            ("<|tool_call>call:", Some(Form::Gemma)),
            ("{{ messages }}", None),
        ] {
            assert_eq!(Form::of(template), expected, "{template}");
        }
    }
}
