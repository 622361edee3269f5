//! Opens shared libraries at run time that may be missing on this machine. A missing library is a value: [`Unavailable`]
//! lists every place that was tried, with the reason of each refusal.
//!
//! ```
//! # #![allow(unsafe_code)]
//! use disco_dl::Candidate;
//!
//! disco_dl::functions! {
//!     struct Zlib {
//!         /// `const char *zlibVersion(void)`
//!         version: c"zlibVersion"() -> *const std::ffi::c_char;
//!     }
//! }
//!
//! let candidates = ["libz.so.1", "libz.so"].map(Candidate::file);
//! // SAFETY: the row has the arguments and the result of zlib's function.
//! match disco_dl::find("zlib", candidates, |library| unsafe { Zlib::resolve(&library) }) {
//!     Ok(_zlib) => println!("zlib is there"),
//!     Err(unavailable) => println!("{unavailable}"), // zlib is not available; tried libz.so.1: …
//! }
//! ```
//!
//! | to do | start at |
//! |---|---|
//! | try candidates in order | [`find`] |
//! | define the functions that a library must have | [`functions!`] |
//! | find libraries that Python packages have installed | [`python`] |

#![allow(unsafe_code)]

pub mod python;

use std::error::Error as _;
use std::ffi::{CStr, OsString, c_char, c_int, c_void};
use std::fmt;
use std::path::PathBuf;

use disco_core::Unavailable;
use libloading::os::unix::{self, RTLD_GLOBAL, RTLD_LAZY, RTLD_LOCAL, RTLD_NOW};

/// An open library. It is never closed, because threads and exit handlers of vendor libraries still need its code.
pub struct Library {
    name: String,
    inner: std::mem::ManuallyDrop<unix::Library>,
}

/// A place where [`find`] looks for a library.
#[non_exhaustive]
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Candidate {
    /// The libraries that this process has linked or opened already.
    Process,
    /// A file, or a name that the system's loader searches.
    File(OsString),
    /// As [`Candidate::File`], but the library's symbols are also visible to libraries that are opened later, and all
    /// of them are resolved at once.
    Global(OsString),
    /// A place without the library. The error of the search names it.
    Absent {
        /// A folder or a program.
        place: PathBuf,
        /// Why the library is not there.
        why: String,
    },
}

impl Candidate {
    /// A file or a name.
    pub fn file(name: impl Into<OsString>) -> Self {
        Self::File(name.into())
    }
}

impl fmt::Display for Candidate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Process => f.write_str("this process"),
            Self::File(name) | Self::Global(name) => write!(f, "{}", name.display()),
            Self::Absent { place, .. } => write!(f, "{}", place.display()),
        }
    }
}

/// Opens `candidates` in order and returns the first result that `accept` does not refuse.
///
/// # Errors
/// No candidate is accepted. `what` names the library in the error.
pub fn find<T>(
    what: &str,
    candidates: impl IntoIterator<Item = Candidate>,
    accept: impl Fn(Library) -> Result<T, String>,
) -> Result<T, Unavailable> {
    let mut absent = Unavailable::new(what);
    for candidate in candidates {
        match Library::open(&candidate).and_then(&accept) {
            Ok(found) => return Ok(found),
            Err(why) => absent.tried.push((candidate.to_string(), why)),
        }
    }
    Err(absent)
}

impl Library {
    /// Opens a candidate.
    ///
    /// # Errors
    /// The loader's message.
    pub fn open(candidate: &Candidate) -> Result<Self, String> {
        let inner = match candidate {
            Candidate::Process => unix::Library::this(),
            Candidate::Absent { why, .. } => return Err(why.clone()),
            Candidate::File(name) | Candidate::Global(name) => {
                let flags = match candidate {
                    Candidate::Global(_) => RTLD_NOW | RTLD_GLOBAL,
                    _ => RTLD_LAZY | RTLD_LOCAL,
                };
                // SAFETY: opening runs the initialisers of the library. The user or the system has chosen it, as with a
                // library that the program links.
                unsafe { unix::Library::open(Some(name), flags) }.map_err(|error| {
                    // The source is the loader's message. It starts with the name, which the caller reports itself.
                    let text = error.source().map_or_else(|| error.to_string(), ToString::to_string);
                    text.strip_prefix(&format!("{}: ", name.display())).map_or(text.clone(), str::to_owned)
                })?
            }
        };
        Ok(Self { name: candidate.to_string(), inner: std::mem::ManuallyDrop::new(inner) })
    }

    /// The name or path with which the library was opened.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The file that defines a symbol; `None` if no file does.
    pub fn file(&self, symbol: &CStr) -> Option<PathBuf> {
        let mut found = Found { file: std::ptr::null(), _rest: [0; 3] };
        // SAFETY: `dladdr` accepts any address, and writes to `found`, which has the layout of `Dl_info`.
        let known = unsafe { dladdr(self.address(symbol)?, &mut found) } != 0 && !found.file.is_null();
        // SAFETY: the pointer is the NUL-terminated name of a library that is never closed.
        known.then(|| unsafe { CStr::from_ptr(found.file) }.to_string_lossy().into_owned().into())
    }

    /// The address of a function or variable.
    pub fn address(&self, symbol: &CStr) -> Option<*mut c_void> {
        // SAFETY: the address is not used here.
        let found = unsafe { self.inner.get::<*mut c_void>(symbol.to_bytes_with_nul()) };
        found.ok().map(unix::Symbol::as_raw_ptr).filter(|address| !address.is_null())
    }

    /// A function, as a function pointer of type `F`; `None` if the library lacks it.
    ///
    /// # Safety
    /// `F` has the arguments and the result of the function.
    pub unsafe fn function<F: Copy>(&self, symbol: &CStr) -> Option<F> {
        const { assert!(size_of::<F>() == size_of::<*mut c_void>()) };
        self.address(symbol).map(|address| {
            // SAFETY: the caller guarantees that the symbol is a function of type `F`, which has a pointer's size.
            unsafe { std::mem::transmute_copy(&address) }
        })
    }
}

/// The loader's `Dl_info`.
#[repr(C)]
struct Found {
    file: *const c_char,
    _rest: [usize; 3],
}

unsafe extern "C" {
    fn dladdr(address: *const c_void, found: *mut Found) -> c_int;
}

impl fmt::Debug for Library {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "<library {}>", self.name)
    }
}

/// Defines a table of C functions, with `resolve`, which finds all of them in a library or lists the missing ones. A
/// function returns an `int` unless its row has a type. Functions under `optional` may be absent:
///
/// ```
/// # #![allow(unsafe_code)]
/// use std::ffi::{c_char, c_int};
///
/// disco_dl::functions! {
///     /// Functions of the C library.
///     struct Table {
///         /// `int abs(int)`
///         abs: c"abs"(c_int);
///     }
///     optional {
///         /// `char *strerror(int)`
///         strerror: c"strerror"(c_int) -> *const c_char;
///         /// In no library.
///         absent: c"disco_no_such_function"();
///     }
/// }
///
/// let library = disco_dl::Library::open(&disco_dl::Candidate::Process).unwrap();
/// // SAFETY: the rows have the arguments and results of the C library.
/// let table = unsafe { Table::resolve(&library) }.unwrap();
/// // SAFETY: `abs` accepts every `int` except `INT_MIN`.
/// assert_eq!(unsafe { (table.abs)(-3) }, 3);
/// assert!(table.strerror.is_some() && table.absent.is_none());
/// ```
#[macro_export]
macro_rules! functions {
    (
        $(#[$meta:meta])*
        $vis:vis struct $name:ident $(<$handle:ident>)? {
            $($(#[$row:meta])* $field:ident: $symbol:literal($($arg:ty),* $(,)?) $(-> $result:ty)?;)*
        }
        $(optional {
            $($(#[$other_row:meta])* $other:ident: $other_symbol:literal($($other_arg:ty),* $(,)?) $(-> $other_result:ty)?;)*
        })?
    ) => {
        $(#[$meta])*
        $vis struct $name $(<$handle>)? {
            $($(#[$row])* $vis $field: unsafe extern "C" fn($($arg),*) -> $crate::functions!(@result $($result)?),)*
            $($(
                $(#[$other_row])*
                $vis $other: ::std::option::Option<
                    unsafe extern "C" fn($($other_arg),*) -> $crate::functions!(@result $($other_result)?)
                >,
            )*)?
        }

        impl $(<$handle>)? ::std::marker::Copy for $name $(<$handle>)? {}

        impl $(<$handle>)? ::std::clone::Clone for $name $(<$handle>)? {
            fn clone(&self) -> Self {
                *self
            }
        }

        impl $(<$handle>)? $name $(<$handle>)? {
            /// Resolves all functions of the table.
            ///
            /// # Safety
            /// The library's functions of these names have these arguments and results.
            ///
            /// # Errors
            /// The functions that the library lacks, as text.
            $vis unsafe fn resolve(library: &$crate::Library) -> ::std::result::Result<Self, ::std::string::String> {
                let mut missing: ::std::vec::Vec<&str> = ::std::vec::Vec::new();
                $(
                    // SAFETY: the caller guarantees the signature of each row.
                    let $field = unsafe { library.function($symbol) };
                    if $field.is_none() {
                        missing.push($symbol.to_str().unwrap_or_default());
                    }
                )*
                $($(
                    // SAFETY: the caller guarantees the signature of each row.
                    let $other = unsafe { library.function($other_symbol) };
                )*)?
                match ($($field,)*) {
                    ($(::std::option::Option::Some($field),)*) => {
                        ::std::result::Result::Ok(Self { $($field,)* $($($other,)*)? })
                    }
                    _ => ::std::result::Result::Err(::std::format!("it lacks {}", missing.join(", "))),
                }
            }
        }
    };
    (@result) => { ::std::ffi::c_int };
    (@result $result:ty) => { $result };
}

#[cfg(test)]
mod tests {
    use super::*;

    functions! {
        #[allow(dead_code, reason = "none is called")]
        struct Absent {
            abs: c"abs"(std::ffi::c_int);
            first: c"disco_no_such_function"(std::ffi::c_int);
            second: c"disco_nor_this"();
        }
    }

    #[test]
    fn every_candidate_is_named_with_its_reason() {
        let files = ["libdisco-absent.so.7", "/dev/null"].map(Candidate::file);
        let accept = |library: Library| {
            // SAFETY: no function of the table is called.
            unsafe { Absent::resolve(&library) }.map(drop)
        };
        let absent = find("libdisco", files.into_iter().chain([Candidate::Process]), accept).unwrap_err().to_string();
        let [what, first, second, third] = absent.split("; ").collect::<Vec<_>>()[..] else { panic!("{absent}") };
        assert_eq!(what, "libdisco is not available");
        assert!(first.starts_with("tried libdisco-absent.so.7: ") && first.contains("No such file"), "{first}");
        assert!(second.starts_with("tried /dev/null: "), "{second}");
        assert_eq!(third, "tried this process: it lacks disco_no_such_function, disco_nor_this");
    }
}
