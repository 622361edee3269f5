//! NCCL or RCCL: the search, the check of the version, the capabilities, and the texts of errors.

#![allow(unsafe_code)]

use std::env;
use std::ffi::{CStr, c_char};
use std::iter;
use std::ptr;
use std::sync::Mutex;

use disco_core::activity::DataPath;
use disco_core::env::Variable;
use disco_core::sync;
use disco_core::{Capabilities, DType, Error, OpKind, Reduction, Result, Unavailable};
use disco_dl::{Candidate, python};

use crate::abi::{Code, Comm, DataType, RedOp, UniqueId};
use crate::table::Table;

/// The names of a vendor's library, and the places to search for it.
#[derive(Clone, Copy, Debug)]
#[allow(clippy::exhaustive_structs, reason = "each vendor's crate writes one")]
pub struct Vendor {
    /// The name of the backend: `nccl`, `rccl`.
    pub backend: &'static str,
    /// The name of the library: `NCCL`, `RCCL`.
    pub library: &'static str,
    /// The environment variable that names a file instead of the search.
    pub variable: &'static str,
    /// Paths, and names for the system's loader, in the order of the search.
    pub candidates: &'static [&'static str],
    /// Paths of the library inside Python's package folders.
    pub wheels: &'static [&'static str],
    /// What a user without the library can do.
    pub remedy: &'static str,
}

/// A library's version.
#[allow(clippy::exhaustive_structs, reason = "three numbers")]
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version {
    /// The major version.
    pub major: u32,
    /// The minor version.
    pub minor: u32,
    /// The patch version.
    pub patch: u32,
}

/// A library of a supported version, with its functions.
#[derive(Debug)]
pub struct Library {
    vendor: Vendor,
    version: Version,
    /// The path of the file.
    file: String,
    /// The last error text when a communicator was made. The library sets texts in calls that succeed, too.
    ignored_text: Mutex<String>,
    /// The functions of the library.
    pub table: Table,
}

/// The first version with sends and receives. Several operations are composed of them.
const MIN_VERSION: Version = Version { major: 2, minor: 7, patch: 0 };
/// The first version with averages.
const AVG_VERSION: Version = Version { major: 2, minor: 10, patch: 0 };
/// The first version with `bf16`.
const BF16_VERSION: Version = AVG_VERSION;
/// The first version with 8-bit floats.
const F8_VERSION: Version = Version { major: 2, minor: 24, patch: 0 };
/// The first version that starts a thread for each launch on a non-blocking communicator.
const THREAD_PER_LAUNCH_VERSION: Version = Version { major: 2, minor: 22, patch: 3 };
/// The first version that supports several ranks on one device, if its variable allows them.
const SHARED_DEVICE_VERSION: Version = Version { major: 2, minor: 30, patch: 3 };
const SHARED_DEVICE_VARIABLE: &str = "NCCL_MULTI_RANK_GPU_ENABLE";

impl Library {
    /// Finds and loads the vendor's library. The library is never unloaded, since it may have started threads.
    ///
    /// # Errors
    /// [`Unavailable`] lists each candidate with the reason: the file is absent, is another library, or is too old.
    pub fn find(vendor: Vendor) -> Result<Self, Unavailable> {
        let candidates: Box<dyn Iterator<Item = Candidate>> = match Variable::read(vendor.variable).path() {
            Some(file) => Box::new(iter::once(Candidate::file(file))),
            None => {
                let named = vendor.candidates.iter().map(Candidate::file);
                Box::new(named.chain(python::packaged(vendor.wheels, Candidate::File)))
            }
        };
        let found = disco_dl::find(vendor.library, candidates, |library| Self::accept(vendor, &library));
        found.map_err(|absent| absent.with_remedy(vendor.remedy))
    }

    fn accept(vendor: Vendor, library: &disco_dl::Library) -> Result<Self, String> {
        if library.address(c"ncclGetVersion").is_none() {
            return Err(format!("there is no {} in it", vendor.library));
        }
        // SAFETY: `ncclGetVersion` has this signature in all versions.
        let get_version: Option<unsafe extern "C" fn(*mut i32) -> Code> =
            unsafe { library.function(c"ncclGetVersion") };
        let mut number = 0;
        // SAFETY: `number` is a valid output.
        let code = get_version.map(|get_version| unsafe { get_version(&mut number) });
        let version = Version::from_number(number);
        if code != Some(Code::SUCCESS) || version < MIN_VERSION {
            return Err(format!("it is {} {version}; {MIN_VERSION} or later is needed", vendor.library));
        }
        // SAFETY: the library is NCCL or RCCL, whose functions have the signatures of the table.
        let table = unsafe { Table::resolve(library) }?;
        let file = library.file(c"ncclGetVersion").map(|file| file.display().to_string());
        let file = file.unwrap_or_else(|| library.name().to_owned());
        Ok(Self { vendor, version, file, ignored_text: Mutex::default(), table })
    }

    /// The version of the library.
    pub fn version(&self) -> Version {
        self.version
    }

    /// The path from which the library was loaded.
    pub fn file(&self) -> &str {
        &self.file
    }

    /// The way that data of its operations takes, for records.
    pub(crate) fn path(&self) -> DataPath {
        let path = DataPath::ALL.into_iter().find(|path| path.name() == self.vendor.library);
        path.unwrap_or_default()
    }

    /// The name of the backend.
    pub fn backend(&self) -> &'static str {
        self.vendor.backend
    }

    /// The operations that the library supports: it moves elements of every dtype, also for reductions of programs, and
    /// reduces the dtypes that the interface names. `reduces_f8` is whether the device supports reductions of 8-bit floats.
    pub fn capabilities(&self, reduces_f8: bool) -> Capabilities {
        let since = |dtype: DType| match dtype {
            DType::BF16 => BF16_VERSION,
            DType::F8E4M3 | DType::F8E5M2 => F8_VERSION,
            _ => MIN_VERSION,
        };
        let moves = OpKind::ALL.into_iter().fold(Capabilities::NONE, |caps, op| caps.with_op(op, DType::all()));
        Reduction::ALL.into_iter().fold(moves.with_custom_reductions(), |caps, reduction| {
            let is_there = reduction != Reduction::Avg || self.version >= AVG_VERSION;
            let reduces = |dtype: &DType| {
                is_there
                    && (reduces_f8 || !matches!(dtype, DType::F8E4M3 | DType::F8E5M2))
                    && self.version >= since(*dtype)
                    && DataType::of(*dtype).is_some()
                    && RedOp::of(reduction, *dtype).is_some()
            };
            caps.with_reduction(reduction, DType::all().filter(reduces))
        })
    }

    /// Checks that the library supports several ranks on one device. `found` names the ranks and their device for the
    /// error.
    ///
    /// # Errors
    /// [`Error::Missing`]: the library is too old, or its variable does not allow shared devices.
    pub(crate) fn check_sharing(&self, found: &str) -> Result<()> {
        let (library, version) = (self.vendor.library, self.version);
        let why = if version < SHARED_DEVICE_VERSION {
            format!(
                "{library} {version} supports one rank per device: name {library} {SHARED_DEVICE_VERSION} or later \
                 with {}, or give each worker its own device with `--devices`",
                self.vendor.variable
            )
        } else if env::var_os(SHARED_DEVICE_VARIABLE).is_none_or(|value| value != "1") {
            format!(
                "{library} {version} supports several ranks per device only with {SHARED_DEVICE_VARIABLE}=1 in the \
                 environment of each rank: set the variable, or give each worker its own device with `--devices`"
            )
        } else {
            return Ok(());
        };
        Err(Error::missing(format!("{found}, which DISCO_SHARE_DEVICES=1 allows, but {why}")))
    }

    /// Whether to make blocking communicators: a launch on a non-blocking one would start a thread.
    pub(crate) fn blocks(&self) -> bool {
        self.version >= THREAD_PER_LAUNCH_VERSION && self.table.comm_init_rank_config.is_some()
    }

    /// Makes a unique id, at which the ranks of a new communicator connect.
    ///
    /// # Errors
    /// Errors of the library, for example if it finds no network interface.
    pub fn unique_id(&self) -> Result<UniqueId> {
        let mut id = UniqueId([0; 128]);
        // SAFETY: `id` is a valid output.
        let code = unsafe { (self.table.get_unique_id)(&mut id) };
        self.check("ncclGetUniqueId", code).map(|()| id)
    }

    /// Converts the code of a function into a result. The error has the library's text for the code, and its last error
    /// text, unless that text is older than the newest communicator.
    ///
    /// # Errors
    /// The code is not [`Code::SUCCESS`].
    pub fn check(&self, function: &'static str, code: Code) -> Result<()> {
        if code == Code::SUCCESS { Ok(()) } else { Err(self.error(function, code)) }
    }

    /// Like [`Library::check`], for a function that may complete later.
    ///
    /// # Errors
    /// The code is neither [`Code::SUCCESS`] nor [`Code::IN_PROGRESS`].
    #[inline]
    pub(crate) fn check_launched(&self, function: &'static str, code: Code) -> Result<()> {
        if code == Code::IN_PROGRESS { Ok(()) } else { self.check(function, code) }
    }

    /// Logs the failure of a call that is part of a teardown.
    pub(crate) fn report(&self, function: &'static str, code: Code) {
        if let Err(error) = self.check_launched(function, code) {
            tracing::warn!(%error, function, "a call that releases a communicator or its memory has failed");
        }
    }

    #[cold]
    fn error(&self, function: &'static str, code: Code) -> Error {
        // SAFETY: the function accepts every number.
        let meaning = text(unsafe { (self.table.get_error_string)(code) });
        let last = self.last_text();
        let is_of_this_call = !last.is_empty() && last != *sync::lock(&self.ignored_text);
        let message = if is_of_this_call { format!("{meaning}: {last}") } else { meaning };
        Error::Library { backend: self.vendor.backend, function, code: code.0.into(), message }
    }

    /// Makes later errors leave out the present last error text of the library, which calls that succeed have set.
    pub(crate) fn ignore_last_text(&self) {
        *sync::lock(&self.ignored_text) = self.last_text();
    }

    /// The last error text of the process; empty if there is none.
    fn last_text(&self) -> String {
        let none: Comm = ptr::null_mut();
        // SAFETY: the function accepts a null communicator, and then returns the last error of the process.
        self.table.get_last_error.map(|last| text(unsafe { last(none) })).unwrap_or_default()
    }
}

/// Copies a text of the library, with each run of white space as one space.
fn text(words: *const c_char) -> String {
    if words.is_null() {
        return String::new();
    }
    // SAFETY: the library's texts end with a zero, and stay valid until the function is called again.
    let words = unsafe { CStr::from_ptr(words) }.to_string_lossy();
    words.split_whitespace().collect::<Vec<_>>().join(" ")
}

impl Version {
    /// Decodes the library's version number: 2708 is 2.7.8 (format until 2.8), and 22809 is 2.28.9 (format since 2.9).
    pub fn from_number(number: i32) -> Self {
        let number = u32::try_from(number).unwrap_or_default();
        let (major, rest) =
            if number < 10_000 { (number / 1000, number % 1000) } else { (number / 10_000, number % 10_000) };
        Self { major, minor: rest / 100, patch: rest % 100 }
    }
}

disco_core::format_as!(Display for Version, |it| "{}.{}.{}", it.major, it.minor, it.patch);

disco_core::format_as!(Debug for Table, |_| "<functions>");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn version_numbers_are_decoded_in_both_formats() {
        let text = |number| Version::from_number(number).to_string();
        assert_eq!(
            [2708, 2804, 20903, 22809, 0, -1].map(text),
            ["2.7.8", "2.8.4", "2.9.3", "2.28.9", "0.0.0", "0.0.0"]
        );
    }

    #[test]
    fn the_error_of_an_absent_library_lists_each_candidate() {
        let candidates = &["libdisco-absent.so.2", "libm.so.6"];
        let vendor = Vendor {
            backend: "nccl",
            library: "NCCL",
            variable: "DISCO_NO_VARIABLE",
            candidates,
            wheels: &[],
            remedy: "",
        };
        let absent = Library::find(vendor).unwrap_err().to_string();
        assert!(absent.starts_with("NCCL is not available; tried libdisco-absent.so.2: "), "{absent}");
        assert!(absent.ends_with("; tried libm.so.6: there is no NCCL in it"), "{absent}");
    }
}
