"""Several saved models side by side: each task's numbers are those of its own function."""

import json
import re
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch

from diffattn.cli import main
from diffattn.data import SyntheticData, TextData, open_data
from diffattn.evals.instruments import look_inside
from diffattn.evals.ladder import measure, side_by_side
from diffattn.evals.outliers import outliers
from diffattn.evals.perplexity import evaluate
from diffattn.hub.convert import save
from support.models import small_model


@pytest.fixture
def text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A folder of short documents."""
    monkeypatch.setenv("DIFFATTN_CACHE", str(tmp_path / "cache"))
    (tmp_path / "text").mkdir()
    for name in range(300):
        (tmp_path / "text" / f"{name}.txt").write_text(f"{name} bottles of beer, take one down. ")
    return str(tmp_path / "text")


def test_each_task_is_measured_on_the_held_out_text(tmp_path: Path, text: str) -> None:
    model = small_model("diff_v1", torch.float32, vocab_size=257)
    save(model, tmp_path / "model")
    data = open_data(TextData(source=text), context=24, batch_size=4, seed=0)
    found = measure(tmp_path / "model", ("loss", "maps", "outliers"), text, split="test", batch_size=3)
    expected = evaluate(model, data.evaluation("test"), data.token_bytes)
    assert found["loss"]["count"] == expected.count
    assert found["loss"]["loss"] == pytest.approx(expected.loss, rel=1e-6)
    assert found["loss"]["bits_per_byte"] is not None and "documents" not in found["loss"]
    told = Mock()
    inside = look_inside(model, data.evaluation("test"), answers=False, told=told).to_dict()
    windows = inside["tokens"] // 24
    assert told.call_args.args == (windows, windows)
    assert found["maps"]["tokens"] == inside["tokens"] and found["maps"]["answers"] == 0
    for one, other in zip(found["maps"]["layers"], inside["layers"], strict=True):
        assert one["pair"]["cosine"]["mean"] == pytest.approx(other["pair"]["cosine"]["mean"], rel=1e-5)
    massive = outliers(model, data.evaluation("test")).to_dict()
    assert found["outliers"]["hidden"]["top1"] == pytest.approx(massive["hidden"]["top1"], rel=1e-5)


def test_a_synthetic_runs_model_is_judged_on_its_own_task(tmp_path: Path) -> None:
    data = SyntheticData(task="recall", pairs=4, keys=16, values=16)
    (tmp_path / "config.json").write_text(json.dumps({"data": data.to_dict()}))
    save(small_model("diff_v2", torch.float32), tmp_path / "model")
    found = measure(tmp_path / "model", ("maps",), tokens=240)
    assert "recall" in found["data"]
    # Ten windows of four questions each.
    assert found["maps"]["answers"] == 40
    assert found["maps"]["layers"][0]["outputs"]["signal_to_noise"]["effective"]["mean"] > 0


def test_a_model_with_too_few_ids_for_the_text_is_refused(tmp_path: Path, text: str) -> None:
    save(small_model("diff_v1"), tmp_path / "few")
    with pytest.raises(ValueError, match=r"40 token ids, bytes have 257"):
        measure(tmp_path / "few", ("loss",), text)


def test_one_loss_is_json_and_a_ladder_is_a_table(
    tmp_path: Path, text: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    folders = []
    for width in (32, 64):
        folders.append(f"w{width}")
        save(small_model("diff_v1", torch.float32, vocab_size=257, width=width), Path(folders[-1]))
    assert main(["eval", folders[0], "--source", text]) == 0
    assert json.loads(capsys.readouterr().out)["loss"] > 0
    tasks = ["--tasks", "loss", "maps", "outliers", "--tokens", "480"]
    assert main(["eval", *folders, *tasks, "--source", text, "--out", str(tmp_path / "out")]) == 0
    printed = capsys.readouterr().out.splitlines()
    kept = json.loads((tmp_path / "out" / "eval.json").read_text())["models"]
    assert printed[0].split() == ["model", *folders]
    assert printed == side_by_side(kept).splitlines()
    for line, part in (("top |hidden|", "hidden"), ("top |logits|", "logits")):
        (row,) = [row for row in printed if row.startswith(line)]
        assert [float(x) for x in row.removeprefix(line).split()] == pytest.approx(
            [model["outliers"][part]["top1"] for model in kept], rel=1e-3
        )


def test_models_that_were_asked_different_things_stand_side_by_side() -> None:
    def found(name: str, low: float | None, beside: dict[str, float]) -> dict[str, Any]:
        measure = {"value": 0.5, "low": low, "high": low, "n": 1, "interval": ""}
        task = {"metric": "share", "measure": measure, "parts": {"beside": beside}, "unit": "questions"}
        return {"model": name, "tasks": {"t": task}}

    table = side_by_side([found("one", 0.25, {"at 64": 1.0}), found("another/model", None, {"at 128": 2.0})])
    rows = [
        ("model", "one", "another/model"),
        ("t: share", "0.5 (0.25 to 0.25, n = 1 questions)", "0.5 (- to -, n = 1 questions)"),
        ("t: at 64", "1", "-"),
        ("t: at 128", "-", "2"),
    ]
    assert table.splitlines() == [f"{what:<9}  {one:<35}  {other}" for what, one, other in rows]


def test_what_a_loss_does_not_have_is_not_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = SyntheticData(task="recall", pairs=4, keys=16, values=16, heldout_sequences=8)
    (tmp_path / "config.json").write_text(json.dumps({"data": data.to_dict()}))
    save(small_model("diff_v2", torch.float32), tmp_path / "model")
    assert main(["eval", str(tmp_path / "model")]) == 0
    printed = capsys.readouterr().out
    assert "null" not in printed
    found = json.loads(printed)
    assert "recall" in found["data"] and not {"bits_per_byte", "other_tokens", "kinds"} & found.keys()
    # Values behind the four keys that are asked for.
    assert list(found["by_position"]) == ["8", "10", "12", "14"]
    assert found["by_position"]["8"] > 0


def test_text_is_not_asked_of_a_model_without_it_and_nothing_is_measured_before(
    tmp_path: Path, text: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("diffattn.evals.ladder.measure", pytest.fail)
    save(small_model("diff_v1", torch.float32, vocab_size=257), tmp_path / "reads")
    save(small_model("diff_v1"), tmp_path / "few")
    assert main(["eval", str(tmp_path / "reads"), str(tmp_path / "few"), "--tasks", "loss", "shift"]) == 2
    assert "few has 40 token ids, too few for text" in (said := capsys.readouterr().err)
    assert "--tasks loss maps outliers" in said


@pytest.mark.parametrize(
    ("task", "options", "says"),
    [
        ("needle", ["--needle.source", "nowhere"], "needle: no file, folder or glob matches 'nowhere'"),
        ("needle", ["--needle.source", "mixed"], "picture.txt is not text (binary)"),
        ("needle", ["--needle.depths", "0", "101"], "needle: depths are per cent"),
        ("needle_alike", ["--needle-alike.lookalikes", "9"], "needle_alike: "),
        ("many_shot", ["--many-shot.data", "nowhere"], "many_shot: no labelled texts at 'nowhere'"),
        ("many_shot", ["--many-shot.data", "alike.csv"], "alike.csv: there must be at least 2 classes"),
        ("many_shot", ["--many-shot.data", "wide.csv"], "wide.csv is not UTF-8 text"),
        ("many_shot", ["--out", "empty.txt"], "--out empty.txt: results need a folder"),
        ("hallucination", ["--hallucination.data", "nowhere"], "hallucination: no questions at 'nowhere'"),
        ("hallucination", ["--hallucination.data", "broken.jsonl"], "broken.jsonl, line 1: expected"),
        ("hallucination", ["--hallucination.judge", "http://localhost:1"], "hallucination: a judge needs its model's"),
        ("long_context", ["--long-context.source", "nowhere"], "long_context: no file"),
        ("long_context", ["--long-context.source", "empty.txt"], "long_context: empty.txt: there is no document"),
        ("shift", ["--shift.away", "prose", "nowhere"], "shift: no file"),
        ("shift", ["--shift.noise", "2"], "shift: noise is 2"),
        ("shift", ["--shift.tuning.batch-size", "0"], "batch_size at least 1"),
        ("quantise", ["--quantise.source", "nowhere"], "quantise: no file"),
        ("quantise", ["--quantise.then", "needel"], "quantise: then names 'needel'"),
        ("quantise", ["--quantise.bits", "1"], "quantise: bits: got 1"),
        ("outliers", ["--tokens", "0"], "tokens: got 0"),
    ],
)
def test_what_a_later_task_cannot_use_is_told_before_anything_is_measured(
    task: str,
    options: list[str],
    says: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    for place in ("measure", "run_tasks"):
        monkeypatch.setattr(f"diffattn.evals.ladder.{place}", pytest.fail)
    save(small_model("softmax", torch.float32, vocab_size=257), Path("model"))
    Path("broken.jsonl").write_text("{\n")
    Path("empty.txt").touch()
    Path("alike.csv").write_text("".join(f"a text of number {i},one\n" for i in range(50)))
    Path("wide.csv").write_text("a text,one\nanother,two\n" * 20, encoding="utf-16")
    Path("mixed").mkdir()
    Path("mixed", "a.txt").write_text("These are words. " * 2000)
    Path("mixed", "picture.txt").write_bytes(b"\x89PNG\0")
    assert main(["eval", "model", "--tasks", "loss", "long_context", task, *options]) == 2
    printed = capsys.readouterr()
    assert says in printed.err and printed.err.count("\n") == 1 and printed.out == ""


def test_a_later_models_folder_is_looked_at_before_anything_is_measured(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("diffattn.evals.ladder.measure", pytest.fail)
    save(small_model("softmax", torch.float32, vocab_size=257), tmp_path / "model")
    assert main(["eval", str(tmp_path / "model"), str(tmp_path / "modle"), "--tasks", "loss", "maps"]) == 2
    assert "modle" in capsys.readouterr().err


def test_more_tokens_than_there_are_for_outliers_are_told_before_the_loss(
    tmp_path: Path, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("diffattn.evals.ladder.evaluate", pytest.fail)
    save(small_model("softmax", torch.float32, vocab_size=257), tmp_path / "model")
    with pytest.raises(ValueError, match="1,000,000 tokens are needed, there are"):
        measure(tmp_path / "model", ("loss", "outliers"), text, tokens=1_000_000)


def test_maps_read_a_part_where_nobody_says_how_much_and_tell_it(
    tmp_path: Path, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("diffattn.evals.ladder.INSIDE_TOKENS", 72)
    save(small_model("diff_v1", torch.float32, vocab_size=257), tmp_path / "model")
    found = measure(tmp_path / "model", ("loss", "maps"), text)
    data = open_data(TextData(source=text), context=24, batch_size=4, seed=0)
    there = sum(batch.tokens.numel() for batch in data.evaluation("dev"))
    assert found["loss"]["count"] > 72
    assert f"tokens read for maps  72 of {there:,}; more with --tokens" in _one_space(side_by_side([found]))
    every = measure(tmp_path / "model", ("maps",), text, tokens=there)
    assert f"tokens read for maps  {there:,} of {there:,}\n" in _one_space(side_by_side([every]))


def _one_space(table: str) -> str:
    """The columns of a table two spaces apart."""
    return "\n".join(re.sub(" {2,}", "  ", line.rstrip()) for line in table.splitlines())


@pytest.mark.parametrize("task", ["recall", "needle"])
def test_held_out_sequences_are_counted_as_they_are_given(task: Any) -> None:
    data = open_data(SyntheticData(task=task, heldout_sequences=40), context=96, batch_size=16, seed=0)
    assert data.heldout_tokens("test") == sum(batch.tokens.numel() for batch in data.evaluation("test"))


def test_two_models_stand_in_lines_of_120_columns_and_are_compared_on_the_same_pieces(
    tmp_path: Path, text: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    folders = [str(tmp_path / "a-model-in-a-folder-with-a-long-name" / variant) for variant in ("softmax", "diff_v1")]
    for folder in folders:
        save(small_model(Path(folder).name, torch.float32, vocab_size=257), Path(folder))
    options = ["--shift.home", text, "--shift.tuning.steps", "0", "--limit", "8", "--out", str(tmp_path / "out")]
    assert main(["eval", *folders, "--tasks", "shift", *options]) == 0
    printed = capsys.readouterr().out
    assert max(map(len, printed.splitlines())) <= 120
    assert " bytes)" in printed
    assert " on the same pieces: " in " ".join(printed.split())
    (pair,) = json.loads((tmp_path / "out" / "eval.json").read_text())["pairs"]
    assert (pair["task"], pair["model"], pair["against"]) == ("shift", folders[1], folders[0])
    assert pair["difference"]["low"] < pair["difference"]["value"] < pair["difference"]["high"]


def test_what_was_found_of_a_run_is_kept_there_and_of_a_checkpoint_beside_others_nowhere(tmp_path: Path) -> None:
    for name in ("model", "checkpoint-5"):
        save(small_model("softmax", torch.float32, vocab_size=257), tmp_path / name)
    (tmp_path / "config.json").write_text("{}")
    call = ["--tasks", "long_context", "--limit", "2"]
    assert main(["eval", str(tmp_path / "checkpoint-5"), *call]) == 0
    assert not (tmp_path / "evals").exists()
    assert main(["eval", str(tmp_path / "model"), *call]) == 0
    assert (tmp_path / "evals" / "long_context.json").is_file()


@pytest.mark.parametrize(("option", "value"), [("limit", "0"), ("limit", "-1"), ("seed", "-1")])
def test_limits_and_seeds_are_checked_before_anything_is_measured(
    option: str, value: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save(small_model("softmax", torch.float32, vocab_size=257), tmp_path)
    assert main(["eval", str(tmp_path), "--tasks", "needle", f"--{option}", value]) == 2
    assert f"{option}: got {value}" in capsys.readouterr().err


@pytest.mark.parametrize("option", [("--source", "nowhere"), ("--tokens", "9")])
def test_a_text_that_no_named_task_reads_is_refused(
    option: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save(small_model("softmax", torch.float32, vocab_size=257), tmp_path)
    assert main(["eval", str(tmp_path), "--tasks", "long_context", *option]) == 2
    assert "--source and --tokens are read by loss, maps, outliers" in capsys.readouterr().err


def test_a_task_that_reads_another_text_than_the_loss_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save(small_model("softmax", torch.float32, vocab_size=257), tmp_path / "model")
    (tmp_path / "text.txt").write_text("These are words. " * 2000)
    call = ["eval", str(tmp_path / "model"), "--tasks", "loss", "long_context", "--limit", "2"]
    assert main([*call, "--source", str(tmp_path / "text.txt"), "--tokens", "100"]) == 0
    assert "--source is not read by long_context, whose text is 'stdlib'" in capsys.readouterr().out


def test_what_one_task_cannot_do_costs_the_others_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The context of 24 bytes holds no needle; lengths of text it reads."""
    save(small_model("softmax", torch.float32, vocab_size=257), tmp_path / "tiny")
    options = ["--limit", "2", "--out", str(tmp_path / "out")]
    assert main(["eval", str(tmp_path / "tiny"), "--tasks", "needle", "long_context", *options]) == 2
    printed = capsys.readouterr()
    assert f"needle, {tmp_path / 'tiny'}: " in printed.err and "long_context" not in printed.err
    assert "long_context" in printed.out and "needle" not in printed.out
    tasks = json.loads((tmp_path / "out" / "eval.json").read_text())["models"][0]["tasks"]
    assert tasks["long_context"]["measure"]["n"] > 0 and "24" in tasks["needle"]["failed"]


def test_a_limit_that_leaves_depths_out_is_told_below_the_picture(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save(small_model("softmax", torch.float32, vocab_size=257, context=256), tmp_path)
    options = ["--needle.source", "noise", "--needle.lengths", "1", "--limit", "4"]
    assert main(["eval", str(tmp_path), "--tasks", "needle", *options]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "guess 0 25 No question at 1 of 5 places (facts, length, depth); none at all at depth" in said
    assert said.endswith("--limit 5 asks at each.")


def test_numbers_on_other_items_are_said_not_to_compare(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, context in (("short", 192), ("long", 256)):
        save(small_model("softmax", torch.float32, vocab_size=257, context=context), tmp_path / name)
    folders = [str(tmp_path / "short"), str(tmp_path / "long")]
    assert main(["eval", *folders, "--tasks", "needle", "--limit", "2"]) == 0
    assert "asked other items than" in " ".join(capsys.readouterr().out.split())


def test_a_call_without_models_says_what_is_missing(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["eval"]) == 2
    assert "needs a model folder" in capsys.readouterr().err


def test_a_folder_may_be_called_like_a_task(tmp_path: Path, monkeypatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "needle").mkdir()
    assert main(["eval", "missing", "--tasks", "needle"]) == 2
    told = capsys.readouterr().err
    assert "missing" in told and "needs a value" not in told
