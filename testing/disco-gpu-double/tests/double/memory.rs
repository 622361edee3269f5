//! Memory of devices: refused addresses, reuse, and errors of work on freed memory.

use std::collections::BTreeSet;

use crate::common::child::alone;
use crate::common::member::{read, write};
use crate::common::{OK, allocate, enter, free, set, use_device};
use disco_gpu_double::cuda::abi::Code;
use disco_gpu_double::cuda::exports::context::cuDevicePrimaryCtxRelease_v2;
use disco_gpu_double::cuda::exports::memory::{cuMemAlloc_v2, cuMemFree_v2, cuMemsetD8Async};
use disco_gpu_double::cuda::exports::stream::{cuStreamDestroy_v2, cuStreamQuery, cuStreamSynchronize};

#[test]
fn addresses_outside_of_allocations_are_refused() {
    alone(|| {
        let stream = use_device(0);
        let pointer = allocate(100);
        assert_eq!(cuMemsetD8Async(pointer, 0, 101, stream), Code::INVALID_VALUE);
        assert_eq!(cuMemsetD8Async(pointer + 100, 0, 1, stream), Code::INVALID_VALUE);
        assert_eq!(cuMemsetD8Async(pointer + 99, 0, 1, stream), OK);
        assert_eq!(cuMemFree_v2(pointer + 1), Code::INVALID_VALUE);
        free(pointer);
        assert_eq!(cuMemFree_v2(pointer), Code::INVALID_VALUE);
    });
}

#[test]
fn work_on_freed_memory_sets_a_sticky_error() {
    alone(|| {
        enter(2);
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
    });
}

#[test]
fn reused_memory_is_filled_again() {
    alone(|| {
        enter(0);
        for bytes in [8, 5000, 3 << 20] {
            let addresses: BTreeSet<_> = (0..10)
                .map(|_| {
                    let pointer = allocate(bytes);
                    assert!(read(pointer, bytes).iter().all(|&byte| byte == 0xa5));
                    write(pointer, &vec![7; bytes]);
                    free(pointer);
                    pointer
                })
                .collect();
            assert!(addresses.len() < 10, "some was given out again");
        }
    });
}

#[test]
fn memory_in_use_by_work_is_not_reused() {
    alone(|| {
        enter(2);
        let pointer = allocate(100);
        let stream = use_device(3);
        set(c"GPU_DOUBLE_DELAY_US", c"500000");
        assert_eq!(cuMemsetD8Async(pointer, 0, 100, stream), OK);
        free(pointer);
        enter(2);
        let others: Vec<_> = (0..10).map(|_| allocate(100)).collect();
        set(c"GPU_DOUBLE_DELAY_US", c"0");
        assert!(!others.contains(&pointer));
        enter(3);
        assert_eq!(cuStreamSynchronize(stream), Code::ILLEGAL_ADDRESS);
        while cuDevicePrimaryCtxRelease_v2(3) == OK {}
        enter(2);
        others.into_iter().for_each(free);
    });
}
