"""A table holds every word of its cells, in lines no wider than asked."""

import pytest

from diffattn.evals.table import as_text, room

LONG = "share of wrong answers, misread or not in the context, where it holds the answer"
CELL = "0.5 (0.25 to 0.75, n = 24 questions)"


def test_what_fits_stands_in_columns() -> None:
    assert as_text([["model", "one", "b"], ["loss", "1.5", "2"]]) == "model  one  b\nloss   1.5  2"


def test_a_long_name_is_wrapped_beside_its_numbers() -> None:
    lines = as_text([["model", "one", "other"], [LONG, CELL, CELL], ["loss", "1.5", "2"]]).splitlines()
    assert max(map(len, lines)) <= 120
    assert lines[1].count(CELL) == 2
    assert " ".join("\n".join(lines[1:-1]).replace(CELL, "").split()) == LONG


@pytest.mark.parametrize("models", [1, 3, 7])
@pytest.mark.parametrize("width", [60, 80, 120])
def test_columns_without_room_follow_below_and_no_number_is_lost(models: int, width: int) -> None:
    heads = [f"runs/quick/text-diff_v1-lr0.005-s{i}/model" for i in range(models)]
    table = as_text([["model", *heads], [LONG, *[CELL] * models], ["loss", *map(str, range(models))]], width)
    assert max(map(len, table.splitlines())) <= width
    assert table.count("n =") == models
    losses = [word for line in table.splitlines() if line.startswith("loss") for word in line.split()[1:]]
    assert losses == [str(i) for i in range(models)]


def test_a_very_narrow_terminal_gets_a_table_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "20")
    rows = [["model", "one"], [LONG, CELL]]
    lines = as_text(rows, room()).splitlines()
    assert max(map(len, lines)) <= 40
    assert sorted("".join(lines).replace(" ", "")) == sorted("".join(map("".join, rows)).replace(" ", ""))
