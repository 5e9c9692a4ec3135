"""The command line says what it can do, and ends a user's mistake with one line and exit status 2."""

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
    ],
)
def test_a_mistake_is_one_line_that_names_it_and_exit_status_2(argv, says, capsys):
    assert main(argv) == 2
    captured = capsys.readouterr()
    assert says in captured.err
    assert captured.err.startswith("diffattn: ")
    assert captured.out == ""


def test_info_lists_variants_with_their_formula_lines(capsys):
    assert main(["info", "variants"]) == 0
    printed = capsys.readouterr().out
    assert "diff_v1" in printed and "2410.05258" in printed
