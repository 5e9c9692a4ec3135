"""report.json's dictionary -> one HTML page that loads nothing: style and pictures are inside it."""

from typing import Any

from diffattn.lab.report import attention, captions, figures, pairs
from diffattn.lab.report.across import across_table
from diffattn.lab.report.answers import answers
from diffattn.lab.report.beside import beside_table, beside_words
from diffattn.lab.report.beside_figures import beside
from diffattn.lab.report.evidence import evidence_table, evidence_words
from diffattn.lab.report.figure import Figure, figure, setting_words, style
from diffattn.lab.report.glossary import glossary
from diffattn.lab.report.inside import inside_words, looked_into
from diffattn.lab.report.lambdas import lambdas
from diffattn.lab.report.maps import LEVELS, head_panels
from diffattn.lab.report.mixing import mixing
from diffattn.lab.report.numbers import inside_tables
from diffattn.lab.report.outliers import outliers
from diffattn.lab.report.tables import arm_tables, never_reaching, styles
from diffattn.lab.report.template import rendered
from diffattn.lab.report.text import render_body
from diffattn.lab.report.words import claims, parted, status_words

Json = dict[str, Any]
MAPPED_IN_FULL = 6
"""Arms up to which a task shows all its maps; of more, one head each: on a page of 17 arms maps were the most."""
INSIDE = (
    lambdas,
    attention.allocation,
    pairs.prediction,
    pairs.signal_to_noise,
    mixing,
    attention.concentration,
    attention.distance,
    pairs.contribution,
    outliers,
    pairs.gradients,
)
"""Sections on what happened inside the models, in the order of the page."""


def render_page(report: Json) -> str:
    """One self-contained HTML page."""
    tasks = [_task(name, task) for name, task in report["tasks"].items()]
    across = [(found, across_table(found)) for found in report["across"]]
    # The text has the same sentences and tables, so its words are those of the page.
    return rendered(
        "page.html",
        report=report,
        plan=report["plan"],
        tasks=tasks,
        across=across,
        levels=LEVELS,
        captions=captions,
        status=status_words(report),
        words=glossary(render_body(report)),
    )


def _task(name: str, task: Json) -> Json:
    """What the template needs to show a task: finished strings and pictures."""
    few_maps = len(task["maps"]) <= MAPPED_IN_FULL
    shown = [figures.curves(task), figures.finals(task)]
    if never_reaching(task):
        shown.append(figures.events(task))
    if (by_kind := answers(task)) is not None:
        shown.append(by_kind)
    shown.append(figures.learning_rates(task))
    if not never_reaching(task):
        # Where answers are the task, nothing but recall is scored.
        shown.append(figures.recall(task))
    shown.append(figures.positions(task))
    told, once = claims(task["findings"])
    found = [_finding(finding, claim) for finding, claim in zip(task["findings"], told, strict=True)]
    conditions = {finding["conditions"] for finding in found}
    return {
        "name": name,
        "numbers": task,
        "tables": arm_tables(task),
        "evidence": evidence_table(task),
        "evidence_words": evidence_words(task),
        "styles": styles(task),
        "findings": found,
        "once": once,
        "contrasts": [_finding(contrast, parted(contrast)[0]) for contrast in task["contrasts"]],
        "conditions": conditions.pop() if len(conditions) == 1 else None,
        "each_seed": never_reaching(task),
        "forest": figures.differences(task),
        "forest_caption": _forest_caption(task),
        "figures": shown,
        "beside": beside(task),
        "beside_table": beside_table(task),
        "beside_words": beside_words(task),
        "inside": [one for draw in INSIDE if (one := draw(task))],
        "inside_words": inside_words(task),
        "inside_tables": inside_tables(task),
        "inside_setting": setting_words(task, looked_into(task)),
        "maps_figure": _maps_figure(task),
        "maps": [_arm_maps(arm, maps, styles(task)[arm], few_maps) for arm, maps in task["maps"].items()],
        "setting": setting_words(task),
    }


def _forest_caption(task: Json) -> str:
    if task["metric"] != "loss":
        return captions.EVENTS_BESIDE.strip()
    return (captions.DIFFERENCES + captions.CONTRASTS * bool(task["contrasts"])).strip()


def _finding(found: Json, claim: str) -> Json:
    """The claim and what it is true of, apart, so that they can be told apart by eye."""
    return {**found, "claim": claim.removeprefix(found["arm"]), "conditions": parted(found)[1]}


def _maps_figure(task: Json) -> Figure:
    missing = "No attention maps yet: they are drawn when the first seed of an arm has finished."
    return figure(task, "maps", "Attention maps", [], captions.MAPS, missing)


def _arm_maps(arm: str, maps: Json, number: int, few: bool) -> Json:
    """The heads of one arm in rows, the last layer first: the page shows it and hides the others behind a click.

    few: there is room for all; otherwise the last head is shown, and the others stay in report.json.
    """
    rows = [head_panels(head, maps["tokens"]) for head in (maps["heads"] if few else maps["heads"][-1:])]
    if all(len(row) == 1 for row in rows):
        # Heads of a single map share rows.
        single = [row[0] for row in rows]
        rows = [single[i : i + 3] for i in range(0, len(single), 3)]
    return {"arm": arm, "style": style(number), "seed": maps["seed"], "rows": rows[::-1]}
