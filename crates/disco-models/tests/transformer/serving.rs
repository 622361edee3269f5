//! Sequences of a server have the texts that they have alone, whatever the other sequences are.

use std::collections::VecDeque;
use std::path::Path;

use candle_core::quantized::GgmlDType;
use disco::{Builder, DRef, Json, LaneSession, SessionKind, Value, WorkerId, block_on};
use disco_candle::weights::Weights;
use disco_models::serving::{Chosen, Params, Plan, Reply, Row, Sampled, Serve, Start, Tokens};
use disco_models::worker::{Batch, Load};
use disco_models::{BLOCK, Config, Precision, Sampler};

use super::families::{Case, cases};
use super::random::{Model, NINE_HEADS};
use super::tokens::tokens;

const COUNT: usize = 20;

/// A session whose workers have a model and `blocks` blocks.
pub(super) struct Served {
    pub(super) session: LaneSession,
    state: DRef,
    step: u64,
}

impl Served {
    pub(super) fn new(workers: usize, model: &Path, blocks: usize) -> Self {
        let session = Builder::threads(workers).start().unwrap();
        let state = block_on(async {
            session.init_ccl("local", &[]).await.unwrap();
            let serve = Serve::new(Load::new(model.to_owned(), Precision::F32), blocks, 8);
            let state = session.call("disco.models.serve", (Json(serve), None::<&DRef>)).await.unwrap();
            session.sync_all().await.unwrap();
            state
        });
        Self { session, state, step: 0 }
    }

    /// Sends a step.
    fn send(&mut self, rows: Vec<Row>) -> DRef {
        let mut plan = Plan::new(self.step);
        self.step += 1;
        plan.rows = rows;
        let bytes = plan.to_bytes().unwrap();
        block_on(self.session.call("disco.models.step", (&self.state, bytes))).unwrap()
    }

    fn reply(&self, call: &DRef) -> Result<Reply, disco::Error> {
        let value = block_on(self.session.value(call, WorkerId::new(0)))?;
        let Value::Bytes(bytes) = value else { panic!("{value:?}") };
        Ok(Reply::from_bytes(&bytes).unwrap())
    }

    pub(super) fn row(&mut self, row: Row) -> Reply {
        let call = self.send(vec![row]);
        self.reply(&call).unwrap()
    }
}

/// A row that begins a sequence in `blocks`.
pub(super) fn start(slot: u32, prompt: &[u32], blocks: Vec<u32>, start: Start) -> Row {
    let mut row = Row::new(slot, 0, Tokens::Given(prompt.to_vec()));
    (row.starts, row.blocks, row.samples) = (Some(Box::new(start)), blocks, true);
    row
}

fn token(reply: &Reply, row: usize) -> u32 {
    match reply.rows[row].sampled.as_ref().unwrap() {
        Sampled::Token(chosen) => chosen.id,
        other => panic!("{other:?}"),
    }
}

fn prompts() -> Vec<Vec<u32>> {
    [5, 40, 1, 17, 33].map(|len| (0..len).map(|at| (7 * at + len) % 100).collect()).into()
}

#[test]
fn texts_of_a_changing_batch_are_those_of_sequences_alone() {
    let samplers = [Sampler::GREEDY, Sampler::new(0.8, 0.9, 11), Sampler::new(1.3, 1.0, 5)];
    // The quantised product of a row does not depend on the others.
    for kind in [GgmlDType::F32, GgmlDType::Q8_0] {
        let model = Model::gguf(if kind == GgmlDType::F32 { NINE_HEADS } else { super::random::BLOCKS }, 3, kind);
        for workers in 1..=2 {
            let alone = |prompt: &Vec<u32>, sampler| {
                let batch = Batch::new(vec![prompt.iter().map(|token| token % 90).collect()], sampler);
                tokens(SessionKind::Threads, workers, &model.path(), &batch, COUNT).remove(0)
            };
            let prompts: Vec<Vec<u32>> =
                prompts().into_iter().map(|prompt| prompt.into_iter().map(|token| token % 90).collect()).collect();
            let expected = prompts.iter().enumerate().map(|(index, prompt)| alone(prompt, samplers[index % 3]));
            let expected: Vec<_> = expected.collect();
            let mut served = Served::new(workers, &model.path(), 32);
            let mut free: VecDeque<u32> = (0..32).rev().collect();
            // The number of computed tokens of each sequence, and its blocks.
            let mut done = vec![0; prompts.len()];
            let mut held: Vec<Vec<u32>> = vec![Vec::new(); prompts.len()];
            let mut texts: Vec<Vec<u32>> = vec![Vec::new(); prompts.len()];
            let mut flights = VecDeque::new();
            for step in 0.. {
                let (mut rows, mut sampled) = (Vec::new(), Vec::new());
                // A sequence joins every third step.
                for index in 0..prompts.len().min(1 + step / 3) {
                    let (prompt, at) = (&prompts[index], done[index]);
                    if at == prompt.len() + COUNT - 1 {
                        // It has left, and others take its blocks.
                        free.extend(held[index].drain(..));
                        continue;
                    }
                    let given = &prompt[at.min(prompt.len())..prompt.len().min(at + 13)];
                    let tokens = if given.is_empty() { Tokens::Last } else { Tokens::Given(given.to_vec()) };
                    let end = at + given.len().max(1);
                    let mut row = Row::new(index as u32, at as u32, tokens);
                    while held[index].len() * BLOCK < end {
                        let block = free.pop_front().unwrap();
                        held[index].push(block);
                        row.blocks.push(block);
                    }
                    if at == 0 {
                        row.starts = Some(Box::new(Start::new(Params::new(samplers[index % 3]), prompt.len())));
                    }
                    row.samples = end >= prompt.len();
                    if row.samples {
                        sampled.push((rows.len(), index));
                    }
                    done[index] = end;
                    rows.push(row);
                }
                let has_rows = !rows.is_empty();
                if has_rows {
                    flights.push_back((served.send(rows), sampled));
                }
                if flights.len() == 2 || !has_rows {
                    let Some((call, sampled)) = flights.pop_front() else { break };
                    let reply = served.reply(&call).unwrap();
                    sampled.iter().for_each(|(row, index)| texts[*index].push(token(&reply, *row)));
                }
            }
            assert_eq!(texts, expected, "{kind:?}, {workers} workers");
        }
    }
}

/// The texts of a model with linear attention do not depend on which sequences share a step, nor on a kept state that they
/// begin with.
#[test]
fn texts_that_begin_with_a_kept_state_are_those_of_sequences_alone() {
    for Case { folder, prompts, .. } in cases() {
        if !Config::open(&Weights::open(&folder).unwrap()).unwrap().is_recurrent() {
            continue;
        }
        for workers in [1, 3] {
            let mut served = Served::new(workers, &folder, 32);
            let prompt = prompts.iter().max_by_key(|prompt| prompt.prompt_ids.len()).unwrap();
            let (ids, expected) = (&prompt.prompt_ids, &prompt.greedy_ids);
            let starts = || Start::new(Params::new(Sampler::GREEDY), ids.len());
            // One whole, which keeps the states behind one and two blocks; another one begins beside it, in parts.
            let blocks = ids.len().div_ceil(BLOCK) as u32 + 2;
            let mut first = start(0, &ids[..20], (0..blocks).collect(), starts());
            (first.samples, first.keeps) = (false, Some((16, 9)));
            let mut other = start(1, &ids[..5], (blocks..2 * blocks).collect(), starts());
            other.samples = false;
            let call = served.send(vec![first, other]);
            served.reply(&call).unwrap();
            let mut rest = Row::new(0, 20, Tokens::Given(ids[20..].to_vec()));
            rest.samples = true;
            if ids.len() >= 32 {
                rest.keeps = Some((12, 8));
            }
            let mut part = Row::new(1, 5, Tokens::Given(ids[5..].to_vec()));
            part.samples = true;
            let call = served.send(vec![part, rest]);
            let reply = served.reply(&call).unwrap();
            assert_eq!([token(&reply, 0), token(&reply, 1)], [expected[0]; 2], "{}", folder.display());
            // Begins with the first block of the first one, and with its second one, too.
            for (slot, shared, state) in [(2, 1, 9), (3, 2, 8)] {
                if ids.len() < shared * BLOCK + 1 {
                    continue;
                }
                let own = 2 * blocks + (slot - 2) * blocks..2 * blocks + (slot - 1) * blocks;
                let mut row = Row::new(slot, (shared * BLOCK) as u32, Tokens::Given(ids[shared * BLOCK..].to_vec()));
                row.blocks = (0..shared as u32).chain(own).collect();
                (row.starts, row.samples, row.resumes) = (Some(Box::new(starts())), true, Some(state));
                let mut text = vec![token(&served.row(row), 0)];
                while text.len() < expected.len() {
                    let mut row = Row::new(slot, (ids.len() + text.len() - 1) as u32, Tokens::Last);
                    (row.samples, row.keeps) = (true, Some((1, 10)));
                    text.push(token(&served.row(row), 0));
                }
                assert_eq!(text, *expected, "{}, {shared} blocks, {workers} workers", folder.display());
            }
            let mut row = Row::new(4, 16, Tokens::Given(ids[16..].to_vec()));
            (row.blocks, row.starts) = ((0..blocks).collect(), Some(Box::new(starts())));
            let call = served.send(vec![row]);
            let error = served.reply(&call).unwrap_err().to_string();
            assert!(error.contains("slot 4 begins at 16 without a state"), "{error}");
        }
    }
}

/// Guesses, right and wrong ones, change neither tokens nor logits.
#[test]
fn rows_with_guesses_choose_what_single_tokens_choose() {
    let mut random = disco_testing::random::Random::new(5);
    for Case { folder, prompts, .. } in cases() {
        if Config::open(&Weights::open(&folder).unwrap()).unwrap().is_recurrent() {
            continue;
        }
        let ids = &prompts[0].prompt_ids;
        for (sampler, is_plain) in
            [(Sampler::GREEDY, true), (Sampler::GREEDY, false), (Sampler::new(0.9, 0.9, 3), false)]
        {
            let mut params = Params::new(sampler);
            if !is_plain {
                (params.logprobs, params.digests_logits) = (Some(3), true);
                (params.frequency_penalty, params.repetition_penalty) = (0.3, 1.2);
            }
            let mut served = Served::new(2, &folder, 16);
            let first = |served: &mut Served, slot: u32| {
                let start_at = Start::new(params.clone(), ids.len());
                let reply = served.row(start(slot, ids, (8 * slot..8 * slot + 8).collect(), start_at));
                chosen(&reply)
            };
            let mut expected = first(&mut served, 0);
            while expected.len() < COUNT {
                let mut row = Row::new(0, (ids.len() + expected.len() - 1) as u32, Tokens::Last);
                row.samples = true;
                expected.extend(chosen(&served.row(row)));
            }
            let mut found = first(&mut served, 1);
            while found.len() < COUNT {
                let at = found.len();
                let guesses = random.below(6).min(COUNT - at - 1);
                let right = if random.below(3) == 0 { random.below(guesses + 1) } else { guesses };
                let guess = |place: usize| {
                    if place < right { expected[at + place].id } else { (expected[at + place].id + 1) % 90 }
                };
                let tokens = [found[at - 1].id].into_iter().chain((0..guesses).map(guess)).collect();
                let mut row = Row::new(1, (ids.len() + at - 1) as u32, Tokens::Given(tokens));
                (row.samples, row.drafted) = (true, guesses as u32);
                let more = chosen(&served.row(row));
                assert_eq!(more.len(), right + 1, "{}: {guesses} guesses", folder.display());
                found.extend(more);
            }
            // Logprobs that nobody wants are NaN.
            assert_eq!(format!("{found:?}"), format!("{expected:?}"), "{}, {sampler:?}", folder.display());
        }
    }
}

/// The tokens that the only row chose.
fn chosen(reply: &Reply) -> Vec<Chosen> {
    let Some(Sampled::Token(last)) = &reply.rows[0].sampled else { panic!("{reply:?}") };
    reply.rows[0].accepted.iter().chain([last]).cloned().collect()
}

#[test]
fn logprobs_are_those_of_the_softmax_and_prompts_have_them_across_chunks() {
    let model = Model::gguf(NINE_HEADS, 3, GgmlDType::F32);
    let prompt: Vec<u32> = prompts().remove(1);
    let mut served = Served::new(2, &model.path(), 8);
    let params = || {
        let mut params = Params::new(Sampler::GREEDY);
        (params.logprobs, params.prompt_logprobs) = (Some(103), Some(2));
        Start::new(params, prompt.len())
    };
    let whole = served.row(start(0, &prompt, vec![0, 1, 2], params())).rows.remove(0);
    let Some(Sampled::Token(chosen)) = &whole.sampled else { panic!() };
    let sum: f64 = chosen.top.iter().map(|(_, logprob)| f64::from(*logprob).exp()).sum();
    assert!(chosen.top.len() == 103 && (sum - 1.0).abs() < 1e-5 && chosen.top[0] == (chosen.id, chosen.logprob));
    assert!(chosen.top.is_sorted_by(|a, b| a.1 >= b.1));
    assert!(whole.prompt.iter().map(|chosen| chosen.id).eq(prompt[1..].iter().copied()));
    assert!(whole.prompt.iter().all(|chosen| chosen.top.len() == 2 && chosen.logprob <= chosen.top[0].1));
    // In two chunks.
    let mut first = start(1, &prompt[..30], vec![3, 4, 5], params());
    (first.samples, first.next) = (false, Some(prompt[30]));
    let mut last = Row::new(1, 30, Tokens::Given(prompt[30..].to_vec()));
    last.samples = true;
    let parts = [served.row(first), served.row(last)].map(|mut reply| reply.rows.remove(0).prompt);
    let parts = parts.concat();
    assert_eq!(parts.len(), whole.prompt.len());
    for (part, whole) in parts.iter().zip(&whole.prompt) {
        assert!(part.id == whole.id && (part.logprob - whole.logprob).abs() < 1e-4, "{part:?} {whole:?}");
    }
}

#[test]
fn biases_penalties_and_ends_change_the_choice() {
    let model = Model::gguf(NINE_HEADS, 3, GgmlDType::F32);
    let prompt: Vec<u32> = prompts().remove(0);
    let mut served = Served::new(2, &model.path(), 8);
    let mut chosen = |change: &dyn Fn(&mut Start)| {
        let mut changed = Start::new(Params::new(Sampler::GREEDY), prompt.len());
        change(&mut changed);
        token(&served.row(start(0, &prompt, vec![0], changed)), 0)
    };
    let best = chosen(&|_| ());
    let second = chosen(&|start| start.params.bias = vec![(best, -100.0)]);
    assert_ne!(second, best);
    assert_eq!(chosen(&|start| start.params.bias = vec![(77, 100.0)]), 77);
    let too_early = |start: &mut Start| (start.params.ends, start.params.min_tokens) = (vec![best], 1);
    assert_eq!(chosen(&too_early), second);
    assert_eq!(chosen(&|start| start.params.ends = vec![best]), best);
    // Tokens of the prompt, wherever it is from, are less probable for a factor, and those of the text for a summand.
    let biased = |token, start: &mut Start| start.params.bias = vec![(token, 100.0)];
    let of_prompt = prompt[1];
    assert_eq!(chosen(&|start| biased(of_prompt, start)), of_prompt);
    let repeated = |start: &mut Start| {
        biased(of_prompt, start);
        start.params.repetition_penalty = 1e6;
    };
    assert_eq!(chosen(&repeated), best);
    let of_text = |start: &mut Start| {
        biased(of_prompt, start);
        (start.prompt, start.params.presence_penalty) = (1, 200.0);
    };
    assert_eq!(chosen(&of_text), best);
    let of_cached = |start: &mut Start| {
        biased(88, start);
        (start.cached, start.params.repetition_penalty) = (vec![88], 1e6);
    };
    assert_eq!(chosen(&of_cached), best);
}

#[test]
fn plans_that_contradict_the_state_are_errors_with_their_places() {
    let model = Model::gguf(NINE_HEADS, 3, GgmlDType::F32);
    let starts = || Some(Box::new(Start::new(Params::new(Sampler::GREEDY), 2)));
    let row = |slot, first, tokens: &[u32], blocks: &[u32], starts| {
        let mut row = Row::new(slot, first, Tokens::Given(tokens.to_vec()));
        (row.blocks, row.starts) = (blocks.to_vec(), starts);
        row
    };
    for (row, why) in [
        (row(9, 0, &[1], &[0], starts()), "step 0, row 0: slot 9 of 8"),
        (row(1, 0, &[1], &[0], None), "step 0, row 0: slot 1 has no sequence"),
        (row(0, 1, &[1], &[0], None), "step 0, row 0: slot 0 has no sequence"),
        (row(0, 0, &[], &[0], starts()), "step 0, row 0: it has no tokens"),
        (row(0, 0, &[1], &[], starts()), "1 tokens from 0 on in 0 blocks"),
        (row(0, 0, &[1], &[4], starts()), "block 4 of 4"),
        (row(0, 1000, &[1; 30], &[0; 70], starts()), "the context of the model has 1024"),
        (row(0, 0, &[103], &[0], starts()), "token 103 of 103"),
    ] {
        let mut served = Served::new(2, &model.path(), 4);
        let call = served.send(vec![row]);
        let error = served.reply(&call).unwrap_err().to_string();
        assert!(error.contains(why), "{error}");
    }
    let served = Served::new(1, &model.path(), 4);
    let call = block_on(served.session.call("disco.models.step", (&served.state, vec![0xff_u8; 40]))).unwrap();
    let error = served.reply(&call).unwrap_err().to_string();
    assert!(error.contains("the plan of a step: "), "{error}");
}
