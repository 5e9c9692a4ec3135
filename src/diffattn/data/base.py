"""What training and evaluation know about data: two configs, a batch, and the interface behind both.

No torch is imported here, so that recipes and `--help` stay instant.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, Protocol, runtime_checkable

if TYPE_CHECKING:
    from torch import Tensor

Split = Literal["dev", "test"]
NOT_SCORED = -100
"""Target of a position that carries no loss."""


class DataError(ValueError):
    """A source, tokenizer or prepared folder that cannot be used; the message says what to do."""


class Batch(NamedTuple):
    """Tokens, what each should predict, and which document each belongs to: all [B, T] int64.

    A target of -100 is not scored. Document ids count through a whole split, so the ids of an evaluation name the same
    document in every batch.
    """

    tokens: Tensor
    targets: Tensor
    documents: Tensor

    @property
    def mixed(self) -> Tensor | None:
        """The documents; None where no window holds two, so that no mask is paid for where nothing is kept apart."""
        whole = bool((self.documents == self.documents[:, :1]).all()) and bool((self.documents[:, 0] >= 0).all())
        return None if whole else self.documents


class Question(NamedTuple):
    """A kind of question; where the kinds of one unit are steps of a quantity, `place` is how much of it."""

    name: str
    unit: str = ""
    place: float | None = None


class Grade(NamedTuple):
    """Which kind of question was answered, which kind of answer was given, and how likely a guess is right."""

    question: int
    answer: int
    guess: float


@dataclass(frozen=True, kw_only=True)
class Grader:
    """How the questions of a task are told apart, and its wrong answers, by whoever reads what stands before them."""

    questions: tuple[Question, ...]
    answers: tuple[str, ...]
    """Kinds of answers; the first is the right one."""
    grade: Callable[[Sequence[int], int, int], Grade]
    """From the tokens up to the question, the right answer and the given one. A guess knows the task and which values
    stand before the question, but not which of them belongs to what."""


@dataclass(frozen=True, kw_only=True)
class TextData:
    """Real text: files, a data set by name, or Python's own standard library."""

    kind: ClassVar[str] = "text"

    source: str = "stdlib"
    """File, folder or glob (text, .jsonl, .parquet); "stdlib": Python's own; "hf:owner/name[:config]": the hub's."""
    tokenizer: str = "bytes"
    """Either "bytes" (257 ids), "bpe" (byte-level, trained on the training split) or a tokenizer.json's path."""
    vocab_size: int = 8192
    """Ids of the trained tokenizer, end-of-text included ("bpe" only)."""
    text_field: str = "text"
    """The column that holds the text, in .jsonl, .parquet and Hugging Face data sets."""
    limit_bytes: int | None = None
    """Use only the first so many bytes of text."""

    def to_dict(self) -> dict[str, Any]:
        """All fields and the kind, ready for JSON."""
        return {"kind": self.kind, **asdict(self)}


@dataclass(frozen=True, kw_only=True)
class SyntheticData:
    """Tasks that only attention solves, drawn without end."""

    kind: ClassVar[str] = "synthetic"

    task: Literal[
        "recall", "induction", "needle", "needle_small", "many_shot_small", "hallucination_small", "unlearn"
    ] = "recall"
    """Values by key (recall), a passage of random length repeated (induction), facts hidden in noise (needle; with
    lookalikes: needle_small), labels by example (many_shot_small), questions without an answer (hallucination_small),
    facts that are contradicted (unlearn)."""
    keys: int | None = None
    """Symbols that can be keys; None: 64 for needle (its noise), induction (its alphabet) and many_shot_small (its
    inputs), 32 for the others."""
    values: int | None = None
    """Symbols that can be values; None: 64 for needle, 4 for many_shot_small (its labels), 32 for the others. Induction
    has none."""
    pairs: int | None = None
    """Most key-value pairs in one sequence; None: 16 for recall and many_shot_small, 4 for needle, 6 for needle_small,
    12 for hallucination_small, 8 for unlearn. Induction has none."""
    queries: int | None = None
    """Questions at the end of a sequence; None: 4 for needle, 2 for needle_small. The others ask for each pair once,
    many_shot_small all along."""
    heldout_sequences: int = 1024
    """Sequences of dev, and as many of test."""

    def to_dict(self) -> dict[str, Any]:
        """All fields and the kind, ready for JSON."""
        return {"kind": self.kind, **asdict(self)}


def data_from_dict(values: Mapping[str, Any]) -> TextData | SyntheticData:
    """The config that `to_dict` wrote; ValueError for an unknown kind or field, with the nearest name."""
    kinds = {config.kind: config for config in (TextData, SyntheticData)}
    kind = values.get("kind")
    if kind not in kinds:
        raise ValueError(f"unknown kind of data {kind!r}{nearest(str(kind), list(kinds))}; known: {', '.join(kinds)}")
    known = [field.name for field in fields(kinds[kind])]
    for name in values:
        if name != "kind" and name not in known:
            raise ValueError(f"{kind} data has no field {name!r}{nearest(name, known)}; known: {', '.join(known)}")
    return kinds[kind](**{name: value for name, value in values.items() if name != "kind"})


def nearest(name: str, known: Sequence[str]) -> str:
    """'; did you mean ...?' for an error message, or nothing when no known name is close."""
    match = difflib.get_close_matches(name, known, n=1)
    return f"; did you mean {match[0]!r}?" if match else ""


@runtime_checkable
class Data(Protocol):
    """A training stream and its held-out splits; every method is a pure function of its arguments."""

    @property
    def config(self) -> TextData | SyntheticData: ...
    @property
    def vocab_size(self) -> int: ...
    @property
    def fingerprint(self) -> dict[str, str | int]:
        """What a checkpoint must agree with: source, tokenizer, vocab_size."""
        ...

    @property
    def train_tokens(self) -> int | None:
        """Tokens of the training split; None where sequences are drawn without end."""
        ...

    @property
    def token_bytes(self) -> Tensor | None:
        """[V] int64 bytes of text behind each id (0 for end-of-text); None where bits per byte mean nothing."""
        ...

    @property
    def grader(self) -> Grader | None:
        """How answers are told apart; None where there is nothing to tell."""
        ...

    def batch(self, step: int) -> Batch:
        """The training batch of this step (from 0), the same whenever and wherever it is asked for."""
        ...

    def evaluation(self, split: Split, tokens: int | None = None) -> Iterator[Batch]:
        """The held-out split in fixed order, whatever the run's seed; `tokens`: about so many, spread over it."""
        ...

    def heldout_tokens(self, split: Split) -> int:
        """Tokens of all that `evaluation` gives of the split."""
        ...

    def describe(self) -> str:
        """One line for captions."""
        ...

    def decode(self, ids: Sequence[int] | Tensor) -> str:
        """The text of the ids."""
        ...

    def labels(self, ids: Sequence[int] | Tensor) -> list[str]:
        """A printable name of each id, for the axes of attention maps."""
        ...

    def sentence(self) -> Tensor:
        """A short held-out passage, [T] int64: at most 32 tokens of text, or one synthetic dev sequence."""
        ...
