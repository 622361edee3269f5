//! One step of the command stream, as lanes carry it.

use std::sync::OnceLock;

use smallvec::SmallVec;

use super::WireError;
use super::command::{decode_frame, encode_frame};
use crate::command::Command;
use crate::error::{Error, Result};
use crate::id::{RegisterId, WorkerId};

/// Freed ids; up to four take no memory of their own.
pub(crate) type Freed = SmallVec<[RegisterId; 4]>;

/// A command with the register ids that were freed before it. Shared by all lanes and encoded at most once.
#[derive(Debug)]
pub struct Frame {
    seq: u64,
    freed: Freed,
    command: Command,
    encoded: OnceLock<Result<Box<[u8]>, Box<Error>>>,
}

impl Frame {
    /// Command number `seq`, counted from 1. Workers drop `freed` before they look at the command, which may use these
    /// registers again.
    pub fn new(seq: u64, freed: impl IntoIterator<Item = RegisterId>, command: Command) -> Self {
        Self::with(seq, freed.into_iter().collect(), command)
    }

    pub(crate) fn with(seq: u64, freed: Freed, command: Command) -> Self {
        Self { seq, freed, command, encoded: OnceLock::new() }
    }

    /// Frame `seq` from its [bytes](Frame::bytes), which it keeps to go on to others.
    ///
    /// # Errors
    /// Anything that [`WireError`] tells.
    pub fn decode(seq: u64, bytes: &[u8]) -> Result<Self, WireError> {
        let frame = decode_frame(seq, bytes)?;
        Ok(Self { encoded: Ok(bytes.into()).into(), ..frame })
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
        let encoded = self.encoded.get_or_init(|| encode_frame(self).map_err(Box::new));
        encoded.as_deref().map_err(|error| (**error).clone())
    }
}
