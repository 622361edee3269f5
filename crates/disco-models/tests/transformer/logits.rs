//! Logits of workers are close to those of a model in one process.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use candle_core::Device;
use candle_core::quantized::GgmlDType;
use disco::{Builder, Json, SessionKind, Tensor, Value, WorkerContext, WorkerId, block_on};
use disco_candle::Comm;
use disco_candle::weights::{Shards, Weights};
use disco_models::worker::{Figures, Load};
use disco_models::{Config, Precision, Sums, Transformer, plan};

use super::random::{BLOCKS, LARGE_BLOCKS, Model, NINE_HEADS, Shape, THREE_HEADS};
use super::reference::Reference;

const COUNT: usize = 12;

/// Worker function: the logits after a prompt and after each of further tokens.
fn logits(
    ctx: &mut WorkerContext,
    Json(model): Json<PathBuf>,
    Json(dtype): Json<Precision>,
    Json(prompt): Json<Vec<u32>>,
    Json(tokens): Json<Vec<u32>>,
) -> anyhow::Result<Tensor> {
    disco_candle::compute_threads(1)?;
    let comm = Comm::world(ctx)?;
    let weights = Arc::new(Weights::open(model)?);
    let mut config = Config::open(&weights)?;
    config.sums = Sums::on(ctx.device().kind, ctx.world().nodes());
    let plan = plan(&config, &weights, comm.size())?;
    let precision = dtype;
    let shards = Shards::new(weights, plan, comm.rank(), comm.size(), precision.dtype(), Device::Cpu);
    let model = Transformer::load(config, &shards, precision, comm)?;
    let (mut cache, hidden) = model.prompt(&[prompt])?;
    let mut all = model.logits(&hidden)?.flatten_all()?.to_vec1::<f32>()?;
    for token in tokens {
        let hidden = model.step(&mut cache, &candle_core::Tensor::new(&[token], &Device::Cpu)?)?;
        all.extend(model.logits(&hidden)?.flatten_all()?.to_vec1::<f32>()?);
    }
    Ok(Tensor::from_slice(&all, [all.len()])?)
}

disco::register_function!("tests.logits", logits);

/// The logits of workers after a prompt and after each of further tokens.
pub(crate) fn logits_of(workers: usize, model: &Path, dtype: Precision, prompt: &[u32], tokens: &[u32]) -> Vec<f32> {
    logits_over("local", SessionKind::Threads, workers, model, dtype, prompt, tokens)
}

/// As [`logits_of`], of workers of any kind.
pub(crate) fn logits_over(
    backend: &str,
    kind: SessionKind,
    workers: usize,
    model: &Path,
    dtype: Precision,
    prompt: &[u32],
    tokens: &[u32],
) -> Vec<f32> {
    let session = Builder::new(kind, workers).start().unwrap();
    block_on(async {
        session.init_ccl(backend, &[]).await.unwrap();
        let further = tokens[..tokens.len() - 1].to_vec();
        let args = (Json(model.to_owned()), Json(dtype), Json(prompt.to_vec()), Json(further));
        let logits = session.call("tests.logits", args).await.unwrap();
        let logits: Tensor = session.get(&logits, WorkerId::new(workers as u32 - 1)).await.unwrap();
        session.shutdown().await.unwrap();
        logits.to_vec::<f32>().unwrap()
    })
}

#[test]
fn a_matrix_of_both_ends_has_either_name() {
    let model = Model::safetensors(NINE_HEADS, 11, serde_json::Value::Null);
    let prompt = [1, 2, 3, 99];
    let expected = logits_of(2, &model.path(), Precision::F32, &prompt, &[5, 6]);
    let mut tensors = candle_core::safetensors::load(model.path(), &Device::Cpu).unwrap();
    let embedding = tensors.remove("model.embed_tokens.weight").unwrap();
    tensors.insert("lm_head.weight".into(), embedding);
    candle_core::safetensors::save(&tensors, model.path()).unwrap();
    for workers in 1..=3 {
        let found = logits_of(workers, &model.path(), Precision::F32, &prompt, &[5, 6]);
        assert_eq!(found, expected, "{workers} workers");
    }
}

/// The largest difference.
fn difference(found: &[f32], expected: &[f32]) -> f32 {
    assert_eq!(found.len(), expected.len());
    found.iter().zip(expected).map(|(found, expected)| (found - expected).abs()).fold(0.0, f32::max)
}

/// A prompt, its greedy tokens in one process, and the logits there.
fn reference(model: &Path, shape: Shape) -> (Vec<u32>, Vec<u32>, Vec<f32>) {
    let prompt: Vec<u32> = (0..9).map(|i| (i * 5 % shape.vocabulary) as u32).collect();
    let (tokens, logits) = Reference::open(model).generate(&prompt, COUNT);
    (prompt, tokens, logits.concat())
}

#[test]
fn divisors_of_frequencies_in_a_file_give_the_logits_of_the_scaling_of_llama_3() {
    let scaling = serde_json::json!({
        "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 32,
    });
    let scaled = Model::safetensors(THREE_HEADS, 15, scaling);
    let prompt: Vec<u32> = (0..9).map(|i| i * 5 % 50).collect();
    let logits = |workers, model: &Model| logits_of(workers, &model.path(), Precision::F32, &prompt, &[7, 11, 3]);
    let expected = logits(1, &scaled);
    // The rule of Transformer 3.1 with the numbers above. The base is 1000.
    let divisor = |pair: usize| {
        let wavelength = std::f64::consts::TAU * 1000f64.powf(2.0 * pair as f64 / THREE_HEADS.head_dim as f64);
        let smooth = (32.0 / wavelength - 1.0) / (4.0 - 1.0);
        match wavelength {
            short if short < 32.0 / 4.0 => 1.0,
            long if long > 32.0 / 1.0 => 8.0,
            _ => (1.0 / ((1.0 - smooth) / 8.0 + smooth)) as f32,
        }
    };
    let divisors = (0..THREE_HEADS.head_dim / 2).map(divisor).collect();
    let model = Model::gguf_with_divisors(THREE_HEADS, 15, divisors);
    for workers in [1, 3] {
        let found = logits(workers, &model);
        assert!(difference(&found, &expected) < 1e-3, "{workers} workers: {}", difference(&found, &expected));
    }
}

#[test]
fn logits_with_elements_of_16_bits_are_near_those_of_32_bits() {
    let model = Model::gguf(NINE_HEADS, 13, GgmlDType::F32);
    let (prompt, tokens, expected) = reference(&model.path(), NINE_HEADS);
    // Rounding errors of a type are proportional to its epsilon.
    let errors = [Precision::F16, Precision::Bf16]
        .map(|dtype| difference(&logits_of(2, &model.path(), dtype, &prompt, &tokens), &expected));
    let ratio = errors[1] / errors[0];
    assert!((2.0..32.0).contains(&ratio), "f16 has 8 times the precision of bf16, but the errors are {errors:?}");
}

#[test]
fn quantised_matrices_are_as_precise_as_those_of_candle() {
    let large = [GgmlDType::Q4K, GgmlDType::Q6K].map(|blocks| (LARGE_BLOCKS, blocks));
    for (shape, blocks) in [GgmlDType::Q4_1, GgmlDType::Q8_0].map(|blocks| (BLOCKS, blocks)).into_iter().chain(large) {
        let model = Model::gguf(shape, 14, blocks);
        let (prompt, mut tokens, mut quantised) = reference(&model.path(), shape);
        // The quantised products of a process take turns, so workers that are threads are slow at them.
        tokens.truncate(3);
        quantised.truncate(3 * shape.vocabulary);
        // Products with quantised blocks quantise the states, too.
        let exact = logits_of(1, &model.path(), Precision::F32, &prompt, &tokens);
        let usual = difference(&quantised, &exact);
        assert!(usual > 1e-3, "the reference does not quantise its states: {usual}");
        let error = difference(&logits_of(2, &model.path(), Precision::File, &prompt, &tokens), &exact);
        assert!((1e-3..2.0 * usual).contains(&error), "{blocks:?}: {error}, usually {usual}");
    }
}

/// Bytes of the weights of each worker.
pub(crate) fn weights_of(workers: usize, model: &Path, precision: Precision) -> Vec<usize> {
    let session = Builder::threads(workers).start().unwrap();
    block_on(async {
        session.init_ccl("local", &[]).await.unwrap();
        let load = Json(Load::new(model.into(), precision));
        let worker = session.call("disco.models.load", (load, Value::None)).await.unwrap();
        let figures = session.call("disco.models.figures", (&worker,)).await.unwrap();
        let figures: Vec<Json<Figures>> = session.get_all(&figures).await.unwrap();
        session.shutdown().await.unwrap();
        figures.iter().map(|Json(figures)| figures.weights).collect()
    })
}

/// Bytes of the weights of all workers, in quantised blocks.
fn bytes_of(workers: usize, model: &Model) -> usize {
    weights_of(workers, &model.path(), Precision::File).iter().sum()
}

/// Heads, or hidden units if there are fewer blocks of them than workers, cut blocks of 256 columns and leave odd numbers of
/// blocks of 32.
#[test]
#[cfg(target_arch = "x86_64")]
fn quantised_matrices_stay_blocks_on_any_number_of_workers() {
    if !(is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") && is_x86_feature_detected!("f16c")) {
        println!("skipped: blocks are packed anew for AVX2 only");
        return;
    }
    let large = [GgmlDType::Q3K, GgmlDType::Q4K, GgmlDType::Q6K].map(|blocks| (LARGE_BLOCKS, blocks));
    for (shape, blocks) in [GgmlDType::Q4_1, GgmlDType::Q8_0].map(|blocks| (BLOCKS, blocks)).into_iter().chain(large) {
        let model = Model::gguf(shape, 14, blocks);
        let alone = bytes_of(1, &model);
        for workers in 2..=4 {
            let all = bytes_of(workers, &model);
            // Norms, and keys and values of heads that workers share, are on several workers.
            assert!(all < alone * 5 / 4, "{blocks:?}: {all} bytes of {workers} workers, {alone} of one");
        }
    }
}
