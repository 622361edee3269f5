//! Receives a worker's commands from the ring, the connection, or both.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use disco_core::shared_memory::MappedSnapshot;
use disco_core::wire::{self, Message, Received};
use disco_core::{Command, Error, Frame, Result, Value, WorkerId};
use disco_engine::credit::Taken;

use crate::remote::lane::frames::{ALL_READERS, LARGE_FLAG};
use crate::remote::reactor::{Connection, Waker};
use crate::ring::spin_policy::Expect;
use crate::shared_ring::{Memory, Reader};

/// The worker's source of frames, in order.
pub(super) struct Commands {
    worker: WorkerId,
    connection: Arc<Connection>,
    /// `None`: all frames come over the connection.
    ring: Option<Reader>,
    /// Index of this reader in the ring.
    reader: u64,
    letterbox: Arc<Letterbox>,
    buffer: Vec<u8>,
    /// The frame that the worker executes.
    frame: Frame,
    /// Credit of frames that came over the connection.
    taken: Taken,
    /// How the wait for the next frame spins.
    expect: Expect,
}

/// State that the worker's thread and its service thread share: frames that came over the connection, and the flag that
/// ends reception.
pub(super) struct Letterbox {
    frames: Mutex<VecDeque<Large>>,
    came: Condvar,
    closed: AtomicBool,
    /// Whether the service thread, which this waker wakes, polls the worker's progress rarely until it is woken.
    rests: AtomicBool,
    waker: Arc<Waker>,
    ring: Option<Memory>,
}

/// A frame that came over the connection.
pub(super) struct Large {
    pub(super) seq: u64,
    pub(super) bytes: Arc<[u8]>,
    /// Shared memory with its large tensors.
    pub(super) beside: Option<Arc<MappedSnapshot>>,
    /// The large tensors, if they came ahead of the frame.
    pub(super) received: Option<Received>,
}

impl Letterbox {
    pub(super) fn new(ring: Option<Memory>, waker: Arc<Waker>) -> Self {
        let (frames, came, closed, rests) = Default::default();
        Self { frames, came, closed, rests, waker, ring }
    }

    /// The service thread rests until the worker runs.
    pub(super) fn rest(&self) {
        self.rests.store(true, Ordering::Relaxed);
    }

    pub(super) fn rests(&self) -> bool {
        self.rests.load(Ordering::Relaxed)
    }

    /// The worker runs: wakes a service thread that rests.
    fn run(&self) {
        if self.rests() && self.rests.swap(false, Ordering::Relaxed) {
            self.waker.wake();
        }
    }

    pub(super) fn put(&self, frame: Large) {
        self.lock().push_back(frame);
        self.came.notify_one();
    }

    /// Ends reception at once; frames that were not read yet are dropped.
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

    fn take(&self) -> Option<Large> {
        let mut frames = self.lock();
        while !self.is_closed() {
            if let Some(frame) = frames.pop_front() {
                return Some(frame);
            }
            frames = self.came.wait(frames).unwrap_or_else(PoisonError::into_inner);
        }
        None
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<Large>> {
        self.frames.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Commands {
    pub(super) fn new(
        worker: WorkerId,
        connection: Arc<Connection>,
        ring: Option<(u64, Reader)>,
        letterbox: Arc<Letterbox>,
    ) -> Self {
        let (reader, ring) = ring.map_or((0, None), |(reader, ring)| (reader, Some(ring)));
        let frame = Frame::new(0, [], Command::SyncAll);
        let (buffer, taken, expect) = Default::default();
        Self { worker, connection, ring, reader, letterbox, buffer, frame, taken, expect }
    }

    /// Whether reception has ended: the controller is lost, or has signalled shutdown.
    pub(super) fn is_closed(&self) -> bool {
        self.letterbox.is_closed()
    }

    /// Waits for the next frame.
    ///
    /// # Errors
    /// [`Error::Closed`]; or the ring or the connection holds bytes that are not a frame.
    pub(super) fn next(&mut self) -> Result<&Frame> {
        self.letterbox.run();
        // Frees its tensors before the wait.
        self.frame.clear();
        let due = self.take_record()?;
        self.letterbox.run();
        match due {
            // The common case in place, because a frame is large to pass on.
            Due::Buffer { seq, start } => self.frame.decode_again(seq, &self.buffer[start..])?,
            Due::Connection(due) => self.frame = self.take_letter(due)?,
            Due::Closed => return Err(Error::Closed(self.worker.to_string())),
        }
        if let Some(ring) = &mut self.ring {
            self.expect = self.expect.after(self.frame.command(), self.worker);
            ring.expect(self.expect);
        }
        Ok(&self.frame)
    }

    /// The next frame from the connection, which has the number `due`, if given.
    fn take_letter(&mut self, due: Option<u64>) -> Result<Frame> {
        let worker = self.worker;
        let closed = || Error::Closed(worker.to_string());
        let Large { seq, bytes, beside, received } = self.letterbox.take().ok_or_else(closed)?;
        if due.is_some_and(|due| due != seq) {
            return Err(Error::protocol(format!("frame {seq} came instead of {due:?}")));
        }
        let memory = beside.clone();
        let received_len = received.as_ref().map_or(0, Received::byte_len);
        let frame = match received {
            Some(received) => wire::decode_frame_after(seq, &bytes, received)?,
            None => wire::decode_frame_beside(seq, &bytes, beside)?,
        };
        let beside_len = match memory {
            // It may be larger than the tensor in it.
            Some(memory) if memory.is_reused() => frame.command().values().iter().map(Value::payload_len).sum(),
            memory => memory.map_or(0, |memory| memory.byte_len()),
        };
        if self.taken.take(bytes.len() + beside_len + received_len) {
            self.acknowledge()?;
        }
        Ok(frame)
    }

    /// Copies the ring's next record to the buffer. Returns where its frame is.
    fn take_record(&mut self) -> Result<Due> {
        let Some(ring) = &mut self.ring else { return Ok(Due::Connection(None)) };
        let taken = loop {
            if self.letterbox.is_closed() {
                return Ok(Due::Closed);
            }
            let taken = ring.take(&mut self.buffer);
            match taken.map_err(|garbage| Error::protocol(format!("garbage in the ring: {}", garbage.0)))? {
                Some(taken) => break taken,
                None => ring.wait(&self.letterbox.closed),
            }
        };
        if taken.frees_half {
            self.acknowledge()?;
        }
        let seq = taken.tag & !LARGE_FLAG;
        if seq == taken.tag {
            return Ok(Due::Buffer { seq, start: 0 });
        }
        let Some(reader) = self.buffer.first_chunk().map(|reader| u64::from_ne_bytes(*reader)) else {
            return Err(Error::protocol("garbage in the ring: the record of a large frame has no reader"));
        };
        Ok(if reader == ALL_READERS || reader == self.reader {
            Due::Connection(Some(seq))
        } else {
            Due::Buffer { seq, start: size_of::<u64>() }
        })
    }

    fn acknowledge(&mut self) -> Result<()> {
        let (frames, bytes) = self.taken.acknowledge();
        self.connection.send(Message::Credit { frames, bytes }.encode()?, None)
    }
}

/// Source of the next frame.
enum Due {
    /// The buffer, from byte `start`.
    Buffer {
        seq: u64,
        start: usize,
    },
    /// The connection; the frame must have this number, if given.
    Connection(Option<u64>),
    Closed,
}
