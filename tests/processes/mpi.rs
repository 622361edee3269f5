//! Ranks of a real MPI that die: the library that `cargo xtask test` fetches, whose ranks a session of processes starts itself.

use std::path::Path;

use disco_conformance::Required;

use crate::programs;

crate::tests!(
    a_rank_killed_inside_a_collective_of_mpi_is_named,
    a_rank_stopped_inside_a_collective_of_mpi_is_named,
    a_rank_that_exits_without_finalizing_is_named,
);

/// What the program prints whose worker 2 comes to this end inside an all-reduce; none if there is no MPI.
fn end_of(how: &str) -> Option<String> {
    let cache = std::env::var_os("DISCO_TEST_CACHE");
    let library = cache.map(|cache| Path::new(&cache).join("mpich-5.0.2/lib/libmpi.so.12"));
    let Some(library) = library.filter(|library| library.is_file()) else {
        assert!(!Required::from_env().contains("mpi"), "MPI is required: run `cargo xtask test`");
        eprintln!("skipped: there is no MPI; `cargo xtask test` fetches one");
        return None;
    };
    let output = programs::command("mpi").arg(how).env("DISCO_MPI_LIBRARY", library).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Some(String::from_utf8(output.stdout).unwrap())
}

fn a_rank_killed_inside_a_collective_of_mpi_is_named() {
    let Some(said) = end_of("KILL") else { return };
    assert_eq!(said, "worker 2 lost: its process ended: signal: 9 (SIGKILL)\n");
}

fn a_rank_stopped_inside_a_collective_of_mpi_is_named() {
    let Some(said) = end_of("STOP") else { return };
    assert_eq!(said, "worker 2 lost: it has said nothing for 700ms\n");
}

fn a_rank_that_exits_without_finalizing_is_named() {
    let Some(said) = end_of("exit") else { return };
    assert_eq!(said, "worker 2 lost: its process ended: exit status: 3\n");
}
