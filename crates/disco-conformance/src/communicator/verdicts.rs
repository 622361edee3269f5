//! The verdicts of all workers.

use disco_core::{Result, Session};

use super::verdict::Verdict;

/// The worker function that runs a row and returns its [`Verdict`](super::verdict::Verdict). The arguments after the name, the
/// scope and the run match the expectations of the harness: exact results, and the detection of dropped peers.
pub(super) const ROW: &str = "disco.conformance.row";

/// The result of a check; the error is a text.
pub(super) type CheckResult<T> = std::result::Result<T, String>;

/// The verdicts of all workers on a row.
pub(super) async fn verdicts(session: &dyn Session, args: (&str, i64, i64, bool, bool)) -> Result<Vec<Verdict>> {
    let function = session.function(ROW).await?;
    let handle = session.call(&function, args).await?;
    session.sync_all().await?;
    let mut verdicts = Vec::new();
    for worker in session.world().workers() {
        verdicts.push(Verdict::from_value(&session.value(&handle, worker).await?));
    }
    Ok(verdicts)
}

/// Combines the verdicts of all workers. If results are `exact`, the digests of the ranks of a communicator must be
/// equal.
pub(super) fn together(verdicts: &[Verdict], exact: bool) -> Verdict {
    let mut sum = 0;
    let mut skipped = None;
    let mut seen: Vec<(i64, u64)> = Vec::new();
    for verdict in verdicts {
        match verdict {
            Verdict::Wrong(why) => return Verdict::Wrong(why.clone()),
            Verdict::Skipped(why) => skipped = Some(why.clone()),
            Verdict::Passed { executed, digest, color } => {
                sum += executed;
                if exact && seen.iter().any(|(other, seen)| other == color && seen != digest) {
                    return Verdict::Wrong("results that must be equal on all ranks differ in their bits".into());
                }
                seen.push((*color, *digest));
            }
        }
    }
    match skipped {
        None => Verdict::Passed { executed: sum, digest: 0, color: 0 },
        Some(why) if sum == 0 => Verdict::Skipped(why),
        Some(why) => Verdict::Wrong(format!("only some ranks refuse it: {why}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn passed(executed: usize, digest: u64, color: i64) -> Verdict {
        Verdict::Passed { executed, digest, color }
    }

    #[test]
    fn ranks_of_one_color_must_agree_in_every_bit_where_results_are_exact() {
        let verdicts = [passed(1, 7, 0), passed(2, 8, 0)];
        assert!(matches!(together(&verdicts, true), Verdict::Wrong(_)));
        assert_eq!(together(&verdicts, false), passed(3, 0, 0));
        assert_eq!(together(&[passed(1, 7, 3), passed(2, 8, 5)], true), passed(3, 0, 0));
    }

    #[test]
    fn all_ranks_skip_or_none_does() {
        let skipped = Verdict::Skipped("no bf16".into());
        assert_eq!(together(&[skipped.clone(), skipped.clone()], true), skipped);
        assert!(matches!(together(&[passed(1, 0, 0), skipped], true), Verdict::Wrong(_)));
    }
}
