//! Operations of a communicator over memory that its ranks share, instead of its library.

use std::any::Any;
use std::fmt::{self, Debug, Display};
use std::sync::{Arc, Weak};
use std::time::Duration;

use disco_core::{Abort, AbortCause, DType, Error, Op, OpKind, Reduction, Result};

use super::options;
use super::rendezvous::{Consensus, Rendezvous};
use super::topology::{Mesh, Topology};
use super::workspace::{DEFAULT_BUFFER_BYTES, MeetOutcome, Workspace};
use crate::driver::BusId;
use crate::runtime::{Runtime, WorkMonitor};

/// The functions of a vendor's crate for peer-to-peer memory.
#[derive(Clone, Copy, Debug)]
#[allow(clippy::exhaustive_structs, reason = "each vendor's crate writes one")]
pub struct Vendor {
    /// Queries the links between devices.
    pub links: fn(&[BusId]) -> Result<Mesh>,
    /// Checks the environment variables for kernels.
    pub check: fn() -> Result<()>,
    /// Prepares the kernels for a runtime's device, or returns why there are none.
    pub kernels: fn(&Arc<Runtime>) -> Preparation,
}

/// Prepared kernels, or the reason why there are none.
pub type Preparation = Result<Box<dyn Prepared>, String>;

/// Kernels that are compiled and loaded, before the ranks have agreed on them.
pub trait Prepared: Debug {
    /// A text that must be equal on all ranks: it describes the kernels and their parameters.
    fn terms(&self) -> String;

    /// The number of blocks that fit on the device at the same time.
    fn resident(&self) -> u32;

    /// Starts the kernels over this memory. `room` is the number of blocks that fit on each device, and the largest
    /// number of ranks that share a device. A launch waits for a peer for at most `peer_timeout`.
    ///
    /// # Errors
    /// Errors of the driver.
    fn start(
        self: Box<Self>,
        workspace: &Workspace,
        topology: Topology,
        room: (u32, u32),
        peer_timeout: Duration,
    ) -> Result<Box<dyn Kernels>>;
}

/// Kernels over memory that ranks share.
pub trait Kernels: Debug + Send + Sync {
    /// Launches an operation, or returns why no kernel supports it. The answer is equal on all ranks.
    ///
    /// # Errors
    /// Errors of the driver.
    fn launch(&self, op: &Op) -> Result<Result<(), Unfit>>;

    /// Whether a launch of the operation allocates device memory. The answer may differ between ranks.
    fn needs_allocation(&self, op: &Op) -> bool;

    /// Checks the launches that are known to be complete.
    ///
    /// # Errors
    /// [`Error::Deadline`] or [`Error::Aborted`] of the first launch that has failed.
    fn check(&self) -> Result<()>;

    /// Makes running and later launches end without a result. From any thread.
    fn abort(&self, cause: &AbortCause);
}

/// The reason why no kernel supports an operation.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unfit {
    /// No kernel implements this operation.
    Kind(OpKind),
    /// Kernels only compute sums.
    Reduction(Reduction),
    /// No kernel supports this dtype.
    DType(DType),
    /// The size in bytes is not a multiple of the vector that a thread moves at once.
    Multiple(usize),
    /// For this size in bytes, the library is faster, or the buffers are too small.
    Bytes(usize),
    /// The ranks that share a device don't fit on it at the same time.
    Room,
}

/// Operations of one communicator over peer-to-peer memory, which bypass its library.
pub struct P2pFastPath {
    vendor: Vendor,
    /// The shared memory and the kernels, or the reason why there is no shared memory.
    parts: Result<Arc<Parts>, String>,
}

#[derive(Debug)]
struct Parts {
    workspace: Workspace,
    /// The kernels, or the reason why there are none.
    kernels: Result<Box<dyn Kernels>, String>,
}

/// The variable for the bytes of each rank's buffer.
const BUFFER_VARIABLE: &str = "DISCO_P2P_BUFFER";

impl P2pFastPath {
    /// Agrees with all ranks of the rendezvous on shared memory and kernels. A launch waits for a peer for at most
    /// `peer_timeout`.
    ///
    /// # Errors
    /// As for [`Workspace::meet`]; an environment variable has an invalid value.
    pub(crate) fn meet(
        vendor: Vendor,
        runtime: &Arc<Runtime>,
        mut rendezvous: Rendezvous,
        peer_timeout: Duration,
    ) -> Result<Self> {
        let said = (vendor.check)()
            .and_then(|()| Ok((options::bytes_of(BUFFER_VARIABLE, DEFAULT_BUFFER_BYTES)?, options::shares_devices()?)));
        let (bytes, shares) = *said.as_ref().unwrap_or(&(0, false));
        if shares {
            rendezvous = rendezvous.sharing_devices();
        }
        if let Err(error) = &said {
            rendezvous.decline(error.to_string());
        }
        let mut prepared = Err("the ranks have not agreed on a topology".to_owned());
        let found = Workspace::meet(runtime, &rendezvous, bytes, vendor.links, |decision| {
            prepared = match decision.topology {
                Topology::Unknown => Err(format!("topology unknown: {}", decision.why.join("; "))),
                _ => (vendor.kernels)(runtime),
            };
            encode_kernels(&prepared)
        })?;
        said?;
        let parts = match found {
            Consensus::Accepted(met) => {
                let parts = Arc::new(Parts::new(met, prepared, peer_timeout)?);
                runtime.add_monitor(Arc::downgrade(&parts) as Weak<dyn WorkMonitor>);
                Ok(parts)
            }
            Consensus::Declined(why) => Err(why),
        };
        let fast_path = Self { vendor, parts };
        tracing::debug!(rank = rendezvous.rank(), ?fast_path, "peer-to-peer");
        Ok(fast_path)
    }

    /// The memory that the ranks share.
    ///
    /// # Errors
    /// [`Error::Missing`] with the reason why the ranks share no memory.
    pub fn workspace(&self) -> Result<&Workspace> {
        let why = |why: &String| Error::missing(format!("no peer-to-peer memory: {why}"));
        self.parts.as_ref().map(|parts| &parts.workspace).map_err(why)
    }

    /// The reason why all operations go through the library: there is no shared memory, or there are no kernels. None
    /// if there are kernels; then only the operations that no kernel supports go through the library.
    pub fn fallback_reason(&self) -> Option<&str> {
        match &self.parts {
            Ok(parts) => parts.kernels.as_ref().err().map(String::as_str),
            Err(why) => Some(why),
        }
    }

    pub(crate) fn vendor(&self) -> Vendor {
        self.vendor
    }

    /// Launches an operation by a kernel. Returns false if no kernel supports it. The answer is equal on all ranks.
    pub(crate) fn launch(&self, op: &Op) -> Result<bool> {
        let Some(kernels) = self.kernels() else { return Ok(false) };
        let launched = kernels.launch(op)?;
        match launched {
            Ok(()) => tracing::trace!(operation = %op.kind(), "by a kernel over peers' memory"),
            Err(why) => tracing::trace!(operation = %op.kind(), %why, "by the library"),
        }
        Ok(launched.is_ok())
    }

    /// Whether a kernel supports the operation, and its launch allocates device memory.
    pub(crate) fn needs_allocation(&self, op: &Op) -> bool {
        self.kernels().is_some_and(|kernels| kernels.needs_allocation(op))
    }

    /// An owner of the kernels and the shared memory.
    pub(crate) fn keeper(&self) -> Option<Arc<dyn Any + Send + Sync>> {
        self.parts.as_ref().ok().map(|parts| parts.clone() as _)
    }

    /// Checks the launches that are known to be complete.
    pub(crate) fn check(&self) -> Result<()> {
        self.kernels().map_or(Ok(()), Kernels::check)
    }

    fn kernels(&self) -> Option<&dyn Kernels> {
        self.parts.as_ref().ok().and_then(|parts| parts.kernels.as_deref().ok())
    }

    /// Drops the kernels, and leaves the shared memory: see [`Workspace::leave`].
    pub(crate) fn leave(self) {
        if let Some(parts) = self.parts.ok().and_then(Arc::into_inner) {
            drop(parts.kernels);
            parts.workspace.leave();
        }
    }

    /// Aborts running kernels and waits; None without shared memory.
    pub(crate) fn aborter(&self) -> Option<Arc<dyn Abort>> {
        self.parts.as_ref().ok().map(|parts| parts.clone() as Arc<dyn Abort>)
    }
}

impl Parts {
    fn new(met: MeetOutcome, prepared: Preparation, peer_timeout: Duration) -> Result<Self> {
        let kernels = match agree(&met.notes).and_then(|resident| Ok((resident, prepared?))) {
            Ok((resident, prepared)) => {
                let room = (resident, met.max_ranks_per_device);
                Ok(prepared.start(&met.workspace, met.decision.topology, room, peer_timeout)?)
            }
            Err(why) => Err(why),
        };
        Ok(Self { workspace: met.workspace, kernels })
    }
}

impl WorkMonitor for Parts {
    fn check(&self) -> Result<()> {
        self.kernels.as_ref().map_or(Ok(()), |kernels| kernels.check())
    }

    fn stalled_on(&self) -> Option<String> {
        self.workspace.stalled_on()
    }
}

impl Abort for Parts {
    fn abort(&self, cause: &AbortCause) {
        if let Ok(kernels) = &self.kernels {
            kernels.abort(cause);
        }
        self.workspace.abort(cause);
    }
}

/// Encodes a rank's kernels for its peers: `resident` and `terms`; or 0 and the reason why it has none.
fn encode_kernels(prepared: &Preparation) -> Vec<u8> {
    match prepared {
        Ok(kernels) => [&kernels.resident().to_le_bytes()[..], kernels.terms().as_bytes()].concat(),
        Err(why) => [&0u32.to_le_bytes()[..], why.as_bytes()].concat(),
    }
}

/// The smallest `resident` of all ranks, or the reason why the ranks don't have the same kernels. Equal notes give
/// equal results.
fn agree(notes: &[Vec<u8>]) -> Result<u32, String> {
    let mut all = Vec::with_capacity(notes.len());
    for (rank, note) in notes.iter().enumerate() {
        let (resident, text) = note
            .split_first_chunk()
            .ok_or_else(|| format!("rank {rank} has sent an invalid description of its kernels"))?;
        match (u32::from_le_bytes(*resident), String::from_utf8_lossy(text)) {
            (0, why) => return Err(format!("rank {rank}: {why}")),
            found => all.push(found),
        }
    }
    if let Some(rank) = all.iter().position(|(_, terms)| *terms != all[0].1) {
        return Err(format!("rank 0 has {}, and rank {rank} {}", all[0].1, all[rank].1));
    }
    all.iter().map(|(resident, _)| *resident).min().ok_or_else(|| "there are no ranks".to_owned())
}

impl Display for Unfit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Kind(kind) => write!(f, "no kernel implements {kind}"),
            Self::Reduction(reduction) => write!(f, "kernels only compute sums, and the reduction is {reduction}"),
            Self::DType(dtype) => write!(f, "no kernel sums {dtype}"),
            Self::Multiple(bytes) => write!(f, "{bytes} bytes are not a multiple of 16"),
            Self::Bytes(bytes) => write!(f, "no kernel supports {bytes} bytes"),
            Self::Room => f.write_str("the ranks that share a device don't fit on it at the same time"),
        }
    }
}

impl Debug for P2pFastPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.parts.as_deref() {
            Ok(Parts { workspace, kernels: Ok(kernels) }) => write!(f, "<{workspace:?}, {kernels:?}>"),
            _ => write!(f, "<by the library: {}>", self.fallback_reason().unwrap_or_default()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn says(resident: u32, text: &str) -> Vec<u8> {
        [&resident.to_le_bytes()[..], text.as_bytes()].concat()
    }

    #[test]
    fn ranks_agree_on_kernels_only_if_all_have_the_same_kernels() {
        assert_eq!(agree(&[says(64, "a"), says(32, "a")]), Ok(32));
        assert_eq!(agree(&[says(64, "a"), says(32, "b")]), Err("rank 0 has a, and rank 1 b".into()));
        assert_eq!(agree(&[says(64, "a"), says(0, "no NVRTC")]), Err("rank 1: no NVRTC".into()));
        assert_eq!(
            agree(&[says(64, "a"), vec![1]]),
            Err("rank 1 has sent an invalid description of its kernels".into())
        );
    }
}
