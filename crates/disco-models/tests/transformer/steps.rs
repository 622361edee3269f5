//! Texts that grow token by token: they have the tokens of whole prompts, and the host waits once for each of them.

use std::ffi::c_void;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use candle_core::quantized::GgmlDType;
use candle_core::{DType, Device, Tensor};
use disco::device_api::{self, Event};
use disco::tensor::Storage;
use disco::{Builder, DeviceKind, Json, Queue, Value, WorkerContext, WorkerId, block_on};
use disco_candle::Comm;
use disco_candle::weights::{Shards, Weights};
use disco_models::worker::{Batch, Load};
use disco_models::{Cache, Config, Precision, Sampler, Transformer, plan};

use super::families::{Case, Prompt, case};
use super::random::{Model, NINE_HEADS, THREE_HEADS};

/// Tokens of each text. The cache has 12 blocks at first, so it gets larger memory on the way.
const COUNT: usize = 12;

/// Prompts of different lengths.
fn prompts() -> Vec<Vec<u32>> {
    [55, 3, 60].map(|len| (0..len).map(|at| (7 * at + len) % 100).collect()).into()
}

/// A queue that counts its copies and waits.
#[derive(Debug)]
struct Counting {
    queue: Box<dyn Queue>,
    copies: usize,
    bytes: usize,
    waits: usize,
}

impl Counting {
    fn new() -> Self {
        let queue = device_api::find(DeviceKind::Cpu).unwrap().bind(disco::Device::CPU).unwrap();
        Self { queue, copies: 0, bytes: 0, waits: 0 }
    }
}

impl Queue for Counting {
    fn device(&self) -> disco::Device {
        self.queue.device()
    }

    fn alloc(&mut self, bytes: usize) -> disco::Result<Arc<Storage>> {
        self.queue.alloc(bytes)
    }

    fn copy_in(&mut self, dst: &disco::Tensor, src: &disco::Tensor) -> disco::Result<()> {
        self.copies += 1;
        self.queue.copy_in(dst, src)
    }

    fn copy_out(&mut self, dst: &disco::Tensor, src: &disco::Tensor) -> disco::Result<()> {
        self.copies += 1;
        self.bytes += dst.byte_len();
        self.queue.copy_out(dst, src)
    }

    fn copy_within(&mut self, dst: &disco::Tensor, src: &disco::Tensor) -> disco::Result<()> {
        self.copies += 1;
        self.queue.copy_within(dst, src)
    }

    fn record(&mut self) -> disco::Result<Event> {
        self.queue.record()
    }

    fn poll(&mut self, event: Event) -> disco::Result<bool> {
        self.waits += 1;
        self.queue.poll(event)
    }

    fn synchronize(&mut self, deadline: Duration) -> disco::Result<()> {
        self.waits += 1;
        self.queue.synchronize(deadline)
    }

    fn raw(&self) -> *mut c_void {
        self.queue.raw()
    }
}

fn load(path: PathBuf, comm: Comm) -> anyhow::Result<Transformer> {
    let weights = Arc::new(Weights::open(path)?);
    let config = Config::open(&weights)?;
    let plan = plan(&config, &weights, comm.size())?;
    let shards = Shards::new(weights, plan, comm.rank(), comm.size(), DType::F32, Device::Cpu);
    Ok(Transformer::load(config, &shards, Precision::F32, comm)?)
}

/// Worker function: the texts of a batch, by steps or by the prompts of each text so far.
fn texts(
    ctx: &mut WorkerContext,
    Json(path): Json<PathBuf>,
    Json((temperature, top_p)): Json<(f64, f64)>,
    by_steps: bool,
) -> anyhow::Result<Json<Vec<Vec<u32>>>> {
    disco_candle::compute_threads(1)?;
    let model = load(path, Comm::world(ctx)?)?;
    if ctx.worker().index() == 0 {
        // Other workers take no part in it.
        model.warm_up()?;
    }
    let sampler = Sampler::new(temperature, top_p, 3);
    let mut texts = vec![Vec::new(); prompts().len()];
    if !by_steps {
        for (sequence, (text, prompt)) in texts.iter_mut().zip(prompts()).enumerate() {
            while text.len() < COUNT {
                let all: Vec<u32> = prompt.iter().chain(&*text).copied().collect();
                let (_, hidden) = model.prompt(std::slice::from_ref(&all))?;
                let logits = model.logits(&hidden)?.flatten_all()?.to_vec1::<f32>()?;
                text.push(sampler.choose(&logits, sequence, all.len()));
            }
        }
        return Ok(Json(texts));
    }
    let mut generation = model.generate(&prompts(), sampler)?;
    for _ in 0..COUNT {
        let tokens = generation.next(&model, ctx.queue())?;
        texts.iter_mut().zip(tokens).for_each(|(text, token)| text.extend(token));
    }
    Ok(Json(texts))
}

disco::register_function!("tests.texts", texts);

/// The texts of each worker.
fn texts_of(workers: usize, model: &Model, sampling: (f64, f64), by_steps: bool) -> Vec<Vec<Vec<u32>>> {
    let session = Builder::threads(workers).start().unwrap();
    block_on(async {
        session.init_ccl("local", &[]).await.unwrap();
        let texts = session.call("tests.texts", (Json(model.path()), Json(sampling), by_steps)).await.unwrap();
        let texts = (0..workers as u32).map(|worker| session.get(&texts, WorkerId::new(worker)));
        let mut all = Vec::new();
        for texts in texts {
            let Json(texts): Json<Vec<Vec<u32>>> = texts.await.unwrap();
            all.push(texts);
        }
        session.shutdown().await.unwrap();
        all
    })
}

#[test]
fn steps_of_all_workers_choose_the_tokens_of_whole_prompts() {
    let model = Model::gguf(NINE_HEADS, 11, GgmlDType::F32);
    for sampling in [(0.0, 1.0), (0.8, 0.9)] {
        let expected = texts_of(1, &model, sampling, false);
        assert!(expected[0].iter().all(|text| text.len() == COUNT));
        for workers in [1, 2, 4] {
            for texts in texts_of(workers, &model, sampling, true) {
                assert_eq!(texts, expected[0], "{workers} workers, {sampling:?}");
            }
        }
    }
}

#[test]
fn texts_end_with_their_context_and_belong_to_their_model() {
    let model = Model::gguf(THREE_HEADS, 11, GgmlDType::F32);
    let [llama, other] = [(), ()].map(|()| load(model.path(), Comm::alone()).unwrap());
    let prompt = vec![1; THREE_HEADS.context - 2];
    let mut queue = Counting::new();
    let mut generation = llama.generate(std::slice::from_ref(&prompt), Sampler::GREEDY).unwrap();
    let error = generation.next(&other, &mut queue).unwrap_err().to_string();
    assert!(error.contains("begun by another model"), "{error}");
    for _ in 0..3 {
        generation.next(&llama, &mut queue).unwrap();
    }
    let error = generation.next(&llama, &mut queue).unwrap_err().to_string();
    assert!(error.contains("the sequence would have 65 tokens, but the context of the model has 64"), "{error}");
    let error = generation.next(&llama, &mut queue).unwrap_err().to_string();
    assert_eq!(error, "a token could not be computed before; begin the texts again");
}

#[test]
fn each_text_of_a_batch_has_the_tokens_that_it_has_alone_up_to_the_context() {
    let model = Model::gguf(THREE_HEADS, 11, GgmlDType::F32);
    let llama = load(model.path(), Comm::alone()).unwrap();
    let prompts = [60, 3, 40].map(|len| (0..len).map(|at| (7 * at + len) % 50).collect::<Vec<u32>>());
    let texts = |prompts: &[Vec<u32>]| {
        let mut generation = llama.generate(prompts, Sampler::GREEDY).unwrap();
        let mut texts = vec![Vec::new(); prompts.len()];
        let error = loop {
            match generation.next(&llama, &mut Counting::new()) {
                Ok(tokens) => texts.iter_mut().zip(tokens).for_each(|(text, token)| text.extend(token)),
                Err(error) => break error.to_string(),
            }
        };
        assert!(error.contains("would have 65 tokens, but the context of the model has 64"), "{error}");
        texts
    };
    let alone = prompts.each_ref().map(|prompt| texts(std::slice::from_ref(prompt)).remove(0));
    assert_eq!(alone.each_ref().map(Vec::len), [5, 62, 25]);
    assert_eq!(texts(&prompts), alone);
}

#[test]
fn the_host_waits_once_for_each_token() {
    let model = Model::gguf(NINE_HEADS, 11, GgmlDType::F32);
    let llama = load(model.path(), Comm::alone()).unwrap();
    for sampler in [Sampler::GREEDY, Sampler::new(0.8, 0.9, 3)] {
        let (mut queue, prompts) = (Counting::new(), prompts());
        let mut generation = llama.generate(&prompts, sampler).unwrap();
        for tokens in 1..=COUNT {
            generation.next(&llama, &mut queue).unwrap();
            assert_eq!((queue.copies, queue.waits), (tokens, tokens), "{sampler:?}");
        }
        // The number of a token and the sum of its logits, or all logits.
        let each = if sampler.is_greedy() { 16 } else { 4 * NINE_HEADS.vocabulary };
        assert_eq!(queue.bytes, COUNT * prompts.len() * each);
    }
}

#[test]
fn a_text_that_outgrows_its_original_context_goes_on_after_a_failed_step() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/models/phi3-cross");
    let Case { prompts, .. } = case(folder.clone());
    let model = load(folder, Comm::alone()).unwrap();
    // Its original context has 16 tokens.
    let Prompt { prompt_ids, greedy_ids, .. } = &prompts[0];
    let (mut cache, mut hidden) = model.prompt(std::slice::from_ref(prompt_ids)).unwrap();
    for (number, expected) in greedy_ids.iter().enumerate() {
        assert_eq!(model.most_probable(&hidden).unwrap().to_vec().unwrap(), [*expected], "token {number}");
        let step = |cache: &mut Cache, token: u32| model.step(cache, &Tensor::new(&[token], &Device::Cpu).unwrap());
        assert!(step(&mut cache, 1_000_000).is_err());
        hidden = step(&mut cache, *expected).unwrap();
    }
}

#[test]
fn a_batch_that_fails_ends_the_one_before() {
    disco::init_test!();
    let model = Model::gguf(THREE_HEADS, 2, GgmlDType::F32);
    let session = Builder::threads(2).start().unwrap();
    block_on(async {
        session.init_ccl("local", &[]).await.unwrap();
        let load = Json(Load::new(model.path(), Precision::F32));
        let worker = session.call("disco.models.load", (load, Value::None)).await.unwrap();
        let prompt = |tokens: Vec<u32>| {
            let batch = Json(Batch::new(vec![tokens], Sampler::GREEDY));
            session.call("disco.models.prompt", (&worker, batch))
        };
        let first: Json<Vec<Option<u32>>> =
            session.get(&prompt(vec![1, 2]).await.unwrap(), WorkerId::new(0)).await.unwrap();
        assert!(first.0[0].is_some());
        let failed = prompt(vec![1; 65]).await.unwrap();
        let error = session.get::<Json<Vec<Option<u32>>>>(&failed, WorkerId::new(0)).await.unwrap_err();
        assert!(error.to_string().contains("the context of the model has 64"), "{error}");
        session.recover().await.unwrap();
        let next = session.call("disco.models.next", (&worker,)).await.unwrap();
        let next: Json<Vec<Option<u32>>> = session.get(&next, WorkerId::new(0)).await.unwrap();
        assert_eq!(next.0, []);
        _ = session.shutdown().await;
    });
}
