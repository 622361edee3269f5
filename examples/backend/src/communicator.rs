//! The communicator of one rank: deadlines, aborts and `split`.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::process;
use std::sync::Arc;
use std::sync::mpsc::RecvTimeoutError;
use std::time::{Duration, Instant};

use disco_core::error::{LossCause, LostPeer};
use disco_core::{
    Abort, Capabilities, Communicator, ConnectParams, DType, Error, Op, OpKind, Rank, Reduction, Rendezvous, Result,
};

use crate::hub::{Hub, Inbox, Message};
use crate::{NAME, collective};

/// The communicator of one rank.
pub(crate) struct MailboxCommunicator {
    hub: Arc<Hub>,
    rank: usize,
    inbox: Inbox,
    /// Messages of each peer that arrived while this rank waited for another peer.
    pending: Vec<VecDeque<Message>>,
    /// Limit of one operation.
    deadline: Duration,
    /// Deadline of the running operation, and its name for errors.
    until: Instant,
    operation: String,
}

impl MailboxCommunicator {
    /// Connects this rank, and waits until all ranks have connected.
    pub(crate) fn connect(params: ConnectParams<'_>, at: &Rendezvous) -> Result<Self> {
        let number =
            at.as_bytes().try_into().map_err(|_| Error::invalid(format!("{NAME}: a rendezvous has 8 bytes")))?;
        let number = u64::from_le_bytes(number);
        if number >> 32 != u64::from(process::id()) {
            return Err(Error::invalid(format!("{NAME} connects threads of one process; use a session of threads")));
        }
        let hub = Hub::meet(number, params.world.size());
        // From here on, the session aborts the hub when a worker fails.
        params.link.on_abort(&(hub.clone() as Arc<dyn Abort>));
        let mut comm = Self::new(hub, params.rank.index(), params.connect_deadline)?;
        comm.run("connect".into(), collective::barrier)?;
        comm.deadline = params.deadline;
        Ok(comm)
    }

    fn new(hub: Arc<Hub>, rank: usize, deadline: Duration) -> Result<Self> {
        let (inbox, size) = (hub.inbox(rank)?, hub.size());
        let pending = (0..size).map(|_| VecDeque::new()).collect();
        Ok(Self { hub, rank, inbox, pending, deadline, until: Instant::now(), operation: String::new() })
    }

    /// This rank's number.
    pub(crate) fn index(&self) -> usize {
        self.rank
    }

    /// The other ranks.
    pub(crate) fn peers(&self) -> impl Iterator<Item = usize> + use<> {
        let rank = self.rank;
        (0..self.hub.size()).filter(move |peer| *peer != rank)
    }

    /// Sends `bytes` to each of these ranks, without waiting.
    pub(crate) fn post(&self, to: impl IntoIterator<Item = usize>, bytes: &[u8]) {
        self.hub.post(self.rank, to.into_iter().map(|to| (to, Message::Bytes(bytes.to_vec()))));
    }

    /// Receives the next message of a rank, which must be `len` bytes.
    pub(crate) fn bytes(&mut self, from: usize, len: usize) -> Result<Vec<u8>> {
        match self.message(from)? {
            Message::Bytes(bytes) if bytes.len() == len => Ok(bytes),
            Message::Bytes(bytes) => Err(Error::Mismatch {
                operation: self.operation.clone(),
                detail: format!("rank {from} sent {} bytes, rank {} expects {len}", bytes.len(), self.rank),
            }),
            _ => Err(self.differs(from)),
        }
    }

    fn differs(&self, from: usize) -> Error {
        let detail = format!("rank {from} runs another operation than rank {}", self.rank);
        Error::Mismatch { operation: self.operation.clone(), detail }
    }

    /// Receives the next message of a rank. Waits until the deadline of the running operation, or an abort.
    fn message(&mut self, from: usize) -> Result<Message> {
        loop {
            // The check for an abort comes first: messages that were sent before the abort are still received.
            let abort_cause = self.hub.abort_cause();
            self.inbox.try_iter().for_each(|(sender, message)| self.pending[sender].push_back(message));
            self.pending[from].retain(|message| !matches!(message, Message::Wake));
            match self.pending[from].pop_front() {
                Some(Message::Dropped) => {
                    return Err(Error::peer_lost(
                        LostPeer::Rank(Rank::new(from as u32)),
                        LossCause::CommunicatorDropped,
                    ));
                }
                Some(message) => return Ok(message),
                None => {}
            }
            if let Some(cause) = abort_cause {
                return Err(Error::Aborted { cause });
            }
            match self.inbox.recv_timeout(self.until.saturating_duration_since(Instant::now())) {
                Ok((sender, message)) => self.pending[sender].push_back(message),
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {
                    return Err(Error::Deadline {
                        operation: self.operation.clone(),
                        after: self.deadline,
                        state: format!("rank {from} has sent nothing"),
                    });
                }
            }
        }
    }

    /// Runs an operation under the deadline. If it fails, the communicator is aborted on all ranks.
    fn run<T>(&mut self, operation: String, work: impl FnOnce(&mut Self) -> Result<T>) -> Result<T> {
        if let Some(cause) = self.hub.abort_cause() {
            return Err(Error::Broken { operation, cause });
        }
        // `Duration::MAX` means no limit; it can't be added to the time.
        let now = Instant::now();
        self.until = now.checked_add(self.deadline).unwrap_or(now + Duration::from_secs(u32::MAX.into()));
        self.operation = operation;
        let result = work(self);
        if let Err(error) = &result {
            self.hub.abort(&error.to_string().into());
        }
        result
    }
}

impl Communicator for MailboxCommunicator {
    fn rank(&self) -> Rank {
        Rank::new(self.rank as u32)
    }

    fn size(&self) -> usize {
        self.hub.size()
    }

    fn capabilities(&self) -> Capabilities {
        let moves = [OpKind::Broadcast, OpKind::AllGather, OpKind::Send, OpKind::Recv, OpKind::Barrier];
        let caps = moves.into_iter().fold(Capabilities::NONE, |caps, op| caps.with_op(op, DType::all()));
        let floats = [DType::F32, DType::F64];
        let caps = caps.with_op(OpKind::AllReduce, floats);
        [Reduction::Sum, Reduction::Prod]
            .into_iter()
            .fold(caps, |caps, reduction| caps.with_reduction(reduction, floats))
    }

    fn enqueue(&mut self, group: &[Op]) -> Result<()> {
        // Refusals come before any message, so the communicator stays usable.
        disco_core::op::check_group(group, self.rank(), self.size())?;
        disco_core::op::check_host(group, NAME)?;
        let caps = self.capabilities();
        for op in group {
            // A barrier has no dtype.
            if !caps.supports(op.kind(), op.dtype().unwrap_or(DType::F32), op.reduction()) {
                let reduction = op.reduction().map(|reduction| format!(" {reduction}")).unwrap_or_default();
                let operation = format!("{}{reduction}", op.kind());
                return Err(Error::Unsupported { backend: NAME, operation, dtype: op.dtype() });
            }
        }
        let Some(first) = group.first() else { return Ok(()) };
        self.run(first.signature(self.size()), |comm| collective::run(comm, group))
    }

    fn split(&mut self, color: Option<u32>, key: i32) -> Result<Option<Box<dyn Communicator>>> {
        self.run("split".into(), |comm| {
            // All ranks exchange their colors and keys.
            let mut own = [0; 9];
            own[0] = color.is_some().into();
            own[1..5].copy_from_slice(&color.unwrap_or(0).to_le_bytes());
            own[5..].copy_from_slice(&key.to_le_bytes());
            let all = collective::exchange(comm, &own)?;
            // Rank 0 makes the new hubs and sends each rank its own, in one `post`.
            let place = match comm.rank {
                0 => {
                    let mut places = places(&comm.hub, &all);
                    let own = places[0].take();
                    comm.hub.post(
                        0,
                        places.into_iter().enumerate().skip(1).map(|(rank, place)| (rank, Message::Child(place))),
                    );
                    own
                }
                _ => match comm.message(0)? {
                    Message::Child(place) => place,
                    _ => return Err(comm.differs(0)),
                },
            };
            let child = place.map(|(hub, rank)| MailboxCommunicator::new(hub, rank, comm.deadline)).transpose()?;
            Ok(child.map(|child| Box::new(child) as _))
        })
    }

    fn synchronize(&mut self) -> Result<()> {
        // Operations are complete when `enqueue` returns.
        self.run("synchronize".into(), |_| Ok(()))
    }

    fn aborter(&self) -> Arc<dyn Abort> {
        self.hub.clone()
    }
}

impl Drop for MailboxCommunicator {
    fn drop(&mut self) {
        self.hub.post(self.rank, self.peers().map(|peer| (peer, Message::Dropped)));
    }
}

impl fmt::Debug for MailboxCommunicator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "<{NAME} rank {} of {}>", self.rank, self.hub.size())
    }
}

/// The new hub and rank of each rank of `parent`. `told` has for each rank 9 bytes: whether it passed a color, the
/// color, the key.
fn places(parent: &Arc<Hub>, told: &[Vec<u8>]) -> Vec<Option<(Arc<Hub>, usize)>> {
    let mut colors: BTreeMap<[u8; 4], Vec<(i32, usize)>> = BTreeMap::new();
    for (rank, told) in told.iter().enumerate() {
        if let [1, c0, c1, c2, c3, k0, k1, k2, k3] = told[..] {
            colors.entry([c0, c1, c2, c3]).or_default().push((i32::from_le_bytes([k0, k1, k2, k3]), rank));
        }
    }
    let mut places: Vec<_> = told.iter().map(|_| None).collect();
    for mut members in colors.into_values() {
        members.sort_unstable();
        let hub = Hub::new(members.len(), Some(parent.clone()));
        members.iter().enumerate().for_each(|(new, (_, old))| places[*old] = Some((hub.clone(), new)));
    }
    places
}
