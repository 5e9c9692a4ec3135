"""What the verbs' options say of themselves in the help."""

import pytest

from diffattn.cli.arguments import parse


def chosen(
    names: tuple[str, ...] = (), ends: tuple[float, float] = (1.0, 2.0), kept: tuple[str, ...] = ("a", "b")
) -> tuple[object, ...]:
    return names, ends, kept


def test_the_help_says_none_where_a_default_has_no_words(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    with pytest.raises(SystemExit):
        parse(chosen, ["--help"], "verb")
    told = capsys.readouterr().out
    assert "(default: none)" in told and "(default: 1.0 2.0)" in told and "(default: a b)" in told
    assert "default: )" not in told


def test_options_without_words_stay_as_they_are() -> None:
    assert parse(chosen, [], "verb") == ((), (1.0, 2.0), ("a", "b"))
    assert parse(chosen, ["--names", "x", "y", "--kept"], "verb") == (("x", "y"), (1.0, 2.0), ())
