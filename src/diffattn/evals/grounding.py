"""Is it in the text? Answers and statements are judged by rule, word by word; what is said first counts."""

import re
from collections.abc import Mapping, Sequence
from itertools import dropwhile, takewhile
from typing import Literal

Kind = Literal["grounded", "misread", "absent", "abstained", "none"]
"""What an answer is: an accepted one; another one that stands in the context; one that does not stand there; a way to
say that it is not known; nothing, that is no word or only the question's."""
KINDS: tuple[Kind, ...] = ("grounded", "misread", "absent", "abstained", "none")
WRONG: tuple[Kind, ...] = ("misread", "absent")

ONES = re.findall(
    r"\w+",
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen "
    "eighteen nineteen",
)
TENS = re.findall(r"\w+", "twenty thirty forty fifty sixty seventy eighty ninety")
SPELT = {str(number): word for number, word in enumerate(ONES)} | {
    str(10 * tens + ones): word + (f"-{ONES[ones]}" if ones else "")
    for tens, word in enumerate(TENS, 2)
    for ones in range(10)
}
"""Numbers from 0 to 99 in words; a text may use either, with the same meaning."""
DIGITS: dict[str, str] = {word: number for number, word in SPELT.items()}

WORD = r"(?:(?<!\w)-(?=\d))?\w+(?:[-'./,:]\w+)*"
"""With what is joined inside it, so that 42 is in none of 142, 42.5, -42 and forty-two-year-old."""
CLAUSE = re.compile(r"[.,;:!?()\"]+(?=\s|$)|\s[-–—]+\s|\n")
FRAME = frozenset(
    re.findall(
        r"\S+",
        "a an the this that these those there here it it's its he she they his her their i i'm we you is are was were "
        "be been am has have had of in on at to for from by with and or as so well sorry think believe which who "
        "answer answers answered according text context passage information says said",
    )
)
"""Words that may stand around an answer."""
ABSTENTIONS = (
    "unknown",
    "unclear",
    "unsure",
    "unanswerable",
    "n/a",
    "not known",
    "not sure",
    "not stated",
    "not mentioned",
    "not given",
    "not specified",
    "not said",
    "not in the text",
    "do not know",
    "don't know",
    "does not say",
    "doesn't say",
    "cannot say",
    "can't say",
    "cannot tell",
    "can't tell",
    "cannot be",
    "no answer",
    "no information",
)
"""Ways to say that something is not known."""

STATEMENT = re.compile(rf"(\w+)['’]s (\w+) is (?:an? |the )?({WORD})", re.IGNORECASE)
Statement = tuple[str, str, str]
"""Of whom, which field, and its value."""


def words(text: str) -> list[str]:
    """Split into words without regard to case, spaces and punctuation; "'s" is dropped, numbers in words are digits."""
    found = [str(word).removesuffix("'s") for word in re.findall(WORD, text.casefold().replace("’", "'"))]
    return [DIGITS.get(word, word) for word in found]


PHRASES = tuple(map(words, ABSTENTIONS))


def said(text: str, question: str) -> list[str]:
    """Give what a text says first: its first run of words that are neither the frame's nor the question's.

    A run ends at such a word and at punctuation.
    """
    skip = FRAME.union(words(question))
    for clause in CLAUSE.split(text):
        run = [*takewhile(lambda w: w not in skip, dropwhile(lambda w: w in skip, words(clause)))]
        if run:
            return run
    return []


def judge(text: str, context: str, question: str, answers: Sequence[str]) -> Kind:
    """Say what an answer is; answers: all that are accepted, none where the context does not hold it.

    An accepted answer or a way to abstain counts where nothing but words of the frame and of the question stands before
    it, whole words only; whatever follows does not count. Else the first run of other words (`said`) is looked for in
    the context, word by word in the same order.
    """
    given, skip = words(text), FRAME.union(words(question))
    first = next((i for i, word in enumerate(given) if word not in skip), len(given))

    def begins(phrase: list[str]) -> bool:
        return any(given[i : i + len(phrase)] == phrase for i in range(first + 1))

    if any(begins(words(answer)) for answer in answers):
        return "grounded"
    if any(map(begins, PHRASES)):
        return "abstained"
    if not (run := said(text, question)):
        return "none"
    there = words(context)
    return "misread" if any(there[i : i + len(run)] == run for i in range(len(there))) else "absent"


def statements(text: str) -> list[Statement]:
    """Find all statements of the form "X's field is value", in order; the value is one word."""
    found = (map(words, match) for match in STATEMENT.findall(text))
    return [(whose[0], field[0], value[0]) for whose, field, value in found]


def told(text: str) -> dict[tuple[str, str], str]:
    """Give the value of each field that a text states."""
    return {(whose, field): value for whose, field, value in statements(text)}


def judge_statement(statement: Statement, facts: Mapping[tuple[str, str], str]) -> Kind:
    """Say what a statement is, given all facts of its context; "is not" whatever counts as abstained."""
    whose, field, value = statement
    if facts.get((whose, field)) == value:
        return "grounded"
    if value in ("unknown", "unclear", "not"):
        return "abstained"
    return "misread" if value in facts.values() else "absent"


def paraphrases(value: str, question: str) -> tuple[str, ...]:
    """Give ways to state a value, each a whole line, so that no two can be said at once and probabilities add up.

    As it is and capitalised, with and without a full stop, a number in digits and in words; and where the question is
    "X's field?", as "X's field is value."
    """
    spelt = [value, SPELT[value]] if value in SPELT else [value]
    cased = [form for one in spelt for form in (one, one.capitalize(), one.title())]
    lines = [form + end for form in cased for end in ("", ".")]
    if re.fullmatch(r"\w+'s \w+\?", question):
        lines += [f"{question[:-1]} is {one}." for one in spelt]
    return tuple(dict.fromkeys(f" {line}\n" for line in lines))
