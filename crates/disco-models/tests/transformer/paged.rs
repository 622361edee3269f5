//! Sequences in blocks that join and leave a batch have the bits of the logits of sequences that are computed alone.

use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::Arc;

use candle_core::{Device, Tensor};
use disco::{Builder, DeviceKind, Json, WorkerContext, WorkerId, block_on};
use disco_candle::Comm;
use disco_candle::weights::{Shards, Weights};
use disco_models::{BLOCK, Config, Precision, Ragged, RunState, Transformer, plan};

use super::families::cases;

/// A sequence: its tokens, and the logits after each of the last ones.
struct Sequence {
    number: u32,
    tokens: Vec<u32>,
    prompt: usize,
    done: usize,
    table: Vec<u32>,
    logits: Vec<Vec<f32>>,
}

/// Numbers that look random: the same ones on all ranks.
struct Random(u64);

impl Random {
    fn below(&mut self, count: usize) -> usize {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        ((self.0 >> 33) as usize) % count
    }
}

fn rows(model: &Transformer, hidden: &Tensor) -> Vec<Vec<f32>> {
    model.logits(hidden).unwrap().to_vec2::<f32>().unwrap()
}

/// The logits of a sequence alone, after the prompt and after each further token.
fn alone(model: &Transformer, tokens: &[u32], prompt: usize) -> Vec<Vec<f32>> {
    let (mut cache, hidden) = model.prompt(&[tokens[..prompt].to_vec()]).unwrap();
    let mut all = rows(model, &hidden);
    for token in &tokens[prompt..] {
        let token = Tensor::new(&[*token], &Device::Cpu).unwrap();
        all.extend(rows(model, &model.step(&mut cache, &token).unwrap()));
    }
    all
}

/// Worker function: how many logits have other bits, of how many.
fn ragged(
    ctx: &mut WorkerContext,
    Json(path): Json<PathBuf>,
    Json(texts): Json<Vec<(Vec<u32>, usize)>>,
    Json(precision): Json<Precision>,
) -> anyhow::Result<Json<[usize; 2]>> {
    let comm = Comm::world(ctx).unwrap();
    let weights = Arc::new(Weights::open(path).unwrap());
    let config = Config::open(&weights).unwrap();
    let plan = plan(&config, &weights, comm.size(), DeviceKind::Cpu).unwrap();
    let shards = Shards::new(weights, plan, comm.rank(), comm.size(), precision.dtype(), Device::Cpu);
    let model = Transformer::load(config, &shards, precision, comm).unwrap();

    let mut random = Random(7);
    let blocks: usize = texts.iter().map(|(tokens, _)| tokens.len().div_ceil(BLOCK)).sum::<usize>() + 3;
    // Blocks in any order.
    let mut free: Vec<u32> = (0..blocks as u32).collect();
    (0..blocks).for_each(|index| free.swap(index, random.below(blocks)));
    let sequence = |(number, (tokens, prompt)): (usize, &(Vec<u32>, usize))| Sequence {
        number: number as u32,
        tokens: tokens.clone(),
        prompt: *prompt,
        done: 0,
        table: Vec::new(),
        logits: Vec::new(),
    };
    // A text that grows beyond the first context may have to be computed again, which is the program's part.
    let first = model.config().first_context().filter(|_| model.config().restarts()).unwrap_or(usize::MAX);
    let stays = |(tokens, prompt): &&(Vec<u32>, usize)| tokens.len() <= first || *prompt > first;
    let mut waiting: VecDeque<Sequence> = texts.iter().filter(stays).enumerate().map(sequence).collect();
    let (mut running, mut ended) = (Vec::<Sequence>::new(), Vec::new());
    let mut pool = model.pool(blocks).unwrap();
    while !(waiting.is_empty() && running.is_empty()) {
        if random.below(2) == 0 || running.is_empty() {
            running.extend(waiting.pop_front());
        }
        let mut batch = Ragged::default();
        let mut took = Vec::new();
        for (index, sequence) in running.iter_mut().enumerate() {
            let left = sequence.tokens.len() - sequence.done;
            let count = match sequence.prompt.checked_sub(sequence.done) {
                Some(left @ 1..) => 1 + random.below(left),
                _ => 1.min(left),
            };
            // Some wait for the others.
            if random.below(4) == 0 && !took.is_empty() {
                continue;
            }
            let end = sequence.done + count;
            while sequence.table.len() * BLOCK < end {
                sequence.table.push(free.pop().unwrap());
            }
            let last = batch.push(&sequence.tokens[sequence.done..end], sequence.done, sequence.table.clone());
            sequence.done = end;
            batch.lengths.push(sequence.prompt);
            batch.states.push(RunState::new(sequence.number));
            if end >= sequence.prompt {
                batch.wanted.push(last);
                took.push(index);
            }
        }
        let hidden = model.batch(&mut pool, &batch).unwrap();
        for (index, logits) in took.into_iter().zip(rows(&model, &hidden)) {
            running[index].logits.push(logits);
        }
        let (gone, stay): (Vec<_>, Vec<_>) = running.into_iter().partition(|one| one.done == one.tokens.len());
        running = stay;
        for sequence in gone {
            // Others take them.
            free.extend(&sequence.table);
            ended.push(sequence);
        }
    }
    let mut counts = [0, 0];
    for sequence in ended {
        let expected = alone(&model, &sequence.tokens, sequence.prompt).concat();
        let found = sequence.logits.concat();
        assert_eq!(expected.len(), found.len());
        counts[0] += found.iter().zip(&expected).filter(|(a, b)| a.to_bits() != b.to_bits()).count();
        counts[1] += found.len();
    }
    Ok(Json(counts))
}

disco::register_function!("tests.ragged", ragged);

#[test]
fn random_batches_have_the_logits_of_sequences_alone() {
    for (number, case) in cases().into_iter().enumerate() {
        // Texts of several blocks, besides those of the references.
        let long = |len: usize| (0..len).map(|at| ((5 * at + len) % case.vocabulary) as u32).collect::<Vec<_>>();
        let mut texts: Vec<_> = [(1, 1), (16, 16), (17, 3), (40, 33), (33, 31)].map(|(len, at)| (long(len), at)).into();
        let references = case
            .prompts
            .iter()
            .map(|prompt| ([&prompt.prompt_ids[..], &prompt.greedy_ids].concat(), prompt.prompt_ids.len()));
        texts.extend(references);
        texts.retain(|(tokens, _)| tokens.len() <= case.context);
        for workers in [1, 3] {
            let precision = [Precision::F32, Precision::Bf16, Precision::F16][(number + workers / 2) % 3];
            let session = Builder::threads(workers).start().unwrap();
            let [others, all] = block_on(async {
                session.init_ccl("local", &[]).await.unwrap();
                let args = (Json(case.folder.clone()), Json(texts.clone()), Json(precision));
                let counts = session.call("tests.ragged", args).await.unwrap();
                session.sync_all().await.unwrap();
                session.get::<Json<[usize; 2]>>(&counts, WorkerId::new(workers as u32 - 1)).await.unwrap().0
            });
            let name = case.folder.display();
            assert!(
                others == 0 && all > 0,
                "{name}, {workers} workers, {precision:?}: {others} of {all} logits differ"
            );
        }
    }
}
