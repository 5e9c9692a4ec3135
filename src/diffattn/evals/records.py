"""Questions that a text answers or does not: generated records whose every fact is known, or a file of questions."""

import hashlib
import json
import random
import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

from diffattn.evals.facts import cities
from diffattn.evals.grounding import Kind, cut, judge, words
from diffattn.evals.reader import Reader

GENERATED = "records"
"""The name of the built-in data."""
FIELDS: dict[str, Sequence[str]] = {
    "colour": re.findall(r"\w+", "red blue green black white yellow purple grey brown silver"),
    "pet": re.findall(r"\w+", "dog cat horse rabbit parrot goat hamster turtle snake duck"),
    "drink": re.findall(r"\w+", "tea coffee milk juice water cider cocoa beer wine soda"),
    "job": re.findall(r"\w+", "baker farmer tailor nurse pilot lawyer painter miner sailor judge"),
    "tool": re.findall(r"\w+", "hammer saw drill knife shovel axe rake needle brush ladder"),
    "fruit": re.findall(r"\w+", "apple pear plum cherry lemon grape banana melon peach mango"),
    "age": [str(number) for number in range(10, 100)],
    "room": [str(number) for number in range(100, 1000)],
}
"""Values of each field; none stands in two of them."""
ANSWERABLE, UNANSWERABLE = 3, 1
"""Questions about each generated record."""
MOST_FACTS = 2 * len(FIELDS) - UNANSWERABLE
"""Of two people, so that something is left that is not told."""
UNKNOWN = "unknown"
LINE = '{"context": text, "question": text, "answers": [text, ...]}'
"""Of a file of questions."""

SHOWN = "Ann's age is 8."
QUESTION_LEAD = "Answer from the text, or say unknown.\n\n"
QUESTION_LEADS = (
    f"{QUESTION_LEAD}{SHOWN}\nQ: Ann's age?\nA: 8\nQ: Ann's pet?\nA: {UNKNOWN}\n\n",
    QUESTION_LEAD,
    "",
)
"""What stands before the text: the first that leaves room for it. What they show is true of no record."""
SUMMARY_LEAD = "Answer from the text.\n\n"
SUMMARY_LEADS = (f"{SUMMARY_LEAD}{SHOWN}\nQ: Facts of Ann?\nA: {SHOWN}\n\n", SUMMARY_LEAD, "")


class Question(NamedTuple):
    """What is asked about a record."""

    text: str
    answers: tuple[str, ...]
    """All that are accepted; none: the record does not answer it."""
    options: tuple[str, ...] = ()
    """Answers to choose between: values of the record, one that no record of its context needs to have, unknown."""


@dataclass(frozen=True)
class Record:
    """A paragraph and the questions about it."""

    paragraph: str
    questions: tuple[Question, ...]
    names: tuple[str, ...]
    """Two records that share one never stand in one context."""
    named: bool = True
    """Each question names whom it asks about, so that no other record answers it."""

    @cached_property
    def asks(self) -> frozenset[str]:
        """Its questions, word by word."""
        return frozenset(" ".join(words(question.text)) for question in self.questions)

    @cached_property
    def _told(self) -> str:
        return f" {' '.join(words(self.paragraph))} "

    @cached_property
    def _accepted(self) -> list[str]:
        return [f" {' '.join(words(answer))} " for question in self.questions for answer in question.answers]

    def admits(self, other: "Record") -> bool:
        """Whether another's paragraph may stand in its context: it can be no answer to what is asked about this one.

        It was not asked the same, and holds no accepted answer.
        """
        return self.asks.isdisjoint(other.asks) and (self.named or all(a not in other._told for a in self._accepted))


@dataclass(frozen=True)
class Asked:
    """A question with its context, as a model reads it."""

    record: int
    context: str
    """Its record's paragraph, and those of others."""
    prompt: str
    question: Question

    @property
    def id(self) -> str:
        """The same for two models only where they read the very same."""
        return hashlib.blake2b(self.prompt.encode(errors="replace"), digest_size=8).hexdigest()

    @property
    def answerable(self) -> bool:
        """The context holds the answer."""
        return bool(self.question.answers)

    def judge(self, text: str) -> Kind:
        """Say what an answer is."""
        return judge(text, self.context, self.question.text, self.question.answers)


class Prepared(NamedTuple):
    """Records in their contexts, and how they were made to fit."""

    records: list[Record]
    contexts: list[str]
    lead: str
    facts: int | None
    """Of each generated record."""
    left_out: int
    """Records of a file that do not fit."""
    short: frozenset[int]
    """Records whose contexts have fewer distractors than were asked for."""

    def asked(self) -> list[Asked]:
        """Give all questions, record by record."""
        return [
            Asked(number, context, self.lead + question_prompt(context, question.text), question)
            for number, (record, context) in enumerate(zip(self.records, self.contexts, strict=True))
            for question in record.questions
        ]


def question_prompt(context: str, question: str) -> str:
    """Write a context and a question so that the answer is the rest of the line."""
    return f"{context}\nQ: {question}\nA:"


def generated(count: int, facts: int, seed: int) -> list[Record]:
    """Draw records of two people, with so many facts "X's field is value." together and no value told twice.

    Three questions about each record ask for told facts, one for a field that is told of nobody or of the other one.
    """
    return [_generated(random.Random(f"{seed}/{number}"), facts) for number in range(count)]


def _generated(draw: random.Random, facts: int) -> Record:
    people = cities(draw, 2)
    fields = [(people[0], field) for field in draw.sample(list(FIELDS), (facts + 1) // 2)]
    fields += [(people[1], field) for field in draw.sample(list(FIELDS), facts // 2)]
    known: dict[tuple[str, str], str] = {}
    for key in fields:
        known[key] = _new(draw, key[1], known.values())
    draw.shuffle(fields)
    untold = [key for key in product(people, FIELDS) if key not in known]
    asked = [*draw.sample(fields, ANSWERABLE), *draw.sample(untold, UNANSWERABLE)]
    questions: list[Question] = []
    for name, field in asked:
        options = [*known.values(), _new(draw, field, known.values()), UNKNOWN]
        draw.shuffle(options)
        answers = (known[name, field],) if (name, field) in known else ()
        questions.append(Question(f"{name}'s {field}?", answers, tuple(options)))
    sentences = [f"{name}'s {field} is {known[name, field]}." for name, field in fields]
    return Record(" ".join(sentences), tuple(questions), tuple(people))


def _new(draw: random.Random, field: str, taken: Collection[str]) -> str:
    while (value := draw.choice(FIELDS[field])) in taken:
        pass
    return value


def from_file(path: str, count: int, seed: int, characters: int) -> list[Record]:
    """Draw so many contexts of a JSONL file, with all questions about each.

    A line is {"context": text, "question": text, "answers": [text, ...]}; without answers the context does not hold it.
    An accepted answer is cut at so many characters, as what a model writes is, with the space before it. A line that
    stands there twice counts once. ValueError: no such file, none or other lines, or a question asked twice of a
    context with other answers.
    """
    if not Path(path).is_file():
        raise ValueError(f'no questions at {path!r}; expected "{GENERATED}" or a JSONL file')
    found: dict[str, dict[str, tuple[int, Question]]] = {}
    for number, context, question in _lines(Path(path)):
        first, same = found.setdefault(context, {}).setdefault(question.text, (number, question))
        if {*same.answers} != {*question.answers}:
            raise ValueError(
                f"{path}, line {number}: asks what line {first} asks of the same context, {question.text[:60]!r}, with "
                "other answers; expected one line with all that are accepted"
            )
    if not found:
        raise ValueError(f"{path} holds no question; expected a line for each, {LINE}")
    records = [
        Record(context, tuple(_shortened(question, characters) for _, question in some.values()), (context,), False)
        for context, some in found.items()
    ]
    random.Random(str(seed)).shuffle(records)
    return records[:count]


def _shortened(question: Question, characters: int) -> Question:
    return question._replace(
        answers=tuple(cut(f" {answer.strip()}", characters).strip() for answer in question.answers)
    )


def _lines(file: Path) -> Iterator[tuple[int, str, Question]]:
    for number, raw in enumerate(file.read_bytes().split(b"\n"), 1):
        try:
            line = raw.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            raise ValueError(f"{file}, line {number}: expected UTF-8, got {raw[error.start : error.end]!r}") from error
        if not line.strip():
            continue
        try:
            row: dict[str, Any] = json.loads(line)
            context, question, answers = (row[name] for name in ("context", "question", "answers"))
            if not isinstance(answers, list):
                raise TypeError("not a list")
            # JSON can write halves of characters, which no tokenizer reads.
            context, question, *answers = (
                one.encode(errors="replace").decode() for one in (context, question, *answers)
            )
            one_line = re.sub(r"\s+", " ", question).strip()
            if not all(map(words, [one_line, *answers])):
                raise ValueError("no word")
            found = number, context.strip(), Question(one_line, tuple(answers))
        except json.JSONDecodeError as error:
            raise ValueError(f"{file}, line {number}: expected {LINE}, got no JSON: {error}") from error
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ValueError(
                f"{file}, line {number}: expected {LINE} with a word in the question and in each answer, got "
                f"{line[:60]!r}"
            ) from error
        yield found


def prepare(
    reader: Reader, data: str, count: int, facts: int, distractors: int, characters: int, seed: int
) -> Prepared:
    """Make records fit a model's context with the answer's characters, a token each at worst.

    Generated ones have fewer facts, down to 3, where there is no room, and then no example before them; from a file
    those that fit are taken. Then other records' paragraphs come in that answer nothing (`Record.admits`), as many as
    fit, in any order. ValueError: nothing fits, or no such data.
    """
    built_in = data == GENERATED
    sizes = [*range(facts, ANSWERABLE - 1, -1)] if built_in else [None]
    drawn = cache(lambda n: from_file(data, count, seed, characters) if n is None else generated(count, n, seed))
    for lead, size in product(QUESTION_LEADS, sizes):
        records = drawn(size)
        fit = [record for record in records if _fits(reader, lead, record.paragraph, record, characters)]
        # The last lead is none at all.
        wanted = len(records) if built_in else len(records) / 2 if lead else 1
        if fit and len(fit) >= wanted:
            draw = random.Random(f"{seed}/distractors")
            found = [_context(reader, lead, record, fit, distractors, characters, draw) for record in fit]
            contexts, added = zip(*found, strict=True)
            short = frozenset(record for record, many in enumerate(added) if many < distractors)
            return Prepared(fit, [*contexts], lead, size, len(records) - len(fit), short)
    least = f"{ANSWERABLE} facts" if built_in else "a context"
    raise ValueError(
        f"hallucination: the model's context of {reader.context} tokens does not hold {least} of {data}, a question "
        f"and an answer of {characters} characters"
    )


def _fits(reader: Reader, lead: str, context: str, record: Record, characters: int) -> bool:
    prompts = (lead + question_prompt(context, question.text) for question in record.questions)
    return all(reader.count(prompt) + characters <= reader.context for prompt in prompts)


def _context(
    reader: Reader, lead: str, record: Record, all_: Sequence[Record], most: int, characters: int, draw: random.Random
) -> tuple[str, int]:
    """Add paragraphs of other records while they fit, and count them; the record's own stands anywhere among them."""
    used, paragraphs = set(record.names), [record.paragraph]
    others = [other for other in all_ if other is record or record.admits(other)]
    for other in draw.sample(others, min(len(others), 4 * most)):
        if len(paragraphs) > most:
            break
        if used.isdisjoint(other.names):
            longer = [*paragraphs]
            longer.insert(draw.randint(0, len(paragraphs)), other.paragraph)
            if _fits(reader, lead, "\n".join(longer), record, characters):
                used.update(other.names)
                paragraphs = longer
    return "\n".join(paragraphs), len(paragraphs) - 1
