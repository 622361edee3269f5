//! Streams: queues of work, each with its own thread.

use std::collections::VecDeque;
use std::ffi::c_int;
use std::mem;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;

use super::abi::{self, Code};
use super::capture::CaptureSlot;
use super::device::Device;
use super::graph::{self, Node};
use super::hardware::HardwareQueue;
use super::{per_thread, pool};
use crate::handles::Handles;
use crate::settings;
use crate::sync::{lock, wait};

/// A piece of work. A graph may run it many times. An error becomes the device's sticky error.
pub(crate) type Work = Box<dyn Fn() -> Result<(), Code> + Send + Sync>;

static STREAMS: Handles<Stream> = Handles::new(0x5_0000_0000);

/// `CU_STREAM_PER_THREAD`: the handle of the calling thread's default stream, which is another stream on each thread.
pub(crate) const PER_THREAD: usize = 2;

/// A stream. Submitting work takes one lock, and wakes the stream's thread only if it sleeps.
pub(crate) struct Stream {
    device: &'static Device,
    /// The hardware queue that it shares with other streams; `None` if it has its own.
    hardware: Option<Arc<HardwareQueue>>,
    /// Whether this stream and the default stream wait for each other.
    is_ordered: bool,
    /// The capture of the stream, if any.
    pub(crate) capture: CaptureSlot,
    queue: Mutex<Queue>,
    filled: Condvar,
    drained: Condvar,
    submitted: AtomicU64,
    finished: AtomicU64,
    /// Number of threads that wait for the completion of work.
    waiting: AtomicUsize,
}

/// A queued piece of work.
struct Item {
    /// The ticket in the hardware queue.
    ticket: u64,
    /// Whether the work blocks the hardware queue until it is done, not only until it starts.
    is_wait: bool,
    work: Work,
}

#[derive(Default)]
struct Queue {
    work: VecDeque<Item>,
    is_closed: bool,
    is_asleep: bool,
}

/// `cuStreamCreate`: a stream that shares one of `queues` hardware queues.
pub(crate) fn create(device: &'static Device, is_ordered: bool, queues: usize) -> abi::Stream {
    STREAMS.insert(Stream::start(device, is_ordered, Some(device.hardware.next(queues))))
}

/// `cuStreamCreateWithPriority`: if priorities are enabled, a stream with a priority above the default, 0, has its own
/// hardware queue.
pub(crate) fn create_with(device: &'static Device, is_ordered: bool, priority: c_int, queues: usize) -> abi::Stream {
    if priority < 0 && settings::read().priorities() {
        STREAMS.insert(Stream::start(device, is_ordered, None))
    } else {
        create(device, is_ordered, queues)
    }
}

/// The least and the greatest priority: those of the vendor, or 0 if priorities are disabled.
pub(crate) fn priorities(of_vendor: [c_int; 2]) -> [c_int; 2] {
    if settings::read().priorities() { of_vendor } else { [0; 2] }
}

/// `cuStreamDestroy`: submitted work still runs.
pub(crate) fn destroy(handle: abi::Stream) -> Result<(), Code> {
    STREAMS.remove(handle).ok_or(Code::INVALID_HANDLE)?.close();
    Ok(())
}

/// The stream of a handle. Handles 0 and 1 (`CU_STREAM_LEGACY`) are the default stream of the device, and handle 2
/// (`CU_STREAM_PER_THREAD`) is the default stream of the calling thread.
pub(crate) fn find(handle: abi::Stream, device: &'static Device) -> Result<Arc<Stream>, Code> {
    match handle.addr() {
        0 | 1 => return Ok(Arc::clone(device.default_stream())),
        PER_THREAD => return Ok(per_thread::stream(device)),
        _ => {}
    }
    let stream = of_handle(handle)?;
    stream.capture.check().map(|()| stream)
}

/// The stream of a handle, except default streams. Also finds a stream whose capture was invalidated.
pub(crate) fn of_handle(handle: abi::Stream) -> Result<Arc<Stream>, Code> {
    STREAMS.find(handle).ok_or(Code::INVALID_HANDLE)
}

/// All streams of a device.
pub(crate) fn of_device(device: &'static Device) -> Vec<Arc<Stream>> {
    let mut streams = STREAMS.all();
    streams.extend(per_thread::all());
    streams.retain(|stream| stream.device.ordinal == device.ordinal);
    streams.extend(device.default_stream_if_used().cloned());
    streams
}

/// Number of streams, without default streams.
pub(crate) fn live() -> usize {
    STREAMS.len()
}

impl Stream {
    /// Creates a stream and starts its thread.
    pub(crate) fn start(device: &'static Device, is_ordered: bool, hardware: Option<Arc<HardwareQueue>>) -> Arc<Self> {
        let stream = Arc::new(Self {
            device,
            hardware,
            is_ordered,
            capture: CaptureSlot::default(),
            queue: Mutex::default(),
            filled: Condvar::new(),
            drained: Condvar::new(),
            submitted: AtomicU64::new(0),
            finished: AtomicU64::new(0),
            waiting: AtomicUsize::new(0),
        });
        let served = Arc::clone(&stream);
        thread::spawn(move || served.serve());
        stream
    }

    /// The device of the stream.
    pub(crate) fn device(&self) -> &'static Device {
        self.device
    }

    /// An identity among all streams.
    pub(crate) fn id(&self) -> usize {
        std::ptr::from_ref(self).addr()
    }

    /// Enqueues work, or adds the work to the running capture.
    pub(crate) fn push(&self, work: Work) {
        match self.capture.current() {
            Some(capture) => capture.add(self, graph::node(work)),
            None => self.enqueue(work, false),
        }
    }

    /// Like [`push`](Self::push), for work that waits: it blocks the hardware queue until it is done.
    pub(crate) fn push_wait(&self, work: Work) {
        match self.capture.current() {
            Some(capture) => capture.add(self, graph::node(work)),
            None => self.enqueue(work, true),
        }
    }

    /// Enqueues the work of a node, or adds the node to the running capture.
    pub(crate) fn launch(&self, node: Node) {
        match self.capture.current() {
            Some(capture) => capture.add(self, node),
            None => self.enqueue(node(), false),
        }
    }

    fn enqueue(&self, work: Work, is_wait: bool) {
        self.wait_for_default();
        self.append(work, is_wait);
    }

    /// Orders the default stream and blocking streams: each waits for the work that was submitted to the other before.
    fn wait_for_default(&self) {
        let others = match self.device.default_stream_if_used() {
            Some(default) if std::ptr::eq(self, &raw const **default) => {
                of_device(self.device).into_iter().filter(|stream| stream.is_ordered).collect()
            }
            Some(default) if self.is_ordered => vec![Arc::clone(default)],
            _ => return,
        };
        let others: Vec<_> = others.into_iter().map(|stream| (stream.submitted(), stream)).collect();
        let wait = move || {
            others.iter().for_each(|(submitted, stream)| stream.wait_until(*submitted));
            Ok(())
        };
        self.append(Box::new(wait), true);
    }

    fn append(&self, work: Work, is_wait: bool) {
        let mut queue = lock(&self.queue);
        // Taken under the lock, so that the tickets of a stream have the order of its work.
        let ticket = self.hardware.as_ref().map_or(0, |hardware| hardware.submit());
        queue.work.push_back(Item { ticket, is_wait, work });
        self.submitted.fetch_add(1, SeqCst);
        let is_asleep = mem::take(&mut queue.is_asleep);
        drop(queue);
        if is_asleep {
            self.filled.notify_one();
        }
    }

    /// Whether all submitted work is done.
    fn is_idle(&self) -> bool {
        self.finished.load(SeqCst) == self.submitted()
    }

    /// Waits for all submitted work.
    pub(crate) fn synchronize(&self) {
        self.wait_until(self.submitted());
    }

    /// `cuStreamQuery`: not ready until all submitted work is done.
    pub(crate) fn query(&self) -> Result<(), Code> {
        self.capture.refuse()?;
        let is_idle = self.is_idle();
        self.device.check()?;
        if is_idle { Ok(()) } else { Err(Code::NOT_READY) }
    }

    /// `cuStreamSynchronize`: waits, and returns the device's sticky error, if any.
    pub(crate) fn finish(&self) -> Result<(), Code> {
        self.capture.refuse()?;
        self.synchronize();
        pool::release(self.device);
        self.device.check()
    }

    fn submitted(&self) -> u64 {
        self.submitted.load(SeqCst)
    }

    fn wait_until(&self, finished: u64) {
        if self.finished.load(SeqCst) >= finished {
            return;
        }
        let mut queue = lock(&self.queue);
        // Incremented before the next check of `finished`: the stream's thread increments `finished` before it checks
        // `waiting`.
        self.waiting.fetch_add(1, SeqCst);
        while self.finished.load(SeqCst) < finished {
            queue = wait(&self.drained, queue);
        }
        self.waiting.fetch_sub(1, SeqCst);
    }

    /// Ends the stream's thread once all submitted work is done.
    pub(crate) fn close(&self) {
        lock(&self.queue).is_closed = true;
        self.filled.notify_one();
    }

    fn serve(&self) {
        let mut taken = VecDeque::new();
        while self.take(&mut taken) {
            for item in taken.drain(..) {
                if let Err(code) = self.run(item) {
                    self.device.fail(code);
                }
                self.finished.fetch_add(1, SeqCst);
                if self.waiting.load(SeqCst) > 0 {
                    drop(lock(&self.queue));
                    self.drained.notify_all();
                }
            }
        }
    }

    fn run(&self, Item { ticket, is_wait, work }: Item) -> Result<(), Code> {
        let dispatch = || self.hardware.iter().for_each(|hardware| hardware.dispatch());
        if let Some(hardware) = &self.hardware {
            hardware.wait_for_turn(ticket);
        }
        if !is_wait {
            dispatch();
        }
        settings::read().delay();
        let outcome = work();
        if is_wait {
            dispatch();
        }
        outcome
    }

    /// Waits until there is work, and takes all of it. Returns false if the stream was closed and its queue is empty.
    fn take(&self, taken: &mut VecDeque<Item>) -> bool {
        let mut queue = lock(&self.queue);
        loop {
            mem::swap(&mut queue.work, taken);
            if !taken.is_empty() || queue.is_closed {
                return !taken.is_empty();
            }
            queue.is_asleep = true;
            queue = wait(&self.filled, queue);
        }
    }
}
