//! Injected faults of functions for memory of other processes, for peer access, and for kernels.

use crate::common::child::alone;
use std::ptr;

use crate::common::member::{Member, function};
use crate::common::{OK, allocate, enter, free, use_device, with_faults};
use disco_gpu_double::cuda::abi::{Code as CudaCode, IpcHandle};
use disco_gpu_double::cuda::exports::context::cuDevicePrimaryCtxRetain;
use disco_gpu_double::cuda::exports::ipc::{cuIpcCloseMemHandle, cuIpcGetMemHandle, cuIpcOpenMemHandle_v2};
use disco_gpu_double::cuda::exports::module::{
    cuModuleLoadData, cuModuleUnload, cuOccupancyMaxActiveBlocksPerMultiprocessor,
};
use disco_gpu_double::cuda::exports::peer::{cuCtxDisablePeerAccess, cuCtxEnablePeerAccess, cuDeviceCanAccessPeer};
use disco_gpu_double::cuda::exports::stream::cuStreamQuery;
use disco_gpu_double::cuda::exports::word::{cuStreamWaitValue32_v2, cuStreamWriteValue32_v2};
use disco_gpu_double::hip::abi::Code as HipCode;
use disco_gpu_double::hip::exports::device::hipSetDevice;
use disco_gpu_double::hip::exports::ipc::{hipIpcCloseMemHandle, hipIpcGetMemHandle, hipIpcOpenMemHandle};
use disco_gpu_double::hip::exports::peer::{
    hipDeviceCanAccessPeer, hipDeviceDisablePeerAccess, hipDeviceEnablePeerAccess,
};
use disco_gpu_double::hip::exports::text::hipGetLastError;
use disco_gpu_double::hip::exports::word::{hipStreamWaitValue32, hipStreamWriteValue32};

/// Each call fails once, without effect.
#[test]
fn faults_fail_functions_of_shared_memory() {
    alone(|| {
        let rules = c"cuIpcGetMemHandle:0:1=11,cuIpcOpenMemHandle_v2:0:1=12,cuIpcCloseMemHandle:0:1=13,\
            cuDeviceCanAccessPeer:0:1=14,cuCtxEnablePeerAccess:0:1=15,cuCtxDisablePeerAccess:0:1=16,\
            cuStreamWriteValue32_v2:0:1=17,cuStreamWaitValue32_v2:0:1=18";
        with_faults(rules, || {
            let (stream, pointer) = (use_device(0), allocate(8));
            let mut handle = IpcHandle { reserved: [1; 64] };
            assert_eq!(cuIpcGetMemHandle(Some(&mut handle), pointer), CudaCode(11));
            assert_eq!(handle.reserved, [1; 64]);
            assert_eq!(cuIpcOpenMemHandle_v2(Some(&mut 0), handle, 1), CudaCode(12));
            assert_eq!([cuIpcCloseMemHandle(pointer), cuIpcCloseMemHandle(pointer)], [CudaCode(13), CudaCode(1)]);
            assert_eq!(cuDeviceCanAccessPeer(Some(&mut 0), 0, 1), CudaCode(14));
            let mut peer = ptr::null_mut();
            assert_eq!(cuDevicePrimaryCtxRetain(Some(&mut peer), 1), OK);
            assert_eq!([cuCtxEnablePeerAccess(peer, 0), cuCtxEnablePeerAccess(peer, 0)], [CudaCode(15), OK]);
            assert_eq!([cuCtxDisablePeerAccess(peer), cuCtxDisablePeerAccess(peer)], [CudaCode(16), OK]);
            assert_eq!(cuStreamWriteValue32_v2(stream, pointer, 0, 0), CudaCode(17));
            assert_eq!(cuStreamWaitValue32_v2(stream, pointer, 0, 1), CudaCode(18));
            assert_eq!(cuStreamQuery(stream), OK);
            free(pointer);
        });
    });
}

#[test]
fn faults_fail_functions_of_modules() {
    alone(|| {
        let rules = c"cuModuleLoadData:0:1=11,cuModuleGetFunction:0:1=12,cuModuleUnload:0:1=13,cuLaunchKernel:0:1=14,\
            cuOccupancyMaxActiveBlocksPerMultiprocessor:0:1=15";
        with_faults(rules, || {
            enter(0);
            let mut none = ptr::null_mut();
            // SAFETY: the image has four bytes.
            assert_eq!(unsafe { cuModuleLoadData(Some(&mut none), c"\x7fELF".as_ptr().cast()) }, CudaCode(11));
            let member = Member::new(0, 1, 1);
            let module = member.module;
            assert_eq!(function(module, c"disco_barrier").unwrap_err(), CudaCode(12));
            let barrier = function(module, c"disco_barrier").unwrap();
            assert_eq!(member.launch(c"disco_barrier", 1, 32), CudaCode(14));
            assert_eq!((member.launch(c"disco_barrier", 1, 32), member.synchronize()), (OK, OK));
            let occupancy = || cuOccupancyMaxActiveBlocksPerMultiprocessor(Some(&mut 0), barrier, 32, 0);
            assert_eq!([occupancy(), occupancy()], [CudaCode(15), OK]);
            assert_eq!(cuModuleUnload(module), CudaCode(13));
            member.end();
        });
    });
}

#[test]
fn faults_fail_functions_of_hip_for_shared_memory() {
    alone(|| {
        let rules = c"hipIpcGetMemHandle:1:1=11,hipIpcOpenMemHandle:1:1=12,hipIpcCloseMemHandle:1:1=13,\
            hipDeviceCanAccessPeer:1:1=14,hipDeviceEnablePeerAccess:1:1=15,hipDeviceDisablePeerAccess:1:1=16,\
            hipStreamWriteValue32:1:1=17,hipStreamWaitValue32:1:1=18";
        with_faults(rules, || {
            assert_eq!(hipSetDevice(1), HipCode(0));
            let (mut handle, mut pointer) = (IpcHandle { reserved: [1; 64] }, ptr::null_mut());
            assert_eq!(hipIpcGetMemHandle(Some(&mut handle), pointer), HipCode(11));
            assert_eq!(hipIpcOpenMemHandle(Some(&mut pointer), handle, 1), HipCode(12));
            assert_eq!(hipIpcCloseMemHandle(pointer), HipCode(13));
            assert_eq!(hipDeviceCanAccessPeer(Some(&mut 0), 1, 0), HipCode(14));
            assert_eq!([hipDeviceEnablePeerAccess(0, 0), hipDeviceDisablePeerAccess(0)], [HipCode(15), HipCode(16)]);
            assert_eq!(hipStreamWriteValue32(ptr::null_mut(), pointer, 0, 0), HipCode(17));
            assert_eq!(hipStreamWaitValue32(ptr::null_mut(), pointer, 0, 0, 0), HipCode(18));
            assert_eq!(hipGetLastError(), HipCode(18));
        });
    });
}
