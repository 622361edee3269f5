//! A language model in plain loops of 64-bit floats, read from `config.json` by itself: the reference for all families.
//!
//! Source: the modelling code of transformers 5.17.

use std::collections::HashMap;
use std::f64::consts::{FRAC_2_PI, TAU};

use serde_json::Value as Json;

/// A matrix of rows, or a vector.
pub(crate) struct Array {
    pub(crate) shape: Vec<usize>,
    pub(crate) values: Vec<f64>,
}

/// A model: its configuration and its tensors by name.
pub(crate) struct Slow {
    pub(crate) config: Json,
    pub(crate) tensors: HashMap<String, Array>,
}

type Row = Vec<f64>;

impl Slow {
    /// The logits after the last of `tokens`.
    pub(crate) fn logits(&self, tokens: &[u32]) -> Row {
        let width = self.number("hidden_size");
        let factor = match self.family() {
            family if family.starts_with("gemma") => (width as f64).sqrt(),
            _ => self.float("embedding_multiplier", 1.0),
        };
        let rows = self.tensor("model.embed_tokens.weight").rows();
        let mut x: Vec<Row> =
            tokens.iter().map(|token| rows[*token as usize].iter().map(|value| value * factor).collect()).collect();
        for layer in 0..self.number("num_hidden_layers") {
            let residual = self.float("residual_multiplier", 1.0);
            let add = |x: &mut Vec<Row>, y: Vec<Row>| {
                for (x, y) in x.iter_mut().zip(y) {
                    x.iter_mut().zip(y).for_each(|(x, y)| *x += residual * y);
                }
            };
            let own = |name: &str| format!("model.layers.{layer}.{name}");
            let (is_gemma, is_olmo) = (self.family().starts_with("gemma"), self.family() == "olmo2");
            let before = if is_olmo { x.clone() } else { self.norms(&x, &own("input_layernorm")) };
            let mut y = self.attention(layer, &before);
            if is_gemma || is_olmo {
                y = self.norms(&y, &own("post_attention_layernorm"));
            }
            add(&mut x, y);
            let before = match (is_olmo, is_gemma) {
                (true, _) => x.clone(),
                (_, true) => self.norms(&x, &own("pre_feedforward_layernorm")),
                _ => self.norms(&x, &own("post_attention_layernorm")),
            };
            let mut y: Vec<Row> = before.iter().map(|row| self.feed_forward(layer, row)).collect();
            if is_gemma || is_olmo {
                y = self.norms(&y, &own("post_feedforward_layernorm"));
            }
            add(&mut x, y);
        }
        let last = self.norms(&x[x.len() - 1..], "model.norm").remove(0);
        let head = if self.tensors.contains_key("lm_head.weight") { "lm_head" } else { "model.embed_tokens" };
        let logits = self.product(head, &last);
        let divisor = self.float("logits_scaling", 1.0);
        let cap = self.cap("final_logit_softcapping", 30.0);
        logits.into_iter().map(|logit| capped(logit / divisor, cap)).collect()
    }

    fn attention(&self, layer: usize, x: &[Row]) -> Vec<Row> {
        let own = |name: &str| format!("model.layers.{layer}.self_attn.{name}");
        let (heads, kv_heads, width) =
            (self.number("num_attention_heads"), self.number("num_key_value_heads"), self.number("head_dim"));
        let (queries, keys) = (heads * width, kv_heads * width);
        let mut states = Vec::new();
        for (position, row) in x.iter().enumerate() {
            let [mut query, mut key, value] = if self.family() == "phi3" {
                let all = self.product(&own("qkv_proj"), row);
                let (query, rest) = all.split_at(queries);
                let (key, value) = rest.split_at(keys);
                [query.to_vec(), key.to_vec(), value.to_vec()]
            } else {
                ["q_proj", "k_proj", "v_proj"].map(|name| self.product(&own(name), row))
            };
            for (row, name) in [(&mut query, own("q_norm")), (&mut key, own("k_norm"))] {
                if let Some(weight) = self.tensors.get(&format!("{name}.weight")) {
                    // Of each head, or of all heads together.
                    let count = weight.shape[0];
                    *row = row.chunks(count).flat_map(|head| self.norm(head, &name)).collect();
                }
            }
            if self.config["no_rope_layers"][layer] != 0 {
                for row in [&mut query, &mut key] {
                    *row = row.chunks(width).flat_map(|head| self.rotated(head, position, layer, x.len())).collect();
                }
            }
            states.push([query, key, value]);
        }
        let factor = match self.family() {
            family if family.starts_with("gemma") => self.float("query_pre_attn_scalar", 256.0).powf(-0.5),
            "granite" => self.float("attention_multiplier", 1.0),
            _ => (width as f64).powf(-0.5),
        };
        let window = if self.is_windowed(layer) { self.number("sliding_window") } else { usize::MAX };
        let cap = self.cap("attn_logit_softcapping", 50.0);
        let attend = |position: usize| {
            let mut all = Vec::new();
            for head in 0..heads {
                let part = |row: &Row, head: usize| row[head * width..(head + 1) * width].to_vec();
                let query = part(&states[position][0], head);
                let seen: Vec<usize> = (0..=position).filter(|slot| position - slot < window).collect();
                let kv = head / (heads / kv_heads);
                let scores: Vec<f64> =
                    seen.iter().map(|slot| capped(dot(&query, &part(&states[*slot][1], kv)) * factor, cap)).collect();
                let shares = softmax(&scores);
                let values = seen.iter().map(|slot| part(&states[*slot][2], kv)).collect::<Vec<_>>();
                all.extend(
                    (0..width).map(|i| shares.iter().zip(&values).map(|(share, value)| share * value[i]).sum::<f64>()),
                );
            }
            self.product(&own("o_proj"), &all)
        };
        (0..x.len()).map(attend).collect()
    }

    fn is_windowed(&self, layer: usize) -> bool {
        match &self.config["layer_types"][layer] {
            Json::String(kind) => kind == "sliding_attention",
            _ if self.config["sliding_window"].is_null() && self.family() != "mistral" => false,
            _ => match self.family() {
                // Without the key, the window is 4096, and larger than any text here.
                "mistral" | "mixtral" | "phi3" => self.config["sliding_window"].is_u64(),
                "gemma2" => layer.is_multiple_of(2),
                "gemma3_text" => layer % 6 != 5,
                "qwen3_moe" => self.config["use_sliding_window"] == true,
                "qwen2" | "qwen3" if self.config["use_sliding_window"] == true => {
                    layer >= self.config["max_window_layers"].as_u64().unwrap_or(28) as usize
                }
                _ => false,
            },
        }
    }

    /// A head whose pairs are half a (rotated) head apart, at a position of a sequence of `length` tokens.
    fn rotated(&self, head: &[f64], position: usize, layer: usize, length: usize) -> Row {
        let mut rope = &self.config["rope_parameters"];
        let is_local = self.family() == "gemma3_text" && self.is_windowed(layer);
        if self.family() == "gemma3_text" {
            rope = &rope[if is_local { "sliding_attention" } else { "full_attention" }];
        }
        let width = (head.len() as f64 * rope["partial_rotary_factor"].as_f64().unwrap_or(1.0)) as usize;
        let (frequencies, factor) = self.frequencies(rope, width, length, is_local);
        let mut row = head.to_vec();
        for (i, frequency) in frequencies.iter().enumerate() {
            let (sin, cos) = (position as f64 * frequency).sin_cos();
            let (a, b) = (head[i], head[i + width / 2]);
            row[i] = (a * cos - b * sin) * factor;
            row[i + width / 2] = (b * cos + a * sin) * factor;
        }
        row
    }

    /// The frequencies of `width` elements, and the factor of the rotated ones.
    fn frequencies(&self, rope: &Json, width: usize, length: usize, is_local: bool) -> (Row, f64) {
        let context = self.number("max_position_embeddings") as f64;
        let number = |key: &str| match rope[key].as_f64() {
            None if key == "original_max_position_embeddings" => self.float(key, context),
            number => number.unwrap_or_else(|| panic!("{key}")),
        };
        let theta = match (self.family(), rope["rope_theta"].as_f64()) {
            (_, Some(theta)) => theta,
            _ if is_local => 1e4,
            ("gemma3_text" | "mixtral", None) => 1e6,
            ("smollm3", None) => 2e6,
            _ => 1e4,
        };
        let plain = |theta: f64| (0..width / 2).map(move |i| theta.powf(-2.0 * i as f64 / width as f64));
        match rope["rope_type"].as_str().unwrap_or("default") {
            "default" => (plain(theta).collect(), 1.0),
            "linear" => (plain(theta).map(|frequency| frequency / number("factor")).collect(), 1.0),
            "dynamic" => {
                let stretch = number("factor") * (length as f64).max(context) / context - (number("factor") - 1.0);
                (plain(theta * stretch.powf(width as f64 / (width as f64 - 2.0))).collect(), 1.0)
            }
            "llama3" => {
                let [low, high, original] =
                    ["low_freq_factor", "high_freq_factor", "original_max_position_embeddings"].map(number);
                let scaled = |frequency: f64| {
                    let turns = original * frequency / TAU;
                    let smooth = (turns - low) / (high - low);
                    match turns {
                        turns if turns > high => frequency,
                        turns if turns < low => frequency / number("factor"),
                        _ => (1.0 - smooth) * frequency / number("factor") + smooth * frequency,
                    }
                };
                (plain(theta).map(scaled).collect(), 1.0)
            }
            "yarn" => {
                let (factor, original) = (number("factor"), number("original_max_position_embeddings"));
                let element = |turns: f64| width as f64 * (original / (turns * TAU)).ln() / (2.0 * theta.ln());
                let low = element(32.0).floor().max(0.0);
                let high = element(1.0).ceil().min(width as f64 - 1.0);
                let high = if low == high { high + 0.001 } else { high };
                let scaled = |(i, frequency): (usize, f64)| {
                    let ramp = ((i as f64 - low) / (high - low)).clamp(0.0, 1.0);
                    frequency / factor * ramp + frequency * (1.0 - ramp)
                };
                (plain(theta).enumerate().map(scaled).collect(), 0.1 * factor.ln() + 1.0)
            }
            "longrope" => {
                let original = number("original_max_position_embeddings");
                let key = if length as f64 > original { "long_factor" } else { "short_factor" };
                let divided = plain(theta).enumerate().map(|(i, frequency)| frequency / rope[key][i].as_f64().unwrap());
                (divided.collect(), (1.0 + (context / original).ln() / original.ln()).sqrt())
            }
            other => unreachable!("{other}"),
        }
    }

    fn feed_forward(&self, layer: usize, x: &[f64]) -> Row {
        let own = |name: &str| format!("model.layers.{layer}.{name}");
        match self.family() {
            "mixtral" => self.experts(x, &own("block_sparse_moe"), ["w1", "w3", "w2"]),
            "qwen3_moe" => self.experts(x, &own("mlp"), ["gate_proj", "up_proj", "down_proj"]),
            "phi3" => {
                let all = self.product(&own("mlp.gate_up_proj"), x);
                let (gate, up) = all.split_at(all.len() / 2);
                self.product(&own("mlp.down_proj"), &self.gated(gate, up))
            }
            _ => self.network(x, ["gate_proj", "up_proj", "down_proj"].map(|name| own(&format!("mlp.{name}")))),
        }
    }

    fn network(&self, x: &[f64], [gate, up, down]: [String; 3]) -> Row {
        self.product(&down, &self.gated(&self.product(&gate, x), &self.product(&up, x)))
    }

    fn experts(&self, x: &[f64], module: &str, names: [&str; 3]) -> Row {
        let shares = softmax(&self.product(&format!("{module}.gate"), x));
        let mut order: Vec<usize> = (0..shares.len()).collect();
        order.sort_by(|a, b| shares[*b].total_cmp(&shares[*a]));
        order.truncate(self.number("num_experts_per_tok"));
        let is_normalised = self.family() == "mixtral" || self.config["norm_topk_prob"] == true;
        let sum = if is_normalised { order.iter().map(|expert| shares[*expert]).sum() } else { 1.0 };
        let mut y = vec![0.0; x.len()];
        for expert in order {
            let own = self.network(x, names.map(|name| format!("{module}.experts.{expert}.{name}")));
            y.iter_mut().zip(own).for_each(|(y, own)| *y += own * shares[expert] / sum);
        }
        y
    }

    fn gated(&self, gate: &[f64], up: &[f64]) -> Row {
        let activated = |x: f64| {
            if self.family().starts_with("gemma") {
                0.5 * x * (1.0 + (FRAC_2_PI.sqrt() * (x + 0.044_715 * x.powi(3))).tanh())
            } else {
                x / (1.0 + (-x).exp())
            }
        };
        gate.iter().zip(up).map(|(gate, up)| activated(*gate) * up).collect()
    }

    fn norms(&self, x: &[Row], name: &str) -> Vec<Row> {
        x.iter().map(|row| self.norm(row, name)).collect()
    }

    fn norm(&self, x: &[f64], name: &str) -> Row {
        let weight = self.tensor(&format!("{name}.weight"));
        let mean = x.iter().map(|value| value * value).sum::<f64>() / x.len() as f64;
        let root = (mean + self.float("rms_norm_eps", 1e-6)).sqrt();
        let offset = if self.family().starts_with("gemma") { 1.0 } else { 0.0 };
        x.iter().zip(&weight.values).map(|(value, weight)| value / root * (weight + offset)).collect()
    }

    /// The product of a matrix and `x`, and the bias if there is one.
    fn product(&self, module: &str, x: &[f64]) -> Row {
        let rows = self.tensor(&format!("{module}.weight")).rows();
        let bias = self.tensors.get(&format!("{module}.bias"));
        rows.iter().enumerate().map(|(i, row)| dot(row, x) + bias.map_or(0.0, |bias| bias.values[i])).collect()
    }

    fn tensor(&self, name: &str) -> &Array {
        self.tensors.get(name).unwrap_or_else(|| panic!("{name}"))
    }

    fn family(&self) -> &str {
        self.config["model_type"].as_str().unwrap()
    }

    /// The cap of a key, and that of Gemma 2 without the key.
    fn cap(&self, key: &str, default: f64) -> Option<f64> {
        match self.config.get(key) {
            None => (self.family() == "gemma2").then_some(default),
            Some(cap) => cap.as_f64(),
        }
    }

    fn number(&self, key: &str) -> usize {
        let value = self.config[key].as_u64().map(|number| number as usize);
        value.or_else(|| self.default(key)).unwrap_or_else(|| panic!("{key}"))
    }

    /// The value of a key that is not there.
    fn default(&self, key: &str) -> Option<usize> {
        let family = self.family();
        match key {
            "head_dim" if family.starts_with("gemma") => Some(256),
            "head_dim" if family == "qwen3" => Some(128),
            "head_dim" => Some(self.number("hidden_size") / self.number("num_attention_heads")),
            "num_key_value_heads" => Some(match family {
                _ if self.config.get(key).is_some() => self.number("num_attention_heads"),
                "mistral" | "mixtral" => 8,
                "qwen2" | "qwen3" => 32,
                "qwen3_moe" | "smollm3" | "gemma2" | "gemma3_text" => 4,
                _ => self.number("num_attention_heads"),
            }),
            "max_position_embeddings" => Some(match family {
                "mistral" | "mixtral" | "gemma3_text" => 131_072,
                "qwen2" | "qwen3" | "qwen3_moe" | "smollm3" => 32_768,
                "gemma2" => 8192,
                "phi3" => 4096,
                _ => 2048,
            }),
            "sliding_window" => Some(4096),
            _ => None,
        }
    }

    fn float(&self, key: &str, default: f64) -> f64 {
        self.config[key].as_f64().unwrap_or(default)
    }
}

impl Array {
    fn rows(&self) -> Vec<&[f64]> {
        self.values.chunks(self.shape[1]).collect()
    }
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

fn capped(x: f64, cap: Option<f64>) -> f64 {
    cap.map_or(x, |cap| (x / cap).tanh() * cap)
}

fn softmax(x: &[f64]) -> Row {
    let largest = x.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let all: Row = x.iter().map(|value| (value - largest).exp()).collect();
    let sum: f64 = all.iter().sum();
    all.into_iter().map(|value| value / sum).collect()
}
