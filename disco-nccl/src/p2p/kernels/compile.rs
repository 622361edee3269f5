//! Compilation of the kernels for a device's architecture.
//!
//! Compilation takes one to two seconds, once for each architecture in a process. The CUBIN is cached in memory only: a
//! cache on disk would save this time, but the process would execute code from a file that other users may be able to
//! write.

use std::collections::BTreeMap;
use std::iter;
use std::sync::{Arc, Mutex, OnceLock};

use disco_core::env::Variable;
use disco_core::sync;
use disco_core::{Error, Result, Unavailable};
use disco_dl::Candidate;

use super::nvrtc::{Compiled, Nvrtc, Source};

/// The compute capability of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Architecture {
    major: u32,
    minor: u32,
}

impl Architecture {
    /// Made of a device's `COMPUTE_CAPABILITY_MAJOR` and `COMPUTE_CAPABILITY_MINOR`.
    pub const fn new(major: u32, minor: u32) -> Self {
        Self { major, minor }
    }
}

/// The first architecture with the memory model (release stores, acquire loads) that the handshakes need.
const MIN_ARCHITECTURE: Architecture = Architecture::new(7, 0);

const KERNEL_SOURCE: Source<'_> = ("all_reduce.cu", include_str!("all_reduce.cu"));
const HEADERS: [Source<'_>; 2] = [("handshake.cuh", include_str!("handshake.cuh")), ("machine.cuh", MACHINE)];
/// Instructions of the GPU, for the kernels of this crate and of others: `machine.cuh`.
pub const MACHINE: &str = include_str!("machine.cuh");

/// The variable with the path of NVRTC; it replaces the search.
const LIBRARY_VARIABLE: &str = "DISCO_NVRTC_LIBRARY";
const CANDIDATES: [&str; 5] = [
    "libnvrtc.so.12",
    "libnvrtc.so.13",
    "libnvrtc.so",
    "/usr/local/cuda/lib64/libnvrtc.so",
    "/opt/cuda/lib64/libnvrtc.so",
];
/// Paths of NVRTC inside Python's package folders.
const WHEEL_PATHS: [&str; 2] = ["nvidia/cuda_nvrtc/lib/libnvrtc.so.12", "nvidia/cu13/lib/libnvrtc.so.13"];

/// The CUBIN with all kernels for an architecture. If several threads call this at once, one compiles and the others
/// wait.
///
/// # Errors
/// [`Error::Unavailable`] without NVRTC, which is searched for once; errors of [`compile`], which the next call tries
/// again.
pub fn cubin(architecture: Architecture) -> Result<Arc<[u8]>> {
    static COMPILED: Mutex<BTreeMap<Architecture, Arc<[u8]>>> = Mutex::new(BTreeMap::new());
    let nvrtc = nvrtc()?;
    // A panic while the lock was held leaves the map valid: an entry is inserted in one step.
    let mut compiled = sync::lock(&COMPILED);
    if let Some(cubin) = compiled.get(&architecture) {
        return Ok(cubin.clone());
    }
    let cubin: Arc<[u8]> = compile(nvrtc, architecture, &[])?.cubin.into();
    compiled.insert(architecture, cubin.clone());
    Ok(cubin)
}

/// Compiles all kernels, with further options for NVRTC.
///
/// # Errors
/// [`Error::Unsupported`] for an architecture that is too old; [`Error::Library`] with NVRTC's log, for example if
/// NVRTC does not know the architecture yet.
pub fn compile(nvrtc: &Nvrtc, architecture: Architecture, options: &[&str]) -> Result<Compiled> {
    if architecture < MIN_ARCHITECTURE {
        let operation = format!("all-reduce kernels for {architecture}; they need {MIN_ARCHITECTURE} or later");
        return Err(Error::Unsupported { backend: "nccl", operation, dtype: None });
    }
    let ours = [format!("--gpu-architecture={architecture}"), "--std=c++17".into()];
    let options: Vec<_> = ours.into_iter().chain(options.iter().map(ToString::to_string)).collect();
    nvrtc.compile(KERNEL_SOURCE, &HEADERS, &options)
}

/// NVRTC, which is searched for once in a process.
///
/// # Errors
/// Each path that was tried, with the reason of its failure.
pub fn nvrtc() -> Result<&'static Nvrtc, Unavailable> {
    static NVRTC: OnceLock<Result<Nvrtc, Unavailable>> = OnceLock::new();
    NVRTC.get_or_init(|| Nvrtc::find(candidates())).as_ref().map_err(Clone::clone)
}

fn candidates() -> Box<dyn Iterator<Item = Candidate>> {
    match Variable::read(LIBRARY_VARIABLE).path() {
        Some(file) => Box::new(iter::once(Candidate::file(file))),
        None => {
            let wheels = disco_dl::python::packaged(&WHEEL_PATHS, Candidate::File);
            Box::new(CANDIDATES.iter().map(Candidate::file).chain(wheels))
        }
    }
}

disco_core::format_as!(Display for Architecture, |it| "sm_{}{}", it.major, it.minor);
