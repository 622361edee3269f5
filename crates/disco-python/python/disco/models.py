"""Language models that are split over the workers of a session: texts, vectors and scores.

>>> import disco
>>> with disco.session(processes=2) as s:
...     model = disco.models.load(s, "HuggingFaceTB/SmolLM2-135M-Instruct")  # doctest: +SKIP
...     print(model.generate("What is gravity?", max_tokens=64))  # doctest: +SKIP
"""

from __future__ import annotations

import collections
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, TypeAlias, TypedDict, Unpack, overload

from . import _disco
from ._session import Session

__all__ = ["Choice", "Model", "load"]

#: A text, or the messages of a chat: dicts with ``role`` and ``content``.
Prompt: TypeAlias = str | Sequence[Mapping[str, Any]]

#: Calls that are submitted before the reply of the first one, so that workers need not wait.
_AHEAD = 3


def load(
    session: Session,
    model: str | os.PathLike[str],
    *,
    adapter: str | os.PathLike[str] | None = None,
    dtype: Literal["file", "float32", "float16", "bfloat16"] = "file",
    threads: int = 1,
    ignored_keys: Iterable[str] = (),
    timeout: float | None = None,
) -> Model:
    """Loads a model over all workers of a session: a GGUF file, a folder with safetensors files, or
    a name on the Hugging Face hub, which is downloaded. All machines need it under the same path.

    ``dtype`` is the type of the weights in memory; ``"file"`` keeps quantised blocks. ``adapter``
    is a folder with LoRA matrices. Each worker computes with so many ``threads``. Keys of
    ``config.json`` that are not understood are an error, unless ``ignored_keys`` has them.
    """
    adapter = None if adapter is None else os.fspath(adapter)
    files = _disco.ModelFiles(os.fspath(model), adapter, dtype, threads, list(ignored_keys))
    loaded = Model(session, files)
    loaded.reload(timeout=timeout)
    return loaded


class Choice(TypedDict, total=False):
    """How a model continues texts."""

    #: The most tokens of an answer; 256 by default.
    max_tokens: int
    #: Divides the logits of tokens; 0, the default, chooses the most probable token.
    temperature: float
    #: Only the most probable tokens, which together have this probability; 1 by default.
    top_p: float
    #: Of the random numbers; 0 by default.
    seed: int
    #: Whether texts are continued as they are, without the template of chats.
    raw: bool


class Model:
    """A model on the workers of a session; made by :func:`load`. It computes one batch at a
    time.
    """

    def __init__(self, session: Session, files: _disco.ModelFiles) -> None:
        self._session, self._files = session, files
        self._state: _disco.Ref[Any] | None = None
        #: Number of the batch that the workers compute.
        self._batch = 0

    @property
    def task(self) -> Literal["generate", "embed", "score"]:
        """What the model is for."""
        return self._files.task

    @property
    def context(self) -> int:
        """The most tokens of a text."""
        return self._files.context

    def reload(self, *, timeout: float | None = None) -> None:
        """Reads the model again, on all workers: after ``replace_lost`` or ``resize``, and
        ``init_ccl``."""
        name = "disco.models.load" if self.task == "generate" else "disco.models.load_encoder"
        # The memory of the last one is free first.
        self._state = None
        state = self._session[name](self._files.load(), None)
        self._session.sync(timeout=timeout)
        self._state = state

    def tokens(self, prompt: Prompt) -> list[int]:
        """The tokens of a text as it is, or of messages as the model's template writes them."""
        if isinstance(prompt, str):
            return self._files.tokens(prompt)
        return self._files.chat(json.dumps([dict(message) for message in prompt]))

    @overload
    def generate(  # type: ignore[overload-overlap]
        self, prompt: str | Sequence[Mapping[str, Any]], **choice: Unpack[Choice]
    ) -> str: ...
    @overload
    def generate(
        self,
        prompt: Sequence[str] | Sequence[Sequence[Mapping[str, Any]]],
        **choice: Unpack[Choice],
    ) -> list[str]: ...
    def generate(self, prompt: Any, **choice: Unpack[Choice]) -> Any:
        """The model's answer to a text or to the messages of a chat; of a list of them, a list of
        answers, which are computed together.
        """
        is_one = isinstance(prompt, str) or (len(prompt) > 0 and isinstance(prompt[0], Mapping))
        prompts = [prompt] if is_one else list(prompt)
        answers = [""] * len(prompts)
        for number, piece in self._pieces(prompts, **choice):
            answers[number] += piece
        return answers[0] if is_one else answers

    def stream(self, prompt: Prompt, **choice: Unpack[Choice]) -> Iterator[str]:
        """As :meth:`generate` of one prompt, piece by piece. Another batch ends it."""
        return (piece for _, piece in self._pieces([prompt], **choice) if piece)

    def _pieces(
        self,
        prompts: Sequence[Prompt],
        *,
        max_tokens: int = 256,
        temperature: float = 0.0,
        top_p: float = 1.0,
        seed: int = 0,
        raw: bool = False,
    ) -> Iterator[tuple[int, str]]:
        """The number of a prompt and a piece of its answer, one after the other."""
        self._check("generate")
        tokens = [self.tokens(_messages(prompt, raw)) for prompt in prompts]
        for prompt in tokens:
            if not 0 < len(prompt) < self.context:
                raise ValueError(
                    f"a prompt has {len(prompt)} tokens: the model takes 1 to {self.context - 1}"
                )
        if max_tokens < 1:
            raise ValueError(f"max_tokens={max_tokens}: it is at least 1")
        if not tokens:
            return
        left = [min(max_tokens, self.context - len(prompt)) for prompt in tokens]
        decoders = [self._files.decoder() for _ in tokens]
        self._batch += 1
        batch = self._batch
        begin = self._session["disco.models.prompt"]
        batch_of_tokens = self._files.batch(tokens, temperature, top_p, seed)
        calls = collections.deque([begin(self._state, batch_of_tokens)])
        following = self._session["disco.models.next"]
        while max(left) > 0:
            if self._batch != batch:
                raise RuntimeError("another batch of this model has ended this one")
            # More tokens than are wanted may not fit into the context.
            while len(calls) < min(_AHEAD, max(left)):
                calls.append(following(self._state))
            found = json.loads(calls.popleft().get())
            for number, token in enumerate(found):
                if left[number] == 0:
                    continue
                left[number] = 0 if token is None else left[number] - 1
                if token is not None:
                    yield number, decoders[number].push(token)
                if left[number] == 0:
                    yield number, decoders[number].finish()

    def embed(self, texts: str | Sequence[str], *, timeout: float | None = None) -> Any:
        """The vectors of texts, a numpy array ``[texts, dimensions]`` of float32; of one text, one
        vector. A text with more tokens than ``context`` is an error."""
        self._check("embed")
        if isinstance(texts, str):
            return self._vectors([self._fitting(self.tokens(texts))], timeout)[0]
        return self._vectors([self._fitting(self.tokens(text)) for text in texts], timeout)

    def score(
        self, query: str, documents: Sequence[str], *, timeout: float | None = None
    ) -> list[float]:
        """How well each document answers a query: a higher score is better."""
        self._check("score")
        pairs = [self._fitting(self._files.pair(query, document)) for document in documents]
        return [float(score) for (score,) in self._vectors(pairs, timeout)]

    def _fitting(self, tokens: list[int]) -> list[int]:
        if not 0 < len(tokens) <= self.context:
            raise ValueError(
                f"a text has {len(tokens)} tokens: the model takes 1 to {self.context}"
            )
        return tokens

    def _vectors(self, texts: list[list[int]], timeout: float | None) -> Any:
        import numpy as np

        if not texts:
            return np.zeros((0, 0), np.float32)
        encode = self._session["disco.models.encode"]
        found = encode(self._state, self._files.texts(texts)).get(timeout=timeout)
        return np.array(self._files.vectors(found), np.float32)

    def _check(self, task: str) -> None:
        if self.task != task:
            raise TypeError(f"this model is for `{self.task}`, and not for `{task}`")
        if self._state is None:
            raise RuntimeError("the workers have not loaded the model: call `reload`")


def _messages(prompt: Prompt, raw: bool) -> Prompt:
    """The prompt as it gets tokens: a text is a message of the user, unless it is to be
    continued.
    """
    if isinstance(prompt, str):
        return prompt if raw else [{"role": "user", "content": prompt}]
    if raw:
        raise TypeError("raw: only texts can be continued, and the prompt has messages")
    return prompt
