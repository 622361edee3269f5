//! HIP's functions for peer access, memory of other processes, and words.

use std::ffi::{c_int, c_void};
use std::ptr;

use crate::common::child::{self, Child, alone, to_bytes, to_text};
use crate::common::{settle, wait_until};
use disco_gpu_double::controls::{Counts, gpu_double_counts};
use disco_gpu_double::hip::abi::{Code, CopyKind, IPC_LAZY_ENABLE_PEER_ACCESS, IpcHandle, STREAM_NON_BLOCKING, Stream};
use disco_gpu_double::hip::exports::copy::hipMemcpyAsync;
use disco_gpu_double::hip::exports::device::hipSetDevice;
use disco_gpu_double::hip::exports::ipc::{hipIpcCloseMemHandle, hipIpcGetMemHandle, hipIpcOpenMemHandle};
use disco_gpu_double::hip::exports::memory::{hipExtMallocWithFlags, hipFree};
use disco_gpu_double::hip::exports::peer::{
    hipDeviceCanAccessPeer, hipDeviceDisablePeerAccess, hipDeviceEnablePeerAccess,
};
use disco_gpu_double::hip::exports::stream::{
    hipStreamCreateWithFlags, hipStreamDestroy, hipStreamQuery, hipStreamSynchronize,
};
use disco_gpu_double::hip::exports::text::hipGetLastError;
use disco_gpu_double::hip::exports::word::{hipStreamWaitValue32, hipStreamWriteValue32};

const OK: Code = Code::SUCCESS;
const CHILD: &str = "hip_ipc::child_that_has_memory";
const ALL: u32 = u32::MAX;
const FINE_GRAINED: u32 = 1;

fn use_device(device: c_int) -> Stream {
    assert_eq!(hipSetDevice(device), OK);
    let mut stream = ptr::null_mut();
    assert_eq!(hipStreamCreateWithFlags(Some(&mut stream), STREAM_NON_BLOCKING), OK);
    stream
}

fn allocate(bytes: usize) -> *mut c_void {
    let mut pointer = ptr::null_mut();
    assert_eq!(hipExtMallocWithFlags(Some(&mut pointer), bytes, FINE_GRAINED), OK);
    pointer
}

fn write(stream: Stream, pointer: *mut c_void, value: u32) {
    assert_eq!([hipStreamWriteValue32(stream, pointer, value, 0), hipStreamSynchronize(stream)], [OK; 2]);
}

fn read(stream: Stream, pointer: *mut c_void) -> u32 {
    let mut word = 0_u32;
    // SAFETY: the destination has room for all bytes.
    let code = unsafe { hipMemcpyAsync((&raw mut word).cast(), pointer, 4, CopyKind::DEVICE_TO_HOST, stream) };
    assert_eq!([code, hipStreamSynchronize(stream)], [OK; 2]);
    word
}

/// A child with two words; it writes 7 to the second word once this word is 6.
#[test]
fn child_that_has_memory() {
    if !child::is(CHILD) {
        return;
    }
    let stream = use_device(1);
    let pointer = allocate(8).cast::<u32>();
    let (first, second) = (pointer.cast(), pointer.wrapping_add(1).cast());
    [first, second].iter().for_each(|&word| write(stream, word, 5));
    let mut handle = IpcHandle { reserved: [0; 64] };
    assert_eq!(hipIpcGetMemHandle(Some(&mut handle), second), OK);
    child::reply(&to_text(&handle.reserved));
    assert_eq!(hipStreamWaitValue32(stream, second, 6, 1, ALL), OK);
    assert_eq!(hipStreamWriteValue32(stream, second, 7, 0), OK);
    child::requests().for_each(drop);
}

#[test]
fn open_returns_the_address_at_the_exported_offset() {
    alone(|| {
        let mut child = Child::start(CHILD);
        let handle = IpcHandle { reserved: to_bytes(&child.reply()).try_into().unwrap() };
        let stream = use_device(0);
        let mut word = ptr::null_mut();
        assert_eq!(hipIpcOpenMemHandle(Some(&mut word), handle, 0), Code::INVALID_VALUE);
        assert_eq!(hipIpcOpenMemHandle(Some(&mut word), handle, IPC_LAZY_ENABLE_PEER_ACCESS), OK);
        let first = word.cast::<u32>().wrapping_sub(1).cast();
        assert_eq!([read(stream, first), read(stream, word)], [5, 5]);
        write(stream, first, 8);
        assert_eq!(hipStreamWriteValue32(stream, word, 6, 0), OK);
        assert_eq!(hipStreamWaitValue32(stream, word, 7, 1, ALL), OK);
        assert_eq!([read(stream, first), read(stream, word)], [8, 7]);
        assert_eq!([hipIpcCloseMemHandle(word), hipIpcCloseMemHandle(word)], [OK, Code::INVALID_VALUE]);
        let mut counts = Counts::default();
        gpu_double_counts(Some(&mut counts));
        assert_eq!(counts.opened, 0);
        child.kill();
        assert_eq!(hipIpcOpenMemHandle(Some(&mut word), handle, 1), Code::INVALID_HANDLE);
        assert_eq!([hipGetLastError(), hipStreamDestroy(stream)], [Code::INVALID_HANDLE, OK]);

        let own = allocate(4);
        let mut handle = handle;
        assert_eq!(hipIpcGetMemHandle(Some(&mut handle), own), OK);
        assert_eq!(hipIpcOpenMemHandle(Some(&mut word), handle, 1), Code::INVALID_CONTEXT);
        assert_eq!(hipFree(own), OK);
    });
}

#[test]
fn devices_have_access_once_it_is_enabled() {
    alone(|| {
        let peers = use_device(3);
        let word = allocate(4);
        let stream = use_device(2);
        let can = |device, peer| {
            let mut can = 9;
            (hipDeviceCanAccessPeer(Some(&mut can), device, peer), can)
        };
        assert_eq!([can(2, 3), can(3, 3), can(0, 4)], [(OK, 1), (OK, 0), (Code::INVALID_DEVICE, 9)]);
        assert_eq!([hipDeviceEnablePeerAccess(3, 1), hipDeviceEnablePeerAccess(2, 0)].map(|code| code.0), [1, 101]);
        assert_eq!(hipDeviceEnablePeerAccess(4, 0), Code::INVALID_DEVICE);
        assert_eq!(hipDeviceEnablePeerAccess(3, 0), OK);
        assert_eq!(hipDeviceEnablePeerAccess(3, 0), Code::PEER_ACCESS_ALREADY_ENABLED);
        write(stream, word, 1);
        assert_eq!(hipDeviceDisablePeerAccess(3), OK);
        assert_eq!(hipDeviceDisablePeerAccess(3), Code::PEER_ACCESS_NOT_ENABLED);
        assert_eq!(hipStreamWriteValue32(stream, word, 2, 0), OK);
        assert_eq!(hipStreamSynchronize(stream), Code::ILLEGAL_ADDRESS);
        assert_eq!(hipSetDevice(3), OK);
        assert_eq!((read(peers, word), hipFree(word)), (1, OK));
        [peers, stream].into_iter().for_each(|stream| _ = hipStreamDestroy(stream));
    });
}

/// Waits for a word. With `end`, the wait must not end before that value is written.
fn wait((word, value): (u32, u32), flags: u32, mask: u32, end: Option<u32>) {
    let stream = use_device(0);
    let (writer, pointer) = (use_device(0), allocate(4));
    write(writer, pointer, word);
    assert_eq!(hipStreamWaitValue32(stream, pointer, value, flags, mask), OK);
    if let Some(end) = end {
        settle();
        assert_eq!(hipStreamQuery(stream), Code::NOT_READY, "{word:#x} is not {value:#x} by {flags}");
        write(writer, pointer, end);
    }
    wait_until(|| (hipStreamQuery(stream) == OK).then_some(()));
    assert_eq!(hipFree(pointer), OK);
    [writer, stream].into_iter().for_each(|stream| assert_eq!(hipStreamDestroy(stream), OK));
}

#[test]
fn waits_end_when_the_word_satisfies_the_condition() {
    alone(|| {
        let (gte, eq, and, nor) = (0, 1, 2, 3);
        [(7, None), (8, None), (6, Some(7))].into_iter().for_each(|(word, end)| wait((word, 7), gte, ALL, end));
        // The comparison does not wrap.
        wait((3, ALL - 3), gte, ALL, Some(ALL));
        // Only the bits in the mask are compared.
        [(0x107, None), (0x106, Some(7))].into_iter().for_each(|(word, end)| wait((word, 7), eq, 0xff, end));
        [(0x30, None), (0x0f, Some(0x10))].into_iter().for_each(|(word, end)| wait((word, 0x10), and, ALL, end));
        [(0xf0, None), (ALL, Some(0))].into_iter().for_each(|(word, end)| wait((word, 0x0f), nor, ALL, end));
        let stream = use_device(0);
        let pointer = allocate(8);
        let inside = pointer.cast::<u8>().wrapping_add(2).cast();
        assert_eq!(hipStreamWaitValue32(stream, pointer, 0, 4, ALL), Code::INVALID_VALUE);
        assert_eq!(hipStreamWriteValue32(stream, pointer, 0, 1), Code::INVALID_VALUE);
        assert_eq!(hipStreamWriteValue32(stream, inside, 0, 0), Code::INVALID_VALUE);
        assert_eq!([hipFree(pointer), hipStreamDestroy(stream)], [OK; 2]);
    });
}
