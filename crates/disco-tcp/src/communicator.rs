//! The communicator that a rank holds.

use std::cell::Cell;
use std::fmt;
use std::sync::Arc;

use disco_core::env::Variable;
use disco_core::op::{self, Claims, Steps};
use disco_core::work::Background;
use disco_core::{Abort, Capabilities, ConnectParams, Error, Op, Rank, Rendezvous, Result, Work};

use crate::NAME;
use crate::alarm::Alarm;
use crate::contact::{INTERFACES, Network};
use crate::machines::Machines;
use crate::party::Party;
use crate::rank_state::RankState;
use crate::rendezvous::Meeting;

/// One rank, with a connection to each other one. It may be sent to another thread.
///
/// If a communicator is dropped while peers wait for its rank, their operations fail with [`Error::Lost`].
pub struct Communicator {
    state: Background<RankState>,
    rank: Rank,
    size: usize,
    alarm: Arc<Alarm>,
}

const _: fn() = || {
    fn moves<T: Send>() {}
    moves::<Communicator>();
};

impl Communicator {
    /// Like [`Backend::connect`](disco_core::Backend::connect), but without `local` in a session of one machine.
    ///
    /// # Errors
    /// [`Error::Deadline`] with the ranks that have not arrived, or with the addresses that were tried; [`Error::Aborted`];
    /// [`Error::Unsupported`] on a device; `DISCO_ENCRYPT` is neither 0 nor 1; an interface of `DISCO_TCP_INTERFACES` is missing.
    pub fn connect(params: ConnectParams<'_>, at: &Rendezvous) -> Result<Self> {
        let machines: Vec<_> = (0..params.world.size()).map(|rank| rank / params.world.per_node()).collect();
        Self::connect_on(params, at, &machines)
    }

    /// Like [`connect`](Self::connect), with the machine of each rank: of large tensors, less goes from one machine to another
    /// if several ranks are on one. All ranks give the same numbers, and ranks of one machine have the same one.
    ///
    /// # Errors
    /// As [`connect`](Self::connect); [`Error::Invalid`] unless there is a number for each rank.
    pub fn connect_on(params: ConnectParams<'_>, at: &Rendezvous, machines: &[usize]) -> Result<Self> {
        let device = params.queue.device();
        if !device.is_host() {
            let operation = format!("connect on {device}");
            return Err(Error::Unsupported { backend: NAME, operation, dtype: None });
        }
        let meeting = Meeting::read(at)?;
        let (rank, size) = (params.rank.index(), params.world.size());
        if rank >= size {
            return Err(Error::invalid(format!("connect: rank {rank} of {size} ranks does not exist")));
        }
        if machines.len() != size {
            return Err(Error::invalid(format!(
                "connect: the machines of {} ranks, but there are {size}",
                machines.len()
            )));
        }
        let name = |name: &str| Some(name.to_owned()).filter(|name| !name.is_empty());
        let interfaces = Variable::read(INTERFACES).list("names of interfaces", "eth0,eth1", name)?;
        let alarm = Alarm::new(None)?;
        // Registered before the first wait.
        params.link.on_abort(&(alarm.clone() as Arc<dyn Abort>));
        let party = Party {
            name: meeting.name(),
            key: meeting.key()?,
            rank,
            size,
            machines: Arc::new(Machines::new(machines.iter().copied())),
            descriptors: params.link.descriptors().clone(),
            encrypts: match params.uplink {
                Some(uplink) => uplink.is_encrypted,
                None => Variable::read("DISCO_ENCRYPT").flag()?.unwrap_or(true),
            },
            network: Network { interfaces, uplink: params.uplink },
            deadline: params.connect_deadline,
        };
        RankState::new(party, params.link.store(), alarm.clone(), params.deadline).map(|state| Self::new(state, alarm))
    }

    fn new(state: RankState, alarm: Arc<Alarm>) -> Self {
        Self { rank: state.rank(), size: state.size(), state: Background::new(state), alarm }
    }

    fn check(&self, ops: &[Op]) -> Result<()> {
        op::check_ops(ops, self.rank, self.size)?;
        op::check_host(ops, NAME)
    }

    /// Runs operations whose arguments are checked.
    #[allow(unsafe_code)]
    fn run(&mut self, ops: &[Op]) -> Result<()> {
        let state = self.state.state()?;
        let mut claims = Claims::default();
        claims.claim(ops)?;
        // SAFETY: the operations are checked, and the claims are dropped after the call.
        unsafe { state.run(ops) }
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
        self.size
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities::all()
    }

    fn enqueue(&mut self, ops: &[Op]) -> Result<()> {
        self.check(ops)?;
        if !op::has_custom(ops) {
            return self.run(ops);
        }
        let (rank, size) = (self.rank, self.size);
        if let Some(first) = ops.first() {
            self.state.state()?.check_unbroken(|| first.signature(size))?;
        }
        Claims::check(ops)?;
        let result = op::run_in_steps(self, rank, size, ops);
        // A step that has failed has broken the communicator already.
        result.map_err(|error| match self.state.state() {
            Ok(state) if !state.is_broken() => state.fail(error),
            _ => error,
        })
    }

    #[allow(unsafe_code)]
    fn start(&mut self, ops: &[Op]) -> Result<Work> {
        if ops.is_empty() || op::has_custom(ops) {
            return self.enqueue(ops).map(|()| Work::done());
        }
        self.check(ops)?;
        let mut claims = Claims::default();
        claims.claim(ops)?;
        let (ops, claimed) = (ops.to_vec(), Cell::new(claims.keep()));
        self.state.start(move |state| {
            let claimed = claimed.take();
            // SAFETY: the operations are checked, and the claims are dropped after the call.
            let result = unsafe { state.run(&ops) };
            drop(claimed);
            result
        })
    }

    fn split(&mut self, color: Option<u32>, key: i32) -> Result<Option<Box<dyn disco_core::Communicator>>> {
        let child = self.state.state()?.split(color, key)?;
        Ok(child.map(|(state, alarm)| Box::new(Self::new(state, alarm)) as _))
    }

    fn synchronize(&mut self) -> Result<()> {
        self.state.state()?.check_unbroken(|| "synchronize".into())
    }

    fn aborter(&self) -> Arc<dyn Abort> {
        self.alarm.clone()
    }
}

impl fmt::Debug for Communicator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "<tcp {} of {}>", self.rank, self.size)
    }
}
