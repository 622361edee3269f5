#!/usr/bin/env python3
"""Llama models with random weights, and what transformers computes with them, for comparisons with Disco's example `generate`.

  gpu_models.py small FOLDER      12 layers x 768, f32; reference tokens and logits of three prompts; tokens/s
  gpu_models.py large FOLDER      22 layers x 2048 (the shape of TinyLlama, 1.1 billion weights), bf16; the same in f32; tokens/s in bf16
  gpu_models.py compiled FOLDER   tokens/s of the large model in bf16 with transformers' static cache and torch.compile
  gpu_models.py tiny FOLDER       both models, small and without references; needs only Python

FOLDER/NAME has model.safetensors, config.json, tokenizer.json, prompts.txt, speed.txt, long.txt (prompts of 128 and 2,048 tokens)
and reference.json. Token N of the tokenizer is the text `tN`. Texts have no end token.
"""
import array
import json
import math
import random
import sys
import time
from pathlib import Path

COUNTS = {"small": 64, "large": 32}
# The seed and the number of tokens of each prompt.
PROMPTS = [(1, 5), (2, 17), (3, 64)]
SPEED, LONG, SPEED_TOKENS = (9, 128), (10, 2048), 128
SHAPES = {
    "small": dict(layers=12, hidden=768, heads=12, kv_heads=4, ffn=2048, vocabulary=32000),
    "large": dict(layers=22, hidden=2048, heads=32, kv_heads=4, ffn=5632, vocabulary=32000),
    "tiny": dict(layers=2, hidden=96, heads=12, kv_heads=4, ffn=128, vocabulary=300, long=256),
}


def prompt(seed, length, vocabulary):
    """Token numbers by a linear congruential generator, the same in every run."""
    numbers = []
    for _ in range(length):
        seed = (seed * 6364136223846793005 + 1442695040888963407) % 2**64
        numbers.append(3 + (seed >> 33) % (vocabulary - 3))
    return numbers


def write_texts(shape, folder):
    """The tokenizer, with one word for each token, and the prompts."""
    vocabulary = shape["vocabulary"]
    model = {"type": "WordLevel", "vocab": {f"t{number}": number for number in range(vocabulary)}, "unk_token": "t0"}
    tokenizer = {"version": "1.0", "truncation": None, "padding": None, "added_tokens": [], "normalizer": None,
                 "pre_tokenizer": {"type": "WhitespaceSplit"}, "post_processor": None, "decoder": None, "model": model}
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    long = (LONG[0], shape.get("long", LONG[1]))
    for file, prompts in (("prompts.txt", PROMPTS), ("speed.txt", [SPEED]), ("long.txt", [long])):
        words = [" ".join(f"t{number}" for number in prompt(*of, vocabulary)) for of in prompts]
        (folder / file).write_text("".join(line + "\n" for line in words))


def keys_of(shape):
    return dict(hidden_size=shape["hidden"], num_hidden_layers=shape["layers"], num_attention_heads=shape["heads"],
                num_key_value_heads=shape["kv_heads"], intermediate_size=shape["ffn"], vocab_size=shape["vocabulary"],
                max_position_embeddings=4096, rms_norm_eps=1e-5, tie_word_embeddings=False)


def write_config(shape, folder):
    """The keys that readers of all versions know; the base of the rotary embeddings is transformers' default."""
    keys = dict(architectures=["LlamaForCausalLM"], model_type="llama", hidden_act="silu", rope_theta=10000.0,
                head_dim=shape["hidden"] // shape["heads"], attention_bias=False, mlp_bias=False, **keys_of(shape))
    (folder / "config.json").write_text(json.dumps(keys, indent=1))


def begin(shape, folder):
    folder.mkdir(parents=True, exist_ok=True)
    write_texts(shape, folder)
    write_config(shape, folder)


def scale_of(name, columns):
    """Deviation of a matrix. Layers change the hidden state as much as the embedding does, so that texts do not repeat."""
    factors = {"embed_tokens": math.sqrt(columns), "q_proj": 1.5, "k_proj": 1.5, "v_proj": 2, "down_proj": 2, "lm_head": 3}
    return next((factor for part, factor in factors.items() if part in name), 1) / math.sqrt(columns)


def tensors_of(shape):
    """Names and shapes of the weights."""
    hidden, ffn, kv = shape["hidden"], shape["ffn"], shape["hidden"] // shape["heads"] * shape["kv_heads"]
    yield "model.embed_tokens.weight", [shape["vocabulary"], hidden]
    for layer in range(shape["layers"]):
        for name, rows, columns in (("q", hidden, hidden), ("k", kv, hidden), ("v", kv, hidden), ("o", hidden, hidden)):
            yield f"model.layers.{layer}.self_attn.{name}_proj.weight", [rows, columns]
        for name, rows, columns in (("gate", ffn, hidden), ("up", ffn, hidden), ("down", hidden, ffn)):
            yield f"model.layers.{layer}.mlp.{name}_proj.weight", [rows, columns]
        for name in ("input", "post_attention"):
            yield f"model.layers.{layer}.{name}_layernorm.weight", [hidden]
    yield "model.norm.weight", [hidden]
    yield "lm_head.weight", [shape["vocabulary"], hidden]


def plain(name, folder):
    """A model as a file of safetensors: the length of the header, the header, and the weights as 32-bit floats. They are those of a
    table, whose length is a prime, so that the rows of a matrix differ, from another start for each tensor."""
    shape, header, start = SHAPES[name], {}, 0
    begin(shape, folder)
    random.seed(1)
    table = [random.gauss(0, 1) for _ in range(65521)]
    for tensor, sizes in tensors_of(shape):
        header[tensor] = dict(dtype="F32", shape=sizes, data_offsets=[start, start + 4 * math.prod(sizes)])
        start += 4 * math.prod(sizes)
    with open(folder / "model.safetensors", "wb") as file:
        text = json.dumps(header).encode()
        file.write(len(text).to_bytes(8, "little") + text)
        for index, (tensor, sizes) in enumerate(tensors_of(shape)):
            first = index * 7919 % len(table)
            mean, scale = (1, 0.1) if len(sizes) == 1 else (0, scale_of(tensor, sizes[1]))
            numbers, count = array.array("f", (mean + scale * number for number in table[first:] + table[:first])), math.prod(sizes)
            for written in range(0, count, len(numbers)):
                file.write(numbers[: count - written].tobytes())
    print(f"{folder.name}: {start // 4} weights")


def new_model(shape, dtype):
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    torch.set_float32_matmul_precision("highest")
    with torch.device("cuda"):
        model = LlamaForCausalLM(LlamaConfig(bos_token_id=None, eos_token_id=None, pad_token_id=None, **keys_of(shape)))
    return model.to(dtype).eval()


def fill(model):
    import torch

    torch.manual_seed(1)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            noise = torch.randn_like(weight)
            weight.copy_(1 + 0.1 * noise if weight.dim() == 1 else scale_of(name, weight.shape[1]) * noise)


def load(shape, folder, dtype):
    import torch
    from safetensors.torch import load_file

    model, tensors = new_model(shape, dtype), load_file(str(folder / "model.safetensors"), device="cuda")
    with torch.no_grad():
        for key, weight in model.named_parameters():
            weight.copy_(tensors[key])
    return model


def reference(model, count):
    """Greedy tokens of each prompt, the distance of the two largest logits at each step, and the ten largest of the first."""
    import torch

    results = []
    for of in PROMPTS:
        ids, cache = torch.tensor([prompt(*of, model.config.vocab_size)], device="cuda"), None
        tokens, gaps, first = [], [], None
        with torch.no_grad():
            for _ in range(count):
                out = model(input_ids=ids, past_key_values=cache, use_cache=True)
                cache, logits = out.past_key_values, out.logits[0, -1].float()
                top = torch.topk(logits, 10)
                first = first or [[int(token), float(logit)] for token, logit in zip(top.indices, top.values)]
                tokens.append(int(top.indices[0]))
                gaps.append(float(top.values[0] - top.values[1]))
                ids = top.indices[:1].unsqueeze(0)
        results.append(dict(tokens=tokens, gaps=gaps, logits=first))
    return results


def speed(model, **how):
    """Tokens/s after the first token, with the short prompt, and tokens/s of the long prompt: each the best of three."""
    import torch

    short, long = (torch.tensor([prompt(*of, model.config.vocab_size)], device="cuda") for of in (SPEED, LONG))

    def seconds(ids, count):
        torch.cuda.synchronize()
        start = time.perf_counter()
        out = model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=count, min_new_tokens=count,
                             use_cache=True, pad_token_id=0, **how)
        torch.cuda.synchronize()
        assert out.shape[1] == ids.shape[1] + count, out.shape
        return time.perf_counter() - start

    def best(ids, count):
        return min(seconds(ids, count) for _ in range(4))

    best(short, 2)
    first = best(short, 1)
    rate = (SPEED_TOKENS - 1) / (best(short, SPEED_TOKENS) - first)
    return f"prompt of {LONG[1]} tokens {LONG[1] / best(long, 1):.0f} tokens/s, generation {rate:.1f} tokens/s"


def make(name, folder):
    import torch
    import transformers
    from safetensors.torch import save_file

    shape, stored = SHAPES[name], torch.float32 if name == "small" else torch.bfloat16
    begin(shape, folder)
    model = new_model(shape, torch.float32)
    fill(model)
    model.to(stored)
    save_file({key: weight.detach().contiguous().cpu() for key, weight in model.named_parameters()},
              str(folder / "model.safetensors"), metadata={"format": "pt"})
    rates = f"{stored}, {model.config._attn_implementation}: {speed(model)}"
    # The stored weights as 32-bit floats. A model that was cast to 16 bits and back has lost the precision of its rotary embeddings.
    del model
    prompts = reference(load(shape, folder, torch.float32), COUNTS[name])
    (folder / "reference.json").write_text(json.dumps(dict(prompts=prompts)))
    distinct = [len(set(found["tokens"])) for found in prompts]
    least = min(gap for found in prompts for gap in found["gaps"])
    print(f"texts of {COUNTS[name]} tokens, {distinct} distinct, least gap {least:.5f}; "
          f"torch {torch.__version__}, transformers {transformers.__version__}, {rates}")


def compiled(folder):
    import torch

    print(f"static cache, compiled: {speed(load(SHAPES['large'], folder, torch.bfloat16), cache_implementation='static')}")


def main():
    command, folder = sys.argv[1], Path(sys.argv[2])
    if command == "tiny":
        for name in COUNTS:
            plain("tiny", folder / name)
    elif command == "compiled":
        compiled(folder / "large")
    elif command in COUNTS:
        make(command, folder / command)
    else:
        sys.exit(__doc__)


if __name__ == "__main__":
    main()
