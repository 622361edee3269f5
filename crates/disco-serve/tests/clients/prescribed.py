"""Writes a tiny Llama model that answers each chat with a prescribed text, for tests of clients and trials of programs.

Arguments: the folder of the model, a folder with a tokenizer of bytes (`tokenizer.json`, `tokenizer_config.json`), and the texts as JSON:
`{"turns": [...], "plain": "..."}`. A chat with tools gets the text of its turn, which is the number of messages that the assistant
has sent, or the last text. A chat without tools gets the plain text.

The model computes the next token from the last one alone: each token of a text has a direction of its own, attention and the feed-forward
part add nothing, and the head turns each direction into the next token. The chat template ends with the token of the turn, which leads to
the first token of its text.
"""

import json
import sys
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

# The first part of the template shows the forms of calls and of reasoning.
TEMPLATE = (
    "{# <tool_call> </think> #}{% if tools %}{{ tools | tojson }}\n{% endif %}"
    "{% for m in messages %}{{ m.role }}: {{ m.reasoning_content }}{{ m.content }}"
    "{% for call in m.tool_calls or [] %}{{ call.function | tojson }}{% endfor %}\n{% endfor %}"
    "{% set turn = [messages | selectattr('role', 'equalto', 'assistant') | list | length, LAST] | min %}"
    "{% if tools %}<|turn-{{ turn }}|>{% else %}<|plain|>{% endif %}"
)
END = "<|end|>"
LETTERS = 3


def bytes_of_tokens():
    """The letter that stands for each byte in tokenizers of bytes."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    letters = {byte: chr(byte) for byte in printable}
    letters.update({byte: chr(256 + place) for place, byte in enumerate(others)})
    return letters


def pieces(text, taken, spell):
    """The tokens of a text, none of which is taken: each is followed by one other."""
    found, piece = [], ""
    for letter in text:
        piece += letter
        if len(piece) >= LETTERS and spell(piece) not in taken:
            taken.add(spell(piece))
            found.append(piece)
            piece = ""
    while piece and spell(piece) in taken:
        # The last one grows.
        piece = found.pop() + piece
    if piece:
        taken.add(spell(piece))
        found.append(piece)
    return found


def write(folder, base, texts):
    tokenizer = json.loads((base / "tokenizer.json").read_text())
    vocabulary = tokenizer["model"]["vocab"]
    letters = bytes_of_tokens()

    def spell(piece):
        return "".join(letters[byte] for byte in piece.encode())

    number = 1 + max([*vocabulary.values(), *(token["id"] for token in tokenizer["added_tokens"])])
    [end] = [token["id"] for token in tokenizer["added_tokens"] if token["content"] == END]
    taken = set(vocabulary)
    following = {}
    starts = [(f"<|turn-{turn}|>", text) for turn, text in enumerate(texts["turns"])] + [("<|plain|>", texts["plain"])]
    for mark, text in starts:
        before = vocabulary[mark] = number
        tokenizer["added_tokens"].append(
            {"id": number, "content": mark, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
        )
        number += 1
        # No merge leads to these tokens, so that no prompt has them.
        for piece in pieces(text, taken, spell):
            vocabulary[spell(piece)] = following[before] = number
            before = number
            number += 1
        following[before] = end

    width = len(following)
    embedding, head = np.zeros((number, width), np.float32), np.zeros((number, width), np.float32)
    for place, (token, after) in enumerate(following.items()):
        embedding[token, place] = head[after, place] = 1
    of_head = 8
    nothing = np.zeros((2 * of_head, width), np.float32)
    layer = "model.layers.0"
    tensors = {
        "model.embed_tokens.weight": embedding,
        "lm_head.weight": head,
        # Makes the next token certain at each temperature.
        "model.norm.weight": np.full(width, 100, np.float32),
        f"{layer}.input_layernorm.weight": np.ones(width, np.float32),
        f"{layer}.post_attention_layernorm.weight": np.ones(width, np.float32),
        f"{layer}.self_attn.o_proj.weight": np.ascontiguousarray(nothing.T),
        f"{layer}.mlp.gate_proj.weight": nothing,
        f"{layer}.mlp.up_proj.weight": nothing,
        f"{layer}.mlp.down_proj.weight": np.ascontiguousarray(nothing.T),
    }
    for name in ["q_proj", "k_proj", "v_proj"]:
        tensors[f"{layer}.self_attn.{name}.weight"] = nothing
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_act": "silu",
        "hidden_size": width,
        "head_dim": of_head,
        "intermediate_size": 2 * of_head,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "max_position_embeddings": 1 << 18,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
        "vocab_size": number,
        "eos_token_id": end,
    }
    folder.mkdir(exist_ok=True)
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    (folder / "tokenizer_config.json").write_text((base / "tokenizer_config.json").read_text())
    (folder / "chat_template.jinja").write_text(TEMPLATE.replace("LAST", str(len(texts["turns"]) - 1)))


write(Path(sys.argv[1]), Path(sys.argv[2]), json.loads(sys.argv[3]))
