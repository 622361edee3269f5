//! The forms in which models write calls.

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

impl Form {
    /// All forms.
    #[cfg(any(fuzzing, test))]
    pub(crate) const ALL: [Self; 9] = [
        Self::Hermes,
        Self::Elements,
        Self::Llama,
        Self::MistralList,
        Self::Mistral,
        Self::Granite,
        Self::Functools,
        Self::DeepSeek,
        Self::DeepSeekPlain,
    ];

    /// The form that a chat template shows.
    pub(crate) fn of(template: &str) -> Option<Self> {
        let has = |mark: &str| template.contains(mark);
        Some(match () {
            () if has(DEEPSEEK[1]) && has("```json") => Self::DeepSeek,
            () if has(DEEPSEEK[1]) => Self::DeepSeekPlain,
            // Its template names the end of Gemma 4's and gpt-oss's forms, which are not known here.
            () if has("<|tool_call>") || has("<|channel|>") => return None,
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
        }
    }

    /// Whether a text behind the mark that begins calls can't be one.
    pub(super) fn is_refuted_by(self, body: &str) -> bool {
        let Some(first) = body.trim_start().chars().next() else { return false };
        match self {
            Self::Hermes | Self::MistralList | Self::Granite => !['{', '['].contains(&first),
            Self::Elements | Self::DeepSeek | Self::DeepSeekPlain => first != '<',
            Self::Llama | Self::Functools => first != '{',
            Self::Mistral => !(first.is_alphanumeric() || first == '_'),
        }
    }

    /// Whether a text behind the mark that begins calls has begun one whose arguments can have that mark.
    pub(super) fn may_hold_calls(self, body: &str) -> bool {
        self == Self::Elements && body.trim_start().starts_with("<function=")
    }

    /// What ends them; `None`: the end of the text.
    pub(super) fn end(self) -> Option<&'static str> {
        match self {
            Self::Hermes | Self::Elements => Some("</tool_call>"),
            Self::DeepSeek | Self::DeepSeekPlain => Some(DEEPSEEK[4]),
            _ => None,
        }
    }

    /// All marks, some of which are special tokens of models.
    pub(crate) fn marks(self) -> Vec<&'static str> {
        let mut marks: Vec<_> = [Some(self.begin()), self.end()].into_iter().flatten().collect();
        match self {
            Self::Mistral => marks.extend([ARGS, CALL_ID]),
            Self::DeepSeek | Self::DeepSeekPlain => marks.extend(&DEEPSEEK[1..4]),
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
            ("<|channel|>commentary to=functions", None),
            ("{{ messages }}", None),
        ] {
            assert_eq!(Form::of(template), expected, "{template}");
        }
    }
}
