"""Loading official weights: what is refused, and what is said."""

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

import diffattn


def official_v1(heads: int = 4, groups: int = 2, width: int = 32) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(0)
    dim = width // (2 * heads)
    rows = {"q_proj": 2 * heads * dim, "k_proj": 2 * groups * dim, "v_proj": 2 * groups * dim}
    weights = {f"{name}.weight": torch.randn(count, width, generator=generator) for name, count in rows.items()}
    weights["out_proj.weight"] = torch.randn(width, 2 * heads * dim, generator=generator)
    weights["subln.weight"] = torch.rand(2 * dim, generator=generator)
    for name in ("lambda_q1", "lambda_k1", "lambda_q2", "lambda_k2"):
        weights[name] = torch.randn(dim, generator=generator) * 0.1
    return weights


def test_values_are_copied_with_their_dtypes() -> None:
    weights = {name: value.bfloat16() if "proj" in name else value for name, value in official_v1().items()}
    layer = diffattn.load_unilm(weights, 4, 2)
    assert torch.equal(layer.mixer.q.weight, weights["q_proj.weight"])
    assert layer.mixer.q.weight.dtype == torch.bfloat16
    assert layer.mixer.k.weight.dtype == torch.bfloat16
    assert layer.mixer.lambda_q1.dtype == torch.float32
    with torch.no_grad():
        layer.mixer.k.weight.zero_()
    assert weights["k_proj.weight"].abs().max() > 0


def test_depth_counts_from_zero() -> None:
    for depth, start in ((0, 0.2), (27, 0.79982)):
        layer = diffattn.load_unilm(official_v1(), 4, 2, layer=depth)
        assert layer.mixer.lambda_init == pytest.approx(start, abs=1e-5)


def test_older_files_have_no_norm_weight() -> None:
    weights = official_v1()
    weights["subln.weight"] = torch.ones_like(weights["subln.weight"])
    with_ones = diffattn.load_unilm(weights, 4, 2)
    del weights["subln.weight"]
    without = diffattn.load_unilm(weights, 4, 2)
    x = torch.randn(1, 5, 32, generator=torch.Generator().manual_seed(1))
    assert_close(without(x), with_ones(x))


@pytest.mark.parametrize(
    ("change", "arguments", "message"),
    [
        ({"k_proj.weight": None}, {}, "missing k_proj.weight"),
        ({"layers.0.k_proj.weight": torch.ones(1)}, {}, "unknown layers.0.k_proj.weight"),
        ({}, {"num_kv_heads": None}, r"k_proj.weight: got shape \[16, 32\], needs \[32, 32\]"),
        ({"lambda_k2": torch.ones(5)}, {}, r"lambda_k2: got shape \[5\], needs \[4\]"),
        ({}, {"num_heads": 5}, "q_proj.weight: got shape .* needs rows for 10 query heads"),
        ({}, {"num_heads": 0}, "num_heads: got 0"),
        ({}, {"num_heads": "4"}, "num_heads: got '4'"),
        ({"k_proj.weight": [1.0]}, {}, "k_proj.weight: got list, needs a floating tensor"),
        ({"k_proj.weight": torch.ones(16, 32).half()}, {}, "k_proj.weight: got torch.float16, needs torch.float32"),
        ({}, {"num_kv_heads": 3}, "kv_heads must divide heads"),
        ({}, {"layer": -1}, "layer: got -1"),
        ({}, {"layer": "0"}, "layer: got '0'"),
        ({}, {"version": "v3"}, "version: got 'v3'"),
        ({}, {"version": "v2"}, "missing o_proj.weight, lambda_proj.weight; unknown"),
    ],
)
def test_what_does_not_fit_is_named(change: dict, arguments: dict, message: str) -> None:
    weights = {name: value for name, value in (official_v1() | change).items() if value is not None}
    with pytest.raises(ValueError, match=message):
        diffattn.load_unilm(weights, **({"num_heads": 4, "num_kv_heads": 2} | arguments))
