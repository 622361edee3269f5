//! What the tools of a request mean for its texts.

use std::sync::Arc;

use disco_models::text::Text;

use crate::api::{ApiError, Asked};
use crate::calls::{Choice, Form, Parser, Tool, Tools, grammar};

/// The tools of a request, and the form in which the model calls them.
pub(super) struct Calling {
    pub(super) form: Form,
    tools: Tools,
    all: Arc<[Tool]>,
}

impl Calling {
    /// # Errors
    /// The form is not known.
    pub(super) fn new(tools: Tools, text: &Text) -> Result<Self, ApiError> {
        let form = text.chat_template(true).and_then(Form::of);
        let why = "can't be called: the form in which the model writes calls is not known to the server";
        let form = form.ok_or_else(|| ApiError::param("tools", why))?;
        Ok(Self { form, all: tools.all.as_slice().into(), tools })
    }

    /// The grammar of texts with the calls that the request demands, if it does.
    ///
    /// # Errors
    /// A schema can't be used.
    pub(super) fn grammar(&self, text: &Text) -> Result<Option<Asked>, ApiError> {
        if !self.tools.constrain() {
            return Ok(None);
        }
        let grammar = grammar(self.form, &self.tools, |mark| text.special_token(mark));
        let grammar =
            grammar.map_err(|(tool, why)| ApiError::param("tools", format!("of {tool:?}: the schema {why}")))?;
        Ok(Some(Asked { param: "tools".to_owned(), grammar }))
    }

    /// The special tokens that are marks of calls.
    pub(super) fn marks(&self, text: &Text) -> Vec<u32> {
        self.form.marks().into_iter().filter_map(|mark| text.special_token(mark)).collect()
    }

    pub(super) fn parser(&self) -> Parser {
        Parser::new(self.form, self.all.clone())
    }

    /// Whether the client has chosen the tool.
    pub(super) fn is_named(&self) -> bool {
        matches!(self.tools.choice, Choice::Named(_))
    }
}
