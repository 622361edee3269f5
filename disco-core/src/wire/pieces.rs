//! A packet that is read in parts, with large tensors read in place.

use super::beside::layout;
use super::command::write_frame;
use super::parts::tensor_bytes;
use super::value::write_bytes_head;
use super::{INLINE_LIMIT, Writer, action};
use crate::command::Command;
use crate::error::Result;
use crate::id::RegisterId;
use crate::tensor::{Access, Tensor};
use crate::value::Value;

/// The packet of [`Message::Frame`](super::Message::Frame), to be read in parts. Large tensors are not copied into the
/// packet: they can't be written to until the packet is dropped.
#[derive(Debug)]
pub struct Pieces {
    /// Each piece, and its end position in the packet.
    pieces: Vec<(Piece, usize)>,
    frame_len: usize,
}

#[derive(Debug)]
enum Piece {
    Bytes(Vec<u8>),
    Tensor(Tensor, #[expect(dead_code, reason = "held")] Access),
}

impl Pieces {
    /// The packet of a frame with large tensors; none if there are no large tensors.
    ///
    /// # Errors
    /// A value can't leave the process.
    pub(super) fn of(seq: u64, freed: &[RegisterId], command: &Command) -> Result<Option<Self>> {
        let mut large = Vec::new();
        let mut add = |tensor| large.push(tensor);
        command.values().iter().for_each(|value| value.visit_tensors(&mut add));
        large.retain(|tensor: &&Tensor| tensor.byte_len() > INLINE_LIMIT);
        if large.is_empty() {
            return Ok(None);
        }
        let mut tensors = large.into_iter();
        let mut inner = Writer::leaving_out();
        write_frame(freed, command, &mut inner)?;
        let (bytes, left_out) = inner.into_parts();
        let len = bytes.len() + left_out.iter().map(|(_, len)| len).sum::<usize>();
        let mut head = Writer::leaving_out();
        head.packet(3, |to| {
            [action::FRAME, seq as i64].map(Value::Int).iter().try_for_each(|arg| arg.write(to))?;
            write_bytes_head(len, to);
            to.leave_out(len);
            Ok(())
        })?;
        let mut packet = Self { pieces: Vec::new(), frame_len: len };
        packet.push(Piece::Bytes(head.into_parts().0));
        let mut start = 0;
        for (at, _) in left_out {
            packet.push(Piece::Bytes(bytes[start..at].to_vec()));
            if let Some(tensor) = tensors.next() {
                packet.push(Piece::Tensor(tensor.clone(), tensor.storage().read()?));
            }
            start = at;
        }
        packet.push(Piece::Bytes(bytes[start..].to_vec()));
        Ok(Some(packet))
    }

    /// The large tensors of `values` at their offsets in a transfer; none if there is no large tensor.
    ///
    /// # Errors
    /// A tensor is not a contiguous host tensor, or is being written to.
    pub fn of_tensors<'a>(values: impl IntoIterator<Item = &'a Value>) -> Result<Option<Self>> {
        let (tensors, bytes) = layout(values);
        let mut content = Self { pieces: Vec::new(), frame_len: bytes };
        for (place, tensor) in tensors {
            drop(tensor_bytes(tensor)?);
            content.push(Piece::Bytes(vec![0; place - content.byte_len()]));
            content.push(Piece::Tensor(tensor.clone(), tensor.storage().read()?));
        }
        Ok((bytes > 0).then_some(content))
    }

    /// A packet without tensors, of the bytes of `packet`.
    pub fn whole(packet: Vec<u8>) -> Self {
        let len = packet.len();
        Self { pieces: vec![(Piece::Bytes(packet), len)], frame_len: len }
    }

    /// Size of the frame inside the packet, in bytes.
    pub fn frame_len(&self) -> usize {
        self.frame_len
    }

    /// Size of the packet in bytes.
    pub fn byte_len(&self) -> usize {
        self.pieces.last().map_or(0, |(_, end)| *end)
    }

    /// Copies `count` bytes of the packet from position `at`, or the remaining bytes if there are fewer.
    ///
    /// # Errors
    /// A tensor can't be read.
    pub fn read(&self, mut at: usize, count: usize) -> Result<Vec<u8>> {
        let end = self.byte_len().min(at.saturating_add(count));
        let mut bytes = Vec::with_capacity(end.saturating_sub(at));
        for (piece, piece_end) in &self.pieces {
            if at >= end {
                break;
            }
            if at >= *piece_end {
                continue;
            }
            let start = piece_end - piece.byte_len();
            let range = at - start..end.min(*piece_end) - start;
            match piece {
                Piece::Bytes(piece) => bytes.extend_from_slice(&piece[range]),
                Piece::Tensor(tensor, _) => bytes.extend_from_slice(&tensor.bytes()?[range]),
            }
            at = end.min(*piece_end);
        }
        Ok(bytes)
    }

    fn push(&mut self, piece: Piece) {
        let end = self.byte_len() + piece.byte_len();
        self.pieces.push((piece, end));
    }
}

impl Piece {
    fn byte_len(&self) -> usize {
        match self {
            Piece::Bytes(bytes) => bytes.len(),
            Piece::Tensor(tensor, _) => tensor.byte_len(),
        }
    }
}
