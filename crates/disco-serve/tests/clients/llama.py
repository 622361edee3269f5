"""A Llama model in numpy: the probabilities of tokens, computed apart from the server and from candle."""

import json
import struct
from pathlib import Path

import numpy as np


def read(folder):
    """The tensors of a safetensors file of 32-bit floats, by name."""
    data = (Path(folder) / "model.safetensors").read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + length])
    header.pop("__metadata__", None)
    tensors = {}
    for name, entry in header.items():
        assert entry["dtype"] == "F32", entry
        first, last = entry["data_offsets"]
        values = np.frombuffer(data[8 + length + first : 8 + length + last], "<f4")
        tensors[name] = values.reshape(entry["shape"]).astype(np.float64)
    return tensors


class Llama:
    """A model without scaled rotations, with an output of its own."""

    def __init__(self, folder):
        self.tensors = read(folder)
        config = json.loads((Path(folder) / "config.json").read_text())
        self.heads, self.kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
        self.layers, self.eps, self.theta = config["num_hidden_layers"], config["rms_norm_eps"], config["rope_theta"]

    def logprobs(self, tokens):
        """The logarithms of the probabilities of the token after each token."""
        x = self.tensors["model.embed_tokens.weight"][tokens]
        for layer in range(self.layers):
            x = x + self.attention(layer, self.norm(x, f"layers.{layer}.input_layernorm"))
            y = self.norm(x, f"layers.{layer}.post_attention_layernorm")
            gate = self.linear(y, layer, "mlp.gate_proj")
            x = x + self.linear(gate / (1 + np.exp(-gate)) * self.linear(y, layer, "mlp.up_proj"), layer, "mlp.down_proj")
        logits = self.norm(x, "norm") @ self.tensors["lm_head.weight"].T
        logits -= logits.max(axis=-1, keepdims=True)
        return logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))

    def norm(self, x, name):
        return x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + self.eps) * self.tensors[f"model.{name}.weight"]

    def linear(self, x, layer, name):
        return x @ self.tensors[f"model.layers.{layer}.{name}.weight"].T

    def attention(self, layer, x):
        length = len(x)
        query, key, value = (self.linear(x, layer, f"self_attn.{name}_proj") for name in "qkv")
        query = self.rotated(query.reshape(length, self.heads, -1))
        key = self.rotated(key.reshape(length, self.kv_heads, -1)).repeat(self.heads // self.kv_heads, axis=1)
        value = value.reshape(length, self.kv_heads, -1).repeat(self.heads // self.kv_heads, axis=1)
        scores = np.einsum("qhd,khd->hqk", query, key) / np.sqrt(query.shape[-1])
        scores += np.triu(np.full((length, length), -np.inf), 1)
        weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
        weights /= weights.sum(axis=-1, keepdims=True)
        mixed = np.einsum("hqk,khd->qhd", weights, value).reshape(length, -1)
        return self.linear(mixed, layer, "self_attn.o_proj")

    def rotated(self, x):
        length, _, size = x.shape
        angles = np.outer(np.arange(length), self.theta ** (-np.arange(0, size, 2) / size))[:, None, :]
        first, second = x[..., : size // 2], x[..., size // 2 :]
        cos, sin = np.cos(angles), np.sin(angles)
        return np.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)
