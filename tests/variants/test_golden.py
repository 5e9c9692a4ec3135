"""The official modules' outputs and gradients, through `load_unilm`."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

import diffattn
from diffattn.variants import Layer
from support import golden
from support.implementations import serves, serving

MODULES = [case for kind in ("v1_module", "v2_module", "baseline_module") for case in golden.cases(kind)]
BEYOND = ("mask:bias", "edge:straddling-pairs")
"""A bias for each of a pair's two maps, and pairs across key/value heads: refused."""
GRADIENTS_TO_OFFICIAL = {"q.weight": "q_proj.weight", "k.weight": "k_proj.weight", "v.weight": "v_proj.weight"} | {
    "norm_weight": "subln.weight"
}


def refused(case: dict[str, Any]) -> bool:
    return case["kind"] != "baseline_module" and any(tag in BEYOND for tag in case["tags"])


def loaded(case: dict[str, Any], stored: dict[str, Tensor]) -> Layer:
    hyper = case["hyper"]
    if case["kind"] == "v1_module":
        version = "v1"
    else:
        version = "v2" if hyper.get("use_diff_v2") else "baseline"
    weights = {name.removeprefix("w."): value for name, value in stored.items() if name.startswith("w.")}
    return diffattn.load_unilm(
        weights, hyper["num_heads"], hyper["num_kv_heads"], layer=hyper.get("depth", 0), version=version
    )


def called(layer: Layer, stored: dict[str, Tensor], x: Tensor) -> Tensor:
    """In the official modules a mask replaces the causal rule."""
    mask = stored.get("attn_mask")
    rope = (stored["rope.cos"], stored["rope.sin"])
    return layer(x, rope=rope, attn_mask=mask, is_causal=mask is None)


@pytest.mark.parametrize("impl", ["auto", *serving(torch.float64, 4)])
@pytest.mark.parametrize("case", [c for c in MODULES if not refused(c)], ids=lambda case: case["id"])
def test_output_and_every_gradient(case: dict[str, Any], impl: str) -> None:
    stored = golden.tensors(case)
    layer = loaded(case, stored)
    layer.mixer.impl = impl
    x = stored["x"].clone().requires_grad_()
    y = called(layer, stored, x)
    (y * stored["G"]).sum().backward()

    found = {"output": y.detach(), "grad.x": x.grad} | weight_gradients(layer, stored)
    prefix = "paired." if case["kind"] == "v1_module" else ""
    wanted = {name for name in stored if name == f"{prefix}output" or name.startswith(f"{prefix}grad.")}
    assert {f"{prefix}{name}" for name in found} == wanted
    for name, value in found.items():
        # The set's own tolerance: independent float64 implementations agree to 1e-12.
        assert_close(value, stored[prefix + name], rtol=0, atol=1e-10, msg=lambda text, name=name: f"{name}: {text}")


@pytest.mark.parametrize(
    ("case", "impl"),
    [
        pytest.param(case, impl, id=f"{case['id']}-{impl}")
        for case in MODULES
        for impl in serving(torch.float32, 16)
        if not refused(case) and serves(impl, torch.float32, case["hyper"]["head_dim"])
    ],
)
def test_float32_is_within_its_rounding(case: dict[str, Any], impl: str) -> None:
    stored = golden.tensors(case)
    layer = loaded(case, stored).float()
    layer.mixer.impl = impl
    x = stored["x"].float().requires_grad_()
    y = called(layer, {name: value.float() for name, value in stored.items()}, x)
    (y * stored["G"].float()).sum().backward()
    found = {"output": y.detach(), "grad.x": x.grad} | weight_gradients(layer, stored)
    prefix = "paired." if case["kind"] == "v1_module" else ""
    # Four products in a row, each rounding; logits of several hundred in the stress case are known to 1e-4.
    allowed = 2e-4 if "stress-large-logits" in case["tags"] else 2e-6
    for name, value in found.items():
        wanted = stored[prefix + name]
        # A single key's weight is 1 whatever the queries: gradients of 0, measured against the result's.
        size = wanted.norm().clamp(min=stored["G"].norm())
        assert value is not None and (value.double() - wanted).norm() <= allowed * size, name


def weight_gradients(layer: Layer, stored: dict[str, Tensor]) -> dict[str, Tensor | None]:
    """Under the official names."""
    found = {}
    for name, parameter in layer.mixer.named_parameters():
        official = GRADIENTS_TO_OFFICIAL.get(name, name)
        if name == "o.weight":
            official = "out_proj.weight" if "w.out_proj.weight" in stored else "o_proj.weight"
        found[f"grad.{official}"] = parameter.grad
    return found


@pytest.mark.parametrize("case", [c for c in MODULES if refused(c)], ids=lambda case: case["id"])
def test_what_cannot_be_expressed_is_refused(case: dict[str, Any]) -> None:
    stored = golden.tensors(case)
    with pytest.raises(ValueError):
        called(loaded(case, stored), stored, stored["x"])


@pytest.mark.parametrize("case", [c for c in golden.cases("v1_module") if "gqa" in c["tags"]], ids=lambda c: c["id"])
def test_the_plain_files_grouping_is_another_function(case: dict[str, Any]) -> None:
    stored = golden.tensors(case)
    y = called(loaded(case, stored), stored, stored["x"])
    assert (y - stored["naive_gqa.output"]).abs().max() > 0.1


@pytest.mark.parametrize(
    ("dtype", "error"), [(torch.float32, "float32_max_abs_err"), (torch.bfloat16, "bfloat16_max_abs_err")]
)
@pytest.mark.parametrize("case", [c for c in MODULES if not refused(c)], ids=lambda case: case["id"])
def test_lower_precision_errs_no_more_than_the_published_code(
    case: dict[str, Any], dtype: torch.dtype, error: str
) -> None:
    stored = golden.tensors(case)
    layer = loaded(case, stored).to(dtype)
    stored |= {name: value.to(dtype) for name, value in stored.items() if name == "attn_mask"}
    with torch.no_grad():
        y = called(layer, stored, stored["x"].to(dtype)).double()
    paired = case.get("variants", {}).get("paired")
    wanted = stored["paired.output" if paired else "output"]
    allowed = (paired or case)["reference_errors"][error]
    # Three times: errors of another order of rounding, and one sample of each.
    assert (y - wanted).abs().max() <= 3 * allowed
