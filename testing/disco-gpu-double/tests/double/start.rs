//! Calls that are refused before `cuInit`, and before a thread has a context.

use crate::common::child::alone;
use std::ffi::CStr;
use std::ptr;

use crate::common::{OK, last_error, set, unique_id, use_device};
use disco_gpu_double::cuda::abi::Code;
use disco_gpu_double::cuda::exports::context::{cuCtxGetCurrent, cuCtxSetCurrent, cuDevicePrimaryCtxRelease_v2};
use disco_gpu_double::cuda::exports::device::{cuDeviceGet, cuDeviceGetCount, cuDriverGetVersion, cuInit};
use disco_gpu_double::cuda::exports::memory::cuMemAlloc_v2;
use disco_gpu_double::cuda::exports::stream::{cuStreamDestroy_v2, cuStreamQuery};
use disco_gpu_double::cuda::exports::text::{cuGetErrorName, cuGetErrorString};
use disco_gpu_double::nccl;
use disco_gpu_double::nccl::exports::communicator::ncclCommInitRank;

#[test]
fn functions_need_the_driver_and_a_context() {
    alone(|| {
        let mut number = 0;
        assert_eq!((cuDriverGetVersion(Some(&mut number)), number), (OK, 13000));
        assert_eq!(cuDeviceGetCount(Some(&mut number)), Code::NOT_INITIALIZED);
        assert_eq!(cuStreamQuery(ptr::null_mut()), Code::NOT_INITIALIZED);

        set(c"GPU_DOUBLE_INIT", c"100");
        assert_eq!(cuInit(0), Code(100));
        assert_eq!(text(Code(100), cuGetErrorName), "CUDA_ERROR_NO_DEVICE");
        assert_eq!(text(Code(803), cuGetErrorName), "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH");
        assert_eq!(text(Code(100), cuGetErrorString), "no CUDA-capable device is detected");
        let mut comm = ptr::null_mut();
        let code = ncclCommInitRank(Some(&mut comm), 1, unique_id(), 0);
        assert_eq!(code, nccl::abi::Code::UNHANDLED_CUDA_ERROR);
        assert!(last_error(ptr::null_mut()).ends_with("cuInit returned CUDA error 100"));

        set(c"GPU_DOUBLE_INIT", c"0");
        set(c"GPU_DOUBLE_DEVICES", c"3");
        assert_eq!(cuInit(0), OK);
        assert_eq!((cuDeviceGetCount(Some(&mut number)), number), (OK, 3));
        assert_eq!(cuDeviceGet(Some(&mut number), 3), Code::INVALID_DEVICE);

        let mut pointer = 0;
        assert_eq!(cuMemAlloc_v2(Some(&mut pointer), 8), Code::INVALID_CONTEXT);
        let stream = use_device(1);
        let mut context = ptr::null_mut();
        assert_eq!(cuCtxGetCurrent(Some(&mut context)), OK);
        assert_eq!(cuStreamQuery(stream), OK);
        assert_eq!(cuStreamDestroy_v2(stream), OK);
        assert_eq!(cuStreamQuery(stream), Code::INVALID_HANDLE);
        assert_eq!(cuDevicePrimaryCtxRelease_v2(1), OK);
        assert_eq!(cuDevicePrimaryCtxRelease_v2(1), Code::INVALID_CONTEXT);
        assert_eq!(cuMemAlloc_v2(Some(&mut pointer), 8), Code::INVALID_CONTEXT);
        assert_eq!(cuCtxSetCurrent(context), Code::INVALID_CONTEXT);
    });
}

fn text(code: Code, of: extern "C" fn(Code, Option<&mut *const std::ffi::c_char>) -> Code) -> String {
    let mut text = ptr::null();
    assert_eq!(of(code, Some(&mut text)), OK);
    // SAFETY: the text is static and ends with a NUL byte.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}
