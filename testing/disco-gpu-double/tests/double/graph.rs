//! Captures, launches of graphs, and calls that invalidate a capture.

#![allow(unsafe_code, reason = "C functions")]

use std::ffi::{c_int, c_void};
use std::ptr;
use std::thread;

use crate::common::child::alone;
use crate::common::{OK, allocate, enter, free, new_stream, use_device};
use disco_gpu_double::controls::{Counts, gpu_double_counts};
use disco_gpu_double::cuda::abi::{Code, Event, Graph, GraphExec, Pool, Stream};
use disco_gpu_double::cuda::exports::context::cuCtxSynchronize;
use disco_gpu_double::cuda::exports::copy::{cuMemcpyDtoHAsync_v2, cuMemcpyHtoD_v2, cuMemcpyHtoDAsync_v2};
use disco_gpu_double::cuda::exports::event::{cuEventCreate, cuEventQuery, cuEventRecord};
use disco_gpu_double::cuda::exports::graph::{
    cuGraphDestroy, cuGraphExecDestroy, cuGraphInstantiateWithFlags, cuGraphLaunch, cuStreamBeginCapture_v2,
    cuStreamEndCapture, cuStreamIsCapturing,
};
use disco_gpu_double::cuda::exports::memory::{
    cuMemAlloc_v2, cuMemFree_v2, cuMemFreeHost, cuMemHostAlloc, cuMemsetD8Async,
};
use disco_gpu_double::cuda::exports::pool::{cuMemAllocAsync, cuMemAllocFromPoolAsync, cuMemFreeAsync};
use disco_gpu_double::cuda::exports::stream::{
    cuStreamDestroy_v2, cuStreamQuery, cuStreamSynchronize, cuStreamWaitEvent,
};

const GLOBAL: c_int = 0;
const THREAD_LOCAL: c_int = 1;
const RELAXED: c_int = 2;

fn begin(stream: Stream, mode: c_int) {
    assert_eq!(cuStreamBeginCapture_v2(stream, mode), OK);
}

/// Ends a valid capture and instantiates its graph.
fn end(stream: Stream) -> GraphExec {
    let (mut graph, mut exec) = (ptr::null_mut(), ptr::null_mut());
    assert_eq!(cuStreamEndCapture(stream, Some(&mut graph)), OK);
    assert_eq!(cuGraphInstantiateWithFlags(Some(&mut exec), graph, 0), OK);
    assert_eq!(cuGraphDestroy(graph), OK);
    exec
}

/// Ends a capture that fails, and returns the code.
fn failed_end(stream: Stream) -> Code {
    let mut graph: Graph = ptr::without_provenance_mut(1);
    let code = cuStreamEndCapture(stream, Some(&mut graph));
    assert!(graph.is_null() && code != OK, "{code:?}");
    assert_eq!(status(stream), 0, "the capture is over");
    code
}

fn status(stream: Stream) -> c_int {
    let mut status = 9;
    assert_eq!(cuStreamIsCapturing(stream, Some(&mut status)), OK);
    status
}

/// Number of allocations of device memory and of pinned memory.
fn live() -> u64 {
    let mut counts = Counts::default();
    gpu_double_counts(Some(&mut counts));
    counts.allocations
}

fn event() -> Event {
    let mut event = ptr::null_mut();
    assert_eq!(cuEventCreate(Some(&mut event), 2), OK);
    event
}

fn pinned(bytes: usize) -> *mut c_void {
    let mut pointer = ptr::null_mut();
    assert_eq!(cuMemHostAlloc(Some(&mut pointer), bytes, 0), OK);
    pointer
}

#[test]
fn an_unsafe_call_is_refused_and_invalidates_the_capture() {
    alone(|| {
        let stream = use_device(0);
        let (memory, host, mark) = (allocate(4), pinned(4), event());
        let calls: [&dyn Fn() -> Code; 7] = [
            &|| cuMemAlloc_v2(Some(&mut 0), 4),
            &|| cuMemFree_v2(memory),
            &|| cuMemHostAlloc(Some(&mut ptr::null_mut()), 4, 0),
            &|| cuMemFreeHost(host),
            &|| cuEventQuery(mark),
            &|| cuCtxSynchronize(),
            // SAFETY: the call fails before it accesses memory.
            &|| unsafe { cuMemcpyHtoD_v2(memory, ptr::null(), 0) },
        ];
        for (call, mode) in calls.into_iter().flat_map(|call| [(call, GLOBAL), (call, THREAD_LOCAL)]) {
            begin(stream, mode);
            assert_eq!((call(), status(stream)), (Code::STREAM_CAPTURE_UNSUPPORTED, 2));
            assert_eq!(cuMemsetD8Async(memory, 0, 4, stream), Code::STREAM_CAPTURE_INVALIDATED);
            assert_eq!(failed_end(stream), Code::STREAM_CAPTURE_INVALIDATED);
        }
        // A capture of another thread forbids calls according to its mode.
        for (mode, is_forbidden) in [(GLOBAL, true), (THREAD_LOCAL, false), (RELAXED, false)] {
            begin(stream, mode);
            let code = thread::spawn(|| {
                enter(1);
                cuCtxSynchronize()
            });
            let expected = if is_forbidden { Code::STREAM_CAPTURE_UNSUPPORTED } else { OK };
            assert_eq!(code.join().unwrap(), expected, "{mode}");
            if is_forbidden {
                assert_eq!(failed_end(stream), Code::STREAM_CAPTURE_INVALIDATED)
            } else {
                assert_eq!(cuGraphExecDestroy(end(stream)), OK)
            }
        }
        // An event of a capture can't be queried, also in a relaxed capture.
        begin(stream, RELAXED);
        assert_eq!(cuEventQuery(mark), OK);
        assert_eq!(cuEventRecord(mark, stream), OK);
        assert_eq!((status(stream), cuEventQuery(mark)), (1, Code::CAPTURED_EVENT));
        assert_eq!(failed_end(stream), Code::STREAM_CAPTURE_INVALIDATED);
    });
}

#[test]
fn a_graph_frees_its_memory_and_no_other() {
    alone(|| {
        let stream = use_device(0);
        let (mut own, mut other, before) = (0, 0, live());
        // Memory that is not of the capture, and memory that the graph keeps.
        assert_eq!(cuMemAllocAsync(Some(&mut other), 4, stream), OK);
        begin(stream, RELAXED);
        assert_eq!(cuMemFreeAsync(other, stream), Code::INVALID_VALUE);
        assert_eq!(failed_end(stream), Code::STREAM_CAPTURE_INVALIDATED);
        begin(stream, RELAXED);
        assert_eq!(cuMemAllocAsync(Some(&mut own), 4, stream), OK);
        assert_eq!(failed_end(stream), Code::INVALID_VALUE);
        assert_eq!([cuMemFreeAsync(other, stream), cuStreamSynchronize(stream)], [OK; 2]);
        assert_eq!(live(), before);
    });
}

#[test]
fn a_query_of_a_captured_stream_invalidates_the_capture() {
    alone(|| {
        let (stream, other) = (use_device(0), new_stream());
        let (memory, mut address) = (allocate(8), 0);
        let bytes = [0u8; 8];
        let no_pool: Pool = ptr::null_mut();
        let calls: [&mut dyn FnMut() -> Code; 5] = [
            &mut || cuStreamQuery(stream),
            &mut || cuStreamSynchronize(stream),
            &mut || cuMemAllocFromPoolAsync(Some(&mut address), 4, no_pool, stream),
            // SAFETY: the memory has this many bytes.
            &mut || unsafe { cuMemcpyHtoDAsync_v2(memory, bytes.as_ptr().cast(), 8, stream) },
            // SAFETY: the call is refused before it writes.
            &mut || unsafe { cuMemcpyDtoHAsync_v2(bytes.as_ptr().cast_mut().cast(), memory, 8, stream) },
        ];
        for call in calls {
            begin(stream, RELAXED);
            // Queries of another stream are allowed.
            assert_eq!([cuStreamQuery(other), cuStreamSynchronize(other)], [OK; 2]);
            assert_eq!((status(stream), call()), (1, Code::STREAM_CAPTURE_UNSUPPORTED));
            assert_eq!(failed_end(stream), Code::STREAM_CAPTURE_INVALIDATED);
        }
    });
}

#[test]
fn streams_join_a_capture_by_events_and_must_rejoin() {
    alone(|| {
        let (stream, side) = (use_device(0), new_stream());
        let (memory, fork, join) = (allocate(1), event(), event());
        begin(stream, THREAD_LOCAL);
        assert_eq!([cuEventRecord(fork, stream), cuStreamWaitEvent(side, fork, 0)], [OK; 2]);
        assert_eq!(status(side), 1);
        assert_eq!([cuMemsetD8Async(memory, 7, 1, side), cuEventRecord(join, side)], [OK; 2]);
        assert_eq!(cuStreamEndCapture(side, Some(&mut ptr::null_mut())), Code::STREAM_CAPTURE_UNMATCHED);
        assert_eq!(cuStreamWaitEvent(stream, join, 0), OK);
        let exec = end(stream);
        assert_eq!((status(side), cuGraphLaunch(exec, stream), cuStreamSynchronize(stream)), (0, OK, OK));
        assert_eq!(cuStreamWaitEvent(side, join, 0), Code::CAPTURED_EVENT, "its capture is over");
        // Work on a second stream for which the first stream does not wait.
        begin(stream, THREAD_LOCAL);
        assert_eq!([cuEventRecord(fork, stream), cuStreamWaitEvent(side, fork, 0)], [OK; 2]);
        assert_eq!(cuMemsetD8Async(memory, 7, 1, side), OK);
        assert_eq!(failed_end(stream), Code::STREAM_CAPTURE_UNJOINED);
        // Work from outside the capture.
        assert_eq!(cuEventRecord(fork, side), OK);
        begin(stream, THREAD_LOCAL);
        assert_eq!(cuStreamWaitEvent(stream, fork, 0), Code::STREAM_CAPTURE_ISOLATION);
        assert_eq!(failed_end(stream), Code::STREAM_CAPTURE_INVALIDATED);
        // Work of another capture.
        begin(stream, THREAD_LOCAL);
        begin(side, THREAD_LOCAL);
        assert_eq!(cuEventRecord(fork, side), OK);
        assert_eq!(cuStreamWaitEvent(stream, fork, 0), Code::STREAM_CAPTURE_MERGE);
        assert_eq!([stream, side].map(failed_end), [Code::STREAM_CAPTURE_INVALIDATED; 2]);
    });
}

#[test]
fn captures_begin_and_end_on_permitted_streams_and_threads() {
    alone(|| {
        let stream = use_device(0);
        assert_eq!(cuStreamBeginCapture_v2(ptr::null_mut(), RELAXED), Code::STREAM_CAPTURE_UNSUPPORTED);
        assert_eq!(cuStreamBeginCapture_v2(stream, 3), Code::INVALID_VALUE);
        assert_eq!(cuStreamEndCapture(stream, Some(&mut ptr::null_mut())), Code::ILLEGAL_STATE);
        begin(stream, THREAD_LOCAL);
        assert_eq!(cuStreamBeginCapture_v2(stream, THREAD_LOCAL), Code::ILLEGAL_STATE);
        let address = stream.expose_provenance();
        let elsewhere = thread::spawn(move || {
            enter(0);
            cuStreamEndCapture(ptr::with_exposed_provenance_mut(address), Some(&mut ptr::null_mut()))
        });
        assert_eq!(elsewhere.join().unwrap(), Code::STREAM_CAPTURE_WRONG_THREAD);
        let _exec = end(stream);
        let mut graph = ptr::null_mut();
        assert_eq!(cuGraphInstantiateWithFlags(Some(&mut graph), ptr::null_mut(), 0), Code::INVALID_VALUE);
    });
}

#[test]
fn a_launch_with_freed_memory_fails() {
    alone(|| {
        let stream = use_device(3);
        let memory = allocate(4);
        begin(stream, THREAD_LOCAL);
        assert_eq!(cuMemsetD8Async(memory, 0, 4, stream), OK);
        let exec = end(stream);
        free(memory);
        assert_eq!([cuGraphLaunch(exec, stream), cuStreamSynchronize(stream)], [OK, Code::ILLEGAL_ADDRESS]);
        assert_eq!([cuGraphExecDestroy(exec), cuStreamDestroy_v2(stream)], [OK, Code::ILLEGAL_ADDRESS]);
    });
}
