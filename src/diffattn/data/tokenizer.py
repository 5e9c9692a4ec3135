"""From text to ids and back: bytes, a byte-level BPE trained here, or somebody's tokenizer.json."""

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Protocol

import numpy as np
from tokenizers import Tokenizer as Engine
from tokenizers import decoders, models, pre_tokenizers, trainers

from diffattn.data.base import DataError

END = "<|endoftext|>"
ENDS = (END, "<|end_of_text|>", "</s>", "<eos>", "<|im_end|>", "[SEP]")
"""Names under which other people's tokenizers keep their end of text; the first one present is used."""
STARTS = ("<s>", "<|begin_of_text|>", "<bos>")
"""The same for their beginning of text; some have it and leave it to others to put it there."""
SMALLEST = 257
"""A byte-level vocabulary holds at least the bytes and end-of-text."""


class Tokenizer(Protocol):
    """Documents in, ids out; `end` closes every document and is never produced by its text."""

    vocab_size: int
    end: int
    start: int
    """What stands before a document: the tokenizer's own beginning of text where it has one, else the end before."""
    hash: str
    pieces: list[bytes]
    """The bytes of text that each id stands for, [V]; empty for end-of-text and other special ids."""

    def encode(self, documents: Sequence[bytes]) -> list[np.ndarray]:
        """The ids of each UTF-8 document, without end-of-text."""
        ...

    def decode(self, ids: Iterable[int]) -> str:
        """The text of the ids; bytes that are not UTF-8 show as U+FFFD."""
        ...


class Bytes:
    """Ids 0 to 255 are the bytes themselves; 256 is end-of-text, so that no byte of a text can be mistaken for it."""

    vocab_size = 257
    end = start = 256
    hash = "bytes"

    def __init__(self) -> None:
        self.pieces = [bytes([i]) for i in range(256)] + [b""]

    def encode(self, documents: Sequence[bytes]) -> list[np.ndarray]:
        return [np.frombuffer(document, dtype=np.uint8).astype(np.uint16) for document in documents]

    def decode(self, ids: Iterable[int]) -> str:
        return b"".join(END.encode() if i == self.end else self.pieces[i] for i in ids).decode(errors="replace")


class Subwords:
    """A tokenizer.json, run by the package `tokenizers`."""

    def __init__(self, path: Path) -> None:
        try:
            self.text = path.read_text(encoding="utf-8")
            self.engine = Engine.from_str(self.text)
        except FileNotFoundError as error:
            raise DataError(
                f'no tokenizer at {path}; expected "bytes", "bpe" or the path of a tokenizer.json'
            ) from error
        except Exception as error:  # `tokenizers` raises bare Exception
            raise DataError(f"{path} is not a tokenizer.json ({str(error).splitlines()[0]})") from error
        ids = self.engine.get_vocab(with_added_tokens=True)
        end = next((ids[name] for name in ENDS if name in ids), None)
        if end is None:
            raise DataError(f"{path} has no end-of-text token; expected one of {', '.join(ENDS)}")
        # A text that spells a special token is still text: only the end of a document is the end of a document.
        self.engine.encode_special_tokens = True
        self.byte_level = '"ByteLevel"' in json.dumps(
            [json.loads(self.text).get(k) for k in ("pre_tokenizer", "decoder")]
        )
        self.end = end
        # What the tokenizer's post-processor puts before any text, even before none.
        given = self.engine.encode("").ids
        self.start = next(iter([*given, *(ids[name] for name in STARTS if name in ids)]), end)
        self.vocab_size = max(ids.values()) + 1
        self.hash = hashlib.blake2b(self.text.encode(), digest_size=16).hexdigest()
        self.pieces = self._pieces()

    def encode(self, documents: Sequence[bytes]) -> list[np.ndarray]:
        # Whole files cost gigabytes in the engine, paragraphs do not. Tokenizers that are not byte-level may add a
        # space in front of each text they are given, so they get whole documents.
        cut = [
            paragraphs(text) if self.byte_level else [text] for text in (document.decode() for document in documents)
        ]
        encoded = iter(self.engine.encode_batch_fast([p for pieces in cut for p in pieces], add_special_tokens=False))
        dtype = np.uint16 if self.vocab_size <= 1 << 16 else np.uint32
        return [np.array([i for _ in pieces for i in next(encoded).ids], dtype=dtype) for pieces in cut]

    def decode(self, ids: Iterable[int]) -> str:
        if not self.byte_level:
            return self.engine.decode(list(ids), skip_special_tokens=False)
        return b"".join(END.encode() if i == self.end else self.pieces[i] for i in ids).decode(errors="replace")

    def _pieces(self) -> list[bytes]:
        special = {i for i, token in self.engine.get_added_tokens_decoder().items() if token.special}
        names = [self.engine.id_to_token(i) or "" for i in range(self.vocab_size)]
        to_bytes = _byte_level_piece if self.byte_level else _sentence_piece
        return [b"" if i in special or i == self.end else to_bytes(name) for i, name in enumerate(names)]


def train_bpe(texts: Iterable[bytes], vocab_size: int, path: Path) -> Subwords:
    """Train a byte-level BPE of exactly `vocab_size` ids and write it to `path`; the same texts give the same file."""
    if vocab_size < SMALLEST:
        raise DataError(
            f"a byte-level vocabulary has at least {SMALLEST} ids (bytes and end-of-text), got {vocab_size}"
        )
    engine = Engine(models.BPE())
    engine.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    engine.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        min_frequency=2,  # a pair seen once teaches nothing about other text
        special_tokens=[END],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    engine.train_from_iterator((paragraphs(text.decode()) for text in texts), trainer)
    if engine.get_vocab_size() < vocab_size:
        raise DataError(
            f"the training text supports a vocabulary of {engine.get_vocab_size()}, not of {vocab_size}: "
            "lower --data.vocab-size, or give more text"
        )
    engine.save(str(path))
    return Subwords(path)


def paragraphs(text: str) -> list[str]:
    """Cut where a blank line meets one that is not indented, and every 100,000 characters; nothing is lost."""
    return [part[i : i + 100_000] for part in _BREAK.split(text) for i in range(0, len(part), 100_000)]


_BREAK = re.compile(r"(?<=\n\n)(?=\S)")


def _alphabet() -> Iterator[tuple[str, int]]:
    """GPT-2's printable stand-ins for bytes: printable Latin-1 stands for itself, the rest follows from U+0100 on."""
    shown = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    for byte in shown:
        yield chr(byte), byte
    for place, byte in enumerate(sorted(set(range(256)) - set(shown))):
        yield chr(0x100 + place), byte


_TO_BYTE = dict(_alphabet())


def _byte_level_piece(name: str) -> bytes:
    # An added token that is not special is spelled as plain text.
    return bytes(_TO_BYTE[c] for c in name) if all(c in _TO_BYTE for c in name) else name.encode()


def _sentence_piece(name: str) -> bytes:
    if re.fullmatch(r"<0x[0-9A-F]{2}>", name):
        return bytes([int(name[3:5], 16)])
    return name.replace("▁", " ").encode()
