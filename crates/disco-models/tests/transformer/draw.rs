//! Models of random families, features and shapes, with random weights.

use std::collections::HashMap;

use serde_json::{Value as Json, json};

use super::slow::{Array, Slow};

const FAMILIES: [&str; 12] = [
    "llama",
    "mistral",
    "mixtral",
    "qwen2",
    "qwen3",
    "qwen3_moe",
    "smollm3",
    "phi3",
    "olmo2",
    "gemma2",
    "gemma3_text",
    "granite",
];

/// A model and a text, as `pick` chooses: it gets a number of choices, and gives one of them.
pub(crate) fn draw(pick: &mut dyn FnMut(usize) -> usize) -> (Slow, Vec<u32>) {
    let family = FAMILIES[pick(FAMILIES.len())];
    let layers = 1 + pick(3);
    let kv_heads = 1 + pick(3);
    let eps = [1e-6, 1e-5, 1e-2];
    let config = json!({
        "model_type": family,
        "hidden_size": 1 + pick(24),
        "num_hidden_layers": layers,
        "num_key_value_heads": kv_heads,
        "num_attention_heads": kv_heads * (1 + pick(3)),
        "head_dim": 4 + 2 * pick(4),
        "intermediate_size": 4 + pick(20),
        "vocab_size": 5 + pick(30),
        "max_position_embeddings": 8 + pick(20),
        "rms_norm_eps": eps[pick(3)],
        "tie_word_embeddings": pick(2) == 0,
        "eos_token_id": Json::Null,
    });
    let mut slow = Slow { config, tensors: HashMap::new() };
    add_rope(&mut slow.config, family, pick);
    add_features(&mut slow.config, family, layers, pick);
    add_tensors(&mut slow, family, pick);
    let (vocabulary, context) = (number(&slow.config, "vocab_size"), number(&slow.config, "max_position_embeddings"));
    let most = if slow.config["rope_parameters"]["rope_type"] == "dynamic" { 2 * context } else { context };
    let tokens = (0..2 + pick(most - 1)).map(|_| pick(vocabulary) as u32).collect();
    (slow, tokens)
}

/// Changes one key, as a user or a program might: another value, none, or a key that nobody knows. Returns what it did.
pub(crate) fn change(config: &mut Json, pick: &mut dyn FnMut(usize) -> usize) -> String {
    let is_rope = pick(3) == 0 && config["rope_parameters"]["rope_type"].is_string();
    let object = if is_rope { &mut config["rope_parameters"] } else { config };
    let keys: Vec<String> = object.as_object().unwrap().keys().cloned().collect();
    let key = &keys[pick(keys.len())];
    let value = match (pick(5), &object[key]) {
        (0, _) => {
            object.as_object_mut().unwrap().remove(key);
            return format!("{key} removed");
        }
        (1, _) => Json::Null,
        (2, _) => json!("x"),
        (3, _) => {
            let key = ["logit_scale", "attn_output_gate", "num_shared_experts"][pick(3)];
            object[key] = json!(1);
            return format!("{key} added");
        }
        (_, Json::Bool(is_on)) => json!(!is_on),
        (_, Json::Number(number)) if number.is_u64() => json!(number.as_u64().unwrap() + 1),
        (_, Json::Number(number)) => json!(number.as_f64().unwrap() * 2.0),
        (_, Json::String(_)) => json!(FAMILIES[pick(FAMILIES.len())]),
        (_, other) => json!([other]),
    };
    let text = format!("{key} {value}");
    object[key] = value;
    text
}

fn number(config: &Json, key: &str) -> usize {
    config[key].as_u64().unwrap() as usize
}

fn add_rope(config: &mut Json, family: &str, pick: &mut dyn FnMut(usize) -> usize) {
    let theta = [100.0, 10_000.0, 1e6][pick(3)];
    let mut rope = json!({"rope_type": "default", "rope_theta": theta});
    let mut width = number(config, "head_dim");
    if family == "phi3" && pick(2) == 0 {
        rope["partial_rotary_factor"] = json!(0.5);
        width = width / 4 * 2;
        config["head_dim"] = json!(2 * width);
    }
    let divisors = |pick: &mut dyn FnMut(usize) -> usize| -> Vec<f64> {
        (0..width / 2).map(|_| 1.0 + pick(8) as f64 / 2.0).collect()
    };
    let kind = ["default", "linear", "dynamic", "llama3", "yarn", "longrope"][pick(6)];
    rope["rope_type"] = json!(kind);
    let original = 4 + pick(4);
    match kind {
        "linear" | "dynamic" => rope["factor"] = json!(2.0),
        "llama3" => {
            let more = json!({"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": original});
            rope.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        }
        "yarn" => {
            rope["factor"] = json!(4.0);
            rope["original_max_position_embeddings"] = json!(original);
        }
        "longrope" => {
            if family == "phi3" {
                config["original_max_position_embeddings"] = json!(original);
            }
            rope["original_max_position_embeddings"] = json!(original);
            rope["short_factor"] = json!(divisors(pick));
            rope["long_factor"] = json!(divisors(pick));
        }
        _ => (),
    }
    config["rope_parameters"] = if family == "gemma3_text" {
        json!({"full_attention": rope, "sliding_attention": {"rope_type": "default", "rope_theta": 50.0}})
    } else {
        rope
    };
}

fn add_features(config: &mut Json, family: &str, layers: usize, pick: &mut dyn FnMut(usize) -> usize) {
    let kinds = |pick: &mut dyn FnMut(usize) -> usize| -> Vec<&str> {
        (0..layers).map(|_| ["sliding_attention", "full_attention"][pick(2)]).collect()
    };
    if ["mistral", "mixtral", "phi3"].contains(&family) {
        config["sliding_window"] = if pick(2) == 0 { Json::Null } else { json!(1 + pick(6)) };
    }
    if ["qwen2", "qwen3", "qwen3_moe", "smollm3"].contains(&family) && pick(2) == 0 {
        config["use_sliding_window"] = json!(true);
        config["sliding_window"] = json!(1 + pick(6));
        config["max_window_layers"] = json!(pick(layers + 1));
        if family != "qwen3_moe" && (family == "smollm3" || pick(2) == 0) {
            config["layer_types"] = json!(kinds(pick));
        }
    }
    if ["llama", "smollm3", "granite"].contains(&family) {
        config["mlp_bias"] = json!(pick(2) == 0);
    }
    if ["llama", "qwen3", "qwen3_moe", "smollm3", "granite", "olmo2"].contains(&family) {
        config["attention_bias"] = json!(pick(2) == 0);
    }
    if ["mixtral", "qwen3_moe"].contains(&family) {
        let experts = 1 + pick(5);
        config["num_local_experts"] = json!(experts);
        config["num_experts_per_tok"] = json!(1 + pick(experts));
    }
    if family == "qwen3_moe" {
        config["moe_intermediate_size"] = json!(4 + pick(9));
        config["norm_topk_prob"] = json!(pick(2) == 0);
    }
    if family == "smollm3" {
        config["no_rope_layers"] = json!((0..layers).map(|_| pick(2)).collect::<Vec<_>>());
    }
    if family == "granite" {
        for key in ["embedding_multiplier", "attention_multiplier", "residual_multiplier", "logits_scaling"] {
            config[key] = json!(0.25 + pick(8) as f64 / 4.0);
        }
    }
    if family.starts_with("gemma") {
        config["sliding_window"] = json!(1 + pick(6));
        config["layer_types"] = json!(kinds(pick));
        config["query_pre_attn_scalar"] = json!(1 + pick(30));
        config["final_logit_softcapping"] = if pick(2) == 0 { Json::Null } else { json!(2.0) };
        config["attn_logit_softcapping"] = if pick(2) == 0 { Json::Null } else { json!(1.5) };
    }
}

/// The shapes of the tensors of a model.
struct Shapes<'a> {
    config: &'a Json,
    all: Vec<(String, Vec<usize>)>,
}

impl Shapes<'_> {
    fn of(&self, key: &str) -> usize {
        number(self.config, key)
    }

    fn has(&self, key: &str) -> bool {
        self.config[key] == true
    }

    fn add(&mut self, name: &str, shape: &[usize]) {
        self.all.push((format!("{name}.weight"), shape.to_vec()));
    }

    fn matrix(&mut self, name: &str, rows: usize, columns: usize, has_bias: bool) {
        self.add(name, &[rows, columns]);
        if has_bias {
            self.all.push((format!("{name}.bias"), vec![rows]));
        }
    }

    fn add_attention(&mut self, layer: &str, family: &str) {
        let (dim, width) = (self.of("hidden_size"), self.of("head_dim"));
        let (queries, keys) = (self.of("num_attention_heads") * width, self.of("num_key_value_heads") * width);
        let bias = self.has("attention_bias");
        if family == "phi3" {
            self.matrix(&format!("{layer}.self_attn.qkv_proj"), queries + 2 * keys, dim, false);
        } else {
            for (name, rows) in [("q_proj", queries), ("k_proj", keys), ("v_proj", keys)] {
                self.matrix(&format!("{layer}.self_attn.{name}"), rows, dim, bias || family == "qwen2");
            }
        }
        self.matrix(&format!("{layer}.self_attn.o_proj"), dim, queries, bias);
        let head_norms = match family {
            "olmo2" => [queries, keys],
            "qwen3" | "qwen3_moe" | "gemma3_text" => [width, width],
            _ => return,
        };
        self.add(&format!("{layer}.self_attn.q_norm"), &[head_norms[0]]);
        self.add(&format!("{layer}.self_attn.k_norm"), &[head_norms[1]]);
    }

    fn add_network(&mut self, layer: &str, family: &str) {
        let (dim, ffn) = (self.of("hidden_size"), self.of("intermediate_size"));
        let network = |ffn: usize| [("gate_proj", ffn, dim), ("up_proj", ffn, dim), ("down_proj", dim, ffn)];
        let is_mixtral = family == "mixtral";
        if family == "phi3" {
            self.matrix(&format!("{layer}.mlp.gate_up_proj"), 2 * ffn, dim, false);
            self.matrix(&format!("{layer}.mlp.down_proj"), dim, ffn, false);
        } else if is_mixtral || family == "qwen3_moe" {
            let module = format!("{layer}.{}", if is_mixtral { "block_sparse_moe" } else { "mlp" });
            let ffn = if is_mixtral { ffn } else { self.of("moe_intermediate_size") };
            let experts = self.of("num_local_experts");
            self.matrix(&format!("{module}.gate"), experts, dim, false);
            for expert in 0..experts {
                for ((name, rows, columns), short) in network(ffn).into_iter().zip(["w1", "w3", "w2"]) {
                    let name = if is_mixtral { short } else { name };
                    self.matrix(&format!("{module}.experts.{expert}.{name}"), rows, columns, false);
                }
            }
        } else {
            for (name, rows, columns) in network(ffn) {
                self.matrix(&format!("{layer}.mlp.{name}"), rows, columns, self.has("mlp_bias"));
            }
        }
    }

    fn add_norms(&mut self, layer: &str, family: &str) {
        let names: &[&str] = match family {
            "olmo2" => &["post_attention_layernorm", "post_feedforward_layernorm"],
            "gemma2" | "gemma3_text" => &[
                "input_layernorm",
                "post_attention_layernorm",
                "pre_feedforward_layernorm",
                "post_feedforward_layernorm",
            ],
            _ => &["input_layernorm", "post_attention_layernorm"],
        };
        let dim = self.of("hidden_size");
        names.iter().for_each(|name| self.add(&format!("{layer}.{name}"), &[dim]));
    }
}

fn add_tensors(slow: &mut Slow, family: &str, pick: &mut dyn FnMut(usize) -> usize) {
    let mut shapes = Shapes { config: &slow.config, all: Vec::new() };
    let (vocabulary, dim) = (shapes.of("vocab_size"), shapes.of("hidden_size"));
    shapes.add("model.embed_tokens", &[vocabulary, dim]);
    shapes.add("model.norm", &[dim]);
    if !shapes.has("tie_word_embeddings") {
        shapes.add("lm_head", &[vocabulary, dim]);
    }
    for layer in 0..shapes.of("num_hidden_layers") {
        let layer = format!("model.layers.{layer}");
        shapes.add_attention(&layer, family);
        shapes.add_network(&layer, family);
        shapes.add_norms(&layer, family);
    }
    let mut state = 0x9e37_79b9_7f4a_7c15 ^ pick(256) as u64;
    let mut random = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        // As 32-bit floats have it.
        f64::from((state >> 40) as f32 / (1 << 23) as f32 - 1.0)
    };
    for (name, shape) in shapes.all {
        let factor = if shape.len() == 1 { 0.5 } else { 0.7 };
        let values = (0..shape.iter().product()).map(|_| random() * factor).collect();
        slow.tensors.insert(name, Array { shape, values });
    }
}
