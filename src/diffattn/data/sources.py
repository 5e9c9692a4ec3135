"""Where documents come from: the standard library, files, folders, globs, JSONL, parquet and the Hugging Face hub.

A document is a run of UTF-8 bytes. Everything is read as a stream; nothing holds a whole corpus.
"""

import glob
import hashlib
import json
import mmap
import os
import platform
import sysconfig
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any

from diffattn.data.base import DataError, TextData

SEPARATOR = b"<|endoftext|>"
"""Between the documents of a text file that holds many, as in TinyStories."""
NOT_LIBRARY = {"test", "tests", "idle_test", "site-packages", "dist-packages"}
"""Folders of the standard library's place that are tests or other people's packages."""
WIDE_MARKS = (b"\xff\xfe", b"\xfe\xff")
"""How text in UTF-16 begins, whose zero bytes are characters."""
MAGIC = (
    b"\x89PNG",
    b"\xff\xd8\xff",
    b"GIF8",
    b"%PDF-",
    b"PK\x03\x04",
    b"\x1f\x8b",
    b"BZh",
    b"\xfd7zXZ",
    b"\x28\xb5\x2f\xfd",
)
"""How pictures (PNG, JPEG, GIF), PDF and compressed files (zip, gzip, bzip2, xz, zstd) begin."""

FEW = 200
"""Below so many documents, 5 % of them are too few: they are cut into passages first."""


@dataclass(frozen=True)
class Source:
    """Documents that can be read again and again, with a name for people and a hash for the cache."""

    description: str
    identity: str
    documents: Callable[[], Iterator[bytes]]


def open_source(config: TextData) -> Source:
    """Find what `config.source` names; DataError when there is nothing to read."""
    if config.source == "stdlib":
        return _standard_library()
    if config.source.startswith("hf:"):
        return _hub(config.source[3:], config.text_field)
    return _files(config.source, config.text_field)


def library_files() -> tuple[Path, list[Path]]:
    """Find the standard library's folder and its UTF-8 source files, without tests; DataError where it has none."""
    root = Path(sysconfig.get_paths()["stdlib"])
    paths = []
    for folder, inner, files in os.walk(root):
        inner[:] = [name for name in inner if name not in NOT_LIBRARY]  # prunes the walk
        paths += [Path(folder, name) for name in files if name.endswith(".py")]
    paths = [path for path in sorted(paths) if _is_utf8(path)]
    if not paths:
        raise DataError(f"Python's standard library has no source files under {root}; name a text with --data.source")
    return root, paths


def _standard_library() -> Source:
    root, paths = library_files()

    def documents() -> Iterator[bytes]:
        for path in paths:
            yield from _text_documents(path)

    return Source(f"Python {platform.python_version()} standard library", _content_hash(paths, root), documents)


def _files(source: str, text_field: str) -> Source:
    place = Path(source).expanduser()
    if place.is_dir():
        root = place
        found = (path.relative_to(root) for path in place.rglob("*") if path.is_file())
        paths = [root / path for path in sorted(found) if not any(part.startswith(".") for part in path.parts)]
    elif place.is_file():
        root, paths = place.parent, [place]
    else:
        names = sorted(os.path.abspath(name) for name in glob.glob(str(place), recursive=True))
        paths = [Path(name) for name in names if os.path.isfile(name)]
        root = Path(os.path.commonpath([path.parent for path in paths])) if paths else place
        if not paths:
            raise DataError(
                f"no file, folder or glob matches {source!r}; for a Hugging Face data set write hf:owner/name, "
                "for Python's own library write stdlib"
            )
    if not paths:
        raise DataError(f"the folder {source} holds no files")

    def documents() -> Iterator[bytes]:
        for path in paths:
            if path.suffix == ".jsonl":
                yield from _jsonl_documents(path, text_field)
            elif path.suffix == ".parquet":
                yield from _parquet_documents(path, text_field)
            else:
                yield from _text_documents(path)

    name = place.name if place.name else source
    return Source(name if len(paths) == 1 else f"{name}, {len(paths)} files", _content_hash(paths, root), documents)


def _text_documents(path: Path) -> Iterator[bytes]:
    """A text file is one document, or as many as `<|endoftext|>` separates."""
    if path.stat().st_size == 0:
        return
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as text:
        many = text.find(SEPARATOR) >= 0
        start = 3 if text[:3] == b"\xef\xbb\xbf" else 0
        while start < len(text):
            end = text.find(SEPARATOR, start)
            end = len(text) if end < 0 else end
            document = text[start:end]
            try:
                document.decode()
            except UnicodeDecodeError as error:
                raise DataError(_not_text(path, document[error.start], start + error.start)) from error
            if document.strip():
                yield document.strip(b"\r\n") if many else document
            start = end + len(SEPARATOR)


def _not_text(path: Path, byte: int, offset: int) -> str:
    """Say what to do with a file that is not UTF-8: text in another encoding can be converted, a picture cannot."""
    with path.open("rb") as file:
        head = file.read(8192)
    only = f"name only texts, with a glob such as '{path.parent}/*.txt'"
    wide = head.startswith(WIDE_MARKS)
    if not wide and (b"\0" in head or head.startswith(MAGIC)):
        return f"{path} is not text (binary); {only}"
    encoding = "UTF-16" if wide else "LATIN1"
    return (
        f"{path} is not UTF-8 text: byte 0x{byte:02x} at offset {offset}; convert it (iconv -f {encoding} -t UTF-8) or "
        f"{only}"
    )


def _jsonl_documents(path: Path, field: str) -> Iterator[bytes]:
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except ValueError as error:  # also UnicodeDecodeError
                raise DataError(f"{path}, line {number}: not one JSON object in UTF-8 ({error})") from error
            if not isinstance(row, dict):
                raise DataError(f"{path}, line {number}: expected a JSON object, got {type(row).__name__}")
            yield from _field(row, field, f"{path}, line {number}")


def _parquet_documents(path: Path, field: str) -> Iterator[bytes]:
    try:
        from pyarrow import ArrowInvalid
        from pyarrow.parquet import ParquetFile
    except ImportError as error:
        raise DataError(f"{path} needs pyarrow; pip install 'diffattn[data]'") from error
    try:
        table = ParquetFile(path)
    except ArrowInvalid as error:
        raise DataError(f"{path} is not a parquet file ({str(error).splitlines()[0]})") from error
    if field not in table.schema_arrow.names:
        raise DataError(f"{path} has no column {field!r}; its columns: {', '.join(table.schema_arrow.names)}")
    for rows in table.iter_batches(batch_size=1024, columns=[field]):
        for text in rows.column(0).to_pylist():
            yield from _field({field: text}, field, str(path))


def _hub(name: str, text_field: str) -> Source:
    """A Hugging Face data set, its split "train" streamed; its identity is its name, for its text is not known yet."""
    name, _, subset = name.partition(":")

    def documents() -> Iterator[bytes]:
        try:
            from datasets import load_dataset  # pyright: ignore[reportMissingImports]
        except ImportError as error:
            raise DataError(f"hf:{name} needs the package datasets; pip install 'diffattn[data]'") from error
        try:
            rows = load_dataset(name, subset or None, split="train", streaming=True)
        except (OSError, ValueError, RuntimeError) as error:
            reason = (str(error) or type(error).__name__).splitlines()[0]
            raise DataError(f"cannot open the Hugging Face data set {name}: {reason}") from error
        for number, row in enumerate(rows):
            yield from _field(row, text_field, f"hf:{name}, row {number}")

    return Source(name if not subset else f"{name} ({subset})", f"hf:{name}:{subset}", documents)


def _field(row: dict[str, Any], field: str, where: str) -> Iterator[bytes]:
    """The text of one row; blank texts are left out."""
    if field not in row:
        raise DataError(f"{where}: no field {field!r}; set --data.text-field to one of {', '.join(row)}")
    if row[field] is not None and not isinstance(row[field], str):
        raise DataError(f"{where}: field {field!r} holds {type(row[field]).__name__}, not text")
    if row[field] and row[field].strip():
        # Half of a surrogate pair, which JSON can spell and UTF-8 cannot, becomes "?".
        yield row[field].encode(errors="replace")


def enough_documents(documents: Iterator[bytes]) -> tuple[Iterator[bytes], str]:
    """The documents themselves, or passages of them where a share of 5 % would be a handful, and the rule in words."""
    first = list(islice(documents, FEW))
    if len(first) == FEW:
        return chain(first, documents), "as the source gives them"
    size = min(max(sum(map(len, first)) // (2 * FEW), 128), 16384)
    passages = (passage for document in first for passage in _passages(document, size))
    return passages, f"{len(first)} documents of the source, cut at blank lines into passages of about {size} bytes"


def _passages(document: bytes, size: int) -> Iterator[bytes]:
    """Cut after the first blank line behind `size` bytes, else (4 sizes on) after a line, else between characters."""
    start = 0
    while start < len(document):
        end = len(document)
        if end - start > size:
            for mark in (b"\n\n", b"\n"):
                found = document.find(mark, start + size, start + 4 * size)
                if found >= 0:
                    end = found + len(mark)
                    break
            else:
                end = _character_boundary(document, min(start + 4 * size, end))
        if document[start:end].strip():
            yield document[start:end]
        start = end


def limited(documents: Iterator[bytes], limit: int | None) -> Iterator[bytes]:
    """The first `limit` bytes of text, the last document cut; None: all."""
    left = limit
    for document in documents:
        if left is None:
            yield document
        elif len(document) < left:
            yield document
            left -= len(document)
        else:
            cut = document[: _character_boundary(document, left)]
            if cut.strip():
                yield cut
            return


def _character_boundary(text: bytes, place: int) -> int:
    """The last place at or before this one that does not cut a UTF-8 character (continuation bytes are 10xxxxxx)."""
    while place < len(text) and text[place] & 0xC0 == 0x80:
        place -= 1
    return place


def _is_utf8(path: Path) -> bool:
    try:
        path.read_bytes().decode()
    except UnicodeDecodeError:
        return False
    return True


def _content_hash(paths: list[Path], root: Path) -> str:
    """Names and bytes of all files: the same text elsewhere is the same source, a changed one is another."""
    total = hashlib.blake2b(digest_size=16)
    for path in paths:
        with path.open("rb") as file:
            content = hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).hexdigest()
        total.update(f"{path.relative_to(root).as_posix()}\0{content}\n".encode())
    return total.hexdigest()
