//! Captures, launches of graphs, and calls that invalidate a capture.

use crate::common::child::alone;
use std::ffi::{c_int, c_void};
use std::ptr;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::thread;

use crate::common::{OK, Rank, allocate, at, enter, free, new_stream, on_ranks, ready, settle, use_device};
use disco_gpu_double::controls::{Counts, gpu_double_counts};
use disco_gpu_double::cuda::abi::{Code, Event, Graph, GraphExec, Pool, Stream};
use disco_gpu_double::cuda::exports::context::cuCtxSynchronize;
use disco_gpu_double::cuda::exports::copy::{
    cuMemcpyDtoDAsync_v2, cuMemcpyDtoHAsync_v2, cuMemcpyHtoD_v2, cuMemcpyHtoDAsync_v2,
};
use disco_gpu_double::cuda::exports::event::{cuEventCreate, cuEventDestroy_v2, cuEventQuery, cuEventRecord};
use disco_gpu_double::cuda::exports::graph::{
    cuGraphDestroy, cuGraphExecDestroy, cuGraphInstantiateWithFlags, cuGraphLaunch, cuGraphUpload,
    cuStreamBeginCapture_v2, cuStreamEndCapture, cuStreamIsCapturing, cuThreadExchangeStreamCaptureMode,
};
use disco_gpu_double::cuda::exports::memory::{
    cuMemAlloc_v2, cuMemFree_v2, cuMemFreeHost, cuMemHostAlloc, cuMemsetD8Async,
};
use disco_gpu_double::cuda::exports::pool::{cuMemAllocAsync, cuMemAllocFromPoolAsync, cuMemFreeAsync};
use disco_gpu_double::cuda::exports::stream::{
    cuStreamDestroy_v2, cuStreamQuery, cuStreamSynchronize, cuStreamWaitEvent,
};
use disco_gpu_double::cuda::exports::word::{cuStreamWaitValue32_v2, cuStreamWriteValue32_v2};
use disco_gpu_double::nccl::abi::{Code as NcclCode, DataType, RedOp};
use disco_gpu_double::nccl::exports::collective::ncclAllReduce;
use disco_gpu_double::nccl::exports::communicator::{ncclCommAbort, ncclCommDestroy, ncclCommFinalize};
use disco_gpu_double::nccl::exports::point_to_point::{ncclRecv, ncclSend};

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

fn all_reduce(rank: &Rank, pointer: u64, op: RedOp) {
    let pair = at(pointer, 0);
    let code = ncclAllReduce(pair, pair, 1, DataType::F32, op, rank.comm, rank.stream);
    assert!(code == NcclCode::SUCCESS || code == NcclCode::IN_PROGRESS, "{code:?}");
    ready(rank.comm);
}

#[test]
fn each_launch_uses_the_current_contents_of_memory() {
    alone(|| {
        let stream = use_device(0);
        let (from, a, b, to) = (pinned(4).cast::<u32>(), allocate(4), allocate(8), pinned(8).cast::<u32>());
        begin(stream, THREAD_LOCAL);
        assert_eq!(status(stream), 1);
        // SAFETY: the memory is valid until the last launch is done.
        assert_eq!(unsafe { cuMemcpyHtoDAsync_v2(a, from.cast(), 4, stream) }, OK);
        let codes = [
            cuMemcpyDtoDAsync_v2(b, a, 4, stream),
            cuStreamWriteValue32_v2(stream, b + 4, 5, 0),
            cuStreamWaitValue32_v2(stream, b + 4, 5, 1),
            cuMemsetD8Async(a, 0, 4, stream),
        ];
        assert_eq!(codes, [OK; 4]);
        // SAFETY: the memory is valid until the last launch is done.
        assert_eq!(unsafe { cuMemcpyDtoHAsync_v2(to.cast(), b, 8, stream) }, OK);
        let exec = end(stream);
        assert_eq!((status(stream), cuStreamQuery(stream)), (0, OK), "nothing was done");
        assert_eq!(cuGraphUpload(exec, stream), OK);
        for number in [3, 70, 9] {
            // SAFETY: no launch is running.
            unsafe { from.write(number) };
            assert_eq!([cuGraphLaunch(exec, stream), cuStreamSynchronize(stream)], [OK; 2]);
            // SAFETY: the memory is valid until the last launch is done.
            assert_eq!(unsafe { to.cast::<[u32; 2]>().read() }, [number, 5]);
        }
        assert_eq!([cuGraphExecDestroy(exec), cuGraphLaunch(exec, stream)], [OK, Code::INVALID_VALUE]);
        [a, b].into_iter().for_each(free);
        assert_eq!([from, to].map(|pointer| cuMemFreeHost(pointer.cast())), [OK; 2]);
        assert_eq!(cuStreamDestroy_v2(stream), OK);
    });
}

#[test]
fn each_launch_runs_a_new_collective() {
    alone(|| {
        for blocking in [true, false] {
            on_ranks(2, blocking, |rank| {
                let pointer = rank.floats(&[0.0]);
                begin(rank.stream, THREAD_LOCAL);
                all_reduce(rank, pointer, RedOp::SUM);
                // On a non-blocking communicator, the first send is in progress at first.
                let code = match rank.rank {
                    0 => ncclSend(at(pointer, 0), 1, DataType::F32, 1, rank.comm, rank.stream),
                    _ => ncclRecv(at(pointer, 0), 1, DataType::F32, 0, rank.comm, rank.stream),
                };
                assert_eq!(code == NcclCode::IN_PROGRESS, !blocking);
                ready(rank.comm);
                all_reduce(rank, pointer, RedOp::SUM);
                let exec = end(rank.stream);
                for round in 1..=10 {
                    let number = (round * (rank.rank as u32 + 1)) as f32;
                    rank.write(pointer, &number.to_le_bytes());
                    // Other collectives run between the launches.
                    all_reduce(rank, pointer, RedOp::SUM);
                    assert_eq!(cuGraphLaunch(exec, rank.stream), OK);
                    all_reduce(rank, pointer, RedOp::MAX);
                    assert_eq!(rank.read_floats(pointer, 1), [3.0 * round as f32 * 4.0]);
                }
                assert_eq!(cuGraphExecDestroy(exec), OK);
                rank.free(pointer);
            });
        }
    });
}

#[test]
fn a_communicator_does_not_end_before_its_graphs() {
    alone(|| {
        let assert_ends: [fn(&Rank) -> NcclCode; 3] = [
            |rank| ncclCommDestroy(rank.comm),
            |rank| ncclCommAbort(rank.comm),
            |rank| {
                assert_eq!(ncclCommFinalize(rank.comm), NcclCode::SUCCESS);
                ncclCommDestroy(rank.comm)
            },
        ];
        for end_comm in assert_ends {
            // A communicator of one rank: of several ranks only the last would wait.
            on_ranks(1, true, |rank| {
                let pointer = rank.floats(&[1.0]);
                begin(rank.stream, RELAXED);
                all_reduce(rank, pointer, RedOp::SUM);
                let exec = end(rank.stream);
                let is_destroyed = AtomicBool::new(false);
                thread::scope(|scope| {
                    let (exec, device) = (exec.expose_provenance(), rank.rank as c_int);
                    let is_destroyed = &is_destroyed;
                    scope.spawn(move || {
                        enter(device);
                        // A call that does not wait returns meanwhile.
                        settle();
                        is_destroyed.store(true, SeqCst);
                        assert_eq!(cuGraphExecDestroy(ptr::with_exposed_provenance_mut(exec)), OK);
                    });
                    assert_eq!(end_comm(rank), NcclCode::SUCCESS);
                    assert!(is_destroyed.load(SeqCst), "it has not waited");
                });
                rank.free(pointer);
            });
        }
    });
}

#[test]
fn an_abort_ends_a_waiting_launch_of_a_destroyed_graph() {
    alone(|| {
        let aborted = Barrier::new(2);
        on_ranks(2, true, |rank| {
            let pointer = rank.floats(&[rank.rank as f32]);
            begin(rank.stream, THREAD_LOCAL);
            all_reduce(rank, pointer, RedOp::SUM);
            let exec = end(rank.stream);
            if rank.rank == 0 {
                assert_eq!(cuGraphLaunch(exec, rank.stream), OK);
                assert_eq!(cuStreamQuery(rank.stream), Code::NOT_READY);
            }
            assert_eq!(cuGraphExecDestroy(exec), OK);
            if rank.rank == 1 {
                aborted.wait();
            }
            assert_eq!(ncclCommAbort(rank.comm), NcclCode::SUCCESS);
            if rank.rank == 0 {
                aborted.wait();
            }
            // The contents of the collective's output are unspecified.
            assert!(rank.rank == 0 || rank.read_floats(pointer, 1) == [1.0]);
            rank.synchronize();
            rank.free(pointer);
        });
    });
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
        // A relaxed thread may make unsafe calls, but may not query a captured event.
        let mut before = RELAXED;
        assert_eq!((cuThreadExchangeStreamCaptureMode(Some(&mut before)), before), (OK, GLOBAL));
        begin(stream, THREAD_LOCAL);
        assert_eq!(cuEventQuery(mark), OK);
        assert_eq!(cuEventRecord(mark, stream), OK);
        assert_eq!((status(stream), cuEventQuery(mark)), (1, Code::CAPTURED_EVENT));
        assert_eq!(failed_end(stream), Code::STREAM_CAPTURE_INVALIDATED);
        assert_eq!((cuThreadExchangeStreamCaptureMode(Some(&mut before)), before), (OK, RELAXED));
        assert_eq!([cuMemFreeHost(host), cuEventDestroy_v2(mark), cuStreamDestroy_v2(stream)], [OK; 3]);
        free(memory);
    });
}

#[test]
fn memory_of_a_graph_is_the_same_for_each_launch_and_ends_with_the_graph() {
    alone(|| {
        let stream = use_device(0);
        let (to, host, mut own) = (allocate(4), pinned(4), 0);
        let before = live();
        begin(stream, RELAXED);
        assert_eq!(cuMemAllocAsync(Some(&mut own), 4, stream), OK);
        // The first two bytes of the memory are never written.
        assert_eq!(cuMemsetD8Async(own + 2, 7, 2, stream), OK);
        assert_eq!(cuMemcpyDtoDAsync_v2(to, own, 4, stream), OK);
        assert_eq!(cuMemFreeAsync(own, stream), OK);
        let exec = end(stream);
        for _ in 0..2 {
            assert_eq!([cuMemsetD8Async(to, 0, 4, stream), cuGraphLaunch(exec, stream)], [OK; 2]);
            // SAFETY: the memory is valid until the stream is done.
            assert_eq!(unsafe { cuMemcpyDtoHAsync_v2(host, to, 4, stream) }, OK);
            assert_eq!(cuStreamSynchronize(stream), OK);
            // SAFETY: the copy is done.
            assert_eq!(unsafe { host.cast::<[u8; 4]>().read() }, [0xA5, 0xA5, 7, 7]);
        }
        assert_eq!((live(), cuGraphExecDestroy(exec), live()), (before + 1, OK, before));
        // Memory that is not of the capture, and memory that the graph keeps.
        let mut other = 0;
        assert_eq!(cuMemAllocAsync(Some(&mut other), 4, stream), OK);
        begin(stream, RELAXED);
        assert_eq!(cuMemFreeAsync(other, stream), Code::INVALID_VALUE);
        assert_eq!(failed_end(stream), Code::STREAM_CAPTURE_INVALIDATED);
        begin(stream, RELAXED);
        assert_eq!(cuMemAllocAsync(Some(&mut own), 4, stream), OK);
        assert_eq!(failed_end(stream), Code::INVALID_VALUE);
        assert_eq!([cuMemFreeAsync(other, stream), cuStreamSynchronize(stream)], [OK; 2]);
        assert_eq!(live(), before);
        free(to);
        assert_eq!([cuMemFreeHost(host), cuStreamDestroy_v2(stream)], [OK; 2]);
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
        free(memory);
        assert_eq!([cuStreamDestroy_v2(stream), cuStreamDestroy_v2(other)], [OK; 2]);
    });
}

#[test]
fn streams_join_a_capture_by_events_and_must_rejoin() {
    alone(|| {
        let (stream, side) = (use_device(0), new_stream());
        let (memory, fork, join) = (allocate(1), event(), event());
        let to = pinned(1).cast::<u8>();
        begin(stream, THREAD_LOCAL);
        assert_eq!([cuEventRecord(fork, stream), cuStreamWaitEvent(side, fork, 0)], [OK; 2]);
        assert_eq!(status(side), 1);
        assert_eq!([cuMemsetD8Async(memory, 7, 1, side), cuEventRecord(join, side)], [OK; 2]);
        assert_eq!(cuStreamEndCapture(side, Some(&mut ptr::null_mut())), Code::STREAM_CAPTURE_UNMATCHED);
        assert_eq!(cuStreamWaitEvent(stream, join, 0), OK);
        // SAFETY: the memory is valid until the launch is done.
        assert_eq!(unsafe { cuMemcpyDtoHAsync_v2(to.cast(), memory, 1, stream) }, OK);
        let exec = end(stream);
        assert_eq!((status(side), cuGraphLaunch(exec, stream), cuStreamSynchronize(stream)), (0, OK, OK));
        // SAFETY: no launch is running.
        assert_eq!(unsafe { to.read() }, 7);
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
        assert_eq!([cuGraphExecDestroy(exec), cuMemFreeHost(to.cast())], [OK; 2]);
        assert_eq!([cuEventDestroy_v2(fork), cuEventDestroy_v2(join)], [OK; 2]);
        free(memory);
        assert_eq!([cuStreamDestroy_v2(stream), cuStreamDestroy_v2(side)], [OK; 2]);
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
        let exec = end(stream);
        let mut graph = ptr::null_mut();
        assert_eq!(cuGraphInstantiateWithFlags(Some(&mut graph), ptr::null_mut(), 0), Code::INVALID_VALUE);
        assert_eq!([cuGraphExecDestroy(exec), cuStreamDestroy_v2(stream)], [OK; 2]);
    });
}

#[test]
fn a_launch_with_freed_memory_fails() {
    alone(|| {
        // No other test uses the device, which fails here.
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
