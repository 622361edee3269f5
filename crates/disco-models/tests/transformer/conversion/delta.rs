//! Gated delta nets: Qwen3-Next and Qwen 3.5.

use candle_core::quantized::gguf_file::Value;
use candle_core::{Device, Result, Tensor};

use super::Conversion;

/// The heads of a gated delta net.
#[derive(Clone, Copy)]
struct Heads {
    keys: usize,
    /// Value heads of each key head.
    shared: usize,
    key_dim: usize,
    value_dim: usize,
}

impl Conversion {
    fn heads(&self) -> Heads {
        let keys = self.number("linear_num_key_heads");
        let shared = self.number("linear_num_value_heads") / keys;
        let [key_dim, value_dim] = ["linear_key_head_dim", "linear_value_head_dim"].map(|key| self.number(key));
        Heads { keys, shared, key_dim, value_dim }
    }

    fn add_delta(&mut self) {
        let Heads { keys, shared, key_dim, value_dim } = self.heads();
        self.set_number("ssm.conv_kernel", self.number("linear_conv_kernel_dim"));
        self.set_number("ssm.state_size", key_dim);
        self.set_number("ssm.group_count", keys);
        self.set_number("ssm.time_step_rank", keys * shared);
        self.set_number("ssm.inner_size", keys * shared * value_dim);
        let full = (0..).zip(&self.known.layers).find(|(_, layer)| layer.delta().is_none());
        self.set_number("full_attention_interval", full.map_or(0, |(number, _)| number + 1));
        self.change("ssm_a", |logarithms| logarithms.exp()?.neg());
        self.change("ssm_conv1d.weight", |kernels| kernels.squeeze(1));
    }

    pub(super) fn add_qwen3_next(&mut self) {
        self.add_delta();
        if self.is_old {
            return;
        }
        let heads = self.heads();
        for name in self.ending("ssm_in.weight") {
            let [inputs, gates] = heads.ungrouped(&self.tensors.remove(&name).unwrap()).unwrap();
            self.tensors.insert(name.replace("ssm_in", "attn_qkv"), inputs);
            self.tensors.insert(name.replace("ssm_in", "attn_gate"), gates);
        }
    }

    pub(super) fn add_qwen3_5(&mut self) {
        self.add_delta();
        let heads = self.heads();
        let sections = [2, 1, 1, 0].map(Value::I32);
        self.set("rope.dimension_sections", Value::Array(sections.into()));
        let keys = 2 * heads.keys * heads.key_dim;
        let behind_keys = |matrix: &Tensor| {
            let rows = matrix.dim(0)?;
            let values = heads.tiled(&matrix.narrow(0, keys, rows - keys)?, heads.value_dim)?;
            Tensor::cat(&[matrix.narrow(0, 0, keys)?, values], 0)
        };
        for layer in 0..self.known.layers.len() {
            if self.known.layers[layer].delta().is_some() {
                self.change(&format!("blk.{layer}.attn_qkv.weight"), behind_keys);
            }
        }
        self.change("ssm_conv1d.weight", behind_keys);
        self.change("attn_gate.weight", |gates| heads.tiled(gates, heads.value_dim));
        for name in ["ssm_alpha.weight", "ssm_beta.weight", "ssm_a", "ssm_dt.bias"] {
            self.change(name, |of_heads| heads.tiled(of_heads, 1));
        }
        self.change("ssm_out.weight", |output| heads.tiled(&output.t()?, heads.value_dim)?.t());
    }

    /// Adds a layer that predicts further tokens, as the number of layers counts it.
    pub(super) fn add_further_layer(&mut self) {
        let layers = self.known.layers.len();
        self.set_number("block_count", layers + 1);
        self.set_number("nextn_predict_layers", 1);
        let name = format!("blk.{layers}.nextn.enorm.weight");
        self.tensors.insert(name, Tensor::ones(self.known.dim, candle_core::DType::F32, &Device::Cpu).unwrap());
    }
}

impl Heads {
    /// Queries, keys and values of all heads, and gates, of rows that have these of each key head.
    fn ungrouped(self, matrix: &Tensor) -> Result<[Tensor; 2]> {
        let values = self.shared * self.value_dim;
        let groups = matrix.reshape((self.keys, 2 * self.key_dim + 2 * values, ()))?;
        let mut first = 0;
        let parts = [self.key_dim, self.key_dim, values, values].map(|width| {
            first += width;
            groups.narrow(1, first - width, width)?.flatten(0, 1)
        });
        let [queries, keys, values, gates] = parts;
        Ok([Tensor::cat(&[queries?, keys?, values?], 0)?, gates?])
    }

    /// Rows of value heads, `width` of each: the first value heads of all key heads, then the second ones.
    fn tiled(self, rows: &Tensor, width: usize) -> Result<Tensor> {
        let heads = rows.reshape((self.keys, self.shared, width, ()))?;
        heads.transpose(0, 1)?.contiguous()?.reshape(rows.dims())
    }
}
