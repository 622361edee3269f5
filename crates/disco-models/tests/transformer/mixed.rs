//! Models with random mixes of features, on any number of ranks, give the logits of plain loops.

use std::collections::HashMap;
use std::env;
use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use candle_core::{Device, Tensor};
use disco_candle::Comm;
use disco_candle::weights::{Shards, Weights};
use disco_models::{Config, ExpertSplit, ModelError, Precision, Transformer, plan};

use crate::draw::draw;
use crate::slow::Slow;

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
    split: ExpertSplit,
    tokens: &[u32],
    len: usize,
    comm: Comm,
) -> Result<Vec<f32>, ModelError> {
    let weights = Arc::new(Weights::open(folder)?);
    let mut config = Config::open(&weights)?;
    config.expert_split = split;
    let plan = plan(&config, &weights, comm.size())?;
    let precision = Precision::F32;
    let shards = Shards::new(weights, plan, comm.rank(), comm.size(), precision.dtype(), Device::Cpu);
    let model = Transformer::load(config, &shards, precision, comm)?;
    // Beside a shorter text, so that there is padding.
    let (mut cache, mut hidden) = model.prompt(&[tokens[..len].to_vec(), vec![tokens[0]]])?;
    for token in &tokens[len..] {
        hidden = model.step(&mut cache, &Tensor::new(&[*token, tokens[0]], &Device::Cpu)?)?;
    }
    Ok(model.logits(&hidden)?.get(0)?.to_vec1()?)
}

#[test]
fn logits_of_random_mixes_of_features_are_those_of_plain_loops() {
    let cases = if env::var_os("DISCO_LONG_TESTS").is_some() { 3000 } else { 60 };
    let folder = tempfile::tempdir().unwrap();
    for seed in 1..=cases {
        let mut state = 0xd134_2543_de82_ef95 ^ seed as u64;
        let mut pick = |choices: usize| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) as usize % choices
        };
        let (slow, tokens) = draw(&mut pick);
        let is_dynamic = slow.config["rope_parameters"]["rope_type"] == "dynamic";
        // Keys of dynamic rotations keep those of the steps that computed them.
        let len = if is_dynamic { tokens.len() } else { 1 + pick(tokens.len()) };
        let ranks = 1 + pick(3.min(slow.config["num_attention_heads"].as_u64().unwrap() as usize));
        let experts = slow.config["num_local_experts"].as_u64().unwrap_or(0) as usize;
        let split =
            if experts >= ranks { [ExpertSplit::Within, ExpertSplit::Over][pick(2)] } else { ExpertSplit::Within };
        write(&slow, folder.path());
        let expected = slow.logits(&tokens);
        let comms = disco_local::connect_threads(ranks, Duration::from_secs(60)).unwrap();
        let found = thread::scope(|scope| {
            let (folder, tokens) = (folder.path(), &tokens);
            let run = |comm| {
                scope.spawn(move || logits(folder, split, tokens, len, Comm::of_communicator(Box::new(comm))).unwrap())
            };
            let threads: Vec<_> = comms.into_iter().map(run).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect::<Vec<_>>()
        });
        let scale = expected.iter().fold(1.0, |largest: f64, logit| largest.max(logit.abs()));
        for logits in found {
            let pairs = logits.iter().zip(&expected);
            let difference = pairs.map(|(found, expected)| (f64::from(*found) - expected).abs()).fold(0.0, f64::max);
            let of = |what: &str| {
                format!(
                    "seed {seed}, {ranks} ranks, {split:?}, {len} of {} tokens: {what}\n{}",
                    tokens.len(),
                    slow.config
                )
            };
            assert!(difference < 1e-3 * scale, "{}", of(&format!("{difference} of {scale}")));
        }
    }
}
