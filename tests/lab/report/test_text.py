"""report.md: words that read as they stand and mean the same when they are rendered, and what the page has too."""

import html
import re
from pathlib import Path

import pytest
from markdown_it import MarkdownIt

from diffattn.lab.report import write_report
from diffattn.lab.report.glossary import GLOSSARY, glossary
from diffattn.lab.report.markdown import in_table, plain, table
from diffattn.lab.report.tables import Column, Table
from support.runs import Story, write_plan

RENDERER = MarkdownIt("commonmark").enable(["table", "strikethrough"])


def rendered(markdown: str) -> str:
    """The text that a reader of the rendered Markdown sees."""
    return html.unescape(re.sub(r"<[^>]+>", "", RENDERER.render(markdown))).strip()


@pytest.mark.parametrize(
    "words",
    [
        "softmax_norm and diff_v1, rate 2.5e-3 (one shared)",
        "x86_64-with-glibc2.36",
        "a < b, 3 * 4 > 5, [1, 2], ~5 min, R&D",
        "-0.031 nats (-0.048 to -0.014, 5 seeds), worth 22 % of tokens; at a quarter +- 0.05",
    ],
)
def test_ordinary_words_are_left_alone(words: str) -> None:
    assert plain(words) == words == rendered(words)


@pytest.mark.parametrize(
    "words",
    [
        "_start_ and __init__ and a_ b_c _d",
        "*bold* a*b*c **x**",
        "<b>x</b> <!-- no --> &amp; &#60;",
        "[a](b) [a][b] [a]: b ![i](j)",
        "C:\\dir\\_x \\* \\",
        "one ` alone",
        "~~gone~~ ~gone~",
        "# heading",
        "- item",
        "+ item",
        "12. item",
        "> quoted",
        "---",
        "===",
        "[ ] box",
    ],
)
def test_what_markdown_would_misread_reads_the_same_when_rendered(words: str) -> None:
    assert rendered(plain(words)) == words
    assert rendered(f"- {plain(words)}") == words
    row = table(Table([("arm", "", 0)], [("", [Column(words, "", ["1"])])]))
    assert words in rendered(row)


def test_commands_stay_commands() -> None:
    words = "no verdict; `--confirm diff_v1 *` adds 7 runs of a_task_"
    assert plain(words) == "no verdict; `--confirm diff_v1 *` adds 7 runs of a_task\\_"
    assert "<code>--confirm diff_v1 *</code>" in RENDERER.render(plain(words))


def test_a_bar_is_escaped_in_tables_alone() -> None:
    assert plain("share of |mass|") == "share of |mass|"
    assert in_table("share of |mass|") == "share of \\|mass\\|"


def test_quantities_of_the_same_name_are_told_apart_by_their_group() -> None:
    groups = [(name, [Column("Top 1", "|value|", ["1"])]) for name in ("Logits", "Hidden states")]
    lines = table(Table([("softmax", "", 0)], [*groups, ("Model", [Column("Loss", "nats", ["2"])])])).splitlines()
    assert [line.split(" | ")[0] for line in lines[2:]] == [
        "| Logits: Top 1, \\|value\\|",
        "| Hidden states: Top 1, \\|value\\|",
        "| Loss, nats",
    ]


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = write_plan(tmp_path_factory.mktemp("text") / "quick")
    write_report(folder)
    return (folder / "report.md").read_text()


def test_names_of_arms_stand_without_backslashes(text: str) -> None:
    assert "softmax_norm" in text and "`--confirm softmax_norm` adds" in text
    assert set(re.findall(r"\\(.)", text)) == {"|"}


def test_what_the_instruments_found_is_told_task_by_task(text: str) -> None:
    sections = text.split("### Inside the models (exploratory)")
    assert len(sections) == 3
    for section in sections[1:]:
        for quantity in (
            "On the heaviest key",
            "On the answer",
            "λ of the model",
            "Keys used",
            "Kurtosis",
            "Signal / noise",
        ):
            assert f"| {quantity}" in section or f": {quantity}" in section
    assert text.count("Keys used: e to the entropy") == 1


def test_a_plan_without_finished_runs_has_no_section_of_the_instruments(tmp_path: Path) -> None:
    write_report(write_plan(tmp_path / "new", Story(started=False)))
    assert "Inside the models" not in (tmp_path / "new" / "report.md").read_text()


def test_the_text_ends_with_the_words_that_occur_in_it(text: str) -> None:
    body, _, words = text.partition("## Words\n\n")
    assert words.splitlines() == [f"- **{word}**: {plain(meaning)}." for word, meaning in glossary(body)]
    assert "- **ruler**: " in words and "- **SCREEN, no verdict**: " in words
    assert "UNRESOLVED" not in words


@pytest.mark.parametrize(
    "sentence", ["**UNRESOLVED** v1: between -0.04 and +0.02 nats; 5 seeds can see 0.05", "no words"]
)
def test_a_word_is_explained_where_it_occurs_and_nowhere_else(sentence: str) -> None:
    found = [word for word, _ in glossary(sentence)]
    assert found == (["seed", "nats", "UNRESOLVED", "could see"] if "v1" in sentence else [])


def test_meanings_are_one_line_each() -> None:
    assert all(len(meaning) < 200 and "\n" not in meaning for _, _, meaning in GLOSSARY)
