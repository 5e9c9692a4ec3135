"""A second opinion: another model behind an OpenAI-compatible endpoint says what an answer is."""

import http.client
import json
import os
import re
import urllib.request
from collections.abc import Sequence
from typing import Any

from diffattn.evals.base import Item, Progress, ask
from diffattn.evals.grounding import WRONG, Kind
from diffattn.evals.intervals import share
from diffattn.evals.reader import Sampling, Scored, until
from diffattn.evals.records import Asked

KEY = "DIFFATTN_JUDGE_KEY"
"""The environment variable with the endpoint's key, if it wants one."""
VERDICTS = ("grounded", "wrong", "abstained")
ASK = (
    "Judge an answer by its text alone, in one word.\n"
    "grounded: the text says so. wrong: the text says otherwise, or does not say it. "
    "abstained: it says that it does not know.\n\n"
    "Text: {context}\nQuestion: {question}\nAnswer: {answer}\n\nOne word (grounded, wrong or abstained):"
)
VERDICT = re.compile(rf"(?<![^\W_])(?<!-)(?:{'|'.join(VERDICTS)})(?![^\W_])(?!-\w)")
"""A whole word; "_wrong_" has it, "ungrounded" and "un-grounded" have none."""
NEGATION = re.compile(r"\b(?:no|not|non|never|neither|nor|hardly|cannot|\w+n['’]t)\b")
TOKENS = 16
"""Of a verdict."""
SECONDS = 120
"""That an answer may take."""


def verdict(reply: str) -> str | None:
    """Give the verdict that stands first in a judge's reply; None: none does, or a negation stands before it."""
    found = VERDICT.search(text := reply.casefold())
    return found[0] if found and not NEGATION.search(text[: found.start()]) else None


class Judge:
    """Reads prompts as a `Reader` does, through URL/chat/completions; it writes, and gives no probabilities."""

    context = 1 << 20

    def __init__(self, url: str, model: str) -> None:
        """url: up to and with its version, for instance http://localhost:8000/v1. ValueError: no model is named."""
        if not model:
            raise ValueError("a judge needs its model's name: --hallucination.judge-model")
        self.url, self.model = url.rstrip("/") + "/chat/completions", model
        self.identity = f"{self.url} {model}"

    def count(self, text: str) -> int:
        """Characters; the endpoint knows its tokens."""
        return len(text)

    def score(self, pairs: Sequence[tuple[str, str]]) -> list[Scored]:
        """ValueError: it gives no probabilities."""
        raise ValueError("a judge writes and gives no probabilities")

    def write(self, prompts: Sequence[str], max_new_tokens: int, stops: Sequence[str], how: Sampling) -> list[str]:
        """Ask one by one; ValueError where the endpoint does not answer as expected."""
        return [until(self._reply(prompt, max_new_tokens, how), stops) for prompt in prompts]

    def _reply(self, prompt: str, max_new_tokens: int, how: Sampling) -> str:
        body = {
            "model": self.model,
            "messages": [{"role": "user", "content": prompt}],
            "max_tokens": max_new_tokens,
            "temperature": how.temperature,
        }
        headers = {"Content-Type": "application/json"}
        if key := os.environ.get(KEY):
            headers["Authorization"] = f"Bearer {key}"
        try:
            request = urllib.request.Request(self.url, json.dumps(body).encode(), headers)
            with urllib.request.urlopen(request, timeout=SECONDS) as response:
                return str(json.load(response)["choices"][0]["message"]["content"]).strip()
        except (OSError, http.client.HTTPException, ValueError, KeyError, IndexError, TypeError) as error:
            raise ValueError(
                f"the judge at {self.url} did not answer as an OpenAI-compatible endpoint does: {error!r}"
            ) from error


def second_opinion(
    other: Judge, name: str, asked: Sequence[Asked], texts: Sequence[str], kinds: Sequence[Kind], progress: Progress
) -> dict[str, Any]:
    """Have a judge read answers: what it finds wrong where the context answers, and how often it agrees with the rule.

    Where the rule says "none", abstained counts as agreement; replies that hold no verdict, or deny it, are counted and
    left out.
    """
    # No stop: a judge may begin with an empty line.
    items = [
        Item(
            one.id,
            ASK.format(context=one.context, question=one.question.text, answer=text.strip()),
            max_new_tokens=TOKENS,
            stops=(),
        )
        for one, text in zip(asked, texts, strict=True)
    ]
    found = [verdict(answer.text) for answer in ask(other, f"{name}-judge", items, progress)]
    rule = ["wrong" if kind in WRONG else "abstained" if kind == "none" else kind for kind in kinds]
    both = [(one, mine, given) for one, mine, given in zip(asked, rule, found, strict=True) if given is not None]
    able = [(one.record, given == "wrong") for one, _, given in both if one.answerable]
    agreed = [(one.record, mine == given) for one, mine, given in both]
    return {
        "url": other.url,
        "model": other.model,
        "verdicts": {verdict: found.count(verdict) for verdict in VERDICTS},
        "unreadable": len(asked) - len(both),
        "wrong": _share(able),
        "agreement": _share(agreed),
    }


def _share(hits: Sequence[tuple[int, bool]]) -> dict[str, Any] | None:
    return share([hit for _, hit in hits], [record for record, _ in hits]).to_dict() if hits else None
