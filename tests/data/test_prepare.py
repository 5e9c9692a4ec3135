"""Prepared folders are complete, true to their source, made once, and never half there."""

import errno
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest

from diffattn.data import DataError, TextData
from diffattn.data import prepare as prepare_module
from diffattn.data.prepare import SPLITS, prepare, read_manifest, split_of
from support.text import documents, folder_of


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return folder_of(tmp_path / "text", documents(300))


def texts_of(folder: Path, split: str) -> list[bytes]:
    """The documents of a split prepared as bytes."""
    tokens = np.fromfile(folder / f"{split}.tokens", dtype="<u2")
    parts = np.split(tokens, np.flatnonzero(tokens == 256) + 1)
    assert len(parts[-1]) == 0  # the last document is closed, too
    return [part[:-1].astype(np.uint8).tobytes() for part in parts[:-1]]


def test_the_splits_hold_every_document_once(source: Path, tmp_path: Path) -> None:
    folder = prepare(TextData(source=str(source)), tmp_path / "cache")
    held = [text for split in SPLITS for text in texts_of(folder, split)]
    assert sorted(held) == sorted(text.encode() for text in documents(300))
    manifest = read_manifest(folder)
    for split in SPLITS:
        texts = texts_of(folder, split)
        assert manifest["splits"][split] == {
            "documents": len(texts),
            "bytes": sum(map(len, texts)),
            "tokens": sum(map(len, texts)) + len(texts),
        }
        starts = np.fromfile(folder / f"{split}.starts", dtype="<u8")
        assert starts.tolist() == np.cumsum([0, *(len(text) + 1 for text in texts[:-1])]).tolist()
    assert 0.85 < len(texts_of(folder, "train")) / 300 < 0.95  # 90 % of 300, 3 standard deviations of 1.7 %


def test_copies_of_a_document_are_on_one_side(tmp_path: Path) -> None:
    source = folder_of(tmp_path / "text", documents(250) + documents(250))
    folder = prepare(TextData(source=str(source)), tmp_path / "cache")
    sides = {split: set(texts_of(folder, split)) for split in SPLITS}
    assert not sides["train"] & sides["dev"] and not sides["train"] & sides["test"] and not sides["dev"] & sides["test"]
    assert sum(len(texts_of(folder, split)) for split in SPLITS) == 500
    assert all(split_of(text) == split for split in SPLITS for text in sides[split])


def test_one_book_is_cut_into_passages_and_the_manifest_says_so(tmp_path: Path) -> None:
    book = "\n\n".join(documents(150))
    (tmp_path / "book.txt").write_text(book, encoding="utf-8")
    folder = prepare(TextData(source=str(tmp_path / "book.txt")), tmp_path / "cache")
    manifest = read_manifest(folder)
    assert manifest["document_rule"].startswith("1 documents of the source, cut at blank lines")
    assert sum(section["bytes"] for section in manifest["splits"].values()) == len(book.encode())
    assert all(section["documents"] >= 5 for section in manifest["splits"].values())


def test_the_tokenizer_sees_the_training_split_only(tmp_path: Path) -> None:
    """A word that only held-out documents have, however often, stays in pieces."""
    texts = [f"number {i}" + " zyzzyvas" * 50 * (split_of(f"number {i}".encode()) != "train") for i in range(600)]
    texts = [text for i, text in enumerate(texts) if (" zyzzyvas" in text) == (split_of(text.encode()) != "train")]
    assert any("zyzzyvas" in text for text in texts) and not any(
        "zyzzyvas" in text for text in texts if split_of(text.encode()) == "train"
    )
    folder = prepare(
        TextData(source=str(folder_of(tmp_path / "text", texts)), tokenizer="bpe", vocab_size=265), tmp_path / "cache"
    )
    vocabulary = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))["model"]["vocab"]
    assert not any("zy" in token for token in vocabulary)


def test_a_large_vocabulary_takes_wider_tokens_only_when_needed(source: Path, tmp_path: Path) -> None:
    config = TextData(source=str(source), tokenizer="bpe", vocab_size=300)
    manifest = read_manifest(prepare(config, tmp_path / "cache"))
    assert manifest["dtype"] == "<u2" and manifest["tokenizer"]["vocab_size"] == 300
    assert manifest["bytes_of_tokens_exact"] is True


def test_preparing_twice_gives_the_same_bytes(source: Path, tmp_path: Path) -> None:
    config = TextData(source=str(source), tokenizer="bpe", vocab_size=300)
    one, two = prepare(config, tmp_path / "a"), prepare(config, tmp_path / "b")
    assert one.name == two.name
    for path in one.iterdir():
        assert path.read_bytes() == (two / path.name).read_bytes()


def test_what_is_prepared_is_found_again(source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = TextData(source=str(source))
    first = prepare(config, tmp_path / "cache")
    assert "preparing text, 300 files" in capsys.readouterr().err
    assert prepare(config, tmp_path / "cache") == first
    assert capsys.readouterr().err == ""
    (source / "0000.txt").write_text("changed")
    assert prepare(config, tmp_path / "cache") != first


def test_the_cache_is_where_the_environment_says(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DIFFATTN_CACHE", str(tmp_path / "here"))
    assert prepare(TextData(source=str(source))).parent == tmp_path / "here"


@pytest.mark.parametrize("name", ["train.tokens", "dev.starts"])
def test_a_truncated_shard_is_named(source: Path, tmp_path: Path, name: str) -> None:
    config = TextData(source=str(source))
    folder = prepare(config, tmp_path / "cache")
    shard = folder / name
    os.truncate(shard, shard.stat().st_size - 2)
    with pytest.raises(DataError, match=rf"{name} has \d+ bytes, its manifest says \d+; delete .* and run again"):
        prepare(config, tmp_path / "cache")


def test_a_changed_shard_is_named(source: Path, tmp_path: Path) -> None:
    config = TextData(source=str(source))
    shard = prepare(config, tmp_path / "cache") / "test.tokens"
    content = bytearray(shard.read_bytes())
    content[10] ^= 1
    shard.write_bytes(content)
    with pytest.raises(DataError, match=r"test\.tokens is not what its manifest says"):
        prepare(config, tmp_path / "cache")


def test_a_missing_shard_and_a_broken_manifest_are_named(source: Path, tmp_path: Path) -> None:
    config = TextData(source=str(source))
    folder = prepare(config, tmp_path / "cache")
    (folder / "dev.tokens").unlink()
    with pytest.raises(DataError, match=r"dev\.tokens cannot be read"):
        prepare(config, tmp_path / "cache")
    (folder / "manifest.json").write_text("{")
    with pytest.raises(DataError, match="is not a manifest"):
        prepare(config, tmp_path / "cache")


@pytest.mark.parametrize(
    ("texts", "options", "message"),
    [
        ([""], {}, "holds no text at all; give more text"),
        (["one line"], {}, "holds only 1 passages, none of them for"),
        (documents(20), {"limit_bytes": 0}, "limit_bytes is the text to use, in bytes: expected at least 1, got 0"),
        (documents(20), {"tokenizer": "bpe"}, "supports a vocabulary of"),
        (documents(20), {"tokenizer": "bpee"}, 'no tokenizer at bpee; expected "bytes", "bpe" or the path'),
    ],
)
def test_what_cannot_be_prepared_leaves_nothing(
    tmp_path: Path, texts: list[str], options: dict[str, str | int], message: str
) -> None:
    config = TextData(source=str(folder_of(tmp_path / "text", texts)), **options)  # pyright: ignore[reportArgumentType]
    with pytest.raises(DataError, match=message) as raised:
        prepare(config, tmp_path / "cache")
    assert "\n" not in str(raised.value)
    assert not (tmp_path / "cache").exists() or not list((tmp_path / "cache").iterdir())


def test_a_place_that_cannot_be_written_is_named(source: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()  # a folder cannot be made below a file, even by the superuser
    with pytest.raises(DataError, match=r"cannot prepare data under .*: Not a directory .* set DIFFATTN_CACHE"):
        prepare(TextData(source=str(source)), tmp_path / "file" / "cache")


def test_a_read_only_folder_is_named(source: Path) -> None:
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        config = TextData(source=str(shutil.copytree(source, place / "text")))
        prepare(config, place / "warm")  # so that nothing is left to import, which an ordinary user might not read
        (place / "cache").mkdir()
        for folder, mode in ((place / "cache", 0o555), (place, 0o755)):
            folder.chmod(mode)
        # The superuser may write everywhere, so the test steps down where it is run as one.
        ordinary = 65534 if os.geteuid() == 0 else os.geteuid()
        before = os.geteuid()
        os.seteuid(ordinary)
        try:
            with pytest.raises(DataError, match=r"Permission denied .* set DIFFATTN_CACHE"):
                prepare(config, place / "cache")
        finally:
            os.seteuid(before)


def test_a_full_disk_leaves_nothing(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(prepare_module, "_write_shards", full)
    with pytest.raises(DataError, match=r"No space left on device; make room there"):
        prepare(TextData(source=str(source)), tmp_path / "cache")
    assert not list((tmp_path / "cache").iterdir())


@pytest.mark.skipif(sys.platform == "win32", reason="needs setrlimit")
def test_a_file_that_cannot_grow_leaves_nothing(source: Path, tmp_path: Path) -> None:
    """The nearest that a process can come to a full disk by itself: a limit on the size of its files."""
    script = (
        "import resource, sys; from pathlib import Path; from diffattn.data import DataError, TextData; "
        "from diffattn.data.prepare import prepare\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[3]), resource.RLIM_INFINITY))\n"
        "try: prepare(TextData(source=sys.argv[1]), Path(sys.argv[2]))\n"
        "except DataError as error: print(error)"
    )
    for limit in (1_000, 150_000):  # while the text is copied (100 kB); while its tokens are written (200 kB)
        command = [sys.executable, "-c", script, str(source), str(tmp_path / "cache"), str(limit)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
        assert "File too large; make room there, or set DIFFATTN_CACHE" in done.stdout
        assert not list((tmp_path / "cache").iterdir())


def test_two_processes_may_prepare_the_same_text_at_once(source: Path, tmp_path: Path) -> None:
    script = (
        "import sys; from pathlib import Path; from diffattn.data import TextData; "
        "from diffattn.data.prepare import prepare; print('ready', flush=True); sys.stdin.readline(); "
        "print(prepare(TextData(source=sys.argv[1]), Path(sys.argv[2])))"
    )
    command = [sys.executable, "-c", script, str(source), str(tmp_path / "cache")]
    workers = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        for _ in range(2)
    ]
    for worker in workers:
        assert worker.stdout is not None and worker.stdout.readline() == "ready\n"
    for worker in workers:
        assert worker.stdin is not None
        worker.stdin.write("go\n")
        worker.stdin.flush()
    places = [worker.communicate(timeout=120)[0] for worker in workers]
    assert places[0] == places[1] and [worker.returncode for worker in workers] == [0, 0]
    (only,) = (tmp_path / "cache").iterdir()
    read_manifest(only)


def test_who_comes_second_uses_the_first_one_s_folder(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = TextData(source=str(source))
    publish = prepare_module._publish

    def after_another_process(temporary: Path, final: Path) -> None:
        monkeypatch.setattr(prepare_module, "_publish", publish)
        assert prepare(config, tmp_path / "cache") == final
        publish(temporary, final)

    monkeypatch.setattr(prepare_module, "_publish", after_another_process)
    folder = prepare(config, tmp_path / "cache")
    assert list((tmp_path / "cache").iterdir()) == [folder]
