//! The communicator that a rank holds.

use std::cell::Cell;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use disco_core::activity::Activity;
use disco_core::op::{self, Claims, Steps};
use disco_core::work::Background;
use disco_core::{Abort, Capabilities, ConnectParams, Error, Op, Rank, Reduction, Rendezvous, Result, Work};

use crate::NAME;
use crate::address_space::AddressSpace;
use crate::failure::Failure;
use crate::group::Group;
use crate::meeting::Token;
use crate::seat::Seat;
use crate::{machine, meeting, parts, processes};

/// One rank of a group of threads or processes. It may be sent to another thread.
///
/// If a communicator is dropped while peers wait for its rank, their operations fail with [`Error::Lost`].
pub struct Communicator {
    group: Arc<Group>,
    rank: Rank,
    deadline: Duration,
    seat: Background<Seat>,
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
        if rank >= size {
            return Err(Error::invalid(format!("connect: rank {rank} of {size} ranks does not exist")));
        }
        if params.world.nodes() > 1 {
            machine::check(&*params.link.store(), token, rank)?;
        }
        let group = match params.link.arena() {
            None => meeting::meet(token, rank, size, params.connect_deadline, &params.link),
            Some(_) => processes::meet(token, rank, size, params.connect_deadline, &params.link),
        };
        let group = group.map_err(|error| processes::during("connect", error))?;
        let timeline = params.link.activity().has_timeline().then(|| params.link.activity().clone());
        Ok(Self::new(group, params.rank, params.deadline, timeline))
    }

    fn new(group: Arc<Group>, rank: Rank, deadline: Duration, timeline: Option<Arc<Activity>>) -> Self {
        let seat = Background::new(Seat::new(group.clone(), rank, deadline));
        Self { group, rank, deadline, seat, timeline }
    }

    fn check(&self, ops: &[Op]) -> Result<()> {
        op::check_ops(ops, self.rank, self.group.size())?;
        op::check_host(ops, NAME)
    }

    /// Whether a row of a program's reduction has no room in a piece of a staging area. The same on all ranks.
    fn has_large_rows(&self, ops: &[Op]) -> bool {
        let is_large = |op: &Op| match op.reduction() {
            Some(Reduction::Custom(_)) => parts::unit(op) > self.group.board.block_bytes(),
            _ => false,
        };
        matches!(self.group.address_space, AddressSpace::Processes(_)) && ops.iter().any(is_large)
    }

    /// Runs operations whose arguments are checked.
    #[inline(always)]
    fn run(&mut self, ops: &[Op]) -> Result<()> {
        let seat = self.seat.state()?;
        let Some(first) = ops.first() else { return Ok(()) };
        self.group.check_unbroken(|| first.signature(self.group.size()))?;
        let mut claims = Claims::default();
        claims.claim(ops)?;
        seat.run(ops, &|| claims.keep(), self.timeline.as_deref())
    }
}

impl Steps for Communicator {
    fn run_step(&mut self, op: Op) -> Result<()> {
        self.run(&[op])
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

    fn enqueue(&mut self, ops: &[Op]) -> Result<()> {
        self.check(ops)?;
        if !self.has_large_rows(ops) {
            return self.run(ops);
        }
        Claims::check(ops)?;
        let (rank, size) = (self.rank, self.group.size());
        let result = op::run_in_steps(self, rank, size, ops);
        result.inspect_err(|error| _ = self.group.fail(&Failure::of(rank.index(), error)))
    }

    fn start(&mut self, ops: &[Op]) -> Result<Work> {
        if ops.is_empty() || self.has_large_rows(ops) {
            return self.enqueue(ops).map(|()| Work::done());
        }
        self.check(ops)?;
        let mut claims = Claims::default();
        claims.claim(ops)?;
        let (ops, claimed, shared) = (ops.to_vec(), Cell::new(claims.keep()), self.group.clone());
        self.seat.start(move |seat| {
            if let Some(first) = ops.first() {
                shared.check_unbroken(|| first.signature(shared.size()))?;
            }
            seat.run_in_background(&ops, &|| claimed.take())
        })
    }

    fn split(&mut self, color: Option<u32>, key: i32) -> Result<Option<Box<dyn disco_core::Communicator>>> {
        let child = self.seat.state()?.split(color, key)?;
        let timeline = self.timeline.clone();
        Ok(child.map(|child| Box::new(Self::new(child.group, child.rank, self.deadline, timeline)) as _))
    }

    fn synchronize(&mut self) -> Result<()> {
        self.seat.state()?;
        self.group.check_unbroken(|| "synchronize".into())
    }

    fn aborter(&self) -> Arc<dyn Abort> {
        self.group.clone()
    }
}

impl fmt::Debug for Communicator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "<local {} of {}>", self.rank, self.group.size())
    }
}
