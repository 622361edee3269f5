//! Ranks of a session of processes over a real MPI, fetched by `cargo xtask check`, that die or exit.

use std::process::Command;

use disco_conformance::Fetched;

use super::programs;

super::tests!(
    "mpi":
    a_rank_killed_inside_a_collective_of_mpi_is_lost_with_its_signal,
    a_rank_stopped_inside_a_collective_of_mpi_is_lost_after_the_silence_limit,
    a_rank_that_exits_without_finalizing_is_lost_with_its_status,
    ranks_connect_again_after_a_failure,
    a_rank_that_was_replaced_can_not_join_mpi,
    a_worker_of_a_subset_can_not_join_mpi,
    the_first_ranks_of_mpi_go_on_without_the_last_one,
    a_rank_of_mpi_can_not_get_another_number,
    a_message_over_mpi_shorter_than_its_receive_is_an_error,
    splits_of_cancelled_calls_end_and_later_calls_meet_no_operation_of_theirs,
    nan_wins_and_own_reductions_are_compared,
    all_ranks_end_when_the_program_exits_inside_a_collective,
);

/// The folder of the MPI library.
const MPICH: Fetched = Fetched::new("mpich-5.0.2").required_by("mpi");

/// The output of the program `mpi` with argument `how`, or `None` without an MPI library.
fn end_of(how: &str) -> Option<String> {
    let library = MPICH.find()?.join("lib/libmpi.so.12");
    let output = programs::command("mpi").arg(how).env("DISCO_MPI_LIBRARY", library).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    // A table of the workers' operations follows.
    Some(String::from_utf8(output.stdout).unwrap().lines().next().unwrap().to_owned())
}

fn splits_of_cancelled_calls_end_and_later_calls_meet_no_operation_of_theirs() {
    let Some(said) = end_of("cancel") else { return };
    assert_eq!(said, "cancelled");
}

fn nan_wins_and_own_reductions_are_compared() {
    let Some(said) = end_of("reduce") else { return };
    assert_eq!(said, "max: NaN 2; min: NaN 0; names: ranks disagree; rows: ranks disagree; counts: ranks disagree");
}

fn a_rank_killed_inside_a_collective_of_mpi_is_lost_with_its_signal() {
    let Some(said) = end_of("KILL") else { return };
    assert_eq!(said, "worker 2 lost: its process ended: signal: 9 (SIGKILL)");
}

fn a_rank_stopped_inside_a_collective_of_mpi_is_lost_after_the_silence_limit() {
    let Some(said) = end_of("STOP") else { return };
    assert_eq!(said, "worker 2 lost: no message came from it for 700ms");
}

fn a_rank_that_exits_without_finalizing_is_lost_with_its_status() {
    let Some(said) = end_of("exit") else { return };
    assert_eq!(said, "worker 2 lost: its process ended: exit status: 3");
}

fn ranks_connect_again_after_a_failure() {
    let Some(said) = end_of("again") else { return };
    assert_eq!(said, "reduced again");
}

fn a_rank_that_was_replaced_can_not_join_mpi() {
    let Some(said) = end_of("replace") else { return };
    assert!(
        said.starts_with("worker ")
            && said.ends_with(
                "mpi: worker 2 joined after the others had initialised MPI, which takes no ranks then: end the session, and start again, \
                 from a checkpoint if there is one"
            ),
        "{said}"
    );
}

fn a_worker_of_a_subset_can_not_join_mpi() {
    let Some(said) = end_of("subset") else { return };
    assert!(said.ends_with("use MPI in the parent session, and another backend in the subset"), "{said}");
}

fn the_first_ranks_of_mpi_go_on_without_the_last_one() {
    let Some(said) = end_of("shrink") else { return };
    assert_eq!(said, "reduced by 2 ranks");
}

fn a_rank_of_mpi_can_not_get_another_number() {
    let Some(said) = end_of("renumber") else { return };
    assert!(
        said.starts_with("worker 1: ")
            && said.ends_with(
                "mpi: rank 1 is rank 2 of MPI's world, whose ranks keep their numbers; if the session was resized: end it, and \
                 start again, from a checkpoint if there is one"
            ),
        "{said}"
    );
}

fn a_message_over_mpi_shorter_than_its_receive_is_an_error() {
    let Some(said) = end_of("short") else { return };
    assert!(said.contains("recv: ranks disagree: rank 1 has sent 8 bytes, 16 bytes are expected"), "{said}");
}

fn all_ranks_end_when_the_program_exits_inside_a_collective() {
    let Some(folder) = MPICH.find() else { return };
    let program = programs::command("mpi");
    let mut launcher = Command::new(folder.join("bin/mpiexec"));
    launcher.args(["-n", "3"]).arg(program.get_program()).arg("leave");
    launcher.envs(program.get_envs().filter_map(|(name, value)| Some((name, value?))));
    let output = launcher.env("DISCO_MPI_LIBRARY", folder.join("lib/libmpi.so.12")).output().unwrap();
    assert_eq!(output.status.code(), Some(3), "{}", String::from_utf8_lossy(&output.stderr));
}
