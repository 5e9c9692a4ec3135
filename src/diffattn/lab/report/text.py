"""report.json's dictionary -> Markdown, for a terminal or a pull request."""

from typing import Any

from diffattn.lab.report.across import across_table
from diffattn.lab.report.answers import answer_table, guess_words
from diffattn.lab.report.beside import beside_table, beside_words
from diffattn.lab.report.evidence import evidence_table, evidence_words
from diffattn.lab.report.tables import Table, arm_tables
from diffattn.lab.report.words import claims, count, parted, rate, status_words

Json = dict[str, Any]


def render_text(report: Json) -> str:
    """The verdicts, the tables and what was not equal, as Markdown."""
    plan = report["plan"]
    parts = [f"# {_plain(plan['name'])}", *(_plain(plan[key] or "") for key in ("question", "description", "limits"))]
    parts += [f"{status_words(report)}.", "## Verdicts"]
    for name, task in report["tasks"].items():
        parts.append(f"**{_plain(name)}** ({task['progress']})")
        parts += _verdicts(task)
    for name, task in report["tasks"].items():
        parts += _task(name, task)
    if report["across"]:
        parts.append("## Across the tasks")
    for found in report["across"]:
        parts += [_plain(found["sentence"]), _table(across_table(found))]
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
    lines = [f"- **{finding['verdict']}** {_plain(claim)}" for finding, claim in judged]
    return ["\n".join(lines), _plain(once), _plain(parted(found[0])[1])]


def _task(name: str, task: Json) -> list[str]:
    machine = f" {task['hardware']}." if task["hardware"] else ""
    lead = f"{task['data']}. {task['model']}. {count(task['tokens'])} tokens a run; {task['learning_rate_policy']}."
    not_equal = "\n".join(f"- {_plain(arm)}: {words}" for arm, words in task["not_equal"].items())
    seeds = [f"- {_plain(arm)}: {_seeds(numbers)}" for arm, numbers in task["arms"].items()]
    return [
        f"## {_plain(name)}",
        _plain(lead) + machine,
        *(_table(table) for table in arm_tables(task)),
        f"Final loss by seed (nats per token, {task['split']}):\n\n" + "\n".join(seeds),
        guess_words(task),
        *([_table(told)] if (told := answer_table(task)) else []),
        *([_table(asked), _plain(beside_words(task))] if (asked := beside_table(task)) else []),
        *([_table(seen)] if (seen := evidence_table(task)) else []),
        evidence_words(task),
        "What was not equal:\n\n" + (not_equal or "- nothing that this report measures"),
    ]


def _table(table: Table) -> str:
    """Quantities as rows and arms as columns, or the other way round where there are more arms than quantities."""
    names = [_plain(name) for name, _, _ in table.rows]
    notes = [_plain(f" ({words})") if words else "" for _, words, _ in table.rows]
    columns = [column for _, columns in table.groups for column in columns]
    quantities = [f"{column.name}, {column.unit}" if column.unit else column.name for column in columns]
    cells = [column.cells for column in columns]
    if len(names) > len(quantities):
        arms = [name + note for name, note in zip(names, notes, strict=True)]
        names, quantities, cells = quantities, arms, [list(row) for row in zip(*cells, strict=True)]
    lines = ["| " + " | ".join(["", *names]) + " |", "|---" + "|---:" * len(names) + "|"]
    lines += ["| " + " | ".join([name, *row]) + " |" for name, row in zip(quantities, cells, strict=True)]
    return "\n".join(lines)


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
        lines.append(f"- {_plain(run['folder'])}: {what}")
    return "\n".join(lines) or "None."


def _environment(env: Json) -> str:
    shown = [f"{key} {_plain(str(env[key]))}" for key in env if key not in ("runs", "peak_gflops")]
    low, high = env["peak_gflops"]
    speed = "" if low is None else f", measured peak {low:.0f} to {high:.0f} GFLOP/s"
    return f"- {env['runs']} runs: {', '.join(shown)}{speed}"


def _plain(words: str) -> str:
    """Escape what Markdown or the HTML inside it would take as markup."""
    for character in "\\`*_|<>[]":
        words = words.replace(character, f"&#{ord(character)};" if character in "<>" else "\\" + character)
    return words
