//! The communicator that a rank holds.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use disco_core::activity::Activity;
use disco_core::op::{self, Claims};
use disco_core::{Abort, Capabilities, ConnectParams, Error, Op, Rank, Rendezvous, Result};

use crate::NAME;
use crate::active_call::{ActiveCall, Counters};
use crate::agree::Call;
use crate::board::Presence;
use crate::group::Group;
use crate::meeting::Token;
use crate::{collective, machine, meeting, point_to_point, processes, split};

/// One rank of a group of threads or processes. It may be sent to another thread.
///
/// If a communicator is dropped while peers wait for its rank, their operations fail with [`Error::Lost`].
pub struct Communicator {
    group: Arc<Group>,
    rank: Rank,
    deadline: Duration,
    counters: Counters,
    /// The data that all ranks post in an eager collective.
    buffer: Box<[u8]>,
    /// Records this rank's waits for other ranks; `None` without a timeline.
    timeline: Option<Arc<Activity>>,
}

const _: fn() = || {
    fn moves<T: Send>() {}
    moves::<Communicator>();
};

/// Makes communicators of `ranks` ranks without a session, in rank order. Each is for a thread of its own. `deadline`
/// limits each collective, from its call.
///
/// # Errors
/// `ranks` is 0, or exceeds the range of [`Rank`].
pub fn connect_threads(ranks: usize, deadline: Duration) -> Result<Vec<Communicator>> {
    let last = ranks.checked_sub(1).and_then(|last| u32::try_from(last).ok());
    let last = last.ok_or_else(|| Error::invalid(format!("{ranks} ranks make no communicator")))?;
    let group = Group::present(ranks);
    Ok((0..=last).map(|rank| Communicator::new(group.clone(), Rank::new(rank), deadline, None)).collect())
}

impl Communicator {
    /// Like [`Backend::connect`](disco_core::Backend::connect), but returns the concrete type. If the link has an
    /// arena, ranks may be in several processes of this machine; otherwise all ranks are threads of this process.
    ///
    /// # Errors
    /// [`Error::Deadline`] with the ranks that have not arrived; [`Error::Aborted`]; [`Error::Mismatch`] if ranks
    /// expect different numbers of ranks; [`Error::Invalid`] for a rank outside the world; errors of the system or the
    /// link when memory is allocated or mapped.
    pub fn connect(params: ConnectParams<'_>, at: &Rendezvous) -> Result<Self> {
        let device = params.queue.device();
        if !device.is_host() {
            let operation = format!("connect on {device}");
            return Err(Error::Unsupported { backend: NAME, operation, dtype: None });
        }
        let token = Token::from_bytes(at.as_bytes())?;
        let (rank, size) = (params.rank.index(), params.world.size());
        if params.world.nodes() > 1 {
            machine::check(&*params.link.store(), token, rank)?;
        }
        let group = match params.link.arena() {
            None => meeting::meet(token, rank, size, params.connect_deadline, &params.link)?,
            Some(_) => processes::meet(token, rank, size, params.connect_deadline, &params.link)?,
        };
        let timeline = params.link.activity().has_timeline().then(|| params.link.activity().clone());
        Ok(Self::new(group, params.rank, params.deadline, timeline))
    }

    fn new(group: Arc<Group>, rank: Rank, deadline: Duration, timeline: Option<Arc<Activity>>) -> Self {
        let buffer = vec![0; collective::buffer_bytes(group.size())].into();
        Self { group, rank, deadline, counters: Counters::default(), buffer, timeline }
    }
}

impl disco_core::Communicator for Communicator {
    fn rank(&self) -> Rank {
        self.rank
    }

    fn size(&self) -> usize {
        self.group.size()
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities::all()
    }

    fn enqueue(&mut self, group: &[Op]) -> Result<()> {
        op::check_group(group, self.rank, self.group.size())?;
        op::check_host(group, NAME)?;
        let Some(first) = group.first() else { return Ok(()) };
        self.group.check_unbroken(|| first.signature(self.group.size()))?;
        let mut claims = Claims::default();
        claims.claim(group)?;
        let keep = || claims.keep();
        let child = (&self.group, self.rank.index(), &mut self.counters);
        let mut call = ActiveCall::enter(child, self.deadline, Call::Op(first), Some(&keep));
        call.record_in(self.timeline.as_deref());
        let result = if first.kind().is_point_to_point() {
            point_to_point::run(&mut call, group)
        } else {
            group.iter().try_for_each(|op| collective::run(&mut call, &mut self.buffer, op))
        };
        call.leave(group.len(), result)
    }

    fn split(&mut self, color: Option<u32>, key: i32) -> Result<Option<Box<dyn disco_core::Communicator>>> {
        self.group.check_unbroken(|| Call::Split.name().to_owned())?;
        let member = (&self.group, self.rank.index(), &mut self.counters);
        let mut call = ActiveCall::enter(member, self.deadline, Call::Split, None);
        let child = split::run(&mut call, color, key);
        call.leave(1, child.as_ref().map(drop).map_err(Error::clone))?;
        let timeline = self.timeline.clone();
        Ok(child?.map(|child| Box::new(Self::new(child.group, child.rank, self.deadline, timeline)) as _))
    }

    fn synchronize(&mut self) -> Result<()> {
        self.group.check_unbroken(|| "synchronize".into())
    }

    fn aborter(&self) -> Arc<dyn Abort> {
        self.group.clone()
    }
}

impl Drop for Communicator {
    fn drop(&mut self) {
        self.group.board.set_presence(self.rank.index(), Presence::Left);
    }
}

impl fmt::Debug for Communicator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "<local {} of {}>", self.rank, self.group.size())
    }
}
