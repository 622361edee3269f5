"""The client `lm-eval` against a server: log-likelihoods are those of numpy, and texts those of transformers.

Arguments: the server's address, the folder of its model, a plain Llama, the address of a server of the same model whose texts
have more ends, and these, as JSON.
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

address, folder, address_with_ends, ends = sys.argv[1:]
ends = set(json.loads(ends))
reference = json.loads((Path(folder) / "reference.json").read_text())["prompts"]
tokenizer = AutoTokenizer.from_pretrained(folder)
model = Llama(folder)

def pairs(prompt):
    """Contexts that end everywhere in a prompt and its greedy text, with what follows, other words, and words of several
    tokens. The tokens of a context and its continuation are those of both together."""
    whole = prompt["prompt"] + prompt["greedy_text"]
    for end in range(5, len(whole) - 9):
        words = [whole[end : end + 9], whole[end], " wall", " with oil and grain.", " zzz 日本"]
        context = tokenizer.encode(whole[:end])
        together = [tokenizer.encode(whole[:end] + word) for word in words]
        if not whole[end - 1].isspace() and all(tokens[: len(context)] == context for tokens in together):
            yield whole[:end], words


# The files of the tasks name files of this folder.
os.chdir(tempfile.mkdtemp())
with open("choices.jsonl", "w") as choices, open("texts.jsonl", "w") as texts:
    found = [pair for prompt in reference for pair in pairs(prompt)]
    for context, words in found[:: len(found) // 40][:40]:
        print(json.dumps({"context": context, "choices": words}), file=choices)
    for prompt in reference:
        # The text ends before words in its middle.
        text = prompt["greedy_text"]
        print(json.dumps({"context": prompt["prompt"], "text": text[: text.index("was")]}), file=texts)


def evaluated(task, address):
    """The samples of a task with a server, and its results."""
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
        tasks=[task],
        task_manager=TaskManager(include_path=str(Path(__file__).parent / "tasks"), include_defaults=False),
        batch_size=2,
        bootstrap_iters=0,
        log_samples=True,
    )
    return result["samples"][task], result["results"][task]


def expected(context, continuation):
    """The log-likelihood of a continuation, whether it is the greedy text, and whether the text ends after it."""
    tokens, start = tokenizer.encode(context + continuation), len(tokenizer.encode(context))
    logprobs = model.logprobs(tokens)
    rows = list(zip(logprobs[start - 1 :], tokens[start:]))
    is_greedy = all(row.argmax() == token for row, token in rows)
    return sum(row[token] for row, token in rows), is_greedy, logprobs[-1].argmax() in ends


# The model of this folder is that of transformers.
for prompt in reference:
    assert tokenizer.encode(prompt["prompt"]) == prompt["prompt_ids"]
    found, most = model.logprobs(prompt["prompt_ids"])[-1], prompt["after_prompt"]
    differences = (found[most["ids"]] - found[most["ids"][0]]) - (np.array(most["logits"]) - most["logits"][0])
    assert abs(differences).max() < 1e-4, differences

samples, _ = evaluated("disco_choices", address_with_ends)
compared = []
for sample in samples:
    for words, [response] in zip(sample["doc"]["choices"], sample["resps"], strict=True):
        likelihood, is_greedy, has_end = expected(sample["doc"]["context"], words)
        assert abs(response[0] - likelihood) < 1e-3, (words, response, likelihood, has_end)
        assert response[1] == is_greedy, (words, response, is_greedy)
        compared.append((is_greedy, has_end))
greedy, ended = (sum(each) for each in zip(*compared))
assert len(compared) == 200 and 0 < greedy < 200 and ended >= 50, (len(compared), greedy, ended)

samples, results = evaluated("disco_texts", address)
for sample in samples:
    assert sample["resps"] == [[sample["doc"]["text"]]], sample
assert results["exact_match,none"] == 1.0, results
print(f"ok: {len(compared)} log-likelihoods, {ended} of them before an end, and {len(samples)} texts")
