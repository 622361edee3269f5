//! The communicator that one rank holds.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::sync::Arc;
use std::sync::mpsc::RecvTimeoutError;
use std::time::{Duration, Instant};

use disco_core::error::{LossCause, LostPeer};
use disco_core::{
    Abort, Capabilities, Communicator, DType, Error, Op, OpKind, Rank, Reduction, Rendezvous, Result, Seat,
};

use crate::hub::{Hub, Inbox, Letter};
use crate::{NAME, collective};

/// One rank of a communicator.
pub(crate) struct Mail {
    hub: Arc<Hub>,
    rank: usize,
    inbox: Inbox,
    /// Letters of each peer that came while this rank waited for another peer.
    early: Vec<VecDeque<Letter>>,
    /// Limit of one operation.
    deadline: Duration,
    /// End of the operation that runs, and its name for errors.
    until: Instant,
    operation: String,
}

impl Mail {
    /// Meets the other ranks, and waits until all of them have come.
    pub(crate) fn connect(seat: Seat<'_>, at: &Rendezvous) -> Result<Self> {
        let number = at.as_bytes().try_into().map_err(|_| Error::invalid("mailbox: a rendezvous has 8 bytes"))?;
        let hub = Hub::meet(u64::from_le_bytes(number), seat.world.size());
        // From here on the session ends waits of this communicator when a worker fails.
        seat.link.on_abort(&(hub.clone() as Arc<dyn Abort>));
        let mut mail = Self::new(hub, seat.rank.index(), seat.connect_deadline)?;
        mail.run("connect".into(), collective::barrier)?;
        mail.deadline = seat.deadline;
        Ok(mail)
    }

    fn new(hub: Arc<Hub>, rank: usize, deadline: Duration) -> Result<Self> {
        let (inbox, size) = (hub.inbox(rank)?, hub.size());
        let early = (0..size).map(|_| VecDeque::new()).collect();
        Ok(Self { hub, rank, inbox, early, deadline, until: Instant::now(), operation: String::new() })
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

    /// Sends the same bytes to these ranks. Does not wait for them.
    pub(crate) fn post(&self, to: impl IntoIterator<Item = usize>, bytes: &[u8]) {
        self.hub.post(self.rank, to.into_iter().map(|to| (to, Letter::Bytes(bytes.to_vec()))));
    }

    /// The next bytes from a rank, `len` of them.
    pub(crate) fn bytes(&mut self, from: usize, len: usize) -> Result<Vec<u8>> {
        match self.letter(from)? {
            Letter::Bytes(bytes) if bytes.len() == len => Ok(bytes),
            Letter::Bytes(bytes) => Err(Error::Mismatch {
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

    /// The next letter from a rank.
    fn letter(&mut self, from: usize) -> Result<Letter> {
        loop {
            // Letters that came before the end count.
            let ended = self.hub.ended();
            self.inbox.try_iter().for_each(|(sender, letter)| self.early[sender].push_back(letter));
            self.early[from].retain(|letter| !matches!(letter, Letter::Wake));
            match self.early[from].pop_front() {
                Some(Letter::Gone) => {
                    return Err(Error::lost(LostPeer::Rank(Rank::new(from as u32)), LossCause::CommunicatorDropped));
                }
                Some(letter) => return Ok(letter),
                None => {}
            }
            if let Some(cause) = ended {
                return Err(Error::Aborted { cause });
            }
            match self.inbox.recv_timeout(self.until.saturating_duration_since(Instant::now())) {
                Ok((sender, letter)) => self.early[sender].push_back(letter),
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

    /// Runs an operation under the deadline. A failure ends the communicator on all ranks.
    fn run<T>(&mut self, operation: String, work: impl FnOnce(&mut Self) -> Result<T>) -> Result<T> {
        if let Some(cause) = self.hub.ended() {
            return Err(Error::Broken { operation, cause });
        }
        // A deadline of `Duration::MAX` is no limit.
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

impl Communicator for Mail {
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
        // Refusals come first: they leave the communicator usable.
        disco_core::op::check_group(group, self.rank(), self.size())?;
        disco_core::op::check_host(group, NAME)?;
        let caps = self.capabilities();
        for op in group {
            // A barrier has no dtype.
            if !caps.supports(op.kind(), op.dtype().unwrap_or(DType::F32), op.reduction()) {
                let operation = op.signature(self.size());
                return Err(Error::Unsupported { backend: NAME, operation, dtype: op.dtype() });
            }
        }
        let Some(first) = group.first() else { return Ok(()) };
        self.run(first.signature(self.size()), |mail| collective::run(mail, group))
    }

    fn split(&mut self, color: Option<u32>, key: i32) -> Result<Option<Box<dyn Communicator>>> {
        self.run("split".into(), |mail| {
            // Each rank tells the others its color and key.
            let mut own = [0; 9];
            own[0] = color.is_some().into();
            own[1..5].copy_from_slice(&color.unwrap_or(0).to_le_bytes());
            own[5..].copy_from_slice(&key.to_le_bytes());
            let all = collective::exchange(mail, &own)?;
            // Rank 0 makes the new hubs, and posts all places at once.
            let place = match mail.rank {
                0 => {
                    let mut places = places(&mail.hub, &all);
                    let own = places[0].take();
                    mail.hub.post(
                        0,
                        places.into_iter().enumerate().skip(1).map(|(rank, place)| (rank, Letter::Place(place))),
                    );
                    own
                }
                _ => match mail.letter(0)? {
                    Letter::Place(place) => place,
                    _ => return Err(mail.differs(0)),
                },
            };
            let child = place.map(|(hub, rank)| Mail::new(hub, rank, mail.deadline)).transpose()?;
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

impl Drop for Mail {
    fn drop(&mut self) {
        self.hub.post(self.rank, self.peers().map(|peer| (peer, Letter::Gone)));
    }
}

impl fmt::Debug for Mail {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "<mailbox rank {} of {}>", self.rank, self.hub.size())
    }
}

/// The place of each rank of `parent` in its new communicator, by what the ranks told each other: whether they have a color, the color, the key.
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
