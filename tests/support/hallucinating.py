"""Planted models that answer questions about generated records as a trained one would, or as badly."""

from typing import Any

from diffattn.evals.base import Progress, Result
from diffattn.evals.grounding import told
from diffattn.evals.hallucination import Hallucination

PLAIN = Hallucination(records=8, what=())


def run(reader: Any, task: Hallucination = PLAIN, limit: int | None = None, seed: int = 0) -> Result:
    return task.run(reader, limit, seed, Progress(quiet=True))


def asked(prompt: str) -> tuple[str, str]:
    """Of whom, and which field, a prompt asks at its end."""
    whose, field = prompt.rsplit("Q: ", 1)[1].removesuffix("?\nA:").casefold().split("'s ")
    return whose, field


def copies(prompt: str) -> str:
    """Look it up, or say unknown; or tell all of the one that is to be summed up."""
    facts = told(prompt)
    if (question := prompt.rsplit("Q: ", 1)[1]).startswith("Facts of "):
        name = question.removeprefix("Facts of ").removesuffix("?\nA:")
        found = [f"{name}'s {field} is {value}." for (whose, field), value in facts.items() if whose == name.casefold()]
        return " " + " ".join(found) + "\nmore"
    return f" {facts.get(asked(prompt), 'unknown')}\nQ: more?"


def misreads(prompt: str) -> str:
    """Give a value of something else."""
    facts = told(prompt)
    right = facts.get(asked(prompt))
    return next(f" {value}." for (whose, _), value in facts.items() if value != right and whose != "ann")


def shares(result: Result, part: str) -> dict[str, float]:
    found = result.parts[part]
    return {kind: found[kind]["value"] for kind in ("grounded", "misread", "absent", "abstained", "none")}
