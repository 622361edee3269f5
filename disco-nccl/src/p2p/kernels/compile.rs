//! The source, and machine code of it for a device's architecture.
//!
//! Compiling takes a second or two, once a process and architecture; what comes of it is kept in memory only. A cache
//! on disk would be code that the process runs from a file that others may be able to write, for that second.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, OnceLock};

use disco_core::env::Variable;
use disco_core::sync;
use disco_core::{Error, Result, Unavailable};
use disco_dl::Candidate;

use super::nvrtc::{Compiled, Nvrtc, Source};

/// What a device understands: its compute capability.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Architecture {
    major: u32,
    minor: u32,
}

impl Architecture {
    /// From a device's `COMPUTE_CAPABILITY_MAJOR` and `_MINOR`.
    pub const fn new(major: u32, minor: u32) -> Self {
        Self { major, minor }
    }
}

/// The first whose memory has the order that flags are published and observed in.
const MIN_ARCHITECTURE: Architecture = Architecture::new(7, 0);

const KERNEL_SOURCE: Source<'_> = ("all_reduce.cu", include_str!("all_reduce.cu"));
const HEADERS: [Source<'_>; 2] =
    [("handshake.cuh", include_str!("handshake.cuh")), ("machine.cuh", include_str!("machine.cuh"))];

/// A file in place of the search.
const LIBRARY_VARIABLE: &str = "DISCO_NVRTC_LIBRARY";
const CANDIDATES: [&str; 5] = [
    "libnvrtc.so.12",
    "libnvrtc.so.13",
    "libnvrtc.so",
    "/usr/local/cuda/lib64/libnvrtc.so",
    "/opt/cuda/lib64/libnvrtc.so",
];
/// Where it is in Python's folders of packages.
const WHEEL_PATHS: [&str; 2] = ["nvidia/cuda_nvrtc/lib/libnvrtc.so.12", "nvidia/cu13/lib/libnvrtc.so.13"];

/// All kernels for an architecture. Threads that ask at once wait for the one that compiles.
///
/// # Errors
/// [`Error::Unavailable`] where there is no NVRTC, which is looked for once; otherwise as [`compile`], which is tried
/// again by who asks again.
pub fn cubin(architecture: Architecture) -> Result<Arc<[u8]>> {
    static COMPILED: Mutex<BTreeMap<Architecture, Arc<[u8]>>> = Mutex::new(BTreeMap::new());
    let nvrtc = nvrtc()?;
    // What is in it is whole, whoever panicked.
    let mut compiled = sync::lock(&COMPILED);
    if let Some(cubin) = compiled.get(&architecture) {
        return Ok(cubin.clone());
    }
    let cubin: Arc<[u8]> = compile(nvrtc, architecture, &[])?.cubin.into();
    compiled.insert(architecture, cubin.clone());
    Ok(cubin)
}

/// Compiles all kernels, with options of NVRTC's beside ours.
///
/// # Errors
/// [`Error::Unsupported`] for an architecture that is too old; [`Error::Library`] with NVRTC's log, as where it does
/// not know the architecture yet.
pub fn compile(nvrtc: &Nvrtc, architecture: Architecture, options: &[&str]) -> Result<Compiled> {
    if architecture < MIN_ARCHITECTURE {
        let operation = format!("kernels of its own for {architecture}, but from {MIN_ARCHITECTURE} on");
        return Err(Error::Unsupported { backend: "nccl", operation, dtype: None });
    }
    let ours = [format!("--gpu-architecture={architecture}"), "--std=c++17".into()];
    let options: Vec<_> = ours.into_iter().chain(options.iter().map(ToString::to_string)).collect();
    nvrtc.compile(KERNEL_SOURCE, &HEADERS, &options)
}

/// NVRTC, looked for once.
///
/// # Errors
/// Every candidate and why it will not do.
pub fn nvrtc() -> Result<&'static Nvrtc, Unavailable> {
    static NVRTC: OnceLock<Result<Nvrtc, Unavailable>> = OnceLock::new();
    NVRTC.get_or_init(|| Nvrtc::find(candidates())).as_ref().map_err(Clone::clone)
}

fn candidates() -> Vec<Candidate> {
    match Variable::read(LIBRARY_VARIABLE).path() {
        Some(file) => vec![Candidate::file(file)],
        None => {
            let wheels = disco_dl::python::packaged(&WHEEL_PATHS).into_iter().map(Candidate::file);
            CANDIDATES.iter().map(Candidate::file).chain(wheels).collect()
        }
    }
}

impl fmt::Display for Architecture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "sm_{}{}", self.major, self.minor)
    }
}
