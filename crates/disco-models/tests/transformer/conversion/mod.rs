//! Models that become GGUF files, as llama.cpp's `convert_hf_to_gguf.py` converts them.

mod delta;
mod families;
mod names;

use std::collections::{BTreeMap, HashMap};
use std::fs::{self, File};
use std::path::Path;

use candle_core::quantized::gguf_file::{self, Value};
use candle_core::quantized::{GgmlDType, QTensor};
use candle_core::{DType, Device, Tensor};
use disco_candle::weights::Weights;
use disco_models::{Attention, Config, Rotary};
use serde_json::Value as Json;

/// Keys of `config.json`, and of GGUF files.
const NUMBERS: [(&str, &str); 17] = [
    ("hidden_size", "embedding_length"),
    ("num_hidden_layers", "block_count"),
    ("max_position_embeddings", "context_length"),
    ("intermediate_size", "feed_forward_length"),
    ("moe_intermediate_size", "expert_feed_forward_length"),
    ("num_attention_heads", "attention.head_count"),
    ("num_key_value_heads", "attention.head_count_kv"),
    ("vocab_size", "vocab_size"),
    ("num_local_experts", "expert_count"),
    ("num_experts", "expert_count"),
    ("n_routed_experts", "expert_count"),
    ("num_experts_per_tok", "expert_used_count"),
    ("top_k_experts", "expert_used_count"),
    ("n_group", "expert_group_count"),
    ("topk_group", "expert_group_used_count"),
    ("shared_expert_intermediate_size", "expert_shared_feed_forward_length"),
    ("sliding_window", "attention.sliding_window"),
];
const FLOATS: [(&str, &str); 8] = [
    ("rms_norm_eps", "attention.layer_norm_rms_epsilon"),
    ("layer_norm_eps", "attention.layer_norm_epsilon"),
    ("attn_logit_softcapping", "attn_logit_softcapping"),
    ("final_logit_softcapping", "final_logit_softcapping"),
    ("embedding_multiplier", "embedding_scale"),
    ("attention_multiplier", "attention.scale"),
    ("residual_multiplier", "residual_scale"),
    ("logits_scaling", "logit_scale"),
];

/// A model that becomes a GGUF file.
pub(crate) struct Conversion {
    architecture: &'static str,
    /// Whether the tensors are those of files that llama.cpp wrote earlier.
    is_old: bool,
    /// Of the text part.
    config: Json,
    /// The configuration as [`Config`] understands it.
    known: Config,
    pub(crate) metadata: BTreeMap<String, Value>,
    pub(crate) tensors: BTreeMap<String, Tensor>,
}

impl Conversion {
    pub(crate) fn new(folder: &Path, architecture: &'static str) -> Self {
        Self::of(folder, architecture, false)
    }

    /// A file as llama.cpp wrote it earlier.
    pub(crate) fn old(folder: &Path, architecture: &'static str) -> Self {
        Self::of(folder, architecture, true)
    }

    fn of(folder: &Path, architecture: &'static str, is_old: bool) -> Self {
        let config: Json = serde_json::from_str(&fs::read_to_string(folder.join("config.json")).unwrap()).unwrap();
        let config = if config["text_config"].is_object() { config["text_config"].clone() } else { config };
        let known = Config::open(&Weights::open(folder).unwrap()).unwrap();
        let (metadata, tensors) = (BTreeMap::new(), BTreeMap::new());
        let mut conversion = Self { architecture, is_old, config, known, metadata, tensors };
        conversion.metadata.insert("general.architecture".into(), Value::String(architecture.into()));
        conversion.add_keys();
        conversion.add_rope();
        conversion.add_tensors(candle_core::safetensors::load(folder.join("model.safetensors"), &Device::Cpu).unwrap());
        conversion.add_family();
        conversion
    }

    /// The attention of the first layer without a window, or of the first layer that has one.
    fn attention(&self) -> &Attention {
        let full = self.known.attentions().find(|attention| attention.window.is_none());
        full.or(self.known.attentions().next()).unwrap()
    }

    fn rotary(&self) -> Option<&Rotary> {
        self.known.attentions().filter(|attention| attention.window.is_none()).find_map(|it| it.rotary.as_ref())
    }

    pub(crate) fn set(&mut self, name: &str, value: Value) {
        self.metadata.insert(format!("{}.{name}", self.architecture), value);
    }

    fn number(&self, key: &str) -> usize {
        self.config[key].as_u64().unwrap() as usize
    }

    fn set_number(&mut self, name: &str, number: usize) {
        self.set(name, Value::U32(number as u32));
    }

    fn add_keys(&mut self) {
        // llama.cpp writes the window of these only.
        let has_window = ["gemma2", "gemma3", "gemma4", "gpt-oss", "phi3", "cohere2"].contains(&self.architecture);
        for (key, name) in NUMBERS.into_iter().filter(|(key, _)| has_window || *key != "sliding_window") {
            if let Some(number) = self.config[key].as_u64() {
                self.set(name, Value::U32(number as u32));
            }
        }
        for (key, name) in FLOATS {
            if let Some(number) = self.config[key].as_f64() {
                self.set(name, Value::F32(number as f32));
            }
        }
        let width = self.attention().head_dim;
        self.set_number("attention.key_length", width);
        self.set_number("attention.value_length", width);
        let rotary = self.rotary().or(self.known.attentions().find_map(|attention| attention.rotary.as_ref())).cloned();
        if let Some(rotary) = rotary {
            self.set_number("rope.dimension_count", rotary.elements);
            self.set("rope.freq_base", Value::F32(rotary.base));
        }
    }

    fn add_rope(&mut self) {
        let mut rope = self.config["rope_parameters"].clone();
        if rope["full_attention"].is_object() {
            rope = rope["full_attention"].clone();
        }
        if rope.is_null() {
            rope = self.config["rope_scaling"].clone();
        }
        let float = |key: &str| rope[key].as_f64().unwrap();
        let kind = rope["rope_type"].as_str().or(rope["type"].as_str()).unwrap_or("default");
        let list = |key: &str| {
            let numbers = rope[key].as_array().unwrap().iter().map(|number| number.as_f64().unwrap() as f32);
            Tensor::from_iter(numbers, &Device::Cpu).unwrap()
        };
        match kind {
            "linear" | "yarn" => {
                self.set("rope.scaling.type", Value::String(kind.into()));
                self.set("rope.scaling.factor", Value::F32(float("factor") as f32));
            }
            "longrope" => {
                let original = self.number("original_max_position_embeddings");
                let factor = self.known.context as f64 / original as f64;
                let attention = (1.0 + factor.ln() / (original as f64).ln()).sqrt();
                self.set_number("rope.scaling.original_context_length", original);
                self.set("rope.scaling.attn_factor", Value::F32(attention as f32));
                self.tensors.insert("rope_factors_short.weight".into(), list("short_factor"));
                self.tensors.insert("rope_factors_long.weight".into(), list("long_factor"));
            }
            "llama3" => {
                // The divisors, as the conversion computes them.
                let width = self.attention().head_dim;
                let frequencies = (0..width).step_by(2).map(|i| float("rope_theta").powf(-(i as f64) / width as f64));
                let [low, high, factor] = ["low_freq_factor", "high_freq_factor", "factor"].map(float);
                let original = float("original_max_position_embeddings");
                let divisor = |frequency: f64| {
                    let length = std::f64::consts::TAU / frequency;
                    let smooth = (original / length - low) / (high - low);
                    let divisor = 1.0 / ((1.0 - smooth) / factor + smooth);
                    if length < original / high {
                        1.0
                    } else if length > original / low {
                        factor
                    } else {
                        divisor
                    }
                };
                let divisors = frequencies.map(|frequency| divisor(frequency) as f32);
                self.tensors.insert("rope_freqs.weight".into(), Tensor::from_iter(divisors, &Device::Cpu).unwrap());
            }
            _ => (),
        }
        if kind == "yarn" {
            let original = float("original_max_position_embeddings") as u32;
            self.set("rope.scaling.original_context_length", Value::U32(original));
            for (key, name) in [
                ("beta_fast", "yarn_beta_fast"),
                ("beta_slow", "yarn_beta_slow"),
                ("attention_factor", "yarn_attn_factor"),
            ] {
                if let Some(number) = rope[key].as_f64() {
                    self.set(&format!("rope.scaling.{name}"), Value::F32(number as f32));
                }
            }
            if let Some(all) = rope["mscale_all_dim"].as_f64() {
                let all = if self.architecture == "deepseek2" { 0.1 * all } else { all };
                self.set("rope.scaling.yarn_log_multiplier", Value::F32(all as f32));
            }
            if let Some(beta) = rope["llama_4_scaling_beta"].as_f64() {
                self.set("attention.temperature_scale", Value::F32(beta as f32));
            }
        }
    }

    fn add_tensors(&mut self, tensors: HashMap<String, Tensor>) {
        let has_offset = ["gemma2", "gemma3", "qwen3next", "qwen35", "qwen35moe"].contains(&self.architecture);
        let is_interleaved = ["llama", "granite", "smollm3", "mistral3"].contains(&self.architecture);
        let mut experts: BTreeMap<String, BTreeMap<usize, Tensor>> = BTreeMap::new();
        for (name, tensor) in tensors {
            let mut tensor = tensor.to_dtype(DType::F32).unwrap();
            let Some(name) = names::of(&name, self.architecture, self.known.layers.len()) else { continue };
            if has_offset && name.contains("norm") && !name.contains("ssm_norm") {
                tensor = (tensor + 1.0).unwrap();
            }
            if is_interleaved && (name.contains("attn_q.") || name.contains("attn_k.")) {
                tensor = self.interleaved(&tensor);
            }
            match name.split_once("experts.") {
                None => drop(self.tensors.insert(name, tensor)),
                Some((layer, rest)) => {
                    let (number, role) = rest.split_once('.').unwrap();
                    let role = role.replace("_proj", "_exps");
                    experts.entry(format!("{layer}ffn_{role}")).or_default().insert(number.parse().unwrap(), tensor);
                }
            }
        }
        for (name, experts) in experts {
            self.tensors.insert(name, Tensor::stack(&experts.into_values().collect::<Vec<_>>(), 0).unwrap());
        }
    }

    /// Rows of heads whose two elements of a rotated pair are neighbours, not half a head apart.
    fn interleaved(&self, matrix: &Tensor) -> Tensor {
        let (width, dims) = (self.attention().head_dim, matrix.dims());
        let halves = matrix.reshape((dims[0] / width, 2, width / 2, ())).unwrap();
        halves.transpose(1, 2).unwrap().contiguous().unwrap().reshape(dims).unwrap()
    }

    /// The names of the tensors that end with `end`.
    fn ending(&self, end: &str) -> Vec<String> {
        self.tensors.keys().filter(|name| name.ends_with(end)).cloned().collect()
    }

    /// Changes the tensors that end with `end`.
    fn change(&mut self, end: &str, change: impl Fn(&Tensor) -> candle_core::Result<Tensor>) {
        for (_, tensor) in self.tensors.iter_mut().filter(|(name, _)| name.ends_with(end)) {
            *tensor = change(tensor).unwrap();
        }
    }

    pub(crate) fn write(&self, path: &Path, dtype: GgmlDType) {
        let quantize = |(name, tensor): (&String, &Tensor)| {
            let fits = tensor.rank() > 1 && tensor.dims().last().unwrap().is_multiple_of(dtype.block_size());
            let dtype = if fits && !name.contains("gate_inp") { dtype } else { GgmlDType::F32 };
            (name.clone(), QTensor::quantize(&tensor.force_contiguous().unwrap(), dtype).unwrap())
        };
        let tensors: Vec<_> = self.tensors.iter().map(quantize).collect();
        let tensors: Vec<_> = tensors.iter().map(|(name, tensor)| (name.as_str(), tensor)).collect();
        let metadata: Vec<_> = self.metadata.iter().map(|(key, value)| (key.as_str(), value)).collect();
        gguf_file::write(&mut File::create(path).unwrap(), &metadata, &tensors).unwrap();
    }
}
