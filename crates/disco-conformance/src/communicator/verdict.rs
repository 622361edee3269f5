//! The result of a check on one worker.

use std::hash::{DefaultHasher, Hasher as _};

use disco_core::{Shape, Value};

/// The result of one check on one worker and one communicator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// All results were right.
    Passed {
        /// Number of executed sub-cases.
        executed: usize,
        /// Hash of the results that must be equal on all ranks of the communicator.
        digest: u64,
        /// The communicator.
        color: i64,
    },
    /// The communicator lacks the operation and has refused it; with its error.
    Skipped(String),
    /// The first failure.
    Wrong(String),
}

impl Verdict {
    /// Converts to the return value of a worker function: `[executed, digest, color]`, or a text.
    pub(crate) fn into_value(self) -> Value {
        match self {
            Self::Passed { executed, digest, color } => {
                Value::Shape(Shape::from([executed as i64, digest as i64, color]))
            }
            Self::Skipped(why) => Value::from(format!("skipped: {why}")),
            Self::Wrong(why) => Value::from(format!("wrong: {why}")),
        }
    }

    /// Converts the return value of a worker function back.
    pub(crate) fn from_value(value: &Value) -> Self {
        match value {
            Value::Shape(shape) => match shape[..] {
                [executed, digest, color] => Self::Passed { executed: executed as usize, digest: digest as u64, color },
                _ => Self::Wrong(format!("the worker answers {shape}")),
            },
            Value::Str(text) => match text.split_once(": ") {
                Some(("skipped", why)) => Self::Skipped(why.to_owned()),
                Some(("wrong", why)) => Self::Wrong(why.to_owned()),
                _ => Self::Wrong(text.to_string()),
            },
            other => Self::Wrong(format!("the worker answers {other}")),
        }
    }
}

/// Counts sub-cases and keeps the first failure. Later sub-cases run too, because the other ranks take part in them.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    executed: usize,
    digest: DefaultHasher,
    wrong: Option<String>,
}

impl Tally {
    /// Counts an executed sub-case. `alike` has the results that must be equal on all ranks.
    pub(crate) fn count(&mut self, wrong: Option<String>, alike: &[u8]) {
        self.executed += 1;
        self.digest.write(alike);
        if self.wrong.is_none() {
            self.wrong = wrong;
        }
    }

    /// The verdict on all counted sub-cases.
    pub(crate) fn verdict(self, color: i64) -> Verdict {
        match self.wrong {
            Some(wrong) => Verdict::Wrong(wrong),
            None => Verdict::Passed { executed: self.executed, digest: self.digest.finish(), color },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_verdict_converts_to_a_value_and_back() {
        let passed = Verdict::Passed { executed: 3, digest: u64::MAX, color: 5 };
        for verdict in [passed, Verdict::Skipped("a: b".into()), Verdict::Wrong("c".into())] {
            assert_eq!(Verdict::from_value(&verdict.clone().into_value()), verdict);
        }
    }

    #[test]
    fn the_first_wrong_sub_case_is_kept() {
        let mut tally = Tally::default();
        tally.count(None, &[]);
        tally.count(Some("first".into()), &[]);
        tally.count(Some("second".into()), &[]);
        assert_eq!(tally.verdict(0), Verdict::Wrong("first".into()));
    }
}
