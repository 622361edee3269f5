//! Helpers of the tests: ranks that are threads, each with a device, a stream and a communicator.

#![allow(unsafe_code, reason = "C functions")]

pub(crate) mod child;
pub(crate) mod member;
#[path = "../../../../../disco-nccl/src/p2p/kernels/params.rs"]
#[allow(unreachable_pub, dead_code, reason = "the kernels' own")]
pub(crate) mod params;

use std::ffi::{CStr, c_int, c_void};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use std::{fs, ptr, thread};

use disco_gpu_double::controls::gpu_double_set;
use disco_gpu_double::cuda;
use disco_gpu_double::cuda::abi::{DevicePointer, STREAM_NON_BLOCKING, Stream};
use disco_gpu_double::cuda::exports::context::{cuCtxSetCurrent, cuDevicePrimaryCtxRetain};
use disco_gpu_double::cuda::exports::copy::{cuMemcpyDtoHAsync_v2, cuMemcpyHtoDAsync_v2};
use disco_gpu_double::cuda::exports::device::cuInit;
use disco_gpu_double::cuda::exports::memory::{cuMemAlloc_v2, cuMemFree_v2};
use disco_gpu_double::cuda::exports::peer::cuCtxEnablePeerAccess;
use disco_gpu_double::cuda::exports::stream::{cuStreamCreate, cuStreamDestroy_v2, cuStreamSynchronize};
use disco_gpu_double::nccl::abi::{Code, CommHandle, DataType, UniqueId};
use disco_gpu_double::nccl::config::Config;
use disco_gpu_double::nccl::exports::collective::ncclBroadcast;
use disco_gpu_double::nccl::exports::communicator::{
    ncclCommAbort, ncclCommDestroy, ncclCommGetAsyncError, ncclCommInitRankConfig,
};
use disco_gpu_double::nccl::exports::library::{ncclGetLastError, ncclGetUniqueId};

/// The success code of the driver.
pub(crate) const OK: cuda::abi::Code = cuda::abi::Code::SUCCESS;
/// A timeout that only a hang reaches.
pub(crate) const TEST_TIMEOUT: Duration = Duration::from_secs(20);

/// One rank.
pub(crate) struct Rank {
    pub(crate) rank: usize,
    pub(crate) comm: CommHandle,
    pub(crate) stream: Stream,
}

/// Runs `body` on each rank, with one device for each, and ends the communicators. Blocking communicators are connected
/// for collectives before, so that a launch does not wait for launches of the other ranks.
pub(crate) fn on_ranks(ranks: usize, blocking: bool, body: impl Fn(&Rank) + Sync) {
    let (id, body) = (unique_id(), &body);
    let run = move |rank: usize| {
        let stream = use_device(rank as c_int);
        let rank = Rank { rank, comm: ready(init(id, ranks, rank, blocking).1), stream };
        if blocking {
            rank.connect();
        }
        body(&rank);
        rank.end();
    };
    thread::scope(|scope| (0..ranks).for_each(|rank| drop(scope.spawn(move || run(rank)))));
}

/// A new unique id.
pub(crate) fn unique_id() -> UniqueId {
    let mut id = UniqueId { internal: [0; 128] };
    assert_eq!(ncclGetUniqueId(Some(&mut id)), Code::SUCCESS);
    id
}

/// Creates a communicator.
pub(crate) fn init(id: UniqueId, ranks: usize, rank: usize, blocking: bool) -> (Code, CommHandle) {
    let config = Config { blocking: blocking.into(), ..Config::initializer() };
    let mut comm = ptr::null_mut();
    // SAFETY: the configuration has the size that it says.
    let code = unsafe { ncclCommInitRankConfig(Some(&mut comm), ranks as c_int, id, rank as c_int, &config) };
    assert_eq!(code, if blocking { Code::SUCCESS } else { Code::IN_PROGRESS }, "{}", last_error(ptr::null_mut()));
    (code, comm)
}

/// Waits until the communicator is not in progress, and asserts success.
pub(crate) fn ready(comm: CommHandle) -> CommHandle {
    assert_eq!(settled(comm), Code::SUCCESS, "{}", last_error(comm));
    comm
}

/// Waits until the communicator is not in progress, and returns its code.
pub(crate) fn settled(comm: CommHandle) -> Code {
    wait_until(|| Some(async_error(comm)).filter(|&code| code != Code::IN_PROGRESS))
}

/// Waits until the communicator has an error, and returns the error.
pub(crate) fn failed(comm: CommHandle) -> Code {
    wait_until(|| Some(async_error(comm)).filter(|&code| code != Code::IN_PROGRESS && code != Code::SUCCESS))
}

/// Polls until `ready` returns a value.
pub(crate) fn wait_until<T>(mut ready: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(answer) = ready() {
            return answer;
        }
        assert!(start.elapsed() < TEST_TIMEOUT, "the condition does not become true within {TEST_TIMEOUT:?}");
        thread::sleep(Duration::from_micros(200));
    }
}

/// Waits for as long as an event needs that the calling test does not expect. On a busy machine the check of the test is
/// weaker, but does not fail.
pub(crate) fn settle() {
    thread::sleep(Duration::from_millis(20));
}

/// The folder of the calling thread in `/proc`.
pub(crate) fn this_thread() -> PathBuf {
    Path::new("/proc").join(fs::read_link("/proc/thread-self").unwrap())
}

/// Waits until a thread is blocked inside a call.
pub(crate) fn wait_until_blocked(thread: &Path) {
    let stat = || fs::read_to_string(thread.join("stat")).unwrap();
    let is_asleep = || stat().rsplit_once(") ").unwrap().1.starts_with('S');
    // Several times, because a thread also sleeps for a moment when it takes a lock.
    let mut times = 0;
    wait_until(|| {
        times = if is_asleep() { times + 1 } else { 0 };
        (times == 10).then_some(())
    });
}

/// The asynchronous error.
pub(crate) fn async_error(comm: CommHandle) -> Code {
    let mut error = Code::SUCCESS;
    assert_eq!(ncclCommGetAsyncError(comm, Some(&mut error)), Code::SUCCESS);
    error
}

/// The last error's text.
pub(crate) fn last_error(comm: CommHandle) -> String {
    // SAFETY: the text ends with a NUL byte and is valid until this thread calls the function again.
    unsafe { CStr::from_ptr(ncclGetLastError(comm)) }.to_str().unwrap().to_owned()
}

/// Sets a variable of the double.
pub(crate) fn set(name: &CStr, value: &CStr) {
    // SAFETY: both texts end with NUL bytes.
    assert_eq!(unsafe { gpu_double_set(name.as_ptr(), value.as_ptr()) }, 1, "{name:?} {value:?}");
}

/// Makes a device current on this thread, and creates a stream on it.
pub(crate) fn use_device(device: c_int) -> Stream {
    enter(device);
    new_stream()
}

/// Makes a device current on this thread, also a failed device.
pub(crate) fn enter(device: c_int) {
    assert_eq!(cuInit(0), OK);
    let mut context = ptr::null_mut();
    assert_eq!(cuDevicePrimaryCtxRetain(Some(&mut context), device), OK);
    assert_eq!(cuCtxSetCurrent(context), OK);
}

/// Gives this thread's device access to the memory of `peer`.
pub(crate) fn enable_access(peer: c_int) {
    let mut context = ptr::null_mut();
    assert_eq!(cuDevicePrimaryCtxRetain(Some(&mut context), peer), OK);
    assert_eq!(cuCtxEnablePeerAccess(context, 0), OK);
}

/// Creates a stream.
pub(crate) fn new_stream() -> Stream {
    let mut stream = ptr::null_mut();
    assert_eq!(cuStreamCreate(Some(&mut stream), STREAM_NON_BLOCKING), OK);
    stream
}

/// Allocates device memory.
pub(crate) fn allocate(bytes: usize) -> DevicePointer {
    let mut pointer = 0;
    assert_eq!(cuMemAlloc_v2(Some(&mut pointer), bytes), OK);
    pointer
}

/// Frees device memory.
pub(crate) fn free(pointer: DevicePointer) {
    assert_eq!(cuMemFree_v2(pointer), OK);
}

/// The address `bytes` bytes after a device pointer.
pub(crate) fn at(pointer: DevicePointer, bytes: usize) -> *mut c_void {
    ptr::with_exposed_provenance_mut(pointer as usize + bytes)
}

impl Rank {
    /// Allocates memory and writes `bytes` to it.
    pub(crate) fn upload(&self, bytes: &[u8]) -> DevicePointer {
        let pointer = allocate(bytes.len());
        self.write(pointer, bytes);
        pointer
    }

    /// Overwrites memory.
    pub(crate) fn write(&self, pointer: DevicePointer, bytes: &[u8]) {
        // SAFETY: `bytes` is valid until the copy is done, for which the next line waits.
        let code = unsafe { cuMemcpyHtoDAsync_v2(pointer, bytes.as_ptr().cast(), bytes.len(), self.stream) };
        assert_eq!(code, OK);
        self.synchronize();
    }

    /// Reads memory after all work of the stream. The copy itself waits for no peer, since it would hold up the calls of
    /// other ranks on the device.
    pub(crate) fn download(&self, pointer: DevicePointer, bytes: usize) -> Vec<u8> {
        self.synchronize();
        let mut to = vec![0; bytes];
        // SAFETY: `to` is valid until the copy is done, for which the next line waits.
        let code = unsafe { cuMemcpyDtoHAsync_v2(to.as_mut_ptr().cast(), pointer, bytes, self.stream) };
        assert_eq!(code, OK);
        self.synchronize();
        to
    }

    /// Waits for the stream.
    pub(crate) fn synchronize(&self) {
        assert_eq!(cuStreamSynchronize(self.stream), OK);
    }

    /// Allocates memory and writes floats to it.
    pub(crate) fn floats(&self, values: &[f32]) -> DevicePointer {
        self.upload(&values.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<_>>())
    }

    /// Reads floats from memory.
    pub(crate) fn read_floats(&self, pointer: DevicePointer, count: usize) -> Vec<f32> {
        let bytes = self.download(pointer, 4 * count);
        bytes.as_chunks().0.iter().map(|&bytes| f32::from_le_bytes(bytes)).collect()
    }

    fn connect(&self) {
        let pointer = self.floats(&[0.0]);
        let pair = at(pointer, 0);
        let code = ncclBroadcast(pair, pair, 1, DataType::F32, 0, self.comm, self.stream);
        assert_eq!(code, Code::SUCCESS);
        self.synchronize();
        free(pointer);
    }

    fn end(&self) {
        let mut error = Code::SUCCESS;
        // The test may have ended the communicator.
        if ncclCommGetAsyncError(self.comm, Some(&mut error)) == Code::SUCCESS {
            let code = if error == Code::SUCCESS { ncclCommDestroy(self.comm) } else { ncclCommAbort(self.comm) };
            assert!(code == Code::SUCCESS || code == Code::IN_PROGRESS, "{code:?}");
        }
        assert_eq!(cuStreamDestroy_v2(self.stream), OK);
    }
}
