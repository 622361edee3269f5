//! Slurm for real, with `DISCO_LONG_TESTS`: two machines in namespaces of this one, by `testing/scripts/slurm.sh`, which names
//! the Debian packages that it needs. `DISCO_REQUIRE=slurm` makes it a failure that they do not run.

use std::env;
use std::path::Path;
use std::process::Command;

use disco_conformance::Required;

use crate::library::{Library, MPICH, OPEN_MPI, run, text};
use crate::programs::{WORKSPACE, build};

const DISCO: &str = env!("CARGO_BIN_EXE_disco");

/// A command under Slurm, if the long tests run and Slurm is installed. Panics if Slurm is required and does not run.
fn slurm(words: &[&str]) -> Option<Command> {
    let is_installed = ["slurmctld", "munged"].iter().all(|daemon| Path::new("/usr/sbin").join(daemon).exists());
    let why = match (env::var_os("DISCO_LONG_TESTS"), is_installed) {
        (Some(_), true) => None,
        (None, _) => Some("tests under Slurm run with DISCO_LONG_TESTS=1"),
        (_, false) => Some("no Slurm here; `testing/scripts/slurm.sh` names the packages"),
    };
    if let Some(why) = why {
        assert!(!Required::from_env().contains("slurm"), "DISCO_REQUIRE: {why}");
        eprintln!("skipped: {why}");
        return None;
    }
    let mut command = Command::new(Path::new(WORKSPACE).join("testing/scripts/slurm.sh"));
    command.args(["timeout", "60", "srun"]).args(words).env("DISCO_TOKEN", "8d15c6f5e0a94c3f8d15c6f5e0a94c3f");
    Some(command)
}

/// Asserts that the workers of two machines greet, the first half from the first machine.
fn assert_greets(command: &mut Command, workers: usize) {
    let output = run(command);
    let said = text(&output);
    let greeting = |worker: usize| format!("worker {worker} of {workers} on dn{}\n", 1 + worker * 2 / workers);
    assert!(output.status.success() && (0..workers).all(|worker| said.contains(&greeting(worker))), "{said}");
}

fn with(command: &mut Command, library: Library, folder: &Path) {
    command.env("DISCO_MPI_LIBRARY", folder.join(library.file));
    // Else Open MPI prints that its help files are missing.
    command.env("PMIX_MCA_psec", "native").env("PMIX_MCA_gds", "hash");
}

#[test]
fn tasks_of_srun_without_mpi_are_nodes() {
    let hello = build("hello").join("hello").display().to_string();
    for (words, workers) in [
        (&["--nodes", "2", "--ntasks", "2", &hello][..], 2),
        (&["--nodes", "2", "--ntasks", "4", DISCO, "run", "--groups", "2", "--", &hello], 4),
    ] {
        let Some(mut command) = slurm(words) else { return };
        assert_greets(&mut command, workers);
    }
}

#[test]
fn ranks_of_srun_are_workers_with_mpich_and_with_open_mpi() {
    let hello = build("hello").join("hello").display().to_string();
    for (library, mpi) in [(MPICH, "--mpi=pmi2"), (OPEN_MPI, "--mpi=pmix")] {
        let Some(folder) = library.folder() else { continue };
        let srun = [mpi, "--nodes", "2", "--ntasks", "4"];
        for program in [&[&*hello][..], &[DISCO, "run", "--backend", "mpi", "--", &hello]] {
            let Some(mut command) = slurm(&[&srun, program].concat()) else { return };
            with(&mut command, library, &folder);
            assert_greets(&mut command, 4);
        }
    }
}

#[test]
fn digits_trains_over_mpich_under_srun() {
    let digits = build("digits").join("digits").display().to_string();
    let program = [DISCO, "run", "--backend", "mpi", "--workers", "4", "--", &digits, "--epochs", "2"];
    let Some(mut command) = slurm(&[&["--mpi=pmi2", "--nodes", "2", "--ntasks", "4"], &program[..]].concat()) else {
        return;
    };
    let Some(folder) = MPICH.folder() else { return };
    with(&mut command, MPICH, &folder);
    let output = run(&mut command);
    assert!(output.status.success() && text(&output).contains("test accuracy 0.9"), "{}", text(&output));
}

#[test]
fn srun_that_starts_no_mpi_is_an_error_that_names_the_option() {
    let hello = build("hello").join("hello").display().to_string();
    let Some(mut command) = slurm(&["--mpi=none", "--nodes", "2", "--ntasks", "2", &hello]) else { return };
    let Some(folder) = MPICH.folder() else { return };
    with(command.env("DISCO_BACKEND", "mpi"), MPICH, &folder);
    let output = run(&mut command);
    let said = text(&output);
    assert!(
        !output.status.success() && said.contains("Use mpiexec (Hydra), `srun --mpi=pmi2`, or Disco itself"),
        "{said}"
    );
}

/// Trains `digits` with the tasks of `srun`, kills the last task, and asserts that the controller's error names it.
fn assert_names_killed(srun: &[&str], last: usize, options: &str, prepare: impl Fn(&mut Command)) {
    let digits = build("digits").join("digits").display().to_string();
    // The shell becomes the task, so that the process to kill is known.
    let task = format!(
        "if [ $SLURM_PROCID = {last} ]; then task=$$; (sleep 3; kill -KILL $task) & fi; exec {digits} --epochs 65535 \
         {options} --workers {}",
        last + 1
    );
    let Some(mut command) = slurm(&[srun, &["sh", "-c", &task]].concat()) else { return };
    prepare(&mut command);
    let output = run(&mut command);
    let said = text(&output);
    assert!(!output.status.success() && said.contains(&format!("worker {last}")) && said.contains(" lost: "), "{said}");
}

#[test]
fn the_error_of_a_killed_task_of_srun_names_its_worker() {
    assert_names_killed(&["--nodes", "1", "--ntasks", "2"], 1, "--session processes", |_| {});
}

#[test]
fn the_error_of_a_killed_rank_of_srun_names_its_worker() {
    let Some(folder) = MPICH.folder() else { return };
    let srun = ["--mpi=pmi2", "--nodes", "2", "--ntasks", "4"];
    assert_names_killed(&srun, 3, "--backend mpi", |command| with(command, MPICH, &folder));
}
