//! Greedy tokens of any number of workers are those of one process.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::atomic::AtomicBool;

use candle_core::quantized::GgmlDType;
use disco::{Builder, SessionKind};
use disco_models::worker::{Batch, Load};
use disco_models::{Precision, Sampler};

use super::generate::{Event, Job, rooms, run};
use super::random::{Model, NINE_HEADS, THREE_HEADS};
use super::reference::Reference;

/// Tokens to generate.
pub(crate) const COUNT: usize = 24;

/// A batch of prompts.
pub(crate) fn batch(prompts: &[Vec<u32>]) -> Batch {
    Batch::new(prompts.to_vec(), Sampler::GREEDY)
}

/// The tokens that workers of `local` generate for each prompt of a batch.
pub(crate) fn tokens(kind: SessionKind, workers: usize, model: &Path, batch: &Batch, count: usize) -> Vec<Vec<u32>> {
    tokens_over("local", kind, workers, model, batch, count)
}

/// The tokens that workers of `backend` generate for each prompt of a batch.
pub(crate) fn tokens_over(
    backend: &str,
    kind: SessionKind,
    workers: usize,
    model: &Path,
    batch: &Batch,
    count: usize,
) -> Vec<Vec<u32>> {
    tokens_of(Load::new(model.to_owned(), Precision::F32), backend, kind, workers, batch, count)
}

/// The tokens of workers that load a model as `load` says.
pub(crate) fn tokens_of(
    load: Load,
    backend: &str,
    kind: SessionKind,
    workers: usize,
    batch: &Batch,
    count: usize,
) -> Vec<Vec<u32>> {
    let most = vec![count; batch.prompts.len()];
    let tokens = tokens_of_most(load, backend, kind, workers, batch, most);
    assert!(tokens.iter().all(|tokens| tokens.len() == count));
    tokens
}

/// As [`tokens_of`], with the most tokens of each prompt.
fn tokens_of_most(
    load: Load,
    backend: &str,
    kind: SessionKind,
    workers: usize,
    batch: &Batch,
    most: Vec<usize>,
) -> Vec<Vec<u32>> {
    let mut tokens = vec![Vec::new(); batch.prompts.len()];
    let job = Job { backend: backend.into(), devices: Vec::new(), load, batch: batch.clone(), most, restarts: 0 };
    let start = || Builder::new(kind, workers).start();
    let outcome = run(&job, start, &AtomicBool::new(false), |event| {
        if let Event::Token { sequence, token } = event {
            tokens[sequence].push(token);
        }
    });
    assert_eq!(outcome.unwrap().tokens, tokens.iter().map(Vec::len).sum::<usize>());
    tokens
}

/// A prompt whose tokens depend on `seed`.
pub(crate) fn prompt(len: usize, seed: usize, vocabulary: usize) -> Vec<u32> {
    (0..len).map(|i| ((i * i * 7 + i * 3 + seed * 31) % vocabulary) as u32).collect()
}

#[test]
fn tokens_of_nine_heads_on_1_to_4_workers_are_those_of_one_process() {
    disco::init_test!();
    let model = Model::gguf(NINE_HEADS, 1, GgmlDType::F32);
    let prompt = prompt(11, 0, NINE_HEADS.vocabulary);
    let (expected, _) = Reference::open(&model.path()).generate(&prompt, COUNT);
    assert!(expected.iter().collect::<BTreeSet<_>>().len() > 5, "the model repeats itself: {expected:?}");
    for (kind, workers) in [
        (SessionKind::Threads, 1),
        (SessionKind::Threads, 2),
        (SessionKind::Threads, 3),
        (SessionKind::Threads, 4),
        (SessionKind::Processes, 2),
        (SessionKind::Processes, 3),
        (SessionKind::Processes, 4),
    ] {
        let found = tokens(kind, workers, &model.path(), &batch(std::slice::from_ref(&prompt)), COUNT);
        assert_eq!(found, std::slice::from_ref(&expected), "{workers} workers, {kind}");
    }
}

#[test]
fn tokens_of_prompts_in_a_batch_are_those_of_each_prompt_alone() {
    let model = Model::gguf(NINE_HEADS, 3, GgmlDType::F32);
    let prompts = [9, 1, 14, 5].map(|len| prompt(len, len, NINE_HEADS.vocabulary));
    let mut reference = Reference::open(&model.path());
    let expected = prompts.each_ref().map(|prompt| reference.generate(prompt, COUNT).0);
    for workers in [1, 2] {
        let found = tokens(SessionKind::Threads, workers, &model.path(), &batch(&prompts), COUNT);
        assert_eq!(found, expected, "{workers} workers");
    }
}

#[test]
fn each_prompt_of_a_batch_has_the_room_that_it_has_alone() {
    let model = Model::gguf(THREE_HEADS, 3, GgmlDType::F32);
    let prompts = [58, 5, 30].map(|len| prompt(len, len, THREE_HEADS.vocabulary));
    let texts = |prompts: &[Vec<u32>]| {
        let load = Load::new(model.path(), Precision::F32);
        let most = rooms(prompts, 40, THREE_HEADS.context);
        tokens_of_most(load, "local", SessionKind::Threads, 2, &batch(prompts), most)
    };
    let alone = prompts.each_ref().map(|prompt| texts(std::slice::from_ref(prompt)).remove(0));
    assert_eq!(alone.each_ref().map(Vec::len), [6, 40, 34]);
    assert_eq!(texts(&prompts), alone);
}

#[test]
fn a_prompt_longer_than_a_chunk_gives_the_tokens_of_one_process() {
    let model = Model::gguf(NINE_HEADS, 4, GgmlDType::F32);
    let prompts = [700, 530].map(|len| prompt(len, len, NINE_HEADS.vocabulary));
    let mut reference = Reference::open(&model.path());
    let expected = prompts.each_ref().map(|prompt| reference.generate(prompt, 8).0);
    assert_eq!(tokens(SessionKind::Threads, 2, &model.path(), &batch(&prompts), 8), expected);
}

#[test]
fn sampled_tokens_depend_on_the_seed_and_not_on_the_workers() {
    let model = Model::gguf(NINE_HEADS, 5, GgmlDType::F32);
    let prompts = vec![prompt(5, 0, 100); 2];
    let batch = |seed| Batch::new(prompts.clone(), Sampler::new(1.5, 0.95, seed));
    let found = |workers, seed| tokens(SessionKind::Threads, workers, &model.path(), &batch(seed), COUNT);
    let first = found(1, 1);
    assert_ne!(first[0], first[1], "sequences have their own random numbers");
    assert_eq!(found(3, 1), first);
    assert_ne!(found(1, 2), first);
}
