//! HIP: current devices, waits for words, and calls that the double refuses.

#![allow(unsafe_code, reason = "C functions")]

use std::ffi::{c_int, c_uint, c_void};
use std::ptr;

use crate::common::child::alone;
use crate::common::member::read;
use crate::common::{set, settle, wait_until};
use disco_gpu_double::hip::abi::{Code, CopyKind, IpcHandle, STREAM_NON_BLOCKING, Stream};
use disco_gpu_double::hip::exports::copy::hipMemcpyAsync;
use disco_gpu_double::hip::exports::device::hipSetDevice;
use disco_gpu_double::hip::exports::ipc::hipIpcGetMemHandle;
use disco_gpu_double::hip::exports::memory::{
    hipExtMallocWithFlags, hipFree, hipHostMalloc, hipMalloc, hipMemsetAsync,
};
use disco_gpu_double::hip::exports::peer::hipDeviceEnablePeerAccess;
use disco_gpu_double::hip::exports::stream::{hipStreamCreateWithFlags, hipStreamQuery, hipStreamSynchronize};
use disco_gpu_double::hip::exports::word::{hipStreamWaitValue32, hipStreamWriteValue32};

const OK: Code = Code::SUCCESS;
const REFUSED: Code = Code::INVALID_VALUE;
const NULL: *mut c_void = ptr::null_mut();
const ALL: u32 = u32::MAX;
const FINE: c_uint = 1;
const SIGNAL: c_uint = 2;
const UNCACHED: c_uint = 3;

/// Makes a device current on this thread, and creates a stream on it.
fn use_device(device: c_int) -> Stream {
    let mut stream = NULL;
    assert_eq!([hipSetDevice(device), hipStreamCreateWithFlags(Some(&mut stream), STREAM_NON_BLOCKING)], [OK; 2]);
    stream
}

fn allocate(bytes: usize, flags: c_uint) -> Result<*mut c_void, Code> {
    let mut pointer = NULL;
    match hipExtMallocWithFlags(Some(&mut pointer), bytes, flags) {
        OK => Ok(pointer),
        code => Err(code),
    }
}

fn write(stream: Stream, word: *mut c_void, value: u32) {
    assert_eq!([hipStreamWriteValue32(stream, word, value, 0), hipStreamSynchronize(stream)], [OK; 2]);
}

fn copy(to: *mut c_void, from: *const c_void, bytes: usize, kind: CopyKind, stream: Stream) -> Code {
    // SAFETY: callers pass memory of this size that is valid until they have waited for the stream.
    unsafe { hipMemcpyAsync(to, from, bytes, kind, stream) }
}

#[test]
fn copies_that_differ_from_their_kind_are_refused() {
    alone(|| {
        let stream = use_device(0);
        let (device, mut host) = (allocate(8, 0).unwrap(), [0_u8; 8]);
        let host = host.as_mut_ptr().cast::<c_void>();
        for (to, from, kind) in [(device, host, 2), (host, device, 1), (device, host, 3), (host, host, 4)] {
            assert_eq!(copy(to, from, 4, CopyKind(kind), stream), REFUSED, "{kind}");
        }
        assert_eq!(copy(device, host, 9, CopyKind::HOST_TO_DEVICE, stream), REFUSED, "it exceeds the allocation");
        for kind in [0, 5] {
            assert_eq!(copy(device, host, 4, CopyKind(kind), stream), Code::INVALID_MEMCPY_DIRECTION);
        }
        assert_eq!(copy(NULL, NULL, 0, CopyKind::DEFAULT, stream), OK, "a copy of 0 bytes accepts null pointers");
        assert_eq!(hipMemsetAsync(device, 0, 9, stream), REFUSED);
        let mut pointer = NULL;
        assert_eq!(hipMalloc(Some(&mut pointer), 1 << 40), Code::OUT_OF_MEMORY);
        assert_eq!([hipFree(device), hipFree(device)], [OK, REFUSED]);
    });
}

#[test]
fn pinned_memory_is_accessed_when_the_stream_runs_the_copy() {
    alone(|| {
        let (stream, other) = (use_device(0), use_device(0));
        let (word, device) = (allocate(4, 0).unwrap(), allocate(4, 0).unwrap());
        let [from, to] = [(); 2].map(|()| {
            let mut pinned = NULL;
            assert_eq!(hipHostMalloc(Some(&mut pinned), 4, 0), OK);
            // SAFETY: the allocation has room for a word.
            unsafe { pinned.cast::<u32>().write(0) };
            pinned.cast::<u32>()
        });
        write(other, word, 0);
        assert_eq!(hipStreamWaitValue32(stream, word, 1, 0, ALL), OK);
        assert_eq!(copy(device, from.cast(), 4, CopyKind::HOST_TO_DEVICE, stream), OK);
        assert_eq!(copy(to.cast(), device, 4, CopyKind::DEFAULT, stream), OK);
        // SAFETY: the stream has not begun the copy.
        unsafe { from.write(5) };
        // SAFETY: the stream has not begun the copy.
        assert_eq!((unsafe { to.read() }, hipStreamQuery(stream)), (0, Code::NOT_READY));
        write(other, word, 1);
        assert_eq!(hipStreamSynchronize(stream), OK);
        // SAFETY: the copy is done.
        assert_eq!(unsafe { to.read() }, 5);
    });
}

/// Waits until a word is `value` or more. With `end`, the wait must not end before that is written.
fn wait(word: u32, value: u32, end: Option<u32>) {
    let (stream, writer, pointer) = (use_device(0), use_device(0), allocate(4, FINE).unwrap());
    write(writer, pointer, word);
    assert_eq!(hipStreamWaitValue32(stream, pointer, value, 0, ALL), OK);
    if let Some(end) = end {
        settle();
        assert_eq!(hipStreamQuery(stream), Code::NOT_READY, "{word:#x} is less than {value:#x}");
        write(writer, pointer, end);
    }
    wait_until(|| (hipStreamQuery(stream) == OK).then_some(()));
}

#[test]
fn waits_end_when_the_word_is_large_enough_by_a_comparison_that_does_not_wrap() {
    alone(|| {
        [(7, None), (8, None), (6, Some(7))].into_iter().for_each(|(word, end)| wait(word, 7, end));
        wait(3, ALL - 3, Some(ALL));
        let (stream, pointer) = (use_device(0), allocate(8, FINE).unwrap());
        let inside = pointer.cast::<u8>().wrapping_add(2).cast();
        assert_eq!(hipStreamWaitValue32(stream, pointer, 0, 1, ALL), REFUSED);
        assert_eq!(
            [(pointer, 1), (inside, 0)].map(|(at, flags)| hipStreamWriteValue32(stream, at, 0, flags)),
            [REFUSED; 2]
        );
    });
}

#[test]
fn words_in_coarse_grained_memory_are_written_by_their_own_device_only() {
    alone(|| {
        let own = use_device(0);
        let mut ordinary = NULL;
        assert_eq!(hipMalloc(Some(&mut ordinary), 4), OK);
        let [default, fine, uncached] = [0, FINE, UNCACHED].map(|flags| allocate(4, flags).unwrap());
        [ordinary, default, fine, uncached].into_iter().for_each(|word| write(own, word, 1));
        let other = use_device(1);
        assert_eq!(hipDeviceEnablePeerAccess(0, 0), OK);
        for (word, code) in [(ordinary, REFUSED), (default, REFUSED), (fine, OK), (uncached, OK)] {
            assert_eq!(hipStreamWriteValue32(other, word, 2, 0), code);
        }
        assert_eq!(hipStreamSynchronize(other), OK);
    });
}

#[test]
fn signal_memory_is_one_word_that_all_devices_can_access() {
    alone(|| {
        let waiting = use_device(2);
        assert_eq!([(4, SIGNAL), (16, SIGNAL), (8, 4)].map(|(bytes, flags)| allocate(bytes, flags)), [Err(REFUSED); 3]);
        let (word, fine) = (allocate(8, SIGNAL).unwrap(), allocate(8, FINE).unwrap());
        assert_eq!(read(word.addr() as u64, 8), 1_u64.to_le_bytes());
        let mut handle = IpcHandle { reserved: [0; 64] };
        assert_ne!(hipIpcGetMemHandle(Some(&mut handle), word), OK);
        assert_eq!(hipIpcGetMemHandle(Some(&mut handle), fine), OK);
        set(c"GPU_STREAMOPS_CP_WAIT", c"1");
        assert_eq!(hipStreamWaitValue32(waiting, fine, 0, 0, ALL), REFUSED);
        assert_eq!(hipStreamWaitValue32(waiting, word, 2, 0, ALL), OK);
        settle();
        assert_eq!(hipStreamQuery(waiting), Code::NOT_READY);
        assert_eq!(hipStreamWriteValue32(use_device(3), word, 2, 0), OK);
        wait_until(|| (hipStreamQuery(waiting) == OK).then_some(()));
    });
}
