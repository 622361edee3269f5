//! The MPI library of this process, which is searched for once.

#![allow(unsafe_code)]

use std::env;
use std::ffi::{CStr, c_char, c_int};
use std::fmt;
use std::iter;
use std::sync::OnceLock;

use disco_core::env::Variable;
use disco_core::{Error, Probe, Result, Unavailable};
use disco_dl::{Candidate, Library, python};

use crate::NAME;
use crate::abi::{Abi, Constants, Mpich, OpenMpi, Standard};
use crate::numbers::FaultyReductions;
use crate::table::{Early, Table};

/// Path of the library, in place of the search.
const LIBRARY_VARIABLE: &str = "DISCO_MPI_LIBRARY";
/// What a user without a library can do.
const REMEDY: &str = "install one (`pip install mpich`), or set DISCO_MPI_LIBRARY to its path";
/// Size of the buffers for texts of the library: the largest `MPI_MAX_LIBRARY_VERSION_STRING` of all ABIs.
const MAX_TEXT_BYTES: usize = 8192;

/// A library with its table and constants.
pub(crate) struct Installed<A: Abi> {
    pub(crate) about: About,
    pub(crate) table: Table<A::Handle>,
    pub(crate) constants: Constants<A::Handle>,
    faulty: OnceLock<FaultyReductions>,
}

/// The parts of a library that don't depend on the ABI.
pub(crate) struct About {
    /// The path of the library.
    library: String,
    /// The text of `MPI_Get_library_version`.
    version: String,
    abi: &'static str,
    early: Early,
}

/// The library of this process, by ABI.
#[derive(Debug)]
pub(crate) enum Mpi {
    Mpich(Installed<Mpich>),
    Ompi(Installed<OpenMpi>),
    Standard(Installed<Standard>),
}

/// Evaluates an expression for the library, whichever ABI it has.
macro_rules! with {
    ($library:expr, $mpi:ident => $call:expr) => {
        match $library {
            $crate::library::Mpi::Mpich($mpi) => $call,
            $crate::library::Mpi::Ompi($mpi) => $call,
            $crate::library::Mpi::Standard($mpi) => $call,
        }
    };
}
pub(crate) use with;

/// The thread support of an initialised MPI.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Threads {
    /// Only the thread that has initialised MPI may call it.
    One,
    /// Any thread may call MPI, one at a time.
    Serialized,
    /// Any threads may call MPI at the same time.
    Multiple,
}

impl Mpi {
    /// The library of this process. The first call searches for it.
    ///
    /// # Errors
    /// No library was found; with all tried paths and the reason why each failed.
    pub(crate) fn get() -> Result<&'static Self, Unavailable> {
        static FOUND: OnceLock<Result<Mpi, Unavailable>> = OnceLock::new();
        let find = || {
            let found = disco_dl::find("MPI", candidates(), Self::accept);
            found.map_err(|absent| absent.with_remedy(REMEDY))
        };
        FOUND.get_or_init(find).as_ref().map_err(Clone::clone)
    }

    fn accept(library: Library) -> Result<Self, String> {
        if library.address(c"MPI_Init_thread").is_none() {
            return Err("there is no MPI in it".to_owned());
        }
        // SAFETY: the table has the signatures of these functions, which are equal in all ABIs.
        let early = unsafe { Early::resolve(&library) }?;
        let version = early.library_version().ok_or("MPI_Get_library_version failed")?;
        let file = library.file(c"MPI_Init_thread").map(|file| file.display().to_string());
        let name = file.unwrap_or_else(|| library.name().to_owned());
        let about = |abi| About { library: name.clone(), version: version.clone(), abi, early };
        if is_standard(&library) {
            return Installed::new(&library, about(Standard::NAME)).map(Self::Standard);
        }
        match library.address(c"ompi_mpi_comm_world") {
            Some(_) => Installed::new(&library, about(OpenMpi::NAME)).map(Self::Ompi),
            None => Installed::new(&library, about(Mpich::NAME)).map(Self::Mpich),
        }
    }

    pub(crate) fn about(&self) -> &About {
        with!(self, mpi => &mpi.about)
    }
}

impl<A: Abi> Installed<A> {
    fn new(library: &Library, about: About) -> Result<Self, String> {
        // SAFETY: the table has the signatures of these functions, with the handles of this ABI.
        let table = unsafe { Table::resolve(library) }?;
        let constants = A::constants(library, &about.version)?;
        Ok(Self { about, table, constants, faulty: OnceLock::new() })
    }

    /// The reductions that the library computes wrongly. The first call tests them; MPI must be initialised.
    pub(crate) fn faulty_reductions(&self) -> Result<FaultyReductions> {
        if let Some(faulty) = self.faulty.get() {
            return Ok(*faulty);
        }
        let faulty = FaultyReductions::find(|dtype, reduction, from, to| {
            let Some((number, function)) = self.constants.reduction(dtype, reduction) else { return Ok(()) };
            let count = (from.len() / dtype.size()) as c_int;
            let (from, to) = (from.as_ptr().cast(), to.as_mut_ptr().cast());
            // SAFETY: both buffers have `count` elements of the datatype.
            self.about
                .check("MPI_Reduce_local", unsafe { (self.table.reduce_local)(from, to, count, number, function) })
        })?;
        Ok(*self.faulty.get_or_init(|| faulty))
    }
}

/// The candidates in the order of the search: only the path of the variable if it is set; otherwise a library that is
/// already in this process, the library that fits the launcher's environment, other well-known names, and libraries of
/// Python environments.
fn candidates() -> Box<dyn Iterator<Item = Candidate>> {
    if let Some(file) = Variable::read(LIBRARY_VARIABLE).path() {
        return Box::new(iter::once(Candidate::file(file)));
    }
    let mut names = ["libmpi_abi.so.1", "libmpi.so.12", "libmpich.so.12", "libmpi.so.40", "libmpi.so"];
    if env::var_os("OMPI_COMM_WORLD_SIZE").is_some() {
        names.swap(0, 3);
    }
    let python = names.map(|name| format!("lib/{name}"));
    let python = python::installed(&python.each_ref().map(String::as_str), Candidate::File);
    Box::new(iter::once(Candidate::Process).chain(names.map(Candidate::file)).chain(python))
}

/// Whether a library has the standard ABI. MPICH's own library exports the function too, but returns no version.
fn is_standard(library: &Library) -> bool {
    // SAFETY: the function takes two pointers to integers and writes to them.
    let function: Option<unsafe extern "C" fn(*mut c_int, *mut c_int) -> c_int> =
        unsafe { library.function(c"MPI_Abi_get_version") };
    let (mut major, mut minor) = (0, 0);
    // SAFETY: both pointers are valid; the function may be called before the initialisation.
    function.is_some_and(|function| unsafe { function(&mut major, &mut minor) } == 0) && major > 0
}

impl Early {
    fn library_version(&self) -> Option<String> {
        let mut text = [0; MAX_TEXT_BYTES];
        let mut length = 0;
        // SAFETY: the buffer is at least as large as `MPI_MAX_LIBRARY_VERSION_STRING` of all ABIs.
        let code = unsafe { (self.get_library_version)(text.as_mut_ptr(), &mut length) };
        (code == 0).then(|| string(&text))
    }
}

impl About {
    /// The library as a probe, for users.
    pub(crate) fn probe(&self) -> Probe {
        let version = self.version.lines().next().unwrap_or_default().trim().to_owned();
        let (mut major, mut minor) = (0, 0);
        // SAFETY: both pointers are valid; the function may be called before the initialisation.
        _ = unsafe { (self.early.get_version)(&mut major, &mut minor) };
        let details = vec![
            ("ABI".to_owned(), self.abi.to_owned()),
            ("MPI".to_owned(), format!("{major}.{minor}")),
            ("launcher".to_owned(), self.launcher().to_owned()),
        ];
        Probe::new(&*self.library, version).with_details(details)
    }

    /// The path of the library.
    pub(crate) fn library(&self) -> &str {
        &self.library
    }

    /// The first line of the library's version.
    pub(crate) fn name(&self) -> &str {
        self.version.lines().next().unwrap_or_default().trim()
    }

    fn is_open_mpi(&self) -> bool {
        self.abi == OpenMpi::NAME || self.version.starts_with("Open MPI")
    }

    /// The command that starts ranks of this library, for texts.
    pub(crate) fn launcher(&self) -> &'static str {
        if self.is_open_mpi() {
            "Open MPI's mpirun or `srun --mpi=pmix`"
        } else {
            "mpiexec (Hydra), `srun --mpi=pmi2`, or Disco itself"
        }
    }

    /// Whether ranks connect to a process manager with PMI-1, which this crate implements.
    pub(crate) fn speaks_pmi(&self) -> bool {
        !self.is_open_mpi()
    }

    /// Whether MPI is initialised in this process.
    ///
    /// # Errors
    /// MPI is finalised, or fails.
    pub(crate) fn is_initialized(&self) -> Result<bool> {
        let (mut initialized, mut finalized) = (0, 0);
        // SAFETY: the function may be called at any time.
        self.check("MPI_Initialized", unsafe { (self.early.initialized)(&mut initialized) })?;
        // SAFETY: the function may be called at any time.
        self.check("MPI_Finalized", unsafe { (self.early.finalized)(&mut finalized) })?;
        match finalized {
            0 => Ok(initialized != 0),
            _ => Err(Error::state("mpi: MPI is finalised in this process and can't be initialised again")),
        }
    }

    /// Initialises MPI with thread support `multiple`. The caller has checked that MPI is not initialised.
    pub(crate) fn init(&self, multiple: c_int) -> Result<()> {
        let mut provided = 0;
        // SAFETY: null arguments are permitted, and the caller has checked that MPI is not initialised.
        let code =
            unsafe { (self.early.init_thread)(std::ptr::null_mut(), std::ptr::null_mut(), multiple, &mut provided) };
        self.check("MPI_Init_thread", code)
    }

    /// The thread support of MPI, from the ABI's constants of two levels.
    pub(crate) fn threads(&self, serialized: c_int, multiple: c_int) -> Result<Threads> {
        let mut provided = 0;
        // SAFETY: MPI is initialised.
        self.check("MPI_Query_thread", unsafe { (self.early.query_thread)(&mut provided) })?;
        Ok(match provided {
            provided if provided >= multiple => Threads::Multiple,
            provided if provided >= serialized => Threads::Serialized,
            _ => Threads::One,
        })
    }

    /// Finalises MPI.
    pub(crate) fn finalize(&self) -> Result<()> {
        // SAFETY: MPI is initialised and not finalised, and no thread of this process calls it any more.
        self.check("MPI_Finalize", unsafe { (self.early.finalize)() })
    }

    /// Converts the code that `function` has returned to a result.
    #[inline]
    pub(crate) fn check(&self, function: &'static str, code: c_int) -> Result<()> {
        if code == 0 { Ok(()) } else { Err(self.error(function, code)) }
    }

    #[cold]
    fn error(&self, function: &'static str, code: c_int) -> Error {
        let mut text = [0; MAX_TEXT_BYTES];
        let mut length = 0;
        // SAFETY: the buffer is at least as large as `MPI_MAX_ERROR_STRING` of all ABIs.
        let known = unsafe { (self.early.error_string)(code, text.as_mut_ptr(), &mut length) } == 0;
        let message = if known { string(&text) } else { "the library has no text for this code".to_owned() };
        Error::Library { backend: NAME, function, code: code.into(), message }
    }
}

fn string(text: &[c_char; MAX_TEXT_BYTES]) -> String {
    let bytes: Vec<u8> = text.iter().map(|byte| byte.cast_unsigned()).collect();
    let text = CStr::from_bytes_until_nul(&bytes).unwrap_or_default();
    text.to_string_lossy().trim_end().to_owned()
}

impl<A: Abi> fmt::Debug for Installed<A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.about.fmt(f)
    }
}

disco_core::format_as!(Debug for About, |it| "<{} from {}>", it.name(), it.library);
