//! Whether there is a driver that will do. Without one, or without a function of it that is called, cudarc panics: so it is not asked
//! before this is.

#![allow(unsafe_code)]

use std::ffi::{CStr, c_char, c_int, c_uint};
use std::fmt;
use std::sync::OnceLock;

use disco_ccl::{GraphFunctions, PoolFunctions};
use disco_core::{Error, Unavailable};
use disco_dl::{Candidate, Library};

/// A driver that works.
#[derive(Clone, Debug)]
pub(crate) struct Driver {
    /// The newest CUDA that it has.
    pub(crate) version: Version,
    /// Functions that only some are called for, and that it has not.
    lacking: Vec<&'static CStr>,
    /// Those for pools of memory, or the first that it lacks.
    pub(crate) pools: Result<PoolFunctions, &'static CStr>,
    /// The functions for graphs, or the first that the driver lacks.
    pub(crate) graphs: Result<GraphFunctions, &'static CStr>,
    get_error_string: Option<GetErrorString>,
}

/// A version of CUDA: 12080 is 12.8.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Version(c_int);

/// The oldest that cudarc knows.
const MIN_VERSION: Version = Version(11040);

/// Names that cudarc looks for, in its order.
const CANDIDATES: [&str; 2] = ["libcuda.so", "libcuda.so.1"];

/// What is called through cudarc, by it or by us.
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

/// What is called besides, for memory that several devices have.
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

/// What is called besides, for kernels.
pub(crate) const KERNEL_FUNCTIONS: &[&CStr] = &[
    c"cuLaunchKernel",
    c"cuModuleGetFunction",
    c"cuModuleLoadData",
    c"cuModuleUnload",
    c"cuOccupancyMaxActiveBlocksPerMultiprocessor",
];

/// Those for pools of memory.
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

/// The functions for graphs.
const GRAPH_FUNCTIONS: [&CStr; 7] = [
    c"cuStreamBeginCapture_v2",
    c"cuStreamEndCapture",
    c"cuStreamIsCapturing",
    c"cuGraphInstantiateWithFlags",
    c"cuGraphLaunch",
    c"cuGraphExecDestroy",
    c"cuGraphDestroy",
];

/// `cuGetErrorString(CUresult, const char **text)`
type GetErrorString = unsafe extern "C" fn(c_int, *mut *const c_char) -> c_int;

/// The driver.
///
/// # Errors
/// There is none, it is too old, or it finds no device.
pub(crate) fn get() -> Result<&'static Driver, Unavailable> {
    static DRIVER: OnceLock<Result<Driver, Unavailable>> = OnceLock::new();
    let find = || disco_dl::find("the CUDA driver", CANDIDATES.map(Candidate::file), |library| inspect(&library));
    DRIVER.get_or_init(find).as_ref().map_err(Clone::clone)
}

/// That the driver has functions which not all that it does needs.
///
/// # Errors
/// Which it lacks; there is none.
pub(crate) fn require(functions: &[&CStr]) -> Result<(), String> {
    let driver = get().map_err(|unavailable| unavailable.to_string())?;
    let missing: Vec<_> = functions.iter().copied().filter(|name| driver.lacking.contains(name)).collect();
    if missing.is_empty() { Ok(()) } else { Err(format!("the CUDA driver lacks {}", names(&missing))) }
}

fn inspect(library: &Library) -> Result<Driver, String> {
    let first = Library::open(&Candidate::file(CANDIDATES[0]));
    if first.is_ok_and(|first| first.address(c"cuInit") != library.address(c"cuInit")) {
        return Err(format!("cudarc would take {}, which is another", CANDIDATES[0]));
    }
    let lacking = |wanted: &[&'static CStr]| -> Vec<&'static CStr> {
        wanted.iter().copied().filter(|name| library.address(name).is_none()).collect()
    };
    let missing = lacking(&REQUIRED_FUNCTIONS);
    if !missing.is_empty() {
        return Err(format!("it lacks {}", names(&missing)));
    }
    // SAFETY: these functions have been the same in all versions.
    let get_version: Option<unsafe extern "C" fn(*mut c_int) -> c_int> =
        unsafe { library.function(c"cuDriverGetVersion") };
    let mut version = Version(0);
    // SAFETY: the number is there.
    let code = get_version.map(|get_version| unsafe { get_version(&mut version.0) });
    if code != Some(0) || version < MIN_VERSION {
        return Err(format!("its CUDA is {version}; {MIN_VERSION} or later is needed"));
    }
    // SAFETY: as above.
    let init: Option<unsafe extern "C" fn(c_uint) -> c_int> = unsafe { library.function(c"cuInit") };
    // SAFETY: 0 is the one flag that it takes.
    match init.map(|init| unsafe { init(0) }) {
        Some(0) => {
            // SAFETY: these are the driver's functions.
            let pools = unsafe { PoolFunctions::resolve(library, &POOL_FUNCTIONS, check_code) };
            // SAFETY: as above.
            let graphs = unsafe { GraphFunctions::resolve(library, &GRAPH_FUNCTIONS, check_code) };
            let get_error_string = resolve_error_string(library);
            let lacking = lacking(&[PEER_FUNCTIONS, KERNEL_FUNCTIONS].concat());
            Ok(Driver { version, lacking, pools, graphs, get_error_string })
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

/// What a function that is called without cudarc has returned.
fn check_code(function: &'static CStr, code: c_int) -> disco_core::Result<()> {
    if code == 0 {
        return Ok(());
    }
    let message = error_text(get().ok().and_then(|driver| driver.get_error_string), code);
    let function = function.to_str().unwrap_or("a function of the driver's");
    Err(Error::Library { backend: "cuda", function, code: code.into(), message })
}

fn resolve_error_string(library: &Library) -> Option<GetErrorString> {
    // SAFETY: this function has been the same in all versions.
    unsafe { library.function(c"cuGetErrorString") }
}

/// What a code means, in the driver's words.
fn error_text(get_error_string: Option<GetErrorString>, code: c_int) -> String {
    let mut text = std::ptr::null();
    // SAFETY: any number may be asked for, and the place is there.
    let told = get_error_string.map(|get| unsafe { get(code, &mut text) });
    match told {
        // SAFETY: the driver's texts end with a zero, and stay.
        Some(0) if !text.is_null() => unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned(),
        _ => "the driver has no words for it".into(),
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.0 / 1000, self.0 % 1000 / 10)
    }
}
