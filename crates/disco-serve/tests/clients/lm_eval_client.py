"""The client `lm-eval` against a server: log-likelihoods are those of numpy, and texts those of transformers.

Arguments: the server's address, and the folder of its model, a plain Llama.
"""

import json
import os
import sys
import tempfile
from pathlib import Path

import lm_eval
import numpy as np
from lm_eval.tasks import TaskManager
from transformers import AutoTokenizer

from llama import Llama

address, folder = sys.argv[1:]
reference = json.loads((Path(folder) / "reference.json").read_text())["prompts"]
tokenizer = AutoTokenizer.from_pretrained(folder)
model = Llama(folder)

# The files of the tasks name files of this folder.
os.chdir(tempfile.mkdtemp())
with open("choices.jsonl", "w") as choices, open("texts.jsonl", "w") as texts:
    for prompt in reference:
        text = prompt["greedy_text"]
        # The beginning of the greedy text, other words, and words of several tokens.
        words = [text[:9], text[:1], " wall", " with oil and grain.", "zzz 日本"]
        print(json.dumps({"context": prompt["prompt"], "choices": words}), file=choices)
        # The text ends before words in its middle.
        print(json.dumps({"context": prompt["prompt"], "text": text[: text.index("was")]}), file=texts)

result = lm_eval.simple_evaluate(
    model="local-completions",
    model_args={
        "base_url": f"http://{address}/v1/completions",
        "model": "model",
        "tokenizer": folder,
        "tokenizer_backend": "huggingface",
        "num_concurrent": 4,
        "max_retries": 3,
    },
    tasks=["disco_choices", "disco_texts"],
    task_manager=TaskManager(include_path=str(Path(__file__).parent / "tasks"), include_defaults=False),
    batch_size=2,
    bootstrap_iters=0,
    log_samples=True,
)


def expected(context, continuation):
    """The log-likelihood of a continuation, and whether it is the greedy text."""
    tokens, start = tokenizer.encode(context + continuation), len(tokenizer.encode(context))
    logprobs = model.logprobs(tokens)[start - 1 : -1]
    sum_of_logprobs = sum(row[token] for row, token in zip(logprobs, tokens[start:]))
    return sum_of_logprobs, all(row.argmax() == token for row, token in zip(logprobs, tokens[start:]))


# The model of this folder is that of transformers.
for prompt in reference:
    assert tokenizer.encode(prompt["prompt"]) == prompt["prompt_ids"]
    found, most = model.logprobs(prompt["prompt_ids"])[-1], prompt["after_prompt"]
    differences = (found[most["ids"]] - found[most["ids"][0]]) - (np.array(most["logits"]) - most["logits"][0])
    assert abs(differences).max() < 1e-4, differences

compared = []
for sample in result["samples"]["disco_choices"]:
    for words, [response] in zip(sample["doc"]["choices"], sample["resps"], strict=True):
        likelihood, is_greedy = expected(sample["doc"]["context"], words)
        assert abs(response[0] - likelihood) < 1e-3, (words, response, likelihood)
        assert response[1] == is_greedy, (words, response, is_greedy)
        compared.append(is_greedy)
assert len(compared) == 10 and any(compared) and not all(compared), compared
for sample in result["samples"]["disco_texts"]:
    assert sample["resps"] == [[sample["doc"]["text"]]], sample
assert result["results"]["disco_texts"]["exact_match,none"] == 1.0, result["results"]
print(f"ok: {len(compared)} log-likelihoods and {len(reference)} texts")
