//! The driver: memory, streams and events.

use crate::common::child::alone;
use std::ptr;
use std::sync::Barrier;
use std::thread;

use crate::common::member::read;
use crate::common::{OK, allocate, at, free, new_event, new_stream, on_ranks, set, use_device};
use disco_gpu_double::controls::{Counts, gpu_double_counts, gpu_double_events};
use disco_gpu_double::cuda::abi::{Code, Stream, Uuid};
use disco_gpu_double::cuda::exports::context::{cuCtxSynchronize, cuDevicePrimaryCtxRelease_v2};
use disco_gpu_double::cuda::exports::copy::{cuMemcpyDtoDAsync_v2, cuMemcpyHtoD_v2};
use disco_gpu_double::cuda::exports::device::{cuDeviceGetAttribute, cuDeviceGetName, cuDeviceGetPCIBusId};
use disco_gpu_double::cuda::exports::event::{
    cuEventCreate, cuEventDestroy_v2, cuEventElapsedTime, cuEventQuery, cuEventRecord, cuEventSynchronize,
};
use disco_gpu_double::cuda::exports::memory::{
    cuMemAlloc_v2, cuMemFree_v2, cuMemGetInfo_v2, cuMemsetD8_v2, cuMemsetD8Async, cuPointerGetAttribute,
};
use disco_gpu_double::cuda::exports::stream::{
    cuStreamCreate, cuStreamDestroy_v2, cuStreamQuery, cuStreamSynchronize, cuStreamWaitEvent,
};
use disco_gpu_double::cuda::exports::table::cuGetExportTable;
use disco_gpu_double::cuda::exports::word::{cuStreamWaitValue32_v2, cuStreamWriteValue32_v2};
use disco_gpu_double::nccl;
use disco_gpu_double::nccl::abi::DataType;
use disco_gpu_double::nccl::exports::point_to_point::{ncclRecv, ncclSend};

#[test]
fn the_time_between_two_events_is_that_between_their_points_in_the_stream() {
    alone(|| {
        let stream = use_device(0);
        let [start, end] = [(); 2].map(|()| {
            let mut event = ptr::null_mut();
            assert_eq!(cuEventCreate(Some(&mut event), 0), OK);
            event
        });
        let elapsed = |start, end| {
            let mut milliseconds = f32::NAN;
            let code = cuEventElapsedTime(Some(&mut milliseconds), start, end);
            if code == OK { Ok(milliseconds) } else { Err(code) }
        };
        assert_eq!(cuEventRecord(start, stream), OK);
        assert_eq!(cuEventSynchronize(start), OK);
        assert_eq!(elapsed(start, end), Err(Code::INVALID_HANDLE), "the second one has no record");
        // The time that the events measure.
        thread::sleep(std::time::Duration::from_millis(20));
        assert_eq!(cuEventRecord(end, stream), OK);
        assert_eq!(cuStreamSynchronize(stream), OK);
        let milliseconds = elapsed(start, end).unwrap();
        assert!(milliseconds >= 20.0, "{milliseconds}");
        assert_eq!(elapsed(end, start), Ok(-milliseconds));
        let without_times = new_event();
        assert_eq!([cuEventRecord(without_times, stream), cuStreamSynchronize(stream)], [OK; 2]);
        assert_eq!(elapsed(start, without_times), Err(Code::INVALID_HANDLE));
        assert_eq!([start, end, without_times].map(|event| cuEventDestroy_v2(event)), [OK; 3]);
        assert_eq!(cuStreamDestroy_v2(stream), OK);
    });
}

#[test]
fn fresh_memory_is_not_zero() {
    alone(|| {
        let stream = use_device(0);
        let pointer = allocate(1000);
        assert_eq!(read(pointer, 1000), [0xa5; 1000]);
        assert_eq!(cuMemsetD8_v2(pointer, 7, 10), OK);
        // SAFETY: the source has this many bytes.
        assert_eq!(unsafe { cuMemcpyHtoD_v2(pointer + 8, [1u8, 2, 3].as_ptr().cast(), 3) }, OK);
        assert_eq!(read(pointer, 12), [7, 7, 7, 7, 7, 7, 7, 7, 1, 2, 3, 0xa5]);
        assert_eq!(cuMemcpyDtoDAsync_v2(pointer, pointer + 8, 3, stream), OK);
        assert_eq!(cuStreamSynchronize(stream), OK);
        assert_eq!(read(pointer, 4), [1, 2, 3, 7]);
        free(pointer);
        assert_eq!(cuStreamDestroy_v2(stream), OK);
    });
}

#[test]
fn addresses_outside_of_allocations_are_refused() {
    alone(|| {
        let stream = use_device(0);
        let pointer = allocate(100);
        assert_eq!(cuMemsetD8Async(pointer, 0, 101, stream), Code::INVALID_VALUE);
        assert_eq!(cuMemsetD8Async(pointer + 100, 0, 1, stream), Code::INVALID_VALUE);
        assert_eq!(cuMemsetD8Async(pointer + 99, 0, 1, stream), OK);
        assert_eq!(cuMemFree_v2(pointer + 1), Code::INVALID_VALUE);
        let mut device = 9u32;
        // SAFETY: the output has the size of the result.
        assert_eq!(unsafe { cuPointerGetAttribute((&raw mut device).cast(), 9, pointer + 50) }, OK);
        assert_eq!(device, 0);
        free(pointer);
        assert_eq!(cuMemFree_v2(pointer), Code::INVALID_VALUE);
        // SAFETY: the output has the size of the result.
        let code = unsafe { cuPointerGetAttribute((&raw mut device).cast(), 9, pointer) };
        assert_eq!(code, Code::INVALID_VALUE);
        assert_eq!(cuStreamDestroy_v2(stream), OK);
    });
}

#[test]
fn allocations_beyond_the_device_memory_fail() {
    alone(|| {
        let stream = use_device(0);
        let (mut unused, mut total, mut pointer) = (0, 0, 0);
        assert_eq!(cuMemGetInfo_v2(Some(&mut unused), Some(&mut total)), OK);
        assert_eq!(total, 1 << 30);
        assert_eq!(cuMemAlloc_v2(Some(&mut pointer), unused + (1 << 20)), Code::OUT_OF_MEMORY);
        assert_eq!(cuMemAlloc_v2(Some(&mut pointer), 0), Code::INVALID_VALUE);
        assert_eq!(cuStreamDestroy_v2(stream), OK);
    });
}

#[test]
fn devices_report_their_properties() {
    alone(|| {
        let stream = use_device(0);
        let mut value = -1;
        for (attribute, expected) in [(75, 9), (76, 0), (115, 0), (16, 132)] {
            assert_eq!((cuDeviceGetAttribute(Some(&mut value), attribute, 1), value), (OK, expected));
        }
        let mut name = [9u8; 16];
        // SAFETY: the buffer has this many bytes.
        assert_eq!(unsafe { cuDeviceGetName(name.as_mut_ptr().cast(), 5, 0) }, OK);
        assert_eq!(name[..6], *b"GPU \0\x09");
        // SAFETY: the buffer has this many bytes.
        assert_eq!(unsafe { cuDeviceGetPCIBusId(name.as_mut_ptr().cast(), 16, 2) }, OK);
        assert_eq!(name[..13], *b"0000:03:00.0\0");
        assert_eq!(cuStreamDestroy_v2(stream), OK);
    });
}

/// A receive blocks one stream until the other rank sends.
#[test]
fn streams_wait_for_events_and_for_the_default_stream() {
    alone(|| {
        let tested = Barrier::new(2);
        on_ranks(2, true, |rank| {
            let pointer = rank.floats(&[rank.rank as f32]);
            let send = || ncclSend(at(pointer, 0), 1, DataType::F32, 0, rank.comm, rank.stream);
            let recv = || ncclRecv(at(pointer, 0), 1, DataType::F32, 1, rank.comm, rank.stream);
            // The first transfer connects the ranks, so the next receive does not wait for a launch of the other rank.
            assert_eq!(if rank.rank == 1 { send() } else { recv() }, nccl::abi::Code::SUCCESS);
            if rank.rank == 1 {
                tested.wait();
                assert_eq!(send(), nccl::abi::Code::SUCCESS);
                return rank.free(pointer);
            }
            let (event, after, apart) = (new_event(), new_stream(), new_stream());
            let mut ordered = ptr::null_mut();
            assert_eq!(cuStreamCreate(Some(&mut ordered), 0), OK);
            assert_eq!(cuEventQuery(event), OK, "an event that was never recorded counts as reached");
            assert_eq!(recv(), nccl::abi::Code::SUCCESS);
            assert_eq!(cuEventRecord(event, rank.stream), OK);
            assert_eq!(cuStreamWaitEvent(after, event, 0), OK);
            assert_eq!(cuStreamWaitEvent(ordered, event, 0), OK);
            assert_eq!(cuMemsetD8_v2(pointer, 0, 1), OK, "on the default stream");
            assert_eq!(cuMemsetD8Async(pointer, 0, 1, apart), OK);
            assert_eq!(cuStreamSynchronize(apart), OK);
            for stream in [rank.stream, after, ordered, ptr::null_mut()] {
                assert_eq!(cuStreamQuery(stream), Code::NOT_READY);
            }
            assert_eq!(cuEventQuery(event), Code::NOT_READY);
            tested.wait();
            assert_eq!(cuEventSynchronize(event), OK);
            assert_eq!(cuCtxSynchronize(), OK);
            for stream in [rank.stream, after, ordered, ptr::null_mut()] {
                assert_eq!(cuStreamQuery(stream), OK);
            }
            rank.free(pointer);
            [after, apart, ordered].into_iter().for_each(|stream| assert_eq!(cuStreamDestroy_v2(stream), OK));
            assert_eq!(cuEventDestroy_v2(event), OK);
        });
    });
}

#[test]
fn work_on_freed_memory_sets_a_sticky_error() {
    alone(|| {
        let other = use_device(2);
        let pointer = allocate(8);
        let stream = use_device(3);
        set(c"GPU_DOUBLE_DELAY_US", c"50000");
        assert_eq!(cuMemsetD8Async(pointer, 0, 8, stream), OK);
        free(pointer);
        assert_eq!(cuStreamSynchronize(stream), Code::ILLEGAL_ADDRESS);
        set(c"GPU_DOUBLE_DELAY_US", c"0");
        assert_eq!(cuStreamQuery(stream), Code::ILLEGAL_ADDRESS);
        let mut pointer = 0;
        assert_eq!(cuMemAlloc_v2(Some(&mut pointer), 8), Code::ILLEGAL_ADDRESS);
        assert_eq!(cuStreamDestroy_v2(stream), Code::ILLEGAL_ADDRESS);
        assert_eq!(cuDevicePrimaryCtxRelease_v2(3), OK);
        let stream = use_device(3);
        assert_eq!(cuStreamQuery(stream), OK);
        [stream, other].into_iter().for_each(|stream| assert_eq!(cuStreamDestroy_v2(stream), OK));
    });
}

#[test]
fn leaked_resources_are_counted() {
    alone(|| {
        let counts = || {
            let mut counts = Counts::default();
            gpu_double_counts(Some(&mut counts));
            counts
        };
        let stream = use_device(0);
        let (pointer, event) = (allocate(1), new_event());
        let local = counts();
        assert!(local.allocations >= 1 && local.streams >= 1 && gpu_double_events() >= 1);
        free(pointer);
        assert_eq!(cuStreamDestroy_v2(stream), OK);
        assert_eq!(cuEventDestroy_v2(event), OK);
        assert_eq!(cuEventDestroy_v2(event), Code::INVALID_HANDLE);
    });
}

#[test]
fn export_tables_are_not_found() {
    alone(|| {
        let (mut table, id) = (ptr::dangling(), Uuid { bytes: [7; 16] });
        assert_eq!((cuGetExportTable(Some(&mut table), Some(&id)), table), (Code::NOT_FOUND, ptr::null()));
        assert_eq!(
            [cuGetExportTable(None, Some(&id)), cuGetExportTable(Some(&mut table), None)],
            [Code::INVALID_VALUE; 2]
        );
    });
}

/// The default stream of the calling thread (`CU_STREAM_PER_THREAD`).
fn per_thread() -> Stream {
    at(2, 0)
}

#[test]
fn the_per_thread_default_stream_is_another_stream_on_each_thread() {
    alone(|| {
        let apart = use_device(1);
        let (word, event) = (allocate(4), new_event());
        assert_eq!(cuMemsetD8_v2(word, 0, 4), OK);
        // As with the real driver, the fill may still run: after the write below, it would undo it.
        assert_eq!(cuCtxSynchronize(), OK);
        assert_eq!(cuStreamWaitValue32_v2(per_thread(), word, 1, 0), OK);
        assert_eq!(cuEventRecord(event, per_thread()), OK);
        let other = thread::spawn(|| {
            let own = use_device(1);
            assert_eq!(cuStreamQuery(per_thread()), OK, "this thread has submitted nothing");
            assert_eq!(cuStreamDestroy_v2(own), OK);
        });
        other.join().unwrap();
        assert_eq!((cuStreamQuery(per_thread()), cuEventQuery(event)), (Code::NOT_READY, Code::NOT_READY));
        assert_eq!(cuStreamWriteValue32_v2(apart, word, 1, 0), OK);
        assert_eq!(cuStreamSynchronize(per_thread()), OK);
        assert_eq!((cuEventQuery(event), cuEventDestroy_v2(event)), (OK, OK));
        free(word);
        assert_eq!(cuStreamDestroy_v2(apart), OK);
    });
}
