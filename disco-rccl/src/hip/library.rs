//! The search for HIP, its version, and the texts of its errors.

#![allow(unsafe_code)]

use std::ffi::{CStr, c_char, c_int};
use std::fmt;
use std::sync::OnceLock;

use disco_ccl::{GraphFunctions, PoolFunctions, TimingFunctions};
use disco_core::{Error, Result, Unavailable};
use disco_dl::Candidate;

use super::table::Table;

/// The functions of HIP.
#[derive(Clone, Copy)]
pub(super) struct Library {
    pub(super) table: Table,
    /// Functions for memory pools, or the first that the library lacks.
    pub(super) pools: Result<PoolFunctions, &'static CStr>,
    /// Functions for graphs, or the first that the library lacks.
    pub(super) graphs: Result<GraphFunctions, &'static CStr>,
    /// Functions for times of events, or the first that the library lacks.
    pub(super) timing: Result<TimingFunctions, &'static CStr>,
    version: c_int,
}

/// File names and paths that are tried, the newest version first.
const CANDIDATES: [&str; 5] =
    ["libamdhip64.so.7", "libamdhip64.so.6", "libamdhip64.so.5", "libamdhip64.so", "/opt/rocm/lib/libamdhip64.so"];

/// Functions for memory pools, in the order of [`PoolFunctions`]. HIP has them since 5.2.
const POOL_FUNCTIONS: [&CStr; 8] = [
    c"hipMemPoolCreate",
    c"hipMemPoolDestroy",
    c"hipMemPoolSetAttribute",
    c"hipMemPoolGetAttribute",
    c"hipMemPoolSetAccess",
    c"hipMemPoolTrimTo",
    c"hipMallocFromPoolAsync",
    c"hipFreeAsync",
];

/// Functions for graphs, in the order of [`GraphFunctions`]. HIP has them since 5.3.
const GRAPH_FUNCTIONS: [&CStr; 7] = [
    c"hipStreamBeginCapture",
    c"hipStreamEndCapture",
    c"hipStreamIsCapturing",
    c"hipGraphInstantiateWithFlags",
    c"hipGraphLaunch",
    c"hipGraphExecDestroy",
    c"hipGraphDestroy",
];

/// Functions for times of events, in the order of [`TimingFunctions`].
const TIMING_FUNCTIONS: [&CStr; 2] = [c"hipEventCreateWithFlags", c"hipEventElapsedTime"];

fn check_code(function: &'static CStr, code: c_int) -> Result<()> {
    Library::get()?.check(function.to_str().unwrap_or("a function of HIP"), code)
}

impl Library {
    /// HIP, which is searched for once in a process.
    ///
    /// # Errors
    /// Each path that was tried, with the reason of its failure.
    pub(super) fn get() -> Result<&'static Self, Unavailable> {
        static LIBRARY: OnceLock<Result<Library, Unavailable>> = OnceLock::new();
        let find = || disco_dl::find("HIP", CANDIDATES.map(Candidate::file), |library| Self::accept(&library));
        LIBRARY.get_or_init(find).as_ref().map_err(Clone::clone)
    }

    fn accept(library: &disco_dl::Library) -> Result<Self, String> {
        // SAFETY: the signatures of `Table` are those of HIP's header.
        let table = unsafe { Table::resolve(library) }?;
        // SAFETY: the names are those of the HIP functions with the signatures of `PoolFunctions`.
        let pools = unsafe { PoolFunctions::resolve(library, &POOL_FUNCTIONS, check_code) };
        // SAFETY: the names are those of the HIP functions with the signatures of `GraphFunctions`.
        let graphs = unsafe { GraphFunctions::resolve(library, &GRAPH_FUNCTIONS, check_code) };
        // SAFETY: the names are those of the HIP functions with the signatures of `TimingFunctions`.
        let timing = unsafe { TimingFunctions::resolve(library, &TIMING_FUNCTIONS, check_code) };
        let mut found = Self { table, pools, graphs, timing, version: 0 };
        // SAFETY: `found.version` is writable.
        let code = unsafe { (found.table.runtime_get_version)(&mut found.version) };
        found.check("hipRuntimeGetVersion", code).map_err(|error| error.to_string())?;
        Ok(found)
    }

    /// Checks the return code of a function.
    ///
    /// # Errors
    /// [`Error::Library`] with the library's description, for any code but success.
    pub(super) fn check(&self, function: &'static str, code: c_int) -> Result<()> {
        if code == 0 { Ok(()) } else { Err(self.error(function, code)) }
    }

    /// Calls a function that returns a text about a device.
    pub(super) fn text_of_device(
        &self,
        function: &'static str,
        ask: unsafe extern "C" fn(*mut c_char, c_int, c_int) -> c_int,
        device: c_int,
    ) -> Result<String> {
        let mut text = [0; 256];
        // SAFETY: `text` has room for `text.len()` bytes.
        let code = unsafe { ask(text.as_mut_ptr(), text.len() as c_int, device) };
        self.check(function, code)?;
        let text = text.map(c_char::cast_unsigned);
        Ok(CStr::from_bytes_until_nul(&text).unwrap_or_default().to_string_lossy().into_owned())
    }

    #[cold]
    fn error(&self, function: &'static str, code: c_int) -> Error {
        // SAFETY: HIP accepts any code.
        let text = unsafe { (self.table.get_error_string)(code) };
        let message = if text.is_null() {
            "HIP does not describe this code".into()
        } else {
            // SAFETY: HIP's texts are static and end with a NUL byte.
            unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
        };
        Error::Library { backend: "hip", function, code: code.into(), message }
    }
}

/// HIP's version: 60342131 is 6.3.42131.
impl fmt::Display for Library {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let number = self.version;
        write!(f, "HIP {}.{}.{}", number / 10_000_000, number / 100_000 % 100, number % 100_000)
    }
}
