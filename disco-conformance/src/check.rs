//! Checks by name, and what comes of them.

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

    /// Like `all_reduce::bf16::avg`.
    pub fn name(&self) -> &str {
        &self.name
    }
}

/// What came of a check.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(clippy::exhaustive_enums, reason = "whoever runs checks must know all ends")]
pub enum Outcome {
    /// Everything is as it must be.
    Passed {
        /// Sub-cases that ran, each counted on each worker that it ran on.
        executed: usize,
    },
    /// The backend does not have it, and refused it properly; or the worlds are too small for it.
    Skipped {
        /// Why.
        reason: String,
    },
    /// Something is wrong.
    Failed {
        /// The first thing that is, in words.
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
