"""Documents to shards: read once, split by content, tokenise, write into a temporary folder, rename.

A prepared folder holds, for each split, `<split>.tokens` (uint16 or uint32, documents one after the other, each closed
by end-of-text) and `<split>.starts` (uint64, where each document begins), and a manifest.json with sizes and hashes.
"""

import hashlib
import json
import os
import re
import shutil
import sys
import tempfile
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers

from diffattn.data.base import DataError, TextData
from diffattn.data.sources import Source, enough_documents, limited, open_source
from diffattn.data.tokenizer import Bytes, Subwords, Tokenizer, train_bpe

FORMAT = 1
SPLITS = ("train", "dev", "test")
SPLIT_RULE = "blake2b of the document's bytes, modulo 100: 0-89 train, 90-94 dev, 95-99 test"
TRAIN_TOKENIZER_ON = 256 << 20
"""Bytes of training text that a tokenizer is trained on, at most; more changes hardly a merge."""
HASHED_WHOLE = 256 << 20
"""Larger shards are checked by size only, so that opening a corpus of hundreds of gigabytes stays quick."""


def prepare(config: TextData, folder: Path | None = None) -> Path:
    """The folder of shards of this config, made if it is not there yet.

    It lies under `folder`, $DIFFATTN_CACHE or ~/.cache/diffattn, under a name made of source, tokenizer and a hash of
    the config and of the source's content. Several processes may prepare the same text at once. DataError for a source
    or tokenizer that cannot be used and for a place that cannot be written.
    """
    if config.limit_bytes is not None and config.limit_bytes < 1:
        raise DataError(f"limit_bytes is the text to use, in bytes: expected at least 1, got {config.limit_bytes}")
    root = (folder or Path(os.environ.get("DIFFATTN_CACHE") or Path.home() / ".cache" / "diffattn")).expanduser()
    source = open_source(config)
    final = root / _name(config, source)
    if final.exists():
        read_manifest(final)
        return final
    print(f"diffattn: preparing {source.description} with tokenizer {config.tokenizer} ...", file=sys.stderr)
    temporary = None
    try:
        root.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(prefix=".preparing-", dir=root))
        splits = _Spool(temporary, source, config.limit_bytes)
        manifest = splits.manifest | _write_shards(splits, _tokenizer(config, splits, temporary), temporary)
        manifest |= {"format": FORMAT, "config": config.to_dict(), "tokenizers": tokenizers.__version__}
        (temporary / "manifest.json").write_text(
            json.dumps(manifest, indent=1, sort_keys=True) + "\n", encoding="utf-8"
        )
        _publish(temporary, final)
    except OSError as error:
        where = f" ({error.filename})" if error.filename else ""
        raise DataError(
            f"cannot prepare data under {root}: {error.strerror or error}{where}; make room there, or set "
            "DIFFATTN_CACHE to a folder that can be written"
        ) from error
    finally:
        if temporary is not None:
            shutil.rmtree(temporary, ignore_errors=True)
    print(f"diffattn: {manifest['splits']['train']['tokens']:,} training tokens in {final}", file=sys.stderr)
    return final


def read_manifest(folder: Path) -> dict[str, Any]:
    """The manifest of a prepared folder, every file of it checked by size and hash; DataError names the damaged one."""
    remedy = f"delete {folder} and run again"
    try:
        manifest = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
        if manifest["format"] != FORMAT:
            raise DataError(f"{folder} has format {manifest['format']}, this version reads {FORMAT}; {remedy}")
        for name, expected in manifest["files"].items():
            size = (folder / name).stat().st_size
            if size != expected["bytes"]:
                raise DataError(f"{folder / name} has {size} bytes, its manifest says {expected['bytes']}; {remedy}")
            if size <= HASHED_WHOLE and _hash(folder / name) != expected["hash"]:
                raise DataError(f"{folder / name} is not what its manifest says (other hash); {remedy}")
    except OSError as error:
        raise DataError(f"{error.filename} cannot be read ({error.strerror}); {remedy}") from error
    except (json.JSONDecodeError, KeyError, TypeError) as error:
        raise DataError(f"{folder / 'manifest.json'} is not a manifest; {remedy}") from error
    return manifest


def split_of(document: bytes) -> str:
    """The side a document is on: a function of its content, so copies of it are on the same side."""
    place = int.from_bytes(hashlib.blake2b(document, digest_size=8).digest(), "little") % 100
    return "train" if place < 90 else "dev" if place < 95 else "test"


class _Spool:
    """The text of each split on disk while it is prepared, so that a source is read, or downloaded, once."""

    def __init__(self, folder: Path, source: Source, limit_bytes: int | None) -> None:
        self.folder = folder
        self.lengths = {split: array("Q") for split in SPLITS}
        documents, rule = enough_documents(limited(source.documents(), limit_bytes))
        digest = hashlib.blake2b(digest_size=16)
        files = {split: self._path(split).open("wb") for split in SPLITS}
        try:
            for document in documents:
                split = split_of(document)
                files[split].write(document)
                self.lengths[split].append(len(document))
                digest.update(hashlib.blake2b(document, digest_size=16).digest())
        finally:
            for file in files.values():
                file.close()
        found = sum(len(lengths) for lengths in self.lengths.values())
        missing = [split for split in SPLITS if not self.lengths[split]]
        if missing:
            what = f"only {found} passages, none of them for {' and '.join(missing)}" if found else "no text at all"
            raise DataError(f"{source.description} holds {what}; give more text")
        self.manifest = {
            "description": source.description,
            "documents": found,
            "documents_hash": digest.hexdigest(),
            "document_rule": rule,
            "split_rule": SPLIT_RULE,
        }

    def _path(self, split: str) -> Path:
        return self.folder / f"{split}.text"

    def documents(self, split: str) -> Iterator[bytes]:
        with self._path(split).open("rb") as file:
            for length in self.lengths[split]:
                yield file.read(length)

    def drop(self, split: str) -> None:
        self._path(split).unlink()


def _tokenizer(config: TextData, splits: _Spool, folder: Path) -> Tokenizer:
    if config.tokenizer == "bytes":
        return Bytes()
    path = folder / "tokenizer.json"
    if config.tokenizer != "bpe":
        path.write_text(Subwords(Path(config.tokenizer).expanduser()).text, encoding="utf-8")
        return Subwords(path)
    return train_bpe(limited(splits.documents("train"), TRAIN_TOKENIZER_ON), config.vocab_size, path)


def _write_shards(splits: _Spool, tokenizer: Tokenizer, folder: Path) -> dict[str, Any]:
    dtype = np.dtype("<u2" if tokenizer.vocab_size <= 1 << 16 else "<u4")
    sizes = np.array([len(piece) for piece in tokenizer.pieces], dtype=np.int64)
    sections: dict[str, Any] = {}
    said_by_tokens = 0
    for split in SPLITS:
        starts, tokens = array("Q"), 0
        with (folder / f"{split}.tokens").open("wb") as shard:
            for batch in _batches(splits.documents(split)):
                for ids in tokenizer.encode(batch):
                    starts.append(tokens)
                    shard.write(np.append(ids, tokenizer.end).astype(dtype).tobytes())
                    tokens += len(ids) + 1
                    said_by_tokens += int(sizes[ids].sum())
        np.array(starts, dtype="<u8").tofile(folder / f"{split}.starts")
        splits.drop(split)
        sections[split] = {"documents": len(starts), "tokens": tokens, "bytes": sum(splits.lengths[split])}
    true_bytes = sum(section["bytes"] for section in sections.values())
    files = {path.name: {"bytes": path.stat().st_size, "hash": _hash(path)} for path in sorted(folder.iterdir())}
    return {
        "splits": sections,
        "dtype": dtype.str,
        "tokenizer": {"vocab_size": tokenizer.vocab_size, "end": tokenizer.end, "hash": tokenizer.hash},
        # A tokenizer that normalises text or adds spaces says more or less than the text has: no bits per byte then.
        "bytes_of_tokens_exact": abs(said_by_tokens - true_bytes) <= 0.002 * true_bytes,
        "files": files,
    }


def _batches(documents: Iterator[bytes], size: int = 4 << 20) -> Iterator[list[bytes]]:
    """Documents in groups of about `size` bytes: enough for the engine's threads, little for the memory."""
    batch: list[bytes] = []
    held = 0
    for document in documents:
        batch.append(document)
        held += len(document)
        if held >= size:
            yield batch
            batch, held = [], 0
    if batch:
        yield batch


def _publish(temporary: Path, final: Path) -> None:
    """Rename into place; when another process was first, its folder holds the same and stays."""
    temporary.chmod(0o755)
    try:
        temporary.rename(final)
    except OSError:
        if not final.exists():
            raise
    read_manifest(final)


def _name(config: TextData, source: Source) -> str:
    if config.tokenizer == "bpe":
        tokenizer = f"bpe{config.vocab_size}"
    elif config.tokenizer == "bytes":
        tokenizer = "bytes"
    else:
        tokenizer = f"tokenizer {Subwords(Path(config.tokenizer).expanduser()).hash}"
    identity = json.dumps([FORMAT, source.identity, config.text_field, config.limit_bytes, tokenizer])
    key = hashlib.blake2b(identity.encode(), digest_size=8).hexdigest()
    plain = re.sub(r"[^a-z0-9.]+", "-", f"{source.description[:60]} {tokenizer[:17]}".lower()).strip("-.")
    return f"{plain}-{key}"


def _hash(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).hexdigest()
