"""Labelled texts: every format is known by its content, and no text is both shown and asked."""

import json
from collections import Counter
from pathlib import Path

import pytest

from diffattn.evals.labelled import Example, Labelled, docstring_examples, labelled

TREC = "ENTY:dismed What is gout ?\nLOC:mount What is the highest peak ?\nABBR:exp What is caf\xe9 short for ?\n"


def test_trec_is_latin_1_and_its_classes_are_written_out(tmp_path: Path) -> None:
    (tmp_path / "TREC.train").write_bytes(TREC.encode("latin-1"))
    (tmp_path / "TREC.test").write_text("NUM:count How many ?\n")
    (tmp_path / "TREC.train.all").write_text("5 How many ?\n")
    coarse, fine = labelled(str(tmp_path)), labelled(str(tmp_path), fine=True)
    assert [example.label for example in coarse.shown] == ["entity", "location", "abbreviation"]
    assert [example.label for example in fine.shown] == [
        "entity: disease or medicine",
        "location: mountain",
        "abbreviation: expansion",
    ]
    assert coarse.shown[2].text == "What is café short for ?"
    assert coarse.asked == (Example("How many ?", "number"),)


def test_csv_may_quote_and_have_a_header(tmp_path: Path) -> None:
    (tmp_path / "train.csv").write_text('text,category\n"Where, then?",card_arrival\n')
    (tmp_path / "test.csv").write_text("utterance,Label\nLost it,lost_card\n")
    found = labelled(str(tmp_path))
    assert found.shown == (Example("Where, then?", "card arrival"),)
    assert found.asked == (Example("Lost it", "lost card"),)


def test_clinc_leaves_out_what_is_out_of_scope(tmp_path: Path) -> None:
    rows = {"train": [["pay it", "pay_bill"]], "test": [["pay  now", "pay_bill"]], "oos_train": [["why", "oos"]]}
    (tmp_path / "data_full.json").write_text(json.dumps(rows))
    for source in (tmp_path, tmp_path / "data_full.json"):
        found = labelled(str(source))
        assert (found.shown, found.asked) == ((Example("pay it", "pay bill"),), (Example("pay now", "pay bill"),))


def test_one_file_is_split_by_the_texts_themselves(tmp_path: Path) -> None:
    rows = [{"text": f"text {i}", "label": i % 3} for i in range(200)]
    file = tmp_path / "mine.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = labelled(str(file))
    assert set(found.labels) == {"0", "1", "2"}
    assert 20 <= len(found.asked) <= 60
    file.write_text("".join(json.dumps(row) + "\n" for row in rows[:100]))
    assert set(labelled(str(file)).asked) < set(found.asked)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("NUM:count How many ?\nno class", "line 2: expected COARSE:fine text"),
        (
            '{"text": "a", "label": "b"}\n{"text": "a"}',
            'line 2: expected a JSON object with "text", a string, and "label"',
        ),
        ("a,b\nalone\n", "row 2: expected a text and its label"),
        ('a,b\r\n"b c", \r\n', "row 2: expected a text and its label"),
        (
            "Category,Message\nham,Hello\n",
            "row 1: expected a text before its label, got columns called Category, Message",
        ),
        ("Where, then?,place\n", "row 1: expected a text and its label, got 3 columns"),
        ("a," + "b" * 200_000, "is no CSV"),
        ('{"text": "a", "label": null}', "line 1: expected a JSON object"),
        ('{"text": "a", "label": "\\n"}', "line 1: expected a JSON object"),
        ('{"text": "a", "label": "b"}\n{"text": "a", "label": ["b"]}', "file, line 2: expected a JSON object"),
        ('{"text": ["a"], "label": "b"}', "file, line 1: expected a JSON object"),
        ('[{"text": "a", "label": "b"}, {"text": "c", "label": "d"}]', "line 1: expected a JSON object"),
    ],
)
def test_what_cannot_be_read_is_named(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "file").write_text(content)
    with pytest.raises(ValueError, match=message):
        labelled(str(tmp_path / "file"))


def test_lines_may_end_as_on_windows_and_hold_half_characters(tmp_path: Path) -> None:
    (tmp_path / "train.csv").write_bytes(b"\xef\xbb\xbftext,label\r\none,two words\r\n\r\n")
    (tmp_path / "test.csv").write_bytes(b'{"text": "an \\ud83d emoji", "label": "a\\nb"}\r\n')
    found = labelled(str(tmp_path))
    assert found.shown == (Example("one", "two words"),)
    assert found.asked == (Example("an ? emoji", "a b"),)


def test_an_empty_file_has_no_classes(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("")
    with pytest.raises(ValueError, match=r"a\.csv is empty; expected texts with their labels"):
        labelled(str(tmp_path / "a.csv")).cut(10)


def test_fine_classes_are_trecs_alone(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("a,b\n")
    for source in ("docstrings", str(tmp_path / "a.csv")):
        with pytest.raises(ValueError, match="no fine classes"):
            labelled(source, fine=True)
    with pytest.raises(ValueError, match="expected 'docstrings', a file"):
        labelled(str(tmp_path / "missing"))


def test_folders_called_train_and_test_are_no_files(tmp_path: Path) -> None:
    for side in ("train", "test"):
        (tmp_path / side).mkdir()
    with pytest.raises(ValueError, match="expected 'docstrings', a file"):
        labelled(str(tmp_path))


def test_cutting_keeps_the_largest_classes_and_no_text_on_both_sides() -> None:
    shown = [("one a", "x"), ("one b", "x"), ("six", "x"), ("two c", "y"), ("two d", "y"), ("ten", "y"), ("far", "z")]
    asked = [("one z", "x"), ("two", "x"), ("new text", "x"), ("new tile", "x"), ("far off", "z"), ("old", "y")]
    data = Labelled("t", tuple(Example(*e) for e in shown), tuple(Example(*e) for e in asked))
    assert data.labels == ("x", "y", "z")
    found = data.cut(4, classes=2)
    # "one" and "new" count once; "one" is shown, so it is not asked; "two" means both x and y; z is the smallest class.
    assert found.shown == (Example("one", "x"), Example("six", "x"), Example("ten", "y"))
    assert found.asked == (Example("new", "x"), Example("old", "y"))
    with pytest.raises(ValueError, match="at least 2"):
        data.cut(4, classes=1)
    with pytest.raises(ValueError, match="give longer texts"):
        data.cut(1, classes=2)


def test_docstrings_name_their_module() -> None:
    examples = docstring_examples()
    labels = {example.label for example in examples}
    assert {"email", "asyncio", "logging"} <= labels
    assert "test" not in labels and 40 <= len(labels) <= 90
    assert 4000 <= len(examples) <= 8000
    data = labelled()
    assert not {e.text for e in data.shown} & {e.text for e in data.asked}
    assert min(Counter(example.label for example in examples).values()) >= 20


def test_the_known_sets_have_their_published_sizes(shared_data: Path) -> None:
    sizes = {}
    for name in ("trec", "banking77", "clinc150"):
        found = labelled(str(shared_data / name))
        sizes[name] = (len(found.labels), len(found.shown), len(found.asked))
    assert sizes == {"trec": (6, 5452, 500), "banking77": (77, 10003, 3080), "clinc150": (150, 15000, 4500)}
    assert len(labelled(str(shared_data / "trec"), fine=True).labels) == 50
