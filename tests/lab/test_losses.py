"""A CSV of anybody's losses gets the laboratory's verdict, without torch; a broken one gets its line and the remedy."""

import math
import re
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

from diffattn.lab.losses import Losses, read_losses
from diffattn.lab.verdict import Rules, judge, verdict

BASELINE = [1.750, 1.731, 1.768, 1.744, 1.757]
LOSSES = Losses(
    full={"softmax": dict(enumerate(BASELINE)), "V1": dict(enumerate([1.682, 1.674, 1.699, 1.691, 1.690]))},
    ruler={seed: x - d for seed, (x, d) in enumerate(zip(BASELINE, [0.08, 0.07, 0.09, 0.08, 0.075], strict=True))},
)


def write(path: Path, rows: list[str], header: str = "arm,seed,budget,loss") -> Path:
    path.write_text("\n".join([header, *rows]) + "\n")
    return path


def rows_of(losses: Losses) -> list[str]:
    full = [f"{arm},{seed},full,{x}" for arm, values in losses.full.items() for seed, x in values.items()]
    return full + [f"softmax,{seed},ruler,{x}" for seed, x in losses.ruler.items()]


def test_a_csv_gets_the_same_verdict_with_its_table(tmp_path: Path) -> None:
    text = verdict(write(tmp_path / "losses.csv", rows_of(LOSSES)), setting="330k parameters")
    (finding,) = judge(LOSSES, Rules(baseline="softmax", setting="330k parameters"))
    assert f"BETTER  {finding.sentence}" in text
    assert "Baseline: softmax (by its name; --baseline names another)" in text
    assert re.search(r"^V1 +5 +1\.687", text, re.MULTILINE)


def test_the_verdict_needs_no_torch(tmp_path: Path) -> None:
    path = write(tmp_path / "losses.csv", rows_of(LOSSES))
    code = (
        "import sys; from diffattn.lab.verdict import verdict\n"
        f"print(verdict({str(path)!r})); sys.exit('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0 and "V1 is better" in done.stdout, done.stderr


def test_without_a_usual_name_the_first_arm_is_the_baseline_and_the_table_says_so(tmp_path: Path) -> None:
    rows = [row.replace("softmax", "plain") for row in rows_of(Losses(full=LOSSES.full))]
    path = write(tmp_path / "losses.csv", rows)
    assert "Baseline: plain (the first arm of the file" in verdict(path)
    assert "Baseline: V1 (as asked)" in verdict(path, baseline="V1")


def test_without_a_column_of_budgets_every_run_is_a_full_one(tmp_path: Path) -> None:
    rows = rows_of(Losses(full=LOSSES.full))
    named = verdict(write(tmp_path / "named.csv", rows))
    plain = [row.replace(",full", "") for row in rows]
    assert verdict(write(tmp_path / "plain.csv", plain, "arm,seed,loss")) == named


GOOD = ["softmax,0,full,1.7", "softmax,1,full,1.8", "V1,0,full,1.6", "V1,1,full,1.7"]


@pytest.mark.parametrize(
    ("rows", "header", "message"),
    [
        (GOOD, "arm,sed,budget,loss", "line 1: needs one column 'seed'.*rename the column 'sed'"),
        (GOOD, "arm;seed;budget;loss", "separator must be a comma"),
        (GOOD, "arm,seed,budgets,loss", "needs one column 'budget'.*rename the column 'budgets'"),
        ([], "arm,seed,budget,loss", "no rows"),
        ([*GOOD, "V1,1,full,1.9"], "arm,seed,budget,loss", "line 6.*already given in line 5"),
        ([*GOOD, "V1,2,full,1.9"], "arm,seed,budget,loss", "line 6: seed 2 of 'V1' has no pair"),
        (GOOD[:3], "arm,seed,budget,loss", "line 3.*'V1' has no such row"),
        ([*GOOD, "V1,x,full,1.9"], "arm,seed,budget,loss", "line 6: the seed must be a whole number, got 'x'"),
        ([*GOOD, "V1,2,full,"], "arm,seed,budget,loss", "line 6: the loss must be a number.*a failed run is nan"),
        (
            [*GOOD, "V1,2,full,1e301"],
            "arm,seed,budget,loss",
            "line 6: 1e\\+301 is no plausible loss; a failed run is nan",
        ),
        ([*GOOD, "V1,2,full," + "1" * 140_000], "arm,seed,budget,loss", "line 6: not a row of a CSV"),
        (GOOD, "a" * 140_000, "line 1: not a row of a CSV"),
        ([*GOOD, "V1,2,ful,1.9"], "arm,seed,budget,loss", "line 6: the budget must be.*did you mean 'full'"),
        ([*GOOD, "V1,2,full"], "arm,seed,budget,loss", "line 6: 3 cells under 4 columns"),
        ([*GOOD, "sofmax,0,ruler,1.6"], "arm,seed,budget,loss", "line 6: arm 'sofmax'.*did you mean 'softmax'"),
        ([*GOOD, "V1,0,ruler,1.6"], "arm,seed,budget,loss", r"line 6: the ruler is the baseline \(softmax\)"),
        (GOOD[:2], "arm,seed,budget,loss", "only one arm"),
        ([GOOD[0], GOOD[2]], "arm,seed,budget,loss", "one seed has no interval"),
    ],
)
def test_bad_losses_name_the_line_and_the_remedy(tmp_path: Path, rows: list[str], header: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        verdict(write(tmp_path / "losses.csv", rows, header))


def test_bad_files_and_names_are_one_clear_error(tmp_path: Path) -> None:
    path = write(tmp_path / "losses.csv", GOOD)
    with pytest.raises(ValueError, match="no arm is called 'sofmax'; did you mean 'softmax'"):
        verdict(path, baseline="sofmax")
    with pytest.raises(ValueError, match="cannot be read: No such file"):
        verdict(tmp_path / "lost.csv")
    (tmp_path / "empty.csv").write_text("")
    with pytest.raises(ValueError, match="empty; expected a CSV"):
        verdict(tmp_path / "empty.csv")
    (tmp_path / "latin.csv").write_bytes("arm,seed,budget,loss\nsöftmax,0,full,1".encode("latin-1"))
    with pytest.raises(ValueError, match="not UTF-8"):
        verdict(tmp_path / "latin.csv")


def test_two_seeds_of_a_csv_are_no_screen(tmp_path: Path) -> None:
    text = verdict(write(tmp_path / "losses.csv", GOOD))
    assert "NO VERDICT  V1: 2 seeds" in text and "SCREEN" not in text


def test_the_largest_losses_are_judged_without_a_warning(tmp_path: Path) -> None:
    rows = [
        f"{arm},{seed},full,{(1 + seed / 10) * scale}" for arm, scale in [("a", 1e99), ("b", 2)] for seed in range(5)
    ]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert "b  " in verdict(write(tmp_path / "losses.csv", rows))


def test_failed_runs_are_rows_of_nan(tmp_path: Path) -> None:
    rows = rows_of(LOSSES)
    rows[-6] = "V1,4,full,nan"
    losses, baseline, _ = read_losses(write(tmp_path / "losses.csv", rows))
    assert baseline == "softmax" and math.isnan(losses.full["V1"][4])
    text = verdict(tmp_path / "losses.csv")
    assert "UNSTABLE  V1 is unstable: 1 of 5 runs failed" in text
