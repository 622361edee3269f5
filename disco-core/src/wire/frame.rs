//! Frames: the units of the command stream that lanes carry.

use std::sync::{Arc, Mutex, OnceLock, Weak};

use super::beside::{self, Beside};
use super::command::{Freed, encode_frame, read_frame};
use super::transfer::Received;
use super::{MappedSnapshot, Pieces, Transfer, WireError, Writer};
use crate::command::Command;
use crate::error::{Error, Result};
use crate::id::{RegisterId, WorkerId};
use crate::shared_memory::Snapshot;
use crate::sync;
use crate::value::Value;

/// Largest size, in bytes, of the values of a [light](Frame::is_light) frame.
const MAX_LIGHT_BYTES: usize = 1 << 10;
/// Largest encoding, in bytes, that a decoded frame keeps.
const MAX_KEPT_BYTES: usize = 1 << 20;

/// The most arguments of a call whose memory serves the next call.
const MAX_KEPT_ARGUMENTS: usize = 64;

/// A command with the register ids that were freed before it. All lanes share a frame, and it is encoded at most once.
#[derive(Debug)]
pub struct Frame {
    seq: u64,
    freed: Freed,
    command: Command,
    encoded: OnceLock<Result<Vec<u8>, Box<Error>>>,
    /// Copies of its large tensors in shared memory, set when they are made; none if it has no large tensor.
    snapshot: OnceLock<Option<Arc<Snapshot>>>,
    /// The packet of [`Frame::pieces`], while a caller keeps it alive.
    pieces: Mutex<Weak<Pieces>>,
    /// The transfer that has sent its large tensors ahead of the frame.
    transfer: Weak<Transfer>,
}

impl Frame {
    /// A frame with command number `seq`, counted from 1. Workers free the registers `freed` before they run the
    /// command, which may reuse them.
    pub fn new(seq: u64, freed: impl IntoIterator<Item = RegisterId>, command: Command) -> Self {
        Self::with(seq, freed.into_iter().collect(), command)
    }

    #[inline]
    pub(crate) fn with(seq: u64, freed: Freed, command: Command) -> Self {
        let (encoded, snapshot, pieces) = (OnceLock::new(), OnceLock::new(), Mutex::default());
        Self { seq, freed, command, encoded, snapshot, pieces, transfer: Weak::new() }
    }

    /// Decodes frame `seq` from its [bytes](Frame::bytes). The frame keeps up to 1 MiB of bytes, so that it can be
    /// forwarded without another encoding.
    ///
    /// # Errors
    /// The bytes are not a valid frame ([`WireError`]).
    pub fn decode(seq: u64, bytes: &[u8]) -> Result<Self, WireError> {
        let frame = decode_frame(seq, bytes)?;
        if bytes.len() > MAX_KEPT_BYTES { Ok(frame) } else { Ok(Self { encoded: Ok(bytes.into()).into(), ..frame }) }
    }

    /// Becomes frame `seq` with these [bytes](Frame::bytes). The arguments of a call use the memory of those of the call
    /// before: a worker that decodes its frames in one place allocates less.
    ///
    /// # Errors
    /// The bytes are not a valid frame ([`WireError`]); this frame is then invalid.
    pub fn decode_again(&mut self, seq: u64, bytes: &[u8]) -> Result<(), WireError> {
        self.clear();
        self.seq = seq;
        self.read(bytes, None)
    }

    /// Becomes another frame, with fewer copies than an assignment.
    #[inline]
    pub(crate) fn set(&mut self, seq: u64, freed: Freed, command: Command) {
        (self.seq, self.freed, self.command) = (seq, freed, command);
        self.forget_encodings();
    }

    /// Drops the values of a frame that is over.
    pub fn clear(&mut self) {
        self.freed.clear();
        match &mut self.command {
            Command::CallPacked { args, .. } if args.capacity() <= MAX_KEPT_ARGUMENTS => args.clear(),
            command => *command = Command::SyncAll,
        }
        self.forget_encodings();
    }

    #[inline]
    fn forget_encodings(&mut self) {
        // Frames of threads are not encoded, and workers do not encode the frames that they execute.
        if self.encoded.get().is_some() || self.snapshot.get().is_some() {
            (self.encoded, self.snapshot) = (OnceLock::new(), OnceLock::new());
        }
        (self.pieces, self.transfer) = (Mutex::default(), Weak::new());
    }

    /// Reads the packets of the frame in the place of its registers, which are none, and its command.
    pub(super) fn read(&mut self, bytes: &[u8], beside: Option<Beside>) -> Result<(), WireError> {
        read_frame(bytes, beside, &mut self.freed, &mut self.command)
    }

    /// This frame's number and freed registers with a no-op command.
    pub fn as_noop(&self) -> Self {
        let nobody = WorkerId::new(u32::MAX);
        Self::with(self.seq, self.freed.clone(), Command::SyncWorker { worker: nobody })
    }

    /// Whether a lane may keep the frame after all workers have finished with it: its values and freed ids have at most
    /// 1 KiB, and it has no tensor, object or list.
    pub fn is_light(&self) -> bool {
        Self::would_be_light(&self.freed, &self.command)
    }

    /// Whether a frame with this content would be [light](Self::is_light).
    pub(crate) fn would_be_light(freed: &[RegisterId], command: &Command) -> bool {
        let of_values = |values: &[Value]| {
            values.iter().try_fold(0, |sum, value| match value {
                Value::Tensor(_) | Value::Object(_) | Value::Array(_) | Value::Map(_) | Value::Tagged(..) => None,
                value => Some(sum + value.payload_len()),
            })
        };
        let bytes = match command {
            Command::CallPacked { args, .. } => of_values(args),
            Command::CallWith { .. } => None,
            Command::DebugSet { value, .. } => of_values(std::slice::from_ref(value)),
            Command::GetGlobalFunc { name, .. } => Some(name.len()),
            Command::CopyFromWorker0 { .. } | Command::CopyToWorker0 { .. } => None,
            _ => Some(0),
        };
        bytes.is_some_and(|bytes| bytes + size_of_val(freed) <= MAX_LIGHT_BYTES)
    }

    /// The command's number.
    #[inline]
    pub fn seq(&self) -> u64 {
        self.seq
    }

    /// Registers that workers free before they run the command.
    #[inline]
    pub fn freed(&self) -> &[RegisterId] {
        &self.freed
    }

    /// The command.
    #[inline]
    pub fn command(&self) -> &Command {
        &self.command
    }

    /// The packets of this frame: one with the freed ids, if there are any, and one with the command.
    ///
    /// # Errors
    /// A value can't leave the process.
    pub fn bytes(&self) -> Result<&[u8]> {
        let encoded = self
            .encoded
            .get_or_init(|| encode_frame(&self.freed, &self.command, Writer::for_frame()).map_err(Box::new));
        encoded.as_deref().map_err(|error| (**error).clone())
    }

    /// The packet of [`Message::Frame`](super::Message::Frame) with this frame, which reads large tensors in place;
    /// none if the frame has no large tensor. Callers share the packet while one of them keeps it alive. The tensors
    /// can't be written to during that time.
    ///
    /// # Errors
    /// A value can't leave the process, or a tensor is being written to.
    pub fn pieces(&self) -> Result<Option<Arc<Pieces>>> {
        let mut shared = sync::lock(&self.pieces);
        if let Some(pieces) = shared.upgrade() {
            return Ok(Some(pieces));
        }
        let pieces = Pieces::of(self.seq, &self.freed, &self.command)?.map(Arc::new);
        if let Some(pieces) = &pieces {
            *shared = Arc::downgrade(pieces);
        }
        Ok(pieces)
    }

    /// Sets the copies of the frame's large tensors in shared memory.
    pub(crate) fn set_snapshot(&mut self, snapshot: Option<Arc<Snapshot>>) {
        self.snapshot = snapshot.into();
    }

    /// Records that `transfer` sends the large tensors ahead of the frame. The frame does not keep the transfer alive.
    pub fn set_transfer(&mut self, transfer: &Arc<Transfer>) {
        self.transfer = Arc::downgrade(transfer);
    }

    /// The transfer that sends the large tensors ahead of this frame, if there is one.
    pub fn transfer(&self) -> Option<Arc<Transfer>> {
        self.transfer.upgrade()
    }

    /// The packets of this frame without its large tensors. Decoded by
    /// [`decode_frame_after`](super::decode_frame_after).
    ///
    /// # Errors
    /// A value can't leave the process.
    pub fn bytes_without_tensors(&self) -> Result<Vec<u8>> {
        encode_frame(&self.freed, &self.command, Writer::with_memory_beside())
    }

    /// The packets of this frame without its large tensors, and copies of the tensors in shared memory; none if the
    /// frame has no large tensor or shared memory is exhausted. The first call copies the tensors. Decoded by
    /// [`decode_frame_beside`](super::decode_frame_beside).
    pub fn bytes_and_snapshot(&self) -> Option<(Vec<u8>, Arc<Snapshot>)> {
        let make = || snapshot(self.command.values());
        let snapshot = self.snapshot.get_or_init(make).clone()?;
        Some((encode_frame(&self.freed, &self.command, Writer::with_memory_beside()).ok()?, snapshot))
    }
}

/// Decodes a frame with command number `seq`.
///
/// # Errors
/// The bytes are not a valid frame.
pub fn decode_frame(seq: u64, bytes: &[u8]) -> Result<Frame, WireError> {
    decode_frame_beside(seq, bytes, None)
}

/// As [`decode_frame`], with the large tensors of the command in memory beside the bytes.
///
/// # Errors
/// The bytes are not a valid frame, or a tensor is outside the memory beside them.
pub fn decode_frame_beside(seq: u64, bytes: &[u8], beside: Option<Arc<MappedSnapshot>>) -> Result<Frame, WireError> {
    decode(seq, bytes, beside.map(|memory| Beside::new(Ok(memory))))
}

/// As [`decode_frame`], with the large tensors of the command in an earlier transfer.
///
/// # Errors
/// The bytes are not a valid frame, or the transfer is incomplete.
pub fn decode_frame_after(seq: u64, bytes: &[u8], received: Received) -> Result<Frame, WireError> {
    let beside = Beside::of_transfer(received).ok_or(WireError::Expected("all of a transfer before its frame"))?;
    decode(seq, bytes, Some(beside))
}

fn decode(seq: u64, bytes: &[u8], beside: Option<Beside>) -> Result<Frame, WireError> {
    let mut frame = Frame::with(seq, Freed::new(), Command::SyncAll);
    frame.read(bytes, beside)?;
    Ok(frame)
}

/// A copy of the large tensors of `values` in shared memory; none if there is no large tensor or the copy fails.
pub(crate) fn snapshot<'a>(values: impl IntoIterator<Item = &'a Value>) -> Option<Arc<Snapshot>> {
    match beside::snapshot(values) {
        Ok(snapshot) => snapshot.map(Arc::new),
        Err(error) => {
            tracing::debug!(%error, "large tensors go over sockets");
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tensor::Tensor;

    fn call(args: Vec<Value>) -> Frame {
        Frame::new(1, [], Command::CallPacked { register: 0.into(), function: 1.into(), args })
    }

    #[test]
    fn a_frame_with_a_tensor_an_array_or_more_than_a_kibibyte_is_not_light() {
        assert!(call(vec![Value::Int(1), "three".into(), Value::Register(2.into())]).is_light());
        assert!(Frame::new(1, [], Command::SyncAll).is_light());
        let tensor = Tensor::zeros(crate::DType::U8, [1]).unwrap();
        assert!(!call(vec![Value::Int(1), tensor.into()]).is_light());
        assert!(!call(vec![vec![Value::Int(1)].into()]).is_light());
        assert!(
            !call(vec![vec![7u8; MAX_LIGHT_BYTES / 2 + 1].into(), vec![7u8; MAX_LIGHT_BYTES / 2].into()]).is_light()
        );
        assert!(!Frame::new(1, (0..300).map(RegisterId::new), Command::SyncAll).is_light());
    }
}
