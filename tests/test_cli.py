"""The command line says what it can do, and ends a user's mistake with one line and exit status 2."""

import re
import subprocess
import sys

import pytest

from diffattn.cli import VERBS, main


def test_help_lists_every_verb(capsys):
    assert main(["--help"]) == 0
    printed = capsys.readouterr().out
    assert all(verb in printed for verb in VERBS)


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (["compar"], "did you mean 'compare'"),
        (["compare"], "needs RECIPE"),
        (["compare", "quik"], "quick"),
        (["verdict", "no-such-file.csv"], "no-such-file.csv"),
        (["report", "no-such-folder"], "no-such-folder"),
        (["data", "prepare", "no-such-file.txt"], "no-such-file.txt"),
        (["data", "prepar"], "did you mean 'prepare'"),
        (["eval", "no-such-model"], "no-such-model"),
        (["generate", "no-such-model", "--prompt", "x"], "no-such-model"),
        (["train", "--variant", "dif_v1"], "diff_v1"),
        (["train", "--from", "no-such-config.json"], "no-such-config.json"),
        (["info", "variant"], "did you mean 'variants'"),
        (["train", "--task", "recal"], "did you mean 'recall'"),
        (["compare", "quick", "--dry-run", "--data.source", "no-such-file.txt"], "no-such-file.txt"),
        (["compare", "smoke", "--tasks", "recal"], "did you mean 'recall'"),
        (["compare", "quick", "--evals", "needel"], "did you mean 'needle'"),
        (["compare", "smoke", "--confirm"], "--confirm needs arms: softmax_norm, diff_v1, diff_v2"),
        (["compare", "smoke", "--hours", "nan"], "--hours is nan"),
        (["compare", "smoke", "--hours", "-1"], "--hours is -1"),
        (["compare", "smoke", "--out", __file__], "is a file"),
        (["train", "--from", __file__], "is not the config.json of a run"),
        (["bench"], "needs SUBJECT"),
        (["bench", "atention"], "did you mean 'attention'"),
        (["bench", "attention", "--contenders", "diff_attention:nothing"], "there is no 'diff_attention:nothing'"),
        (["bench", "attention", "--heads", "3", "--kv-heads", "2"], "needs a divisor of the 3 heads"),
        (["bench", "step", "--recipe", "quik"], "did you mean 'quick'"),
        (["bench", "step", "--task", "txt"], "did you mean 'text'"),
        (["bench", "decode", "--arms", "diff_v3"], "has no arm 'diff_v3'"),
    ],
)
def test_a_mistake_is_one_line_that_names_it_and_exit_status_2(argv, says, capsys):
    assert main(argv) == 2
    captured = capsys.readouterr()
    assert says in captured.err
    mistake = [line for line in captured.err.splitlines() if not line.startswith("differs from the recipe: ")]
    assert mistake[0].startswith("diffattn: ")
    assert captured.out == ""


def test_info_lists_variants_with_their_formula_lines(capsys):
    assert main(["info", "variants"]) == 0
    printed = capsys.readouterr().out
    assert "diff_v1" in printed and "2410.05258" in printed


def test_info_lists_tasks_with_what_they_measure_and_how_a_file_is_given(capsys):
    from diffattn.evals.tasks import TASKS

    assert main(["info", "tasks"]) == 0
    printed = capsys.readouterr().out
    told = dict(re.findall(r"^  (\S+) +(\S.+)\n +file: (?:.+)$", printed, re.MULTILINE))
    assert list(told) == ["loss", "maps", "outliers", *TASKS, "lm-eval:NAME"]
    assert told["needle"] == "Magic numbers of cities, hidden in filler; some of them are asked for."
    for option in ("--source TEXT", "--many-shot.data FILE", "--needle-chain.source TEXT", "--shift.away TEXT"):
        assert f"file: {option}" in printed or f" {option} ..." in printed


def test_tasks_and_arms_can_be_chosen(capsys):
    assert main(["compare", "smoke", "--dry-run", "--tasks", "recall", "--arms", "diff_v1"]) == 0
    printed = capsys.readouterr().out
    assert "task recall" in printed and "diff_v1" in printed
    assert "task text" not in printed and "diff_v2" not in printed


def test_info_has_help(capsys):
    assert main(["info", "--help"]) == 0
    assert "variants" in capsys.readouterr().out


@pytest.mark.parametrize("config", ['{"model": {"mixer": 3}, "data": {"kind": "text"}, "train": {}}', "[]", "{}"])
def test_a_file_that_is_no_run_config_is_named(config, tmp_path, capsys):
    (tmp_path / "x.json").write_text(config)
    assert main(["train", "--from", str(tmp_path / "x.json")]) == 2
    assert "x.json is not the config.json of a run" in capsys.readouterr().err


def test_options_that_differ_from_the_recipe_are_printed(capsys):
    assert main(["compare", "smoke", "--dry-run", "--train.steps", "5"]) == 0
    captured = capsys.readouterr()
    assert "tasks.text.train.steps was 16, is 5" in captured.err
    assert "diff_v1" in captured.out


@pytest.mark.parametrize("argv", [["--help"], ["verdict", "--help"], ["info"]])
def test_a_reader_that_stops_reading_ends_the_call_quietly(argv):
    """As `| head` does; 141 is what a shell says of a program that such a pipe ended."""
    process = subprocess.Popen(
        [sys.executable, "-m", "diffattn.cli", *argv], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    process.stdout.close()
    assert process.stderr.read() == b""
    assert process.wait() == 141
    process.stderr.close()


@pytest.mark.parametrize("spelling", ["--model.rope-scaling", "--model.rope_scaling"])
def test_options_may_be_spelt_with_hyphens_as_help_does_or_underscores(spelling, capsys):
    assert main(["compare", "smoke", "--dry-run", spelling, "yarn", "--model.rope-factor", "2"]) == 0
    assert 'rope_scaling was "none", is "yarn"' in capsys.readouterr().err
