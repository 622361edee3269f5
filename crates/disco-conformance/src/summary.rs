//! The summary of a suite's run: how many checks ran, and why the rest was skipped.

use std::collections::BTreeMap;
use std::fmt;

use disco_core::DType;

use crate::check::Outcome;

/// The counted outcomes of one suite.
#[derive(Debug, Default)]
pub(crate) struct Summary {
    passed: usize,
    failed: usize,
    /// Number of sub-cases, each counted on each of its workers.
    executed: usize,
    /// Skipped checks by reason. Reasons that differ only in the dtype are one reason.
    skipped: BTreeMap<String, Skipped>,
}

/// The checks that were skipped for one reason.
#[derive(Debug, Default)]
struct Skipped {
    checks: usize,
    dtypes: Vec<DType>,
}

impl Summary {
    /// Counts the outcome of a check.
    pub(crate) fn count(&mut self, outcome: &Outcome) {
        match outcome {
            Outcome::Passed { executed } => {
                self.passed += 1;
                self.executed += executed;
            }
            Outcome::Skipped { reason } => self.skip(reason),
            Outcome::Failed { .. } => self.failed += 1,
        }
    }

    /// Number of executed sub-cases.
    pub(crate) fn executed(&self) -> usize {
        self.executed
    }

    /// Number of skipped checks.
    pub(crate) fn skipped(&self) -> usize {
        self.skipped.values().map(|skipped| skipped.checks).sum()
    }

    /// Whether no check was counted.
    pub(crate) fn is_empty(&self) -> bool {
        self.passed + self.failed + self.skipped.len() == 0
    }

    fn skip(&mut self, reason: &str) {
        let with_dtype =
            reason.rsplit_once(" of ").and_then(|(rest, dtype)| Some((rest, dtype.parse::<DType>().ok()?)));
        let (reason, dtype) = with_dtype.map_or((reason, None), |(rest, dtype)| (rest, Some(dtype)));
        let skipped = self.skipped.entry(reason.to_owned()).or_default();
        skipped.checks += 1;
        skipped.dtypes.extend(dtype.filter(|dtype| !skipped.dtypes.contains(dtype)));
    }
}

/// The number of checks that ran, and a line for each reason of skipped ones, most frequent first:
///
/// ```text
/// 12 run (1 failed, 6144 sub-cases), 3 skipped:
///   2 mine does not support all_reduce max of i8, bf16
///   1 the session has one worker
/// ```
impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { passed, failed, executed, .. } = self;
        let (ran, skipped) = (passed + failed, self.skipped());
        write!(f, "{ran} run ({failed} failed, {executed} sub-cases), {skipped} skipped")?;
        let mut reasons: Vec<(&String, &Skipped)> = self.skipped.iter().collect();
        reasons.sort_by_key(|(_, skipped)| std::cmp::Reverse(skipped.checks));
        for (index, (reason, Skipped { checks, dtypes })) in reasons.into_iter().enumerate() {
            f.write_str(if index == 0 { ":\n" } else { "\n" })?;
            write!(f, "{checks:>5} {reason}")?;
            let names: Vec<String> =
                DType::all().filter(|dtype| dtypes.contains(dtype)).map(|dtype| dtype.to_string()).collect();
            match names.len() {
                0 => {}
                count if count == DType::all().count() => f.write_str(" of any dtype")?,
                _ => write!(f, " of {}", names.join(", "))?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn skipped(reason: &str) -> Outcome {
        Outcome::Skipped { reason: reason.to_owned() }
    }

    #[test]
    fn skipped_checks_are_grouped_by_reason_and_dtypes_are_listed() {
        let mut summary = Summary::default();
        assert!(summary.is_empty());
        summary.count(&Outcome::Passed { executed: 7 });
        summary.count(&Outcome::Failed { why: "a result is wrong".into() });
        summary.count(&skipped("the session has one worker"));
        for dtype in ["bf16", "i8", "bf16"] {
            summary.count(&skipped(&format!("mine does not support all_reduce max of {dtype}")));
        }
        for dtype in DType::all() {
            summary.count(&skipped(&format!("mine does not support gather of {dtype}")));
        }
        let expected = "2 run (1 failed, 7 sub-cases), 19 skipped:\n   \
                        15 mine does not support gather of any dtype\n    \
                        3 mine does not support all_reduce max of i8, bf16\n    \
                        1 the session has one worker";
        assert_eq!(summary.to_string(), expected);
        assert_eq!((summary.executed(), summary.skipped(), summary.is_empty()), (7, 19, false));
    }
}
