//! libtvm_ffi, which is searched for once per process.

#![allow(unsafe_code)]

use std::ffi::{c_int, c_void};
use std::iter;
use std::ptr;
use std::sync::OnceLock;

use disco_core::env::Variable;
use disco_core::{Probe, Unavailable};
use disco_dl::{Candidate, python};

use libloading::os::unix::{self, RTLD_LAZY};

use crate::abi::{self, ByteArray, TypeIndex, VERSION, Version};
use crate::heap;
use crate::raised::Raised;
use crate::table::Table;
use crate::value::Any;

/// Path of libtvm_ffi, in place of the search.
const LIBRARY_VARIABLE: &str = "DISCO_TVM_FFI_LIBRARY";
/// The name that the system's loader searches. It also finds a library of this name that is already in the process.
const NAME: &str = "libtvm_ffi.so";
/// The library in the package `apache-tvm-ffi` of Python.
const WHEEL: &str = "tvm_ffi/lib/libtvm_ffi.so";

/// A flag of `dlopen`: only a library that is in the process is opened.
const RTLD_NOLOAD: c_int = 4;

/// libtvm_ffi: global functions, raised errors, and the stream of a thread.
#[derive(Debug)]
pub struct TvmFfi {
    table: Table,
    file: String,
    version: Version,
}

static FOUND: OnceLock<Result<TvmFfi, Unavailable>> = OnceLock::new();

impl TvmFfi {
    /// libtvm_ffi of this process. The first call opens it, so that libraries which are opened later find its symbols.
    ///
    /// # Errors
    /// No library was found; with all tried paths and the reason why each failed.
    pub fn get() -> Result<&'static Self, Unavailable> {
        FOUND.get_or_init(|| disco_dl::find("libtvm_ffi", candidates(), Self::accept)).as_ref().map_err(Clone::clone)
    }

    /// libtvm_ffi, if [`TvmFfi::get`] has opened it before.
    pub fn opened() -> Option<&'static Self> {
        FOUND.get()?.as_ref().ok()
    }

    /// libtvm_ffi, if it is in this process, whether Disco has opened it or another part of the program.
    pub(crate) fn present() -> Option<&'static Self> {
        if FOUND.get().is_none() {
            let process = disco_dl::Library::open(&Candidate::Process).ok();
            let is_global = process.is_some_and(|process| process.address(c"TVMFFIGetVersion").is_some());
            // SAFETY: with this flag the loader opens nothing, so that no initialiser runs.
            let is_open = is_global || unsafe { unix::Library::open(Some(NAME), RTLD_NOLOAD | RTLD_LAZY) }.is_ok();
            return if is_open { Self::get().ok() } else { None };
        }
        Self::opened()
    }

    /// The library as a probe, for users.
    pub fn probe(&self) -> Probe {
        Probe::new(&*self.file, text(self.version))
    }

    fn accept(library: disco_dl::Library) -> Result<Self, String> {
        if library.address(c"TVMFFIGetVersion").is_none() {
            return Err("there is no TVM-FFI in it".to_owned());
        }
        // SAFETY: the function of this name takes a pointer to a version.
        let get_version: Option<unsafe extern "C" fn(*mut Version)> = unsafe { library.function(c"TVMFFIGetVersion") };
        let mut version = Version::default();
        if let Some(get_version) = get_version {
            // SAFETY: the pointer is valid; the function writes a version in all versions.
            unsafe { get_version(&mut version) };
        }
        if (version.major, version.minor) != VERSION {
            let (major, minor) = VERSION;
            return Err(format!("it has version {} of the ABI, and Disco knows {major}.{minor}", text(version)));
        }
        // SAFETY: the table has the signatures of this version.
        let table = unsafe { Table::resolve(&library) }?;
        let file = library.file(c"TVMFFIGetVersion").map(|file| file.display().to_string());
        Ok(Self { table, file: file.unwrap_or_else(|| library.name().to_owned()), version })
    }

    /// The global function of this name; none if there is none.
    pub fn global(&self, name: &str) -> Option<Any> {
        let (name, mut found) = (view(name), ptr::null_mut::<c_void>());
        // SAFETY: both pointers are valid during the call.
        let code = unsafe { (self.table.function_get_global)(&name, &mut found) };
        let raw = abi::Any::of_pointer(TypeIndex::FUNCTION, found);
        // SAFETY: the function gives a reference to the object that it returns.
        (code == 0 && !found.is_null()).then(|| unsafe { Any::from_raw(raw) })
    }

    /// Registers a function object under a name, in place of an earlier one.
    ///
    /// # Errors
    /// The library's error.
    pub(crate) fn set_global(&self, name: &str, function: &Any) -> Result<(), Raised> {
        let name = view(name);
        // SAFETY: the name is valid during the call, and the object is a function with a reference of its own.
        match unsafe { (self.table.function_set_global)(&name, function.as_raw().pointer(), 1) } {
            0 => Ok(()),
            _ => Err(Raised::take(&Any::NONE, self.raised())),
        }
    }

    /// The error that the last call on this thread has raised.
    pub(crate) fn raised(&self) -> Option<Any> {
        let mut error = ptr::null_mut::<c_void>();
        // SAFETY: the pointer is valid.
        unsafe { (self.table.error_move_from_raised)(&mut error) };
        let raw = abi::Any::of_pointer(TypeIndex::ERROR, error);
        // SAFETY: the function gives a reference to the object that it returns.
        (!error.is_null()).then(|| unsafe { Any::from_raw(raw) })
    }

    /// Raises an error on this thread.
    pub(crate) fn raise(&self, kind: &str, message: &str) {
        let error = heap::error(kind, message);
        // SAFETY: the object is an error; the library takes a reference of its own.
        unsafe { (self.table.error_set_raised)(error.as_raw().pointer()) };
    }

    /// Sets the stream of this thread for a device and returns the one before; none if the library can't.
    pub(crate) fn set_stream(&self, (kind, ordinal): (i32, i32), stream: *mut c_void) -> Option<*mut c_void> {
        let (set, mut before) = (self.table.env_set_stream?, ptr::null_mut());
        // SAFETY: `before` is valid; the library keeps the handle and does not use it.
        (unsafe { set(kind, ordinal, stream, &mut before) } == 0).then_some(before)
    }
}

/// The candidates in the order of the search: only the path of the variable if it is set; otherwise a library that is
/// already in this process, the name that the system's loader searches, and Python's packages.
fn candidates() -> Box<dyn Iterator<Item = Candidate>> {
    if let Some(file) = Variable::read(LIBRARY_VARIABLE).path() {
        return Box::new(iter::once(Candidate::Global(file.into())));
    }
    let packaged = python::packaged(&[WHEEL], Candidate::Global);
    Box::new([Candidate::Process, Candidate::Global(NAME.into())].into_iter().chain(packaged))
}

fn view(text: &str) -> ByteArray {
    ByteArray { data: text.as_ptr().cast(), size: text.len() }
}

fn text(version: Version) -> String {
    format!("{}.{}.{}", version.major, version.minor, version.patch)
}
