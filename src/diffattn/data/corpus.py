"""Prepared text as windows: training windows in an order that seed and step decide, held-out windows in a fixed one."""

from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from diffattn.data.base import NOT_SCORED, Batch, DataError, Split, TextData
from diffattn.data.prepare import read_manifest
from diffattn.data.tokenizer import END, Bytes, Subwords, Tokenizer

SENTENCE = 32
"""Tokens of the passage whose attention maps are drawn."""


class Corpus:
    """A prepared folder, cut into windows of context + 1 tokens: each token but the last predicts the next one.

    Windows follow each other in the stream and share one token, so an epoch scores every target once (the last, partial
    window of training is left out). End-of-text is predicted; what follows it begins another document and is not.
    """

    grader = None

    def __init__(self, config: TextData, folder: Path, *, context: int, batch_size: int, seed: int) -> None:
        manifest = read_manifest(folder)
        self.config = config
        self.folder = folder
        self.context = context
        self.batch_size = batch_size
        self.seed = seed
        self.tokenizer: Tokenizer = (
            Bytes() if manifest["tokenizer"]["hash"] == Bytes.hash else Subwords(folder / "tokenizer.json")
        )
        self.vocab_size: int = manifest["tokenizer"]["vocab_size"]
        self.fingerprint: dict[str, str | int] = {
            "source": manifest["documents_hash"],
            "tokenizer": manifest["tokenizer"]["hash"],
            "vocab_size": self.vocab_size,
        }
        self.manifest = manifest
        self.token_bytes = None
        if manifest["bytes_of_tokens_exact"]:
            self.token_bytes = torch.tensor([len(piece) for piece in self.tokenizer.pieces])
        self.train_tokens: int = manifest["splits"]["train"]["tokens"]
        self._train = _Stream(folder, "train", manifest["dtype"])
        self._windows = (self.train_tokens - 1) // context
        if self._windows < batch_size:
            raise DataError(
                f"the training split of {manifest['description']} has {self.train_tokens:,} tokens, one batch of "
                f"{batch_size} x {context} needs {batch_size * context + 1:,}: give more text, or lower the batch size "
                "or the context"
            )

    def batch(self, step: int) -> Batch:
        """Training windows number step * batch_size and on, in an endless sequence of shuffled epochs."""
        epochs, places = np.divmod(np.arange(step * self.batch_size, (step + 1) * self.batch_size), self._windows)
        windows = [_epoch_order(self.seed, int(e), self._windows)[p] for e, p in zip(epochs, places, strict=True)]
        return self._train.windows(np.array(windows) * self.context, self.context, self.tokenizer.end)

    def evaluation(self, split: Split, tokens: int | None = None) -> Iterator[Batch]:
        """Every target of the split once, in order; with `tokens`, windows spread evenly over the split instead.

        The last window is filled up with unscored end-of-text, the last batch may have fewer rows.
        """
        stream = _Stream(self.folder, split, self.manifest["dtype"])
        count = self.heldout_tokens(split) // self.context
        wanted = count if tokens is None else min(count, max(1, round(tokens / self.context)))
        windows = np.linspace(0, count - 1, wanted).round().astype(np.int64)
        for first in range(0, wanted, self.batch_size):
            rows = windows[first : first + self.batch_size] * self.context
            yield stream.windows(rows, self.context, self.tokenizer.end)

    def heldout_tokens(self, split: Split) -> int:
        """Those of all windows, the last one filled up."""
        tokens = len(_Stream(self.folder, split, self.manifest["dtype"]).tokens)
        return max(1, -(-(tokens - 1) // self.context)) * self.context

    def train_stream(self, tokens: int) -> np.ndarray:
        """The first `tokens` ids of the training split as they lie on disk, documents closed by end-of-text."""
        return self._train.tokens[:tokens]

    def describe(self) -> str:
        """Source, size of all splits together, tokenizer."""
        size = sum(split["bytes"] for split in self.manifest["splits"].values())
        amount = f"{size / 1e6:.1f} MB" if size >= 1e6 else f"{size / 1e3:.1f} kB"
        kind = "bytes" if self.config.tokenizer == "bytes" else f"byte-level BPE, {self.vocab_size} tokens"
        if self.config.tokenizer not in ("bytes", "bpe"):
            kind = f"{Path(self.config.tokenizer).name}, {self.vocab_size} tokens"
        return f"{self.manifest['description']}, {amount}, {kind}"

    def decode(self, ids: Sequence[int] | Tensor) -> str:
        """The text of the ids; bytes that are not UTF-8 show as U+FFFD."""
        return self.tokenizer.decode(int(i) for i in ids)

    def labels(self, ids: Sequence[int] | Tensor) -> list[str]:
        """Each id's own text, with line breaks and tabs made visible."""
        texts = [
            END if i == self.tokenizer.end else self.tokenizer.pieces[int(i)].decode(errors="replace") for i in ids
        ]
        return [text.replace("\n", "↵").replace("\t", "⇥") for text in texts]

    def sentence(self) -> Tensor:
        """Up to 32 tokens of the middle dev document that is long enough, from the line that reads most like prose."""
        stream = _Stream(self.folder, "dev", self.manifest["dtype"])
        ends = np.append(stream.starts[1:], len(stream.tokens))
        lengths = ends - stream.starts
        fitting = np.flatnonzero(lengths > min(SENTENCE, int(lengths.max()) - 1))
        document = fitting[len(fitting) // 2]
        ids = stream.tokens[stream.starts[document] : ends[document] - 1][:4096].astype(np.int64)
        breaks = np.array([piece.endswith(b"\n") for piece in self.tokenizer.pieces])
        lines = [0, *(np.flatnonzero(breaks[ids]) + 1).tolist()]
        starts = [line for line in lines if line + SENTENCE <= len(ids)] or [0]
        best = max(starts, key=lambda start: _prose(self.decode(ids[start : start + SENTENCE].tolist())))
        return torch.from_numpy(ids[best : best + SENTENCE])


class _Stream:
    """One split on disk, mapped into memory."""

    def __init__(self, folder: Path, split: str, dtype: str) -> None:
        self.tokens = np.memmap(folder / f"{split}.tokens", dtype=dtype, mode="r").view(np.ndarray)
        self.starts = np.fromfile(folder / f"{split}.starts", dtype="<u8").astype(np.int64)

    def windows(self, starts: np.ndarray, context: int, end: int) -> Batch:
        """Windows that begin at `starts` [B]; places behind the stream's end repeat its last document, unscored."""
        places = starts[:, None] + np.arange(context + 1)
        behind = places >= len(self.tokens)
        places = np.minimum(places, len(self.tokens) - 1)
        tokens = self.tokens[places].astype(np.int64)
        tokens[behind] = end
        documents = np.searchsorted(self.starts, places, side="right") - 1
        unscored = behind[:, 1:] | (documents[:, 1:] != documents[:, :-1])
        targets = np.where(unscored, NOT_SCORED, tokens[:, 1:])
        arrays = (np.ascontiguousarray(tokens[:, :-1]), targets, np.ascontiguousarray(documents[:, :-1]))
        return Batch(*map(torch.from_numpy, arrays))


@lru_cache(maxsize=4)
def _epoch_order(seed: int, epoch: int, windows: int) -> np.ndarray:
    return np.random.Generator(np.random.Philox(key=[seed, epoch])).permutation(windows)


def _prose(text: str) -> tuple[int, int]:
    """Letters and single spaces speak for prose; among equals, a capital at the start does."""
    return sum(c.isalpha() or c == " " for c in text) - 4 * text.count("  "), text[:1].isupper()
