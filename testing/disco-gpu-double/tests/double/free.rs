//! Frees that wait for work of devices, and frees of pools, which do not.

#![allow(unsafe_code, reason = "C functions")]

use std::ptr;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use crate::common::child::alone;
use crate::common::{OK, allocate, enable_access, enter, free, set, use_device};
use disco_gpu_double::cuda::abi::{Access, Code, IpcHandle, Location, Pool, PoolProps, Stream};
use disco_gpu_double::cuda::exports::copy::cuMemcpyDtoDAsync_v2;
use disco_gpu_double::cuda::exports::ipc::cuIpcGetMemHandle;
use disco_gpu_double::cuda::exports::memory::{cuMemFreeHost, cuMemHostAlloc, cuMemsetD8Async};
use disco_gpu_double::cuda::exports::pool::{
    cuMemAllocFromPoolAsync, cuMemFreeAsync, cuMemPoolCreate, cuMemPoolDestroy, cuMemPoolSetAccess,
};
use disco_gpu_double::cuda::exports::stream::{cuStreamQuery, cuStreamSynchronize};
use disco_gpu_double::cuda::exports::word::{cuStreamWaitValue32_v2, cuStreamWriteValue32_v2};

const PROPS: PoolProps = PoolProps {
    kind: 1,
    handles: 0,
    location: Location { kind: 1, id: 0 },
    security: ptr::null_mut(),
    most: 0,
    reserved: [0; 56],
};

fn pool(device: i32) -> Pool {
    let (mut pool, location) = (ptr::null_mut(), Location { kind: 1, id: device });
    assert_eq!(cuMemPoolCreate(Some(&mut pool), Some(&PoolProps { location, ..PROPS })), OK);
    pool
}

fn take(pool: Pool, bytes: usize, stream: Stream) -> u64 {
    let mut pointer = 0;
    assert_eq!(cuMemAllocFromPoolAsync(Some(&mut pointer), bytes, pool, stream), OK);
    pointer
}

/// A limit for work that does not wait for the peer.
const LONG: Duration = Duration::from_secs(10);
/// A time in which work that waits for the peer does not return.
const SHORT: Duration = Duration::from_millis(100);

/// Runs `work` while a peer's stream waits for at most `limit`; returns whether `work` returned before the end of the wait.
fn returns_while_a_peer_waits(limit: Duration, work: impl FnOnce()) -> bool {
    let (tell, has_returned) = mpsc::channel();
    let peer = use_device(1);
    let word = allocate(4);
    assert_eq!(cuMemsetD8Async(word, 0, 4, peer), OK);
    // Else it may come after the end of the wait, and the wait would not end.
    assert_eq!(cuStreamSynchronize(peer), OK);
    assert_eq!(cuStreamWaitValue32_v2(peer, word, 1, 0), OK);
    let address = peer.addr();
    let ender = thread::spawn(move || {
        let is_early = has_returned.recv_timeout(limit).is_ok();
        let other = use_device(1);
        assert_eq!(cuStreamWriteValue32_v2(other, word, 1, 0), OK);
        assert_eq!(cuStreamSynchronize(ptr::without_provenance_mut(address)), OK);
        is_early
    });
    enter(0);
    work();
    // Fails if the peer has not waited that long.
    _ = tell.send(());
    ender.join().unwrap()
}

#[test]
fn plain_frees_wait_for_peers_and_pool_frees_do_not() {
    alone(|| {
        let stream = use_device(0);
        set(c"GPU_DOUBLE_PEER_FREES", c"1");
        let pinned = || {
            let mut pinned = ptr::null_mut();
            assert_eq!(cuMemHostAlloc(Some(&mut pinned), 8, 0), OK);
            pinned
        };
        let (first, second, host, other_host) = (allocate(8), allocate(8), pinned(), pinned());
        assert!(returns_while_a_peer_waits(LONG, || free(first)), "devices without access are no peers");
        enter(0);
        enable_access(1);
        assert!(!returns_while_a_peer_waits(SHORT, || free(second)));
        assert!(!returns_while_a_peer_waits(SHORT, || assert_eq!(cuMemFreeHost(host), OK)));
        enter(0);
        assert_eq!(cuMemFreeHost(other_host), OK);
        let pool = pool(0);
        assert!(returns_while_a_peer_waits(LONG, || {
            let pointer = take(pool, 1 << 20, stream);
            assert_eq!([cuMemFreeAsync(pointer, stream), cuStreamSynchronize(stream), cuMemPoolDestroy(pool)], [OK; 3]);
        }));
    });
}

#[test]
fn pool_memory_is_freed_when_the_stream_reaches_the_free() {
    alone(|| {
        let (stream, pool) = (use_device(3), pool(3));
        let (pointer, to) = (take(pool, 8, stream), allocate(8));
        assert_eq!(cuIpcGetMemHandle(Some(&mut IpcHandle { reserved: [0; 64] }), pointer), Code::INVALID_VALUE);
        assert_eq!([cuMemcpyDtoDAsync_v2(to, pointer, 8, stream), cuMemFreeAsync(pointer, stream)], [OK; 2]);
        assert_eq!(cuMemFreeAsync(pointer, stream), Code::INVALID_VALUE, "it was freed");
        assert_eq!(cuMemFreeAsync(to, stream), Code::INVALID_VALUE, "the memory does not belong to a pool");
        assert_eq!([cuStreamSynchronize(stream), cuStreamQuery(stream)], [OK; 2]);
        assert_eq!(cuMemcpyDtoDAsync_v2(to, pointer, 8, stream), Code::INVALID_VALUE);
        let access = Access { location: Location { kind: 1, id: 3 }, flags: 3 };
        // SAFETY: the array has one element.
        let code = unsafe { cuMemPoolSetAccess(pool, &raw const access, 1) };
        assert_eq!(code, Code::INVALID_VALUE, "no device is its own peer");
    });
}
