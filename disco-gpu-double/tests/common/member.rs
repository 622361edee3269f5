//! Ranks that share memory, for kernels: each with a device of its own, which has access to all others'.

use std::ffi::{CStr, c_int, c_void};
use std::ptr;
use std::sync::{Mutex, MutexGuard, Once, PoisonError};

use disco_gpu_double::cuda::abi::{Code, DevicePointer, Function, Module, Stream};
use disco_gpu_double::cuda::exports::copy::{cuMemcpyDtoH_v2, cuMemcpyHtoD_v2};
use disco_gpu_double::cuda::exports::device::cuInit;
use disco_gpu_double::cuda::exports::memory::{cuMemFree_v2, cuMemFreeHost, cuMemHostAlloc};
use disco_gpu_double::cuda::exports::module::{cuLaunchKernel, cuModuleGetFunction, cuModuleLoadData, cuModuleUnload};
use disco_gpu_double::cuda::exports::stream::{cuStreamDestroy_v2, cuStreamSynchronize};

use super::params::{MAX_BLOCKS, MAX_WORLD, Params, STATE_BYTES};
use super::{OK, allocate, enable_access, enter, set, use_device};

/// Where counts are in a state, and the status.
pub(crate) const COUNTS: usize = 128 * MAX_BLOCKS * MAX_WORLD;
pub(crate) const STATUS: usize = COUNTS + 4 * MAX_BLOCKS * MAX_WORLD;
/// Longer than any handshake takes that comes about.
pub(crate) const LONG_TIMEOUT_NS: u64 = 60_000_000_000;

/// One rank's memory, made by any thread.
pub(crate) struct Member {
    pub(crate) rank: usize,
    pub(crate) stream: Stream,
    pub(crate) module: Module,
    /// All of it, and how it is launched.
    pub(crate) params: Params,
}

// SAFETY: handles are numbers, and the words are atomic.
unsafe impl Send for Member {}
// SAFETY: as above.
unsafe impl Sync for Member {}

/// Eight devices with access to each other, of which one test at a time has use.
pub(crate) fn devices() -> MutexGuard<'static, ()> {
    static ONE: Mutex<()> = Mutex::new(());
    static START: Once = Once::new();
    let turn = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    START.call_once(|| {
        set(c"GPU_DOUBLE_DEVICES", c"8");
        assert_eq!(cuInit(0), OK);
        (0..8).for_each(connect);
    });
    turn
}

/// Gives a device access to all others.
pub(crate) fn connect(device: c_int) {
    enter(device);
    (0..8).filter(|&peer| peer != device).for_each(enable_access);
}

/// Ranks that know each other, with room for so many vectors.
pub(crate) fn members(world: usize, count: usize) -> Vec<Member> {
    let mut members: Vec<_> = (0..world).map(|rank| Member::new(rank, world, count)).collect();
    let (data, state) = (members.iter().map(|m| m.params.data[m.rank]), members.iter().map(|m| m.params.state[m.rank]));
    let all: Vec<_> = data.zip(state).collect();
    for member in &mut members {
        for (rank, &(data, state)) in all.iter().enumerate() {
            (member.params.data[rank], member.params.state[rank]) = (data, state);
        }
    }
    members
}

impl Member {
    /// One, which knows nobody: only its own memory is in its parameters.
    pub(crate) fn new(rank: usize, world: usize, count: usize) -> Self {
        let stream = use_device(rank as c_int);
        let mut params =
            Params { timeout_ns: LONG_TIMEOUT_NS, count: count as u32, rank: rank as u32, ..Params::default() };
        params.world = world as u32;
        params.data[rank] = allocate(2 * 16 * count);
        params.state[rank] = allocate(STATE_BYTES);
        write(params.state[rank], &[0; STATE_BYTES]);
        (params.input, params.output) = (allocate(16 * count), allocate(16 * count));
        (params.abort, params.report) = (pinned_zero(), pinned_zero());
        // The four of rank 0, or of rank 4; relays are four apart.
        params.near = if rank < 4 { 0x0f } else { 0xf0 };
        params.relay = ((rank + 4) % 8) as u32;
        Self { rank, stream, module: load(), params }
    }

    /// Makes its device this thread's.
    pub(crate) fn enter(&self) {
        enter(self.rank as c_int);
    }

    /// Launches with its parameters.
    pub(crate) fn launch(&self, name: &CStr, blocks: u32, threads: u32) -> Code {
        self.launch_with(&self.params, name, blocks, threads)
    }

    /// Launches with others.
    pub(crate) fn launch_with(&self, params: &Params, name: &CStr, blocks: u32, threads: u32) -> Code {
        let params = ptr::from_ref(params).cast::<c_void>();
        let function = function(self.module, name).unwrap();
        // SAFETY: the parameters are there.
        unsafe { launch(function, [blocks, 1, 1], [threads, 1, 1], self.stream, &params) }
    }

    /// Waits for the stream.
    pub(crate) fn synchronize(&self) -> Code {
        cuStreamSynchronize(self.stream)
    }

    /// What it puts in.
    pub(crate) fn put(&self, bytes: &[u8]) {
        write(self.params.input, bytes);
    }

    /// What comes out.
    pub(crate) fn output(&self) -> Vec<u8> {
        read(self.params.output, 16 * self.params.count as usize)
    }

    /// Overwrites that.
    pub(crate) fn forget_output(&self) {
        write(self.params.output, &vec![0xee; 16 * self.params.count as usize]);
    }

    /// Why it has failed.
    pub(crate) fn report(&self) -> u32 {
        // SAFETY: it is a word of pinned memory.
        unsafe { word(self.params.report).read_volatile() }
    }

    /// Forgets why.
    pub(crate) fn clear_report(&self) {
        // SAFETY: it is a word of pinned memory.
        unsafe { word(self.params.report).write_volatile(0) };
    }

    /// Has launches give up.
    pub(crate) fn abort(&self) {
        // SAFETY: it is a word of pinned memory.
        unsafe { word(self.params.abort).write_volatile(1) };
    }

    /// A word of its state.
    pub(crate) fn state(&self, offset: usize) -> u32 {
        let bytes = read(self.params.state[self.rank] + offset as u64, 4);
        u32::from_le_bytes(bytes.try_into().unwrap())
    }

    /// Gives everything back.
    pub(crate) fn end(self) {
        self.enter();
        let Params { data, state, input, output, abort, report, .. } = self.params;
        for pointer in [data[self.rank], state[self.rank], input] {
            assert_eq!(cuMemFree_v2(pointer), OK);
        }
        // It may be the input.
        _ = cuMemFree_v2(output);
        for pointer in [abort, report] {
            assert_eq!(cuMemFreeHost(word(pointer).cast()), OK);
        }
        assert_eq!([cuModuleUnload(self.module), cuStreamDestroy_v2(self.stream)], [OK; 2]);
    }
}

/// A module of the device that this thread has.
pub(crate) fn load() -> Module {
    let mut module = ptr::null_mut();
    // SAFETY: there are four bytes.
    assert_eq!(unsafe { cuModuleLoadData(Some(&mut module), b"\x7fELF".as_ptr().cast()) }, OK);
    module
}

/// A function of a module.
pub(crate) fn function(module: Module, name: &CStr) -> Result<Function, Code> {
    let mut function = ptr::null_mut();
    // SAFETY: the name ends with a zero.
    match unsafe { cuModuleGetFunction(Some(&mut function), module, name.as_ptr()) } {
        OK => Ok(function),
        code => Err(code),
    }
}

/// A launch.
///
/// # Safety
/// The parameters are there.
pub(crate) unsafe fn launch(
    function: Function,
    [x, y, z]: [u32; 3],
    [tx, ty, tz]: [u32; 3],
    stream: Stream,
    params: &*const c_void,
) -> Code {
    // SAFETY: the caller guarantees what `# Safety` requires.
    unsafe { cuLaunchKernel(function, x, y, z, tx, ty, tz, 0, stream, params, ptr::null()) }
}

/// Writes device memory.
pub(crate) fn write(pointer: DevicePointer, bytes: &[u8]) {
    // SAFETY: there are as many bytes.
    assert_eq!(unsafe { cuMemcpyHtoD_v2(pointer, bytes.as_ptr().cast(), bytes.len()) }, OK);
}

/// What is in device memory.
pub(crate) fn read(pointer: DevicePointer, bytes: usize) -> Vec<u8> {
    let mut to = vec![0; bytes];
    // SAFETY: there is room.
    assert_eq!(unsafe { cuMemcpyDtoH_v2(to.as_mut_ptr().cast(), pointer, bytes) }, OK);
    to
}

fn pinned_zero() -> u64 {
    let mut pointer = ptr::null_mut();
    assert_eq!(cuMemHostAlloc(Some(&mut pointer), 4, 0), OK);
    // SAFETY: there is room for a word.
    unsafe { pointer.cast::<u32>().write(0) };
    pointer.expose_provenance() as u64
}

fn word(pointer: u64) -> *mut u32 {
    ptr::with_exposed_provenance_mut(pointer as usize)
}
