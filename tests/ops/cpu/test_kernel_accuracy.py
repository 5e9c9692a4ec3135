"""How near the fused CPU kernel is to float64 at ordinary sizes and where rows saturate, on each instruction set."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from diffattn.ops import diff_attention
from diffattn.ops.cpu import build, library
from support.cpu_kernel import needs_kernel

pytestmark = needs_kernel
NAMES = ("out", "q1", "k1", "q2", "k2", "v", "lam")


def operands(
    tokens: int = 256, width: int = 64, value: int = 128, groups: int = 2, dtype: torch.dtype = torch.float32
) -> list[Tensor]:
    """q1, k1, q2, k2, v and lam of each head: four heads."""
    q, k = (1, 4, tokens, width), (1, groups, tokens, width)
    given = [torch.randn(shape).to(dtype) for shape in (q, k, q, k, (*k[:3], value))]
    return [*given, torch.rand(4, 1, 1)]


def everything(given: list[Tensor], dtype: torch.dtype, impl: str, is_causal: bool = True) -> dict[str, Tensor]:
    """The result and all gradients, in float64."""
    leaves = [x.to(dtype).requires_grad_() for x in given[:5]]
    leaves.append(given[5].to(torch.float64 if dtype == torch.float64 else torch.float32).requires_grad_())
    out = diff_attention(*leaves, is_causal=is_causal, impl=impl)
    cotangent = torch.randn(out.shape, generator=torch.Generator().manual_seed(1)).bfloat16().to(dtype)
    found = (out.detach(), *torch.autograd.grad(out, leaves, cotangent))
    return {name: x.double() for name, x in zip(NAMES, found, strict=True)}


def error(found: Tensor, truth: Tensor) -> float:
    """Relative, in the Euclidean norm of the whole tensor."""
    return ((found - truth).norm() / truth.norm()).item()


@pytest.mark.parametrize("is_causal", [True, False])
@pytest.mark.parametrize("width, value", [(16, 32), (64, 128), (64, 64), (96, 192), (128, 256), (256, 512)])
def test_float32_is_within_a_millionth_of_float64(width: int, value: int, is_causal: bool) -> None:
    given = operands(width=width, value=value)
    truth = everything(given, torch.float64, "reference", is_causal)
    for name, x in everything(given, torch.float32, "cpu", is_causal).items():
        # lam's gradient is a signed sum over the rows, in which digits cancel.
        assert error(x, truth[name]) <= (2e-6 if name == "lam" else 1e-6), name


@pytest.mark.parametrize("width, value", [(16, 32), (64, 128), (128, 256)])
def test_bfloat16_is_within_the_rounding_of_its_results(width: int, value: int) -> None:
    """Rounding to nearest errs by 1.7e-3 in the norm (cutting off by 3.3e-3); operands of products, where they are
    rounded too, add to it. lam's gradient, which is float32, is not touched."""
    given = operands(width=width, value=value, dtype=torch.bfloat16)
    truth = everything(given, torch.float64, "reference")
    found = everything(given, torch.bfloat16, "cpu")
    for name in NAMES:
        allowed = {"lam": 1e-3, "out": 2.6e-3}.get(name, 2.0**-8)
        assert error(found[name], truth[name]) <= allowed, name


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_row_that_sees_one_key_has_gradients_of_0(dtype: torch.dtype) -> None:
    """Its weight is 1 whatever the logit, so nothing depends on queries and keys."""
    given = operands(tokens=150, dtype=dtype)
    for options in ({"window": 1, "is_causal": True}, {"attn_mask": torch.eye(150, dtype=torch.bool)}):
        leaves = [x.clone().requires_grad_() for x in given]
        out = diff_attention(*leaves, **options, impl="cpu")
        q1, k1, q2, k2, v, lam = torch.autograd.grad(out.float().sin().sum(), leaves)
        for x in (q1, k1, q2, k2):
            assert x.abs().max() <= 1e-6
        assert v.any() and lam.any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("factor", [8, 100])
def test_saturated_rows_have_gradients_of_0_where_the_truth_is_0(factor: int, dtype: torch.dtype) -> None:
    """Logits times 8 and times 100: most rows read one key, and their gradient of queries is 0 to 1e-6 or below."""
    given = operands(tokens=150, dtype=dtype)
    given[0], given[2] = factor * given[0], factor * given[2]
    truth, found = everything(given, torch.float64, "reference"), everything(given, dtype, "cpu")
    size = {name: truth[name].abs().max().item() for name in NAMES}
    for name in ("q1", "q2"):
        settled = truth[name].abs().amax(-1) <= 1e-7
        assert settled.sum() >= (4 if factor == 8 else 100)
        assert found[name][settled].abs().max() <= 1e-6
    if dtype == torch.float32:
        # Float32 knows logits of this size to their own rounding.
        largest = (given[0] @ given[1].repeat_interleave(2, 1).mT).abs().max().item() / 8
        for name in NAMES:
            assert (found[name] - truth[name]).abs().max() <= 1e-6 * largest * size[name], name


def test_at_lam_1_the_first_causal_row_is_0_and_its_gradients_are_the_values() -> None:
    given = [*operands(tokens=70)[:5], torch.ones(4, 1, 1)]
    found = everything(given, torch.float32, "cpu")
    truth = everything(given, torch.float64, "reference")
    assert not found["out"][:, :, 0].any()
    assert found["q1"][:, :, 0].abs().max() <= 1e-6 and found["q2"][:, :, 0].abs().max() <= 1e-6
    assert_close(found["lam"], truth["lam"], rtol=1e-5, atol=1e-5)


FOLDER = Path(os.environ.get("DIFFATTN_CPU_FOLDER") or build.SOURCES)
RUNNABLE = [name for name in build.INSTRUCTION_SETS if library.find(FOLDER, name)[0] is not None]

VALUES = """
import sys, torch
from diffattn.ops import diff_attention
from diffattn.ops.cpu import library
torch.set_num_threads(2)
given = torch.load(sys.argv[1])
for dtype in (torch.float32, torch.bfloat16):
    leaves = [x.to(dtype).requires_grad_() for x in given[:5]] + [given[5].clone().requires_grad_()]
    out = diff_attention(*leaves, is_causal=True, impl="cpu")
    found = (out.detach(), *torch.autograd.grad(out, leaves, given[6].to(dtype)))
    with torch.no_grad():
        one = [leaves[0][:, :, -1:], leaves[1], leaves[2][:, :, -1:], *leaves[3:]]
        decoded = diff_attention(*one, is_causal=True, impl="cpu")
    torch.save([*found, decoded], f"{sys.argv[1]}.{dtype}")
print(library.KERNEL.diffattn_isa().decode())
"""


@pytest.mark.parametrize("name", RUNNABLE)
def test_each_instruction_set_gives_the_values(name: str, tmp_path: Path) -> None:
    given = [*operands(tokens=150, width=40, value=72, dtype=torch.bfloat16), torch.randn(1, 4, 150, 72).bfloat16()]
    path = tmp_path / "given.pt"
    torch.save([x.float() for x in given], path)
    environment = {**os.environ, "DIFFATTN_CPU_ISA": name}
    command = [sys.executable, "-c", VALUES, str(path)]
    done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    assert done.stdout.split() == [name]

    leaves = [x.double().requires_grad_() for x in given[:6]]
    out = diff_attention(*leaves, is_causal=True, impl="reference")
    truth = (out.detach(), *torch.autograd.grad(out, leaves, given[6].double()), out.detach()[:, :, -1:])
    for dtype, allowed in ((torch.float32, 1e-6), (torch.bfloat16, 2.0**-8)):
        for x, right in zip(torch.load(f"{path}.{dtype}"), truth, strict=True):
            assert error(x.double(), right) <= allowed
