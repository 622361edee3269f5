//! HIP on a machine without a device, and then with devices.

use crate::common::child::alone;
use std::ptr;

use crate::common::{last_error, set, unique_id};
use disco_gpu_double::hip::abi::{Code, STREAM_NON_BLOCKING};
use disco_gpu_double::hip::exports::device::{
    hipDeviceGet, hipDeviceSynchronize, hipDriverGetVersion, hipGetDevice, hipGetDeviceCount, hipInit,
    hipRuntimeGetVersion, hipSetDevice,
};
use disco_gpu_double::hip::exports::memory::{hipFree, hipMalloc, hipMemsetAsync};
use disco_gpu_double::hip::exports::stream::{
    hipStreamCreateWithFlags, hipStreamDestroy, hipStreamQuery, hipStreamSynchronize,
};
use disco_gpu_double::hip::exports::text::hipGetLastError;
use disco_gpu_double::nccl;
use disco_gpu_double::nccl::exports::communicator::{ncclCommDestroy, ncclCommInitRank};

const OK: Code = Code::SUCCESS;

#[test]
fn functions_need_a_device_but_no_initialisation() {
    alone(|| {
        let mut number = 9;
        assert_eq!((hipRuntimeGetVersion(Some(&mut number)), number), (OK, 60_342_131));
        set(c"GPU_DOUBLE_HIP", c"50731921");
        assert_eq!((hipDriverGetVersion(Some(&mut number)), number), (OK, 50_731_921));
        assert_eq!(hipRuntimeGetVersion(None), Code::INVALID_VALUE);

        set(c"GPU_DOUBLE_INIT", c"100");
        without_a_device();
        let mut comm = ptr::null_mut();
        let code = ncclCommInitRank(Some(&mut comm), 1, unique_id(), 0);
        assert_eq!(code, nccl::abi::Code::UNHANDLED_CUDA_ERROR);
        assert!(last_error(ptr::null_mut()).ends_with("cuInit returned CUDA error 100"));
        set(c"GPU_DOUBLE_INIT", c"803");
        assert_eq!([hipInit(0), hipDeviceSynchronize()], [Code(803); 2]);

        set(c"GPU_DOUBLE_INIT", c"0");
        set(c"GPU_DOUBLE_DEVICES", c"3");
        assert_eq!((hipGetDevice(Some(&mut number)), number), (OK, 0), "without a word before");
        assert_eq!((hipGetDeviceCount(Some(&mut number)), number), (OK, 3));
        assert_eq!([hipInit(0), hipInit(1)], [OK, Code::INVALID_VALUE]);
        assert_eq!(ncclCommInitRank(Some(&mut comm), 1, unique_id(), 0), nccl::abi::Code::SUCCESS);
        assert_eq!(ncclCommDestroy(comm), nccl::abi::Code::SUCCESS);

        the_last_error_stays_until_it_is_read();
        set(c"GPU_DOUBLE_INIT", c"100");
        without_a_device();
    });
}

fn the_last_error_stays_until_it_is_read() {
    let (mut pointer, mut stream) = (ptr::null_mut(), ptr::null_mut());
    assert_eq!([hipSetDevice(1), hipMalloc(Some(&mut pointer), 8), hipSetDevice(2)], [OK; 3]);
    assert_eq!(hipStreamCreateWithFlags(Some(&mut stream), STREAM_NON_BLOCKING), OK);
    set(c"GPU_DOUBLE_DELAY_US", c"50000");
    assert_eq!([hipMemsetAsync(pointer, 0, 8, stream), hipFree(pointer)], [OK; 2]);
    let code = Code::ILLEGAL_ADDRESS;
    assert_eq!([hipStreamSynchronize(stream), hipMalloc(Some(&mut pointer), 8), hipStreamDestroy(stream)], [code; 3]);
    set(c"GPU_DOUBLE_DELAY_US", c"0");
    assert_eq!([hipSetDevice(1), hipDeviceSynchronize()], [OK; 2], "another device has none");
}

fn without_a_device() {
    let (mut number, mut pointer, mut stream) = (9, ptr::null_mut(), ptr::null_mut());
    assert_eq!(hipInit(0), Code::INVALID_DEVICE);
    assert_eq!((hipGetDeviceCount(Some(&mut number)), number), (Code::NO_DEVICE, 0));
    let codes = [
        hipGetDevice(Some(&mut number)),
        hipSetDevice(0),
        hipDeviceGet(Some(&mut number), 0),
        hipMalloc(Some(&mut pointer), 8),
        hipFree(ptr::null_mut()),
        hipStreamCreateWithFlags(Some(&mut stream), STREAM_NON_BLOCKING),
        hipStreamQuery(ptr::null_mut()),
        hipStreamDestroy(ptr::null_mut()),
        hipDeviceSynchronize(),
    ];
    assert_eq!(codes, [Code::NO_DEVICE; 9]);
    assert_eq!([hipGetLastError(), hipGetLastError()], [Code::NO_DEVICE, OK]);
}
