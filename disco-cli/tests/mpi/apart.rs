//! Sessions over MPI whose worker 0 is a process of its own: under a launcher rank 0 is the controller alone, and without one the controller has no part in
//! MPI.

use std::env;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use disco::{Builder, block_on};

use crate::BENCH;
use crate::library::{MPICH, OPEN_MPI, run, text};
use crate::programs::build;

const DISCO: &str = env!("CARGO_BIN_EXE_disco");

#[test]
fn n_workers_are_the_ranks_after_rank_0() {
    let hello = build("hello").join("hello").display().to_string();
    let run_hello = [DISCO, "run", "--apart", "--backend", "mpi", "--groups", "2", "--", &hello];
    for (library, program) in [(MPICH, &run_hello[..]), (OPEN_MPI, &[&hello])] {
        let Some(folder) = library.folder() else { continue };
        let mut ranks = library.ranks(&folder, 5, Path::new(program[0]));
        ranks.args(&program[1..]).env("DISCO_APART", "1").env("DISCO_MPI_LIBRARY", folder.join(library.file));
        let said = text(&run(&mut ranks));
        assert!((0..4).all(|worker| said.contains(&format!("worker {worker} of 4 on "))), "{said}");
    }
}

/// One of 5 ranks is not used by 3 workers.
#[test]
fn ranks_after_rank_0_conform_also_in_groups() {
    let in_groups = ["--workers", "4", "--groups", "2"];
    for (library, options) in [(MPICH, &["--workers", "3"][..]), (OPEN_MPI, &in_groups)] {
        let Some(folder) = library.folder() else { continue };
        let check = [&["check", "--apart", "--backend", "mpi", "--filter", "f32"], options].concat();
        let checked = library.launch(&folder, 5, &check);
        assert!(checked.status.success() && text(&checked).contains(" 0 failed"), "{}", text(&checked));
    }
}

#[test]
fn ranks_after_rank_0_are_workers_of_nodes() {
    let Some(folder) = MPICH.folder() else { return };
    let ran = MPICH.launch(&folder, 3, &[&BENCH[..], &["--apart", "--session", "nodes"]].concat());
    assert!(ran.status.success() && text(&ran).contains("wrong elements: 0"), "{}", text(&ran));
}

#[test]
fn as_many_ranks_as_workers_are_an_error_that_names_the_controller_s() {
    let Some(folder) = MPICH.folder() else { return };
    let ran = MPICH.launch(&folder, 2, &[&BENCH[..], &["--apart"]].concat());
    let why = "MPI's launcher has started 2 ranks, but the session has 2 workers besides rank 0, which is the controller alone: \
               start at least 3 ranks, or set DISCO_BACKEND to a backend other than mpi";
    assert!(!ran.status.success() && text(&ran).contains(why), "{}", text(&ran));
}

/// By the options of `disco bench` and of `disco run`, and by the variables.
#[test]
fn disco_starts_one_rank_more_where_the_library_needs_a_launcher() {
    let bench = [&BENCH[..], &["--apart"]].concat();
    let run_bench = [&["run", "--apart", "--backend", "mpi", "--workers", "2", "--", DISCO], &bench[..]].concat();
    let Some(folder) = OPEN_MPI.folder() else { return };
    for args in [bench, run_bench] {
        let ran = OPEN_MPI.disco(&folder, &args);
        assert!(ran.status.success() && text(&ran).contains("wrong elements: 0"), "{args:?}: {}", text(&ran));
    }
    let mut hello = Command::new(build("hello").join("hello"));
    hello.env("DISCO_MPI_LIBRARY", folder.join(OPEN_MPI.file));
    let said = text(&run(hello.envs([("DISCO_BACKEND", "mpi"), ("DISCO_WORKERS", "2"), ("DISCO_APART", "1")])));
    assert!((0..2).all(|worker| said.contains(&format!("worker {worker} of 2 on "))), "{said}");
}

/// Each session starts its ranks, so the program needs no launcher for several.
#[test]
#[allow(unsafe_code, reason = "a function that takes a handle of MPI")]
fn the_controller_has_several_sessions_without_a_launcher_and_does_not_initialise_mpi() {
    disco::init_test!();
    let Some(folder) = MPICH.folder() else { return };
    let library = folder.join(MPICH.file);
    if env::var_os("DISCO_MPI_LIBRARY").is_none_or(|given| Path::new(&given) != library) {
        let name = "apart::the_controller_has_several_sessions_without_a_launcher_and_does_not_initialise_mpi";
        let mut again = Command::new(env::current_exe().unwrap());
        let ended = run(again.args(["--exact", name, "--nocapture"]).env("DISCO_MPI_LIBRARY", library));
        assert!(ended.status.success(), "{}", text(&ended));
        return;
    }
    for _ in 0..2 {
        let session = Builder::processes(2).apart(true).start().unwrap();
        block_on(async {
            session.init_ccl("mpi", &[]).await.unwrap();
            session.barrier(disco::Scope::World).await.unwrap();
            session.shutdown().await.unwrap();
        });
    }
    // SAFETY: the function does not use the handle, because MPI is not initialised.
    let connected = unsafe { disco::mpi::connect_comm(0, Duration::from_secs(1)) };
    let why = connected.unwrap_err().to_string();
    assert!(why.contains(" is not initialised; initialise MPI first"), "{why}");
}
