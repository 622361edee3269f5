//! A communicator wrapper that records operations and optionally compares them between ranks.

use std::any::Any;
use std::cell::Cell;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use crate::abort::{Abort, AbortCause};
use crate::activity::{CommKind, OpPlace, OpState, Running};
use crate::communicator::{Capabilities, Communicator};
use crate::error::{Error, Result};
use crate::id::Rank;
use crate::link::Link;
use crate::metrics;
use crate::op::{self, Claims, Op};
use crate::signal::CallOps;
use crate::work::{Notes, Work};

/// Records each operation in the worker's [`Activity`](crate::activity::Activity). If `check` is set, it exchanges
/// signatures through the store before each collective, so that a mismatch is an error on every rank with any backend.
#[derive(Debug)]
pub(super) struct Watched {
    inner: Box<dyn Communicator>,
    /// Name of the communicator: the same on all ranks and unique in the session's epoch.
    name: String,
    link: Arc<Link>,
    deadline: Duration,
    /// Set if signatures are compared.
    check: Option<Arc<Aborted>>,
    /// Which workers are the ranks. The collectives of all workers are counted for each call.
    kind: CommKind,
    checks: Cell<u64>,
    splits: u64,
    /// The communicator in records, and the number of its last collective.
    at: OpPlace,
    /// Number of the last send or receive.
    transfers: u64,
    /// Started operations, except for those that have ended without an error.
    started: Vec<Work>,
}

/// Hears why the communicators of a worker are aborted, since waits in the store do not.
#[derive(Debug, Default)]
struct Aborted(OnceLock<AbortCause>);

impl Aborted {
    fn listen(link: &Link) -> Arc<Self> {
        let aborted = Arc::<Self>::default();
        link.on_abort(&(aborted.clone() as Arc<dyn Abort>));
        aborted
    }
}

impl Abort for Aborted {
    fn abort(&self, cause: &AbortCause) {
        self.0.get_or_init(|| cause.clone());
    }
}

impl Watched {
    /// A communicator of this kind. With `check`, it compares the signatures of all ranks.
    pub(super) fn new(
        inner: Box<dyn Communicator>,
        name: String,
        kind: CommKind,
        link: Arc<Link>,
        deadline: Duration,
        check: bool,
    ) -> Self {
        let at = OpPlace::new(link.activity().intern_comm(&name, kind), 0);
        let check = check.then(|| Aborted::listen(&link));
        Self {
            inner,
            name,
            link,
            deadline,
            check,
            kind,
            checks: Cell::new(0),
            splits: 0,
            at,
            transfers: 0,
            started: Vec::new(),
        }
    }

    /// Splits into groups of consecutive ranks, which keep their order; this rank is in `group`.
    pub(super) fn split_group(&mut self, group: u32) -> Result<Option<Self>> {
        let inner = self.inner.split(Some(group), self.rank().index() as i32)?;
        Ok(inner.map(|inner| self.part(inner, CommKind::Group, format!("group {group}"))))
    }

    /// Splits into the sets of `scope`; this rank becomes `rank` of the `ranks` ranks of `set`. `number` counts these
    /// splits. All ranks must use the same scope as rank 0.
    pub(super) fn split_along(
        &mut self,
        scope: &str,
        number: usize,
        set: usize,
        (rank, ranks): (Rank, usize),
    ) -> Result<Self> {
        let (me, store) = (self.rank(), self.link.store());
        let key = format!("scope {} {number}", self.name);
        if me.index() == 0 {
            store.set(&key, scope.as_bytes())?;
        }
        let inner = {
            let _operation = self.link.begin_operation(CallOps::Other, self.deadline)?;
            let split = self.inner.split(Some(set as u32), rank.index() as i32);
            let named = |error| in_operation("comm_in", self.link.error_of_operation(error));
            split.map_err(named)?.ok_or(Error::NoCommunicator)?
        };
        // Rank 0 has set the key before the split.
        let theirs = self.link.await_key(&*store, &key, self.deadline, || Ok(()))?;
        let theirs = String::from_utf8_lossy(&theirs);
        let (found, size) = (inner.rank(), inner.size());
        let detail = if theirs != scope {
            format!("{me} splits along {scope}, rank 0 along {theirs}")
        } else if (found, size) != (rank, ranks) {
            format!("{me} splits along {scope} and becomes {found} of {size}, not {rank} of {ranks}")
        } else {
            return Ok(self.part(inner, CommKind::Split(rank), format!("split {scope}, set {set}")));
        };
        let error = Error::Mismatch { operation: "comm_in".to_owned(), detail };
        self.inner.aborter().abort(&error.to_string().into());
        Err(error)
    }

    /// The communicator that a split has made, with `which` behind the name of this one. A part of a split is a split.
    fn part(&self, inner: Box<dyn Communicator>, kind: CommKind, which: String) -> Self {
        let kind = match self.kind {
            CommKind::Split(_) => CommKind::Split(inner.rank()),
            _ => kind,
        };
        let name = format!("{}, {which}", self.name);
        Self::new(inner, name, kind, self.link.clone(), self.deadline, self.check.is_some())
    }

    /// Waits for all operations, in a call that has begun none of them. Broken by a cancellation, the communicator has none
    /// left to wait for.
    pub(super) fn complete(&mut self) -> Result<()> {
        match self.synchronize_all()? {
            Err(
                Error::Aborted { cause: AbortCause::Cancelled { .. } }
                | Error::Broken { cause: AbortCause::Cancelled { .. }, .. },
            ) => Ok(()),
            synchronized => synchronized,
        }
    }

    /// Waits for all operations. Fails with the error of a started operation that nobody has seen, which must not pass for
    /// complete; otherwise, returns the result of the communicator.
    fn synchronize_all(&mut self) -> Result<Result<()>> {
        let _wait = self.link.begin_wait();
        let synchronized = self.inner.synchronize();
        self.started.drain(..).try_for_each(|work| work.unseen_error().map_or(Ok(()), Err))?;
        Ok(synchronized)
    }

    /// Whether the communicator takes operations.
    pub(super) fn is_whole(&mut self) -> bool {
        self.inner.synchronize().is_ok()
    }

    /// Runs `run`, which runs `ops`, and records them.
    #[inline]
    fn watch(&mut self, ops: &[Op], run: impl FnOnce(&mut dyn Communicator) -> Result<()>) -> Result<()> {
        self.record(ops, run, |(), running, measured| {
            running.end(true);
            measured.end(true);
        })
    }

    /// Records `ops`, which `run` starts, until the end that `go_on` notes.
    #[inline]
    fn record<T: Default>(
        &mut self,
        ops: &[Op],
        run: impl FnOnce(&mut dyn Communicator) -> Result<T>,
        go_on: impl FnOnce(&T, Running<'_>, metrics::Running),
    ) -> Result<T> {
        let Some((first, more)) = ops.split_first() else { return Ok(T::default()) };
        let is_point_to_point = first.kind().is_point_to_point();
        let is_counted = self.kind == CommKind::World && !is_point_to_point;
        let begun = if is_counted { CallOps::Collectives(ops.len() as u64) } else { CallOps::Other };
        let mut operation = self.link.begin_operation(begun, self.deadline)?;
        let size = self.inner.size();
        let number = if is_point_to_point { &mut self.transfers } else { &mut self.at.number };
        let before = *number;
        *number += ops.len() as u64;
        let at = OpPlace { number: before + 1, ..self.at };
        let running = self.link.activity().start_ops(first, more, size, at);
        let measured = metrics::Running::start(ops);
        let checked = self.check.as_ref().map_or(Ok(()), |aborted| self.compare_all(aborted, ops));
        let started = checked.and_then(|()| run(&mut *self.inner));
        let started = started.map_err(|error| self.link.error_of_operation(error));
        match &started {
            Ok(work) => go_on(work, running, measured),
            Err(_) => {
                let state = OpState::of_result(&started);
                running.end_as(state);
                measured.end(false);
                if state == OpState::Refused {
                    // No other rank knows of it.
                    operation.withdraw();
                    *(if is_point_to_point { &mut self.transfers } else { &mut self.at.number }) = before;
                }
            }
        }
        started
    }

    /// Compares the signatures of the collectives of a group with those of all ranks, if this rank can begin the group.
    fn compare_all(&self, aborted: &Aborted, ops: &[Op]) -> Result<()> {
        op::check_ops(ops, self.rank(), self.size())?;
        Claims::check(ops)?;
        ops.iter().filter(|op| !op.kind().is_point_to_point()).try_for_each(|op| self.compare(aborted, op))
    }

    /// Compares the signature of a collective with those of all ranks.
    fn compare(&self, aborted: &Aborted, op: &Op) -> Result<()> {
        let number = self.checks.get() + 1;
        self.checks.set(number);
        let (rank, size) = (self.rank(), self.size());
        let mine = op.signature(size);
        let go_on = || match aborted.0.get() {
            Some(cause) => Err(Error::Broken { operation: mine.clone(), cause: cause.clone() }),
            None => Ok(()),
        };
        let start = Instant::now();
        let key = |number: u64, rank: usize| format!("check {}: {number} of {rank}", self.name);
        let store = self.link.store();
        store.set(&key(number, rank.index()), mine.as_bytes())?;
        for peer in (0..size).filter(|peer| *peer != rank.index()) {
            let left = self.deadline.saturating_sub(start.elapsed());
            let theirs =
                self.link.await_key(&*store, &key(number, peer), left, go_on).map_err(|error| match error {
                    Error::Deadline { .. } => Error::Deadline {
                        operation: mine.clone(),
                        after: self.deadline,
                        state: format!("{} has not arrived", Rank::new(peer as u32)),
                    },
                    other => other,
                })?;
            let theirs = String::from_utf8_lossy(&theirs);
            if theirs != mine {
                let peer = Rank::new(peer as u32);
                let detail = format!("{rank} calls {mine}, {peer} calls {theirs}");
                let error = Error::Mismatch { operation: op.kind().to_string(), detail };
                self.inner.aborter().abort(&error.to_string().into());
                return Err(error);
            }
        }
        // A rank that reaches this check has read all keys of the previous check.
        store.delete(&key(number - 1, rank.index()))?;
        Ok(())
    }
}

impl Communicator for Watched {
    fn rank(&self) -> Rank {
        self.inner.rank()
    }

    fn size(&self) -> usize {
        self.inner.size()
    }

    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    fn enqueue(&mut self, ops: &[Op]) -> Result<()> {
        self.watch(ops, |inner| inner.enqueue(ops))
    }

    fn start(&mut self, ops: &[Op]) -> Result<Work> {
        let link = self.link.clone();
        let work = self.record(
            ops,
            |inner| inner.start(ops),
            |work, running, measured| {
                let background = link.go_to_background();
                let error = move |error| background.error(error);
                work.note(Notes::new(running.go_on(link.activity()), measured, error));
            },
        )?;
        self.started.retain(|work| !work.has_ended_well());
        self.started.push(work.clone());
        Ok(work)
    }

    fn split(&mut self, color: Option<u32>, key: i32) -> Result<Option<Box<dyn Communicator>>> {
        let inner = {
            let _operation = self.link.begin_operation(CallOps::Other, self.deadline)?;
            self.inner.split(color, key).map_err(|error| self.link.error_of_operation(error))?
        };
        self.splits += 1;
        let which = format!("split {} color {color:?}", self.splits);
        Ok(inner.map(|inner| {
            let kind = CommKind::Split(inner.rank());
            Box::new(self.part(inner, kind, which)) as Box<dyn Communicator>
        }))
    }

    fn synchronize(&mut self) -> Result<()> {
        self.synchronize_all()?
    }

    fn aborter(&self) -> Arc<dyn Abort> {
        self.inner.aborter()
    }

    fn extension(&mut self) -> Option<&mut dyn Any> {
        self.inner.extension()
    }

    fn enqueue_with(&mut self, ops: &[Op], launch: &mut dyn FnMut(&mut dyn Any) -> Result<()>) -> Result<()> {
        self.watch(ops, |inner| inner.enqueue_with(ops, launch))
    }
}

/// The error of a step of `operation`, with both names.
fn in_operation(operation: &str, error: Error) -> Error {
    match error {
        Error::Deadline { operation: step, after, state } => {
            Error::Deadline { operation: format!("{operation}, in its {step}"), after, state }
        }
        Error::Broken { cause, .. } => Error::Broken { operation: operation.to_owned(), cause },
        Error::Mismatch { operation: step, detail } => {
            Error::Mismatch { operation: format!("{operation}, in its {step}"), detail }
        }
        error => error,
    }
}

/// A peer that waits for this rank in a cancelled call may learn of the cancellation later.
impl Drop for Watched {
    fn drop(&mut self) {
        let command = self.link.activity().received();
        if let Some(why) = self.link.cancelled(command) {
            self.inner.aborter().abort(&AbortCause::Cancelled { command, why });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A communicator whose extension counts the operations started through it.
    #[derive(Debug)]
    struct Counting(Option<u32>);

    impl Communicator for Counting {
        fn rank(&self) -> Rank {
            Rank::new(0)
        }

        fn size(&self) -> usize {
            1
        }

        fn capabilities(&self) -> Capabilities {
            Capabilities::all()
        }

        fn enqueue(&mut self, _: &[Op]) -> Result<()> {
            Ok(())
        }

        fn split(&mut self, _: Option<u32>, _: i32) -> Result<Option<Box<dyn Communicator>>> {
            Ok(None)
        }

        fn synchronize(&mut self) -> Result<()> {
            Ok(())
        }

        fn aborter(&self) -> Arc<dyn Abort> {
            unreachable!("nothing is aborted")
        }

        fn extension(&mut self) -> Option<&mut dyn Any> {
            self.0.as_mut().map(|count| count as &mut dyn Any)
        }
    }

    /// Starts a barrier through the extension. Returns the result, the extension and the state of the operation.
    fn launch(inner: Counting) -> (Result<()>, Option<u32>, OpState) {
        let link = Arc::new(Link::bare(Arc::default()));
        let mut comm =
            Watched::new(Box::new(inner), "plane".into(), CommKind::World, link.clone(), Duration::MAX, false);
        let result = comm.enqueue_with(&[Op::Barrier], &mut |extension| {
            *extension.downcast_mut::<u32>().unwrap() += 1;
            Ok(())
        });
        let count = comm.extension().and_then(|extension| extension.downcast_ref::<u32>().copied());
        (result, count, link.activity().progress().ops[0].state)
    }

    #[test]
    fn operations_of_an_extension_are_recorded() {
        let (result, count, state) = launch(Counting(Some(0)));
        assert!(result.is_ok());
        assert_eq!((count, state), (Some(1), OpState::Done));
        let (result, count, state) = launch(Counting(None));
        assert_eq!(result.unwrap_err().to_string(), "this backend does not support enqueue_with");
        assert_eq!((count, state), (None, OpState::Refused));
    }
}
