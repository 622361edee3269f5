//! The tools of a request.

use serde_json::Value;

/// A function that the model can call.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Tool {
    pub(crate) name: String,
    /// The JSON schema of its arguments, an object.
    pub(crate) parameters: Value,
    /// Whether calls must have arguments of the schema.
    pub(crate) is_strict: bool,
}

/// Which calls a text must have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Choice {
    /// None, or some.
    Auto,
    /// At least one.
    Required,
    /// Those of this tool, at least one.
    Named(String),
}

/// The tools of a request, and how they can be called.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Tools {
    /// The tools that can be called, at least one.
    pub(crate) all: Vec<Tool>,
    pub(crate) choice: Choice,
    /// Whether a text can have several calls.
    pub(crate) parallel: bool,
    /// Whether the model knows more tools than those that it can call.
    pub(crate) is_restricted: bool,
}

impl Tools {
    /// Whether a text has to be held to what the request asks for.
    pub(crate) fn constrain(&self) -> bool {
        self.choice != Choice::Auto
            || !self.parallel
            || self.is_restricted
            || self.all.iter().any(|tool| tool.is_strict)
    }

    /// The schema of a tool's arguments in calls that are held to it.
    pub(crate) fn schema<'a>(&self, tool: &'a Tool) -> Option<&'a Value> {
        (tool.is_strict || self.choice != Choice::Auto).then_some(&tool.parameters)
    }
}
