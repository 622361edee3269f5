//! The memory of devices: reuse, limits, and file descriptors.

use crate::common::child::alone;
use std::collections::BTreeSet;
use std::fs;

use crate::common::member::{read, write};
use crate::common::{OK, allocate, enter, free, set, use_device};
use disco_gpu_double::cuda::abi::Code;
use disco_gpu_double::cuda::exports::context::cuDevicePrimaryCtxRelease_v2;
use disco_gpu_double::cuda::exports::memory::{cuMemAlloc_v2, cuMemsetD8Async};
use disco_gpu_double::cuda::exports::stream::{cuStreamDestroy_v2, cuStreamSynchronize};

#[test]
fn thousands_of_allocations_need_no_files() {
    alone(|| {
        enter(0);
        let files = || fs::read_dir("/proc/self/fd").unwrap().count();
        let before = files();
        let all: BTreeSet<_> = (0..5000).map(|i| allocate(1 + i % 1500)).collect();
        assert!(all.len() == 5000 && all.iter().all(|pointer| pointer.is_multiple_of(512)));
        // Other tests may open files meanwhile.
        assert!(files() < before + 20);
        let apart = all.iter().zip(all.iter().skip(1)).all(|(one, next)| next - one >= 1024);
        assert!(apart, "what each has is not the next one's");
        all.into_iter().for_each(free);
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
fn all_memory_of_a_device_can_be_allocated_repeatedly() {
    alone(|| {
        set(c"GPU_DOUBLE_MEMORY", c"268435456");
        enter(1);
        for bytes in [1 << 28, 1 << 27, (1 << 28) - 4096] {
            let pointer = allocate(bytes);
            assert_eq!(cuMemAlloc_v2(Some(&mut 0), (1 << 28) - bytes + 1), Code::OUT_OF_MEMORY);
            assert_eq!(read(pointer + bytes as u64 - 1, 1), [0xa5]);
            free(pointer);
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
        assert_eq!(cuStreamDestroy_v2(stream), OK);
    });
}
