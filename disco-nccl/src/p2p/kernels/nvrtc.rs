//! NVRTC, NVIDIA's runtime compiler for kernels: a library that is separate from the driver. These bindings replace
//! those of cudarc, which panic if the library is missing.

#![allow(unsafe_code)]

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::ptr;

use disco_core::{Error, Result, Unavailable};
use disco_dl::{Candidate, Library};

disco_dl::functions! {
    /// Functions of `libnvrtc`, version 11.1 or later.
    struct Table {
        /// `nvrtcVersion(int *major, int *minor)`
        version: c"nvrtcVersion"(*mut c_int, *mut c_int);
        /// `const char *nvrtcGetErrorString(nvrtcResult)`
        get_error_string: c"nvrtcGetErrorString"(c_int) -> *const c_char;
        /// `nvrtcCreateProgram(nvrtcProgram *, const char *source, const char *name, int, const char *const *headers,
        /// const char *const *names)`
        create: c"nvrtcCreateProgram"(
            *mut *mut c_void, *const c_char, *const c_char, c_int, *const *const c_char, *const *const c_char,
        );
        /// `nvrtcCompileProgram(nvrtcProgram, int, const char *const *options)`
        compile: c"nvrtcCompileProgram"(*mut c_void, c_int, *const *const c_char);
        /// `nvrtcGetProgramLogSize(nvrtcProgram, size_t *)`
        log_size: c"nvrtcGetProgramLogSize"(*mut c_void, *mut usize);
        /// `nvrtcGetProgramLog(nvrtcProgram, char *)`
        log: c"nvrtcGetProgramLog"(*mut c_void, *mut c_char);
        /// `nvrtcGetCUBINSize(nvrtcProgram, size_t *)`
        cubin_size: c"nvrtcGetCUBINSize"(*mut c_void, *mut usize);
        /// `nvrtcGetCUBIN(nvrtcProgram, char *)`
        cubin: c"nvrtcGetCUBIN"(*mut c_void, *mut c_char);
        /// `nvrtcDestroyProgram(nvrtcProgram *)`
        destroy: c"nvrtcDestroyProgram"(*mut *mut c_void);
    }
}

/// The compiler.
pub struct Nvrtc {
    table: Table,
    version: (u32, u32),
    file: String,
}

/// A compiled source.
#[non_exhaustive]
#[derive(Clone)]
pub struct Compiled {
    /// Machine code for one architecture, which the driver can load.
    pub cubin: Vec<u8>,
    /// The log of the compiler.
    pub log: String,
}

/// A source file: the name by which it is included, and its text.
pub type Source<'s> = (&'s str, &'s str);

impl Nvrtc {
    /// Loads the first usable library of the candidates.
    ///
    /// # Errors
    /// Each candidate that was tried, with the reason of its failure.
    pub fn find(candidates: impl IntoIterator<Item = Candidate>) -> Result<Self, Unavailable> {
        disco_dl::find("NVRTC", candidates, |library| Self::inspect(&library))
    }

    fn inspect(library: &Library) -> Result<Self, String> {
        // SAFETY: these functions have had these signatures in all versions that export all of them.
        let table = unsafe { Table::resolve(library) }?;
        let (mut major, mut minor) = (0, 0);
        // SAFETY: `major` and `minor` are writable.
        let code = unsafe { (table.version)(&mut major, &mut minor) };
        if code != 0 {
            return Err(format!("nvrtcVersion returned {code}"));
        }
        let file = library.file(c"nvrtcVersion");
        // NVRTC loads `libnvrtc-builtins` by name, and the loader does not search NVRTC's own folder. The copy in that
        // folder is therefore loaded first. If it is missing, the compilation fails with NVRTC's error.
        if let Some(folder) = file.as_ref().and_then(|file| file.parent()) {
            let builtins = folder.join(format!("libnvrtc-builtins.so.{major}.{minor}"));
            _ = builtins.is_file().then(|| Library::open(&Candidate::file(builtins)));
        }
        let file = file.map_or_else(|| library.name().to_owned(), |file| file.display().to_string());
        Ok(Self { table, version: (major.unsigned_abs(), minor.unsigned_abs()), file })
    }

    /// The version: (12, 8) is 12.8.
    pub fn version(&self) -> (u32, u32) {
        self.version
    }

    /// The file that was loaded.
    pub fn file(&self) -> &str {
        &self.file
    }

    /// Compiles a source file and the headers that it includes.
    ///
    /// # Errors
    /// [`Error::Library`] with the compiler's log; [`Error::Invalid`] for a text that contains a NUL byte.
    pub fn compile(&self, main: Source<'_>, headers: &[Source<'_>], options: &[String]) -> Result<Compiled> {
        let names = terminated(headers.iter().map(|header| header.0))?;
        let texts = terminated(headers.iter().map(|header| header.1))?;
        let options = terminated(options.iter().map(String::as_str))?;
        let program = Program::new(self, main, (&names, &texts))?;
        let options = addresses(&options);
        // SAFETY: the program exists, and `options` has `options.len()` pointers to NUL-terminated texts.
        let code = unsafe { (self.table.compile)(program.handle, options.len() as c_int, options.as_ptr()) };
        let sizes = ("nvrtcGetProgramLogSize", self.table.log_size);
        let log = program.bytes(sizes, ("nvrtcGetProgramLog", self.table.log))?;
        let log = String::from_utf8_lossy(&log).trim_end_matches('\0').to_owned();
        self.check("nvrtcCompileProgram", code).map_err(|error| with_log(error, &log))?;
        let sizes = ("nvrtcGetCUBINSize", self.table.cubin_size);
        Ok(Compiled { cubin: program.bytes(sizes, ("nvrtcGetCUBIN", self.table.cubin))?, log })
    }

    fn check(&self, function: &'static str, code: c_int) -> Result<()> {
        if code == 0 {
            return Ok(());
        }
        // SAFETY: NVRTC accepts any code.
        let text = unsafe { (self.table.get_error_string)(code) };
        let message = if text.is_null() {
            "NVRTC does not describe this code".into()
        } else {
            // SAFETY: NVRTC's texts are static and end with a NUL byte.
            unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
        };
        Err(Error::Library { backend: "nvrtc", function, code: code.into(), message })
    }
}

disco_core::format_as!(Debug for Nvrtc, |it| "<NVRTC {}.{} of {}>", it.version.0, it.version.1, it.file);

disco_core::format_as!(Debug for Compiled, |it| "<CUBIN of {} bytes>", it.cubin.len());

/// A program of NVRTC: a source and its headers.
struct Program<'n> {
    nvrtc: &'n Nvrtc,
    handle: *mut c_void,
}

/// The name and the address of a function that returns a size in bytes.
type SizeOf = (&'static str, unsafe extern "C" fn(*mut c_void, *mut usize) -> c_int);
/// The name and the address of a function that fills a buffer of that size.
type BytesOf = (&'static str, unsafe extern "C" fn(*mut c_void, *mut c_char) -> c_int);

impl<'n> Program<'n> {
    fn new(nvrtc: &'n Nvrtc, main: Source<'_>, headers: (&[CString], &[CString])) -> Result<Self> {
        let [name, text] = &terminated([main.0, main.1])?[..] else {
            return Err(Error::invalid("NVRTC needs the name and the text of a source file"));
        };
        let (names, texts) = (addresses(headers.0), addresses(headers.1));
        let mut program = Self { nvrtc, handle: ptr::null_mut() };
        // SAFETY: all texts end with NUL bytes, both arrays have as many elements as there are headers, and NVRTC
        // copies the texts.
        let code = unsafe {
            (nvrtc.table.create)(
                &mut program.handle,
                text.as_ptr(),
                name.as_ptr(),
                texts.len() as c_int,
                texts.as_ptr(),
                names.as_ptr(),
            )
        };
        nvrtc.check("nvrtcCreateProgram", code).map(|()| program)
    }

    fn bytes(&self, size_of: SizeOf, bytes_of: BytesOf) -> Result<Vec<u8>> {
        let mut size = 0;
        // SAFETY: the program exists, and `size` is writable.
        let code = unsafe { (size_of.1)(self.handle, &mut size) };
        self.nvrtc.check(size_of.0, code)?;
        let mut bytes = vec![0u8; size];
        // SAFETY: the program exists, and `bytes` has the size that NVRTC has just returned.
        let code = unsafe { (bytes_of.1)(self.handle, bytes.as_mut_ptr().cast()) };
        self.nvrtc.check(bytes_of.0, code).map(|()| bytes)
    }
}

impl Drop for Program<'_> {
    fn drop(&mut self) {
        if !self.handle.is_null() {
            // SAFETY: `new` created the program, and no other value has its handle.
            _ = unsafe { (self.nvrtc.table.destroy)(&mut self.handle) };
        }
    }
}

fn with_log(error: Error, log: &str) -> Error {
    match error {
        Error::Library { backend, function, code, message } => {
            Error::Library { backend, function, code, message: format!("{message}\n{log}") }
        }
        error => error,
    }
}

fn terminated<'s>(texts: impl IntoIterator<Item = &'s str>) -> Result<Vec<CString>> {
    let refused = |_| Error::invalid("a source file or an option for NVRTC contains a NUL byte");
    texts.into_iter().map(|text| CString::new(text).map_err(refused)).collect()
}

fn addresses(texts: &[CString]) -> Vec<*const c_char> {
    texts.iter().map(|text| text.as_ptr()).collect()
}
