//! Where a worker's commands come from: the ring, the connection, or both.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use disco_core::wire::{self, Message};
use disco_core::{Error, Frame, Result, WorkerId};

use super::connection::Connection;
use crate::shared_ring::{Memory, Reader};

/// Frames that a lane without a ring has room for.
pub(super) const CAPACITY: u64 = 1024;
/// How many of them a worker takes before it says so.
const ACKNOWLEDGE: u64 = CAPACITY / 4;

/// The worker's side of what the controller sends.
pub(super) struct Commands {
    worker: WorkerId,
    connection: Arc<Connection>,
    /// None: all frames come over the connection.
    ring: Option<Reader>,
    letterbox: Arc<Letterbox>,
    buffer: Vec<u8>,
    /// Frames taken.
    taken: u64,
}

/// Frames that came over the connection, and the end of all frames. The service thread fills it.
#[derive(Default)]
pub(super) struct Letterbox {
    frames: Mutex<VecDeque<(u64, Arc<[u8]>)>>,
    came: Condvar,
    closed: AtomicBool,
    ring: Option<Memory>,
}

impl Letterbox {
    pub(super) fn new(ring: Option<Memory>) -> Self {
        Self { ring, ..Self::default() }
    }

    pub(super) fn put(&self, seq: u64, bytes: Arc<[u8]>) {
        self.lock().push_back((seq, bytes));
        self.came.notify_one();
    }

    /// Ends reading, ahead of all frames that are still to be read.
    pub(super) fn close(&self) {
        {
            let _frames = self.lock();
            self.closed.store(true, Ordering::Release);
        }
        self.came.notify_one();
        if let Some(ring) = &self.ring {
            Reader::wake(ring);
        }
    }

    pub(super) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    fn take(&self) -> Option<(u64, Arc<[u8]>)> {
        let mut frames = self.lock();
        while !self.is_closed() {
            if let Some(frame) = frames.pop_front() {
                return Some(frame);
            }
            frames = self.came.wait(frames).unwrap_or_else(PoisonError::into_inner);
        }
        None
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<(u64, Arc<[u8]>)>> {
        self.frames.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Commands {
    pub(super) fn new(
        worker: WorkerId,
        connection: Arc<Connection>,
        ring: Option<Reader>,
        letterbox: Arc<Letterbox>,
    ) -> Self {
        Self { worker, connection, ring, letterbox, buffer: Vec::new(), taken: 0 }
    }

    /// The next frame.
    ///
    /// # Errors
    /// [`Error::Closed`]; bytes that are no frame.
    pub(super) fn next(&mut self) -> Result<Frame> {
        let worker = self.worker;
        let closed = || Error::Closed(worker.to_string());
        let frame = match self.take_record()? {
            Source::Closed => return Err(closed()),
            Source::Ring(seq) => wire::decode_frame(seq, &self.buffer)?,
            Source::Connection => match self.letterbox.take() {
                None => return Err(closed()),
                Some((seq, bytes)) => wire::decode_frame(seq, &bytes)?,
            },
        };
        self.taken += 1;
        if self.ring.is_none() && self.taken.is_multiple_of(ACKNOWLEDGE) {
            self.tell_of_room()?;
        }
        Ok(frame)
    }

    /// Copies the ring's next record to the buffer.
    fn take_record(&mut self) -> Result<Source> {
        let Some(ring) = &mut self.ring else { return Ok(Source::Connection) };
        let taken = loop {
            if self.letterbox.is_closed() {
                return Ok(Source::Closed);
            }
            let taken = ring.take(&mut self.buffer);
            match taken.map_err(|garbage| Error::invalid(format!("garbage in the ring: {}", garbage.0)))? {
                Some(taken) => break taken,
                None => ring.wait(&self.letterbox.closed),
            }
        };
        if taken.frees_half {
            self.tell_of_room()?;
        }
        // An empty record stands for a frame that is too large for the ring.
        Ok(if self.buffer.is_empty() { Source::Connection } else { Source::Ring(taken.tag) })
    }

    fn tell_of_room(&self) -> Result<()> {
        self.connection.send(Message::Room { taken: self.taken }.encode()?, None)
    }
}

/// Where the next frame is.
enum Source {
    /// In the buffer; its number.
    Ring(u64),
    Connection,
    Closed,
}
