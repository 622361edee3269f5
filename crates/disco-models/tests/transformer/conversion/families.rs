//! What families change beside names.

use candle_core::quantized::gguf_file::Value;
use candle_core::{Device, Tensor};

use super::Conversion;

impl Conversion {
    /// Adds what the family of the architecture has of its own.
    pub(super) fn add_family(&mut self) {
        match self.architecture {
            "gpt-oss" => self.add_gpt_oss(),
            "qwen3next" => self.add_qwen3_next(),
            "qwen35" => {
                self.add_qwen3_5();
                self.add_further_layer();
            }
            "qwen35moe" => self.add_qwen3_5(),
            "gemma4" => self.add_gemma4(),
            "deepseek2" => self.add_deepseek2(),
            "command-r" | "cohere2" => {
                self.set("logit_scale", Value::F32(self.config["logit_scale"].as_f64().unwrap() as f32));
                self.set("rope.scaling.type", Value::String("none".into()));
            }
            "gpt2" => self.add_gpt2(),
            "qwen3vl" => self.add_qwen3_vl(),
            "qwen3vlmoe" => {
                self.add_qwen3_vl();
                self.split_experts();
            }
            "olmo2" if self.config["sliding_window"].is_u64() => {
                self.set_number("attention.sliding_window", self.number("sliding_window"));
                self.add_pattern();
            }
            _ => (),
        }
    }

    /// The layers with a window.
    fn add_pattern(&mut self) {
        let pattern = self.known.attentions().map(|attention| Value::Bool(attention.window.is_some())).collect();
        self.set("attention.sliding_window_pattern", Value::Array(pattern));
    }

    fn add_gpt_oss(&mut self) {
        self.set_number("expert_feed_forward_length", self.number("intermediate_size"));
        for name in self.ending("ffn_gate_up_exps").into_iter().chain(self.ending("ffn_down_exps")) {
            let tensor = self.tensors.remove(&name).unwrap();
            self.tensors.insert(format!("{name}.weight"), tensor.transpose(1, 2).unwrap());
        }
        for end in ["ffn_gate_up_exps.weight", "ffn_gate_up_exps.bias"] {
            for name in self.ending(end) {
                // Gate and up in turn.
                let both = self.tensors.remove(&name).unwrap();
                let turn = |first| Tensor::arange_step(first, both.dims()[1] as u32, 2, &Device::Cpu).unwrap();
                for (first, role) in [(0, "gate"), (1, "up")] {
                    let own = both.contiguous().unwrap().index_select(&turn(first), 1).unwrap();
                    self.tensors.insert(name.replace("gate_up", role), own);
                }
            }
        }
    }

    fn add_qwen3_vl(&mut self) {
        self.set("rope.dimension_sections", Value::Array([4, 2, 2, 0].map(Value::I32).into()));
        self.set_number("n_deepstack_layers", 1);
    }

    /// Gate and up are beside each other, inputs × outputs.
    fn split_experts(&mut self) {
        let width = self.number("moe_intermediate_size");
        self.change("ffn_down_exps", |downs| downs.transpose(1, 2));
        for name in self.ending("ffn_gate_up_exps") {
            let both = self.tensors.remove(&name).unwrap().transpose(1, 2).unwrap();
            for (first, role) in [(0, "gate"), (width, "up")] {
                let own = both.narrow(1, first, width).unwrap();
                self.tensors.insert(format!("{}.weight", name.replace("gate_up", role)), own);
            }
        }
        for name in self.ending("ffn_down_exps") {
            let downs = self.tensors.remove(&name).unwrap();
            self.tensors.insert(format!("{name}.weight"), downs);
        }
    }

    fn add_gemma4(&mut self) {
        let (full, windowed) = (self.number("global_head_dim"), self.number("head_dim"));
        for (name, width) in [
            ("attention.key_length_swa", windowed),
            ("attention.value_length_swa", windowed),
            ("rope.dimension_count", full),
            ("rope.dimension_count_swa", windowed),
            ("attention.shared_kv_layers", self.number("num_kv_shared_layers")),
            ("embedding_length_per_layer_input", self.number("hidden_size_per_layer_input")),
        ] {
            self.set_number(name, width);
        }
        self.set("rope.freq_base_swa", Value::F32(1e4));
        self.add_pattern();
        let list = |of: &dyn Fn(usize) -> usize| {
            Value::Array((0..self.known.layers.len()).map(|layer| Value::I32(of(layer) as i32)).collect())
        };
        let ffn = list(&|layer| self.known.layers[layer].dense().unwrap().ffn);
        let kv_heads = list(&|layer| self.known.layers[layer].attention().unwrap().kv_heads);
        self.set("feed_forward_length", ffn);
        self.set("attention.head_count_kv", kv_heads);
        // Three of four pairs are not rotated.
        let divisors = (0..full / 2).map(|pair| if pair < full / 8 { 1.0 } else { 1e30f32 });
        self.tensors.insert("rope_freqs.weight".into(), Tensor::from_iter(divisors, &Device::Cpu).unwrap());
    }

    fn add_deepseek2(&mut self) {
        let [plain, rotated, value, rank] =
            ["qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim", "kv_lora_rank"].map(|key| self.number(key));
        let heads = self.number("num_attention_heads");
        for (name, number) in [
            ("attention.head_count_kv", 1),
            ("attention.kv_lora_rank", rank),
            ("attention.key_length", rank + rotated),
            ("attention.value_length", rank),
            ("attention.key_length_mla", plain + rotated),
            ("attention.value_length_mla", value),
            ("rope.dimension_count", rotated),
            ("leading_dense_block_count", self.number("first_k_dense_replace")),
            ("expert_shared_count", self.number("n_shared_experts")),
            ("expert_gating_func", if self.config["scoring_func"] == "sigmoid" { 2 } else { 1 }),
        ] {
            self.set_number(name, number);
        }
        let factor = self.config["routed_scaling_factor"].as_f64().unwrap();
        self.set("expert_weights_scale", Value::F32(factor as f32));
        if let Some(rank) = self.config["q_lora_rank"].as_u64() {
            self.set_number("attention.q_lora_rank", rank as usize);
        }
        if self.config["norm_topk_prob"] == true {
            self.set("expert_weights_norm", Value::Bool(true));
        }
        if self.is_old {
            self.set_number("attention.head_count_kv", heads);
            self.set_number("attention.key_length", plain + rotated);
            self.set_number("attention.value_length", value);
            self.metadata.retain(|name, _| !name.ends_with("_mla"));
            return;
        }
        for name in self.ending("attn_kv_b.weight") {
            let both = self.tensors.remove(&name).unwrap().reshape((heads, plain + value, rank)).unwrap();
            let keys = both.narrow(1, 0, plain).unwrap().transpose(1, 2).unwrap();
            self.tensors.insert(name.replace("kv_b", "k_b"), keys);
            self.tensors.insert(name.replace("kv_b", "v_b"), both.narrow(1, plain, value).unwrap());
        }
    }

    fn add_gpt2(&mut self) {
        let ffn = self.known.layers[0].dense().unwrap().ffn;
        for (name, number) in [
            ("embedding_length", self.known.dim),
            ("block_count", self.known.layers.len()),
            ("context_length", self.known.context),
            ("feed_forward_length", ffn),
            ("attention.head_count", self.number("n_head")),
        ] {
            self.set_number(name, number);
        }
        let eps = self.config["layer_norm_epsilon"].as_f64().unwrap();
        self.set("attention.layer_norm_epsilon", Value::F32(eps as f32));
        for name in ["attn_qkv.weight", "attn_output.weight", "ffn_up.weight", "ffn_down.weight"] {
            self.change(name, |matrix| matrix.t());
        }
    }
}
