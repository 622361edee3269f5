//! Hardware queues: which streams block each other.

#![allow(unsafe_code, reason = "C functions")]

use std::ffi::{CStr, c_int, c_void};
use std::ptr;

use crate::common::child::alone;
use crate::common::member::{function, launch, load, read, write};
use crate::common::params::{Params, STATE_BYTES};
use crate::common::{OK, allocate, enter, free, new_stream, set, settle, wait_until};
use disco_gpu_double::cuda::abi::{Code, STREAM_NON_BLOCKING, Stream};
use disco_gpu_double::cuda::exports::stream::{cuCtxGetStreamPriorityRange, cuStreamCreateWithPriority, cuStreamQuery};
use disco_gpu_double::cuda::exports::word::{cuStreamWaitValue32_v2, cuStreamWriteValue32_v2};

/// Creates streams of device 0; the first stream has the first of `queues` hardware queues.
fn streams(queues: &CStr, count: usize) -> Vec<Stream> {
    enter(0);
    set(c"CUDA_DEVICE_MAX_CONNECTIONS", queues);
    (0..count).map(|_| new_stream()).collect()
}

/// Allocates a word with value 0.
fn word() -> u64 {
    let word = allocate(4);
    write(word, &[0; 4]);
    word
}

fn priority_stream(priority: c_int) -> Stream {
    let mut stream = ptr::null_mut();
    assert_eq!(cuStreamCreateWithPriority(Some(&mut stream), STREAM_NON_BLOCKING, priority), OK);
    stream
}

fn write_word(stream: Stream, word: u64) {
    assert_eq!(cuStreamWriteValue32_v2(stream, word, 1, 0), OK);
}

fn wait_word(stream: Stream, word: u64) {
    assert_eq!(cuStreamWaitValue32_v2(stream, word, 1, 0), OK);
}

fn assert_ends(stream: Stream) {
    wait_until(|| (cuStreamQuery(stream) == OK).then_some(()));
}

fn assert_blocked(stream: Stream) {
    settle();
    assert_eq!(cuStreamQuery(stream), Code::NOT_READY);
}

fn end(streams: impl IntoIterator<Item = Stream>) {
    streams.into_iter().for_each(assert_ends);
}

#[test]
fn a_wait_blocks_the_streams_of_its_queue_only() {
    alone(|| {
        let (streams, [awaited, other]) = (streams(c"8", 17), [word(), word()]);
        wait_word(streams[0], awaited);
        write_word(streams[8], awaited);
        streams[1..8].iter().chain(&streams[9..16]).for_each(|&stream| {
            write_word(stream, other);
            assert_ends(stream);
        });
        write_word(streams[16], other);
        [0, 8, 16].into_iter().for_each(|index| assert_blocked(streams[index]));
        assert_eq!(read(awaited, 4), [0; 4]);
        write_word(streams[1], awaited);
        end(streams);
    });
}

#[test]
fn a_stream_of_default_priority_shares_a_queue() {
    alone(|| {
        let (mut streams, awaited) = (streams(c"1", 1), word());
        let (mut least, mut greatest) = (9, 9);
        assert_eq!(cuCtxGetStreamPriorityRange(Some(&mut least), Some(&mut greatest)), OK);
        assert_eq!((least, greatest), (0, -5));
        assert_eq!(cuCtxGetStreamPriorityRange(None, None), OK);
        let [same, clamped] = [least, 3].map(priority_stream);
        let urgent = priority_stream(-100);
        streams.extend([same, clamped, urgent]);
        wait_word(streams[0], awaited);
        [same, clamped].into_iter().for_each(|stream| write_word(stream, awaited));
        [same, clamped].into_iter().for_each(assert_blocked);
        write_word(urgent, awaited);
        end(streams);
        free(awaited);
        assert_eq!(cuStreamCreateWithPriority(None, 0, 0), Code::INVALID_VALUE);
        let mut stream = ptr::null_mut();
        assert_eq!(cuStreamCreateWithPriority(Some(&mut stream), 2, 0), Code::INVALID_VALUE);
    });
}

/// Launches the barrier kernel of one of two ranks.
fn meet(stream: Stream, states: [u64; 2], rank: u32, [abort, report]: [u64; 2]) {
    let mut params = Params { timeout_ns: 60_000_000_000, world: 2, rank, abort, report, ..Params::default() };
    params.state[..2].copy_from_slice(&states);
    let params: *const c_void = (&raw const params).cast();
    // SAFETY: the pointer is that of valid parameters.
    let code = unsafe { launch(function(load(), c"disco_barrier").unwrap(), [1; 3], [32, 1, 1], stream, &params) };
    assert_eq!(code, OK);
}

#[test]
fn kernels_of_one_queue_run_at_the_same_time_and_later_work_blocks_the_queue() {
    alone(|| {
        let (streams, words) = (streams(c"1", 3), [word(), word()]);
        let (states, other) = ([0, 1].map(|_| allocate(STATE_BYTES)), word());
        states.iter().for_each(|&state| write(state, &[0; STATE_BYTES]));
        // Two kernels of one queue run at the same time.
        meet(streams[0], states, 0, words);
        meet(streams[1], states, 1, words);
        streams.iter().for_each(|&stream| assert_ends(stream));
        meet(streams[0], states, 0, words);
        write_word(streams[1], other);
        assert_ends(streams[1]);
        assert_eq!(cuStreamQuery(streams[0]), Code::NOT_READY, "the kernel waits for its peer");
        // Work after the kernel is at the head of the queue, and waits for the kernel.
        write_word(streams[0], other);
        write_word(streams[2], other);
        assert_blocked(streams[2]);
        let urgent = priority_stream(-1);
        meet(urgent, states, 1, words);
        end(streams.into_iter().chain([urgent]));
    });
}
