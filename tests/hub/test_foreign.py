"""Llama and Qwen folders compute here what they compute in the package that wrote them."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from torch.testing import assert_close

import diffattn
from diffattn.cli import main
from diffattn.data.tokenizer import Subwords
from diffattn.hub.adapt import adapt
from diffattn.variants.base import MixerConfig
from support.foreign import edit, foreign_folder, foreign_model
from support.models import random_tokens

CLOSE = {"rtol": 0.0, "atol": 1e-4}
"""Float32 logits of order 1 to 20; their rotary angles are float32 too, off by 1e-5 at position 300."""
PROMPT = "Once upon a time"


@pytest.fixture
def llama(tmp_path: Path) -> Path:
    return foreign_folder(tmp_path / "llama")


@torch.no_grad()
def assert_equal_logits(folder: Path, length: int = 48) -> None:
    theirs = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    model = diffattn.load(folder)
    tokens = random_tokens(2, length, model.config.vocab_size)
    assert_close(model(tokens), theirs(tokens).logits, **CLOSE)


@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        ("llama", {}),
        ("llama", {"tie_word_embeddings": True, "head_dim": 12}),
        ("llama", {"num_key_value_heads": None, "rope_parameters": {"rope_type": "default", "rope_theta": 500.0}}),
        ("llama", {"rope_parameters": {"rope_type": "linear", "factor": 4.0, "rope_theta": 10000.0}}),
        (
            "llama",
            {
                "head_dim": 16,
                "rope_parameters": {
                    "rope_type": "llama3",
                    "rope_theta": 500.0,
                    "factor": 8.0,
                    "low_freq_factor": 1.0,
                    "high_freq_factor": 4.0,
                    "original_max_position_embeddings": 32,
                },
            },
        ),
        ("qwen2", {}),
        ("qwen2", {"tie_word_embeddings": True, "num_key_value_heads": 1}),
        ("qwen3", {"head_dim": 16}),
        ("qwen3", {"head_dim": 6, "tie_word_embeddings": True}),
    ],
)
def test_logits_are_theirs(kind: str, fields: dict[str, Any], tmp_path: Path) -> None:
    assert_equal_logits(foreign_folder(tmp_path, kind, **fields))


def test_weights_may_lie_in_several_files(tmp_path: Path) -> None:
    foreign_model("qwen2").save_pretrained(tmp_path, max_shard_size="20KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 2
    assert_equal_logits(tmp_path)


@pytest.mark.parametrize("scaling", [None, {"type": "linear", "factor": 2.0}])
def test_older_configs_keep_rotary_in_two_fields(scaling: dict | None, llama: Path) -> None:
    edit(llama, rope_parameters=None, rope_theta=500.0, rope_scaling=scaling)
    assert_equal_logits(llama)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_weights_keep_their_dtype(dtype: torch.dtype, tmp_path: Path) -> None:
    model = foreign_model("qwen3", head_dim=8)
    model.save_pretrained(tmp_path / "wide")
    model.to(dtype).save_pretrained(tmp_path / "narrow")
    narrow = diffattn.load(tmp_path / "narrow")
    for name, value in diffattn.load(tmp_path / "wide").state_dict().items():
        assert torch.equal(narrow.state_dict()[name], value.to(dtype)), name
    assert narrow(random_tokens(1, 5)).isfinite().all()


def test_a_pretrained_llama_computes_what_it_does_there(shared_data: Path) -> None:
    assert_equal_logits(shared_data / "stories260K", length=300)


@pytest.mark.parametrize("prompt", [PROMPT, "The dog", ""])
def test_a_pretrained_llama_writes_the_same_text(prompt: str, shared_data: Path) -> None:
    folder = shared_data / "stories260K"
    theirs = transformers.AutoModelForCausalLM.from_pretrained(folder)
    words = transformers.AutoTokenizer.from_pretrained(folder)
    ids = torch.tensor([[1, *(words(prompt, add_special_tokens=False).input_ids if prompt else [])]])
    expected = theirs.generate(ids, max_new_tokens=200, do_sample=False)
    assert torch.equal(diffattn.load(folder).generate(ids, max_new_tokens=200), expected)


def test_the_command_writes_on_from_the_beginning_of_text(shared_data: Path, capsys: pytest.CaptureFixture) -> None:
    folder = shared_data / "stories260K"
    assert main(["generate", str(folder), "--prompt", PROMPT, "--temperature", "0", "--max-new-tokens", "30"]) == 0
    # What the model writes behind its <s>; without it the story goes another way.
    expected = f"{PROMPT}, there was a little girl named Lily. She loved to play outside in the park."
    assert capsys.readouterr().out.startswith(expected)


def test_a_beginning_of_text_is_the_tokenizers_own(shared_data: Path, tmp_path: Path) -> None:
    """stories260K has <s> and nothing that puts it in front; others say that it does, or have no such token."""
    stored = json.loads((shared_data / "stories260K" / "tokenizer.json").read_text())
    starts = []
    for change in ("as it is", "put in front", "none"):
        if change == "put in front":
            stored["post_processor"] = {
                "type": "TemplateProcessing",
                "single": [{"SpecialToken": {"id": "<unk>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
                "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 0}}],
                "special_tokens": {"<unk>": {"id": "<unk>", "ids": [0], "tokens": ["<unk>"]}},
            }
        text = json.dumps(stored)
        if change == "none":
            text = json.dumps({**stored, "post_processor": None}).replace("<s>", "<other>")
        (tmp_path / "tokenizer.json").write_text(text)
        starts.append(Subwords(tmp_path / "tokenizer.json").start)
    assert starts == [1, 0, 2]


def test_a_loaded_model_is_saved_and_loaded_as_ours(tmp_path: Path) -> None:
    model = diffattn.load(foreign_folder(tmp_path / "qwen3", "qwen3", head_dim=16))
    diffattn.save(model, tmp_path / "ours")
    again = diffattn.load(tmp_path / "ours")
    assert again.config == model.config
    assert torch.equal(again(random_tokens(2, 9)), model(random_tokens(2, 9)))


def test_a_foreign_folder_is_not_replaced(llama: Path) -> None:
    with pytest.raises(ValueError, match="exists and is no model folder"):
        diffattn.save(diffattn.load(llama), llama)
    assert_equal_logits(llama)


@pytest.mark.parametrize("kind", ["qwen2", "qwen3"])
def test_a_loaded_model_is_trained_on_as_another_attention(kind: str, tmp_path: Path) -> None:
    source, tokens = diffattn.load(foreign_folder(tmp_path, kind, head_dim=8)), random_tokens(2, 9)
    mixer = MixerConfig.from_dict({**source.config.mixer.to_dict(), "name": "dex"})
    model = adapt(source, replace(source.config, mixer=mixer), seed=0)
    assert torch.equal(model(tokens), source(tokens))
    source(tokens).sum().backward()
    assert all(parameter.grad is not None for parameter in source.parameters())


def test_the_cost_of_a_loaded_config_is_the_models(tmp_path: Path) -> None:
    for kind in ("llama", "qwen2", "qwen3"):
        model = diffattn.load(foreign_folder(tmp_path / kind, kind, head_dim=16))
        assert model.config.cost().parameters == sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden_act": "gelu"}, "hidden_act is 'gelu' and can only be 'silu': the feed-forward here is SwiGLU"),
        ({"attention_bias": True}, "attention_bias is True .* gives the output projection a bias"),
        ({"mlp_bias": True}, "mlp_bias is True"),
        ({"quantization_config": {"bits": 4}}, "quantization_config is .* take the folder they were made from"),
        ({"auto_map": {"AutoModel": "x.Y"}}, "auto_map is .* code of its own"),
        ({"architectures": ["LlamaForSequenceClassification"]}, "only language models"),
        ({"hidden_size": None}, "hidden_size is missing"),
        ({"rope_parameters": {"rope_type": "yarn", "factor": 4.0}}, "type 'yarn' cannot be read: its ramp runs over"),
        ({"rope_parameters": {"rope_type": "dynamic", "factor": 4.0}}, "'dynamic' cannot be read: its angles change"),
        ({"rope_scaling": {"type": "mrope"}, "rope_parameters": None}, "'mrope' cannot be read: it is not known here"),
        ({"rope_parameters": {"full_attention": {"rope_theta": 1.0}}}, "differ from layer to layer"),
        ({"rope_parameters": {"partial_rotary_factor": 0.5}}, "partial_rotary_factor is 0.5"),
        ({"rope_parameters": {"rope_type": "llama3"}}, "factor is None; llama3 scaling needs a number"),
        (
            {"rope_parameters": {"rope_type": "llama3", "factor": 8, "low_freq_factor": 1, "high_freq_factor": 8}},
            r"low and high_freq_factor are \(1, 8\)",
        ),
        ({"layer_types": ["full_attention", "sliding_attention"], "sliding_window": 8}, "sliding_window is 8 in some"),
        ({"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1}, "sliding_window is 8 in some"),
        ({"num_key_value_heads": 3}, "kv_heads must divide heads"),
        ({"rope_scaling": 3}, "Hugging Face 'llama' model, but"),
        ({"model_type": "qwen3_moe"}, "'qwen3_moe' model, which cannot be read .only llama, qwen2, qwen3 can"),
        ({"model_type": "diffllama"}, "'diffllama' model, which cannot be read"),
    ],
)
def test_what_no_model_of_ours_computes_is_refused_by_name(changes: dict[str, Any], message: str, llama: Path) -> None:
    edit(llama, **changes)
    with pytest.raises(ValueError, match=message):
        diffattn.load(llama)


@pytest.mark.parametrize(
    "changes",
    [
        {"sliding_window": 8, "use_sliding_window": False},
        {"sliding_window": 64, "layer_types": ["sliding_attention"] * 2},
        {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 2},
    ],
)
def test_windows_that_hide_nothing_are_no_windows(changes: dict[str, Any], llama: Path) -> None:
    before = diffattn.load(llama)(random_tokens(1, 20))
    edit(llama, **changes)
    assert torch.equal(diffattn.load(llama)(random_tokens(1, 20)), before)


def rewritten(folder: Path, change: Any) -> None:
    weights = load_file(folder / "model.safetensors")
    change(weights)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda w: w.pop("lm_head.weight"), r"lm_head.weight should be \[40, 32\], the file has absent"),
        (lambda w: w.update(extra=torch.zeros(1)), r"extra should be absent, the file has \[1\]"),
        (
            lambda w: w.update({"model.norm.weight": torch.ones(31)}),
            r"model.norm.weight should be \[32\], the file has \[31\]",
        ),
        (
            lambda w: w.update({"model.norm.weight": torch.ones(32).half()}),
            "float16, torch.float32; they must be of one",
        ),
    ],
)
def test_weights_that_do_not_fit_are_named_as_in_the_file(change: Any, message: str, llama: Path) -> None:
    rewritten(llama, change)
    with pytest.raises(ValueError, match=message):
        diffattn.load(llama)


def test_angles_that_older_files_hold_are_computed_instead(llama: Path) -> None:
    before = diffattn.load(llama)(random_tokens(1, 9))
    rewritten(llama, lambda w: w.update({"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(4)}))
    assert torch.equal(diffattn.load(llama)(random_tokens(1, 9)), before)


def test_a_head_beside_a_tied_embedding_must_be_its_copy(tmp_path: Path) -> None:
    folder = foreign_folder(tmp_path, tie_word_embeddings=True)
    rewritten(folder, lambda w: w.update({"lm_head.weight": w["model.embed_tokens.weight"].clone()}))
    assert diffattn.load(folder).unembedding is None
    rewritten(folder, lambda w: w["lm_head.weight"].add_(1))
    with pytest.raises(ValueError, match=r"tie_word_embeddings is true, but lm_head.weight is not"):
        diffattn.load(folder)


def test_incomplete_folders_are_named(tmp_path: Path) -> None:
    foreign_model("llama").save_pretrained(tmp_path, max_shard_size="20KB")
    index = tmp_path / "model.safetensors.index.json"
    stored = json.loads(index.read_text())
    first = sorted(tmp_path.glob("*.safetensors"))[0]
    first.write_bytes(first.read_bytes()[:-8])
    with pytest.raises(ValueError, match=f"{first.name} is damaged"):
        diffattn.load(tmp_path)
    first.unlink()
    with pytest.raises(ValueError, match=f"no {first.name}, which {index.name} names"):
        diffattn.load(tmp_path)
    stored["weight_map"]["lm_head.weight"] = "../elsewhere.safetensors"
    index.write_text(json.dumps(stored))
    with pytest.raises(ValueError, match=r"no \.\./elsewhere\.safetensors"):
        diffattn.load(tmp_path)
    for names, message in (({}, "names no file"), ({"a": 5, "b": ["c"]}, "no 5, which")):
        index.write_text(json.dumps({"weight_map": names}))
        with pytest.raises(ValueError, match=message):
            diffattn.load(tmp_path)
    index.write_text("[]")
    with pytest.raises(ValueError, match="which file holds which tensor"):
        diffattn.load(tmp_path)
    index.unlink()
    with pytest.raises(ValueError, match=r"no model\.safetensors; it is not a complete model folder"):
        diffattn.load(tmp_path)
