"""The report's sections on what happened inside the models."""

import json
import random
import re
from pathlib import Path
from typing import Any

import pytest

from diffattn.lab.report import attention, lambdas, outliers, write_report
from diffattn.lab.report.bars import Bar, Part, bar_panel
from diffattn.lab.report.folder import read_folder
from diffattn.lab.report.heat import Heat, heat_panel
from diffattn.lab.report.inside import condense
from diffattn.lab.report.layered import MOST, curves_panel
from diffattn.lab.report.mixing import mixing, mixing_words
from diffattn.lab.report.numbers import inside_tables
from diffattn.lab.report.pairs import prediction, signal_to_noise
from diffattn.lab.report.panels import Line
from diffattn.lab.report.summary import summarise
from support.found import found_inside
from support.runs import Story, write_plan

PAIRED = [[1.0, -0.5, 0.0, 0.02], [0.0, 0.9, 0.01, 0.0], [0.6, 0.0, 0.5, 0.0], [0.3, 0.3, 0.4, -0.3]]


def task_of(folder: Path, story: Story) -> dict[str, Any]:
    return summarise(read_folder(write_plan(folder, story)))["tasks"]["text"]


@pytest.fixture(scope="module")
def task(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return task_of(tmp_path_factory.mktemp("inside") / "quick", Story(tasks=("text",), mixing={"softmax": PAIRED}))


def test_numbers_of_single_heads_become_their_mean() -> None:
    found = found_inside(random.Random(0), 2, 4, two_maps=True)
    kept = condense(found)
    for before, after in zip(found["layers"], kept["layers"], strict=True):
        assert after["pair"]["r2"] == pytest.approx(sum(before["pair"]["r2"]["heads"]) / 4, rel=1e-5)
        assert after["maps"][0]["head_cosine"] == pytest.approx(0.3)
        assert after["maps"][0]["allocation"]["answer"]["absolute"] == 0.3
        assert after["outliers"]["hidden"]["top1"] == pytest.approx(
            found["outliers"]["layers"][after["layer"]]["hidden"]["top1"], rel=1e-5
        )


def test_bars_split_the_mass_by_its_sign(task: dict[str, Any]) -> None:
    """Of the answer's 0.3 a fifth is negative: 24 % to the right of zero and 6 % to its left."""
    figure = attention.allocation(task)
    assert figure and figure.exploratory
    assert "on the answer: 24.0 % (diff_v1, effective)" in figure.panels[0]
    assert "on the answer with a negative weight: 6.0 % (diff_v1, effective)" in figure.panels[0]
    assert "on the answer: 30.0 % (softmax, effective)" in figure.panels[0]
    assert [words for _, words in figure.key] == ["on the answer", "on the first key", "on all other keys"]


def test_a_bar_grows_from_zero_to_both_sides() -> None:
    parts = [Part(0.6, "place0", "a"), Part(-0.2, "place0", "b"), Part(0.2, "place1", "c")]
    boxes = re.findall(
        r'<rect class="cell place." x="([\d.]+)" y="\d+" width="([\d.]+)"',
        bar_panel("t", "x", [Bar("n", "arm0", parts)]),
    )
    (a, first), (b, second), (c, third) = [(float(x), float(width)) for x, width in boxes]
    assert first == pytest.approx(3 * second, abs=0.05) and third == pytest.approx(second, abs=0.05)
    assert b + second == pytest.approx(a, abs=0.05) and a + first == pytest.approx(c, abs=0.05)


def test_data_without_answers_gets_no_figure_about_them(tmp_path: Path) -> None:
    task = task_of(tmp_path / "quick", Story(tasks=("text",), answers=False))
    figure = attention.allocation(task)
    assert figure and [words for _, words in figure.key] == ["on the first key", "on all other keys"]
    assert "marks no answers" in figure.caption and "on the answer" not in "".join(figure.panels)
    assert signal_to_noise(task) is None


def test_runs_that_nobody_looked_into_leave_a_report_without_these_sections(tmp_path: Path) -> None:
    path = write_plan(tmp_path / "quick", Story(tasks=("text",)))
    for found in path.glob("*/evals/inside.json"):
        found.unlink()
    for metrics in path.glob("*/metrics.jsonl"):
        rows = [json.loads(line) for line in metrics.read_text().splitlines()]
        metrics.write_text(
            "".join(json.dumps({k: v for k, v in row.items() if k != "outliers"}) + "\n" for row in rows)
        )
    page = write_report(path).read_text()
    assert "What the instruments find is known when runs have finished" in page
    assert 'id="text-lambdas"' in page
    assert not re.search('id="text-(allocation|prediction|signal|distance|outliers|instruments)"', page)


def test_captions_name_the_seeds_that_were_looked_into(tmp_path: Path) -> None:
    path = write_plan(tmp_path / "quick", Story(tasks=("text",)))
    for found in path.glob("*-s[12]/evals/inside.json"):
        found.unlink()
    page = write_report(path).read_text()
    assert "found in 4 finished models (seed 0 of each arm), on 4\u202f096 held-out tokens each" in page
    sections = dict(re.findall(r'<section id="text-(\w+)">(.*?)</section>', page, re.DOTALL))
    for name in ("allocation", "prediction", "signal", "distance", "contribution", "gradients", "instruments"):
        assert "context 256. Seed 0. Trained" in sections[name], name
    for name in ("lambdas", "outliers", "finals"):
        assert "context 256. Seeds 0, 1, 2. Trained" in sections[name], name


def test_a_file_of_the_instruments_of_another_shape_is_named(tmp_path: Path) -> None:
    path = write_plan(tmp_path / "quick", Story(tasks=("text",)))
    found = path / "text-diff_v1-lr0.005-s0" / "evals" / "inside.json"
    content = json.loads(found.read_text())
    del content["layers"][1]["pair"]["r2"]
    found.write_text(json.dumps(content))
    with pytest.raises(ValueError, match=r"s0/evals/inside\.json lacks the key 'r2' in layers\[1\]\.pair"):
        write_report(path)


def test_only_arms_of_two_maps_are_asked_whether_one_predicts_the_other(task: dict[str, Any]) -> None:
    figure = prediction(task)
    assert figure and len(figure.panels) == 3
    for panel in figure.panels:
        assert "diff_v1, layer 2" in panel and "softmax" not in panel


def test_mixtures_are_told_in_words() -> None:
    words = mixing_words([PAIRED, PAIRED])
    assert words.startswith("44 % of the entries are near 0; 2 of 8 rows subtract one map from another (+1, −λ), ")
    assert "2 of 8 rows read one map, 2 of 8 rows add two maps, 2 of 8 rows read more maps" in words
    assert words.endswith("λ of the pairs: 0.50")
    nearly_one = [[0.75, -0.06, 0.05, 0.05, 0.05, 0.04]]
    assert "1 of 1 rows read more maps; no pair (+1, −λ) emerged" in mixing_words([nearly_one])
    assert mixing_words([[[1.0, 0.0], [0.0, 1.0]]]).endswith("2 of 2 rows read one map; no pair (+1, −λ) emerged")


def test_the_mixing_matrix_is_drawn_for_one_seed_and_kept_for_all(task: dict[str, Any]) -> None:
    figure = mixing(task)
    assert figure and len(figure.panels) == 3 and len(figure.more) == 6
    assert "head 0 takes −0.5 of map 1" in figure.panels[0]
    assert "softmax, all layers and seeds: 44 %" in figure.caption
    assert task["arms"]["softmax"]["seeds"]["0"]["inside"]["layers"][0]["mixing"] == PAIRED


def test_lambda_has_a_row_per_head_where_heads_differ() -> None:
    logged = [{"tokens": 10 * n, "layers": [{"mean": 0.5}, {"mean": 0.2, "heads": [0.1 * n, 0.3]}]} for n in (1, 2)]
    again = [{"tokens": 10, "layers": [{"mean": 0.7}, {"mean": 0.2, "heads": [0.3, 0.3]}]}]
    arms = {"base": {"seeds": {}}, "v": {"seeds": {"0": {"lambda": logged}, "1": {"lambda": again}}}}
    task = {"arms": arms, "baseline": "base", "seeds": [0, 1], "hardware": "", "data": "", "model": "", "ended": True}
    (panel,) = lambdas.lambdas(task).panels
    assert ">layer 0</text>" in panel and ">layer 1, head 0</text>" in panel and ">head 1</text>" in panel
    assert "layer 0, 10 tokens: 0.60 (seeds 0.50 to 0.70)" in panel
    assert "layer 1, head 0, 20 tokens: 0.20<" in panel


def test_colour_tells_the_sign_and_depth_the_size() -> None:
    heat = Heat("t", "u", ["a"], ["0", "1", "2"], "x", [[0.5, -2.0, None]], [["p", "q", "r"]])
    cells = re.findall(r'class="cell (\w+)" fill-opacity="([\d.]+)"', heat_panel(heat))
    assert cells == [("plus5", "0.5"), ("minus5", "1")]


@pytest.mark.parametrize("count", [MOST, MOST + 1])
def test_curves_that_the_eye_cannot_keep_apart_become_a_table_of_colours(count: int) -> None:
    lines = [Line(f"arm {n}", "arm0", [(1.0, 0.25 * n), (2.0, 1.0)], f"arm {n}") for n in range(count)]
    panel = curves_panel("t", "x", "u", lines, {1.0: "1", 2.0: "2"})
    assert ("polyline" in panel) == (count <= MOST)
    assert (">0.75</text>" in panel and "arm 3, 1: 0.75" in panel) == (count > MOST)


def test_outliers_are_drawn_along_training_and_by_layer(task: dict[str, Any]) -> None:
    figure = outliers.outliers(task)
    assert figure and len(figure.panels) == len(figure.more) == 4
    tokens = [row["tokens"] for row in task["arms"]["diff_v1"]["seeds"]["0"]["outliers"]]
    assert len(tokens) == 8 and tokens == sorted(tokens)


def test_the_lowest_loss_stands_first_in_the_tables(task: dict[str, Any]) -> None:
    first, pair, massive = inside_tables(task)
    losses = [task["arms"][name]["loss"]["mean"] for name, _, _ in first.rows]
    assert losses == sorted(losses) and len(losses) == 4
    assert {name for name, _, _ in pair.rows} == {"diff_v1", "diff_v2"}
    assert [name for name, _ in massive.groups] == ["Logits", "Hidden states", "Whole model"]
