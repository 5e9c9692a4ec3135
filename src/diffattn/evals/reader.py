"""A model that reads text: what it thinks of a continuation, and what it writes.

Tasks know this interface only, so that a planted model of a few lines of Python can stand in for a trained one.
"""

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from diffattn.data.tokenizer import Tokenizer
from diffattn.model.decoder import Decoder
from diffattn.variants.base import check_whole

Ids = Sequence[int] | np.ndarray


@dataclass(frozen=True)
class Sampling:
    """How text is drawn; temperature 0 is greedy. See `diffattn.model.generate.probabilities`."""

    temperature: float = 0.0
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    seed: int = 0
    """A prompt's text depends on it and the prompt alone, whatever else is in the batch."""


GREEDY = Sampling()


class Scored(NamedTuple):
    """What a model thinks of one continuation of n tokens, natural logarithms throughout."""

    total: float
    """Log-probability of the whole continuation."""
    tokens: np.ndarray
    """[n] log-probability of each token."""
    likeliest: np.ndarray
    """[n] that of the likeliest token in its place."""
    unlikeliest: np.ndarray
    """[n] that of the unlikeliest one."""
    energy: np.ndarray
    """[n] log-sum-exp of the logits."""
    entropy: np.ndarray
    """[n] of the distribution, nats."""
    greedy: bool
    """Every token is the likeliest one, so greedy decoding writes this continuation."""
    state: np.ndarray
    """[W] behind the final norm at the prompt's last token: what the first token is read from."""


class Reader(Protocol):
    """What item tasks ask of a model."""

    identity: str
    """Hash of the model: answers are kept under it."""
    context: int
    """Most tokens that it reads and writes together."""

    def count(self, text: str) -> int:
        """Tokens of a text that begins a prompt, with what the model needs in front of it."""
        ...

    def score(self, pairs: Sequence[tuple[str, str]]) -> list[Scored]:
        """Judge continuations: (prompt, continuation) each."""
        ...

    def write(self, prompts: Sequence[str], max_new_tokens: int, stops: Sequence[str], how: Sampling) -> list[str]:
        """Continue prompts; a text ends before the first of `stops`, at end-of-text or after max_new_tokens."""
        ...


class ModelReader:
    """A decoder with its tokenizer."""

    def __init__(self, model: Decoder, tokenizer: Tokenizer, identity: str = "", batch_size: int = 16) -> None:
        """identity: a hash of the model, for answers that are kept. ValueError: a model that reads no text."""
        check_whole("batch_size", batch_size, 1)
        if tokenizer.vocab_size > model.config.vocab_size:
            raise ValueError(
                f"the model has {model.config.vocab_size} token ids, too few for text ({tokenizer.vocab_size})"
            )
        self.model, self.tokenizer = model.eval(), tokenizer
        self.identity, self.batch_size = identity, batch_size
        self.context = model.config.context
        self.start = [tokenizer.start] if tokenizer.start != tokenizer.end else []
        """The id before every text; none where the tokenizer has no beginning of text: in training, too, nothing is
        seen of the document before."""

    def encode(self, text: str) -> list[int]:
        """Give the ids of a text that begins here, behind the tokenizer's beginning of text if it has one."""
        return [*self.start, *map(int, self.tokenizer.encode([text.encode()])[0])]

    def count(self, text: str) -> int:
        """Tokens of a text, its start token included."""
        return len(self.encode(text))

    def score(self, pairs: Sequence[tuple[str, str]]) -> list[Scored]:
        """Judge continuations, split from their prompts as `split` does it."""
        return self.score_ids(self.split(pairs))

    def split(self, pairs: Sequence[tuple[str, str]]) -> list[tuple[list[int], list[int]]]:
        """Give the ids of prompts and of their continuations, at least one each.

        A token that joins a prompt's end and the continuation's beginning belongs to the continuation. Where nothing
        stands before the continuation, it is read behind end-of-text. ValueError: an empty continuation.
        """
        prompts = {prompt: self.encode(prompt) for prompt in dict.fromkeys(prompt for prompt, _ in pairs)}
        split: list[tuple[list[int], list[int]]] = []
        for prompt, continuation in pairs:
            alone, whole = prompts[prompt], self.encode(prompt + continuation)
            if not continuation:
                raise ValueError("a continuation is empty; there is nothing to judge")
            common = min(len(alone), len(whole) - 1)
            while whole[:common] != alone[:common]:
                common -= 1
            split.append((whole[:common] or [self.tokenizer.end], whole[common:]))
        return split

    @torch.no_grad()
    def score_ids(self, pairs: Sequence[tuple[Ids, Ids]]) -> list[Scored]:
        """Judge continuations given as ids; prompts have at least one. Continuations of one prompt read it once."""
        given = [(tuple(map(int, prompt)), tuple(map(int, new))) for prompt, new in pairs]
        for prompt, new in given:
            if not prompt or not new:
                raise ValueError("a prompt and its continuation need at least one token each")
            if len(prompt) + len(new) - 1 > self.context:
                raise ValueError(
                    f"a prompt of {len(prompt)} tokens and {len(new)} of its continuation do not fit the model's "
                    f"context of {self.context}"
                )
        found: dict[int, Scored] = {}
        order = sorted(range(len(given)), key=lambda i: (len(given[i][0]), given[i][0], len(given[i][1])))
        alone: list[int] = []
        for prompt, same in groupby(order, key=lambda i: given[i][0]):
            together = list(same)
            if len(together) == 1 or len(prompt) == 1:
                alone += together
                continue
            for first in range(0, len(together), self.batch_size):
                some = together[first : first + self.batch_size]
                found |= zip(some, self._of_one_prompt(prompt, [given[i][1] for i in some]), strict=True)
        for first in range(0, len(alone), self.batch_size):
            some = alone[first : first + self.batch_size]
            found |= zip(some, self._side_by_side([given[i] for i in some]), strict=True)
        return [found[i] for i in range(len(given))]

    def _side_by_side(self, rows: list[tuple[tuple[int, ...], tuple[int, ...]]]) -> list[Scored]:
        # Attention is causal, so padding on the right changes nothing before it.
        tokens = self._padded([(*prompt, *new[:-1]) for prompt, new in rows])
        hidden = self.model.hidden(tokens)
        return [
            self._scored(hidden[i, len(prompt) - 1 : len(prompt) + len(new) - 1], new)
            for i, (prompt, new) in enumerate(rows)
        ]

    def _of_one_prompt(self, prompt: tuple[int, ...], news: list[tuple[int, ...]]) -> list[Scored]:
        longest = max(map(len, news))
        cache = self.model.new_cache(1, len(prompt) - 1 + longest)
        self.model.hidden(self._padded([prompt[:-1]]), cache=cache)
        hidden = self.model.hidden(self._padded([(prompt[-1], *new[:-1]) for new in news]), cache=cache.rows(len(news)))
        return [self._scored(hidden[i, : len(new)], new) for i, new in enumerate(news)]

    def _padded(self, rows: Sequence[Ids]) -> Tensor:
        longest = max(map(len, rows))
        padded = [[*row, *([0] * (longest - len(row)))] for row in rows]
        return torch.tensor(padded, dtype=torch.int64, device=self.model.head.device)

    def _scored(self, hidden: Tensor, new: tuple[int, ...]) -> Scored:
        """hidden [n, W], the states that the n tokens are read from."""
        logits = (hidden @ self.model.head.T).double()
        energy = logits.logsumexp(dim=-1)
        logs = logits - energy[:, None]
        tokens = logs[torch.arange(len(new)), torch.tensor(new, device=logs.device)]
        likeliest, best = logs.max(dim=-1)
        # -inf times a probability of 0 counts as 0.
        entropy = -(logs.exp() * logs.clamp(min=-1e4)).sum(dim=-1)
        return Scored(
            total=float(tokens.sum()),
            tokens=tokens.cpu().numpy(),
            likeliest=likeliest.cpu().numpy(),
            unlikeliest=logs.amin(dim=-1).cpu().numpy(),
            energy=energy.cpu().numpy(),
            entropy=entropy.cpu().numpy(),
            greedy=best.tolist() == list(new),
            state=hidden[0].float().cpu().numpy(),
        )

    def write(self, prompts: Sequence[str], max_new_tokens: int, stops: Sequence[str], how: Sampling) -> list[str]:
        """Continue prompts."""
        return self.write_ids([self.encode(prompt) for prompt in prompts], max_new_tokens, stops, how)

    def write_ids(
        self, prompts: Sequence[list[int]], max_new_tokens: int, stops: Sequence[str], how: Sampling
    ) -> list[str]:
        """Continue prompts given as ids, those of similar length together; nothing is read as end-of-text."""
        ids = [prompt or [self.tokenizer.end] for prompt in prompts]
        order = sorted(range(len(ids)), key=lambda i: len(ids[i]))
        texts: dict[int, str] = {}
        for first in range(0, len(order), self.batch_size):
            some = order[first : first + self.batch_size]
            longest = max(len(ids[i]) for i in some)
            padding = [longest - len(ids[i]) for i in some]
            tokens = torch.tensor([[0] * gap + ids[i] for gap, i in zip(padding, some, strict=True)])
            mask = torch.tensor([[0] * gap + [1] * (longest - gap) for gap in padding])
            written = self.model.generate(
                tokens.to(self.model.head.device),
                attention_mask=mask.to(self.model.head.device) if any(padding) else None,
                max_new_tokens=max_new_tokens,
                temperature=how.temperature,
                top_k=how.top_k,
                top_p=how.top_p,
                min_p=how.min_p,
                seed=[_seed(how.seed, ids[i]) for i in some],
                eos=self.tokenizer.end,
            )
            for row, i in zip(written[:, longest:].tolist(), some, strict=True):
                texts[i] = until(self._text(ids[i], row), stops)
        return [texts[i] for i in range(len(ids))]

    def _text(self, prompt: list[int], new: list[int]) -> str:
        """What new ids add to a prompt's text: decoded with it, as some tokenizers drop a text's first space."""
        if self.tokenizer.end in new:
            new = new[: new.index(self.tokenizer.end)]
        prompt = [i for i in prompt if i not in (*self.start, self.tokenizer.end)]
        return self.tokenizer.decode([*prompt, *new])[len(self.tokenizer.decode(prompt)) :]


def until(text: str, stops: Sequence[str]) -> str:
    """Cut a text before the first of the stops."""
    return text[: min([len(text), *(at for stop in stops if (at := text.find(stop)) >= 0)])]


def _seed(seed: int, prompt: list[int]) -> int:
    # Of a seed, torch's generator takes the lowest 32 bits alone.
    return zlib.crc32(np.array([seed, *prompt], dtype="<i8").tobytes())
