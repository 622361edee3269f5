//! The bits of a text's logits are those of one worker that computes it alone, whatever else its workers compute.

use std::collections::HashMap;
use std::env;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use candle_core::Device;
use candle_core::quantized::GgmlDType;
use disco::SessionKind;
use disco_candle::Comm;
use disco_candle::weights::{Shards, Weights};
use disco_models::{Adapter, BLOCK, Config, ExpertSplit, Precision, Ragged, RunState, Sums, Transformer, plan};

use super::families::cases;
use super::formats::folder;
use super::logits::logits_over;
use super::random::{BLOCKS, LARGE_BLOCKS, Model, WIDE, wide_experts};
use super::scales::small_floats;

/// How often each value is drawn.
const DRAWS: usize = 20;

/// Tokens behind the prompt.
const STEPS: usize = 3;

/// Numbers that look random: the same ones on all ranks.
#[derive(Clone)]
struct Random(u64);

impl Random {
    fn below(&mut self, count: usize) -> usize {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        ((self.0 >> 33) as usize) % count
    }

    fn tokens(&mut self, count: usize, vocabulary: usize) -> Vec<u32> {
        (0..count).map(|_| self.below(vocabulary) as u32).collect()
    }
}

/// The values of one dimension, which are drawn equally often.
struct Deck<T> {
    values: Vec<T>,
    left: Vec<usize>,
    counts: Vec<usize>,
}

impl<T: Clone> Deck<T> {
    fn new(values: impl Into<Vec<T>>) -> Self {
        let values = values.into();
        Self { left: Vec::new(), counts: vec![0; values.len()], values }
    }

    fn draw(&mut self, random: &mut Random) -> T {
        if self.left.is_empty() {
            self.left = (0..self.values.len()).collect();
        }
        let card = self.left.swap_remove(random.below(self.left.len()));
        self.counts[card] += 1;
        self.values[card].clone()
    }
}

/// What computes a text, and how.
#[derive(Clone, Debug)]
struct Fleet {
    workers: usize,
    threads: usize,
    /// Sequences of a batch, with that of the text.
    batch: usize,
    /// The most tokens of the prompt that are computed together.
    cut: usize,
    /// Whether another sequence has computed the first blocks of the prompt.
    shares: bool,
    /// Whether the text loses its blocks behind its first token.
    is_preempted: bool,
    split: ExpertSplit,
    sums: Sums,
}

const ALONE: Fleet = Fleet {
    workers: 1,
    threads: 1,
    batch: 1,
    cut: usize::MAX,
    shares: false,
    is_preempted: false,
    split: ExpertSplit::Within,
    sums: Sums::Whole,
};

/// One rank's model.
fn load(path: &Path, precision: Precision, fleet: &Fleet, comm: Comm) -> Transformer {
    let (path, adapter) = Adapter::resolve(path.to_owned(), None).unwrap();
    let adapter = adapter.map(|adapter| Adapter::open(&adapter).unwrap());
    let weights = Arc::new(Weights::open(path).unwrap());
    let mut config = Config::open(&weights).unwrap();
    (config.expert_split, config.sums) = (fleet.split, fleet.sums);
    let plan = plan(&config, &weights, comm.size()).unwrap();
    let shards = Shards::new(weights, plan, comm.rank(), comm.size(), precision.dtype(), Device::Cpu);
    Transformer::load_adapted(config, &shards, adapter.as_ref(), precision, comm).unwrap()
}

/// A sequence of a batch.
struct Sequence {
    tokens: Vec<u32>,
    prompt: usize,
    /// The number of tokens that the program knows: it may compute these together.
    known: usize,
    done: usize,
    table: Vec<u32>,
    state: u32,
}

impl Sequence {
    /// Adds the next tokens that are known, `count` at most. Returns the place of the last one if it is the last known.
    fn push(&mut self, batch: &mut Ragged, count: usize) -> Option<u32> {
        self.known = self.known.max(self.done + 1);
        let end = self.known.min(self.done.saturating_add(count));
        let last = batch.push(&self.tokens[self.done..end], self.done, self.table.clone());
        batch.lengths.push(self.prompt);
        batch.states.push(RunState::new(self.state));
        self.done = end;
        (end == self.known).then_some(last)
    }
}

/// The logits behind the prompt and behind each further token, by one rank of a fleet.
fn logits(model: &Transformer, fleet: &Fleet, (tokens, prompt): (&[u32], usize), mut random: Random) -> Vec<f32> {
    let vocabulary = model.config().vocabulary;
    let longest = (model.config().context - 1).min(40);
    // Blocks in any order.
    let count = 3 * tokens.len().div_ceil(BLOCK) + fleet.batch * longest.div_ceil(BLOCK);
    let mut blocks: Vec<u32> = (0..count as u32).collect();
    (0..count).for_each(|index| blocks.swap(index, random.below(index + 1)));
    let mut pool = model.pool(count).unwrap();
    let mut states = 0..;
    let mut sequence = |tokens: &[u32], prompt| Sequence {
        tokens: tokens.to_vec(),
        prompt,
        known: prompt,
        done: 0,
        table: blocks.split_off(blocks.len() - tokens.len().div_ceil(BLOCK)),
        state: states.next().unwrap(),
    };
    let mut text = sequence(tokens, prompt);
    let shared = if fleet.shares && !model.config().is_recurrent() { (prompt - 1) / BLOCK * BLOCK } else { 0 };
    if shared > 0 {
        let mut donor = sequence(&tokens[..shared], prompt);
        donor.known = shared;
        while donor.done < shared {
            let mut batch = Ragged::default();
            donor.push(&mut batch, fleet.cut);
            model.batch(&mut pool, &batch).unwrap();
        }
        (text.table[..donor.table.len()]).copy_from_slice(&donor.table);
        text.done = shared;
    }
    let mut other = || {
        let count = 1 + random.below(longest);
        sequence(&random.tokens(count, vocabulary), 1 + random.below(count))
    };
    let mut others: Vec<_> = (1..fleet.batch).map(|_| other()).collect();
    let mut again = fleet.is_preempted.then(|| sequence(tokens, prompt));
    let mut all = Vec::new();
    while text.done < tokens.len() {
        let mut batch = Ragged::default();
        let place = random.below(others.len() + 1);
        let (before, behind) = others.split_at_mut(place);
        let mut push = |batch: &mut Ragged, others: &mut [Sequence]| {
            for other in others.iter_mut().filter(|other| other.done < other.tokens.len()) {
                other.push(batch, 1 + random.below(20));
            }
        };
        push(&mut batch, before);
        let last = text.push(&mut batch, fleet.cut);
        batch.wanted.extend(last);
        push(&mut batch, behind);
        if batch.wanted.is_empty() {
            batch.wanted.push(0);
            model.batch(&mut pool, &batch).unwrap();
            continue;
        }
        let hidden = model.batch(&mut pool, &batch).unwrap();
        all.extend(model.logits(&hidden).unwrap().flatten_all().unwrap().to_vec1::<f32>().unwrap());
        if let Some(mut again) = again.take() {
            again.known = text.done + 1;
            text = again;
        }
    }
    all
}

/// The logits of each rank of a fleet.
fn fleet_logits(
    path: &Path,
    precision: Precision,
    fleet: &Fleet,
    text: (&[u32], usize),
    random: &Random,
) -> Vec<Vec<f32>> {
    let comms = disco_local::connect_threads(fleet.workers, Duration::from_secs(60)).unwrap();
    thread::scope(|scope| {
        let run = |comm| {
            scope.spawn(move || {
                disco_candle::compute_threads(fleet.threads).unwrap();
                let comm = Comm::of_communicator(Box::new(comm));
                logits(&load(path, precision, fleet, comm), fleet, text, random.clone())
            })
        };
        let threads: Vec<_> = comms.into_iter().map(run).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

/// Models and the types of their weights in memory.
fn models(made: &[Model], floats: &Path) -> Vec<(PathBuf, Precision)> {
    let all = [Precision::F32, Precision::Bf16, Precision::F16, Precision::File];
    let mut models: Vec<_> = cases().into_iter().zip(all.iter().cycle()).map(|(it, as_)| (it.folder, *as_)).collect();
    let packed = ["awq-32", "gptq-asym-act-order", "compressed-int4", "nf4", "nvfp4", "lora"];
    models.extend(packed.into_iter().zip(all.iter().cycle()).map(|(name, as_)| (folder(name), *as_)));
    let packed = ["gptq-64", "mxfp4", "gguf-iq4_nl", "gguf-iq4_xs", "gguf-mxfp4"];
    models.extend(packed.map(|name| (folder(name), Precision::File)));
    models.extend(made.iter().map(|model| (model.path(), Precision::File)));
    models.extend([(floats.to_owned(), Precision::F32), (floats.to_owned(), Precision::File)]);
    models
}

#[test]
fn any_fleet_gives_the_bits_of_one_worker() {
    use GgmlDType::{Q2K, Q3K, Q4_0, Q4_1, Q4K, Q5_0, Q5_1, Q5K, Q6K, Q8_0};
    let quantised = [Q4_0, Q4_1, Q5_0, Q5_1, Q8_0].map(|blocks| Model::gguf(BLOCKS, 3, blocks));
    let wide = [Q4K, Q6K].map(|blocks| Model::gguf(WIDE, 4, blocks));
    let large = [Q2K, Q3K, Q5K].map(|blocks| Model::gguf(LARGE_BLOCKS, 5, blocks));
    let made: Vec<_> = quantised.into_iter().chain(wide).chain(large).chain([wide_experts()]).collect();
    let floats = small_floats();
    let mut random = Random(75);
    let mut models = Deck::new(models(&made, &floats.1));
    let mut workers = Deck::new((1..=9).collect::<Vec<_>>());
    let mut threads = Deck::new([1, 2]);
    let mut batches = Deck::new([1, 2, 3, 8, 33]);
    let mut cuts = Deck::new([1, 16, 37, 512]);
    let mut flags = [(); 4].map(|()| Deck::new([false, true]));
    let is_long = env::var_os("DISCO_LONG_TESTS").is_some();
    let draws = if is_long { 10_000 } else { DRAWS * workers.values.len() };
    let mut expected = HashMap::new();
    for draw in 0..draws {
        let (path, precision) = models.draw(&mut random);
        let [shares, is_preempted, is_over, has_nodes] = flags.each_mut().map(|deck| deck.draw(&mut random));
        let fleet = Fleet {
            workers: workers.draw(&mut random),
            threads: threads.draw(&mut random),
            batch: batches.draw(&mut random),
            cut: cuts.draw(&mut random),
            shares,
            is_preempted,
            split: if is_over { ExpertSplit::Over } else { ExpertSplit::Within },
            sums: if has_nodes { Sums::Nodes } else { Sums::Whole },
        };
        let (path_, _) = Adapter::resolve(path.clone(), None).unwrap();
        let config = Config::open(&Weights::open(path_).unwrap()).unwrap();
        // Where texts beyond the first context are computed anew, which is the program's part, they stay within it.
        let room = config.first_context().filter(|_| config.restarts()).unwrap_or(config.context).min(config.context);
        let len = [5, 40, 70, 600][random.below(4)].min(room) - STEPS;
        let mut seed = Random(len as u64);
        let tokens = seed.tokens(len + STEPS, config.vocabulary);
        let text = (&tokens[..], len);
        let alone = expected.entry((path.clone(), precision as u8, len)).or_insert_with(|| {
            let model = load(&path, precision, &ALONE, Comm::alone());
            logits(&model, &ALONE, text, Random(0))
        });
        assert_eq!(alone.len(), (STEPS + 1) * config.vocabulary);
        for (rank, found) in fleet_logits(&path, precision, &fleet, text, &Random(draw as u64)).iter().enumerate() {
            let others = found.iter().zip(&*alone).filter(|(a, b)| a.to_bits() != b.to_bits()).count();
            let name = path.display();
            assert!(
                others == 0 && found.len() == alone.len(),
                "draw {draw}, {name} as {precision:?}, {len} tokens, rank {rank}: {others} of {} logits differ, {fleet:?}",
                found.len()
            );
        }
    }
    let counts = [&workers.counts, &threads.counts, &batches.counts, &cuts.counts];
    let counts = counts.into_iter().chain(flags.iter().map(|deck| &deck.counts));
    assert!(counts.flatten().all(|count| *count >= DRAWS));
    assert!(models.counts.iter().all(|count| *count > 0));
}

/// The bits of a model of these weights on workers of one kind are those of one worker.
pub(crate) fn expect_same_bits(backend: &str, kind: SessionKind, workers: usize, precision: Precision) {
    let experts = wide_experts();
    let wide = Model::gguf(WIDE, 7, GgmlDType::Q4K);
    let path = match precision {
        Precision::File => wide.path(),
        Precision::F16 => Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/models/olmo2"),
        _ => experts.path(),
    };
    let (prompt, further) = (Random(1).tokens(23, 60), Random(2).tokens(3, 60));
    let [found, alone] = [(backend, kind, workers), ("local", SessionKind::Threads, 1)].map(|(on, kind, workers)| {
        let logits = logits_over(on, kind, workers, &path, precision, &prompt, &further);
        logits.into_iter().map(f32::to_bits).collect::<Vec<_>>()
    });
    assert!(found == alone, "{workers} workers of {backend}, {kind}, {precision:?}");
}

#[test]
fn processes_and_nodes_give_the_bits_of_one_worker() {
    disco::init_test!();
    for precision in [Precision::File, Precision::F16, Precision::Bf16] {
        expect_same_bits("local", SessionKind::Processes, 3, precision);
        expect_same_bits("tcp", SessionKind::Processes, 2, precision);
        expect_same_bits("tcp", SessionKind::Nodes, 2, precision);
        expect_same_bits("tcp", SessionKind::Nodes, 6, precision);
    }
}
