"""Is it in the text? Answers and statements are judged by rule, word by word; what is said first counts."""

import re
import unicodedata
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

MARKS = "".join(chr(i) for i in range(0x300, 0x10000) if unicodedata.category(chr(i)) in ("Mn", "Mc"))
"""Accents and vowel signs that are characters of their own: parts of a word, which Python's word characters are not."""
WORD = rf"(?:(?<!\w)[-−](?=\.?\d))?(?:(?<![\w.])\.(?=\d))?[\w{MARKS}]+(?:[-'./,:][\w{MARKS}]+)*"
"""With what is joined to it, so that 42 is in none of 142, 42.5, .42, -42 and forty-two-year-old."""
TYPED = str.maketrans("’−", "'-")
"""An apostrophe and a minus as printed, and as typed."""
CLAUSE = re.compile(r"[.,;:!?()\"]+(?=\s|$)|\s[-–—]+\s|\n")
GUESS = re.compile(r"\b(?:perhaps|maybe|possibly|probably|presumably|likely|guess)\b", re.IGNORECASE)
"""After an abstention, what follows such a word is the answer."""
FRAME = frozenset(
    re.findall(
        r"\S+",
        "a an the this that these those there here it it's its he she they his her their i i'm we you is are was were "
        "be been am has have had of in on at to for from by with and or as so well sorry think believe which who "
        "answer answers answered according text context passage information says said "
        "perhaps maybe possibly probably presumably likely guess",
    )
)
"""Words that may stand around an answer."""
SOURCE = frozenset(
    re.findall(
        r"\w+", "about any author article details document given mentions paragraph provided record states story"
    )
)
"""Words that may stand around an abstention as well, as in "the article does not say"."""

NOT = r"(?:(?:(?:do|does|did|can|could) )?not|never|cannot|\w+n't) (?:(?:\w+ly|yet|even|be|been|being) )*"
TOLD = (
    r"(?:sa(?:y|ys|id)|stat(?:e|es|ed)|mention(?:s|ed)?|give(?:s|n)?|provide[sd]?|specif(?:y|ies|ied)|tell|told|"
    r"describe[sd]?|indicate[sd]?|disclosed?|discuss(?:ed)?|list(?:ed)?|include[sd]?|contain(?:s|ed)?|appear|"
    r"know|known|clear|sure|certain|found|find|available|answer(?:ed|able)?|possible to|able to|"
    r"determined?|inferr?(?:ed)?|identif(?:y|ied)|established|deduced?|concluded?)"
)
TEXT = r"(?:text|context|passage|paragraph|document|article|record|story)"
NEWS = r"(?:mention|information|info|context|idea|answer|clue|data|details?|reference|indication)"
ABSTENTION = re.compile(
    rf"(?:{NOT}{TOLD}|{NOT}(?:in|from|part of) (?:the |this |that )?(?:\w+ )?{TEXT}"
    rf"|{NOT}(?:have )?(?:enough|sufficient|any) {NEWS}|no (?:such |clear |direct |specific |further )?{NEWS}"
    rf"|insufficient {NEWS}|nothing (?:is |was )?(?:about|on|said|stated|mentioned)|(?:nobody|no-one|no 1) knows"
    r"|(?:unable|impossible|no way) to \w+|n/a|idk"
    r"|un(?:known|clear|sure|certain|specified|stated|mentioned|available|determined|disclosed|answerable))(?!\S)"
)
"""Ways to say that something is not known, in words as `words` gives them."""
ALONE = (["none"], ["nothing"])
"""These say so where they are all that is said first."""

STATEMENT = re.compile(rf"(\w+)['’]s (\w+) is (?:an? |the )?+({WORD})", re.IGNORECASE)
Statement = tuple[str, str, str]
"""Of whom, which field, and its value."""


def words(text: str) -> list[str]:
    """Split into words without regard to case, spaces and punctuation; "'s" is dropped, numbers in words are digits.

    An accent may be a character of its own or not.
    """
    plain = unicodedata.normalize("NFC", text.casefold()).translate(TYPED)
    found = [str(word).removesuffix("'s") for word in re.findall(WORD, plain)]
    return [DIGITS.get(word, word) for word in found]


def cut(text: str, characters: int) -> str:
    """Cut a text at so many characters, before a word that would be cut; only a first word is cut itself."""
    whole = re.match(rf"(?s:.{{1,{characters}}})(?=[.,;:!?)\"'’”]*(?:\s|\Z))", text)
    return whole[0] if whole else text[:characters]


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


def claim(text: str, question: str) -> str:
    """Give what a text claims: all of it, or what stands behind the first guess where it abstains before."""
    before, *guessed = GUESS.split(text, 1)
    guesses = guessed and said(guessed[0], question) and _abstains(before, question, [])
    return claim(guessed[0], question) if guesses else text


def judge(text: str, context: str, question: str, answers: Sequence[str]) -> Kind:
    """Say what an answer is; answers: all that are accepted, none where the context does not hold it.

    An accepted answer or an abstention counts where nothing but words of the frame and of the question stands before
    it, whole words only; whatever follows does not count, but a guess after an abstention. Else the first run of other
    words (`said`) is looked for in the context, word by word in the same order.
    """
    text = claim(text, question)
    given, there = words(text), words(context)
    first = _first(given, FRAME.union(words(question)))
    for answer in filter(None, map(words, answers)):
        if any(given[i : i + len(answer)] == answer for i in range(first + 1)):
            return "grounded"
    if _abstains(text, question, there):
        return "abstained"
    if not (run := said(text, question)):
        return "none"
    return "misread" if _holds(there, run) else "absent"


def _abstains(text: str, question: str, there: list[str]) -> bool:
    """Whether a text begins with an abstention; a longer run that stands in the context is none: "unknown soldier"."""
    given, run, skip = words(text), said(text, question), FRAME.union(words(question))
    if run in ALONE:
        return True
    first = _first(given, skip)
    for begin in range(_first(given, skip | SOURCE) + 1):
        if found := ABSTENTION.match(" ".join(given[begin:])):
            end = begin + len(found[0].split())
            # What repeats a question that asks for something unknown is no abstention.
            repeats = end <= first < len(given)
            return not repeats and not (end < first + len(run) and _holds(there, run))
    return False


def _first(given: list[str], skip: frozenset[str]) -> int:
    return next((i for i, word in enumerate(given) if word not in skip), len(given))


def _holds(there: list[str], run: list[str]) -> bool:
    return any(there[i : i + len(run)] == run for i in range(len(there)))


def statements(text: str) -> list[Statement]:
    """Find all statements of the form "X's field is value", in order; the value is one word."""
    found = (map(words, match) for match in STATEMENT.findall(text))
    return [(whose[0], field[0], value[0]) for whose, field, value in found]


def told(text: str) -> dict[tuple[str, str], str]:
    """Give the value of each field that a text states."""
    return {(whose, field): value for whose, field, value in statements(text)}


def judge_statement(statement: Statement, facts: Mapping[tuple[str, str], str]) -> Kind:
    """Say what a statement is, given all facts of its context; "is not" and "is none" whatever count as abstained."""
    whose, field, value = statement
    if facts.get((whose, field)) == value:
        return "grounded"
    if value in ("not", "never", "none") or ABSTENTION.fullmatch(value):
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
