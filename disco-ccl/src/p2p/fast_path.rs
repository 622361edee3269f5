//! What a communicator does without its library, where ranks reach each other's memory.

use std::any::Any;
use std::fmt::{self, Debug, Display};
use std::sync::{Arc, Weak};
use std::time::Duration;

use disco_core::{Abort, DType, Error, Op, OpKind, Reduction, Result};

use super::options;
use super::rendezvous::{Consensus, Rendezvous};
use super::topology::{Mesh, Topology};
use super::workspace::{DEFAULT_BUFFER_BYTES, MeetOutcome, Workspace};
use crate::driver::BusId;
use crate::runtime::{Runtime, WorkMonitor};

/// What a vendor's crate knows of its devices.
#[derive(Clone, Copy, Debug)]
#[allow(clippy::exhaustive_structs, reason = "each vendor's crate writes one")]
pub struct Vendor {
    /// The links between devices.
    pub links: fn(&[BusId]) -> Result<Mesh>,
    /// Whether users' variables for kernels can be understood.
    pub check: fn() -> Result<()>,
    /// Kernels for a runtime's device, ready to be launched, or why there are none.
    pub kernels: fn(&Arc<Runtime>) -> Preparation,
}

/// Kernels that are ready, or why there are none.
pub type Preparation = Result<Box<dyn Prepared>, String>;

/// Kernels that are ready, before ranks have agreed on them.
pub trait Prepared: Debug {
    /// What all ranks must have alike, in words.
    fn terms(&self) -> String;

    /// How many blocks fit on the device at once.
    fn resident(&self) -> u32;

    /// The kernels over this memory, whose ranks have these links. Their devices have room for `resident` blocks each, and at most
    /// `sharing` ranks are on one. A launch waits `peer_timeout` for a peer.
    ///
    /// # Errors
    /// The driver's own.
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
    /// Launches an operation, or says why it is none for them: all ranks alike.
    ///
    /// # Errors
    /// The driver's own.
    fn launch(&self, op: &Op) -> Result<Result<(), Unfit>>;

    /// Whether a launch of the operation allocates device memory. Ranks may differ in this.
    fn needs_allocation(&self, op: &Op) -> bool;

    /// Whether all launches so far have gone well, as far as is known.
    ///
    /// # Errors
    /// [`Error::Deadline`] and [`Error::Aborted`], of the first that has not.
    fn check(&self) -> Result<()>;

    /// Has launches give up. From any thread.
    fn abort(&self, cause: &Arc<str>);
}

/// Why no kernel is for an operation.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unfit {
    /// There is none for such.
    Kind(OpKind),
    /// They sum.
    Reduction(Reduction),
    /// They are for other elements.
    DType(DType),
    /// It has so many bytes, which are no multiple of what a thread moves at once.
    Multiple(usize),
    /// It has so many bytes, for which the library is faster, or the buffers too small.
    Bytes(usize),
    /// Ranks that share a device have no room on it at once.
    Room,
}

/// A communicator's way around its library.
pub struct P2pFastPath {
    vendor: Vendor,
    /// Or why there are none.
    parts: Result<Arc<Parts>, String>,
}

#[derive(Debug)]
struct Parts {
    workspace: Workspace,
    /// Or why there are none.
    kernels: Result<Box<dyn Kernels>, String>,
}

/// Bytes of each rank's buffer.
const BUFFER_VARIABLE: &str = "DISCO_P2P_BUFFER";

impl P2pFastPath {
    /// That of the ranks that meet, each of whose launches waits `peer_timeout` for a peer.
    ///
    /// # Errors
    /// As [`Workspace::meet`]; a variable that can't be understood.
    pub(crate) fn meet(
        vendor: Vendor,
        runtime: &Arc<Runtime>,
        mut rendezvous: Rendezvous,
        peer_timeout: Duration,
    ) -> Result<Self> {
        let said = (vendor.check)().and_then(|()| {
            Ok((
                options::bytes_of(BUFFER_VARIABLE, DEFAULT_BUFFER_BYTES)?,
                options::shares_devices()?,
                options::is_off()?,
            ))
        });
        let (bytes, shares, is_off) = *said.as_ref().unwrap_or(&(0, false, false));
        if shares {
            rendezvous = rendezvous.sharing_devices();
        }
        match &said {
            Err(error) => rendezvous.refuse(error.to_string()),
            Ok(_) if is_off => rendezvous.refuse(options::OFF_REASON.to_owned()),
            Ok(_) => {}
        }
        let mut prepared = Err("nobody has looked".to_owned());
        let found = Workspace::meet(runtime, &rendezvous, bytes, vendor.links, |decision| {
            prepared = match decision.topology {
                Topology::Unknown => Err(format!("topology unknown: {}", decision.why.join("; "))),
                _ => (vendor.kernels)(runtime),
            };
            note(&prepared)
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

    /// The memory that ranks share.
    ///
    /// # Errors
    /// Why they have none.
    pub fn workspace(&self) -> Result<&Workspace> {
        let why = |why: &String| Error::missing(format!("no peer-to-peer memory: {why}"));
        self.parts.as_ref().map(|parts| &parts.workspace).map_err(why)
    }

    /// Why operations go by the library: all, or those that no kernel is for. None where kernels are launched.
    pub fn fallback_reason(&self) -> Option<&str> {
        match &self.parts {
            Ok(parts) => parts.kernels.as_ref().err().map(String::as_str),
            Err(why) => Some(why),
        }
    }

    pub(crate) fn vendor(&self) -> Vendor {
        self.vendor
    }

    /// Launches an operation without the library, if that is to be. All ranks come to the same answer.
    pub(crate) fn launch(&self, op: &Op) -> Result<bool> {
        let Some(kernels) = self.kernels() else { return Ok(false) };
        let launched = kernels.launch(op)?;
        match launched {
            Ok(()) => tracing::trace!(operation = %op.kind(), "by a kernel over peers' memory"),
            Err(why) => tracing::trace!(operation = %op.kind(), %why, "by the library"),
        }
        Ok(launched.is_ok())
    }

    /// Whether a kernel does the operation, and its launch allocates device memory.
    pub(crate) fn needs_allocation(&self, op: &Op) -> bool {
        self.kernels().is_some_and(|kernels| kernels.needs_allocation(op))
    }

    /// An owner of the kernels and of the shared memory.
    pub(crate) fn keeper(&self) -> Option<Arc<dyn Any + Send + Sync>> {
        self.parts.as_ref().ok().map(|parts| parts.clone() as _)
    }

    /// Whether all launches so far have gone well.
    pub(crate) fn check(&self) -> Result<()> {
        self.kernels().map_or(Ok(()), Kernels::check)
    }

    fn kernels(&self) -> Option<&dyn Kernels> {
        self.parts.as_ref().ok().and_then(|parts| parts.kernels.as_deref().ok())
    }

    /// Gives it up, as [`Workspace::leave`].
    pub(crate) fn leave(self) {
        if let Some(parts) = self.parts.ok().and_then(Arc::into_inner) {
            drop(parts.kernels);
            parts.workspace.leave();
        }
    }

    /// What ends all that is under way.
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
    fn abort(&self, cause: &Arc<str>) {
        if let Ok(kernels) = &self.kernels {
            kernels.abort(cause);
        }
        self.workspace.abort(cause);
    }
}

/// What a rank tells of its kernels: room and terms, or why it has none.
fn note(prepared: &Preparation) -> Vec<u8> {
    match prepared {
        Ok(kernels) => [&kernels.resident().to_le_bytes()[..], kernels.terms().as_bytes()].concat(),
        Err(why) => [&0u32.to_le_bytes()[..], why.as_bytes()].concat(),
    }
}

/// The fewest blocks that any rank has room for, or why not all have the same kernels: of the same notes, the same answer.
fn agree(notes: &[Vec<u8>]) -> Result<u32, String> {
    let mut all = Vec::with_capacity(notes.len());
    for (rank, note) in notes.iter().enumerate() {
        let (resident, text) = note.split_first_chunk().ok_or_else(|| format!("rank {rank} says nothing"))?;
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
            Self::Kind(kind) => write!(f, "no kernel does {kind}"),
            Self::Reduction(reduction) => write!(f, "kernels sum, and this is {reduction}"),
            Self::DType(dtype) => write!(f, "no kernel sums {dtype}"),
            Self::Multiple(bytes) => write!(f, "{bytes} bytes are no multiple of 16"),
            Self::Bytes(bytes) => write!(f, "no kernel is for {bytes} bytes"),
            Self::Room => f.write_str("ranks that share a device have no room on it at once"),
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
    fn kernels_are_launched_where_all_ranks_have_the_same() {
        assert_eq!(agree(&[says(64, "a"), says(32, "a")]), Ok(32));
        assert_eq!(agree(&[says(64, "a"), says(32, "b")]), Err("rank 0 has a, and rank 1 b".into()));
        assert_eq!(agree(&[says(64, "a"), says(0, "no NVRTC")]), Err("rank 1: no NVRTC".into()));
        assert_eq!(agree(&[says(64, "a"), vec![1]]), Err("rank 1 says nothing".into()));
    }
}
