"""Language models from Python, beside what transformers has computed."""

import json
from pathlib import Path

import disco
import numpy as np
import pytest
from conftest import started

ROOT = Path(__file__).parents[3]
TEXTS = ROOT / "crates/disco-models/tests/formats/base"
VECTORS = ROOT / "crates/disco-serve/tests/embeddings"


def reference(folder):
    return json.loads((folder / "reference.json").read_text())


def test_texts_are_those_of_transformers(s):
    model = disco.models.load(s, TEXTS, dtype="float32")
    prompts = reference(TEXTS)["prompts"]
    one = prompts[0]
    count = len(prompts[0]["greedy_ids"])
    assert model.task == "generate" and model.tokens(one["prompt"]) == one["prompt_ids"]
    texts = model.generate([p["prompt"] for p in prompts], max_tokens=count, raw=True)
    assert texts == [p["greedy_text"] for p in prompts]
    pieces = list(model.stream(one["prompt"], max_tokens=count, raw=True))
    assert "".join(pieces) == one["greedy_text"] and len(pieces) > 3
    assert model.generate(one["prompt"], max_tokens=count, raw=True) == one["greedy_text"]
    # The same choices for the same seed, and others for another one.
    of_seed = [
        model.generate(one["prompt"], max_tokens=20, temperature=2.0, seed=seed, raw=True)
        for seed in (1, 1, 2)
    ]
    assert of_seed[0] == of_seed[1] != of_seed[2]


def test_a_model_goes_on_with_other_workers():
    prompt = reference(TEXTS)["prompts"][0]
    with started("processes") as s:
        model = disco.models.load(s, TEXTS, dtype="float32")
        s.resize(2)
        s.init_ccl("local")
        model.reload()
        count = len(prompt["greedy_ids"])
        text = model.generate(prompt["prompt"], max_tokens=count, raw=True)
        assert text == prompt["greedy_text"]
        stream = model.stream(prompt["prompt"], max_tokens=count, raw=True)
        assert next(stream)
        assert model.generate(prompt["prompt"], max_tokens=count, raw=True) == text
        with pytest.raises(RuntimeError, match="another batch"):
            list(stream)


def test_what_a_model_can_not_do_is_an_error(processes):
    model = disco.models.load(processes, TEXTS)
    with pytest.raises(TypeError, match="for `generate`, and not for `embed`"):
        model.embed("text")
    with pytest.raises(ValueError, match="max_tokens=0"):
        model.generate("a", max_tokens=0, raw=True)
    with pytest.raises(ValueError, match="temperature=-1"):
        model.generate("a", temperature=-1, raw=True)
    with pytest.raises(ValueError, match=f"the model takes 1 to {model.context - 1}"):
        model.generate("a " * model.context, raw=True)
    with pytest.raises(ValueError, match="no such file or folder"):
        disco.models.load(processes, "/no/such.gguf")
    with pytest.raises(ValueError, match='dtype="int1"'):
        disco.models.load(processes, TEXTS, dtype="int1")


def test_vectors_and_scores_are_those_of_sentence_transformers(processes):
    for name in ("bert-mean", "qwen3-embedding"):
        expected = reference(VECTORS / name)
        model = disco.models.load(processes, VECTORS / name, dtype="float32")
        texts = [row["text"] for row in expected["texts"]]
        vectors = np.array([row["embedding"] for row in expected["texts"]])
        found = model.embed(texts)
        assert found.dtype == np.float32 and np.abs(found - vectors).max() < 1e-4
        assert np.abs(model.embed(texts[0]) - found[0]).max() < 1e-5
    expected = reference(VECTORS / "xlm-roberta-reranker")
    model = disco.models.load(processes, VECTORS / "xlm-roberta-reranker", dtype="float32")
    for row in expected["queries"]:
        scores = model.score(row["query"], row["documents"])
        assert np.abs(np.array(scores) - row["scores"]).max() < 1e-4
