//! Which MPI this process has: found once, and kept.

#![allow(unsafe_code)]

use std::env;
use std::ffi::{CStr, OsString, c_char, c_int};
use std::fmt;
use std::sync::OnceLock;

use disco_core::env::Variable;
use disco_core::{Error, Probe, Result, Unavailable};
use disco_dl::{Candidate, Library, python};

use crate::NAME;
use crate::abi::{Abi, Constants, Mpich, OpenMpi, Standard};
use crate::numbers::FaultyReductions;
use crate::table::{Early, Table};

/// Names the library, in place of the search.
const LIBRARY_VARIABLE: &str = "DISCO_MPI_LIBRARY";
/// Room for any text of a library.
const MAX_TEXT_BYTES: usize = 8192;

/// A library with its table and constants.
pub(crate) struct Installed<A: Abi> {
    pub(crate) about: About,
    pub(crate) table: Table<A::Handle>,
    pub(crate) constants: Constants<A::Handle>,
    faulty: OnceLock<FaultyReductions>,
}

/// What is alike in all ABIs.
pub(crate) struct About {
    /// Where it was loaded from.
    library: String,
    /// Its version, in its own words.
    version: String,
    abi: &'static str,
    early: Early,
}

/// The library of this process, by its ABI.
#[derive(Debug)]
pub(crate) enum Mpi {
    Mpich(Installed<Mpich>),
    Ompi(Installed<OpenMpi>),
    Standard(Installed<Standard>),
}

/// An expression for the library of any ABI.
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

/// What MPI does with threads of a process that has initialised it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Threads {
    /// Only the thread that has initialised it may call.
    One,
    /// Any, one at a time.
    Serialized,
    /// Any.
    Multiple,
}

impl Mpi {
    /// The library, which is searched for once.
    ///
    /// # Errors
    /// Every path that was tried, and why it would not do.
    pub(crate) fn get() -> Result<&'static Self, Unavailable> {
        static FOUND: OnceLock<Result<Mpi, Unavailable>> = OnceLock::new();
        FOUND.get_or_init(|| disco_dl::find("MPI", candidates(), Self::accept)).as_ref().map_err(Clone::clone)
    }

    fn accept(library: Library) -> Result<Self, String> {
        if library.address(c"MPI_Init_thread").is_none() {
            return Err("there is no MPI in it".to_owned());
        }
        // SAFETY: these are MPI's functions, whose arguments are the same in every ABI.
        let early = unsafe { Early::resolve(&library) }?;
        let version = early.library_version().ok_or("MPI_Get_library_version says nothing")?;
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
        // SAFETY: these are MPI's functions, with handles of its ABI.
        let table = unsafe { Table::resolve(library) }?;
        let constants = A::constants(library, &about.version)?;
        Ok(Self { about, table, constants, faulty: OnceLock::new() })
    }

    /// What it computes wrongly, found out once, after its initialisation.
    pub(crate) fn faulty_reductions(&self) -> Result<FaultyReductions> {
        if let Some(faulty) = self.faulty.get() {
            return Ok(*faulty);
        }
        let faulty = FaultyReductions::find(|dtype, reduction, from, to| {
            let Some((number, function)) = self.constants.reduction(dtype, reduction) else { return Ok(()) };
            let count = (from.len() / dtype.size()) as c_int;
            let (from, to) = (from.as_ptr().cast(), to.as_mut_ptr().cast());
            // SAFETY: both have so many elements.
            self.about
                .check("MPI_Reduce_local", unsafe { (self.table.reduce_local)(from, to, count, number, function) })
        })?;
        Ok(*self.faulty.get_or_init(|| faulty))
    }
}

/// The override alone; or what is in this process already, what the launcher's environment implies, all others, and those of
/// Python's environments.
fn candidates() -> Vec<Candidate> {
    if let Some(file) = Variable::read(LIBRARY_VARIABLE).path() {
        return vec![Candidate::file(file)];
    }
    let mut names = ["libmpi_abi.so.1", "libmpi.so.12", "libmpich.so.12", "libmpi.so.40", "libmpi.so"];
    if env::var_os("OMPI_COMM_WORLD_SIZE").is_some() {
        names.swap(0, 3);
    }
    let python = python::installed(&names.map(|name| format!("lib/{name}")).each_ref().map(String::as_str));
    let files = names.map(OsString::from).into_iter().chain(python.into_iter().map(OsString::from));
    std::iter::once(Candidate::Process).chain(files.map(Candidate::File)).collect()
}

/// MPICH's own library has this function, too, and says that it has no such ABI.
fn is_standard(library: &Library) -> bool {
    // SAFETY: it takes two pointers to numbers, which it fills.
    let function: Option<unsafe extern "C" fn(*mut c_int, *mut c_int) -> c_int> =
        unsafe { library.function(c"MPI_Abi_get_version") };
    let (mut major, mut minor) = (0, 0);
    // SAFETY: both numbers are there; it may be called before initialisation.
    function.is_some_and(|function| unsafe { function(&mut major, &mut minor) } == 0) && major > 0
}

impl Early {
    fn library_version(&self) -> Option<String> {
        let mut text = [0; MAX_TEXT_BYTES];
        let mut length = 0;
        // SAFETY: no library's text is longer.
        let code = unsafe { (self.get_library_version)(text.as_mut_ptr(), &mut length) };
        (code == 0).then(|| string(&text))
    }
}

impl About {
    /// For users.
    pub(crate) fn probe(&self) -> Probe {
        let version = self.version.lines().next().unwrap_or_default().trim().to_owned();
        let (mut major, mut minor) = (0, 0);
        // SAFETY: both numbers are there; it may be called before initialisation.
        _ = unsafe { (self.early.get_version)(&mut major, &mut minor) };
        let details = vec![
            ("ABI".to_owned(), self.abi.to_owned()),
            ("MPI".to_owned(), format!("{major}.{minor}")),
            ("launcher".to_owned(), self.launcher().to_owned()),
        ];
        Probe::new(&*self.library, version).with_details(details)
    }

    /// Where it was loaded from.
    pub(crate) fn library(&self) -> &str {
        &self.library
    }

    /// What the first line of its version says.
    pub(crate) fn name(&self) -> &str {
        self.version.lines().next().unwrap_or_default().trim()
    }

    fn is_open_mpi(&self) -> bool {
        self.abi == OpenMpi::NAME || self.version.starts_with("Open MPI")
    }

    /// The command that starts its ranks.
    pub(crate) fn launcher(&self) -> &'static str {
        if self.is_open_mpi() { "Open MPI's mpirun" } else { "mpiexec (Hydra), or Disco itself" }
    }

    /// Whether a rank asks a process manager by PMI-1, which this crate can be.
    pub(crate) fn speaks_pmi(&self) -> bool {
        !self.is_open_mpi()
    }

    /// Whether somebody in this process has initialised it.
    pub(crate) fn is_initialized(&self) -> Result<bool> {
        let (mut initialized, mut finalized) = (0, 0);
        // SAFETY: both may be called at any time.
        self.check("MPI_Initialized", unsafe { (self.early.initialized)(&mut initialized) })?;
        // SAFETY: as above.
        self.check("MPI_Finalized", unsafe { (self.early.finalized)(&mut finalized) })?;
        match finalized {
            0 => Ok(initialized != 0),
            _ => Err(Error::state("mpi: MPI is finalised in this process, and can't be initialised again")),
        }
    }

    /// Initialises it, to be called from any thread.
    pub(crate) fn init(&self, multiple: c_int) -> Result<()> {
        let mut provided = 0;
        // SAFETY: MPI may be initialised without arguments, once, which the caller has looked for.
        let code =
            unsafe { (self.early.init_thread)(std::ptr::null_mut(), std::ptr::null_mut(), multiple, &mut provided) };
        self.check("MPI_Init_thread", code)
    }

    /// What threads may do.
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

    /// Ends it.
    pub(crate) fn finalize(&self) -> Result<()> {
        // SAFETY: MPI is initialised and not finalised, and nobody uses it any more.
        self.check("MPI_Finalize", unsafe { (self.early.finalize)() })
    }

    /// Its error, if a function returned one.
    #[inline]
    pub(crate) fn check(&self, function: &'static str, code: c_int) -> Result<()> {
        if code == 0 { Ok(()) } else { Err(self.error(function, code)) }
    }

    #[cold]
    fn error(&self, function: &'static str, code: c_int) -> Error {
        let mut text = [0; MAX_TEXT_BYTES];
        let mut length = 0;
        // SAFETY: no library's text is longer.
        let known = unsafe { (self.early.error_string)(code, text.as_mut_ptr(), &mut length) } == 0;
        let message = if known { string(&text) } else { "an error that it has no text for".to_owned() };
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

impl fmt::Debug for About {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "<{} from {}>", self.name(), self.library)
    }
}
