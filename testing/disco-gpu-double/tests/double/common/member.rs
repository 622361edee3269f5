//! Ranks that share memory, for tests of kernels. Each rank has its own device, which has access to the memory of all
//! other devices.

#![allow(unsafe_code, reason = "C functions")]

use std::ffi::{CStr, c_int, c_void};
use std::ptr;

use disco_gpu_double::cuda::abi::{Code, DevicePointer, Function, Module, Stream};
use disco_gpu_double::cuda::exports::copy::{cuMemcpyDtoH_v2, cuMemcpyHtoD_v2};
use disco_gpu_double::cuda::exports::memory::cuMemHostAlloc;
use disco_gpu_double::cuda::exports::module::{cuLaunchKernel, cuModuleGetFunction, cuModuleLoadData};
use disco_gpu_double::cuda::exports::stream::cuStreamSynchronize;

use super::params::{Params, STATE_BYTES};
use super::{OK, allocate, enable_access, enter, set, use_device};

/// A timeout that no successful handshake reaches, in nanoseconds.
pub(crate) const LONG_TIMEOUT_NS: u64 = 60_000_000_000;

/// One rank: its memory, stream and module.
pub(crate) struct Member {
    pub(crate) rank: usize,
    pub(crate) stream: Stream,
    pub(crate) module: Module,
    /// The addresses of the memory, and the parameters of launches.
    pub(crate) params: Params,
}

// SAFETY: handles are numbers, and the words are atomic.
unsafe impl Send for Member {}
// SAFETY: handles are numbers, and the words are atomic.
unsafe impl Sync for Member {}

/// Prepares eight devices with access to each other.
pub(crate) fn devices() {
    set(c"GPU_DOUBLE_DEVICES", c"8");
    (0..8).for_each(connect);
}

/// Gives a device access to all others.
pub(crate) fn connect(device: c_int) {
    enter(device);
    (0..8).filter(|&peer| peer != device).for_each(enable_access);
}

/// Ranks with each other's addresses, and with room for `count` vectors.
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
    /// A rank whose parameters have its own addresses only.
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
        // The halves are ranks 0 to 3 and 4 to 7; a rank and its relay differ by 4.
        params.near = if rank < 4 { 0x0f } else { 0xf0 };
        params.relay = ((rank + 4) % 8) as u32;
        Self { rank, stream, module: load(), params }
    }

    /// Makes the rank's device current on this thread.
    pub(crate) fn enter(&self) {
        enter(self.rank as c_int);
    }

    /// Launches a kernel with the rank's parameters.
    pub(crate) fn launch(&self, name: &CStr, blocks: u32, threads: u32) -> Code {
        let params = ptr::from_ref(&self.params).cast::<c_void>();
        let function = function(self.module, name).unwrap();
        // SAFETY: the pointer is that of valid parameters.
        unsafe { launch(function, [blocks, 1, 1], [threads, 1, 1], self.stream, &params) }
    }

    /// Waits for the stream.
    pub(crate) fn synchronize(&self) -> Code {
        cuStreamSynchronize(self.stream)
    }

    /// The failure report.
    pub(crate) fn report(&self) -> u32 {
        // SAFETY: it is a word of pinned memory.
        unsafe { word(self.params.report).read_volatile() }
    }
}

/// Loads a module on this thread's current device.
pub(crate) fn load() -> Module {
    let mut module = ptr::null_mut();
    // SAFETY: the image has four bytes.
    assert_eq!(unsafe { cuModuleLoadData(Some(&mut module), b"\x7fELF".as_ptr().cast()) }, OK);
    module
}

/// A function of a module.
pub(crate) fn function(module: Module, name: &CStr) -> Result<Function, Code> {
    let mut function = ptr::null_mut();
    // SAFETY: the name ends with a NUL byte.
    match unsafe { cuModuleGetFunction(Some(&mut function), module, name.as_ptr()) } {
        OK => Ok(function),
        code => Err(code),
    }
}

/// Launches a kernel.
///
/// # Safety
/// `params` is null or points to valid parameters.
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
    // SAFETY: the source has this many bytes.
    assert_eq!(unsafe { cuMemcpyHtoD_v2(pointer, bytes.as_ptr().cast(), bytes.len()) }, OK);
}

/// Reads device memory.
pub(crate) fn read(pointer: DevicePointer, bytes: usize) -> Vec<u8> {
    let mut to = vec![0; bytes];
    // SAFETY: the destination has room for all bytes.
    assert_eq!(unsafe { cuMemcpyDtoH_v2(to.as_mut_ptr().cast(), pointer, bytes) }, OK);
    to
}

fn pinned_zero() -> u64 {
    let mut pointer = ptr::null_mut();
    assert_eq!(cuMemHostAlloc(Some(&mut pointer), 4, 0), OK);
    // SAFETY: the allocation has room for a word.
    unsafe { pointer.cast::<u32>().write(0) };
    pointer.expose_provenance() as u64
}

fn word(pointer: u64) -> *mut u32 {
    ptr::with_exposed_provenance_mut(pointer as usize)
}
