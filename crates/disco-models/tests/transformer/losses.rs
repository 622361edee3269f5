//! A worker that ends in the middle of a text.

use std::cell::{Cell, RefCell};
use std::process::Command;
use std::sync::atomic::AtomicBool;

use candle_core::quantized::GgmlDType;
use disco::{Builder, LaneSession, Result, WorkerContext, block_on};
use disco_models::worker::{Batch, Load};
use disco_models::{Precision, Sampler};

use super::generate::{Event, Job, run};
use super::random::{Model, NINE_HEADS};

const COUNT: usize = 16;

/// Worker function: the process of a worker.
fn process(_: &mut WorkerContext) -> Result<u32> {
    Ok(std::process::id())
}

disco::register_function!("tests.process", process);

/// Generates with two processes, of which worker 1 is killed after the fifth token. Returns the number of sessions, the
/// tokens, the texts of the errors that were followed by a restart, and the final error.
fn generate_with_a_loss(model: &Model, restarts: usize) -> (usize, Vec<u32>, Vec<String>, Option<String>) {
    let load = Load::new(model.path(), Precision::F32);
    let batch = Batch::new(vec![vec![3, 14, 15, 92]], Sampler::new(1.0, 0.9, 7));
    let job = Job { backend: "local".into(), devices: Vec::new(), load, batch, most: vec![COUNT], restarts };
    let (victim, sessions) = (RefCell::new(None), Cell::new(0));
    let start = || -> Result<LaneSession> {
        let session = Builder::processes(2).start()?;
        let processes: Vec<u32> = block_on(async { session.get_all(&session.call("tests.process", ()).await?).await })?;
        *victim.borrow_mut() = Some(processes[1]);
        sessions.set(sessions.get() + 1);
        Ok(session)
    };
    let (mut tokens, mut errors) = (Vec::new(), Vec::new());
    let result = run(&job, start, &AtomicBool::new(false), |event| match event {
        Event::Token { token, .. } => {
            tokens.push(token);
            if tokens.len() == 5 {
                let process = victim.borrow().unwrap().to_string();
                assert!(Command::new("kill").args(["-9", &process]).status().unwrap().success());
            }
        }
        Event::Restart(error) => errors.push(error.to_string()),
        Event::Loaded | Event::End { .. } => (),
    });
    (sessions.get(), tokens, errors, result.err().map(|error| error.to_string()))
}

#[test]
fn a_new_worker_continues_the_text_after_the_loss_of_a_worker() {
    disco::init_test!();
    let model = Model::gguf(NINE_HEADS, 21, GgmlDType::F32);
    let (sessions, tokens, errors, error) = generate_with_a_loss(&model, 1);
    assert_eq!((sessions, error), (1, None));
    assert_eq!(errors.len(), 1);
    assert!(errors[0].contains("worker 1") && errors[0].contains("SIGKILL"), "{errors:?}");
    let load = Load::new(model.path(), Precision::F32);
    let batch = Batch::new(vec![vec![3, 14, 15, 92]], Sampler::new(1.0, 0.9, 7));
    let job = Job { backend: "local".into(), devices: Vec::new(), load, batch, most: vec![COUNT], restarts: 0 };
    let mut expected = Vec::new();
    let outcome = run(
        &job,
        || Builder::threads(1).start(),
        &AtomicBool::new(false),
        |event| {
            if let Event::Token { token, .. } = event {
                expected.push(token);
            }
        },
    );
    assert!(outcome.is_ok());
    assert_eq!(tokens, expected);
}

#[test]
fn without_restarts_the_loss_of_a_worker_is_an_error_that_names_it() {
    disco::init_test!();
    let model = Model::gguf(NINE_HEADS, 22, GgmlDType::F32);
    let (_, tokens, errors, error) = generate_with_a_loss(&model, 0);
    assert!(tokens.len() < COUNT && errors.is_empty());
    let error = error.unwrap();
    assert!(error.contains("worker 1") && error.contains("SIGKILL"), "{error}");
}
