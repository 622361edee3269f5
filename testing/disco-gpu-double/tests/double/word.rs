//! Writes of words by streams, and waits for words.

#![allow(unsafe_code, reason = "C functions")]

use std::ptr;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::mpsc;
use std::thread;

use crate::common::child::alone;
use crate::common::{
    OK, allocate, enable_access, enter, free, new_stream, settle, this_thread, use_device, wait_until,
    wait_until_blocked,
};
use disco_gpu_double::cuda::abi::{Code, Stream};
use disco_gpu_double::cuda::exports::context::cuDevicePrimaryCtxRelease_v2;
use disco_gpu_double::cuda::exports::copy::cuMemcpyDtoHAsync_v2;
use disco_gpu_double::cuda::exports::device::cuDeviceGetAttribute;
use disco_gpu_double::cuda::exports::event::cuEventCreate;
use disco_gpu_double::cuda::exports::memory::cuMemHostAlloc;
use disco_gpu_double::cuda::exports::stream::{cuStreamQuery, cuStreamSynchronize};
use disco_gpu_double::cuda::exports::word::{cuStreamWaitValue32_v2, cuStreamWriteValue32_v2};

fn write(stream: Stream, pointer: u64, value: u32) {
    assert_eq!([cuStreamWriteValue32_v2(stream, pointer, value, 0), cuStreamSynchronize(stream)], [OK; 2]);
}

/// Waits until a word is 7 or more. Without `ends`, the wait must not end before 7 is written.
fn wait(word: u32, ends: bool) {
    let (stream, writer, pointer) = (use_device(0), new_stream(), allocate(4));
    write(writer, pointer, word);
    assert_eq!(cuStreamWaitValue32_v2(stream, pointer, 7, 0), OK);
    if !ends {
        settle();
        assert_eq!(cuStreamQuery(stream), Code::NOT_READY, "{word:#x} is less than 7");
        write(writer, pointer, 7);
    }
    wait_until(|| (cuStreamQuery(stream) == OK).then_some(()));
}

#[test]
fn waits_end_when_the_word_is_large_enough_by_a_comparison_that_wraps() {
    alone(|| {
        let words = [(7, true), (8, true), (6, false), (0, false), (0x8000_0006, true), (0x8000_0007, false)];
        words.into_iter().for_each(|(word, ends)| wait(word, ends));
    });
}

/// The driver holds a lock of the context, so threads that share a device can hang if one of them copies like this while
/// its stream waits for the other.
#[test]
fn a_copy_to_pageable_memory_holds_up_other_calls_until_its_stream_has_made_it() {
    alone(|| {
        let stream = use_device(3);
        let (pointer, mut pinned) = (allocate(4), ptr::null_mut());
        assert_eq!(cuMemHostAlloc(Some(&mut pinned), 4, 0), OK);
        // SAFETY: the allocation has room for a word, which only this test accesses.
        let word = unsafe { &*pinned.cast::<AtomicU32>() };
        word.store(0, SeqCst);
        assert_eq!(cuStreamWaitValue32_v2(stream, pinned as u64, 1, 0), OK);
        let (copied_on, (sender, entered)) = (stream as usize, mpsc::channel());
        thread::scope(|scope| {
            let copying = sender.clone();
            let copies = scope.spawn(move || {
                enter(3);
                let mut found = [0_u8; 4];
                copying.send(this_thread()).unwrap();
                // SAFETY: the destination has room for all bytes.
                let code = unsafe { cuMemcpyDtoHAsync_v2(found.as_mut_ptr().cast(), pointer, 4, copied_on as Stream) };
                assert_eq!(code, OK);
            });
            wait_until_blocked(&entered.recv().unwrap());
            let calls = scope.spawn(move || {
                enter(3);
                let mut event = ptr::null_mut();
                sender.send(this_thread()).unwrap();
                assert_eq!(
                    (cuEventCreate(Some(&mut event), 2), word.load(SeqCst)),
                    (OK, 1),
                    "the call waits for the copy"
                );
            });
            wait_until_blocked(&entered.recv().unwrap());
            word.store(1, SeqCst);
            [copies, calls].into_iter().for_each(|thread| thread.join().unwrap());
        });
    });
}

#[test]
fn invalid_words_and_flags_are_refused() {
    alone(|| {
        let stream = use_device(0);
        let pointer = allocate(10);
        for (at, expected) in
            [(0, OK), (4, OK), (2, Code::INVALID_VALUE), (8, Code::INVALID_VALUE), (12, Code::INVALID_VALUE)]
        {
            assert_eq!(cuStreamWriteValue32_v2(stream, pointer + at, 0, 0), expected, "{at}");
            assert_eq!(cuStreamWaitValue32_v2(stream, pointer + at, 0, 0), expected, "{at}");
        }
        assert_eq!(cuStreamWriteValue32_v2(stream, pointer, 0, 2), Code::INVALID_VALUE);
        assert_eq!(cuStreamWaitValue32_v2(stream, pointer, 0, 1), Code::NOT_SUPPORTED);
        assert_eq!(cuStreamWaitValue32_v2(stream, pointer, 0, 4), Code::INVALID_VALUE);
        let mut value = 9;
        for (attribute, expected) in [(92, 1), (93, 1), (94, 0), (122, 1), (123, 0)] {
            assert_eq!((cuDeviceGetAttribute(Some(&mut value), attribute, 0), value), (OK, expected), "{attribute}");
        }
        assert_eq!(cuStreamSynchronize(stream), OK);
    });
}

#[test]
fn a_wait_for_memory_that_is_freed_fails() {
    alone(|| {
        let other = use_device(1);
        let pointer = allocate(4);
        enter(1);
        write(other, pointer, 0);
        let watcher = use_device(3);
        enable_access(1);
        assert_eq!(cuStreamWaitValue32_v2(watcher, pointer, 1, 0), OK);
        free(pointer);
        assert_eq!(cuStreamSynchronize(watcher), Code::ILLEGAL_ADDRESS);
        assert_eq!(cuDevicePrimaryCtxRelease_v2(3), OK);
        enter(1);
    });
}
