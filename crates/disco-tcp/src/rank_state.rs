//! The part of a communicator that its operations use, one after the other.

use std::sync::Arc;
use std::time::{Duration, Instant};

use disco_core::activity::{DataPath, take_path};
use disco_core::wire::{Reader, Writer};
use disco_core::{AbortCause, Attendance, Error, Op, Rank, Result, Store};

use crate::alarm::Alarm;
use crate::buffers::Buffers;
use crate::collective::Collective;
use crate::connect::{self, Links};
use crate::exchange;
use crate::goodbye::{self, Leaving};
use crate::head::Kind;
use crate::machines::Machines;
use crate::party::Party;
use crate::plan::{Label, Plan};
use crate::point_to_point::{self, Counts};
use crate::wires::{Call, Calls, Wires, is_unanswered};

/// How long a rank whose connection to another one ends looks for the failure that the other one has recorded.
const FAILURE_GRACE: Duration = Duration::from_millis(200);

/// The place of a rank among the others. Dropping it tells them that the rank has left.
pub(crate) struct RankState {
    party: Arc<Party>,
    links: Links,
    alarm: Arc<Alarm>,
    store: Arc<dyn Store>,
    attendance: Attendance,
    /// Limit of an operation, from its call.
    deadline: Duration,
    calls: Calls,
    messages: Vec<Counts>,
    /// Ranks to which a message was cut in two by a failure.
    cut: Vec<usize>,
    broken: Option<AbortCause>,
}

impl RankState {
    /// Connects to the other ranks.
    ///
    /// # Errors
    /// As [`connect::connect`].
    pub(crate) fn new(party: Party, store: Arc<dyn Store>, alarm: Arc<Alarm>, deadline: Duration) -> Result<Self> {
        let party = Arc::new(party);
        let (links, contacts) = connect::connect(&party, &*store, &alarm)?;
        let hosts: Vec<_> = contacts.iter().map(|contact| &*contact.host).collect();
        tracing::debug!(rank = party.rank, ?hosts, "connected");
        let attendance = Attendance::new(store.clone(), party.name.clone(), party.rank, party.size);
        let messages = vec![Counts::default(); party.size];
        let (calls, cut, broken) = (Calls::default(), Vec::new(), None);
        Ok(Self { party, links, alarm, store, attendance, deadline, calls, messages, cut, broken })
    }

    pub(crate) fn rank(&self) -> Rank {
        Rank::new(self.party.rank as u32)
    }

    pub(crate) fn size(&self) -> usize {
        self.party.size
    }

    /// Whether an operation has failed.
    pub(crate) fn is_broken(&self) -> bool {
        self.broken.is_some()
    }

    /// Refuses an operation after a failure.
    ///
    /// # Errors
    /// [`Error::Broken`].
    pub(crate) fn check_unbroken(&mut self, operation: impl FnOnce() -> String) -> Result<()> {
        if let Some(cause) = self.alarm.cause().filter(|_| self.broken.is_none()).cloned() {
            self.break_off(cause);
        }
        match &self.broken {
            None => Ok(()),
            Some(cause) => Err(Error::Broken { operation: operation(), cause: cause.clone() }),
        }
    }

    /// Runs a group of operations.
    ///
    /// # Errors
    /// As [`disco_core::Communicator::enqueue`].
    ///
    /// # Safety
    /// `Op::check` has accepted the operations, and their tensors are in the memory of the host and claimed until the call
    /// returns.
    #[allow(unsafe_code)]
    pub(crate) unsafe fn run(&mut self, ops: &[Op]) -> Result<()> {
        let Some(first) = ops.first() else { return Ok(()) };
        let (me, size) = (self.party.rank, self.size());
        self.check_unbroken(|| first.signature(size))?;
        take_path(DataPath::Tcp);
        let result = if first.kind().is_point_to_point() {
            // SAFETY: the caller guarantees it.
            let buffers = ops.iter().map(|op| unsafe { Buffers::of(op, me) }).collect();
            self.point_to_point(ops, buffers)
        } else {
            ops.iter().try_for_each(|op| {
                // SAFETY: the caller guarantees it.
                self.collective(op, unsafe { Buffers::of(op, me) })
            })
        };
        result.map_err(|error| self.fail(error))
    }

    fn point_to_point(&mut self, ops: &[Op], buffers: Vec<Buffers<'_>>) -> Result<()> {
        let first = ops.first().map(|op| (op.signature(self.size()), op.kind().name()));
        let (text, name) = first.unwrap_or_default();
        let call = Call { kind: Kind::Send, text: &text, number: 0 };
        let mut messages = std::mem::take(&mut self.messages);
        let result = point_to_point::run(call, &mut self.wires(name), ops, buffers, &mut messages);
        self.messages = messages;
        result
    }

    fn collective(&mut self, op: &Op, buffers: Buffers<'_>) -> Result<()> {
        let (me, size) = (self.party.rank, self.size());
        let text: Arc<str> = op.signature(size).into();
        let number = self.calls.add(text.clone());
        let call = Call { kind: Kind::Collective, text: &text, number };
        let machines = self.party.machines.clone();
        Collective { call, wires: &mut self.wires(op.kind().name()), machines: &machines, me, size }.run(op, buffers)
    }

    /// The connections, for the next operation.
    fn wires(&mut self, operation: &'static str) -> Wires<'_> {
        Wires {
            links: &mut self.links,
            cut: &mut self.cut,
            alarm: &self.alarm,
            attendance: &self.attendance,
            calls: &self.calls,
            rank: self.party.rank,
            operation,
            deadline: self.deadline,
            start: Instant::now(),
        }
    }

    /// The place of this rank in the child with its color, and the child's alarm.
    ///
    /// # Errors
    /// As [`disco_core::Communicator::split`].
    pub(crate) fn split(&mut self, color: Option<u32>, key: i32) -> Result<Option<(Self, Arc<Alarm>)>> {
        self.check_unbroken(|| "split".into())?;
        self.split_off(color, key).map_err(|error| self.fail(error))
    }

    fn split_off(&mut self, color: Option<u32>, key: i32) -> Result<Option<(Self, Arc<Alarm>)>> {
        let mut request = Writer::default();
        request.u32(color.is_some().into());
        request.u32(color.unwrap_or_default());
        request.u32(key.cast_unsigned());
        let request = request.into_bytes();
        let requests = self.gather(&request)?;
        self.attendance.split();
        let mut members = Vec::new();
        for (rank, bytes) in requests.iter().enumerate() {
            let mut reader = Reader::new(bytes);
            let (has_color, theirs, key) = (reader.u32()?, reader.u32()?, reader.u32()?.cast_signed());
            if color.is_some_and(|color| has_color == 1 && theirs == color) {
                members.push((key, rank));
            }
        }
        members.sort_unstable();
        let place = members.iter().position(|(_, rank)| *rank == self.party.rank);
        let child = match (color, place) {
            (Some(color), Some(rank)) => Some(self.child(color, rank, &members)?),
            _ => None,
        };
        // If a rank fails to make its child, all ranks fail.
        self.gather(&[])?;
        Ok(child)
    }

    fn child(&self, color: u32, rank: usize, members: &[(i32, usize)]) -> Result<(Self, Arc<Alarm>)> {
        let size = members.len();
        let name = self.attendance.child(color, rank, size).name().to_owned();
        let machines = Arc::new(Machines::new(members.iter().map(|(_, rank)| self.party.machines.of(*rank))));
        let party = Party { name, rank, size, machines, ..Party::clone(&self.party) };
        let alarm = party.record(&*self.store, Alarm::new(Some(&self.alarm)))?;
        Ok((Self::new(party, self.store.clone(), alarm.clone(), self.deadline)?, alarm))
    }

    /// Gathers bytes of all ranks, which all have the same number, for a split.
    fn gather(&mut self, mine: &[u8]) -> Result<Vec<Vec<u8>>> {
        let number = self.calls.add("split".into());
        let (me, size) = (self.party.rank, self.size());
        let call = Call { kind: Kind::Collective, text: "split", number };
        let label = Label { number: call.number, text: None };
        let mut all = vec![vec![0; mine.len()]; size];
        all[me].copy_from_slice(mine);
        let mut plan = Plan::default();
        let mine = plan.read(mine);
        for (peer, bytes) in all.iter_mut().enumerate().filter(|(peer, _)| *peer != me) {
            let theirs = plan.write(bytes);
            plan.send(peer, label, mine.clone(), None);
            plan.receive(peer, label, theirs, None);
        }
        exchange::run(plan, call, &mut self.wires("split"))?;
        Ok(all)
    }

    /// Breaks the communicator with the error of an operation, and ends the connections, so that the other ranks learn of it.
    /// Returns the error of this rank: if another one has failed before, an abort with its cause.
    pub(crate) fn fail(&mut self, error: Error) -> Error {
        let error = match error {
            // The cause of an end may follow soon, but not that of a machine which has been silent for a while.
            Error::Lost(loss) => match self.recorded(!is_unanswered(&loss.cause)) {
                Ok(Some(cause)) | Err(Error::Aborted { cause }) => Error::Aborted { cause },
                _ => Error::Lost(loss),
            },
            error => error,
        };
        let cause = match AbortCause::of(&error) {
            AbortCause::Failed(_) if !matches!(error, Error::Aborted { .. }) => {
                format!("rank {}: {error}", self.party.rank).into()
            }
            cause => cause,
        };
        self.break_off(cause);
        error
    }

    /// The cause that another rank has recorded, as it does before it ends its connections. If it `waits`, one that is recorded soon.
    fn recorded(&self, waits: bool) -> Result<Option<AbortCause>> {
        let wait = || self.store.wait(&self.failure_key(), FAILURE_GRACE);
        let found = match waits.then(wait) {
            // A busy controller may answer later than that.
            None | Some(Err(Error::Deadline { .. })) => self.store.get(&self.failure_key())?,
            Some(found) => Some(found?),
        };
        let cause = found.and_then(|bytes| goodbye::read_cause(&bytes));
        if cause.is_none() {
            // A rank that has not reached a third one has never been in an operation.
            self.party.check_others(&*self.store)?;
        }
        Ok(cause)
    }

    /// Records the cause for the other ranks, and closes the connections, which ends their waits for this rank.
    fn break_off(&mut self, cause: AbortCause) {
        // A store that has failed tells the other ranks nothing: they learn the cause from the goodbyes only.
        _ = self.store.compare_and_set(&self.failure_key(), None, &goodbye::write_cause(&cause, usize::MAX));
        self.leave(Some(&cause));
        self.broken = Some(cause);
    }

    /// Ends the connections.
    fn leave(&mut self, cause: Option<&AbortCause>) {
        let links = self.links.iter_mut().map(Option::take).enumerate();
        let leaving =
            |(peer, link): (usize, Option<_>)| Some(Leaving { link: link?, is_cut: self.cut.contains(&peer) });
        goodbye::leave(links.filter_map(leaving).collect(), cause);
    }

    fn failure_key(&self) -> String {
        format!("{}: failure", self.party.name)
    }
}

impl Drop for RankState {
    fn drop(&mut self) {
        // An aborted rank may be in no operation.
        let cause = self.alarm.cause().cloned();
        self.leave(cause.as_ref());
    }
}
