//! TVM's runtime library with the Relax virtual machine, which is searched for once per process.

use std::sync::OnceLock;

use disco_core::Unavailable;
use disco_dl::{Candidate, Library, python};

use crate::library::TvmFfi;

/// The name that the system's loader searches.
const NAME: &str = "libtvm_runtime.so";
/// The library in the package `apache-tvm` of Python.
const WHEEL: &str = "tvm/lib/libtvm_runtime.so";
/// The function that loads Relax executables, which the library registers when it is opened.
const REGISTERED: &str = "ffi.Module.load_from_bytes.relax.VMExecutable";

static FOUND: OnceLock<Result<(), Unavailable>> = OnceLock::new();

/// Opens libtvm_ffi and then libtvm_runtime, unless the process has it already. The library stays open: it registers
/// functions and types with libtvm_ffi.
///
/// # Errors
/// One of them was not found; with all tried paths and the reason why each failed.
pub(crate) fn open() -> Result<(), Unavailable> {
    FOUND
        .get_or_init(|| {
            let tvm = TvmFfi::get()?;
            if tvm.global(REGISTERED).is_some() {
                return Ok(());
            }
            disco_dl::find("libtvm_runtime", candidates(), |library| accept(tvm, &library))
        })
        .clone()
}

fn accept(tvm: &TvmFfi, _: &Library) -> Result<(), String> {
    match tvm.global(REGISTERED) {
        Some(_) => Ok(()),
        None => Err(format!("it has not registered `{REGISTERED}` with libtvm_ffi: there is no Relax VM in it")),
    }
}

fn candidates() -> impl Iterator<Item = Candidate> {
    std::iter::once(Candidate::Global(NAME.into())).chain(python::packaged(&[WHEEL], Candidate::Global))
}
