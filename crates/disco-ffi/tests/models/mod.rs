//! The functions that TVM's compiled models call on workers, their weights, and the models themselves, over threads, processes and
//! MPI.
//!
//! Each test runs in a process of its own, because MPI can be started once per process.

mod compiled;
mod runtime;
mod shards;

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use disco::{Builder, LaneSession, SessionKind, block_on};
use disco_conformance::Fetched;
use libtest_mimic::{Failed, Trial};

use crate::library;

/// Set in the process of one test.
const CHILD: &str = "DISCO_MODELS_TEST";
/// Path of the test libraries and models in the process of a test, whose parent has made them.
const FOLDER: &str = "DISCO_MODELS_FOLDER";

const MPICH: Fetched = Fetched::new("mpich-5.0.2/lib/libmpi.so.12").required_by("mpi");

/// Held while a test of MPI runs.
static RANKS: Mutex<()> = Mutex::new(());

/// A kind of session, and the backend of its data plane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Plane {
    Threads,
    Processes,
    Mpi,
}

const PLANES: [Plane; 3] = [Plane::Threads, Plane::Processes, Plane::Mpi];

impl Plane {
    const fn name(self) -> &'static str {
        match self {
            Self::Threads => "threads",
            Self::Processes => "processes",
            Self::Mpi => "mpi",
        }
    }

    fn builder(self, workers: usize) -> Builder {
        let kind = if self == Self::Threads { SessionKind::Threads } else { SessionKind::Processes };
        Builder::new(kind, workers).collective_deadline(Duration::from_secs(30))
    }

    fn backend(self) -> &'static str {
        if self == Self::Mpi { "mpi" } else { "local" }
    }

    /// A session with communicators.
    fn session(self, workers: usize, groups: usize) -> LaneSession {
        self.connect(self.builder(workers).groups(groups))
    }

    fn connect(self, builder: Builder) -> LaneSession {
        let session = builder.start().unwrap();
        block_on(session.init_ccl(self.backend(), &[])).unwrap();
        session
    }
}

/// A test of one plane.
#[derive(Clone, Copy)]
struct Test {
    name: &'static str,
    run: fn(Plane),
    /// Makes the files of the test, in the process of the harness. False if something is not there, with a line on
    /// standard error.
    prepare: fn() -> bool,
}

/// Names tests after their functions.
macro_rules! tests {
    ($prepare:path; $($name:ident),* $(,)?) => {
        pub(crate) fn tests() -> Vec<crate::models::Test> {
            vec![$(crate::models::Test { name: stringify!($name), run: $name, prepare: $prepare }),*]
        }
    };
}
pub(crate) use tests;

pub(crate) fn trials() -> impl Iterator<Item = Trial> {
    let tests = [runtime::tests(), shards::tests(), compiled::tests()].concat();
    tests.into_iter().flat_map(|test| PLANES.map(|plane| trial(test, plane)))
}

fn trial(test: Test, plane: Plane) -> Trial {
    let name = format!("models::{}::{}", test.name, plane.name());
    Trial::test(name.clone(), move || {
        if env::var_os(CHILD).is_some() {
            (test.run)(plane);
            return Ok(());
        }
        let Some(tvm) = disco_conformance::libtvm_ffi() else { return Ok(()) };
        if !(test.prepare)() {
            return Ok(());
        }
        let mut child = Command::new(env::current_exe()?);
        child.args(["--exact", &name]).env(CHILD, "").env(FOLDER, library::folder()).env("DISCO_TVM_FFI_LIBRARY", tvm);
        if plane == Plane::Mpi {
            let Some(mpi) = MPICH.find() else { return Ok(()) };
            child.env("DISCO_MPI_LIBRARY", mpi);
        }
        if !test.name.starts_with("without_libtvm_runtime") {
            child.envs(compiled::runtime().map(|folder| ("LD_LIBRARY_PATH", folder)));
        }
        // Waiting ranks spin, and would slow those of other tests down.
        let _alone = (plane == Plane::Mpi).then(|| RANKS.lock().unwrap_or_else(PoisonError::into_inner));
        let output = child.output()?;
        let [text, errors] = [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
        if output.status.success() && text.contains("1 passed") {
            Ok(())
        } else {
            Err(Failed::from(format!("{}\n{text}\n{errors}", output.status)))
        }
    })
}

/// A file that the parent process has made.
fn made(name: &str) -> PathBuf {
    Path::new(&env::var_os(FOLDER).unwrap()).join(name)
}
