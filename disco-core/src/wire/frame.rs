//! One step of the command stream, as lanes carry it.

use std::sync::{Arc, Mutex, OnceLock, Weak};

use smallvec::SmallVec;

use super::command::{decode_frame, encode_frame};
use super::{Pieces, Transfer, WireError, Writer, beside};
use crate::command::Command;
use crate::error::{Error, Result};
use crate::id::{RegisterId, WorkerId};
use crate::shared_memory::Snapshot;
use crate::sync;
use crate::value::Value;

/// Bytes of a frame above which a second copy of them is not kept.
const LARGE: usize = 1 << 20;

/// Freed ids; up to four take no memory of their own.
pub(crate) type Freed = SmallVec<[RegisterId; 4]>;

/// A command with the register ids that were freed before it. Shared by all lanes and encoded at most once.
#[derive(Debug)]
pub struct Frame {
    seq: u64,
    freed: Freed,
    command: Command,
    encoded: OnceLock<Result<Box<[u8]>, Box<Error>>>,
    /// Its large tensors in shared memory, once they are there; none if it has no such tensor.
    snapshot: OnceLock<Option<Arc<Snapshot>>>,
    /// The packet of the frame whose large tensors are read when it is sent, while somebody has it.
    pieces: Mutex<Weak<Pieces>>,
    /// The transfer in which its large tensors went ahead, while the frame has not gone.
    transfer: Weak<Transfer>,
}

impl Frame {
    /// Command number `seq`, counted from 1. Workers drop `freed` before they look at the command, which may use these
    /// registers again.
    pub fn new(seq: u64, freed: impl IntoIterator<Item = RegisterId>, command: Command) -> Self {
        Self::with(seq, freed.into_iter().collect(), command)
    }

    pub(crate) fn with(seq: u64, freed: Freed, command: Command) -> Self {
        let (encoded, snapshot, pieces) = (OnceLock::new(), OnceLock::new(), Mutex::default());
        Self { seq, freed, command, encoded, snapshot, pieces, transfer: Weak::new() }
    }

    /// Frame `seq` from its [bytes](Frame::bytes), which it keeps to go on to others, unless they are so many that another copy
    /// is better made when it is wanted.
    ///
    /// # Errors
    /// Anything that [`WireError`] tells.
    pub fn decode(seq: u64, bytes: &[u8]) -> Result<Self, WireError> {
        let frame = decode_frame(seq, bytes)?;
        match bytes.len() > LARGE {
            true => Ok(frame),
            false => Ok(Self { encoded: Ok(bytes.into()).into(), ..frame }),
        }
    }

    /// The same number and freed registers, with a command that is nobody's business.
    pub fn without_command(&self) -> Self {
        let nobody = WorkerId::new(u32::MAX);
        Self::with(self.seq, self.freed.clone(), Command::SyncWorker { worker: nobody })
    }

    /// The command's number.
    pub fn seq(&self) -> u64 {
        self.seq
    }

    /// Registers that nobody uses any more.
    pub fn freed(&self) -> &[RegisterId] {
        &self.freed
    }

    /// The command.
    pub fn command(&self) -> &Command {
        &self.command
    }

    /// The packets of this frame: one with the freed ids, if there are any, and the command's.
    ///
    /// # Errors
    /// A value that can't leave the process.
    pub fn bytes(&self) -> Result<&[u8]> {
        let encoded = self.encoded.get_or_init(|| encode_frame(self, Writer::default()).map_err(Box::new));
        encoded.as_deref().map_err(|error| (**error).clone())
    }

    /// The packet of [`Message::Frame`](super::Message::Frame) with this frame, whose large tensors are read only when it is sent;
    /// none if it has no large tensor. All callers get the same packet while any of them keeps it: nobody can write to the tensors
    /// between the first call and the last use.
    ///
    /// # Errors
    /// A value that can't leave the process, or a tensor that is being written to.
    pub fn pieces(&self) -> Result<Option<Arc<Pieces>>> {
        let mut shared = sync::lock(&self.pieces);
        if let Some(pieces) = shared.upgrade() {
            return Ok(Some(pieces));
        }
        let pieces = Pieces::of(self)?.map(Arc::new);
        if let Some(pieces) = &pieces {
            *shared = Arc::downgrade(pieces);
        }
        Ok(pieces)
    }

    /// The large tensors of the frame were copied into shared memory already.
    pub(crate) fn set_snapshot(&mut self, snapshot: Option<Arc<Snapshot>>) {
        self.snapshot = snapshot.into();
    }

    /// The large tensors of the frame went ahead.
    pub(crate) fn set_transfer(&mut self, transfer: &Arc<Transfer>) {
        self.transfer = Arc::downgrade(transfer);
    }

    /// The transfer in which the large tensors of this frame went ahead, if they did.
    pub fn transfer(&self) -> Option<Arc<Transfer>> {
        self.transfer.upgrade()
    }

    /// The packets of this frame without its large tensors. Read by [`decode_frame_after`](super::decode_frame_after).
    ///
    /// # Errors
    /// A value that can't leave the process.
    pub fn bytes_without_tensors(&self) -> Result<Box<[u8]>> {
        encode_frame(self, Writer::with_memory_beside())
    }

    /// The packets of this frame without its large tensors, and the tensors in shared memory; none if it has no large tensor, or
    /// if there is no shared memory for them. The tensors are copied once, by the first call. Read by
    /// [`decode_frame_beside`](super::decode_frame_beside).
    pub fn bytes_and_snapshot(&self) -> Option<(Box<[u8]>, Arc<Snapshot>)> {
        let make = || snapshot(self.command.values());
        let snapshot = self.snapshot.get_or_init(make).clone()?;
        Some((encode_frame(self, Writer::with_memory_beside()).ok()?, snapshot))
    }
}

/// A copy of the large tensors of `values` in shared memory; none if there is no such tensor, or no room.
pub(crate) fn snapshot<'a>(values: impl IntoIterator<Item = &'a Value>) -> Option<Arc<Snapshot>> {
    match beside::snapshot(values) {
        Ok(snapshot) => snapshot.map(Arc::new),
        Err(error) => {
            tracing::debug!(%error, "large tensors go over sockets");
            None
        }
    }
}
