//! Scenario: ranks call different operations.

use std::fmt;

use disco_core::{DType, Error, Op, OpKind, Reduction, Result, Session, Tensor, WorkerContext};

use super::Need;
use crate::communicator::fixture::rank;
use crate::communicator::verdicts::CheckResult;

const DISAGREE: &str = "disco.conformance.disagree";

disco_core::register_function!(DISAGREE, disagree);

/// The parameter in which the call of the last rank differs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum In {
    Count,
    DType,
    Operation,
    Root,
    Reduction,
    Counts,
    Transfer,
}

/// The parameter that differs, and whether the session or the backend must detect it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::communicator) struct Mismatch {
    what: In,
    /// Whether the session compares calls; otherwise the backend itself must detect the mismatch.
    pub(super) check: bool,
}

impl In {
    const ALL: [In; 7] =
        [Self::Count, Self::DType, Self::Operation, Self::Root, Self::Reduction, Self::Counts, Self::Transfer];

    const fn name(self) -> &'static str {
        match self {
            Self::Count => "count",
            Self::DType => "dtype",
            Self::Operation => "operation",
            Self::Root => "root",
            Self::Reduction => "reduction",
            Self::Counts => "counts",
            Self::Transfer => "transfer",
        }
    }

    /// The operation of the last rank, or of the others.
    fn op(self, is_last: bool, size: usize, mut make: impl FnMut(DType, usize) -> Result<Tensor>) -> Result<Op> {
        let (f32, last, sum) = (DType::F32, size - 1, Reduction::Sum);
        Ok(match (self, is_last) {
            (Self::Count, _) => Op::AllReduce { src: None, dst: make(f32, 4 + usize::from(is_last))?, reduction: sum },
            (Self::DType, _) => {
                let dtype = if is_last { DType::I32 } else { f32 };
                Op::AllReduce { src: None, dst: make(dtype, 4)?, reduction: sum }
            }
            (Self::Operation, true) => Op::AllReduce { src: None, dst: make(f32, 4)?, reduction: sum },
            (Self::Operation, false) => Op::Broadcast { src: None, dst: make(f32, 4)?, root: rank(0) },
            (Self::Root, _) => {
                Op::Broadcast { src: None, dst: make(f32, 4)?, root: rank(if is_last { last } else { 0 }) }
            }
            (Self::Reduction, _) => {
                let reduction = if is_last { Reduction::Max } else { Reduction::Min };
                Op::AllReduce { src: None, dst: make(f32, 4)?, reduction }
            }
            (Self::Counts, _) => {
                // Rank 0 has one more or the last one has; others have two.
                let counts: Vec<usize> =
                    (0..size).map(|rank| 2 + usize::from(rank == if is_last { 0 } else { last })).collect();
                Op::AllGatherV { src: None, dst: make(f32, 2 * size + 1)?, counts: counts.into() }
            }
            (Self::Transfer, true) => Op::Recv { dst: make(f32, 5)?, from: rank(0) },
            (Self::Transfer, false) => Op::Send { src: make(f32, 4)?, to: rank(last) },
        })
    }
}

impl Mismatch {
    /// All of them. Transfers are not compared by sessions.
    pub(super) fn all() -> impl Iterator<Item = Self> {
        let all = [true, false].into_iter().flat_map(|check| In::ALL.map(|what| Self { what, check }));
        all.filter(|mismatch| !(mismatch.check && mismatch.what == In::Transfer))
    }

    pub(super) fn needs(self) -> Vec<Need> {
        let all_reduce = |dtype, reduction| (OpKind::AllReduce, dtype, Some(reduction));
        let (sum, plain) = (all_reduce(DType::F32, Reduction::Sum), |kind| (kind, DType::F32, None));
        match self.what {
            In::Count => vec![sum],
            In::Reduction => [Reduction::Max, Reduction::Min].map(|reduction| all_reduce(DType::F32, reduction)).into(),
            In::DType => vec![sum, all_reduce(DType::I32, Reduction::Sum)],
            In::Operation => vec![sum, plain(OpKind::Broadcast)],
            In::Root => vec![plain(OpKind::Broadcast)],
            In::Counts => vec![plain(OpKind::AllGatherV)],
            In::Transfer => vec![plain(OpKind::Send), plain(OpKind::Recv)],
        }
    }

    pub(super) async fn run(self, session: &dyn Session) -> CheckResult<usize> {
        let to_text = |error: Error| error.to_string();
        let size = session.world().size();
        let function = session.function(DISAGREE).await.map_err(to_text)?;
        session.call(&function, (self.what.name(),)).await.map_err(to_text)?;
        let text = match session.sync_all().await {
            Err(Error::Worker(failure)) => failure.to_string(),
            other => return Err(format!("ranks differ in the {}, and sync_all gives {other:?}", self.what.name())),
        };
        for is_last in [false, true] {
            let zeros = |dtype, count: usize| Tensor::zeros(dtype, [count as i64]);
            let side = match self.what {
                In::Transfer => format!("f32 x {}", if is_last { 5 } else { 4 }),
                what => what.op(is_last, size, zeros).map_err(to_text)?.signature(size),
            };
            if !text.contains(&side) {
                return Err(format!("the error does not name the call {side}: {text}"));
            }
        }
        Ok(1)
    }
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let by = if self.check { "the_session" } else { "the_backend" };
        write!(f, "mismatch::{}::is_detected_by_{by}", self.what.name())
    }
}

fn disagree(ctx: &mut WorkerContext, what: String) -> Result<()> {
    let (me, size) = (ctx.worker().index(), ctx.world().size());
    let found = In::ALL.into_iter().find(|known| known.name() == what);
    let what =
        found.ok_or_else(|| Error::invalid(format!("the conformance suite has no mismatch scenario for `{what}`")))?;
    if what == In::Transfer && !(me == 0 || me + 1 == size) {
        return Ok(());
    }
    let op = what.op(me + 1 == size, size, |dtype, count| ctx.empty(dtype, [count as i64]))?;
    let comm = ctx.comm()?;
    comm.enqueue(&[op])?;
    comm.synchronize()
}
