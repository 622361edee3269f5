//! Logits of any number of workers are close to those of one process.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use candle_core::quantized::GgmlDType;
use candle_core::{DType, Device};
use disco::function::Json;
use disco::{DataPlane as _, Session as _, SessionExt as _, SessionKind, Tensor, WorkerContext, WorkerId, block_on};
use disco_candle::Comm;
use disco_candle::llama::{Config, Llama, Precision, plan};
use disco_candle::weights::{Shards, Weights};

use crate::random::{Model, NINE_HEADS, Shape, THREE_HEADS};
use crate::reference::Reference;
use crate::session;

const COUNT: usize = 12;

/// Worker function: the logits after a prompt and after each of further tokens.
fn logits(
    ctx: &mut WorkerContext,
    Json(model): Json<PathBuf>,
    dtype: String,
    Json(prompt): Json<Vec<u32>>,
    Json(tokens): Json<Vec<u32>>,
) -> anyhow::Result<Tensor> {
    disco_candle::compute_threads(1)?;
    let comm = Comm::world(ctx)?;
    let weights = Arc::new(Weights::open(model)?);
    let config = Config::open(&weights)?;
    let plan = plan(&config, &weights, comm.size())?;
    let dtype = match dtype.as_str() {
        "f32" => DType::F32,
        "f16" => DType::F16,
        _ => DType::BF16,
    };
    let shards = Shards::new(weights, plan, comm.rank(), comm.size(), dtype, Device::Cpu);
    let model = Llama::load(config, &shards, Precision::Dense(dtype), comm)?;
    let (mut cache, hidden) = model.prompt(&[prompt])?;
    let mut all = model.logits(&hidden)?.flatten_all()?.to_vec1::<f32>()?;
    for token in tokens {
        let hidden = model.step(&mut cache, &[token])?;
        all.extend(model.logits(&hidden)?.flatten_all()?.to_vec1::<f32>()?);
    }
    Ok(Tensor::from_slice(&all, [all.len()])?)
}

disco::register_function!("tests.logits", logits);

/// The largest difference between the logits of workers and those of one process.
fn difference(workers: usize, model: &Path, dtype: &str, shape: Shape) -> f32 {
    let prompt: Vec<u32> = (0..9).map(|i| (i * 5 % shape.vocabulary) as u32).collect();
    let (tokens, expected) = Reference::open(model).generate(&prompt, COUNT);
    let further = tokens[..COUNT - 1].to_vec();
    let session = session(SessionKind::Threads, workers);
    let found = block_on(async {
        session.init_ccl("local", &[]).await.unwrap();
        let args = (Json(model.to_owned()), dtype, Json(prompt), Json(further));
        let logits = session.call_named("tests.logits", args).await.unwrap();
        let logits: Tensor = session.get_as(&logits, WorkerId::new(workers as u32 - 1)).await.unwrap();
        session.shutdown().await.unwrap();
        logits.to_vec::<f32>().unwrap()
    });
    let expected: Vec<f32> = expected.into_iter().flatten().collect();
    assert_eq!(found.len(), expected.len());
    found.iter().zip(expected).map(|(found, expected)| (found - expected).abs()).fold(0.0, f32::max)
}

#[test]
fn logits_of_1_to_4_workers_are_those_of_one_process() {
    let model = Model::gguf(NINE_HEADS, 11, GgmlDType::F32);
    for workers in 1..=4 {
        let difference = difference(workers, &model.path(), "f32", NINE_HEADS);
        assert!(difference < 1e-3, "{workers} workers: {difference}");
    }
}

#[test]
fn logits_with_the_rope_scaling_of_llama_3_are_those_of_one_process() {
    let scaling = serde_json::json!({
        "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 32,
    });
    let model = Model::safetensors(THREE_HEADS, 12, scaling);
    for workers in [1, 3] {
        let difference = difference(workers, &model.path(), "f32", THREE_HEADS);
        assert!(difference < 1e-3, "{workers} workers: {difference}");
    }
}

#[test]
fn logits_with_elements_of_16_bits_are_near_those_of_32_bits() {
    let model = Model::gguf(NINE_HEADS, 13, GgmlDType::F32);
    for (dtype, limit) in [("f16", 0.15), ("bf16", 1.2)] {
        for workers in [1, 2] {
            let difference = difference(workers, &model.path(), dtype, NINE_HEADS);
            assert!(difference < limit, "{dtype}, {workers} workers: {difference}");
        }
    }
}
