//! Workers that are ranks of MPI. The library is named by the environment, so they run in a process of their own.

use std::env;
use std::process::Command;

use candle_core::quantized::GgmlDType;
use disco::SessionKind;
use disco_conformance::Fetched;
use disco_models::Precision;

use super::fleets::expect_same_bits;
use super::random::{Model, NINE_HEADS};
use super::reference::Reference;
use super::tokens::{COUNT, batch, prompt, tokens_over};

/// The variable of the processes with ranks: they compute `tokens` or `logits`.
const RUNS_RANKS: &str = "LLAMA_OVER_MPI";

const MPICH: Fetched = Fetched::new("mpich-5.0.2/lib/libmpi.so.12").required_by("mpi");

#[test]
fn tokens_and_logits_over_mpi_are_those_of_one_process() {
    disco::init_test!();
    // A process has one session of MPI.
    match env::var(RUNS_RANKS).as_deref() {
        Ok("tokens") => {
            let model = Model::gguf(NINE_HEADS, 1, GgmlDType::F32);
            let prompt = prompt(11, 0, NINE_HEADS.vocabulary);
            let (expected, _) = Reference::open(&model.path()).generate(&prompt, COUNT);
            let found = tokens_over("mpi", SessionKind::Processes, 2, &model.path(), &batch(&[prompt]), COUNT);
            return assert_eq!(found, [expected]);
        }
        Ok(_) => return expect_same_bits("mpi", SessionKind::Processes, 3, Precision::File),
        Err(_) => {}
    }
    let Some(library) = MPICH.find() else { return };
    for what in ["tokens", "logits"] {
        let mut ranks = Command::new(env::current_exe().unwrap());
        let name = "transformer::mpi::tokens_and_logits_over_mpi_are_those_of_one_process";
        ranks.args(["--exact", name, "--nocapture"]);
        let ended = ranks.env(RUNS_RANKS, what).env("DISCO_MPI_LIBRARY", &library).output().unwrap();
        let text = String::from_utf8_lossy(&ended.stdout);
        // Without this name, no test would run and none would fail.
        let said = String::from_utf8_lossy(&ended.stderr);
        assert!(ended.status.success() && text.contains("1 passed"), "{what}: {text}{said}");
    }
}
