"""Every kind of source gives the documents that are in it, and a broken one is named."""

import json
import platform
import sys
from pathlib import Path
from types import ModuleType

import pyarrow as pa
import pyarrow.parquet
import pytest

from diffattn.data import DataError, TextData
from diffattn.data.sources import enough_documents, limited, open_source


def read(source: str | Path, **options: str) -> list[str]:
    return [text.decode() for text in open_source(TextData(source=str(source), **options)).documents()]


def test_the_standard_library_is_python_source_without_tests() -> None:
    source = open_source(TextData())
    texts = list(source.documents())
    assert len(texts) > 500 and 8e6 < sum(map(len, texts)) < 20e6  # 3.10 to 3.13: 11.5 to 12.1 MB
    assert source.description == f"Python {platform.python_version()} standard library"
    assert Path(json.__file__).read_bytes() in texts
    assert not any(b"class IdleConfTest" in text for text in texts)  # idlelib/idle_test
    assert Path(pytest.__file__).read_bytes() not in texts  # site-packages


def test_a_folder_is_read_in_order_and_hidden_files_are_not(tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "one.txt").write_text("one")
    (tmp_path / "a.md").write_text("two")
    (tmp_path / ".hidden").write_bytes(b"\xff")
    (tmp_path / "empty.txt").touch()
    assert read(tmp_path) == ["two", "one"]


def test_a_glob_picks_its_files(tmp_path: Path) -> None:
    (tmp_path / "deep" / "er").mkdir(parents=True)
    (tmp_path / "deep" / "er" / "one.txt").write_text("one")
    (tmp_path / "picture.png").write_bytes(b"\x89PNG")
    assert read(tmp_path / "**" / "*.txt") == ["one"]


def test_separators_divide_a_text_file(tmp_path: Path) -> None:
    (tmp_path / "stories.txt").write_text("\ufeffone\n<|endoftext|>\n\ntwo\n\nmore<|endoftext|>\n  \n<|endoftext|>thr")
    assert read(tmp_path / "stories.txt") == ["one", "two\n\nmore", "thr"]


def test_jsonl_and_parquet_rows_are_documents(tmp_path: Path) -> None:
    rows = [{"body": "one", "id": 1}, {"body": "zwei ü", "id": 2}, {"body": "", "id": 3}]
    (tmp_path / "x.jsonl").write_text("\n".join(json.dumps(row) for row in rows) + "\n\n")
    pyarrow.parquet.write_table(pa.Table.from_pylist(rows), tmp_path / "x.parquet")
    for name in ("x.jsonl", "x.parquet"):
        assert read(tmp_path / name, text_field="body") == ["one", "zwei ü"]


def test_a_hub_data_set_is_streamed(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a stand-in for the package `datasets`, which needs a network."""
    calls = []

    def load_dataset(*args: object, **options: object) -> object:
        calls.append((args, options))
        return iter([{"text": "one"}, {"text": None}, {"text": "two"}])

    stand_in = ModuleType("datasets")
    stand_in.load_dataset = load_dataset  # pyright: ignore[reportAttributeAccessIssue]
    monkeypatch.setitem(sys.modules, "datasets", stand_in)
    assert read("hf:someone/stories:small") == ["one", "two"]
    assert calls == [(("someone/stories", "small"), {"split": "train", "streaming": True})]


def test_the_real_datasets_package_streams_a_local_folder(tmp_path: Path) -> None:
    pytest.importorskip("datasets")
    pyarrow.parquet.write_table(pa.table({"text": ["one", "two"]}), tmp_path / "x.parquet")
    assert read(f"hf:{tmp_path}") == ["one", "two"]


def test_without_the_package_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(DataError, match=r"pip install 'diffattn\[data\]'"):
        read("hf:someone/stories")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("latin.txt", b"caf\xe9 au lait", r"latin\.txt is not UTF-8 text: byte 0xe9 at offset 3"),
        ("late.txt", b"one<|endoftext|>caf\xe9", r"late\.txt is not UTF-8 text: byte 0xe9 at offset 19"),
        ("latin.txt", b"caf\xe9", r"convert it \(iconv -f LATIN1 -t UTF-8\) or name only texts"),
        ("wide.txt", "one".encode("utf-16"), r"wide\.txt is not UTF-8 text: .*iconv -f UTF-16 -t UTF-8"),
        ("p.png", b"\x89PNG\r\n\x1a\n\xae", r"p\.png is not text \(binary\); name only texts, with a glob such as"),
        ("p.jpg", b"\xff\xd8\xff\xe0", r"p\.jpg is not text \(binary\)"),
        ("weights", b"ab\0\0\x80?", r"weights is not text \(binary\)"),
        ("x.jsonl", b'{"text": "one"}\n{"text": \n', r"x\.jsonl, line 2: not one JSON object"),
        ("x.jsonl", b'{"text": "caf\xe9"}\n', r"x\.jsonl, line 1: not one JSON object in UTF-8"),
        ("x.jsonl", b'["one"]\n', r"x\.jsonl, line 1: expected a JSON object, got list"),
        ("x.jsonl", b'{"body": "one"}\n', r"x\.jsonl, line 1: no field 'text'; set --data\.text-field to one of body"),
        ("x.jsonl", b'{"text": 7}\n', r"x\.jsonl, line 1: field 'text' holds int, not text"),
        ("x.parquet", b"not one", r"x\.parquet is not a parquet file"),
    ],
)
def test_a_broken_file_is_named_with_the_place(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=message):
        read(tmp_path / name)


def test_a_picture_among_the_texts_of_a_folder_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one")
    (tmp_path / "b.png").write_bytes(b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR")
    with pytest.raises(DataError, match=r"b\.png is not text \(binary\)"):
        read(tmp_path)


def test_a_parquet_file_without_the_column_names_its_columns(tmp_path: Path) -> None:
    pyarrow.parquet.write_table(pa.table({"body": ["one"], "id": [1]}), tmp_path / "x.parquet")
    with pytest.raises(DataError, match=r"no column 'text'; its columns: body, id"):
        read(tmp_path / "x.parquet")


def test_what_is_not_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"no file, folder or glob matches .* write hf:owner/name"):
        read("someone/stories")
    with pytest.raises(DataError, match="holds no files"):
        read(tmp_path)


def test_identity_follows_content_not_place(tmp_path: Path) -> None:
    def identity(place: str) -> str:
        return open_source(TextData(source=str(tmp_path / place))).identity

    for place in "ab":
        (tmp_path / place).mkdir()
        (tmp_path / place / "x.txt").write_text("one")
    assert identity("a") == identity("b")
    (tmp_path / "b" / "x.txt").write_text("two")
    assert identity("a") != identity("b")


@pytest.mark.parametrize("break_", ["\n\n", "\n", " ", "ü"])
def test_few_documents_become_passages_and_lose_nothing(break_: str) -> None:
    book = break_.join(f"word{i}" for i in range(40_000)).encode()
    passages, rule = enough_documents(iter([book]))
    cut = list(passages)
    assert b"".join(cut) == book
    assert len(cut) >= 90 and "1 documents of the source, cut at blank lines" in rule
    assert all(passage.decode() for passage in cut)  # no character is cut in two
    if break_.isspace() and "\n" in break_:
        assert all(passage.endswith(break_.encode()) for passage in cut[:-1])


def test_many_documents_stay_whole() -> None:
    texts = [f"document {i}\n\nmore".encode() for i in range(250)]
    kept, rule = enough_documents(iter(texts))
    assert list(kept) == texts and rule == "as the source gives them"


def test_a_limit_counts_bytes_and_keeps_characters_whole() -> None:
    texts = [b"abcd", "üüüü".encode(), b"never read"]
    assert list(limited(iter(texts), 7)) == [b"abcd", "ü".encode()]
    assert list(limited(iter(texts), 4)) == [b"abcd"]
    assert list(limited(iter(texts), None)) == texts
