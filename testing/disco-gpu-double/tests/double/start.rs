//! The first calls of a process: functions that need an initialised library, a device or a context.

#![allow(unsafe_code, reason = "C functions")]

use std::ptr;

use crate::common::child::alone;
use crate::common::{OK, last_error, set, unique_id, use_device};
use disco_gpu_double::cuda::abi::Code;
use disco_gpu_double::cuda::exports::context::{cuCtxGetCurrent, cuCtxSetCurrent, cuDevicePrimaryCtxRelease_v2};
use disco_gpu_double::cuda::exports::device::{cuDeviceGet, cuDeviceGetCount, cuInit};
use disco_gpu_double::cuda::exports::memory::cuMemAlloc_v2;
use disco_gpu_double::cuda::exports::stream::{cuStreamDestroy_v2, cuStreamQuery};
use disco_gpu_double::hip;
use disco_gpu_double::hip::exports::device::{hipGetDevice, hipGetDeviceCount, hipSetDevice};
use disco_gpu_double::hip::exports::memory::{hipFree, hipMalloc};
use disco_gpu_double::hip::exports::stream::{hipStreamDestroy, hipStreamQuery};
use disco_gpu_double::hip::exports::text::hipGetLastError;
use disco_gpu_double::nccl;
use disco_gpu_double::nccl::exports::communicator::ncclCommInitRank;

/// A communicator is refused on a machine without a device.
fn check_no_communicator() {
    let mut comm = ptr::null_mut();
    let code = ncclCommInitRank(Some(&mut comm), 1, unique_id(), 0);
    assert_eq!(code, nccl::abi::Code::UNHANDLED_CUDA_ERROR);
    assert!(last_error(ptr::null_mut()).ends_with("cuInit returned CUDA error 100"));
}

#[test]
fn functions_need_the_driver_and_a_context() {
    alone(|| {
        let mut number = 0;
        assert_eq!(cuDeviceGetCount(Some(&mut number)), Code::NOT_INITIALIZED);
        assert_eq!(cuStreamQuery(ptr::null_mut()), Code::NOT_INITIALIZED);
        set(c"GPU_DOUBLE_INIT", c"100");
        assert_eq!(cuInit(0), Code(100));
        check_no_communicator();

        set(c"GPU_DOUBLE_INIT", c"0");
        set(c"GPU_DOUBLE_DEVICES", c"3");
        assert_eq!(cuInit(0), OK);
        assert_eq!((cuDeviceGetCount(Some(&mut number)), number), (OK, 3));
        assert_eq!(cuDeviceGet(Some(&mut number), 3), Code::INVALID_DEVICE);

        let mut pointer = 0;
        assert_eq!(cuMemAlloc_v2(Some(&mut pointer), 8), Code::INVALID_CONTEXT);
        let stream = use_device(1);
        let mut context = ptr::null_mut();
        assert_eq!([cuCtxGetCurrent(Some(&mut context)), cuStreamQuery(stream)], [OK; 2]);
        assert_eq!([cuStreamDestroy_v2(stream), cuStreamQuery(stream)], [OK, Code::INVALID_HANDLE]);
        assert_eq!([(); 2].map(|()| cuDevicePrimaryCtxRelease_v2(1)), [OK, Code::INVALID_CONTEXT]);
        assert_eq!(cuMemAlloc_v2(Some(&mut pointer), 8), Code::INVALID_CONTEXT);
        assert_eq!(cuCtxSetCurrent(context), Code::INVALID_CONTEXT);
    });
}

#[test]
fn functions_of_hip_need_a_device_but_no_initialisation() {
    use hip::abi::Code;
    const OK: Code = Code::SUCCESS;
    alone(|| {
        let (mut number, mut pointer) = (9, ptr::null_mut());
        set(c"GPU_DOUBLE_INIT", c"100");
        assert_eq!((hipGetDeviceCount(Some(&mut number)), number), (Code::NO_DEVICE, 0));
        let codes = [
            hipGetDevice(Some(&mut number)),
            hipSetDevice(0),
            hipMalloc(Some(&mut pointer), 8),
            hipFree(ptr::null_mut()),
            hipStreamQuery(ptr::null_mut()),
            hipStreamDestroy(ptr::null_mut()),
        ];
        assert_eq!(codes, [Code::NO_DEVICE; 6]);
        assert_eq!([hipGetLastError(), hipGetLastError()], [Code::NO_DEVICE, OK]);
        check_no_communicator();

        set(c"GPU_DOUBLE_INIT", c"0");
        set(c"GPU_DOUBLE_DEVICES", c"3");
        assert_eq!((hipGetDevice(Some(&mut number)), number), (OK, 0), "device 0 is current without hipSetDevice");
        assert_eq!((hipGetDeviceCount(Some(&mut number)), number), (OK, 3));
    });
}
