"""Documents to judge a model on: Python's standard library as code or as prose, or a text by path; and their losses."""

import ast
import hashlib
import sysconfig
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Literal

import numpy as np
import torch

from diffattn.data.base import TextData
from diffattn.data.prepare import split_of
from diffattn.data.sources import enough_documents, open_source
from diffattn.data.tokenizer import Tokenizer
from diffattn.model.decoder import Decoder
from diffattn.ops.loss import token_losses

Part = Literal["train", "dev", "test", "all"]
AT_ONCE = 16384
"""Tokens in one forward pass, where a row is not longer; it changes no number."""
LOOKED_AT = 2**26
"""Bytes of a text by path that are read before a model is: what is broken behind them is told when it is reached."""


def documents(source: str = "stdlib", part: Part = "dev") -> Iterator[bytes]:
    """Give the UTF-8 documents of one split of a source, in its order; "all": whole, whatever the split.

    source: as in `TextData`, or "prose": the docstrings of each module of the standard library, the topics of Python's
    own help and its licence. A module's prose is on the side of its code, so that a model trained on the code has seen
    neither. Splits are those of training, cut like there where documents are few. DataError: no such source.
    """
    if source == "prose":
        for code in documents("stdlib", part):
            if text := docstrings(code):
                yield text
        licence = Path(sysconfig.get_paths()["stdlib"]) / "LICENSE.txt"
        if licence.is_file() and part in ("all", split_of(licence.read_bytes())):
            yield licence.read_bytes()
        return
    found = open_source(TextData(source=source)).documents()
    if part == "all":
        yield from found
        return
    for document in enough_documents(found)[0]:
        if split_of(document) == part:
            yield document


@cache
def check_text(source: str, part: Part = "dev") -> None:
    """Read the beginning of a source, of the hub's one document; ValueError: no such source, no text in that part.

    Once in a process, so that whoever looks first costs whoever reads later nothing.
    """
    if source in ("stdlib", "prose"):
        return
    size, enough, found = 0, 1 if source.startswith("hf:") else LOOKED_AT, False
    for document in documents(source, part):
        size, found = size + len(document), True
        if size >= enough:
            break
    if not found:
        raise ValueError(f"{source}: there is no document in its part {part!r}; give longer texts, or more")


def docstrings(code: bytes) -> bytes:
    """Give the docstrings of a module in the order of its lines; of one that only holds help topics, the topics."""
    try:
        module = ast.parse(code)
    except (SyntaxError, ValueError):
        return b""
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    nodes = sorted(
        (node for node in ast.walk(module) if isinstance(node, kinds)), key=lambda n: getattr(n, "lineno", 0)
    )
    texts = [ast.get_docstring(node) or "" for node in nodes]
    for statement in module.body:
        if isinstance(statement, ast.Assign) and [ast.unparse(name) for name in statement.targets] == ["topics"]:
            texts += ast.literal_eval(statement.value).values()
    return "\n\n".join(text for text in texts if text).encode(errors="replace")


def passages(tokenizer: Tokenizer, texts: Iterable[bytes], length: int, wanted: int) -> tuple[np.ndarray, np.ndarray]:
    """Cut documents into stretches of `length` tokens that do not overlap, the first at a document's beginning.

    Returns the ids [N, length] of up to `wanted` of them, from as many documents as possible, and the document [N] of
    each.
    ValueError: no document is that long.
    """
    found: list[tuple[int, np.ndarray]] = []
    longest = 0
    for number, text in enumerate(texts):
        ids = tokenizer.encode([text])[0]
        longest = max(longest, len(ids))
        if count := len(ids) // length:
            found.append((number, ids[: count * length].reshape(count, length)))
        if len(found) == 4 * wanted:
            break
    if not found:
        told = f"the longest document has {longest:,}" if longest else "there is no document"
        raise ValueError(f"passages of {length:,} tokens are needed, but {told}; give longer texts, or read less far")
    places = spread([len(cut) for _, cut in found], wanted)
    rows = np.stack([found[document][1][place] for document, place in places])
    return rows.astype(np.int64), np.array([found[document][0] for document, _ in places])


def named(rows: Iterable[np.ndarray]) -> list[str]:
    """Name passages by their place and their ids: another model has the same names for the same tokens alone."""
    return [f"{place}-{hashlib.sha256(row.tobytes()).hexdigest()[:12]}" for place, row in enumerate(rows)]


def spread(counts: Sequence[int], wanted: int) -> list[tuple[int, int]]:
    """Choose up to `wanted` (document, place) of documents with so many places, from as many documents as possible."""
    share = 1
    while share < max(counts) and sum(min(share, count) for count in counts) < wanted:
        share += 1
    kept = [(document, place) for document, count in enumerate(counts) for place in _evenly(count, share)]
    return [kept[i] for i in _evenly(len(kept), wanted)]


def _evenly(count: int, wanted: int) -> list[int]:
    """Up to `wanted` of `count` places, the first and, of several, the last among them."""
    return np.linspace(0, count - 1, min(wanted, count)).round().astype(int).tolist()


@torch.no_grad()
def token_nats(model: Decoder, tokens: np.ndarray, targets: np.ndarray, last: int | None = None) -> np.ndarray:
    """Give the loss in nats of each target, [N, T], or of the last so many of each row; NaN where it is -100.

    tokens, targets [N, T] of ids. Rows go together as memory allows, which changes no number.
    """
    device, size = model.head.device, max(1, AT_ONCE // tokens.shape[1])
    wanted = torch.from_numpy(targets[:, -(last or targets.shape[1]) :]).to(device)
    parts = []
    for first in range(0, len(tokens), size):
        hidden = model.hidden(torch.from_numpy(tokens[first : first + size]).to(device))
        some = wanted[first : first + size]
        losses = token_losses(hidden[:, -some.shape[1] :], model.head, some)
        parts.append(losses.double().masked_fill(some < 0, float("nan")).cpu().numpy())
    return np.concatenate(parts)
