"""The figures of a task: which numbers go into which panel, and the caption that names data, model and seeds."""

from typing import Any

from diffattn.lab.report import captions
from diffattn.lab.report.answers import guess_marks
from diffattn.lab.report.figure import Figure, figure, style
from diffattn.lab.report.panels import Dot, Line, Mark, Row, dot_panel, line_panel
from diffattn.lab.report.svg import short
from diffattn.lab.report.tables import never_reaching, styles
from diffattn.lab.report.words import duration, nats, rate, scaled

Json = dict[str, Any]


def curves(task: Json) -> Figure:
    """Held-out loss while training, against three measures of expense."""
    drawn = [
        ("tokens", "training tokens", short),
        ("flops", "FLOPs of the algebra", short),
        ("seconds", "time", duration),
    ]
    panels = []
    for key, name, ticks in drawn:
        lines = _arm_lines(task, key, "loss")
        # The first fall from guessing would flatten all that follows; a few points have no such fall.
        settled = 0.2 if max((len(one.points) for one in lines), default=0) > 4 else 0.0
        if lines:
            across = [Mark("bigram table", task["bigram_loss"])] if task["bigram_loss"] is not None else []
            equal = task["equal_time_seconds"] if key == "seconds" else None
            down = [Mark("equal time", equal)] if equal else []
            unit = "training time" if key == "seconds" else name
            title = f"Loss against {name}"
            panels.append(
                line_panel(
                    title, unit, "nats per token (dev)", lines, across=across, down=down, settled=settled, x_ticks=ticks
                )
            )
    return figure(task, "curves", "Loss along training", panels, captions.CURVES)


def finals(task: Json) -> Figure:
    """Each seed's final loss: at equal tokens, at equal time, at a quarter of the tokens."""
    marks = (
        [Mark(f"bigram table {nats(task['bigram_loss'])}", task["bigram_loss"])]
        if task["bigram_loss"] is not None
        else []
    )
    # Where losses jump between two levels, a mean and its interval describe nothing.
    full = _loss_rows(task, of_seeds(task, "final_loss"), interval=not never_reaching(task))
    ruler = task["arms"][task["baseline"]]["ruler"]
    full += _loss_rows(task, {task["baseline"]: ruler}, label="ruler (1.25 ×)", hollow=True)
    timed = _loss_rows(task, of_seeds(task, "loss_at_equal_time"))
    quarter = _loss_rows(task, {name: arm["quarter"] for name, arm in task["arms"].items()})
    unit, panels, said = f"nats per token ({task['split']})", [], captions.FINALS
    if full:
        panels.append(dot_panel("At equal tokens", unit, full, marks=marks))
        said += captions.INTERVALS if any(row.interval for row in full) else ""
        said += captions.RULER if any(dot.hollow for row in full for dot in row.dots) else ""
    if timed:
        title = f"At equal time, {duration(task['equal_time_seconds'])}"
        panels.append(dot_panel(title, "nats per token (dev)", timed, marks=marks))
        said += captions.EQUAL_TIME.format(shared=task["shared"])
    if quarter:
        panels.append(dot_panel("At a quarter of the tokens", unit, quarter, marks=marks))
        said += captions.QUARTER
    return figure(task, "finals", "Final loss, seed by seed", panels, said)


def learning_rates(task: Json) -> Figure:
    """Sweep: dev loss against learning rate, and all arms at the baseline's; without one, the policy's sentence."""
    runs, base, policy = task["sweep"], task["arms"][task["baseline"]]["learning_rate"], task["learning_rate_policy"]
    lines, same = [], {}
    for name, number in styles(task).items():
        own = [run for run in runs if run["arm"] == name]
        same[name] = {run["seed"]: run["loss"] for run in own if run["learning_rate"] == base}
        points = _means_by_rate(own)
        if points:
            tip = f"{name}: chosen {rate(task['arms'][name]['learning_rate'])}"
            lines.append(Line(name, style(number), points, tip, number, dots=True))
    at = sorted({run["learning_rate"] for run in runs})
    panels = [line_panel("Sweep", "learning rate", "nats per token (dev)", lines, log=True, x_at=at)] if lines else []
    said, rows = captions.LEARNING_RATES, _loss_rows(task, same)
    if lines and rows:
        panels.append(dot_panel(f"At the baseline's rate, {rate(base)}", "nats per token (dev)", rows))
        said += captions.SAME_RATE
    failed = sum(run["loss"] is None for run in runs)
    said = said.format(policy=policy) + (captions.FAILED_RATES.format(failed=failed) if failed else "")
    missing = f"No sweep: {policy}."
    return figure(task, "learning-rates", "Sensitivity to the learning rate", panels, said, missing)


def recall(task: Json) -> Figure:
    """Loss on tokens whose pair stood earlier in the window, and on all others."""
    panels = []
    for key, title in (("recall_hits", "Recall hits"), ("other_tokens", "Other tokens")):
        values = {
            name: {seed: _scored(s[key]) for seed, s in arm["seeds"].items()} for name, arm in task["arms"].items()
        }
        rows = _loss_rows(task, values)
        if rows:
            panels.append(dot_panel(title, f"nats per token ({task['split']})", rows))
    return figure(task, "recall", "Recall hits against other tokens", panels, captions.RECALL)


def positions(task: Json) -> Figure:
    """Loss by position in the window, and seed by seed its difference to the baseline."""
    places = {name: {seed: _by_position(s) for seed, s in arm["seeds"].items()} for name, arm in task["arms"].items()}
    lines, apart = [], []
    for name, number in styles(task).items():
        for seed, losses in places[name].items():
            base = places[task["baseline"]].get(seed, {})
            above = [(place, loss - base[place]) for place, loss in losses.items() if place in base]
            tip = f"{name}, seed {seed}"
            if len(losses) > 1:
                lines.append(Line(name, style(number), list(losses.items()), tip))
            if len(above) > 1 and name != task["baseline"]:
                apart.append(Line(name, style(number), above, tip))
    axis, unit, panels = "position in the window", f"nats per token ({task['split']})", []
    if lines:
        panels.append(line_panel("Loss", axis, unit, lines, log=True))
    if apart:
        title = f"Difference to {task['baseline']}"
        panels.append(line_panel(title, axis, unit, apart, log=True, across=[Mark("", 0.0)]))
    return figure(task, "positions", "Loss by position", panels, captions.POSITIONS.format(split=task["split"]))


def events(task: Json) -> Figure:
    """Tokens until half, and nine tenths, of the answers are right; and the accuracy along the way."""
    panels = [panel for share in (50, 90) if (panel := tokens_panel(task, share))]
    lines = _arm_lines(task, "tokens", "accuracy")
    if lines:
        unit = "share of answers right (dev)"
        across = guess_marks(task)
        panels.append(line_panel("Accuracy", "training tokens", unit, lines, across=across, y_range=(0.0, 1.02)))
    said = captions.EVENTS.format(tokens=scaled(task["tokens"]))
    return figure(task, "events", "Tokens until the task is solved", panels, said)


def tokens_panel(task: Json, share: int) -> str | None:
    """Tokens until this share of answers is right, in percent: a dot per finished seed, and a place for "never"."""
    rows = []
    for name, number in styles(task).items():
        seeds = {seed: s for seed, s in task["arms"][name]["seeds"].items() if s["status"] == "finished"}
        reached = {seed: s[f"tokens_to_{share}"] for seed, s in seeds.items()}
        dots = [Dot(tokens, f"{name}, seed {seed}: {_event(tokens)}") for seed, tokens in reached.items()]
        if dots:
            rows.append(Row(name, style(number), number, dots))
    return (
        dot_panel(f"Tokens to {share} % right", "training tokens", rows, within=(0.0, task["tokens"])) if rows else None
    )


def differences(task: Json) -> str | None:
    """What the verdicts rest on: differences to the baseline with their intervals, or tokens to 50 %."""
    if task["metric"] != "loss":
        return tokens_panel(task, 50)
    number = styles(task)
    losses = of_seeds(task, "final_loss")
    base, rows = losses[task["baseline"]], []
    for found in task["findings"]:
        arm = found["arm"]
        paired = {seed: (value, base.get(seed)) for seed, value in losses[arm].items()}
        dots = [
            Dot(a - b, f"{arm}, seed {seed}: {nats(a - b, 4)}") for seed, (a, b) in paired.items() if None not in (a, b)
        ]
        if found["mean"] is not None:
            rows.append(Row(arm, style(number[arm]), number[arm], dots, _interval(found)))
    for found in task["contrasts"]:
        numbers, name = found["numbers"], found["arm"]
        if found["mean"] is not None:
            seeds = zip(numbers["seeds"], numbers["differences"], strict=True)
            dots = [Dot(value, f"{name}, seed {seed}: {nats(value, 4)}") for seed, value in seeds]
            rows.append(Row(name, "contrast", 0, dots, _interval(found)))
    if not rows:
        return None
    margin = next((m for f in task["findings"] if (m := f["numbers"].get("margin")) is not None), task["margin"])
    band = (-margin, margin) if margin else None
    return dot_panel(
        f"Difference to {task['baseline']}", f"nats per token ({task['split']})", rows, band=band, zero=True
    )


def _interval(found: Json) -> tuple[float, float, float]:
    """Mean, low and high of a finding; an end that is not known lies at the mean."""
    mean = found["mean"]
    return mean, *(mean if found[end] is None else found[end] for end in ("low", "high"))


def _arm_lines(task: Json, x: str, y: str) -> list[Line]:
    lines = []
    for name, number in styles(task).items():
        for seed, numbers in task["arms"][name]["seeds"].items():
            points = [(p[x], p[y]) for p in numbers["curve"] if p[x] is not None and p[y] is not None]
            if points:
                ended = number if numbers["status"] == "finished" else None
                lines.append(Line(name, style(number), points, f"{name}, seed {seed}", ended))
    return lines


def _loss_rows(task: Json, values: Json, *, interval: bool = False, label: str = "", hollow: bool = False) -> list[Row]:
    """Rows of a dot plot from arm -> seed -> loss; arms without a value are left out."""
    numbers, rows = styles(task), []
    for arm in sorted(values, key=numbers.__getitem__):
        name, found = label or arm, {seed: v for seed, v in values[arm].items() if v is not None}
        dots = [Dot(v, f"{name}, seed {seed}: {nats(v, 4)}", hollow) for seed, v in found.items()]
        mean, bar = task["arms"][arm]["loss"], None
        if interval and mean["half_width"] is not None:
            bar = (mean["mean"], mean["mean"] - mean["half_width"], mean["mean"] + mean["half_width"])
        if dots:
            rows.append(Row(name, style(numbers[arm]), numbers[arm], dots, bar))
    return rows


def of_seeds(task: Json, key: str) -> dict[str, Json]:
    """A number of each seed, by arm."""
    return {name: {seed: s[key] for seed, s in arm["seeds"].items()} for name, arm in task["arms"].items()}


def _means_by_rate(runs: list[Json]) -> list[tuple[float, float]]:
    """Mean loss at each learning rate, rising; none where a seed failed: the mean of the others would flatter it."""
    points = []
    for at in sorted({run["learning_rate"] for run in runs}):
        losses = [run["loss"] for run in runs if run["learning_rate"] == at]
        if None not in losses:
            points.append((at, sum(losses) / len(losses)))
    return points


def _by_position(seed: Json) -> dict[float, float]:
    """Middle of each range of positions -> loss."""
    return {(part["first"] * part["last"]) ** 0.5: part["loss"] for part in seed["by_position"]}


def _scored(part: Json | None) -> float | None:
    return part["loss"] if part and part["count"] else None


def _event(value: float | None) -> str:
    return "never" if value is None else f"{scaled(value)} tokens"
