//! Adapters of low rank (LoRA), which are merged into the weights while they are read: W + scale · B · A.
//!
//! Files are those of peft: `adapter_config.json` and `adapter_model.safetensors`, with `lora_A` `[r, inputs]` and `lora_B`
//! `[outputs, r]` for each matrix. The scale is α / r, or α / √r with `use_rslora`; `alpha_pattern` and `rank_pattern` have other
//! numbers for some matrices. Source: peft's `LoraConfig`.

use std::collections::{BTreeSet, HashMap};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::path::{Path, PathBuf};

use candle_core::{DType, Device, Module as _, Tensor};
use disco_candle::Matrix;
use disco_candle::weights::{Part, Shards, Weights};
use serde_json::Value as Json;

use crate::config::{json, missing};
use crate::error::ModelError;

const CONFIG: &str = "adapter_config.json";
const WEIGHTS: &str = "adapter_model.safetensors";
/// The files of an adapter.
pub(crate) const FILES: [&str; 2] = [CONFIG, WEIGHTS];

/// What the names of an adapter's tensors begin with, before the name of the matrix.
const PREFIX: &str = "base_model.model.";

/// An adapter.
#[derive(Debug)]
pub struct Adapter {
    weights: Weights,
    config: Json,
    /// The matrices that it changes, without `.weight`.
    modules: BTreeSet<String>,
}

impl Adapter {
    /// The path of a model, and the folder of its adapter: `adapter`, if it is given. If `model` is an adapter's folder itself,
    /// its base is the model, by the key `base_model_name_or_path`, a path from this folder or from the current one.
    ///
    /// # Errors
    /// There is no such base, or the adapter can't be opened.
    pub fn resolve(model: PathBuf, adapter: Option<PathBuf>) -> Result<(PathBuf, Option<PathBuf>), ModelError> {
        let (model, adapter) = match Self::base_of(&model)? {
            Some(base) if adapter.is_none() => (base, Some(model)),
            _ => (model, adapter),
        };
        adapter.as_deref().map(Self::open).transpose()?;
        Ok((model, adapter))
    }

    fn base_of(path: &Path) -> Result<Option<PathBuf>, ModelError> {
        let file = path.join(CONFIG);
        if !file.is_file() || path.join("config.json").is_file() {
            return Ok(None);
        }
        let key = "base_model_name_or_path";
        let config = json::read(&file)?;
        let base = json::text(&config, key)?.ok_or_else(|| missing(key))?;
        match [path.join(base), base.into()].into_iter().find(|base: &PathBuf| base.exists()) {
            Some(base) => Ok(Some(base)),
            None => Err(ModelError::Key {
                key: key.into(),
                why: format!(
                    "{base:?} is no path from {} or from the current folder; give the base as the model, and this folder as its adapter",
                    path.display()
                ),
            }),
        }
    }

    /// Opens the folder of an adapter.
    ///
    /// # Errors
    /// The files can't be read, or the adapter is of another type, or changes more than matrices.
    pub fn open(folder: &Path) -> Result<Self, ModelError> {
        let config = json::read(&folder.join(CONFIG))?;
        check(&config)?;
        let weights = Weights::open(folder.join(WEIGHTS))?;
        let mut modules = BTreeSet::new();
        for name in weights.names() {
            let module = name
                .strip_prefix(PREFIX)
                .and_then(|rest| rest.strip_suffix(".lora_A.weight").or_else(|| rest.strip_suffix(".lora_B.weight")));
            let module =
                module.ok_or_else(|| ModelError::Feature { feature: format!("the adapter's tensor {name:?}") })?;
            modules.insert(module.to_owned());
        }
        Ok(Self { weights, config, modules })
    }

    /// An identity of its files.
    pub(crate) fn fingerprint(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        (self.weights.fingerprint(), self.config.to_string()).hash(&mut hasher);
        hasher.finish()
    }

    /// Checks that the adapter fits a model with these matrices, `[outputs, inputs]`. `shared` is the one that is used at both
    /// ends of the model, of which an adapter could change one end only.
    ///
    /// # Errors
    /// A matrix is not there, or the adapter's have other shapes or ranks.
    pub(crate) fn check(&self, matrices: &HashMap<String, [usize; 2]>, shared: Option<&str>) -> Result<(), ModelError> {
        for module in &self.modules {
            let fail = |why: String| Err(ModelError::Inconsistent(format!("the adapter of {module:?}: {why}")));
            let Some(&[rows, columns]) = matrices.get(&format!("{module}.weight")) else {
                return fail("the model has no such matrix".into());
            };
            if shared.is_some_and(|name| name.strip_suffix(".weight") == Some(module)) {
                return fail("the model uses this matrix for the embedding and for the logits".into());
            }
            let rank = self.number(module, "rank_pattern", "r")? as usize;
            if rank == 0 {
                return fail("its rank is 0".into());
            }
            let shapes = [self.weights.info(&a(module))?.shape(), self.weights.info(&b(module))?.shape()];
            if shapes != [&[rank, columns], &[rows, rank]] {
                return fail(format!(
                    "its matrices have the shapes {shapes:?}, beside rank {rank} and a matrix of {rows} × {columns}"
                ));
            }
        }
        Ok(())
    }

    /// Whether the adapter changes the matrix `name`.
    pub(crate) fn changes(&self, name: &str) -> bool {
        name.strip_suffix(".weight").is_some_and(|module| self.modules.contains(module))
    }

    /// The part of the matrix `name`, of `shape`, that `shards` has, with what the adapter adds to it.
    ///
    /// # Errors
    /// The adapter's tensors can't be read.
    pub(crate) fn merged(
        &self,
        shards: &Shards,
        name: &str,
        shape: [usize; 2],
        own: &Tensor,
    ) -> Result<Tensor, ModelError> {
        let module = name.strip_suffix(".weight").unwrap_or(name);
        let part = shards.plan().part(name, &shape, shards.rank(), shards.size())?;
        // Outputs are rows of B, inputs are columns of A.
        let of_dim = |dim: usize| match &part {
            Part::Range { dim: cut, .. } | Part::Ranges { dim: cut, .. } if *cut == dim => part.clone(),
            _ => Part::Whole,
        };
        let read = |name: &str, part: &Part| self.weights.read(name, part, DType::F32, &Device::Cpu);
        let (down, up) = (read(&a(module), &of_dim(1))?, read(&b(module), &of_dim(0))?);
        let rank = self.number(module, "rank_pattern", "r")?;
        let alpha = self.number(module, "alpha_pattern", "lora_alpha")?;
        let is_stabilised = json::flag(&self.config, "use_rslora")?.unwrap_or(false);
        let scale = alpha / if is_stabilised { rank.sqrt() } else { rank };
        // An element depends on its row and column only, whatever rows a rank has.
        let added = (Matrix::inference(down.t()?)?.forward(&up)? * scale)?.to_device(own.device())?;
        Ok((own.to_dtype(DType::F32)? + added)?.to_dtype(own.dtype())?)
    }

    /// A number of the configuration: of the first pattern that the end of the module's name matches, else `key`.
    fn number(&self, module: &str, patterns: &str, key: &str) -> Result<f64, ModelError> {
        let is_end =
            |pattern: &str| module == pattern || module.strip_suffix(pattern).is_some_and(|rest| rest.ends_with('.'));
        let mut patterns = self.config[patterns].as_object().into_iter().flatten();
        match patterns.find(|(pattern, _)| is_end(pattern)) {
            Some((pattern, number)) => number.as_f64().ok_or_else(|| json::wrong(pattern, "a number", number)),
            None => json::float(&self.config, key)?.ok_or_else(|| missing(key)),
        }
    }
}

/// Keys of `adapter_config.json` that are read, or that do not change what a finished adapter adds.
const KEYS: [&str; 24] = [
    "alpha_pattern",
    "auto_mapping",
    "base_model_name_or_path",
    "bias",
    "corda_config",
    "eva_config",
    "exclude_modules",
    "inference_mode",
    "init_lora_weights",
    "layers_pattern",
    "layers_to_transform",
    "loftq_config",
    "lora_alpha",
    "lora_dropout",
    "peft_type",
    "peft_version",
    "r",
    "rank_pattern",
    "revision",
    "runtime_config",
    "target_modules",
    "task_type",
    "use_rslora",
    "megatron_core",
];

/// Ways to begin a training that leave the base as it is.
const INITIALISATIONS: [&str; 3] = ["gaussian", "eva", "orthogonal"];

/// # Errors
/// The adapter is of another type, or changes more than matrices by A and B, or a key is not understood.
fn check(config: &Json) -> Result<(), ModelError> {
    let is_off = |value: &Json| match value {
        Json::Null | Json::Bool(false) => true,
        Json::Array(values) => values.is_empty(),
        Json::Object(values) => values.is_empty(),
        _ => false,
    };
    let refuse = |key: &str| Err(ModelError::Feature { feature: format!("an adapter with {key} {}", config[key]) });
    let unknown = |(key, value): &(&String, &Json)| !KEYS.contains(&key.as_str()) && !is_off(value);
    if config["peft_type"] != "LORA" {
        return refuse("peft_type");
    }
    if !is_off(&config["bias"]) && config["bias"] != "none" {
        return refuse("bias");
    }
    if config["init_lora_weights"].as_str().is_some_and(|kind| !INITIALISATIONS.contains(&kind)) {
        return refuse("init_lora_weights");
    }
    for key in ["rank_pattern", "alpha_pattern"] {
        // peft takes them as regular expressions, in which a dot of a name is any character.
        let is_plain = |pattern: &String| pattern.chars().all(|c| c.is_ascii_alphanumeric() || "_.".contains(c));
        if !config[key].as_object().into_iter().flatten().all(|(pattern, _)| is_plain(pattern)) {
            return refuse(key);
        }
    }
    match config.as_object().into_iter().flatten().find(unknown) {
        Some((key, _)) => refuse(key),
        None => Ok(()),
    }
}

fn a(module: &str) -> String {
    format!("{PREFIX}{module}.lora_A.weight")
}

fn b(module: &str) -> String {
    format!("{PREFIX}{module}.lora_B.weight")
}
