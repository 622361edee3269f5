//! Scenarios that the controller runs: failures, mismatches, deadlines, dropped communicators, concurrent submissions, handles, meshes.

mod abort;
mod deadline;
mod dropped;
mod handles;
mod merge_panic;
mod meshes;
mod mismatch;
mod order;

use std::fmt;
use std::time::Duration;

use disco_core::{DType, OpKind, Reduction, Session, World};

use self::abort::Abort;
use self::mismatch::Mismatch;
use super::verdict::Verdict;
use super::verdicts::{CheckResult, together, verdicts};
use crate::harness::{Harness, SessionSpec};

/// An operation that a scenario uses, with its dtype and reduction.
pub(super) type Need = (OpKind, DType, Option<Reduction>);

/// [`Reduction::Sum`] for the operations that reduce.
pub(super) fn sum_of(kind: OpKind) -> Option<Reduction> {
    matches!(kind, OpKind::AllReduce | OpKind::Reduce | OpKind::ReduceScatter).then_some(Reduction::Sum)
}

/// One scenario.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Scenario {
    /// One worker fails while the others are inside an operation.
    Abort(Abort),
    /// The function of a reduction panics.
    MergePanic,
    /// Ranks call different operations.
    Mismatch(Mismatch),
    /// A rank does not call an operation.
    Deadline,
    /// A rank drops its communicator while the other ranks wait for it.
    Dropped,
    /// Several threads of the controller submit to one session.
    Order,
    /// The controller calls collectives with handles.
    Handles,
    /// Communicators along axes of meshes.
    Meshes,
    /// The session compares calls, and all ranks call the same.
    Checked,
}

/// Every scenario.
pub(super) fn all() -> impl Iterator<Item = Scenario> {
    let aborts = OpKind::ALL.into_iter().map(|kind| Abort { kind, panics: false });
    let aborts = aborts.chain([Abort { kind: OpKind::AllReduce, panics: true }]).map(Scenario::Abort);
    aborts.chain(Mismatch::all().map(Scenario::Mismatch)).chain([
        Scenario::MergePanic,
        Scenario::Deadline,
        Scenario::Dropped,
        Scenario::Order,
        Scenario::Handles,
        Scenario::Meshes,
        Scenario::Checked,
    ])
}

/// The scenario with this name.
pub(super) fn find(name: &str) -> Option<Scenario> {
    all().find(|scenario| scenario.to_string() == name)
}

impl Scenario {
    /// The reason to skip the scenario for this harness, if there is one.
    pub(super) fn is_beyond(self, harness: &dyn Harness) -> Option<String> {
        match self {
            Self::Mismatch(mismatch) if !mismatch.check && !harness.detects_mismatches() => {
                Some("the backend need not detect it unless the session checks".into())
            }
            _ => None,
        }
    }

    /// The operations that the scenario uses.
    pub(super) fn needs(self) -> Vec<Need> {
        match self {
            Self::Abort(Abort { kind, .. }) => vec![(kind, DType::F32, sum_of(kind))],
            Self::Mismatch(mismatch) => mismatch.needs(),
            Self::MergePanic => vec![(OpKind::AllReduce, DType::U8, Some(merge_panic::PANICS))],
            Self::Deadline | Self::Dropped => vec![(OpKind::Barrier, DType::F32, None)],
            Self::Order => {
                let needs = [Reduction::Min, Reduction::Max];
                needs.map(|reduction| (OpKind::AllReduce, DType::I32, Some(reduction))).into()
            }
            Self::Handles => handles::NEEDS.map(|kind| (kind, DType::I32, sum_of(kind))).into(),
            Self::Meshes => {
                vec![(OpKind::AllReduce, DType::I32, Some(Reduction::Sum)), (OpKind::AllGather, DType::I32, None)]
            }
            Self::Checked => Vec::new(),
        }
    }

    /// The requirements on the session.
    pub(super) fn spec(self, world: World, harness: &dyn Harness) -> SessionSpec {
        let spec = SessionSpec::new(world);
        match self {
            Self::Mismatch(mismatch) => SessionSpec { check: mismatch.check, ..spec },
            Self::Checked => SessionSpec { check: true, ..spec },
            Self::Dropped if harness.detects_dropped_peers() => {
                SessionSpec { collective_deadline: end_limit(harness), ..spec }
            }
            Self::Deadline | Self::Dropped => SessionSpec { collective_deadline: deadline::SHORT, ..spec },
            _ => spec,
        }
    }

    /// Runs the scenario. Afterwards the session is usable again.
    pub(super) async fn run(self, session: &dyn Session, harness: &dyn Harness, run: i64) -> CheckResult<usize> {
        let executed = match self {
            Self::Abort(abort) => return abort.run(session, harness, run).await,
            Self::Mismatch(mismatch) => mismatch.run(session).await?,
            Self::MergePanic => return merge_panic::run(session, harness, run).await,
            Self::Deadline => deadline::run(session).await?,
            Self::Dropped => dropped::run(session, harness, run).await?,
            Self::Order => return order::run(session).await,
            Self::Handles => return handles::run(session).await,
            Self::Meshes => return meshes::run(session).await,
            Self::Checked => return checked(session, run).await,
        };
        recover(session, harness, run).await?;
        Ok(executed)
    }
}

/// Time within which all ranks must return after the failure of one.
fn end_limit(harness: &dyn Harness) -> Duration {
    harness.check_timeout() / 12
}

/// Runs rows in a session that compares calls.
async fn checked(session: &dyn Session, run: i64) -> CheckResult<usize> {
    let mut sum = 0;
    for name in ["all_reduce::i32::sum", "all_gather_v::u8", "all_to_all_v::u8", "send_recv::ring::f32"] {
        // The world, and a split.
        for scope in [0, 2] {
            let verdicts =
                verdicts(session, (name, scope, run, false, false)).await.map_err(|error| error.to_string())?;
            match together(&verdicts, false) {
                Verdict::Passed { executed, .. } => sum += executed,
                Verdict::Skipped(_) => {}
                Verdict::Wrong(why) => return Err(format!("{name}: {why}")),
            }
        }
    }
    Ok(sum)
}

/// Checks that `init_ccl` makes the session usable again after a failure.
async fn recover(session: &dyn Session, harness: &dyn Harness, run: i64) -> CheckResult<()> {
    let again = session.init_ccl(harness.backend(), &harness.devices()).await;
    again.map_err(|error| format!("init_ccl after the failure: {error}"))?;
    for scope in 0..=(session.world().groups() > 1).into() {
        let verdicts = verdicts(session, ("all_reduce::i32::sum", scope, run, false, false)).await;
        let verdicts = verdicts.map_err(|error| format!("after init_ccl: {error}"))?;
        if let Verdict::Wrong(why) = together(&verdicts, false) {
            return Err(format!("after init_ccl: {why}"));
        }
    }
    Ok(())
}

impl fmt::Display for Scenario {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Abort(abort) => abort.fmt(f),
            Self::Mismatch(mismatch) => mismatch.fmt(f),
            Self::MergePanic => f.write_str("panic::a_reduction_that_panics_ends_the_operation_on_all_ranks"),
            Self::Deadline => f.write_str("deadline::a_rank_that_is_absent_ends_the_wait_of_the_others"),
            Self::Dropped => f.write_str("drop::a_rank_that_drops_its_communicator_ends_the_wait_of_the_others"),
            Self::Checked => f.write_str("checked::collectives_give_the_same_results"),
            Self::Handles => f.write_str("handles::the_controller_exchanges_tensors_with_any_root_and_counts"),
            Self::Meshes => f.write_str("meshes::communicators_along_axes_are_those_of_splits_by_hand"),
            Self::Order => f.write_str("order::concurrent_submissions_arrive_in_one_order"),
        }
    }
}
