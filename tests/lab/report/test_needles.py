"""The page of needles: every number of the result is drawn where it belongs, with what a guess reaches."""

import html
import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from diffattn.cli.pictures import pictures
from diffattn.data.tokenizer import Bytes
from diffattn.evals.base import Result
from diffattn.evals.needle import Needle
from diffattn.evals.reader import ModelReader
from diffattn.evals.results import write_result
from diffattn.lab.report.needles import write_needles
from support.models import small_model
from support.needles import answers, copier, run
from support.readers import Planted

TASK = Needle(samples=2, source="noise", lengths=(300, 400), depths=(0, 50, 100))
CELL = re.compile(r'fill-opacity="([\d.]+)"><title>(\S+), depth (\d+) %, (\d+) tokens: (\d+) % \([^)]+\), n = (\d+)<')


def early(prompt: str) -> str:
    """Find what stands in the first quarter of what was read."""
    return " and ".join(answer if prompt.find(answer) < len(prompt) / 4 else "0000" for answer in answers(prompt))


def write(folder: Path, models: dict[str, Result]) -> str:
    found = [{"model": name, "tasks": {"needle": result.to_dict()}} for name, result in models.items()]
    write_result(folder, "eval", {"models": found})
    assert write_needles(folder) == [folder / "needle.html"]
    return html.unescape((folder / "needle.html").read_text(encoding="utf-8"))


def test_every_place_of_every_model_has_its_cell(tmp_path: Path) -> None:
    models = {"runs/all/model": run(TASK, copier()), "early": run(TASK, Planted(speaks=early, context=512))}
    page = write(tmp_path, models)
    cells = iter(CELL.findall(page))
    for name, result in zip(("all", "early"), models.values(), strict=True):
        at = {(place["depth"], place["length"]): place for place in result.parts["heat"]}
        for score in ("all", "each", "chosen"):
            # Row by row from the top, the least depth first.
            for depth in (0, 50, 100):
                for length in (300, 400):
                    opacity, *where, percent, n = next(cells)
                    measure = at[depth, length][score]
                    assert where == [name, str(depth), str(length)]
                    assert float(opacity) == pytest.approx(measure["value"], abs=0.005)
                    assert (int(percent), int(n)) == (round(100 * measure["value"]), measure["n"])
                    assert f">{percent} ({n})<" in page
    assert next(cells, None) is None
    assert [place["all"]["value"] for place in models["early"].parts["heat"]] == [1.0, 0.0, 0.0] * 2


def test_axes_colours_and_what_a_guess_reaches_are_named(tmp_path: Path) -> None:
    page = write(tmp_path, {"one": run(TASK, copier())})
    for words in ("length, tokens", "depth, %", ">guess to choose: 25 %<", ">100 %<", "2 asked", "right in 25 %"):
        assert words in page
    assert not re.search(r"(src|href)=\"(?!data:)|url\(|<script", page)
    # No attention of a model that is not one of ours.
    assert "Attention" not in page


def test_places_without_a_question_are_said_in_words(tmp_path: Path) -> None:
    few = run(TASK, copier(), limit=4)
    assert "No question at 2 of 6 places" in few.parts["unasked"]
    assert few.parts["unasked"] in write(tmp_path, {"one": few, "other": few})
    assert f"few: {few.parts['unasked']}" in write(tmp_path, {"one": run(TASK, copier()), "few": few})
    assert "No question" not in write(tmp_path, {"one": run(TASK, copier())})


def test_one_asked_number_is_drawn_once(tmp_path: Path) -> None:
    one = Needle(facts=2, asked=1, samples=1, source="noise", lengths=(300,), depths=(0,))
    assert len(CELL.findall(write(tmp_path, {"one": run(one, copier())}))) == 2


@pytest.fixture(scope="module")
def seen() -> Result:
    model = small_model("diff_v1", dtype=torch.float32, vocab_size=257, context=160)
    options: dict[str, Any] = {"facts": 1, "asked": 1, "samples": 1, "depths": (50,), "lengths": (120, 160)}
    return run(Needle(source="noise", attention=1, **options), ModelReader(model, Bytes()))


def test_attention_is_drawn_by_layer_and_map_with_its_denominators(tmp_path: Path, seen: Result) -> None:
    page = write(tmp_path, {"one": seen})
    denominators = seen.parts["attention"]["denominators"]
    assert all(f"{name}: {words}" in page for name, words in denominators.items())
    longest = next(look for look in seen.parts["attention"]["at"] if look["length"] == 160)
    shown, hidden = page.split("<details>")
    assert ", 160 tokens" in shown and ", 120 tokens" not in shown.split("Attention at")[1]
    assert ", 120 tokens" in hidden
    cells = re.findall(r'class="cell (plus|minus)5" fill-opacity="([\d.]+)"><title>layer (\d), (\w+): (\w+): ', shown)
    expected = []
    for sign in ("absolute", "signed"):
        for part in ("answer", "first", "rest"):
            for map in ("A1", "A2", "effective", *(["output"] if sign == "absolute" else [])):
                for layer in longest["layers"]:
                    maps = {one["name"]: one for one in layer["maps"]} | {"output": layer["output"]}
                    mean = maps[map][part][sign]["mean"]
                    expected.append(("minus" if mean < 0 else "plus", abs(mean), str(layer["layer"]), part, map))
    assert [(side, *where) for side, _, *where in cells] == [(side, *where) for side, _, *where in expected]
    assert [float(cell[1]) for cell in cells] == pytest.approx([cell[1] for cell in expected], abs=0.005)


def test_models_of_one_name_are_told_apart_by_their_folders(tmp_path: Path) -> None:
    found = run(Needle(samples=1, source="noise", lengths=(400,), depths=(0,)), copier())
    page = write(tmp_path, {"a/mine/model": found, "b/mine/model": found})
    assert {cell[1] for cell in CELL.findall(page)} == {"a/mine/model", "b/mine/model"}


def test_what_has_no_heat_map_is_not_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "eval.json").write_text(json.dumps({"models": [{"model": "a", "tasks": {"shift": {"parts": {}}}}]}))
    assert write_needles(tmp_path) == list(pictures(tmp_path, ["needle"])) == []
    assert [*pictures(None, ["needle"]), *pictures(tmp_path / "none", ["loss"])] == []
    monkeypatch.setitem(sys.modules, "diffattn.lab.report.needles", None)
    (told,) = pictures(tmp_path, ["needle_pairs"])
    assert "pip install 'diffattn[report]'" in told
