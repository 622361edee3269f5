//! What the parts of a request's texts are: reasoning, text, and calls of tools.

use std::sync::Arc;

use disco_models::text::Text;

use super::calls::Calls;
use crate::api::{ApiError, Asked};
use crate::calls::{Choice, Form, Parting, Tool, Tools, grammar, in_final};
use crate::grammar::{Grammar, Unusable};
use crate::text::{Marks, Reasoning};

/// The end of a prompt that tells whether the model's reasoning has begun, in tokens.
const TAIL: usize = 16;

/// How the texts of a request are parted.
#[derive(Clone, Default)]
pub(super) struct Parts {
    calling: Option<Calling>,
    /// The marks of the model's reasoning, and whether the prompt ends inside of it.
    reasoning: Option<(Marks, bool)>,
    /// How texts of channels are parted.
    channels: Option<Channels>,
}

/// How texts of channels are parted.
#[derive(Clone, Copy)]
struct Channels {
    /// Whether reasoning is a part of its own.
    separates: bool,
    /// Whether the text goes on with a message.
    is_begun: bool,
}

/// The tools of a request, and the form in which the model calls them.
#[derive(Clone)]
struct Calling {
    form: Form,
    tools: Tools,
    all: Arc<[Tool]>,
}

impl Parts {
    /// The parts of answers to a chat of these tokens, which go on with the text `begun`. Without `separates`, reasoning is text.
    ///
    /// # Errors
    /// The form of calls is not known.
    pub(super) fn of_chat(
        tools: Option<Tools>,
        separates: bool,
        prompt: &[u32],
        begun: Option<&str>,
        text: &Text,
    ) -> Result<Self, ApiError> {
        let template = text.chat_template(tools.is_some()).unwrap_or_default();
        let marks = Marks::of(template).filter(|_| separates);
        let tail = text.decode_with_specials(&prompt[prompt.len().saturating_sub(TAIL)..])?;
        let form = Form::of(template);
        let has_channels = form == Some(Form::Harmony);
        let channels = has_channels.then_some(Channels { separates, is_begun: begun.is_some() });
        let calling = tools.map(|tools| {
            let why = "can't be called: the form in which the model writes calls is not known to the server";
            let form = form.ok_or_else(|| ApiError::param("tools", why))?;
            Ok::<_, ApiError>(Calling { form, all: tools.all.as_slice().into(), tools })
        });
        let is_open = |marks: Marks| marks.are_open(&tail) || begun.is_some_and(|begun| marks.are_open_in(begun));
        Ok(Self { calling: calling.transpose()?, reasoning: marks.map(|marks| (marks, is_open(marks))), channels })
    }

    /// What constrains the texts: what the client asks for, and the calls that it demands or permits beside that; behind the reasoning, if
    /// the prompt has begun it.
    ///
    /// # Errors
    /// A schema of a tool can't be used.
    pub(super) fn grammar(&self, asked: Option<Asked>, text: &Text) -> Result<Option<Asked>, ApiError> {
        let special = |mark: &str| text.special_token(mark);
        let calling = self.calling.as_ref().filter(|calling| asked.is_some() || calling.tools.constrain());
        let asked = match (calling, asked) {
            (Some(Calling { form, tools, .. }), asked) => {
                let (param, answer) = asked.map_or(("tools".to_owned(), None), |it| (it.param, Some(it.grammar)));
                let grammar = grammar(*form, tools, answer.as_ref(), &special);
                Some(Asked { param, grammar: grammar.map_err(|(tool, why)| of_tool(&tool, &why))? })
            }
            (None, Some(asked)) if self.channels.is_some_and(|channels| !channels.is_begun) => {
                Some(Asked { grammar: in_final(&asked.grammar, &special), ..asked })
            }
            (None, asked) => asked,
        };
        let Some(asked) = asked else { return Ok(None) };
        let grammar = match self.reasoning {
            Some((marks, true)) => asked.grammar.behind(marks.close, text.special_token(marks.close)),
            _ => asked.grammar,
        };
        Ok(Some(Asked { grammar, ..asked }))
    }

    /// The error of the first tool whose schema can't be compiled.
    pub(super) fn refused_tool(&self, compile: impl Fn(&Grammar) -> Result<(), Unusable>) -> Option<ApiError> {
        let Calling { tools, .. } = self.calling.as_ref()?;
        let can_be_called = |tool: &&Tool| !matches!(&tools.choice, Choice::Named(name) if *name != tool.name);
        tools.all.iter().filter(can_be_called).find_map(|tool| {
            let schema = Grammar::schema(tools.schema(tool)?.clone()).ok()?;
            compile(&schema).err().map(|why| of_tool(&tool.name, &why.to_string()))
        })
    }

    /// The special tokens that are marks of parts.
    pub(super) fn marks(&self, text: &Text) -> Vec<u32> {
        let of_calls = self.calling.iter().flat_map(|calling| calling.form.marks());
        let of_reasoning = self.reasoning.iter().flat_map(|(marks, _)| [marks.open, marks.close]);
        let of_channels = self.channels.iter().flat_map(|_| Form::Harmony.marks());
        of_calls.chain(of_reasoning).chain(of_channels).filter_map(|mark| text.special_token(mark)).collect()
    }

    /// What parts one text.
    pub(super) fn parting(&self) -> Parting {
        let calls = self.calling.as_ref().map(|calling| (calling.form, calling.all.clone()));
        if let Some(Channels { separates, is_begun }) = self.channels {
            let tools = calls.map_or_else(|| [].into(), |(_, tools)| tools);
            return Parting::channels(tools, separates, is_begun);
        }
        Parting::new(self.reasoning.map(|(marks, is_open)| Reasoning::new(marks, is_open)), calls)
    }

    /// What clients get of calls.
    pub(super) fn calls(&self) -> Calls {
        self.calling.as_ref().map_or_else(Calls::default, |Calling { form, tools, .. }| {
            Calls::new(form.has_short_ids(), matches!(tools.choice, Choice::Named(_)))
        })
    }
}

fn of_tool(tool: &str, why: &str) -> ApiError {
    ApiError::param("tools", format!("of {tool:?}: the schema {why}"))
}
