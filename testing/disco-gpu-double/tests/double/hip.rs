//! HIP's runtime (current devices, memory, streams and events), and RCCL.

use crate::common::child::alone;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::Barrier;
use std::{ptr, thread};

use crate::common::{ready, unique_id};
use disco_gpu_double::cuda::exports::context::{cuCtxGetDevice, cuDevicePrimaryCtxRetain};
use disco_gpu_double::hip::abi::{Code, CopyKind, EVENT_DISABLE_TIMING, Event, STREAM_NON_BLOCKING, Stream, Uuid};
use disco_gpu_double::hip::exports::copy::hipMemcpyAsync;
use disco_gpu_double::hip::exports::device::{
    hipDeviceGet, hipDeviceGetName, hipDeviceGetPCIBusId, hipDeviceGetUuid, hipDeviceSynchronize, hipGetDevice,
    hipSetDevice,
};
use disco_gpu_double::hip::exports::event::{
    hipEventCreateWithFlags, hipEventDestroy, hipEventQuery, hipEventRecord, hipEventSynchronize,
};
use disco_gpu_double::hip::exports::memory::{hipFree, hipHostFree, hipHostMalloc, hipMalloc, hipMemsetAsync};
use disco_gpu_double::hip::exports::stream::{
    hipStreamCreateWithFlags, hipStreamDestroy, hipStreamQuery, hipStreamSynchronize,
};
use disco_gpu_double::hip::exports::text::{hipGetErrorName, hipGetErrorString, hipGetLastError};
use disco_gpu_double::nccl::abi::{self as rccl, CommHandle, DataType, RedOp};
use disco_gpu_double::nccl::exports::collective::ncclAllReduce;
use disco_gpu_double::nccl::exports::communicator::{ncclCommDestroy, ncclCommInitRank};
use disco_gpu_double::nccl::exports::group::{ncclGroupEnd, ncclGroupStart};
use disco_gpu_double::nccl::exports::point_to_point::{ncclRecv, ncclSend};
use disco_gpu_double::nccl::exports::rccl::{ncclAllToAll, ncclAllToAllv};

const OK: Code = Code::SUCCESS;
const NCCL_OK: rccl::Code = rccl::Code::SUCCESS;
const NULL: *mut c_void = ptr::null_mut();

/// Makes a device current on this thread, and creates a stream on it.
fn use_device(device: c_int) -> Stream {
    assert_eq!(hipSetDevice(device), OK);
    let mut stream = NULL;
    assert_eq!(hipStreamCreateWithFlags(Some(&mut stream), STREAM_NON_BLOCKING), OK);
    stream
}

fn allocate(bytes: usize) -> *mut c_void {
    let mut pointer = NULL;
    assert_eq!(hipMalloc(Some(&mut pointer), bytes), OK);
    pointer
}

fn pinned(bytes: usize) -> *mut c_void {
    let mut pointer = NULL;
    assert_eq!(hipHostMalloc(Some(&mut pointer), bytes, 0), OK);
    pointer
}

fn new_event() -> Event {
    let mut event = NULL;
    assert_eq!(hipEventCreateWithFlags(Some(&mut event), EVENT_DISABLE_TIMING), OK);
    event
}

fn copy(to: *mut c_void, from: *const c_void, bytes: usize, kind: CopyKind, stream: Stream) -> Code {
    // SAFETY: callers pass memory of this size that is valid until they have waited for the stream.
    unsafe { hipMemcpyAsync(to, from, bytes, kind, stream) }
}

/// Allocates device memory and writes floats to it.
fn upload(values: &[f32], stream: Stream) -> *mut c_void {
    let pointer = allocate(4 * values.len());
    assert_eq!(copy(pointer, values.as_ptr().cast(), 4 * values.len(), CopyKind::HOST_TO_DEVICE, stream), OK);
    pointer
}

/// Reads floats from device memory.
fn download(pointer: *mut c_void, count: usize, stream: Stream) -> Vec<f32> {
    let mut values = vec![0.0_f32; count];
    assert_eq!(copy(values.as_mut_ptr().cast(), pointer, 4 * count, CopyKind::DEVICE_TO_HOST, stream), OK);
    values
}

/// The bytes of pinned memory.
fn bytes_of(pinned: *mut c_void) -> [u8; 4] {
    // SAFETY: callers pass an allocation of at least four initialised bytes.
    unsafe { pinned.cast::<[u8; 4]>().read() }
}

#[test]
fn copies_make_a_round_trip_through_streams() {
    alone(|| {
        let stream = use_device(0);
        let (one, other) = (allocate(4), allocate(4));
        let mut back = [0_u8; 4];
        for kinds in [[1, 3, 2], [4, 4, 4]] {
            let [up, across, down] = kinds.map(CopyKind);
            assert_eq!(hipMemsetAsync(other, 0x1ff, 4, stream), OK);
            assert_eq!(
                copy(one, [1_u8, 2, 3, 4].as_ptr().cast(), 4, up, stream),
                OK,
                "a copy reads pageable memory before it returns"
            );
            assert_eq!(copy(other, one, 3, across, stream), OK);
            assert_eq!(
                copy(back.as_mut_ptr().cast(), other, 4, down, stream),
                OK,
                "a copy writes pageable memory before it returns"
            );
            assert_eq!(back, [1, 2, 3, 0xff]);
        }
        [one, other, NULL].into_iter().for_each(|pointer| assert_eq!(hipFree(pointer), OK));
        assert_eq!(hipStreamDestroy(stream), OK);
    });
}

#[test]
fn pinned_memory_is_accessed_when_the_stream_runs_the_copy() {
    alone(|| {
        let stream = use_device(1);
        let (device, from, to) = (allocate(4), pinned(4), pinned(4));
        for pointer in [from, to] {
            // SAFETY: the destination has room for all bytes.
            unsafe { pointer.cast::<[u8; 4]>().write([0; 4]) };
        }
        while_a_receive_waits(1, stream, || {
            assert_eq!(copy(device, from, 4, CopyKind::HOST_TO_DEVICE, stream), OK);
            assert_eq!(copy(to, device, 4, CopyKind::DEFAULT, stream), OK);
            assert_eq!(hipStreamQuery(stream), Code::NOT_READY);
            // SAFETY: the allocation has this many bytes, and the copy has not begun.
            unsafe { from.cast::<[u8; 4]>().write([5, 6, 7, 8]) };
            assert_eq!(bytes_of(to), [0; 4]);
        });
        assert_eq!(hipStreamSynchronize(stream), OK);
        assert_eq!(bytes_of(to), [5, 6, 7, 8]);
        [from, to, NULL].into_iter().for_each(|pointer| assert_eq!(hipHostFree(pointer), OK));
        assert_eq!((hipHostFree(from), hipFree(device)), (Code::INVALID_VALUE, OK));
        assert_eq!(hipStreamDestroy(stream), OK);
    });
}

#[test]
fn events_complete_when_the_stream_reaches_them() {
    alone(|| {
        let stream = use_device(2);
        let event = new_event();
        assert_eq!(hipEventQuery(event), OK, "an event that was never recorded counts as reached");
        while_a_receive_waits(2, stream, || {
            assert_eq!(hipEventRecord(event, stream), OK);
            assert_eq!(hipEventQuery(event), Code::NOT_READY);
            assert_eq!(hipGetLastError(), OK, "hipErrorNotReady is not recorded as an error");
        });
        assert_eq!(hipEventSynchronize(event), OK);
        assert_eq!([hipEventQuery(event), hipDeviceSynchronize(), hipStreamQuery(stream)], [OK; 3]);
        assert_eq!([hipEventDestroy(event), hipEventDestroy(event)], [OK, Code::INVALID_HANDLE]);
        let mut timed = NULL;
        assert_eq!(hipEventCreateWithFlags(Some(&mut timed), 4), Code::INVALID_VALUE, "of several processes");
        assert_eq!([hipStreamDestroy(stream), hipStreamQuery(stream)], [OK, Code::INVALID_HANDLE]);
    });
}

/// Runs `body` while a receive blocks a stream of a device; then device 3 sends.
fn while_a_receive_waits(device: c_int, stream: Stream, body: impl FnOnce()) {
    let (id, is_done) = (unique_id(), Barrier::new(2));
    let pointer = allocate(1);
    thread::scope(|scope| {
        scope.spawn(|| {
            let stream = use_device(3);
            let comm = begin(id, 2, 1);
            let pointer = allocate(1);
            // The first transfer connects the ranks, so the next receive does not wait for a launch of the other rank.
            assert_eq!(ncclSend(pointer, 1, DataType::U8, 0, comm, stream), NCCL_OK);
            is_done.wait();
            assert_eq!(ncclSend(pointer, 1, DataType::U8, 0, comm, stream), NCCL_OK);
            end(comm, stream, [pointer]);
        });
        assert_eq!(hipSetDevice(device), OK);
        let comm = begin(id, 2, 0);
        for _ in 0..2 {
            assert_eq!(ncclRecv(pointer, 1, DataType::U8, 1, comm, stream), NCCL_OK);
        }
        body();
        is_done.wait();
        assert_eq!(hipStreamSynchronize(stream), OK);
        assert_eq!(ncclCommDestroy(comm), NCCL_OK);
    });
    assert_eq!(hipFree(pointer), OK);
}

fn begin(id: rccl::UniqueId, ranks: usize, rank: usize) -> CommHandle {
    let mut comm = NULL;
    assert_eq!(ncclCommInitRank(Some(&mut comm), ranks as c_int, id, rank as c_int), NCCL_OK);
    ready(comm)
}

fn end<const N: usize>(comm: CommHandle, stream: Stream, memory: [*mut c_void; N]) {
    assert_eq!(hipStreamSynchronize(stream), OK);
    assert_eq!(ncclCommDestroy(comm), NCCL_OK);
    memory.into_iter().for_each(|pointer| assert_eq!(hipFree(pointer), OK));
    assert_eq!(hipStreamDestroy(stream), OK);
}

#[test]
fn each_thread_has_a_current_device_which_is_device_0_at_first() {
    alone(|| {
        let current = || {
            let mut device = 9;
            assert_eq!(hipGetDevice(Some(&mut device)), OK);
            device
        };
        assert_eq!(current(), 0);
        assert_eq!(
            [hipSetDevice(2), hipSetDevice(4), hipSetDevice(-1)],
            [OK, Code::INVALID_DEVICE, Code::INVALID_DEVICE]
        );
        assert_eq!([hipGetLastError(), hipGetLastError()], [Code::INVALID_DEVICE, OK]);
        assert_eq!(thread::spawn(current).join().unwrap(), 0);
        assert_eq!(current(), 2);
        let mut device = 9;
        assert_eq!(
            (cuCtxGetDevice(Some(&mut device)).0, device),
            (0, 2),
            "the driver and the runtime have the same current device"
        );
        let mut context = NULL;
        assert_eq!(cuDevicePrimaryCtxRetain(Some(&mut context), 1).0, 0);
        assert_eq!(current(), 2);
    });
}

#[test]
fn devices_report_their_properties() {
    alone(|| {
        let mut name = [9_u8; 16];
        // SAFETY: the buffer has this many bytes.
        assert_eq!(unsafe { hipDeviceGetName(name.as_mut_ptr().cast(), 16, 0) }, OK);
        assert_eq!(name[..11], *b"GPU double\0");
        // SAFETY: the buffer has this many bytes.
        assert_eq!(unsafe { hipDeviceGetPCIBusId(name.as_mut_ptr().cast(), 16, 2) }, OK);
        assert_eq!(name[..13], *b"0000:03:00.0\0");
        // SAFETY: the length is 0, so nothing is written.
        assert_eq!(unsafe { hipDeviceGetName(name.as_mut_ptr().cast(), 0, 0) }, Code::INVALID_VALUE);
        let mut uuids = [Uuid { bytes: [0; 16] }; 2];
        for (device, uuid) in (0..).zip(&mut uuids) {
            assert_eq!(hipDeviceGetUuid(Some(uuid), device), OK);
        }
        assert_ne!(uuids[0], uuids[1]);
        let mut device = 9;
        assert_eq!((hipDeviceGet(Some(&mut device), 3), device), (OK, 3));
        assert_eq!(hipDeviceGet(Some(&mut device), 4), Code::INVALID_DEVICE);
    });
}

#[test]
fn codes_have_names_and_texts() {
    alone(|| {
        let texts = |code| (text(hipGetErrorName(code)), text(hipGetErrorString(code)));
        assert_eq!(texts(OK), ("hipSuccess", "no error"));
        assert_eq!(texts(Code::NO_DEVICE), ("hipErrorNoDevice", "no ROCm-capable device is detected"));
        assert_eq!(texts(Code::NOT_READY), ("hipErrorNotReady", "device not ready"));
        assert_eq!(texts(Code(12345)), ("hipErrorUnknown", "unknown error"));
    });
}

fn text(text: *const c_char) -> &'static str {
    // SAFETY: the text is static and ends with a NUL byte.
    unsafe { CStr::from_ptr(text) }.to_str().unwrap()
}

#[test]
fn copies_that_differ_from_their_kind_are_refused() {
    alone(|| {
        let stream = use_device(0);
        let (device, mut host) = (allocate(8), [0_u8; 8]);
        let host = host.as_mut_ptr().cast::<c_void>();
        for (to, from, kind) in [(device, host, 2), (host, device, 1), (device, host, 3), (host, host, 4)] {
            assert_eq!(copy(to, from, 4, CopyKind(kind), stream), Code::INVALID_VALUE, "{kind}");
        }
        assert_eq!(
            copy(device, host, 9, CopyKind::HOST_TO_DEVICE, stream),
            Code::INVALID_VALUE,
            "the range exceeds the allocation"
        );
        for kind in [0, 5] {
            assert_eq!(copy(device, host, 4, CopyKind(kind), stream), Code::INVALID_MEMCPY_DIRECTION);
        }
        assert_eq!(copy(NULL, NULL, 0, CopyKind::DEFAULT, stream), OK, "a copy of 0 bytes accepts null pointers");
        assert_eq!((allocate(0), pinned(0)), (NULL, NULL));
        assert_eq!(hipMemsetAsync(device, 0, 9, stream), Code::INVALID_VALUE);
        let mut pointer = NULL;
        assert_eq!(hipMalloc(Some(&mut pointer), 1 << 40), Code::OUT_OF_MEMORY);
        assert_eq!([hipFree(device), hipFree(device)], [OK, Code::INVALID_VALUE]);
        assert_eq!(hipStreamDestroy(stream), OK);
    });
}

/// Runs `body` on each rank with a communicator and a stream.
fn on_ranks(ranks: usize, body: impl Fn(usize, CommHandle, Stream) + Sync) {
    let (id, body) = (unique_id(), &body);
    thread::scope(|scope| {
        for rank in 0..ranks {
            scope.spawn(move || {
                let stream = use_device(rank as c_int);
                let comm = begin(id, ranks, rank);
                body(rank, comm, stream);
                end(comm, stream, []);
            });
        }
    });
}

#[test]
fn ranks_reduce_and_exchange_blocks() {
    alone(|| {
        on_ranks(2, |rank, comm, stream| {
            let (send, recv) = (upload(&[1.0 + rank as f32, 10.0], stream), allocate(8));
            assert_eq!(ncclAllReduce(send, recv, 2, DataType::F32, RedOp::SUM, comm, stream), NCCL_OK);
            assert_eq!(download(recv, 2, stream), [3.0, 20.0]);
            assert_eq!(ncclAllToAll(send, recv, 1, DataType::F32, comm, stream), NCCL_OK);
            let expected = if rank == 0 { [1.0, 2.0] } else { [10.0, 10.0] };
            assert_eq!(download(recv, 2, stream), expected);
            [send, recv].into_iter().for_each(|pointer| assert_eq!(hipFree(pointer), OK));
        });
    });
}

/// Number of elements from one rank to another, which may be 0.
fn count(from: usize, to: usize) -> usize {
    (2 * from + to) % 4
}

/// One of these elements.
fn element(from: usize, to: usize, i: usize) -> f32 {
    (100 * from + 10 * to + i) as f32
}

/// Offsets of parts with a gap of one element between them.
fn offsets(counts: [usize; 3]) -> [usize; 3] {
    [0, counts[0] + 1, counts[0] + counts[1] + 2]
}

#[test]
fn all_to_all_v_exchanges_parts_of_all_sizes() {
    alone(|| {
        const ROOM: usize = 16;
        on_ranks(3, |own, comm, stream| {
            let (send_counts, recv_counts) =
                ([0, 1, 2].map(|to| count(own, to)), [0, 1, 2].map(|from| count(from, own)));
            let (send_offsets, recv_offsets) = (offsets(send_counts), offsets(recv_counts));
            let (mut input, mut expected) = ([-1.0; ROOM], [-2.0; ROOM]);
            for peer in 0..3 {
                (0..send_counts[peer]).for_each(|i| input[send_offsets[peer] + i] = element(own, peer, i));
                (0..recv_counts[peer]).for_each(|i| expected[recv_offsets[peer] + i] = element(peer, own, i));
            }
            let (send, recv) = (upload(&input, stream), upload(&[-2.0; ROOM], stream));
            let all_to_all = |recv: *mut c_void, counts: *const usize| {
                let (sends, at) = (send_counts.as_ptr(), [send_offsets.as_ptr(), recv_offsets.as_ptr()]);
                // SAFETY: each array has three elements, one for each rank.
                unsafe { ncclAllToAllv(send, sends, at[0], recv, counts, at[1], DataType::F32, comm, stream) }
            };
            assert_eq!(all_to_all(recv, recv_counts.as_ptr()), NCCL_OK);
            assert_eq!(download(recv, ROOM, stream), expected);

            assert_eq!(hipMemsetAsync(recv, 0, 4 * ROOM, stream), OK);
            assert_eq!(ncclGroupStart(), NCCL_OK);
            assert_eq!(all_to_all(recv, recv_counts.as_ptr()), NCCL_OK, "in a group too");
            assert_eq!(ncclGroupEnd(), NCCL_OK);
            assert_eq!(download(recv, ROOM, stream), expected.map(|x| if x == -2.0 { 0.0 } else { x }));

            assert_eq!(all_to_all(recv, ptr::null()), rccl::Code::INVALID_ARGUMENT);
            assert_eq!(ncclGroupStart(), NCCL_OK);
            assert_eq!(
                all_to_all(recv, [ROOM + 1; 3].as_ptr()),
                rccl::Code::INVALID_ARGUMENT,
                "the part exceeds the allocation"
            );
            assert_eq!(ncclGroupEnd(), rccl::Code::INVALID_ARGUMENT, "one refused call fails the whole group");
            [send, recv].into_iter().for_each(|pointer| assert_eq!(hipFree(pointer), OK));
        });
    });
}
