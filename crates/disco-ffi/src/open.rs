//! Opening of libraries.
//!
//! A library is opened as it is. If it needs libtvm_ffi, that is opened first. Libraries that are compiled by TVM have
//! a variable for their module: they are opened through libtvm_ffi, as are all libraries once it is in use. Calls then
//! take the same way as those of TVM's own programs.

#![allow(unsafe_code)]

use std::error::Error as _;
use std::ffi::OsString;
use std::fs::File;
use std::io::Write as _;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, Weak};

use disco_core::{Error, Result, sync};
use libloading::os::unix::{self, RTLD_LOCAL, RTLD_NOW};

use crate::elf;
use crate::heap;
use crate::library::TvmFfi;
use crate::raw;
use crate::shared::{OpenLibrary, SharedLibrary, address};
use crate::value::Any;

/// Symbols of libraries that TVM compiles: the module, and modules of other kinds that lie in the library.
const MODULE_SYMBOLS: [&str; 2] = ["__tvm_ffi__library_ctx", "__tvm_ffi__library_bin"];

/// The libraries that are open in this process, by their path.
static OPEN: Mutex<Vec<(OsString, Weak<OpenLibrary>)>> = Mutex::new(Vec::new());

/// Opens the library `path`, or returns the one that this process has already opened from there.
///
/// # Errors
/// The file can't be read or is no library of this machine; the loader refuses it, for example because of undefined
/// symbols; or it needs libtvm_ffi, which is not there.
pub fn open(path: &Path) -> Result<SharedLibrary> {
    let text = path.display().to_string();
    elf::check(path, &text)?;
    let file = path.canonicalize().map_err(|error| Error::system(format!("can't open the library `{text}`"), error))?;
    let name = file.file_name().map_or_else(|| text.clone(), |name| name.to_string_lossy().into_owned());
    let mut open = sync::lock(&OPEN);
    open.retain(|(_, library)| library.strong_count() > 0);
    let known = open.iter().find(|(path, _)| *path == *file).and_then(|(_, library)| library.upgrade());
    if let Some(known) = known {
        return Ok(SharedLibrary(known));
    }
    let library = load(&file, &text, name, None)?;
    open.push((file.into(), Arc::downgrade(&library.0)));
    Ok(library)
}

/// Opens a library whose bytes were sent, from memory. `name` is the name of its file, for errors. Libraries that it
/// needs are searched in the system's folders only. Threads that get the same bytes share the library.
///
/// # Errors
/// As [`open`]; or the system has too little memory.
pub fn open_sent(name: &str, bytes: &[u8]) -> Result<SharedLibrary> {
    let mut open = sync::lock(&OPEN);
    open.retain(|(_, library)| library.strong_count() > 0);
    let known = open.iter().filter_map(|(_, library)| library.upgrade());
    for known in known.filter(|known| known.name == name) {
        if known.sent.as_ref().is_some_and(|sent| has_content(sent, bytes)) {
            return Ok(SharedLibrary(known));
        }
    }
    let failed = |error: std::io::Error| Error::system(format!("no memory for the library `{name}`"), error);
    let mut file = memory(name).map_err(failed)?;
    file.write_all(bytes).map_err(failed)?;
    let memory = OwnedFd::from(file);
    let path = PathBuf::from(format!("/proc/self/fd/{}", memory.as_raw_fd()));
    elf::check(&path, name)?;
    let library = load(&path, name, name.to_owned(), Some(memory))?;
    open.push((path.into(), Arc::downgrade(&library.0)));
    Ok(library)
}

/// An empty file in memory.
#[cfg(target_os = "linux")]
fn memory(name: &str) -> std::io::Result<File> {
    let memory = rustix::fs::memfd_create(name, rustix::fs::MemfdFlags::CLOEXEC)?;
    Ok(File::from(memory))
}

#[cfg(not(target_os = "linux"))]
fn memory(_: &str) -> std::io::Result<File> {
    Err(std::io::ErrorKind::Unsupported.into())
}

fn has_content(file: &OwnedFd, bytes: &[u8]) -> bool {
    let Ok(file) = file.try_clone().map(File::from) else { return false };
    if file.metadata().is_ok_and(|about| about.len() != bytes.len() as u64) {
        return false;
    }
    let mut part = vec![0; 1 << 16];
    bytes.chunks(part.len()).enumerate().all(|(at, chunk)| {
        let offset = (at * (1 << 16)) as u64;
        file.read_exact_at(&mut part[..chunk.len()], offset).is_ok() && part[..chunk.len()] == *chunk
    })
}

fn load(path: &Path, text: &str, name: String, sent: Option<OwnedFd>) -> Result<SharedLibrary> {
    let library = dlopen(path, text)?;
    let is_compiled = MODULE_SYMBOLS.iter().any(|symbol| address(&library, symbol).is_some());
    let is_linked = address(&library, "TVMFFIGetVersion").is_some();
    if is_compiled || is_linked {
        TvmFfi::get()
            .map_err(|absent| Error::missing(format!("the library `{text}` needs libtvm_ffi, but {absent}")))?;
    }
    // Another part of the program may have opened it, too.
    let module = TvmFfi::present().map(|tvm| load_module(tvm, path, text)).transpose()?;
    Ok(SharedLibrary(Arc::new(OpenLibrary { module, library, sent, name })))
}

/// Opens a library with all its symbols. If one of libtvm_ffi is missing, that is opened first.
fn dlopen(path: &Path, text: &str) -> Result<unix::Library> {
    let open = || {
        // SAFETY: opening runs the initialisers of the library, which the user has chosen.
        unsafe { unix::Library::open(Some(path), RTLD_NOW | RTLD_LOCAL) }.map_err(|error| {
            let message = error.source().map_or_else(|| error.to_string(), ToString::to_string);
            // The loader's message starts with the path.
            message.strip_prefix(&format!("{}: ", path.display())).map_or(message.clone(), str::to_owned)
        })
    };
    let refused = |message: &str| format!("the loader refused the library `{text}`: {message}");
    let message = match open() {
        Ok(library) => return Ok(library),
        Err(message) => message,
    };
    let wants_tvm = message.contains("TVMFFI") || message.contains("tvm_ffi") || message.contains("3tvm3ffi");
    if !wants_tvm || TvmFfi::opened().is_some() {
        return Err(Error::missing(refused(&message)));
    }
    match TvmFfi::get() {
        Ok(_) => open().map_err(|message| Error::missing(refused(&message))),
        Err(absent) => Err(Error::missing(format!("{}; it needs libtvm_ffi, but {absent}", refused(&message)))),
    }
}

fn load_module(tvm: &TvmFfi, path: &Path, text: &str) -> Result<Any> {
    // Not `ffi.ModuleLoadFromFile`, which chooses a loader by the suffix of the file.
    const LOADER: &str = "ffi.Module.load_from_file.so";
    let loader = tvm.global(LOADER).ok_or_else(|| Error::missing(format!("libtvm_ffi has no function `{LOADER}`")))?;
    let path = path.to_str().ok_or_else(|| Error::invalid(format!("the path `{text}` is not UTF-8")))?;
    raw::call(&loader, &[heap::string(path), heap::string("so")])
        .map_err(|raised| Error::missing(format!("libtvm_ffi refused the library `{text}`: {raised}")))
}
