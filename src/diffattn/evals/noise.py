"""Text with some characters replaced, and which of its tokens are still those of the text before."""

import numpy as np

from diffattn.data.tokenizer import Tokenizer

PRINTABLE = (0x20, 0x7E)
"""First and last of the characters that are replaced: one byte each, so that noise keeps every place. Line breaks,
tabs and characters beyond ASCII stay."""


def check_share(share: float) -> None:
    """Raise ValueError unless it is a share of the characters."""
    if not 0 <= share <= 1:
        raise ValueError(f"noise is {share}; it is a share of the characters, from 0 to 1")


def corrupted(text: bytes, share: float, seed: int) -> tuple[bytes, np.ndarray]:
    """Replace about this share of the printable ASCII characters of UTF-8 text, each by another one, drawn evenly.

    Returns the text and what was replaced, bool [bytes]. ValueError: a share outside 0 to 1.
    """
    check_share(share)
    first, last = PRINTABLE
    draw = np.random.default_rng(seed)
    characters = np.frombuffer(text, dtype=np.uint8)
    changed = (characters >= first) & (characters <= last) & (draw.random(len(characters)) < share)
    # 1 to 94 places on in a circle of 95: never the character itself.
    moved = first + (characters.astype(int) - first + draw.integers(1, last - first + 1, len(characters))) % (
        last - first + 1
    )
    return np.where(changed, moved, characters).astype(np.uint8).tobytes(), changed


def begins(tokenizer: Tokenizer, ids: np.ndarray, text: bytes) -> np.ndarray:
    """Give the byte of the text at which each token begins, and where the last one ends, [n + 1].

    A space that the tokenizer puts in front of texts lies at -1. ValueError: tokens that do not spell the text.
    """
    sizes = [len(tokenizer.pieces[i]) for i in ids.tolist()]
    ends = np.cumsum([0, *sizes])
    extra = int(ends[-1]) - len(text)
    if extra not in (0, 1):
        raise ValueError(
            f"the tokens of a text spell {ends[-1]} bytes, the text has {len(text)}: this tokenizer changes text, so "
            "tokens of clean and of noisy text cannot be set against each other"
        )
    return ends - extra


def same_tokens(
    tokenizer: Tokenizer, clean: tuple[bytes, np.ndarray], noisy: tuple[bytes, np.ndarray], changed: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Find the tokens that noise left alone: the same bytes of text under the same id, none of them replaced.

    clean, noisy: a text and its ids; changed as from `corrupted`. Returns their places in both, in order. Errors as
    `begins`.
    """
    (_, before), (_, after) = clean, noisy
    starts, others = begins(tokenizer, before, clean[0]), begins(tokenizer, after, noisy[0])
    spans = {span: place for place, span in enumerate(zip(starts, starts[1:], before, strict=False))}
    places = [
        (spans[span], place)
        for place, span in enumerate(zip(others, others[1:], after, strict=False))
        if span in spans and not changed[max(0, span[0]) : span[1]].any()
    ]
    found = np.array(places, dtype=int).reshape(-1, 2)
    return found[:, 0], found[:, 1]
