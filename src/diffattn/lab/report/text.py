"""report.json's dictionary -> Markdown, for a terminal or a pull request."""

from typing import Any

from diffattn.lab.report import captions
from diffattn.lab.report.across import across_table
from diffattn.lab.report.answers import answer_table, guess_words
from diffattn.lab.report.beside import beside_table, beside_words
from diffattn.lab.report.evidence import evidence_table, evidence_words
from diffattn.lab.report.glossary import glossary
from diffattn.lab.report.inside import arms, inside_words
from diffattn.lab.report.markdown import plain, table
from diffattn.lab.report.numbers import inside_tables
from diffattn.lab.report.pictured import pictured_table
from diffattn.lab.report.tables import arm_tables
from diffattn.lab.report.words import claims, count, parted, rate, status_words

Json = dict[str, Any]


def render_text(report: Json) -> str:
    """The verdicts, the tables, what was not equal and what the words mean, as Markdown."""
    body = render_body(report)
    meanings = [f"- **{word}**: {plain(meaning)}." for word, meaning in glossary(body)]
    return "\n".join([body, "## Words", "", *meanings, ""])


def render_body(report: Json) -> str:
    """All but the meanings of words."""
    plan = report["plan"]
    parts = [f"# {plain(plan['name'])}", *(plain(plan[key] or "") for key in ("question", "description", "limits"))]
    parts += [f"{status_words(report)}.", "## Verdicts"]
    for name, task in report["tasks"].items():
        parts.append(f"**{plain(name)}** ({task['progress']})")
        parts += _verdicts(task)
    for name, task in report["tasks"].items():
        parts += _task(name, task)
    if any(arms(task) for task in report["tasks"].values()):
        parts.append(f"Of the numbers from inside the models: {plain(' '.join(captions.INSIDE.split()))}")
    if report["across"]:
        parts.append("## Across the tasks")
    for found in report["across"]:
        parts += [plain(found["sentence"]), table(across_table(found))]
    parts += ["## Failed runs", _failed(report["failed"]), "## Repeat it"]
    parts += ["With the command on the path after `source .venv/bin/activate`:"]
    parts += ["\n".join(f"    {command}" for command in report["commands"] if command)]
    parts += ["\n".join(_environment(env) for env in report["environments"]) or "No run has begun."]
    return "\n\n".join(part for part in parts if part) + "\n"


def _verdicts(task: Json) -> list[str]:
    """The claims in a list, and below it once what all of them are true of."""
    found = task["findings"]
    if not found:
        return ["No verdict yet: no seed is finished both in the baseline and in another arm."]
    told, once = claims(found)
    told += [parted(contrast)[0] for contrast in task["contrasts"]]
    judged = zip((*found, *task["contrasts"]), told, strict=True)
    lines = [f"- **{finding['verdict']}** {plain(claim)}" for finding, claim in judged]
    return ["\n".join(lines), plain(once), plain(parted(found[0])[1])]


def _task(name: str, task: Json) -> list[str]:
    machine = f" {task['hardware']}." if task["hardware"] else ""
    lead = f"{task['data']}. {task['model']}. {count(task['tokens'])} tokens a run; {task['learning_rate_policy']}."
    not_equal = "\n".join(f"- {plain(arm)}: {plain(words)}" for arm, words in task["not_equal"].items())
    seeds = [f"- {plain(arm)}: {_seeds(numbers)}" for arm, numbers in task["arms"].items()]
    return [
        f"## {plain(name)}",
        plain(lead) + machine,
        *(table(one) for one in arm_tables(task)),
        f"Final loss by seed (nats per token, {task['split']}):\n\n" + "\n".join(seeds),
        plain(guess_words(task)),
        *([table(told)] if (told := answer_table(task)) else []),
        *([table(asked), plain(beside_words(task))] if (asked := beside_table(task)) else []),
        *([table(seen)] if (seen := evidence_table(task)) else []),
        plain(evidence_words(task)),
        *_inside(task),
        "What was not equal:\n\n" + (not_equal or "- nothing that this report measures"),
    ]


def _inside(task: Json) -> list[str]:
    """What the instruments found in finished models; nothing where none was looked into."""
    if not arms(task):
        return []
    pictured = pictured_table(task)
    shown = [table(one) for one in ([pictured] if pictured else []) + inside_tables(task)]
    return ["### Inside the models (exploratory)", plain(inside_words(task)), *shown]


def _seeds(arm: Json) -> str:
    ended = [
        f"seed {seed} {numbers['final_loss']:.4f}"
        if numbers["final_loss"] is not None
        else f"seed {seed} {numbers['status']}"
        for seed, numbers in arm["seeds"].items()
    ]
    return ", ".join(ended)


def _failed(runs: list[Json]) -> str:
    lines = []
    for run in runs:
        where = "" if run["layer"] is None else f", beginning in {run['layer']}"
        ended = (
            "loss not finite from" if run["loss"] is None else f"loss {run['loss']:.3f}, too far above the baseline, at"
        )
        what = f"{ended} step {count(run['step'])}{where}, learning rate {rate(run['learning_rate'])}"
        lines.append(f"- {plain(run['folder'])}: {what}")
    return "\n".join(lines) or "None."


def _environment(env: Json) -> str:
    shown = [f"{key} {plain(str(env[key]))}" for key in env if key not in ("runs", "peak_gflops")]
    low, high = env["peak_gflops"]
    speed = "" if low is None else f", measured peak {low:.0f} to {high:.0f} GFLOP/s"
    return f"- {env['runs']} runs: {', '.join(shown)}{speed}"
