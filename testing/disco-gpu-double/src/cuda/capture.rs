//! Stream captures: calls on a captured stream add nodes to a graph.

use std::collections::BTreeMap;
use std::ffi::c_int;
use std::mem;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::thread::{self, ThreadId};

use super::abi::{Code, DevicePointer};
use super::graph::Node;
use super::graph_memory::GraphMemory;
use super::stream::Stream;
use crate::sync::lock;

/// Running captures.
static CAPTURES: Mutex<Vec<Arc<Capture>>> = Mutex::new(Vec::new());
/// The number of running captures. If it is zero, calls take no lock.
static LIVE: AtomicUsize = AtomicUsize::new(0);

/// Functions that a capture can forbid to threads. The driver's documentation names allocation and queries of events;
/// the other functions of this list may wait for a device.
const FORBIDDEN_FUNCTIONS: &[&str] = &[
    "cuMemAlloc_v2",
    "cuMemFree_v2",
    "cuMemHostAlloc",
    "cuMemFreeHost",
    "cuEventQuery",
    "cuEventSynchronize",
    "cuCtxSynchronize",
    "cuMemcpyHtoD_v2",
    "cuMemcpyDtoH_v2",
    "cuModuleLoadData",
    "cuModuleUnload",
    "cuIpcOpenMemHandle_v2",
    "cuIpcCloseMemHandle",
    "cuMemPoolTrimTo",
    "hipMalloc",
    "hipFree",
    "hipHostMalloc",
    "hipHostFree",
    "hipEventQuery",
];

/// `CUstreamCaptureMode`: the threads to which a capture forbids unsafe calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    /// All threads.
    Global,
    /// The thread that began the capture.
    ThreadLocal,
    /// None.
    Relaxed,
}

/// A capture, from begin to end.
pub(crate) struct Capture {
    mode: Mode,
    thread: ThreadId,
    /// The stream on which it began.
    origin: usize,
    state: Mutex<CaptureState>,
}

#[derive(Default)]
struct CaptureState {
    is_invalid: bool,
    is_over: bool,
    /// Nodes in the order of the calls.
    nodes: Vec<Node>,
    members: BTreeMap<usize, Member>,
    /// What the nodes allocate.
    memory: Vec<Arc<GraphMemory>>,
}

/// A stream of a capture.
struct Member {
    stream: Weak<Stream>,
    clock: VectorClock,
}

/// The number of nodes of each stream that a point of a capture depends on (a vector clock).
#[derive(Clone, Default)]
pub(crate) struct VectorClock(BTreeMap<usize, u64>);

/// The capture of a stream, if any.
#[derive(Default)]
pub(crate) struct CaptureSlot {
    is_taken: AtomicBool,
    capture: Mutex<Option<Arc<Capture>>>,
}

impl Mode {
    /// `CU_STREAM_CAPTURE_MODE_GLOBAL`, `_THREAD_LOCAL` and `_RELAXED`.
    pub(crate) fn of(number: c_int) -> Result<Self, Code> {
        [Self::Global, Self::ThreadLocal, Self::Relaxed].into_iter().nth(number as usize).ok_or(Code::INVALID_VALUE)
    }
}

/// Rejects a function that a capture forbids to this thread, and invalidates the capture.
pub(crate) fn permit(function: &str) -> Result<(), Code> {
    if LIVE.load(SeqCst) == 0 || !FORBIDDEN_FUNCTIONS.contains(&function) {
        return Ok(());
    }
    let (thread, captures) = (thread::current().id(), lock(&CAPTURES));
    let is_global = |capture: &Capture| capture.mode == Mode::Global;
    let is_own = |capture: &Capture| capture.mode != Mode::Relaxed && capture.thread == thread;
    let forbidding: Vec<_> = captures.iter().filter(|capture| is_own(capture) || is_global(capture)).collect();
    forbidding.iter().for_each(|capture| capture.invalidate());
    if forbidding.is_empty() { Ok(()) } else { Err(Code::STREAM_CAPTURE_UNSUPPORTED) }
}

/// `cuStreamBeginCapture`.
pub(crate) fn begin(stream: &Arc<Stream>, mode: Mode) -> Result<(), Code> {
    let (origin, thread) = (stream.id(), thread::current().id());
    let capture = Arc::new(Capture { mode, thread, origin, state: Mutex::default() });
    if !stream.capture.take_if_free(&capture) {
        return Err(Code::ILLEGAL_STATE);
    }
    capture.state().members.insert(origin, Member { stream: Arc::downgrade(stream), clock: VectorClock::default() });
    lock(&CAPTURES).push(capture);
    LIVE.fetch_add(1, SeqCst);
    Ok(())
}

/// `cuStreamEndCapture`: the captured nodes, and the memory that they allocate. Refuses a graph that keeps memory, which the
/// driver would launch once. An error also ends the capture, except for a call on the wrong stream or
/// thread.
pub(crate) fn end(stream: &Stream) -> Result<(Vec<Node>, Vec<Arc<GraphMemory>>), Code> {
    let capture = stream.capture.current().ok_or(Code::ILLEGAL_STATE)?;
    if capture.origin != stream.id() {
        return Err(Code::STREAM_CAPTURE_UNMATCHED);
    }
    if capture.mode != Mode::Relaxed && capture.thread != thread::current().id() {
        return Err(Code::STREAM_CAPTURE_WRONG_THREAD);
    }
    lock(&CAPTURES).retain(|other| !Arc::ptr_eq(other, &capture));
    LIVE.fetch_sub(1, SeqCst);
    let CaptureState { is_invalid, nodes, members, memory, .. } = {
        let mut state = capture.state();
        mem::replace(&mut *state, CaptureState { is_over: true, ..CaptureState::default() })
    };
    members.values().filter_map(|member| member.stream.upgrade()).for_each(|stream| stream.capture.clear());
    let reaches =
        |origin: &Member| members.iter().all(|(id, member)| origin.clock.count(*id) == member.clock.count(*id));
    match members.get(&capture.origin) {
        _ if is_invalid => Err(Code::STREAM_CAPTURE_INVALIDATED),
        Some(_) if memory.iter().any(|memory| !memory.is_freed.load(SeqCst)) => Err(Code::INVALID_VALUE),
        Some(origin) if reaches(origin) => Ok((nodes, memory)),
        _ => Err(Code::STREAM_CAPTURE_UNJOINED),
    }
}

impl Capture {
    /// Makes the end of the capture fail.
    pub(crate) fn invalidate(&self) {
        self.state().is_invalid = true;
    }

    pub(crate) fn is_invalid(&self) -> bool {
        self.state().is_invalid
    }

    /// Adds a node behind the nodes of a stream. An invalid capture ignores the node.
    pub(crate) fn add(&self, stream: &Stream, node: Node) {
        let mut state = self.state();
        let CaptureState { is_invalid: false, nodes, members, .. } = &mut *state else { return };
        if let Some(member) = members.get_mut(&stream.id()) {
            nodes.push(node);
            *member.clock.0.entry(stream.id()).or_default() += 1;
        }
    }

    /// Adds an allocation from the pool of a stream's device.
    pub(crate) fn allocate(&self, stream: &Stream, bytes: usize) -> Result<DevicePointer, Code> {
        let memory = GraphMemory::new(stream.device(), bytes)?;
        memory.node().into_iter().for_each(|node| self.add(stream, node));
        let pointer = memory.pointer();
        self.state().memory.push(memory);
        Ok(pointer)
    }

    /// Adds a free of memory that this capture has allocated. Refuses other memory, and invalidates the capture.
    pub(crate) fn free(&self, stream: &Stream, pointer: DevicePointer) -> Result<(), Code> {
        let found = self.state().memory.iter().find(|memory| memory.pointer() == pointer).cloned();
        let Some(memory) = found.filter(|memory| memory.free()) else {
            self.invalidate();
            return Err(Code::INVALID_VALUE);
        };
        memory.node().into_iter().for_each(|node| self.add(stream, node));
        Ok(())
    }

    /// The current point of a stream.
    pub(crate) fn clock(&self, stream: &Stream) -> VectorClock {
        self.state().members.get(&stream.id()).map(|member| member.clock.clone()).unwrap_or_default()
    }

    /// Makes a stream depend on a point of this capture. The stream joins the capture.
    pub(crate) fn make_wait(self: &Arc<Self>, stream: &Arc<Stream>, point: &VectorClock) -> Result<(), Code> {
        if self.state().is_over {
            return Err(Code::CAPTURED_EVENT);
        }
        if !stream.capture.take_if_free(self) {
            match stream.capture.current() {
                Some(other) if Arc::ptr_eq(&other, self) => {}
                other => {
                    other.iter().chain([self]).for_each(|capture| capture.invalidate());
                    return Err(Code::STREAM_CAPTURE_MERGE);
                }
            }
        }
        let new = || Member { stream: Arc::downgrade(stream), clock: VectorClock::default() };
        self.state().members.entry(stream.id()).or_insert_with(new).clock.merge(point);
        Ok(())
    }

    fn state(&self) -> MutexGuard<'_, CaptureState> {
        lock(&self.state)
    }
}

impl VectorClock {
    fn count(&self, stream: usize) -> u64 {
        self.0.get(&stream).copied().unwrap_or_default()
    }

    fn merge(&mut self, other: &Self) {
        for (stream, count) in &other.0 {
            let own = self.0.entry(*stream).or_default();
            *own = (*own).max(*count);
        }
    }
}

impl CaptureSlot {
    /// The running capture, if any.
    pub(crate) fn current(&self) -> Option<Arc<Capture>> {
        if self.is_taken.load(SeqCst) { lock(&self.capture).clone() } else { None }
    }

    /// Rejects a call that no capture allows, and invalidates the capture. Does nothing without a capture.
    pub(crate) fn refuse(&self) -> Result<(), Code> {
        let Some(capture) = self.current() else { return Ok(()) };
        capture.invalidate();
        Err(Code::STREAM_CAPTURE_UNSUPPORTED)
    }

    /// Rejects every call on a stream whose capture is invalid.
    pub(crate) fn check(&self) -> Result<(), Code> {
        let is_invalid = self.current().is_some_and(|capture| capture.is_invalid());
        if is_invalid { Err(Code::STREAM_CAPTURE_INVALIDATED) } else { Ok(()) }
    }

    fn take_if_free(&self, capture: &Arc<Capture>) -> bool {
        let mut place = lock(&self.capture);
        let is_free = place.is_none();
        if is_free {
            *place = Some(Arc::clone(capture));
            self.is_taken.store(true, SeqCst);
        }
        is_free
    }

    fn clear(&self) {
        let mut place = lock(&self.capture);
        self.is_taken.store(false, SeqCst);
        *place = None;
    }
}
