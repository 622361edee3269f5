//! The MPI libraries that `cargo xtask check` fetches.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};

use disco_conformance::Fetched;

/// A library in its own folder of the test cache.
#[derive(Clone, Copy)]
pub(crate) struct Library {
    pub(crate) folder: &'static str,
    pub(crate) file: &'static str,
    pub(crate) launcher: &'static [&'static str],
    /// Whether only `cargo xtask test --long` fetches it.
    is_long: bool,
}

pub(crate) const MPICH: Library =
    Library { folder: "mpich-5.0.2", file: "lib/libmpi.so.12", launcher: &["bin/mpiexec"], is_long: false };
pub(crate) const MPICH_STANDARD: Library = Library { file: "lib/libmpi_abi.so.1", ..MPICH };
pub(crate) const OPEN_MPI: Library = Library {
    folder: "openmpi-5.0.11",
    file: "lib/libmpi.so.40",
    launcher: &["bin/mpirun", "--allow-run-as-root", "--oversubscribe"],
    is_long: false,
};
pub(crate) const INTEL: Library =
    Library { folder: "impi-rt-2021.18.1", file: "lib/libmpi.so.12", launcher: &["bin/mpiexec"], is_long: true };
pub(crate) const INTEL_STANDARD: Library = Library { file: "lib/libmpi_abi.so.1", ..INTEL };
/// MPICH 4.0, whose waits spin without yielding.
pub(crate) const DEBIAN_MPICH: Library = Library {
    folder: "debian-mpich",
    file: "usr/lib/x86_64-linux-gnu/libmpich.so.12",
    launcher: &["usr/bin/mpiexec.hydra"],
    is_long: true,
};
/// Open MPI 4.1.
pub(crate) const DEBIAN_OPEN_MPI: Library = Library {
    folder: "debian-openmpi",
    file: "usr/lib/x86_64-linux-gnu/libmpi.so.40",
    launcher: &["usr/bin/mpirun.openmpi", "--allow-run-as-root", "--oversubscribe"],
    is_long: true,
};

impl Library {
    /// The library's folder, or `None`, with a message, if it was not fetched. Panics if it is required and missing.
    pub(crate) fn folder(self) -> Option<PathBuf> {
        let fetched =
            if self.is_long { Fetched::long(self.folder) } else { Fetched::new(self.folder).required_by("mpi") };
        fetched.find()
    }

    /// Runs the `disco` command with this library, without a launcher.
    pub(crate) fn disco(self, folder: &Path, args: &[&str]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_disco"));
        run(self.relocated(&mut command, folder).args(args).env("DISCO_MPI_LIBRARY", folder.join(self.file)))
    }

    /// Runs the `disco` command as `ranks` ranks of the library's launcher.
    pub(crate) fn launch(self, folder: &Path, ranks: usize, args: &[&str]) -> Output {
        let mut command = self.ranks(folder, ranks, Path::new(env!("CARGO_BIN_EXE_disco")));
        run(command.args(args).env("DISCO_MPI_LIBRARY", folder.join(self.file)))
    }

    /// The command that starts `program` as `ranks` ranks of the launcher. The program finds its library itself.
    pub(crate) fn ranks(self, folder: &Path, ranks: usize, program: &Path) -> Command {
        let [launcher, options @ ..] = self.launcher else { panic!() };
        let mut command = Command::new(folder.join(launcher));
        self.relocated(&mut command, folder).args(options).args(["-n", &ranks.to_string()]).arg(program);
        command
    }

    /// Sets the variables that a Debian package needs outside of `/usr`.
    fn relocated<'a>(self, command: &'a mut Command, folder: &Path) -> &'a mut Command {
        match folder.join("usr") {
            usr if usr.is_dir() => {
                command.env("OPAL_PREFIX", &usr).env("LD_LIBRARY_PATH", usr.join("lib/x86_64-linux-gnu"))
            }
            _ => command,
        }
    }
}

/// Serializes runs of ranks: waiting ranks spin and would slow each other down.
pub(crate) fn exclusive() -> MutexGuard<'static, ()> {
    static LOCK: Mutex<()> = Mutex::new(());
    LOCK.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(crate) fn run(command: &mut Command) -> Output {
    let _exclusive = exclusive();
    command.stdin(Stdio::null()).output().unwrap()
}

pub(crate) fn text(output: &Output) -> String {
    [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes).into_owned()).concat()
}
