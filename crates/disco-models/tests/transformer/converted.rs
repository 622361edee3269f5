//! The tiny models as GGUF files, converted as llama.cpp's `convert_hf_to_gguf.py` does, give the same texts.
//!
//! llama.cpp itself gave these texts for the files that the same conversion wrote (xllamacpp 2026.10, 27 November 2026),
//! but for windows of Phi-3, which it does not use.

use std::collections::{BTreeMap, HashMap};
use std::fs::{self, File};
use std::path::Path;

use candle_core::quantized::gguf_file::{self, Value};
use candle_core::quantized::{GgmlDType, QTensor};
use candle_core::{Device, Tensor};
use disco::SessionKind;
use disco_candle::weights::Weights;
use disco_models::worker::Load;
use disco_models::{Attention, Config, ExpertSplit, Precision, Rotary, Scaling};
use serde_json::Value as Json;

use super::families::{Case, Prompt, case};
use super::tokens::{batch, tokens_of};

/// The models whose features GGUF files can say, and the architectures of the files.
const MODELS: [(&str, &str); 18] = [
    ("gemma2-plain", "gemma2"),
    ("gemma3-plain", "gemma3"),
    ("granite", "granite"),
    ("llama-3", "llama"),
    ("llama-bias", "llama"),
    ("llama-linear", "llama"),
    ("llama-old", "llama"),
    ("llama-yarn", "llama"),
    ("mixtral", "llama"),
    ("olmo2", "olmo2"),
    ("phi3", "phi3"),
    ("phi3-cross", "phi3"),
    ("phi3-longrope", "phi3"),
    ("phi3-partial", "phi3"),
    ("qwen2", "qwen2"),
    ("qwen3", "qwen3"),
    ("qwen3-moe", "qwen3moe"),
    ("smollm3-four", "smollm3"),
];

/// Keys of `config.json`, and of GGUF files.
const NUMBERS: [(&str, &str); 11] = [
    ("hidden_size", "embedding_length"),
    ("num_hidden_layers", "block_count"),
    ("max_position_embeddings", "context_length"),
    ("intermediate_size", "feed_forward_length"),
    ("moe_intermediate_size", "expert_feed_forward_length"),
    ("num_attention_heads", "attention.head_count"),
    ("num_key_value_heads", "attention.head_count_kv"),
    ("vocab_size", "vocab_size"),
    ("num_local_experts", "expert_count"),
    ("num_experts_per_tok", "expert_used_count"),
    ("sliding_window", "attention.sliding_window"),
];
const FLOATS: [(&str, &str); 7] = [
    ("rms_norm_eps", "attention.layer_norm_rms_epsilon"),
    ("attn_logit_softcapping", "attn_logit_softcapping"),
    ("final_logit_softcapping", "final_logit_softcapping"),
    ("embedding_multiplier", "embedding_scale"),
    ("attention_multiplier", "attention.scale"),
    ("residual_multiplier", "residual_scale"),
    ("logits_scaling", "logit_scale"),
];
/// Parts of the names of tensors, the longer ones before those that they contain.
const NAMES: [(&str, &str); 25] = [
    ("model.embed_tokens", "token_embd"),
    ("lm_head", "output"),
    ("model.norm", "output_norm"),
    ("model.layers", "blk"),
    ("input_layernorm", "attn_norm"),
    ("self_attn.q_proj", "attn_q"),
    ("self_attn.k_proj", "attn_k"),
    ("self_attn.v_proj", "attn_v"),
    ("self_attn.o_proj", "attn_output"),
    ("self_attn.q_norm", "attn_q_norm"),
    ("self_attn.k_norm", "attn_k_norm"),
    ("self_attn.qkv_proj", "attn_qkv"),
    ("mlp.gate_up_proj", "ffn_up"),
    ("mlp.gate_proj", "ffn_gate"),
    ("mlp.up_proj", "ffn_up"),
    ("mlp.down_proj", "ffn_down"),
    ("mlp.gate.", "ffn_gate_inp."),
    ("block_sparse_moe.gate.", "ffn_gate_inp."),
    ("pre_feedforward_layernorm", "ffn_norm"),
    ("post_feedforward_layernorm", "post_ffw_norm"),
    ("mlp.experts", "experts"),
    ("block_sparse_moe.experts", "experts"),
    (".w1.", ".gate_proj."),
    (".w2.", ".down_proj."),
    (".w3.", ".up_proj."),
];

/// A model that becomes a GGUF file.
struct Conversion {
    architecture: &'static str,
    config: Json,
    /// The configuration as [`Config`] understands it.
    known: Config,
    metadata: BTreeMap<String, Value>,
    tensors: BTreeMap<String, Tensor>,
}

impl Conversion {
    fn new(folder: &Path, architecture: &'static str) -> Self {
        let config: Json = serde_json::from_str(&fs::read_to_string(folder.join("config.json")).unwrap()).unwrap();
        let known = Config::open(&Weights::open(folder).unwrap()).unwrap();
        let mut conversion = Self { architecture, config, known, metadata: BTreeMap::new(), tensors: BTreeMap::new() };
        conversion.metadata.insert("general.architecture".into(), Value::String(architecture.into()));
        conversion.add_keys();
        conversion.add_rope();
        conversion.add_tensors(candle_core::safetensors::load(folder.join("model.safetensors"), &Device::Cpu).unwrap());
        conversion
    }

    /// The attention of the first layer.
    fn attention(&self) -> &Attention {
        self.known.attentions().next().unwrap()
    }

    /// The rotary embeddings of the first layer without a window, or of the first layer.
    fn rotary(&self) -> &Rotary {
        let full = self.known.attentions().find(|attention| attention.window.is_none());
        full.unwrap_or(self.attention()).rotary.as_ref().unwrap()
    }

    fn set(&mut self, name: &str, value: Value) {
        self.metadata.insert(format!("{}.{name}", self.architecture), value);
    }

    fn add_keys(&mut self) {
        // llama.cpp writes the window of these only.
        let has_window = ["gemma2", "gemma3", "phi3"].contains(&self.architecture);
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
        let width = Value::U32(self.attention().head_dim as u32);
        self.set("attention.key_length", width.clone());
        self.set("attention.value_length", width);
        self.set("rope.dimension_count", Value::U32(self.rotary().elements as u32));
        self.set("rope.freq_base", Value::F32(self.rotary().base));
    }

    fn add_rope(&mut self) {
        let mut rope = self.config["rope_parameters"].clone();
        if rope["full_attention"].is_object() {
            rope = rope["full_attention"].clone();
        }
        let float = |key: &str| rope[key].as_f64().unwrap();
        let kind = rope["rope_type"].as_str().unwrap_or("default");
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
                let original = self.config["original_max_position_embeddings"].as_u64().unwrap();
                let factor = self.known.context as f64 / original as f64;
                let attention = (1.0 + factor.ln() / (original as f64).ln()).sqrt();
                self.set("rope.scaling.original_context_length", Value::U32(original as u32));
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
            self.set("rope.scaling.yarn_beta_fast", Value::F32(float("beta_fast") as f32));
        }
    }

    fn add_tensors(&mut self, tensors: HashMap<String, Tensor>) {
        let is_gemma = self.architecture.starts_with("gemma");
        let is_interleaved = ["llama", "granite", "smollm3"].contains(&self.architecture);
        let has_post_norms = is_gemma || self.architecture == "olmo2";
        let mut experts: BTreeMap<String, BTreeMap<usize, Tensor>> = BTreeMap::new();
        for (name, mut tensor) in tensors {
            let after = if has_post_norms { "post_attention_norm" } else { "ffn_norm" };
            let name = name.replace("post_attention_layernorm", after);
            let name = NAMES.iter().fold(name, |name, (from, to)| name.replace(from, to));
            if is_gemma && name.contains("norm") {
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

    fn write(&self, path: &Path, dtype: GgmlDType) {
        let quantize = |(name, tensor): (&String, &Tensor)| {
            let fits = tensor.rank() > 1 && tensor.dims().last().unwrap().is_multiple_of(dtype.block_size());
            let dtype = if fits && !name.contains("gate_inp") { dtype } else { GgmlDType::F32 };
            (name.clone(), QTensor::quantize(tensor, dtype).unwrap())
        };
        let tensors: Vec<_> = self.tensors.iter().map(quantize).collect();
        let tensors: Vec<_> = tensors.iter().map(|(name, tensor)| (name.as_str(), tensor)).collect();
        let metadata: Vec<_> = self.metadata.iter().map(|(key, value)| (key.as_str(), value)).collect();
        gguf_file::write(&mut File::create(path).unwrap(), &metadata, &tensors).unwrap();
    }
}

/// The folder of a tiny model.
fn model(name: &str) -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/models").join(name)
}

#[test]
fn texts_of_gguf_files_are_those_of_transformers() {
    let folder = tempfile::tempdir().unwrap();
    for (name, architecture) in MODELS {
        let Case { prompts, .. } = case(model(name));
        let path = folder.path().join(format!("{name}.gguf"));
        Conversion::new(&model(name), architecture).write(&path, GgmlDType::F32);
        for (workers, split) in [(1, ExpertSplit::Within), (3, ExpertSplit::Within), (2, ExpertSplit::Over)] {
            for Prompt { prompt_ids, greedy_ids, .. } in &prompts {
                let mut load = Load::new(path.clone(), Precision::F32);
                load.expert_split = split;
                let batch = batch(std::slice::from_ref(prompt_ids));
                let found = tokens_of(load, "local", SessionKind::Threads, workers, &batch, greedy_ids.len());
                assert_eq!(found, std::slice::from_ref(greedy_ids), "{name}, {workers} workers");
            }
        }
    }
}

#[test]
fn quantised_experts_are_those_of_their_dequantised_stack() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("experts.gguf");
    // Four workers cut the three blocks of an expert's hidden units.
    for (dim, ffn, blocks, most) in [(64, 64, GgmlDType::Q8_0, 1), (256, 768, GgmlDType::Q6K, 4)] {
        let mut conversion = Conversion::new(&model("mixtral"), "llama");
        // Rows of whole blocks.
        let wide = |tensor: &Tensor, shape: &[usize]| {
            let elements = tensor.flatten_all().unwrap();
            let copies = shape.iter().product::<usize>().div_ceil(elements.elem_count());
            let many = Tensor::cat(&vec![elements; copies], 0).unwrap();
            // A copy, since candle quantises all of the memory of a view.
            many.narrow(0, 0, shape.iter().product()).unwrap().force_contiguous().unwrap().reshape(shape).unwrap()
        };
        let width = |old: &usize| match *old {
            40 => dim,
            44 => ffn,
            other => other,
        };
        for (name, tensor) in &mut conversion.tensors {
            *tensor = wide(tensor, &tensor.dims().iter().map(width).collect::<Vec<_>>());
            if name.contains("norm") {
                *tensor = tensor.ones_like().unwrap();
            }
        }
        conversion.set("embedding_length", Value::U32(dim as u32));
        conversion.set("feed_forward_length", Value::U32(ffn as u32));
        conversion.write(&path, blocks);
        let batch = batch(&[vec![17, 300, 5, 44, 91]]);
        let tokens = |precision, workers, split| {
            let mut load = Load::new(path.clone(), precision);
            load.expert_split = split;
            tokens_of(load, "local", SessionKind::Threads, workers, &batch, 8)
        };
        let expected = tokens(Precision::File, 1, ExpertSplit::Within);
        for (workers, split) in [(2, ExpertSplit::Within), (most, ExpertSplit::Within), (3, ExpertSplit::Over)] {
            assert_eq!(tokens(Precision::File, workers, split), expected, "{blocks:?}, {workers} workers");
        }
        // The product rounds its argument to 8 bits, which the texts of the small experts have room for.
        if blocks == GgmlDType::Q8_0 {
            assert_eq!(tokens(Precision::F32, 1, ExpertSplit::Within), expected);
        }
    }
}

#[test]
fn a_key_of_a_gguf_file_that_is_not_understood_is_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    let error_with = |architecture, name: &str, value: Value| {
        let mut conversion = Conversion::new(&model("llama-old"), architecture);
        conversion.set(name, value);
        conversion.write(&path, GgmlDType::F32);
        let weights = Weights::open(&path).unwrap();
        Config::open(&weights).map_err(|error| error.to_string()).err()
    };
    let error = error_with("llama", "attention.clamp_kqv", Value::F32(8.0)).unwrap();
    assert!(
        error.contains("the key \"llama.attention.clamp_kqv\" (F32(8.0)), which may change the results"),
        "{error}"
    );
    assert_eq!(error_with("llama", "use_parallel_residual", Value::Bool(false)), None);
    assert_eq!(error_with("llama", "attention.clamp_kqv", Value::F32(0.0)), None);
    // The converter writes the widths of Qwen3-Coder's shared experts, which it does not have.
    assert_eq!(error_with("qwen2", "expert_shared_feed_forward_length", Value::U32(0)), None);
    let error = error_with("qwen2", "expert_shared_feed_forward_length", Value::U32(8)).unwrap();
    assert!(error.contains("qwen2.expert_shared_feed_forward_length"), "{error}");
    let error = error_with("llama", "logit_scale", Value::F32(0.5)).unwrap();
    assert!(error.contains("the key \"llama.logit_scale\" (F32(0.5))"), "{error}");
    let error = error_with("qwen2", "expert_count", Value::U32(4)).unwrap();
    assert!(error.contains("the key \"qwen2.expert_count\" (U32(4))"), "{error}");
    let error = error_with("mamba", "block_count", Value::U32(4)).unwrap();
    assert!(error.contains("the architecture \"mamba\", which is not supported"), "{error}");
    assert!(error.contains("qwen3moe, phi3, gemma2, gemma3, olmo2, smollm3, granite (of GGUF files)"), "{error}");
}

#[test]
fn keys_of_a_gguf_file_that_turn_something_off_are_obeyed() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    let open = |conversion: &Conversion| {
        conversion.write(&path, GgmlDType::F32);
        Config::open(&Weights::open(&path).unwrap()).map_err(|error| error.to_string())
    };
    let mut granite = Conversion::new(&model("granite"), "granite");
    assert!(open(&granite).unwrap().attentions().all(|attention| attention.rotary.is_some()));
    granite.set("rope.scaling.finetuned", Value::Bool(false));
    assert!(open(&granite).unwrap().attentions().all(|attention| attention.rotary.is_none()));

    let mut gemma = Conversion::new(&model("gemma3-plain"), "gemma3");
    assert!(open(&gemma).unwrap().attentions().any(|attention| attention.window.is_some()));
    gemma.metadata.remove("gemma3.attention.sliding_window");
    let config = open(&gemma).unwrap();
    let first = config.attentions().next().unwrap();
    assert!(config.attentions().all(|attention| attention.window.is_none() && attention.rotary == first.rotary));

    let mut llama = Conversion::new(&model("llama-3"), "llama");
    assert_eq!(open(&llama).unwrap().attentions().next().unwrap().rotary.as_ref().unwrap().scaling, Scaling::InFile);
    llama.set("rope.scaling.factor", Value::F32(2.0));
    let error = open(&llama).unwrap_err();
    assert!(error.contains("the rope scaling Linear { factor: 2.0 } beside rope_freqs.weight is not"), "{error}");
}

#[test]
fn numbers_of_layers_and_experts_that_no_model_has_are_refused_before_memory_is_taken() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    let error_with = |name: &str, architecture, keys: &[(&str, Value)]| {
        let mut conversion = Conversion::new(&model(name), architecture);
        keys.iter().for_each(|(key, value)| conversion.set(key, value.clone()));
        conversion.write(&path, GgmlDType::F32);
        Config::open(&Weights::open(&path).unwrap()).unwrap_err().to_string()
    };
    let error = error_with("smollm3-four", "smollm3", &[("block_count", Value::U64(1 << 60))]);
    assert!(error.ends_with("1152921504606846976 layers, and at most 4096 can be right"), "{error}");
    let error = error_with("mixtral", "llama", &[("expert_count", Value::U64(1 << 40))]);
    assert!(error.ends_with("2 of 1099511627776 experts for each token, and at most 4096 can be right"), "{error}");
}
