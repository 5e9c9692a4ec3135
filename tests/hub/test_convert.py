"""Model folders: bit for bit there and back, written whole or not at all, and clear about what they are not."""

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

import diffattn
from diffattn.hub import convert
from diffattn.model.decoder import Decoder
from diffattn.variants import names
from diffattn.variants.base import MixerConfig
from support.models import random_tokens, small_config, small_model

OTHER = MixerConfig.from_dict({"name": "diff_v1", "heads": 2, "lambda_init": 0.8})


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A saved model."""
    diffattn.save(small_model("diff_v1"), tmp_path / "model")
    return tmp_path / "model"


def edit(folder: Path, **changes: Any) -> None:
    """Change fields of a folder's config.json."""
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **changes}))


def same(a: Decoder, b: Decoder) -> bool:
    ours, theirs = a.state_dict(), b.state_dict()
    return ours.keys() == theirs.keys() and all(
        torch.equal(ours[name], theirs[name]) and ours[name].dtype == theirs[name].dtype for name in ours
    )


@pytest.mark.parametrize("variant", names())
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("tied", [True, False])
def test_models_come_back_bit_for_bit(variant: str, dtype: torch.dtype, tied: bool, tmp_path: Path) -> None:
    model = small_model(variant, dtype, tied_embeddings=tied, mixers_by_layer={1: OTHER}, token_shift=True)
    diffattn.save(model, tmp_path / "deep" / "model")
    again = diffattn.load(tmp_path / "deep" / "model")
    assert again.config == model.config
    assert same(again, model)
    tokens = random_tokens(2, 7)
    assert torch.equal(again(tokens), model(tokens))
    assert all(parameter.requires_grad for parameter in again.parameters())


def test_a_loaded_model_can_be_trained_without_touching_the_file(folder: Path) -> None:
    before = (folder / "model.safetensors").read_bytes()
    model = diffattn.load(folder)
    model(random_tokens(1, 4)).sum().backward()
    with torch.no_grad():
        for parameter in model.parameters():
            assert parameter.grad is not None
            parameter -= parameter.grad
    assert (folder / "model.safetensors").read_bytes() == before


def test_saving_again_replaces_the_model_and_leaves_nothing_else(folder: Path) -> None:
    other = small_model("softmax", seed=5)
    diffattn.save(other, folder)
    assert same(diffattn.load(folder), other)
    assert os.listdir(folder.parent) == ["model"]


def test_tokenizer_travels_with_the_model(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text('{"some": "tokenizer"}')
    convert.save(small_model(), tmp_path / "model", tokenizer=tmp_path / "tokenizer.json")
    assert (tmp_path / "model" / "tokenizer.json").read_text() == '{"some": "tokenizer"}'


@pytest.mark.parametrize("existing", [True, False])
def test_a_full_disk_leaves_what_was_there(existing: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = small_model("diff_v1")
    if existing:
        diffattn.save(first, tmp_path / "model")

    def full(tensors: dict[str, torch.Tensor], file: Path, **_: Any) -> None:
        file.write_bytes(b"half of it")
        raise convert.SafetensorError("No space left on device")

    monkeypatch.setattr(convert, "save_file", full)
    with pytest.raises(OSError, match=r"model.safetensors could not be written: No space left"):
        diffattn.save(small_model("softmax", seed=5), tmp_path / "model")
    assert os.listdir(tmp_path) == (["model"] if existing else [])
    if existing:
        assert same(diffattn.load(tmp_path / "model"), first)


def test_something_else_in_the_way_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "thesis.txt").write_text("years of work")
    (tmp_path / "file").write_text("")
    for name in ("notes", "file"):
        with pytest.raises(ValueError, match="exists and is no model folder"):
            diffattn.save(small_model(), tmp_path / name)
    assert (tmp_path / "notes" / "thesis.txt").read_text() == "years of work"


def test_other_formats_are_refused_when_saving(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="format 'diffattn'; got 'gguf'"):
        diffattn.save(small_model(), tmp_path / "model", format="gguf")
    assert not (tmp_path / "model").exists()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"version": 2}, "version 2 of the format; this diffattn reads version 1"),
        ({"format": "other"}, "format 'other'"),
        ({"format": None, "model_type": "gpt2"}, "Hugging Face 'gpt2' model"),
        ({"model": None}, "model section cannot be read"),
        ({"model": {"widht": 3}}, "did you mean 'width'"),
        ({"model": {"mixer": {"name": "diff_v3"}}}, "no variant 'diff_v3'; did you mean 'diff_v"),
        ({"model": {"mixer": {"name": "diff_v1", "head": 4}}}, "no option 'head'; did you mean 'heads'"),
    ],
)
def test_configs_that_cannot_be_read_are_refused_by_name(folder: Path, changes: dict[str, Any], message: str) -> None:
    edit(folder, **changes)
    with pytest.raises(ValueError, match=message):
        diffattn.load(folder)


def test_places_without_a_model_are_refused(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="nowhere is not a folder"):
        diffattn.load(tmp_path / "nowhere")
    with pytest.raises(ValueError, match=r"has no config.json.*did you mean .*model"):
        diffattn.load(tmp_path)
    shutil.copytree(folder, tmp_path / "runs" / "one" / "model")
    with pytest.raises(ValueError, match=r"did you mean .*runs/one/model"):
        diffattn.load(tmp_path / "runs")
    (tmp_path / "config.json").write_text('{"train": {}}')
    with pytest.raises(ValueError, match="looks like a run's folder; its model is"):
        diffattn.load(tmp_path)
    (folder / "config.json").write_text("{")
    with pytest.raises(ValueError, match="is not JSON"):
        diffattn.load(folder)


def test_weights_that_do_not_fit_are_refused_by_name(folder: Path) -> None:
    edit(folder, model=small_config("diff_v1", ffn_width=50).to_dict())
    with pytest.raises(ValueError, match=r"layers.0.down.weight should be \[32, 50\], the file has \[32, 48\]"):
        diffattn.load(folder)
    edit(folder, model=small_config("diff_v1", tied_embeddings=False).to_dict())
    with pytest.raises(ValueError, match=r"unembedding.weight should be \[40, 32\], the file has absent"):
        diffattn.load(folder)


def test_damaged_and_missing_weights_are_refused(folder: Path) -> None:
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    with pytest.raises(ValueError, match="is damaged"):
        diffattn.load(folder)
    weights.unlink()
    with pytest.raises(ValueError, match=r"no model.safetensors"):
        diffattn.load(folder)


def test_only_a_decoder_is_a_model(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="model: got Layer, needs a Decoder"):
        diffattn.save(diffattn.layer("softmax", width=32, heads=4), tmp_path / "model")  # pyright: ignore[reportArgumentType]
    assert not (tmp_path / "model").exists()


def test_a_compiled_model_is_saved_as_the_model_within(tmp_path: Path) -> None:
    model = small_model()
    diffattn.save(torch.compile(model), tmp_path / "model")
    assert same(diffattn.load(tmp_path / "model"), model)
