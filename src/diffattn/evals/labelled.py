"""Texts with labels for many-shot learning: docstrings of the standard library, known sets and other files by path."""

import ast
import csv
import hashlib
import io
import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from diffattn.data.sources import library_files

DOCSTRINGS = "docstrings"
FEWEST = 20
"""Modules with fewer docstrings are left out."""
WORDS = 5
"""Shorter docstrings say too little of their module."""
ASKED = 5
"""Where a source has no split of its own, one text of so many is asked and the others are shown."""
LABELS = ("label", "category")
"""Heads of a CSV's column of labels."""
TREC_LINE = re.compile(r"([A-Z]+):(\w+)\s+(.+)")
COARSE = {
    "ABBR": "abbreviation",
    "DESC": "description",
    "ENTY": "entity",
    "HUM": "person",
    "LOC": "location",
    "NUM": "number",
}
FINE = {
    "abb": "abbreviation",
    "cremat": "creation",
    "def": "definition",
    "desc": "description",
    "dismed": "disease or medicine",
    "dist": "distance",
    "exp": "expansion",
    "gr": "group",
    "ind": "individual",
    "instru": "instrument",
    "lang": "language",
    "mount": "mountain",
    "ord": "order",
    "perc": "percentage",
    "techmeth": "technique",
    "temp": "temperature",
    "termeq": "equivalent term",
    "veh": "vehicle",
    "volsize": "size",
}
"""TREC's fine classes that are not written out; the others are words."""


@dataclass(frozen=True)
class Example:
    """A text on one line and what it is called."""

    text: str
    label: str


@dataclass(frozen=True)
class Labelled:
    """Texts to show with their labels and others to ask for; no text is on both sides."""

    name: str
    shown: tuple[Example, ...]
    asked: tuple[Example, ...]

    @property
    def labels(self) -> tuple[str, ...]:
        """Every label that is shown, the most frequent first."""
        counts = Counter(example.label for example in self.shown)
        return tuple(sorted(counts, key=lambda label: (-counts[label], label)))

    def cut(self, characters: int, classes: int | None = None) -> "Labelled":
        """Keep the largest classes (None: all) and the beginning of each text.

        Texts that are then equal count once, those of two classes not at all. ValueError: under 2 classes, or nothing
        left to ask.
        """
        labels = set(self.labels[:classes])
        if len(labels) < 2:
            raise ValueError(f"{self.name}: there must be at least 2 classes to choose from, got {sorted(labels)}")
        shown = _shortened(self.shown, labels, characters)
        asked = _shortened(self.asked, labels, characters)
        meanings: dict[str, set[str]] = {}
        for example in (*shown, *asked):
            meanings.setdefault(example.text, set()).add(example.label)
        shown = [example for example in dict.fromkeys(shown) if len(meanings[example.text]) == 1]
        known = {example.text for example in shown}
        left = {example.label for example in shown}
        asked = [
            example
            for example in dict.fromkeys(asked)
            if example.text not in known and example.label in left and len(meanings[example.text]) == 1
        ]
        if not asked or len(left) < 2:
            raise ValueError(
                f"{self.name}: of texts cut to {characters} characters, {len(asked)} questions and {len(left)} classes "
                "are left that are not the same as others; give longer texts or more of them"
            )
        return Labelled(self.name, tuple(shown), tuple(asked))


def _shortened(examples: Iterable[Example], labels: set[str], characters: int) -> list[Example]:
    cut = (Example(e.text[:characters].strip(), e.label) for e in examples if e.label in labels)
    return [example for example in cut if example.text]


def labelled(source: str = DOCSTRINGS, fine: bool = False) -> Labelled:
    """Read labelled texts.

    source: "docstrings", or a file whose content says what it is: TREC's `COARSE:fine text` (Li and Roth 2002), the
    JSON of CLINC-150 (Larson et al. 2019; its out-of-scope texts are left out), JSONL with "text" and "label", or CSV
    of text and label as Banking-77 has it (Casanueva et al. 2020), UTF-8 or else Latin-1. A folder has such files named
    train and test, or CLINC-150's data_full.json. Labels are words: underscores become spaces, TREC's are written out.
    fine: TREC's 50 classes in place of 6. ValueError: no such file, a line that cannot be read, fine of something else.
    """
    if source == DOCSTRINGS:
        if fine:
            raise ValueError("the docstrings have no fine classes; only TREC's lines, COARSE:fine text, have")
        return _split(DOCSTRINGS, docstring_examples())
    place = Path(source).expanduser()
    name = place.name
    if place.is_dir():
        files = [file for file in sorted(place.iterdir()) if file.is_file()]
        sides = [[file for file in files if side in (file.stem, file.suffix[1:])] for side in ("train", "test")]
        if all(len(side) == 1 for side in sides):
            shown, asked = (_examples(file, fine) for (file,) in sides)
            return Labelled(name, tuple(shown), tuple(asked))
        place /= "data_full.json"
    if not place.is_file():
        raise ValueError(
            f"no labelled texts at {source!r}; expected {DOCSTRINGS!r}, a file of TREC, CLINC-150, JSONL or CSV, or a "
            "folder with train and test files"
        )
    text = _decoded(place)
    if text.lstrip().startswith("{") and (both := _clinc(text)) and not fine:
        return Labelled(name, *both)
    return _split(name, _examples(place, fine))


def _decoded(file: Path) -> str:
    content = file.read_bytes()
    if b"\0" in content:
        raise ValueError(f"{file} is not UTF-8 text: it holds zero bytes, as UTF-16 does; convert it (iconv -t UTF-8)")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError:
        return content.decode("latin-1")


def _split(name: str, examples: Iterable[Example]) -> Labelled:
    """A text's own hash says whether it is asked, so that more examples move none to the other side."""
    sides: tuple[list[Example], list[Example]] = ([], [])
    for example in examples:
        digest = hashlib.blake2b(example.text.encode(), digest_size=4).digest()
        sides[int.from_bytes(digest) % ASKED == 0].append(example)
    return Labelled(name, tuple(sides[0]), tuple(sides[1]))


def _clinc(text: str) -> tuple[tuple[Example, ...], tuple[Example, ...]] | None:
    """Both sides of one JSON object with lists "train" and "test" of [text, label]; None: it is something else."""
    try:
        found = json.loads(text)
        train, test = ([_example(*row) for row in found[side]] for side in ("train", "test"))
    except (ValueError, KeyError, TypeError):
        return None
    return tuple(train), tuple(test)


def _examples(file: Path, fine: bool) -> list[Example]:
    text = _decoded(file)
    lines = [line for line in text.split("\n") if line.strip()]
    if not lines:
        raise ValueError(
            f"{file} is empty; expected texts with their labels, as TREC, CLINC-150, JSONL or CSV have them"
        )
    if lines and TREC_LINE.match(lines[0]):
        return [_trec(line, fine, f"{file}, line {i}") for i, line in enumerate(lines, 1)]
    if fine:
        raise ValueError(f"{file} has no fine classes; only TREC's lines, COARSE:fine text, have")
    if lines and re.match(r"\s*(\{|\[\s*($|\{))", lines[0]):
        return [_json_line(line, f"{file}, line {i}") for i, line in enumerate(lines, 1)]
    return list(_csv(text, file))


def _trec(line: str, fine: bool, where: str) -> Example:
    if not (found := TREC_LINE.match(line)) or found[1] not in COARSE:
        raise ValueError(f"{where}: expected COARSE:fine text with one of {', '.join(COARSE)}, got {line[:60]!r}")
    coarse = COARSE[found[1]]
    return _example(found[3], f"{coarse}: {FINE.get(found[2], found[2])}" if fine else coarse)


def _json_line(line: str, where: str) -> Example:
    try:
        row: dict[str, Any] = json.loads(line)
        return _example(row["text"], row["label"])
    except json.JSONDecodeError as error:
        raise ValueError(f"{where}: expected a JSON object, got no JSON: {error}") from error
    except (ValueError, KeyError, TypeError) as error:
        expected = 'a JSON object with "text", a string, and "label", a string or a number'
        raise ValueError(f"{where}: expected {expected}, got {line[:60]!r}") from error


def _csv(text: str, file: Path) -> Iterator[Example]:
    try:
        rows = list(csv.reader(io.StringIO(text, newline="")))
    except csv.Error as error:
        raise ValueError(f"{file} is no CSV: {error}") from error
    for number, row in enumerate(rows, 1):
        heads = [cell.strip().lower() for cell in row] if number == 1 else []
        if heads and heads[0] in LABELS:
            raise ValueError(f"{file}, row 1: expected a text before its label, got columns called {', '.join(row)}")
        if not row or (heads and (heads[0] == "text" or heads[-1] in LABELS)):
            continue
        if len(row) != 2 or not row[1].strip():
            got = (
                f"{row[0][:60]!r} alone" if len(row) < 3 else f"{len(row)} columns; a text with commas stands in quotes"
            )
            raise ValueError(f"{file}, row {number}: expected a text and its label, got {got}")
        yield _example(row[0], row[1])


def _example(text: Any, label: Any) -> Example:
    """On one line each, the label a string or a number. ValueError: no text, or no label."""
    if not isinstance(text, str) or not isinstance(label, str | int | float) or not str(label).strip("_ \t\r\n"):
        raise ValueError("a text and its label are needed")
    # JSON and Python can write halves of characters, which no tokenizer reads.
    text, label = (str(part).encode(errors="replace").decode() for part in (text, label))
    return Example(" ".join(text.split()), " ".join(label.replace("_", " ").split()))


@cache
def docstring_examples() -> tuple[Example, ...]:
    """Give the first paragraph of each docstring of the standard library with its top-level module.

    Public modules with 20 or more, without test code; paragraphs of under 5 words and those of two modules are left
    out. Takes a few seconds, once.
    """
    root, files = library_files()
    homes: dict[str, set[str]] = {}
    for file in files:
        code, module = file.read_bytes(), file.relative_to(root).parts[0].removesuffix(".py")
        if b'"""' in code and not module.startswith("_"):
            for text in _first_paragraphs(code):
                homes.setdefault(text, set()).add(module)
    examples = [_example(text, *modules) for text, modules in homes.items() if len(modules) == 1]
    counts = Counter(example.label for example in examples)
    return tuple(example for example in examples if counts[example.label] >= FEWEST)


def _first_paragraphs(code: bytes) -> Iterator[str]:
    """Only statements can hold docstrings, so expressions are not walked."""
    try:
        todo: list[ast.AST] = [ast.parse(code)]
    except (SyntaxError, ValueError):
        return
    while todo:
        node = todo.pop()
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            words = re.split(r"\n\s*\n", (ast.get_docstring(node, clean=False) or "").strip())[0].split()
            if len(words) >= WORDS:
                yield " ".join(words)
        inner: Sequence[str] = ("body", "orelse", "handlers", "finalbody")
        todo += [child for field in inner for child in getattr(node, field, ()) if isinstance(child, ast.AST)]
