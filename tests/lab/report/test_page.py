"""The page: complete, self-contained, escaped, and with the numbers of report.json."""

import json
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from markdown_it import MarkdownIt

from diffattn.lab.report import write_report
from diffattn.lab.report.glossary import GLOSSARY
from support.runs import ARMS, Story, write_plan

SECTIONS = ["arms", "evidence", "curves", "finals", "learning-rates", "recall", "positions", "maps"]
INSIDE = [
    "inside",
    "lambdas",
    "allocation",
    "prediction",
    "signal",
    "concentration",
    "distance",
    "contribution",
    "outliers",
    "gradients",
    "instruments",
]
VOID = {"meta", "link", "br", "img", "input", "hr", "col"}


class Page(HTMLParser):
    """Elements and text of a page; opening and closing tags are checked against each other."""

    def __init__(self, source: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []
        self._open: list[str] = []
        self.feed(source)
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)

    @property
    def ids(self) -> list[str]:
        return [name for _, attributes in self.tags if (name := attributes.get("id"))]


def report(folder: Path, story: Story | None = None) -> tuple[Page, dict[str, Any]]:
    page = write_report(write_plan(folder, story))
    return Page(page.read_text()), json.loads((folder / "report.json").read_text())


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Page, dict[str, Any]]:
    return report(tmp_path_factory.mktemp("whole") / "quick")


def test_every_task_has_every_section(whole: tuple[Page, dict[str, Any]]) -> None:
    page, _ = whole
    wanted = ["verdicts", "failed", "repeat", "words"]
    wanted += [f"{task}-{section}" for task in ("recall", "text") for section in [*SECTIONS, *INSIDE, "not-equal"]]
    # In the synthetic task recall is all that is scored: there is nothing to hold it against.
    assert (set(wanted) - {"recall-recall"}) | {"recall", "text", "recall-events"} == set(page.ids)
    assert len(page.ids) == len(set(page.ids))
    assert page.ids[0] == "verdicts"


def test_a_finished_report_promises_nothing(whole: tuple[Page, dict[str, Any]]) -> None:
    shown = "".join(whole[0].text)
    assert "None." in shown and "so far" not in shown and "yet" not in shown


def test_links_lead_to_sections_of_the_page(whole: tuple[Page, dict[str, Any]]) -> None:
    page, _ = whole
    links = [attributes["href"] for tag, attributes in page.tags if tag == "a"]
    assert links and {f"#{name}" for name in page.ids} >= set(links)


def test_nothing_is_loaded_from_elsewhere(whole: tuple[Page, dict[str, Any]]) -> None:
    page, _ = whole
    loaded = [value for _, attributes in page.tags for key, value in attributes.items() if key in ("src", "href")]
    assert {value for value in loaded if not (value or "").startswith("#")} == {"data:,"}
    assert not re.search(r"https?:|url\(|@import|//\w", "".join(page.text))
    assert not any(tag in ("script", "img", "iframe", "object") for tag, _ in page.tags)


def test_sentences_and_losses_on_the_page_are_those_of_the_json(whole: tuple[Page, dict[str, Any]]) -> None:
    page, numbers = whole
    shown = re.sub(r"\s+", " ", "".join(page.text))
    for task in numbers["tasks"].values():
        assert len(task["findings"]) == 3
        for finding in task["findings"]:
            claim, _, conditions = finding["sentence"].partition(". Against ")
            assert claim.replace("+-", "±").replace("`", "") + "." in shown
            assert "Against " + conditions in shown
        for arm, found in task["arms"].items():
            for seed, values in found["seeds"].items():
                assert f"{arm}, seed {seed}: {values['final_loss']:.4f}" in shown
    text = numbers["tasks"]["text"]["arms"]["diff_v1"]
    assert f"{text['loss']['mean']:.3f} ± {text['loss']['half_width']:.3f}" in shown
    assert f"{text['other_parameters']:,}".replace(",", " ") in shown


def test_what_all_sentences_of_a_task_are_true_of_is_shown_once(whole: tuple[Page, dict[str, Any]]) -> None:
    page, numbers = whole
    for task in numbers["tasks"].values():
        (conditions,) = {finding["sentence"].partition(". Against ")[2] for finding in task["findings"]}
        assert "".join(page.text).count("Against " + conditions) == 1


def test_sentences_are_typeset_on_the_page_alone(tmp_path: Path) -> None:
    folder = write_plan(tmp_path / "quick", Story(tasks=("text",), names={"diff_v1": "<v1>"}))
    source = write_report(folder).read_text()
    assert (
        "<code>--confirm &lt;v1&gt;</code> adds" in source
        and " ± 0." in source
        and "`" not in source
        and "+-" not in source
    )
    sentence = json.loads((folder / "report.json").read_text())["tasks"]["text"]["findings"][0]["sentence"]
    assert " +- 0." in sentence and "`--confirm softmax_norm`" in sentence
    assert " +- 0." in (folder / "report.md").read_text()


def test_every_picture_has_a_title_a_unit_and_a_caption_with_data_model_and_seeds(
    whole: tuple[Page, dict[str, Any]],
) -> None:
    page, numbers = whole
    pictures = [attributes for tag, attributes in page.tags if tag == "svg" and attributes.get("class") == "panel"]
    assert len(pictures) > 30 and all(attributes["aria-label"] for attributes in pictures)
    captions = re.findall(r"Data: .*?\. Model: .*?\. Seeds 0, 1, 2\. Trained on AMD EPYC 7B13", " ".join(page.text))
    assert len(captions) >= 16
    assert "token shift" in numbers["tasks"]["recall"]["model"]


def test_signed_maps_show_what_is_subtracted(whole: tuple[Page, dict[str, Any]]) -> None:
    page, _ = whole
    text = "".join(page.text)
    assert "A1 − 0.63 A2, layer 2, head 2" in text
    assert any((attributes.get("class") or "").startswith("cell minus") for _, attributes in page.tags)


def test_of_many_arms_a_few_maps_are_drawn_and_the_others_stay_in_the_json(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("diffattn.lab.report.page.MAPPED_IN_FULL", len(ARMS) - 1)
    path = write_plan(tmp_path / "many", Story(tasks=("text",)))
    source = write_report(path).read_text()
    drawn = re.findall(r'aria-label="[^"]*(layer \d, head \d)"', source)
    # Three maps of each differential arm, one of the others: the last head's.
    assert drawn == ["layer 2, head 2"] * (1 + 1 + 3 + 3)
    kept = json.loads((path / "report.json").read_text())["tasks"]["text"]["maps"]["softmax"]["heads"]
    assert [(head["layer"], head["head"]) for head in kept] == [(0, 0), (1, 1), (2, 2)]


def test_the_page_ends_with_the_words_that_occur_in_it_each_explained_once(whole: tuple[Page, dict[str, Any]]) -> None:
    page, _ = whole
    text = re.sub(r"\s+", " ", "".join(page.text))
    assert page.ids[-1] == "words"
    meanings = {word: meaning for word, _, meaning in GLOSSARY}
    for word in ("SCREEN, no verdict", "margin", "ruler", "could see", "mismatch"):
        assert text.count(meanings[word]) == 1
    assert "UNRESOLVED" not in text
    for told in (
        "which is the baseline with 1.25",
        "would find with 80 % power",
        "a difference is too small to matter",
    ):
        assert told not in text


def test_never_is_said_where_an_answer_did_not_come(whole: tuple[Page, dict[str, Any]]) -> None:
    page, numbers = whole
    assert numbers["tasks"]["recall"]["arms"]["softmax"]["seeds"]["2"]["tokens_to_50"] is None
    assert "softmax, seed 2: never" in "".join(page.text)


def test_names_and_tokens_cannot_break_out_of_the_page(tmp_path: Path) -> None:
    names = {"diff_v1": "<script>alert(1)</script>", "softmax": "a \"long\" & 'odd' <b>name</b>"}
    page, numbers = report(tmp_path / "odd", Story(names=names, tokens=("<i>", "&amp;", '"', "\n", "'>", "日本")))
    tags = {tag for tag, _ in page.tags}
    assert not tags & {"script", "i", "img"} - {"i"}
    assert not any(tag == "i" and "swatch" not in (attributes.get("class") or "") for tag, attributes in page.tags)
    assert set(names.values()) <= set(numbers["tasks"]["text"]["arms"])
    assert "<script" not in MarkdownIt("commonmark").render((tmp_path / "odd" / "report.md").read_text())


def test_a_plan_without_runs_gives_a_page_that_says_so(tmp_path: Path) -> None:
    page, numbers = report(tmp_path / "new", Story(started=False))
    text = re.sub(r"\s+", " ", "".join(page.text))
    assert "0 of 71 runs ended" in text
    assert "recall 0 of 3 seeds complete" in text
    assert numbers["tasks"]["text"]["findings"] == []
    assert "recall-maps" in page.ids and "No attention maps yet" in text


def test_a_plan_in_progress_says_how_far_it_is(tmp_path: Path) -> None:
    absent = frozenset(("text", arm, 2) for arm in ARMS)
    page, numbers = report(tmp_path / "half", Story(tasks=("text",), absent=absent))
    assert "text 2 of 3 seeds complete" in "".join(page.text)
    assert numbers["tasks"]["text"]["arms"]["softmax"]["loss"]["n"] == 2
    assert {finding["n"] for finding in numbers["tasks"]["text"]["findings"]} == {2}


def test_a_failed_run_is_listed_and_its_arm_gets_no_verdict_on_the_loss(tmp_path: Path) -> None:
    page, numbers = report(tmp_path / "bad", Story(tasks=("text",), non_finite=frozenset({("text", "diff_v1", 1)})))
    assert [run["layer"] for run in numbers["failed"]] == ["layers.1.mixer"]
    verdicts = {finding["arm"]: finding["verdict"] for finding in numbers["tasks"]["text"]["findings"]}
    assert verdicts["diff_v1"] == "UNSTABLE"
    assert "text-diff_v1-lr0.005-s1" in "".join(page.text)


CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome") or shutil.which("chromium-browser")


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="no chromium on this machine")
@pytest.mark.parametrize("width", [390, 1280])
def test_a_browser_shows_the_page_without_complaint(tmp_path: Path, width: int) -> None:
    """The page stands in a frame, since a headless window is never as narrow as a phone."""
    write_report(write_plan(tmp_path / "quick"))
    probe = "const d = document.querySelector('iframe').contentDocument; "
    probe += "document.title = d.documentElement.scrollWidth + ' ' + d.querySelectorAll('svg.panel').length"
    frame = f'<iframe src="quick/report.html" width="{width}" height="900" onload="{probe}"></iframe>'
    (tmp_path / "frame.html").write_text(f"<!doctype html><title>waiting</title>{frame}")
    arguments = "--headless --no-sandbox --disable-gpu --no-first-run --disable-background-networking "
    arguments += "--disable-component-update --disable-sync --allow-file-access-from-files --enable-logging=stderr "
    arguments += f"--virtual-time-budget=5000 --user-data-dir={tmp_path / 'profile'} --dump-dom"
    address = (tmp_path / "frame.html").as_uri()
    shown = subprocess.run(
        [str(CHROMIUM), *arguments.split(), address], capture_output=True, text=True, timeout=120, check=True
    )
    assert "CONSOLE" not in shown.stderr
    found = re.search(r"<title>(\d+) (\d+)</title>", shown.stdout)
    assert found, shown.stdout[:500]
    # Nothing but the tables' own boxes scrolls sideways.
    assert int(found[1]) <= width
    assert int(found[2]) > 30
