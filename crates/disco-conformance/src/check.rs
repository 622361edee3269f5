//! Checks by name, and their outcomes.

use std::fmt;

/// A named check of a suite.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Check {
    name: String,
}

impl Check {
    pub(crate) fn new(name: impl Into<String>) -> Self {
        Self { name: name.into() }
    }

    /// The name, such as `all_reduce::bf16::avg`.
    pub fn name(&self) -> &str {
        &self.name
    }
}

/// The outcome of a check.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(clippy::exhaustive_enums, reason = "a program that runs checks must handle all outcomes")]
pub enum Outcome {
    /// All results were right.
    Passed {
        /// Number of executed sub-cases, each counted on each of its workers.
        executed: usize,
    },
    /// The backend lacks the operation and has refused it; or the worlds are too small.
    Skipped {
        /// The reason.
        reason: String,
    },
    /// A result was wrong, or the check did not end.
    Failed {
        /// The first failure.
        why: String,
    },
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Passed { .. } => f.write_str("ok"),
            Self::Skipped { reason } => write!(f, "skipped: {reason}"),
            Self::Failed { why } => write!(f, "FAILED: {why}"),
        }
    }
}
