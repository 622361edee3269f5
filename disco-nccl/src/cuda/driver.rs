//! The search for a usable CUDA driver. cudarc panics if the driver or one of its functions is missing, so each use of
//! cudarc comes after a successful [`get`].

#![allow(unsafe_code)]

use std::ffi::{CStr, c_char, c_int, c_uint};
use std::sync::OnceLock;

use disco_ccl::{GraphFunctions, PoolFunctions, TimingFunctions};
use disco_core::{Error, Unavailable};
use disco_dl::{Candidate, Library};

/// A usable driver.
#[derive(Clone, Debug)]
pub(crate) struct Driver {
    /// The newest CUDA version that the driver supports.
    pub(crate) version: Version,
    /// Missing functions of [`PEER_FUNCTIONS`], [`KERNEL_FUNCTIONS`] and [`DEFAULT_POOL_FUNCTIONS`].
    lacking: Vec<&'static CStr>,
    /// Functions for memory pools, or the first that the driver lacks.
    pub(crate) pools: Result<PoolFunctions, &'static CStr>,
    /// Functions for graphs, or the first that the driver lacks.
    pub(crate) graphs: Result<GraphFunctions, &'static CStr>,
    /// Functions for times of events, or the first that the driver lacks.
    pub(crate) timing: Result<TimingFunctions, &'static CStr>,
    get_error_string: Option<GetErrorString>,
}

/// A version of CUDA: 12080 is 12.8.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Version(c_int);

/// The oldest version that cudarc supports.
const MIN_VERSION: Version = Version(11040);

/// File names that cudarc tries, in cudarc's order.
const CANDIDATES: [&str; 2] = ["libcuda.so", "libcuda.so.1"];

/// Functions that cudarc or this crate calls on every device.
const REQUIRED_FUNCTIONS: [&CStr; 30] = [
    c"cuCtxGetCurrent",
    c"cuCtxSetCurrent",
    c"cuCtxSynchronize",
    c"cuDeviceGet",
    c"cuDeviceGetAttribute",
    c"cuDeviceGetCount",
    c"cuDeviceGetName",
    c"cuDeviceGetUuid",
    c"cuDevicePrimaryCtxRelease_v2",
    c"cuDevicePrimaryCtxRetain",
    c"cuDriverGetVersion",
    c"cuEventCreate",
    c"cuEventDestroy_v2",
    c"cuEventQuery",
    c"cuEventRecord",
    c"cuGetErrorName",
    c"cuGetErrorString",
    c"cuInit",
    c"cuMemAlloc_v2",
    c"cuMemFreeHost",
    c"cuMemHostAlloc",
    c"cuMemFree_v2",
    c"cuMemcpyDtoDAsync_v2",
    c"cuMemcpyDtoHAsync_v2",
    c"cuMemcpyHtoDAsync_v2",
    c"cuMemsetD8Async",
    c"cuStreamCreate",
    c"cuStreamDestroy_v2",
    c"cuStreamQuery",
    c"cuStreamWaitEvent",
];

/// Functions for memory that several devices access. Optional.
pub(crate) const PEER_FUNCTIONS: &[&CStr] = &[
    c"cuCtxEnablePeerAccess",
    c"cuCtxGetStreamPriorityRange",
    c"cuDeviceCanAccessPeer",
    c"cuIpcCloseMemHandle",
    c"cuIpcGetMemHandle",
    c"cuIpcOpenMemHandle_v2",
    c"cuStreamCreateWithPriority",
    c"cuStreamWaitValue32_v2",
    c"cuStreamWriteValue32_v2",
];

/// Functions for the all-reduce kernels. Optional.
pub(crate) const KERNEL_FUNCTIONS: &[&CStr] = &[
    c"cuLaunchKernel",
    c"cuModuleGetFunction",
    c"cuModuleLoadData",
    c"cuModuleUnload",
    c"cuOccupancyMaxActiveBlocksPerMultiprocessor",
];

/// Functions for the pool from which the program allocates. Optional.
pub(crate) const DEFAULT_POOL_FUNCTIONS: &[&CStr] =
    &[c"cuDeviceGetMemPool", c"cuMemPoolGetAttribute", c"cuMemPoolSetAccess", c"cuMemPoolSetAttribute"];

/// Functions for memory pools, in the order of [`PoolFunctions`]. Optional.
const POOL_FUNCTIONS: [&CStr; 8] = [
    c"cuMemPoolCreate",
    c"cuMemPoolDestroy",
    c"cuMemPoolSetAttribute",
    c"cuMemPoolGetAttribute",
    c"cuMemPoolSetAccess",
    c"cuMemPoolTrimTo",
    c"cuMemAllocFromPoolAsync",
    c"cuMemFreeAsync",
];

/// Functions for graphs, in the order of [`GraphFunctions`]. Optional.
const GRAPH_FUNCTIONS: [&CStr; 7] = [
    c"cuStreamBeginCapture_v2",
    c"cuStreamEndCapture",
    c"cuStreamIsCapturing",
    c"cuGraphInstantiateWithFlags",
    c"cuGraphLaunch",
    c"cuGraphExecDestroy",
    c"cuGraphDestroy",
];

/// Functions for times of events, in the order of [`TimingFunctions`]. Optional.
const TIMING_FUNCTIONS: [&CStr; 2] = [c"cuEventCreate", c"cuEventElapsedTime"];

/// `cuGetErrorString(CUresult, const char **text)`
type GetErrorString = unsafe extern "C" fn(c_int, *mut *const c_char) -> c_int;

/// The driver, which is searched for once in a process.
///
/// # Errors
/// No driver was found, the driver is too old, or it finds no device.
pub(crate) fn get() -> Result<&'static Driver, Unavailable> {
    static DRIVER: OnceLock<Result<Driver, Unavailable>> = OnceLock::new();
    let find = || disco_dl::find("the CUDA driver", CANDIDATES.map(Candidate::file), |library| inspect(&library));
    DRIVER.get_or_init(find).as_ref().map_err(Clone::clone)
}

/// Checks that the driver has these functions of [`PEER_FUNCTIONS`], [`KERNEL_FUNCTIONS`] or
/// [`DEFAULT_POOL_FUNCTIONS`].
///
/// # Errors
/// The names of the missing functions, or why there is no driver.
pub(crate) fn require(functions: &[&CStr]) -> Result<(), String> {
    let driver = get().map_err(|unavailable| unavailable.to_string())?;
    let missing: Vec<_> = functions.iter().copied().filter(|name| driver.lacking.contains(name)).collect();
    if missing.is_empty() { Ok(()) } else { Err(format!("the CUDA driver lacks {}", names(&missing))) }
}

fn inspect(library: &Library) -> Result<Driver, String> {
    let first = Library::open(&Candidate::file(CANDIDATES[0]));
    if first.is_ok_and(|first| first.address(c"cuInit") != library.address(c"cuInit")) {
        return Err(format!("cudarc would load {}, which is a different library", CANDIDATES[0]));
    }
    let lacking = |wanted: &[&'static CStr]| -> Vec<&'static CStr> {
        wanted.iter().copied().filter(|name| library.address(name).is_none()).collect()
    };
    let missing = lacking(&REQUIRED_FUNCTIONS);
    if !missing.is_empty() {
        return Err(format!("it lacks {}", names(&missing)));
    }
    // SAFETY: `cuDriverGetVersion` has had this signature in all versions.
    let get_version: Option<unsafe extern "C" fn(*mut c_int) -> c_int> =
        unsafe { library.function(c"cuDriverGetVersion") };
    let mut version = Version(0);
    // SAFETY: `version.0` is writable.
    let code = get_version.map(|get_version| unsafe { get_version(&mut version.0) });
    if code != Some(0) || version < MIN_VERSION {
        return Err(format!("its CUDA is {version}; {MIN_VERSION} or later is needed"));
    }
    // SAFETY: `cuInit` has had this signature in all versions.
    let init: Option<unsafe extern "C" fn(c_uint) -> c_int> = unsafe { library.function(c"cuInit") };
    // SAFETY: `cuInit` requires flags of 0.
    match init.map(|init| unsafe { init(0) }) {
        Some(0) => {
            // SAFETY: the names are those of the CUDA functions with the signatures of `PoolFunctions`.
            let pools = unsafe { PoolFunctions::resolve(library, &POOL_FUNCTIONS, check_code) };
            // SAFETY: the names are those of the CUDA functions with the signatures of `GraphFunctions`.
            let graphs = unsafe { GraphFunctions::resolve(library, &GRAPH_FUNCTIONS, check_code) };
            // SAFETY: the names are those of the CUDA functions with the signatures of `TimingFunctions`.
            let timing = unsafe { TimingFunctions::resolve(library, &TIMING_FUNCTIONS, check_code) };
            let get_error_string = resolve_error_string(library);
            let lacking = lacking(&[PEER_FUNCTIONS, KERNEL_FUNCTIONS, DEFAULT_POOL_FUNCTIONS].concat());
            Ok(Driver { version, lacking, pools, graphs, timing, get_error_string })
        }
        code => {
            let code = code.unwrap_or(-1);
            Err(format!("cuInit returned {code}: {}", error_text(resolve_error_string(library), code)))
        }
    }
}

fn names(functions: &[&CStr]) -> String {
    let names: Vec<_> = functions.iter().filter_map(|name| name.to_str().ok()).collect();
    names.join(", ")
}

/// Converts the return code of a driver function that is called without cudarc.
fn check_code(function: &'static CStr, code: c_int) -> disco_core::Result<()> {
    if code == 0 {
        return Ok(());
    }
    let message = error_text(get().ok().and_then(|driver| driver.get_error_string), code);
    let function = function.to_str().unwrap_or("a function of the driver");
    Err(Error::Library { backend: "cuda", function, code: code.into(), message })
}

fn resolve_error_string(library: &Library) -> Option<GetErrorString> {
    // SAFETY: `cuGetErrorString` has had this signature in all versions.
    unsafe { library.function(c"cuGetErrorString") }
}

/// The driver's description of a return code.
fn error_text(get_error_string: Option<GetErrorString>, code: c_int) -> String {
    let mut text = std::ptr::null();
    // SAFETY: the driver accepts any code, and `text` is writable.
    let result = get_error_string.map(|get| unsafe { get(code, &mut text) });
    match result {
        // SAFETY: the driver's texts are static and end with a NUL byte.
        Some(0) if !text.is_null() => unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned(),
        _ => "the driver does not describe this code".into(),
    }
}

disco_core::format_as!(Display for Version, |it| "{}.{}", it.0 / 1000, it.0 % 1000 / 10);
