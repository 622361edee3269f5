//! The controller's end of the ring, and what goes through it.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use disco_core::shared_memory::Segment;
use disco_core::{Command, Error, Frame, Result, WorkerRange};

use super::frames::{EVERYBODY, INLINE};
use crate::shared_ring::{Garbage, Memory, Whom, Writer};

/// Words of the ring: 4 MiB.
pub(crate) const CAPACITY: usize = 1 << 19;

/// The ring of a lane: its lane writes, and its reactor thread retires and wakes readers.
pub(crate) struct Ring {
    writer: Mutex<Writer>,
}

impl Ring {
    /// A ring for so many readers and its memory, if there is shared memory.
    pub(crate) fn new(readers: usize) -> Option<(Arc<Segment>, Arc<Self>)> {
        let make = || {
            let segment = Arc::new(Segment::create(8 * Memory::words(readers, CAPACITY))?);
            let memory = Memory::new(segment.clone(), readers, CAPACITY)?;
            Ok::<_, Error>((segment, Arc::new(Self { writer: Mutex::new(Writer::new(memory)) })))
        };
        make().inspect_err(|error| tracing::warn!(%error, "commands go over sockets")).ok()
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Writer> {
        self.writer.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Frames of the largest size that there is room for. A reader whose cursor can't be is retired and passed to `accuse`.
pub(super) fn room(writer: &mut Writer, mut accuse: impl FnMut(usize, Garbage)) -> usize {
    loop {
        match writer.room(INLINE) {
            Ok(room) => return room.map_or(0, |room| room / INLINE),
            Err((reader, garbage)) => {
                writer.retire(reader);
                accuse(reader, garbage);
            }
        }
    }
}

/// The worker of a lane that a command concerns.
pub(super) fn whom(command: &Command, workers: WorkerRange) -> Whom {
    match command {
        Command::SyncWorker { worker } | Command::DebugGet { worker, .. } | Command::DebugSet { worker, .. } => {
            workers.position(*worker).map_or(Whom::Nobody, Whom::One)
        }
        Command::CopyFromWorker0 { .. } | Command::CopyToWorker0 { .. } => Whom::Nobody,
        _ => Whom::All,
    }
}

/// The record in place of a large frame: which of so many readers gets it otherwise, and what is left of it for the others.
///
/// # Errors
/// A value that can't leave the process.
pub(super) fn placeholder(frame: &Frame, whom: Whom, readers: usize) -> Result<(Vec<u8>, Whom)> {
    let everybody = || Ok((EVERYBODY.to_ne_bytes().to_vec(), Whom::All));
    let reader = match whom {
        Whom::One(reader) => reader as u64,
        Whom::Nobody => readers as u64,
        _ => return everybody(),
    };
    let record = [&reader.to_ne_bytes()[..], frame.without_command().bytes()?].concat();
    // So many freed ids that they are what is large.
    if record.len() > INLINE { everybody() } else { Ok((record, whom)) }
}
