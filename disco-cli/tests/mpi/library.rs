//! The libraries that `cargo xtask test` fetches.

use std::env;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};

use disco_conformance::Required;

/// A library in a folder of its own.
#[derive(Clone, Copy)]
pub(crate) struct Library {
    pub(crate) folder: &'static str,
    pub(crate) file: &'static str,
    pub(crate) launcher: &'static [&'static str],
    /// Whether it is fetched for the long tests only.
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
/// 4.0, which never yields.
pub(crate) const DEBIAN_MPICH: Library = Library {
    folder: "debian-mpich",
    file: "usr/lib/x86_64-linux-gnu/libmpich.so.12",
    launcher: &["usr/bin/mpiexec.hydra"],
    is_long: true,
};
/// 4.1.
pub(crate) const DEBIAN_OPEN_MPI: Library = Library {
    folder: "debian-openmpi",
    file: "usr/lib/x86_64-linux-gnu/libmpi.so.40",
    launcher: &["usr/bin/mpirun.openmpi", "--allow-run-as-root", "--oversubscribe"],
    is_long: true,
};

impl Library {
    /// Its folder; none, said or required, where it was not fetched.
    pub(crate) fn folder(self) -> Option<PathBuf> {
        let is_required = Required::from_env().contains("mpi");
        let folder = env::var_os("DISCO_TEST_CACHE").map(|cache| Path::new(&cache).join(self.folder));
        let found = folder.filter(|folder| folder.is_dir());
        assert!(found.is_some() || !is_required || self.is_long, "{} is required: run `cargo xtask test`", self.folder);
        if found.is_none() {
            eprintln!(
                "skipped: {} is not there; `cargo xtask test{}` fetches it",
                self.folder,
                if self.is_long { " --long" } else { "" }
            );
        }
        found
    }

    /// The `disco` command with this library, as it is.
    pub(crate) fn disco(self, folder: &Path, args: &[&str]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_disco"));
        run(self.relocated(&mut command, folder).args(args).env("DISCO_MPI_LIBRARY", folder.join(self.file)))
    }

    /// The same as so many ranks of a launcher.
    pub(crate) fn launch(self, folder: &Path, ranks: usize, args: &[&str]) -> Output {
        let mut command = self.ranks(folder, ranks, Path::new(env!("CARGO_BIN_EXE_disco")));
        run(command.args(args).env("DISCO_MPI_LIBRARY", folder.join(self.file)))
    }

    /// A program as so many ranks of a launcher, which finds its library itself.
    pub(crate) fn ranks(self, folder: &Path, ranks: usize, program: &Path) -> Command {
        let [launcher, options @ ..] = self.launcher else { panic!() };
        let mut command = Command::new(folder.join(launcher));
        self.relocated(&mut command, folder).args(options).args(["-n", &ranks.to_string()]).arg(program);
        command
    }

    /// Says where things are that a package has at home in the root folder.
    fn relocated<'a>(self, command: &'a mut Command, folder: &Path) -> &'a mut Command {
        match folder.join("usr") {
            usr if usr.is_dir() => {
                command.env("OPAL_PREFIX", &usr).env("LD_LIBRARY_PATH", usr.join("lib/x86_64-linux-gnu"))
            }
            _ => command,
        }
    }
}

/// One at a time: ranks that wait keep their processors busy.
pub(crate) fn turn() -> MutexGuard<'static, ()> {
    static ONE: Mutex<()> = Mutex::new(());
    ONE.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(crate) fn run(command: &mut Command) -> Output {
    let _turn = turn();
    command.stdin(Stdio::null()).output().unwrap()
}

pub(crate) fn text(output: &Output) -> String {
    [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes).into_owned()).concat()
}
