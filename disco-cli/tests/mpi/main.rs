//! The `disco` command with backend `mpi`, on the MPI libraries that `cargo xtask check` fetches: each under its own
//! launcher, and without a launcher if the library permits it.

#![cfg(feature = "mpi")]
#![allow(clippy::unwrap_used, reason = "tests")]

mod apart;
mod hosts;
mod library;
mod programs;
mod slurm;

use std::collections::BTreeSet;
use std::env;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;

use library::{
    DEBIAN_MPICH, DEBIAN_OPEN_MPI, INTEL, INTEL_STANDARD, Library, MPICH, MPICH_STANDARD, OPEN_MPI, run, text,
};

/// The whole conformance suite on 2 of 4 ranks.
const WHOLE: (&str, &str) = ("2", "");
/// The whole suite, and the parts that depend on the number of workers on others: three make averages that are not exact
/// and splits of two sizes, and four make splits of several workers each.
const EACH_NUMBER: [(&str, &str); 6] =
    [WHOLE, ("3", "f32"), ("3", "abort::"), ("1", "f32"), ("4", "split"), ("4", "meshes")];

/// Runs `parts` of the suite under the launcher with `ranks` ranks: pairs of a number of workers and a filter.
fn conforms(library: Library, ranks: usize, parts: &[(&str, &str)]) {
    let Some(folder) = library.folder() else { return };
    for &(workers, filter) in parts {
        let args = ["check", "--backend", "mpi", "--workers", workers, "--filter", filter];
        let checked = library.launch(&folder, ranks, &args);
        assert!(
            checked.status.success() && text(&checked).contains(" 0 failed"),
            "{workers} workers: {}",
            text(&checked)
        );
    }
}

pub(crate) const BENCH: [&str; 6] = ["bench", "all_reduce", "--backend", "mpi", "--max-bytes", "65536"];

/// Unlike the suite's tensors, these are larger than one piece of a reduction.
#[test]
fn a_tensor_of_several_pieces_is_reduced_without_wrong_elements() {
    let Some(folder) = MPICH.folder() else { return };
    for (operation, dtype, reduction) in [
        ("all_reduce", "bf16", "avg"),
        ("reduce", "u64", "avg"),
        ("reduce_scatter", "bf16", "sum"),
        ("reduce_scatter", "i32", "avg"),
        ("reduce_scatter", "f32", "sum"),
    ] {
        let once = ["--min-bytes", "12M", "--max-bytes", "12M", "--iters", "1", "--warmup-iters", "0"];
        let args = [&["bench", operation, "--backend", "mpi", "--dtype", dtype, "--op", reduction], &once[..]].concat();
        let run = MPICH.disco(&folder, &args);
        assert!(run.status.success() && text(&run).contains("wrong elements: 0"), "{args:?}: {}", text(&run));
    }
}

/// Number of MPICH's files in shared memory.
fn shared_files() -> usize {
    let files = fs::read_dir("/dev/shm").unwrap().filter_map(Result::ok);
    files.filter(|file| file.file_name().to_string_lossy().starts_with("mpich_shm_")).count()
}

/// Asserts that ranks of a session of processes find each other without a launcher, and leave no file behind.
fn assert_needs_no_launcher(library: Library) {
    let Some(folder) = library.folder() else { return };
    // Debian's MPICH spins without yielding, so 3 ranks are slow on fewer than 3 CPUs.
    for workers in if library.folder == DEBIAN_MPICH.folder { &["2"][..] } else { &["2", "3"] } {
        let args = [&BENCH[..], &["--workers", workers]].concat();
        let before = shared_files();
        let run = library.disco(&folder, &args);
        assert!(run.status.success() && text(&run).contains("wrong elements: 0"), "{workers} workers: {}", text(&run));
        assert!(shared_files() <= before, "a file is left in /dev/shm");
    }
}

#[test]
fn a_timeline_names_mpi_as_the_way_of_the_data() {
    let Some(folder) = MPICH.folder() else { return };
    let file = env::temp_dir().join(format!("disco-mpi-trace-{}.json", std::process::id()));
    let (disco, trace) = (env!("CARGO_BIN_EXE_disco"), file.to_str().unwrap());
    let run = ["run", "--workers", "2", "--trace", trace, "--", disco];
    let ended = MPICH.disco(&folder, &[&run[..], &BENCH, &["--workers", "2"]].concat());
    assert!(ended.status.success(), "{}", text(&ended));
    let trace = disco::trace::Trace::read(&file).unwrap();
    fs::remove_file(&file).unwrap();
    let known = trace.workers.iter().filter_map(|worker| worker.recording.as_ref().ok());
    let records = known.flat_map(|recording| &recording.records);
    let paths: BTreeSet<&str> = records.filter_map(|record| Some(record.op.as_ref()?.path.name())).collect();
    assert_eq!(Vec::from_iter(paths), ["MPI"]);
}

#[test]
fn mpich_passes_the_conformance_suite() {
    conforms(MPICH, 4, &EACH_NUMBER);
}

/// The library of the test before, with other handles and constants.
#[test]
fn mpich_with_the_standard_abi_passes_the_conformance_suite() {
    conforms(MPICH_STANDARD, 4, &[WHOLE]);
}

#[test]
fn open_mpi_passes_the_conformance_suite() {
    conforms(OPEN_MPI, 4, &EACH_NUMBER);
}

#[test]
fn intel_mpi_passes_the_conformance_suite() {
    conforms(INTEL, 4, &[WHOLE, ("3", "f32")]);
    conforms(INTEL_STANDARD, 4, &[WHOLE]);
}

#[test]
fn debian_s_mpich_passes_the_conformance_suite() {
    conforms(DEBIAN_MPICH, 2, &[WHOLE]);
}

#[test]
fn debian_s_open_mpi_passes_the_conformance_suite() {
    conforms(DEBIAN_OPEN_MPI, 4, &[WHOLE, ("3", "f32")]);
}

#[test]
fn the_mpich_family_needs_no_launcher() {
    [MPICH, MPICH_STANDARD, INTEL, INTEL_STANDARD, DEBIAN_MPICH].into_iter().for_each(assert_needs_no_launcher);
}

/// As a session of each library needs it, or several sessions.
#[test]
fn bench_and_check_start_the_launcher_of_the_library() {
    let check = ["check", "--backend", "mpi", "--workers", "2", "--filter", "abort::"];
    for library in [MPICH, OPEN_MPI] {
        let Some(folder) = library.folder() else { continue };
        let bench = library.disco(&folder, &BENCH);
        assert!(bench.status.success() && text(&bench).contains("wrong elements: 0"), "{}", text(&bench));
    }
    // Open MPI has the same launcher for both.
    let Some(folder) = MPICH.folder() else { return };
    let check = MPICH.disco(&folder, &check);
    assert!(check.status.success() && text(&check).contains(" 0 failed"), "{}", text(&check));
}

#[test]
fn disco_run_starts_ranks_with_the_launcher_of_the_library() {
    for library in [MPICH, OPEN_MPI] {
        let Some(folder) = library.folder() else { continue };
        let disco = env!("CARGO_BIN_EXE_disco");
        let program = [&["run", "--backend", "mpi", "--workers", "2", "--", disco], &BENCH[..]];
        let run = library.disco(&folder, &program.concat());
        assert!(run.status.success() && text(&run).contains("wrong elements: 0"), "{}", text(&run));
    }
}

/// MPI's launcher accepts one greeting of each process that it has started.
#[test]
fn disco_run_under_the_launcher_leaves_the_greeting_to_the_program() {
    for library in [MPICH, OPEN_MPI] {
        let Some(folder) = library.folder() else { continue };
        let disco = env!("CARGO_BIN_EXE_disco");
        let program = [&["run", "--backend", "mpi", "--", disco], &BENCH[..]];
        let run = library.launch(&folder, 2, &program.concat());
        assert!(run.status.success() && text(&run).contains("wrong elements: 0"), "{}", text(&run));
    }
}

#[test]
fn blocking_calls_pass_the_conformance_suite() {
    for library in [MPICH, OPEN_MPI] {
        let Some(folder) = library.folder() else { continue };
        let mut command = library.ranks(&folder, 2, Path::new(env!("CARGO_BIN_EXE_disco")));
        command.args(["check", "--backend", "mpi", "--workers", "2", "--filter", "f32"]);
        command.env("DISCO_MPI_LIBRARY", folder.join(library.file)).env("DISCO_MPI_BLOCKING", "1");
        let checked = run(&mut command);
        assert!(checked.status.success() && text(&checked).contains(" 0 failed"), "{}", text(&checked));
    }
}

#[test]
fn a_program_without_a_required_launcher_executes_itself_under_it() {
    let Some(folder) = OPEN_MPI.folder() else { return };
    let mut command = Command::new(env!("CARGO_BIN_EXE_disco"));
    command.args(BENCH).env("DISCO_MPI_LIBRARY", folder.join(OPEN_MPI.file));
    let run = run(command.env("DISCO_BACKEND", "mpi").env("DISCO_WORKERS", "2"));
    assert!(run.status.success() && text(&run).contains("wrong elements: 0"), "{}", text(&run));
}

#[test]
fn with_several_libraries_that_of_the_launcher_is_loaded() {
    let (Some(mpich), Some(open_mpi)) = (MPICH.folder(), OPEN_MPI.folder()) else { return };
    let path = env::join_paths([mpich.join("lib"), open_mpi.join("lib")]).unwrap();
    for (library, folder) in [(MPICH, &mpich), (OPEN_MPI, &open_mpi)] {
        let mut command = library.ranks(folder, 2, Path::new(env!("CARGO_BIN_EXE_disco")));
        command.args(BENCH).env_remove("DISCO_MPI_LIBRARY");
        let run = run(command.env("LD_LIBRARY_PATH", &path));
        assert!(run.status.success() && text(&run).contains("wrong elements: 0"), "{}", text(&run));
    }
}

#[test]
fn fewer_ranks_than_workers_are_an_error() {
    let Some(folder) = MPICH.folder() else { return };
    let run = MPICH.launch(&folder, 2, &[&BENCH[..], &["--workers", "3"]].concat());
    let why = "MPI's launcher has started 2 ranks, but the session has 3 workers: start at least 3 ranks";
    assert!(!run.status.success() && text(&run).contains(why), "{}", text(&run));
}

#[test]
fn a_session_of_threads_is_an_error_that_names_sessions_of_processes() {
    let Some(folder) = MPICH.folder() else { return };
    let run = MPICH.disco(&folder, &[&BENCH[..], &["--session", "threads"]].concat());
    let why = "are threads of one process, and MPI has one rank in a process: make the 2 workers processes, with `--session processes`";
    assert!(!run.status.success() && text(&run).contains(why), "{}", text(&run));
}

#[test]
fn a_launcher_of_another_mpi_is_an_error_that_names_the_right_one() {
    let (Some(mpich), Some(open_mpi)) = (MPICH.folder(), OPEN_MPI.folder()) else { return };
    let mut command = MPICH.ranks(&mpich, 2, Path::new(env!("CARGO_BIN_EXE_disco")));
    command.args(BENCH);
    let run = run(command.env("DISCO_MPI_LIBRARY", open_mpi.join(OPEN_MPI.file)));
    let why = "sees only this one, so the launcher belongs to another MPI. Use Open MPI's mpirun";
    assert!(!run.status.success() && text(&run).contains(why), "{}", text(&run));
}

#[test]
fn a_second_session_without_a_launcher_is_an_error() {
    let Some(folder) = MPICH.folder() else { return };
    // Without a launcher beside the library. The suite starts several sessions.
    let alone = env::temp_dir().join(format!("disco-mpi-alone-{}", std::process::id()));
    fs::create_dir_all(&alone).unwrap();
    let library = alone.join("libmpi.so.12");
    _ = fs::remove_file(&library);
    std::os::unix::fs::symlink(folder.join(MPICH.file), &library).unwrap();
    let mut check = Command::new(env!("CARGO_BIN_EXE_disco"));
    check.args(["check", "--backend", "mpi", "--workers", "2", "--filter", "the_others"]);
    // The libraries that it needs.
    let real = folder.join(MPICH.file);
    check.env("LD_LIBRARY_PATH", real.parent().unwrap().join("mpich"));
    let checked = run(check.env("DISCO_MPI_LIBRARY", &library));
    fs::remove_dir_all(alone).unwrap();
    let why =
        "MPI can be initialised only once in a process: start one session, or run the program under MPI's launcher";
    assert!(!checked.status.success() && text(&checked).contains(why), "{}", text(&checked));
}

#[test]
fn a_library_that_is_absent_or_not_mpi_is_the_reason_for_an_unavailable_backend() {
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
    let remedy = "; install one (`pip install mpich`), or set DISCO_MPI_LIBRARY to its path";
    assert!(other.ends_with(&format!("tried libm.so.6: there is no MPI in it{remedy}")), "{other}");
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

/// The environment of Python stands behind a script, as with pyenv.
#[test]
fn a_library_of_the_python_behind_a_shim_is_found_and_without_one_its_folder_is_named() {
    let Some(folder) = MPICH.folder() else { return };
    let root = env::temp_dir().join(format!("disco-mpi-shim-{}", std::process::id()));
    let (venv, shims) = (root.join("venv"), root.join("shims"));
    fs::create_dir_all(&shims).unwrap();
    let mut make = Command::new("python3");
    assert!(make.args(["-m", "venv", "--without-pip"]).arg(&venv).status().unwrap().success());
    let shim = shims.join("python3");
    fs::write(&shim, format!("#!/bin/sh\nexec {}/bin/python3 \"$@\"\n", venv.display())).unwrap();
    fs::set_permissions(&shim, fs::Permissions::from_mode(0o755)).unwrap();
    let mpi = || {
        let mut command = Command::new(env!("CARGO_BIN_EXE_disco"));
        command.args(["backends", "--json"]).env("HOME", &root).env("PATH", &shims);
        command.env_remove("DISCO_MPI_LIBRARY").env_remove("VIRTUAL_ENV").env_remove("CONDA_PREFIX");
        // The libraries that MPICH needs.
        command.env("LD_LIBRARY_PATH", folder.join("lib/mpich"));
        let rows: serde_json::Value = serde_json::from_slice(&run(&mut command).stdout).unwrap();
        rows.as_array().unwrap().iter().find(|row| row["name"] == "mpi").unwrap().clone()
    };
    let absent = mpi();
    let library = venv.join("lib/libmpi.so.12");
    std::os::unix::fs::symlink(folder.join(MPICH.file), &library).unwrap();
    let found = mpi();
    fs::remove_dir_all(&root).unwrap();
    if absent["available"] == true {
        return println!("skipped: this machine has an MPI: {absent}");
    }
    let reason = absent["reason"].as_str().unwrap();
    let places = format!("; tried {}, ", venv.display());
    assert!(reason.contains(&places) && reason.contains(", /usr: it has no lib/libmpi_abi.so.1, "), "{reason}");
    assert_eq!(found["library"].as_str(), library.to_str(), "{found}");
}
