"""report.json and report.md: stable keys, and numbers that follow from the run folders."""

import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from diffattn.lab.report import write_report
from diffattn.lab.report.seeds import binned
from diffattn.lab.report.words import parted
from support.runs import ARMS, Story, write_plan


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = write_plan(tmp_path_factory.mktemp("summary") / "quick")
    write_report(path)
    return path


@pytest.fixture(scope="module")
def numbers(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "report.json").read_text())


def read(path: Path) -> Any:
    return json.loads(path.read_text())


def test_each_task_holds_four_arms_of_three_seeds(numbers: dict[str, Any]) -> None:
    assert list(numbers["tasks"]) == ["recall", "text"]
    for task in numbers["tasks"].values():
        assert list(task["arms"]) == list(ARMS)
        for arm in task["arms"].values():
            assert list(arm["seeds"]) == ["0", "1", "2"]
            assert all(math.isfinite(seed["final_loss"]) for seed in arm["seeds"].values())


def test_final_losses_are_those_of_the_test_split(folder: Path, numbers: dict[str, Any]) -> None:
    for arm in ARMS:
        heldout = read(folder / f"text-{arm}-lr0.005-s1" / "evals" / "test.json")
        seed = numbers["tasks"]["text"]["arms"][arm]["seeds"]["1"]
        assert seed["final_loss"] == heldout["loss"]
        assert seed["recall_hits"] == heldout["recall_hits"]
    assert numbers["tasks"]["text"]["split"] == "test"


def test_dev_stands_in_for_all_arms_while_one_test_evaluation_is_missing(tmp_path: Path) -> None:
    path = write_plan(tmp_path / "quick", Story(tasks=("text",)))
    (path / "text-diff_v1-lr0.005-s0" / "evals" / "test.json").unlink()
    write_report(path)
    task = read(path / "report.json")["tasks"]["text"]
    assert task["split"] == "dev"
    for arm in ARMS:
        dev = read(path / f"text-{arm}-lr0.005-s0" / "evals" / "dev.json")["loss"]
        assert task["arms"][arm]["seeds"]["0"]["final_loss"] == dev


def test_sweep_runs_never_count_as_seeds(numbers: dict[str, Any]) -> None:
    recall = numbers["tasks"]["recall"]
    assert {run["seed"] for run in recall["sweep"]} == {100, 101}
    assert len(recall["sweep"]) == 4 * 4 * 2
    assert recall["arms"]["diff_v2"]["learning_rate"] == 0.005


def test_a_failed_sweep_run_is_kept_and_hides_the_mean_of_the_others(tmp_path: Path) -> None:
    failed = frozenset({("recall", "softmax", 101, 0.02)})
    path = write_plan(tmp_path / "quick", Story(tasks=("recall",), failed_sweep=failed))
    page = write_report(path).read_text()
    report = read(path / "report.json")
    kept = [r for r in report["tasks"]["recall"]["sweep"] if (r["arm"], r["learning_rate"]) == ("softmax", 0.02)]
    assert sorted(r["seed"] for r in kept) == [100, 101]
    assert [r["seed"] for r in kept if r["loss"] is None] == [101]
    assert [run["sweep"] for run in report["failed"]] == [True]
    assert "Failed runs of the sweep: 1;" in page
    # Three of the four rates are left for softmax, four for each of the others.
    assert page.count("softmax: chosen 0.01</title></path>") == 3
    assert page.count("diff_v1: chosen 0.01</title></path>") == 4


def test_a_finite_loss_far_above_the_baseline_is_a_failed_run(tmp_path: Path) -> None:
    path = write_plan(tmp_path / "quick", Story(tasks=("text",), diverged=frozenset({("text", "diff_v1", 1)})))
    write_report(path)
    report = read(path / "report.json")
    (failed,) = report["failed"]
    arm = report["tasks"]["text"]["arms"]["diff_v1"]
    assert (failed["arm"], failed["seed"]) == ("diff_v1", 1)
    assert failed["loss"] == arm["seeds"]["1"]["final_loss"] > 4
    assert arm["failed_seeds"] == [1]
    assert arm["loss"]["mean"] is None and report["tasks"]["text"]["arms"]["diff_v2"]["loss"]["n"] == 3
    verdicts = {finding["arm"]: finding["verdict"] for finding in report["tasks"]["text"]["findings"]}
    assert verdicts["diff_v1"] == "UNSTABLE"
    assert "3 of 3, 1 failed" in (path / "report.md").read_text()


def test_tokens_to_a_share_are_those_of_the_first_evaluation_that_reached_it(
    folder: Path, numbers: dict[str, Any]
) -> None:
    lines = (folder / "recall-diff_v1-lr0.01-s0" / "metrics.jsonl").read_text().splitlines()
    evals = [row for row in map(json.loads, lines) if row["kind"] == "eval"]
    seed = numbers["tasks"]["recall"]["arms"]["diff_v1"]["seeds"]["0"]
    for share, key in ((0.5, "tokens_to_50"), (0.9, "tokens_to_90")):
        assert seed[key] == min(row["tokens"] for row in evals if row["accuracy"] >= share)


def test_equal_time_is_what_every_arm_has_used(numbers: dict[str, Any]) -> None:
    text = numbers["tasks"]["text"]
    for name, arm in text["arms"].items():
        for seed in arm["seeds"].values():
            losses = [point["loss"] for point in seed["curve"]]
            assert min(losses) <= seed["loss_at_equal_time"] <= max(losses), name
    slowest = max(seed["seconds"] for seed in text["arms"]["softmax"]["seeds"].values())
    assert text["equal_time_seconds"] == slowest


def test_what_was_not_equal_is_said_per_arm(numbers: dict[str, Any]) -> None:
    said = numbers["tasks"]["recall"]["not_equal"]
    assert "softmax" not in said
    assert "FFN width 236 against 256" in said["diff_v2"]
    assert "learning rate 0.005 against 0.01" in said["diff_v2"]
    assert "cache × 0.50" in said["diff_v2"]
    assert "learning rate" not in said["diff_v1"]


def test_an_unfinished_run_shows_its_curve_and_no_final_loss(tmp_path: Path) -> None:
    path = write_plan(tmp_path / "quick", Story(unfinished=frozenset({("text", "diff_v1", 2)})))
    write_report(path)
    seed = read(path / "report.json")["tasks"]["text"]["arms"]["diff_v1"]["seeds"]["2"]
    assert seed["status"] == "unfinished"
    assert seed["curve"] and seed["final_loss"] is None and seed["loss_at_equal_time"] is None


def test_positions_are_binned_in_growing_ranges_that_cover_each_scored_position_once() -> None:
    losses = [float(i) for i in range(1, 101)]
    bins = binned(losses)
    assert [b["first"] for b in bins[1:]] == [b["last"] + 1 for b in bins[:-1]]
    assert (bins[0]["first"], bins[-1]["last"]) == (1, 100)
    assert sum(b["loss"] * (b["last"] - b["first"] + 1) for b in bins) == pytest.approx(sum(losses))
    assert binned([None, None]) == []
    assert binned([]) == []


def test_the_markdown_holds_sentences_losses_and_commands(folder: Path, numbers: dict[str, Any]) -> None:
    text = (folder / "report.md").read_text().replace("\\", "")
    for task in numbers["tasks"].values():
        claims, conditions = zip(*(parted(finding) for finding in task["findings"]), strict=True)
        assert all(claim in text for claim in claims)
        # What they are true of is the same for all of a task, and said once.
        assert text.count(conditions[0]) == 1
        for arm in task["arms"].values():
            assert all(f"{seed['final_loss']:.4f}" in text for seed in arm["seeds"].values())
    assert "    diffattn compare quick\n" in text
    tables = [line for line in text.splitlines() if line.startswith("|")]
    assert tables and all(line.endswith("|") for line in tables)


def test_machines_are_counted_and_commands_listed(numbers: dict[str, Any]) -> None:
    (machine,) = numbers["environments"]
    assert machine["runs"] == numbers["plan"]["runs"]["ended"] == 71
    assert machine["peak_gflops"] == [92.4, 193.4]
    assert numbers["commands"][0] == "diffattn compare quick"


def test_a_folder_that_is_no_plan_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"has no plan\.json.*runs/quick"):
        write_report(tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "cannot be read"),
        ("[]", "an object should be"),
        ('{"tasks": [1]}', r"holds 1 where an object should be \(tasks\[0\]\)"),
        ('{"tasks": [{"name": "x"}]}', r"lacks the key 'runs' in tasks\[0\]"),
        ('{"tasks": []}', "lacks the key 'name'"),
    ],
)
def test_a_plan_that_cannot_be_used_is_refused_by_name(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "plan.json").write_text(content)
    with pytest.raises(ValueError, match=rf"plan\.json.*{message}.*compare"):
        write_report(tmp_path)


@pytest.mark.parametrize("key", ["arms", "baseline", "metric", "seeds", "chosen", "context", "data", "tokens"])
def test_a_task_without_one_of_its_keys_is_refused_by_name(tmp_path: Path, key: str) -> None:
    path = write_plan(tmp_path / "quick", Story(tasks=("text",), started=False))
    plan = read(path / "plan.json")
    del plan["tasks"][0][key]
    (path / "plan.json").write_text(json.dumps(plan))
    with pytest.raises(ValueError, match=rf"plan\.json lacks the key '{key}' in tasks\[0\]"):
        write_report(path)


def test_a_baseline_that_is_no_arm_is_refused(tmp_path: Path) -> None:
    path = write_plan(tmp_path / "quick", Story(tasks=("text",), started=False))
    plan = read(path / "plan.json")
    plan["tasks"][0]["baseline"] = "lost"
    (path / "plan.json").write_text(json.dumps(plan))
    with pytest.raises(ValueError, match="task 'text' has no arm 'lost'"):
        write_report(path)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("metrics.jsonl", b"[1]\n", r", line 1, holds \[1\] where an object should be"),
        ("metrics.jsonl", b"\xff\xfe\x00\n", " cannot be read"),
        ("metrics.jsonl", b'{"kind":"eval","split":"dev"}\n', ", line 1, lacks the key 'step'"),
        ("environment.json", b"[]", " holds .* where an object should be"),
        ("config.json", b"{}", " lacks the key 'model'"),
        ("done", b'{"status":"finished"}', " lacks the key 'loss'"),
        ("evals/dev.json", b"{}", " lacks the key 'loss'"),
        ("evals/dev.json", b"[]", " holds .* where an object should be"),
        ("evals/dev.json", b'{"loss":true}', r" holds True where a number should be \(loss\)"),
        ("evals/maps.json", b'{"tokens":["a"],"heads":[1]}', r" holds 1 where an object should be \(heads\[0\]\)"),
    ],
)
def test_a_file_of_another_shape_is_named_with_its_run(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    path = write_plan(tmp_path / "quick", Story(tasks=("text",)))
    (path / "text-softmax-lr0.005-s0" / name).write_bytes(content)
    with pytest.raises(ValueError, match=rf"text-softmax-lr0\.005-s0/{name}{message}"):
        write_report(path)


def test_a_finished_run_without_its_curve_leaves_a_report(tmp_path: Path) -> None:
    path = write_plan(tmp_path / "quick", Story(tasks=("text",)))
    for run in path.glob("text-diff_v2-lr0.005-s*"):
        (run / "metrics.jsonl").write_bytes(b"")
    write_report(path)
    assert "—" in (path / "report.md").read_text()


def test_a_damaged_file_is_named_and_the_old_report_stays(tmp_path: Path) -> None:
    path = write_plan(tmp_path / "quick", Story(tasks=("text",)))
    page = write_report(path)
    before = page.read_bytes()
    (path / "text-softmax-lr0.005-s0" / "evals" / "test.json").write_text('{"loss": 1.')
    with pytest.raises(ValueError, match=r"text-softmax-lr0\.005-s0/evals/test\.json cannot be read"):
        write_report(path)
    assert page.read_bytes() == before
    assert not list(path.glob(".report*"))


def test_the_same_folder_gives_the_same_files(folder: Path) -> None:
    names = ("report.html", "report.json", "report.md")
    before = [(folder / name).read_bytes() for name in names]
    write_report(folder)
    assert [(folder / name).read_bytes() for name in names] == before


def test_the_report_is_written_without_torch(folder: Path) -> None:
    code = f"from diffattn.lab.report import write_report; write_report({str(folder)!r}); import sys; "
    subprocess.run([sys.executable, "-c", f"{code}assert 'torch' not in sys.modules"], check=True)


def test_commands_that_repeat_runs_each_have_a_folder_of_their_own(numbers: dict[str, Any]) -> None:
    commands = numbers["commands"][1:]
    assert commands and all(" --out again/" in command for command in commands)
    assert len({command.split(" --out ")[1] for command in commands}) == len(commands)
