//! Configurations of opened weights.

use std::path::Path;

use disco_candle::weights::Weights;
use serde_json::Value as Json;

use super::Family;
use super::keys::ends;
use super::metadata::Metadata;
use crate::config::{Config, ExpertLayout, SamplingDefaults, json};
use crate::error::ModelError;
use crate::names::{Names, Role};

impl Config {
    /// Reads the configuration that belongs to opened weights: the metadata of a GGUF file, else `config.json` in the
    /// folder of the weights. Texts end with the tokens of `config.json` and of `generation_config.json`, or with those of the metadata's
    /// keys and with tokens that are ends by their names (`<|eot_id|>`, `<|im_end|>`, …).
    ///
    /// # Errors
    /// The model has another architecture or uses an unsupported feature; the configuration is missing or incomplete.
    pub fn open(weights: &Weights) -> Result<Self, ModelError> {
        Self::open_ignoring(weights, &[])
    }

    /// As [`open`](Self::open), but goes on if `config.json` has keys of `ignored` that are not understood.
    ///
    /// # Errors
    /// Errors of [`open`](Self::open).
    pub fn open_ignoring(weights: &Weights, ignored: &[String]) -> Result<Self, ModelError> {
        if let Some(metadata) = weights.gguf() {
            return Metadata::config(metadata, ignored, &|tensor| {
                Some(weights.info(tensor).ok()?.shape().first().copied().unwrap_or(1))
            });
        }
        let path = weights.path();
        let folder = if path.is_dir() { path } else { path.parent().unwrap_or(Path::new(".")) };
        let json = json::read(&folder.join("config.json"))?;
        let mut config = Self::from_json(&json, ignored)?;
        let names = Names::of(config.names, weights);
        let has_logits = names.have_logits(weights);
        let says = |json: &Json| !json["tie_word_embeddings"].is_null();
        config.tied |= !says(&json) && !says(&json["text_config"]) && !has_logits;
        // As transformers 5, which does not tie matrices if the files have both.
        config.tied &= !(has_logits && weights.contains(&names.embedding()));
        let dim = config.dim;
        config.join_experts(&|layer, experts| match experts.layout {
            ExpertLayout::Apart => weights.contains(&names.module(layer, Role::ExpertGateUp)),
            // transformers 5 writes outputs × inputs, and reads both.
            ExpertLayout::Transposed if dim != experts.ffn => {
                let downs = weights.info(&names.module(layer, Role::ExpertDowns));
                downs.is_ok_and(|downs| *downs.shape() == [experts.count, dim, experts.ffn])
            }
            _ => false,
        });
        // Chats often end with another token than texts, and only this file says so.
        let generation = folder.join("generation_config.json");
        if generation.exists() {
            let json = json::read(&generation)?;
            config.sampling = SamplingDefaults::from_json(&json)?;
            config.eos.extend(ends(&json)?);
            config.eos.sort_unstable();
            config.eos.dedup();
        }
        Ok(config)
    }

    /// Reads the content of a `config.json`. Keys of `ignored` may be unknown.
    ///
    /// # Errors
    /// The model has another architecture or uses an unsupported feature; a key is missing, has the wrong type, or is not
    /// understood.
    pub fn from_json(json: &Json, ignored: &[String]) -> Result<Self, ModelError> {
        Family::config(json, ignored)
    }
}
