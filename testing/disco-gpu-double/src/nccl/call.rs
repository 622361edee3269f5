//! One call of a communication function: its arguments and their checks.

use std::ffi::c_int;
use std::fmt;

use super::abi::{Code, DataType, RedOp};
use super::comm::{Comm, Membership};
use super::reduce::Operation;
use super::{one_rank, text};
use crate::cuda;
use crate::cuda::memory::Span;
use crate::settings::faults::Action;
use crate::sync::lock;

/// The function.
#[derive(Clone, Copy, Debug, serde::Deserialize, PartialEq, Eq, serde::Serialize)]
#[allow(missing_docs)]
pub(crate) enum Kind {
    AllReduce,
    Reduce,
    ReduceScatter,
    AllGather,
    Broadcast,
    AlltoAll,
    Gather,
    Scatter,
    Send,
    Recv,
}

/// Arguments of a function; those of [`Args::new`] for parameters that it does not have.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Args {
    /// The function.
    pub(crate) kind: Kind,
    /// Address of the send buffer.
    pub(crate) send: usize,
    /// Address of the receive buffer.
    pub(crate) recv: usize,
    /// Number of elements, per block if there are several blocks.
    pub(crate) count: usize,
    /// Element type.
    pub(crate) dtype: DataType,
    /// Reduction operator.
    pub(crate) op: RedOp,
    /// Rank of the root or of the peer.
    pub(crate) root: c_int,
}

impl Args {
    /// Arguments without buffers: the sum, and rank 0 as the root.
    pub(crate) fn new(kind: Kind, count: usize, dtype: DataType) -> Self {
        Self { kind, send: 0, recv: 0, count, dtype, op: RedOp::SUM, root: 0 }
    }
}

/// A checked call.
pub(crate) struct Call {
    /// The function.
    pub(crate) kind: Kind,
    /// The send buffer; `None` if this rank sends nothing.
    pub(crate) send: Option<Span>,
    /// The receive buffer; `None` if this rank receives nothing.
    pub(crate) recv: Option<Span>,
    /// Number of elements of a block.
    pub(crate) count: usize,
    /// Element type.
    pub(crate) dtype: DataType,
    /// Reduction operator.
    pub(crate) operation: Operation,
    /// Rank of the root or of the peer.
    pub(crate) root: usize,
    /// Number of collectives that are launched together with it, and itself; 0 before the launch.
    pub(crate) launched: usize,
    /// The injected fault.
    pub(crate) fault: Option<Action>,
}

/// Numbers of blocks that a rank sends and receives, and their positions in place.
struct Layout {
    send: usize,
    recv: usize,
    in_place: InPlace,
}

enum InPlace {
    Never,
    Same,
    /// The send buffer is this rank's block of the receive buffer.
    SendInRecv,
    /// The receive buffer is this rank's block of the send buffer.
    RecvInSend,
}

impl Kind {
    /// The function.
    pub(crate) fn function(self) -> &'static str {
        match self {
            Self::AllReduce => "ncclAllReduce",
            Self::Reduce => "ncclReduce",
            Self::ReduceScatter => "ncclReduceScatter",
            Self::AllGather => "ncclAllGather",
            Self::Broadcast => "ncclBroadcast",
            Self::AlltoAll => "ncclAlltoAll",
            Self::Gather => "ncclGather",
            Self::Scatter => "ncclScatter",
            Self::Send => "ncclSend",
            Self::Recv => "ncclRecv",
        }
    }

    /// Whether all ranks must call it.
    pub(crate) fn is_collective(self) -> bool {
        !matches!(self, Self::Send | Self::Recv)
    }

    /// Whether the function reduces.
    pub(crate) fn reduces(self) -> bool {
        matches!(self, Self::AllReduce | Self::Reduce | Self::ReduceScatter)
    }

    fn layout(self, ranks: usize, is_root: bool) -> Layout {
        let at_root = |blocks| if is_root { blocks } else { 0 };
        let (send, recv, in_place) = match self {
            Self::AllReduce => (1, 1, InPlace::Same),
            Self::Reduce => (1, at_root(1), InPlace::Same),
            Self::ReduceScatter => (ranks, 1, InPlace::RecvInSend),
            Self::AllGather => (1, ranks, InPlace::SendInRecv),
            Self::Broadcast => (at_root(1), 1, InPlace::Same),
            Self::AlltoAll => (ranks, ranks, InPlace::Never),
            Self::Gather => (1, at_root(ranks), InPlace::SendInRecv),
            Self::Scatter => (at_root(ranks), 1, InPlace::RecvInSend),
            Self::Send => (1, 0, InPlace::Never),
            Self::Recv => (0, 1, InPlace::Never),
        };
        Layout { send, recv, in_place }
    }
}

impl Call {
    /// Checks the arguments of a function. `None` if there is nothing to do, as in a collective of 0 elements.
    pub(crate) fn check(
        args: Args,
        comm: &Comm,
        membership: &Membership,
        fault: Option<Action>,
    ) -> Result<Option<Self>, Code> {
        let refuse = |why: String| text::refuse(Code::INVALID_ARGUMENT, format!("{}: {why}", args.kind.function()));
        let ranks = membership.clique.ranks();
        let size = args.dtype.size().ok_or_else(|| refuse(format!("there is no data type {}", args.dtype.0)))?;
        let operation = operation(args, comm).map_err(refuse)?;
        if ranks == 1 && args.kind.reduces() && one_rank::lacks(args.dtype, &operation) {
            // Without a text, as in NCCL.
            return Err(Code::INVALID_ARGUMENT);
        }
        let root = usize::try_from(args.root).ok().filter(|&root| root < ranks);
        let root = root.ok_or_else(|| refuse(format!("there is no rank {} among {ranks}", args.root)))?;
        if args.count == 0 && args.kind.is_collective() {
            return Ok(None);
        }
        let bytes = args.count.checked_mul(size).ok_or_else(|| refuse("too many elements".to_owned()))?;
        let layout = args.kind.layout(ranks, root == membership.rank);
        let span = |address, blocks| find(address, bytes, blocks, comm).map_err(refuse);
        let (send, recv) = (span(args.send, layout.send)?, span(args.recv, layout.recv)?);
        if let (Some(send), Some(recv)) = (&send, &recv) {
            let own = membership.rank * bytes;
            let is_in_place = match layout.in_place {
                InPlace::Never => false,
                InPlace::Same => send.address() == recv.address(),
                InPlace::SendInRecv => send.address() == recv.address() + own,
                InPlace::RecvInSend => recv.address() == send.address() + own,
            };
            if send.overlaps(recv) && !is_in_place {
                return Err(refuse("the buffers overlap, but not as in-place buffers do".to_owned()));
            }
        }
        let Args { kind, count, dtype, .. } = args;
        Ok(Some(Self { kind, send, recv, count, dtype, operation, root, launched: 0, fault }))
    }

    /// Whether all buffers of the call are still allocated.
    pub(crate) fn is_live(&self) -> Result<(), cuda::abi::Code> {
        self.send.iter().chain(&self.recv).try_for_each(Span::check)
    }

    /// Whether the call is of a rank in another process.
    pub(crate) fn is_foreign(&self) -> bool {
        self.send.iter().chain(&self.recv).any(Span::is_foreign)
    }

    /// Whether this call and another rank's belong to the same collective.
    pub(crate) fn matches(&self, other: &Self) -> bool {
        self.kind == other.kind
            && self.count == other.count
            && self.dtype == other.dtype
            && self.root == other.root
            && self.launched == other.launched
            && (!self.kind.reduces() || self.operation.matches(&other.operation))
    }
}

impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}({} of nccl{}", self.kind.function(), self.count, self.dtype.name())?;
        if self.kind.reduces() {
            write!(f, ", {}", self.operation.name())?;
        }
        match self.kind {
            Kind::Reduce | Kind::Broadcast | Kind::Gather | Kind::Scatter => write!(f, ", root {})", self.root),
            Kind::Send => write!(f, ", to {})", self.root),
            Kind::Recv => write!(f, ", from {})", self.root),
            _ => write!(f, ")"),
        }?;
        match self.launched {
            0 | 1 => Ok(()),
            launched => write!(f, " in a group of {launched} collectives"),
        }
    }
}

fn operation(args: Args, comm: &Comm) -> Result<Operation, String> {
    let RedOp(number) = args.op;
    if !args.kind.reduces() || (0..RedOp::FIRST_OWN.0).contains(&number) {
        return Ok(Operation::Built(args.op));
    }
    let scalar = lock(&comm.scalars).get(&number).cloned();
    let scalar = scalar.ok_or_else(|| format!("the communicator has no operator {number}"))?;
    if scalar.dtype != args.dtype {
        return Err(format!("operator {number} is of nccl{}, not nccl{}", scalar.dtype.name(), args.dtype.name()));
    }
    Ok(Operation::PreMulSum(scalar))
}

/// A buffer of `blocks` blocks in memory of the communicator's device; `None` for 0 blocks.
fn find(address: usize, bytes: usize, blocks: usize, comm: &Comm) -> Result<Option<Span>, String> {
    if blocks == 0 || bytes == 0 {
        return Ok(None);
    }
    let bytes = bytes.checked_mul(blocks).ok_or_else(|| "too many elements".to_owned())?;
    let span = Span::find(address, bytes);
    let span = span.ok_or_else(|| format!("{bytes} bytes at {address:#x} are not in one allocation"))?;
    let (own, other) = (comm.device.ordinal, span.device().ordinal);
    if own != other {
        return Err(format!("a buffer is on device {other}, but the communicator is on device {own}"));
    }
    // The ranks of a process may read each other's buffers in place.
    if let Some(peer) = comm.device.accessors().find(|peer| span.is_closed_to(peer.ordinal)) {
        return Err(format!("a buffer is in a pool that the device {} of a peer cannot access", peer.ordinal));
    }
    Ok(Some(span))
}
