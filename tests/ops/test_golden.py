"""The published operator's values and gradients, in float64."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.testing import assert_close

from diffattn.ops import diff_attention, diff_attention_maps
from support import golden
from support.implementations import serving

# What the golden set promises to a float64 implementation.
CLOSE = {"rtol": 0.0, "atol": 1e-10}
OPERANDS = ("q1", "k1", "q2", "k2", "v", "lambda")
cases = pytest.mark.parametrize("case", golden.cases("v1_op"), ids=lambda case: case["id"])


def restrictions(case: dict[str, Any], stored: dict[str, Tensor]) -> dict[str, Any]:
    return {"attn_mask": stored.get("attn_mask"), "is_causal": "causal" in case["tags"]}


@pytest.mark.parametrize("impl", ["auto", *serving(torch.float64, 4)])
@cases
def test_output_and_every_gradient(case: dict[str, Any], impl: str) -> None:
    stored = golden.tensors(case)
    leaves = {name: stored[name].clone().requires_grad_() for name in OPERANDS}
    out = diff_attention(*leaves.values(), **restrictions(case, stored), impl=impl)
    (out * stored["G"]).sum().backward()
    found = {"combined": out.detach()} | {f"grad.{name}": leaf.grad for name, leaf in leaves.items()}
    assert_close(found, {name: stored[name] for name in found}, **CLOSE)


@pytest.mark.parametrize(
    "case", [c for c in golden.cases("v1_op") if "A1" in c["tensors"]], ids=lambda case: case["id"]
)
def test_maps(case: dict[str, Any]) -> None:
    stored = golden.tensors(case)
    q1, k1, q2, k2, _, _ = (stored[name] for name in OPERANDS)
    found = diff_attention_maps(q1, k1, q2, k2, **restrictions(case, stored))
    assert_close(found, (stored["A1"], stored["A2"]), **CLOSE)


def padded(x: Tensor) -> Tensor:
    """Channels of 0 up to a multiple of 16: with the scale kept they change no logit, and add 0 to the result."""
    return F.pad(x, (0, -x.shape[-1] % 16))


@pytest.mark.parametrize("impl", serving(torch.float32, 16))
@cases
def test_float32_is_within_a_millionth_of_the_values(case: dict[str, Any], impl: str) -> None:
    stored = golden.tensors(case)
    leaves = {name: stored[name].float().requires_grad_() for name in OPERANDS}
    *operands, lam = leaves.values()
    scale, width = case["hyper"]["softmax_scale"], stored["v"].shape[-1]
    out = diff_attention(*map(padded, operands), lam, **restrictions(case, stored), scale=scale, impl=impl)[..., :width]
    (out * stored["G"].float()).sum().backward()
    found = {"combined": out.detach()} | {f"grad.{name}": leaf.grad for name, leaf in leaves.items()}
    # A logit of 700 (the stress case) is known to 1e-4 in float32, whoever computes it.
    share = case["hyper"]["n_rep"]
    pairs = [(stored[f"q{i}"], stored[f"k{i}"].repeat_interleave(share, 1)) for i in (1, 2)]
    largest = scale * max((q @ k.mT).abs().max().item() for q, k in pairs)
    allowed = max(1e-6, torch.finfo(torch.float32).eps * largest)
    for name, value in found.items():
        # Where terms cancel (lam's gradient is one number; a single key's is 0) they are measured against their size.
        terms = stored["G"].norm() * (stored["combined"].norm() if name == "grad.lambda" else 1.0)
        size = stored[name].norm().clamp(min=terms) if name != "combined" else stored[name].norm()
        assert value is not None and (value.double() - stored[name]).norm() <= allowed * size, name


@pytest.mark.parametrize("impl", ["reference", "sdpa"])
@cases
def test_float32_is_as_good_as_the_published_code(case: dict[str, Any], impl: str) -> None:
    stored = golden.tensors(case)
    narrow = [stored[name].float() for name in OPERANDS]
    out = diff_attention(*narrow, **restrictions(case, stored), impl=impl)
    # Rounding the inputs moves a logit by about eps * |logit|; the stress case has logits of several hundred.
    logits = torch.cat([stored["q1"].flatten().abs(), stored["k1"].flatten().abs()]).max() ** 2 * stored["q1"].shape[-1]
    tolerance = 4 * torch.finfo(torch.float32).eps * float(logits * stored["v"].abs().max())
    assert_close(out.double(), stored["combined"], rtol=0, atol=tolerance)


@pytest.mark.parametrize("impl", ["reference", "sdpa", "auto"])
def test_a_mask_of_its_own_for_each_map_is_refused(impl: str) -> None:
    """The official plain module takes [1, 2H, T, S]; one mask for both maps is all that the operator promises."""
    q, k, v = torch.randn(1, 2, 4, 8), torch.randn(1, 2, 4, 8), torch.randn(1, 2, 4, 16)
    with pytest.raises(ValueError, match=r"attn_mask: got shape \[1, 4, 4, 4\].*\[1, 2, 4, 4\].*both maps"):
        diff_attention(q, k, q, k, v, 0.5, attn_mask=torch.zeros(1, 4, 4, 4), impl=impl)
