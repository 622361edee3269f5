//! What a worker reports of a check.

use std::hash::{DefaultHasher, Hasher as _};

use disco_core::{Shape, Value};

/// What one worker says of one check on one communicator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// All is well.
    Passed {
        /// Sub-cases that ran.
        executed: usize,
        /// Of results that all ranks of the communicator must have alike.
        digest: u64,
        /// Which communicator.
        color: i64,
    },
    /// The communicator can't do it, and said so.
    Skipped(String),
    /// The first thing that is wrong.
    Wrong(String),
}

impl Verdict {
    /// As a worker function returns it: `[executed, digest, color]`, or text.
    pub(crate) fn into_value(self) -> Value {
        match self {
            Self::Passed { executed, digest, color } => {
                Value::Shape(Shape::from([executed as i64, digest as i64, color]))
            }
            Self::Skipped(why) => Value::from(format!("skipped: {why}")),
            Self::Wrong(why) => Value::from(format!("wrong: {why}")),
        }
    }

    /// What a worker function returned.
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

/// Counts sub-cases, and keeps the first that went wrong: the others run nevertheless, since the other ranks are in them.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    executed: usize,
    digest: DefaultHasher,
    wrong: Option<String>,
}

impl Tally {
    /// One sub-case ran; `alike` is what all ranks must have.
    pub(crate) fn count(&mut self, wrong: Option<String>, alike: &[u8]) {
        self.executed += 1;
        self.digest.write(alike);
        if self.wrong.is_none() {
            self.wrong = wrong;
        }
    }

    /// The sum.
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
    fn verdicts_go_over_the_wire_and_back() {
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
