//! Examples over MPI: `digits`, and the C program of `c_host`, which initialises MPI itself.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use crate::library::{Library, MPICH, OPEN_MPI, run, text};
use disco_testing::features::{self, ALL_FEATURES};

pub(crate) const WORKSPACE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/..");

/// Builds an example of the facade and returns the folder of all examples. With the features of the gate, which has
/// built it before.
pub(crate) fn build(example: &str) -> PathBuf {
    let mut cargo = features::cargo(env!("CARGO"));
    let features = ALL_FEATURES.split_whitespace();
    let built = cargo.args(["build", "--quiet", "--workspace", "--example", example]).args(features);
    assert!(built.current_dir(WORKSPACE).status().unwrap().success());
    Path::new(env!("CARGO_BIN_EXE_disco")).parent().unwrap().join("examples")
}

/// The losses that the example prints.
fn losses(command: &mut Command) -> Vec<f64> {
    let output = run(command.args(["--epochs", "2", "--workers", "2", "--json"]));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{}", text(&output)));
    report["losses"].as_array().unwrap().iter().map(|loss| loss.as_f64().unwrap()).collect()
}

#[test]
fn losses_of_digits_with_mpi_equal_those_with_local_within_a_tolerance() {
    let digits = build("digits").join("digits");
    let local = losses(&mut Command::new(&digits));
    assert!(local.len() > 40 && local[local.len() - 1] < local[0] / 2.0, "{local:?}");
    for library in [MPICH, OPEN_MPI] {
        let Some(folder) = library.folder() else { continue };
        let mut ranks = library.ranks(&folder, 2, &digits);
        ranks.args(["--backend", "mpi"]).env("DISCO_MPI_LIBRARY", folder.join(library.file));
        let mpi = losses(&mut ranks);
        let apart = local.iter().zip(&mpi).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max) / local[0];
        assert!(mpi.len() == local.len() && apart <= 1e-4, "{} of the initial loss apart", apart);
    }
}

/// Compiles the C program of `c_host` against an MPI library.
fn c_host(library: Library, folder: &Path) -> PathBuf {
    let examples = build("c_host");
    let program = env::temp_dir().join(format!("disco-host-{}-{}", library.folder, std::process::id()));
    let mut cc = Command::new("cc");
    cc.arg(Path::new(WORKSPACE).join("examples/c_host/host.c")).arg("-o").arg(&program);
    cc.arg("-I").arg(folder.join("include")).arg("-L").arg(folder.join("lib")).arg("-L").arg(&examples);
    cc.args(["-lc_host", &format!("-l:{}", Path::new(library.file).file_name().unwrap().display())]);
    let paths = format!("-Wl,-rpath,{}:{}", folder.join("lib").display(), examples.display());
    assert!(cc.arg(paths).arg("-Wl,--allow-shlib-undefined").status().unwrap().success());
    program
}

#[test]
fn the_ranks_of_the_launcher_are_the_workers_of_a_program_that_does_not_say_how_many() {
    let hello = build("hello").join("hello");
    for library in [MPICH, OPEN_MPI] {
        let Some(folder) = library.folder() else { continue };
        let mut ranks = library.ranks(&folder, 3, &hello);
        let output = run(ranks.env("DISCO_MPI_LIBRARY", folder.join(library.file)));
        let said = text(&output);
        assert!((0..3).all(|worker| said.contains(&format!("worker {worker} of 3 on "))), "{said}");
        assert_eq!(said.matches("worker").count(), 3, "{said}");
    }
}

#[test]
fn a_c_program_lends_its_communicator_to_disco() {
    for library in [MPICH, OPEN_MPI] {
        let Some(folder) = library.folder() else { continue };
        let program = c_host(library, &folder);
        let said = run(library.ranks(&folder, 3, &program).env_remove("DISCO_MPI_LIBRARY"));
        // With `MPI_THREAD_SINGLE`, which suffices for a lent communicator.
        let single = run(library.ranks(&folder, 3, &program).arg("single").env_remove("DISCO_MPI_LIBRARY"));
        fs::remove_file(program).unwrap();
        assert!(said.status.success(), "{}", text(&said));
        let lines = String::from_utf8(said.stdout).unwrap();
        assert_eq!(lines, "a communicator's sum: 3 ranks, 3\na session's sum of ranks: 3\n");
        let why = "this program has initialised MPI for a single thread, and the worker runs on another one: request \
                   MPI_THREAD_MULTIPLE from MPI_Init_thread";
        assert!(!single.status.success() && text(&single).contains(why), "{}", text(&single));
        assert!(text(&single).contains("a communicator's sum: 3 ranks, 3\n"), "{}", text(&single));
    }
}
