//! Small models with random weights, as files.

use std::collections::HashMap;
use std::fs::{self, File};
use std::path::{Path, PathBuf};

use candle_core::quantized::gguf_file::{self, Value};
use candle_core::quantized::{GgmlDType, QTensor};
use candle_core::{DType, Device, Tensor};
use tempfile::TempDir;

/// The hyperparameters of a model.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    pub(crate) layers: usize,
    pub(crate) heads: usize,
    pub(crate) kv_heads: usize,
    pub(crate) head_dim: usize,
    pub(crate) ffn: usize,
    pub(crate) vocabulary: usize,
    pub(crate) context: usize,
    pub(crate) tied: bool,
}

/// Neither the heads, nor the hidden units, nor the vocabulary can be shared equally by 2 or 4 workers.
pub(crate) const NINE_HEADS: Shape =
    Shape { layers: 2, heads: 9, kv_heads: 3, head_dim: 8, ffn: 101, vocabulary: 103, context: 1024, tied: true };

/// One kv head, which all workers have.
pub(crate) const THREE_HEADS: Shape =
    Shape { layers: 2, heads: 3, kv_heads: 1, head_dim: 8, ffn: 35, vocabulary: 50, context: 64, tied: false };

/// Rows of whole quantisation blocks.
pub(crate) const BLOCKS: Shape =
    Shape { layers: 2, heads: 6, kv_heads: 3, head_dim: 32, ffn: 320, vocabulary: 96, context: 128, tied: true };

/// Rows of whole blocks of 256 elements, also for each of two workers.
pub(crate) const LARGE_BLOCKS: Shape =
    Shape { layers: 1, heads: 8, kv_heads: 4, head_dim: 64, ffn: 768, vocabulary: 64, context: 64, tied: true };

/// Hidden units of whole blocks of 256 elements, beside rows that are none; heads of whole shards of sums.
pub(crate) const WIDE: Shape =
    Shape { layers: 1, heads: 9, kv_heads: 3, head_dim: 64, ffn: 1536, vocabulary: 160, context: 700, tied: true };

/// A mixture of four experts of 768 hidden units.
pub(crate) fn wide_experts() -> Model {
    let shape = Shape { heads: 6, ffn: 768, ..WIDE };
    let model = Model::safetensors(shape, 6, serde_json::Value::Null);
    let mut tensors = candle_core::safetensors::load(model.path(), &Device::Cpu).unwrap();
    tensors.retain(|name, _| !name.contains(".mlp."));
    let dim = shape.dim();
    for expert in 0..4 {
        for (seed, (name, rows, columns)) in
            (expert..).step_by(4).zip([("w1", 768, dim), ("w2", dim, 768), ("w3", 768, dim)])
        {
            let name = format!("model.layers.0.block_sparse_moe.experts.{expert}.{name}.weight");
            tensors.insert(name, random(100 + seed, &[rows, columns]));
        }
    }
    tensors.insert("model.layers.0.block_sparse_moe.gate.weight".into(), random(99, &[4, dim]));
    candle_core::safetensors::save(&tensors, model.path()).unwrap();
    let path = model.path().with_file_name("config.json");
    let mut config: serde_json::Value = serde_json::from_str(&fs::read_to_string(&path).unwrap()).unwrap();
    config["model_type"] = "mixtral".into();
    config["num_local_experts"] = 4.into();
    config["num_experts_per_tok"] = 2.into();
    fs::write(path, config.to_string()).unwrap();
    model
}

/// A model in a folder that is removed with it.
pub(crate) struct Model {
    folder: TempDir,
    file: &'static str,
}

impl Model {
    /// The file of the weights.
    pub(crate) fn path(&self) -> PathBuf {
        self.folder.path().join(self.file)
    }

    /// A GGUF file with matrices of one type.
    pub(crate) fn gguf(shape: Shape, seed: u64, matrices: GgmlDType) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let model = Self { folder, file: "model.gguf" };
        let tensors = shape.tensors(seed, &gguf_name);
        let path = model.path();
        shape.write_gguf(&path, tensors, matrices, &[]);
        model
    }

    /// A GGUF file with more metadata, such as a vocabulary.
    pub(crate) fn gguf_with_metadata(shape: Shape, metadata: &[(&str, Value)]) -> Self {
        let model = Self { folder: tempfile::tempdir().unwrap(), file: "model.gguf" };
        shape.write_gguf(&model.path(), shape.tensors(1, &gguf_name), GgmlDType::F32, metadata);
        model
    }

    /// A GGUF file with the matrices of [`Model::safetensors`] for the same seed, and with a divisor of each frequency of
    /// the position embeddings.
    pub(crate) fn gguf_with_divisors(shape: Shape, seed: u64, divisors: Vec<f32>) -> Self {
        let len = divisors.len();
        Self::gguf_with(shape, seed, ("rope_freqs.weight", Tensor::from_vec(divisors, len, &Device::Cpu).unwrap()))
    }

    /// A GGUF file with the matrices of [`Model::safetensors`] for the same seed, and with one tensor more.
    pub(crate) fn gguf_with(shape: Shape, seed: u64, (name, tensor): (&str, Tensor)) -> Self {
        let model = Self { folder: tempfile::tempdir().unwrap(), file: "model.gguf" };
        let rotated = [".attn_q.", ".attn_k."];
        let order = |(name, tensor): (String, Tensor)| {
            if rotated.iter().any(|part| name.contains(part)) {
                (name, shape.interleaved(&tensor))
            } else {
                (name, tensor)
            }
        };
        let mut tensors: Vec<_> = shape.tensors(seed, &gguf_name).into_iter().map(order).collect();
        tensors.push((name.into(), tensor));
        shape.write_gguf(&model.path(), tensors, GgmlDType::F32, &[]);
        model
    }

    /// A folder with `config.json` and a safetensors file. `rope_scaling` is a value of `config.json`.
    pub(crate) fn safetensors(shape: Shape, seed: u64, rope_scaling: serde_json::Value) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let model = Self { folder, file: "model.safetensors" };
        let tensors: HashMap<_, _> = shape.tensors(seed, &hugging_face_name).into_iter().collect();
        candle_core::safetensors::save(&tensors, model.path()).unwrap();
        let config = serde_json::json!({
            "model_type": "llama", "hidden_size": shape.dim(), "num_hidden_layers": shape.layers,
            "num_attention_heads": shape.heads, "num_key_value_heads": shape.kv_heads,
            "intermediate_size": shape.ffn, "vocab_size": shape.vocabulary, "rms_norm_eps": 1e-5,
            "rope_theta": 1000.0, "max_position_embeddings": shape.context, "tie_word_embeddings": shape.tied,
            "rope_scaling": rope_scaling, "bos_token_id": null, "eos_token_id": null,
        });
        fs::write(model.path().with_file_name("config.json"), config.to_string()).unwrap();
        model
    }
}

impl Shape {
    fn dim(&self) -> usize {
        self.heads * self.head_dim
    }

    /// Writes a GGUF file with matrices of one type, and with the metadata `more`.
    fn write_gguf(&self, path: &Path, tensors: Vec<(String, Tensor)>, matrices: GgmlDType, more: &[(&str, Value)]) {
        let quantize = |(name, tensor): (String, Tensor)| {
            let dtype = match tensor.dims() {
                [_, columns] if columns.is_multiple_of(matrices.block_size()) => matrices,
                [_, _] => GgmlDType::Q8_0,
                _ => GgmlDType::F32,
            };
            (name, QTensor::quantize(&tensor, dtype).unwrap())
        };
        let tensors: Vec<_> = tensors.into_iter().map(quantize).collect();
        let tensors: Vec<_> = tensors.iter().map(|(name, tensor)| (name.as_str(), tensor)).collect();
        let number = |number: usize| Value::U32(number as u32);
        let metadata = [
            ("general.architecture", Value::String("llama".into())),
            ("llama.embedding_length", number(self.dim())),
            ("llama.block_count", number(self.layers)),
            ("llama.attention.head_count", number(self.heads)),
            ("llama.attention.head_count_kv", number(self.kv_heads)),
            ("llama.feed_forward_length", number(self.ffn)),
            ("llama.context_length", number(self.context)),
            ("llama.rope.dimension_count", number(self.head_dim)),
            ("llama.rope.freq_base", Value::F32(1000.0)),
            ("llama.attention.layer_norm_rms_epsilon", Value::F32(1e-5)),
        ];
        let metadata: Vec<_> = metadata.iter().chain(more).map(|(key, value)| (*key, value)).collect();
        gguf_file::write(&mut File::create(path).unwrap(), &metadata, &tensors).unwrap();
    }

    /// The rows of a query or key matrix in the order of GGUF files: the two elements of a rotated pair are neighbours,
    /// not half a head apart.
    fn interleaved(&self, matrix: &Tensor) -> Tensor {
        let (rows, columns) = matrix.dims2().unwrap();
        let halves = matrix.reshape((rows / self.head_dim, 2, self.head_dim / 2, columns)).unwrap();
        halves.transpose(1, 2).unwrap().contiguous().unwrap().reshape((rows, columns)).unwrap()
    }

    /// Random tensors with the names that `name` makes of a layer and a role.
    fn tensors(&self, seed: u64, name: &dyn Fn(Option<usize>, &str) -> String) -> Vec<(String, Tensor)> {
        let (dim, kv) = (self.dim(), self.kv_heads * self.head_dim);
        let mut shapes = vec![(name(None, "embedding"), vec![self.vocabulary, dim]), (name(None, "norm"), vec![dim])];
        if !self.tied {
            shapes.push((name(None, "logits"), vec![self.vocabulary, dim]));
        }
        for layer in 0..self.layers {
            let roles: [(&str, Vec<usize>); 9] = [
                ("attention norm", vec![dim]),
                ("q", vec![dim, dim]),
                ("k", vec![kv, dim]),
                ("v", vec![kv, dim]),
                ("o", vec![dim, dim]),
                ("ffn norm", vec![dim]),
                ("gate", vec![self.ffn, dim]),
                ("up", vec![self.ffn, dim]),
                ("down", vec![dim, self.ffn]),
            ];
            shapes.extend(roles.map(|(role, shape)| (name(Some(layer), role), shape)));
        }
        let tensor = |(number, (name, shape)): (usize, (String, Vec<usize>))| {
            let tensor = random(seed * 1000 + number as u64, &shape);
            // Norms are about 1.
            let tensor = if shape.len() == 1 { (tensor + 1.0).unwrap() } else { tensor };
            (name, tensor)
        };
        shapes.into_iter().enumerate().map(tensor).collect()
    }
}

/// Random numbers between -0.5 and 0.5.
fn random(seed: u64, shape: &[usize]) -> Tensor {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let numbers = std::iter::repeat_with(|| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 40) as f32 / (1 << 24) as f32 - 0.5
    });
    let numbers: Vec<f32> = numbers.take(shape.iter().product()).collect();
    Tensor::from_vec(numbers, shape, &Device::Cpu).unwrap().to_dtype(DType::F32).unwrap()
}

fn gguf_name(layer: Option<usize>, role: &str) -> String {
    let Some(layer) = layer else {
        return match role {
            "embedding" => "token_embd.weight".into(),
            "logits" => "output.weight".into(),
            _ => "output_norm.weight".into(),
        };
    };
    let role = match role {
        "attention norm" => "attn_norm",
        "q" => "attn_q",
        "k" => "attn_k",
        "v" => "attn_v",
        "o" => "attn_output",
        "ffn norm" => "ffn_norm",
        "gate" => "ffn_gate",
        "up" => "ffn_up",
        _ => "ffn_down",
    };
    format!("blk.{layer}.{role}.weight")
}

fn hugging_face_name(layer: Option<usize>, role: &str) -> String {
    let Some(layer) = layer else {
        return match role {
            "embedding" => "model.embed_tokens.weight".into(),
            "logits" => "lm_head.weight".into(),
            _ => "model.norm.weight".into(),
        };
    };
    let role = match role {
        "attention norm" => "input_layernorm",
        "q" => "self_attn.q_proj",
        "k" => "self_attn.k_proj",
        "v" => "self_attn.v_proj",
        "o" => "self_attn.o_proj",
        "ffn norm" => "post_attention_layernorm",
        "gate" => "mlp.gate_proj",
        "up" => "mlp.up_proj",
        _ => "mlp.down_proj",
    };
    format!("model.layers.{layer}.{role}.weight")
}
