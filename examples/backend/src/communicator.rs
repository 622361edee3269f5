//! The communicator of one rank: connection, refusals and `split`.

use std::collections::BTreeMap;
use std::fmt;
use std::process;
use std::sync::Arc;

use disco_core::{
    Abort, Capabilities, Communicator, ConnectParams, DType, Error, Op, OpKind, Rank, Reduction, Rendezvous, Result,
};

use crate::endpoint::Endpoint;
use crate::hub::{Hub, Message};
use crate::{NAME, collective};

/// The communicator of one rank.
pub(crate) struct MailboxCommunicator(Endpoint);

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
        let mut end = Endpoint::new(hub, params.rank.index(), params.connect_deadline)?;
        end.run("connect".into(), collective::barrier)?;
        end.deadline = params.deadline;
        Ok(Self(end))
    }
}

impl Communicator for MailboxCommunicator {
    fn rank(&self) -> Rank {
        Rank::new(self.0.index() as u32)
    }

    fn size(&self) -> usize {
        self.0.hub.size()
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

    fn enqueue(&mut self, ops: &[Op]) -> Result<()> {
        // Refusals come before any message, so the communicator stays usable.
        disco_core::op::check_ops(ops, self.rank(), self.size())?;
        disco_core::op::check_host(ops, NAME)?;
        let caps = self.capabilities();
        for op in ops {
            // A barrier has no dtype.
            if !caps.supports(op.kind(), op.dtype().unwrap_or(DType::F32), op.reduction()) {
                let reduction = op.reduction().map(|reduction| format!(" {reduction}")).unwrap_or_default();
                let operation = format!("{}{reduction}", op.kind());
                return Err(Error::Unsupported { backend: NAME, operation, dtype: op.dtype() });
            }
        }
        let Some(first) = ops.first() else { return Ok(()) };
        self.0.run(first.signature(self.size()), |end| collective::run(end, ops))
    }

    fn split(&mut self, color: Option<u32>, key: i32) -> Result<Option<Box<dyn Communicator>>> {
        self.0.run("split".into(), |end| {
            // All ranks exchange their colors and keys.
            let mut own = [0; 9];
            own[0] = color.is_some().into();
            own[1..5].copy_from_slice(&color.unwrap_or(0).to_le_bytes());
            own[5..].copy_from_slice(&key.to_le_bytes());
            let all = collective::exchange(end, &own)?;
            // Rank 0 makes the new hubs and sends each rank its own, in one `post`.
            let place = match end.index() {
                0 => {
                    let mut places = places(&end.hub, &all);
                    let own = places[0].take();
                    end.hub.post(
                        0,
                        places.into_iter().enumerate().skip(1).map(|(rank, place)| (rank, Message::Child(place))),
                    );
                    own
                }
                _ => match end.message(0)? {
                    Message::Child(place) => place,
                    _ => return Err(end.differs(0)),
                },
            };
            let child = place.map(|(hub, rank)| Endpoint::new(hub, rank, end.deadline)).transpose()?;
            Ok(child.map(|child| Box::new(Self(child)) as _))
        })
    }

    fn synchronize(&mut self) -> Result<()> {
        // Operations are complete when `enqueue` returns.
        self.0.run("synchronize".into(), |_| Ok(()))
    }

    fn aborter(&self) -> Arc<dyn Abort> {
        self.0.hub.clone()
    }
}

impl fmt::Debug for MailboxCommunicator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "<{NAME} rank {} of {}>", self.0.index(), self.0.hub.size())
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
