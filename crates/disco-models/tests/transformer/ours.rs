//! Our logits of a model of [`Slow`], from files.

use std::collections::HashMap;
use std::fs;
use std::path::Path;
use std::sync::Arc;

use candle_core::{Device, Tensor};
use disco_candle::Comm;
use disco_candle::weights::{Shards, Weights};
use disco_models::{Config, ExpertSplit, ModelError, Precision, Sums, Transformer, plan};

use super::slow::Slow;

/// Writes a model as a folder of safetensors.
pub(crate) fn write(slow: &Slow, folder: &Path) {
    let tensors = slow.tensors.iter().map(|(name, array)| {
        let values: Vec<f32> = array.values.iter().map(|value| *value as f32).collect();
        (name.as_str(), Tensor::from_vec(values, array.shape.as_slice(), &Device::Cpu).unwrap())
    });
    fs::write(folder.join("config.json"), slow.config.to_string()).unwrap();
    candle_core::safetensors::save(&tensors.collect::<HashMap<_, _>>(), folder.join("model.safetensors")).unwrap();
}

/// One rank's logits after a prompt of `len` tokens and steps with the others.
pub(crate) fn logits(
    folder: &Path,
    (split, sums): (ExpertSplit, Sums),
    tokens: &[u32],
    len: usize,
    comm: Comm,
) -> Result<Vec<f32>, ModelError> {
    let weights = Arc::new(Weights::open(folder)?);
    let mut config = Config::open(&weights)?;
    (config.expert_split, config.sums) = (split, sums);
    let plan = plan(&config, &weights, comm.size())?;
    let precision = Precision::F32;
    let shards = Shards::new(weights, plan, comm.rank(), comm.size(), precision.dtype(), Device::Cpu);
    let model = Transformer::load(config, &shards, precision, comm)?;
    // Beside a shorter text.
    let (mut cache, mut hidden) = model.prompt(&[tokens[..len].to_vec(), vec![tokens[0]]])?;
    for token in &tokens[len..] {
        hidden = model.step(&mut cache, &Tensor::new(&[*token, tokens[0]], &Device::Cpu)?)?;
    }
    Ok(model.logits(&hidden)?.get(0)?.to_vec1()?)
}

/// The largest difference of logits, as a share of the largest logit.
pub(crate) fn difference(found: &[f32], expected: &[f64]) -> f64 {
    let scale = expected.iter().fold(1.0, |largest: f64, logit| largest.max(logit.abs()));
    let pairs = found.iter().zip(expected);
    pairs.map(|(found, expected)| (f64::from(*found) - expected).abs()).fold(0.0, f64::max) / scale
}
