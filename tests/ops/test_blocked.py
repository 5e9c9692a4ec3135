"""What is the blocked implementation's own: edges of its tiles, memory, 16 bits, saturated rows, what it refuses."""

import subprocess
import sys
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.testing import assert_close
from torch.utils.flop_counter import FlopCounterMode

from diffattn.ops import attention, blocked, diff_attention
from support.attention_cases import Call, calls

# float64 against float64: sums in another order.
CLOSE = {"rtol": 1e-9, "atol": 1e-10}


@pytest.fixture
def small_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tiles of two or three queries, and of one or two groups: edges everywhere."""
    monkeypatch.setattr(blocked, "ROWS", 3)
    monkeypatch.setattr(blocked, "ELEMENTS", 30)


def results(call: Call, impl: str) -> list[Tensor]:
    """Output and gradients of both operators, summed; a mask is a constant."""
    leaves = [x.detach().requires_grad_() for x in call.operands() if isinstance(x, Tensor)]
    sink = None if call.sink is None else call.sink.detach().requires_grad_()
    lam = leaves[5] if isinstance(call.lam, Tensor) else call.lam
    q1, k1, q2, k2, v = leaves[:5]
    k2 = k1 if call.k2 is call.k1 else k2
    out = diff_attention(q1, k1, q2, k2, v, lam, **call.restrictions, impl=impl)
    out = out + attention(q1, k1, v, **call.restrictions, sink=sink, impl=impl)
    wanted = leaves if sink is None else [*leaves, sink]
    return [out, *torch.autograd.grad(out.sin().sum(), wanted, allow_unused=True, materialize_grads=True)]


@pytest.mark.usefixtures("small_tiles")
def test_every_call_gives_the_values_and_gradients_of_the_reference() -> None:
    @settings(max_examples=100, deadline=None, derandomize=True)
    @given(calls())
    def check(call: Call) -> None:
        assert_close(results(call, "blocked"), results(call, "reference"), **CLOSE)

    check()


def random_call(heads: int, groups: int, queries: int, keys: int, dtype: torch.dtype = torch.float64) -> list[Tensor]:
    """q1, k1, q2, k2, v, lam per head; D = 8, E = 16."""
    shapes = [(2, n, length, 8) for n, length in ((heads, queries), (groups, keys)) * 2]
    return [torch.randn(shape, dtype=dtype) for shape in [*shapes, (2, groups, keys, 16), (heads, 1, 1)]]


@settings(max_examples=15, deadline=None, derandomize=True)
@given(
    st.sampled_from([63, 64, 65, 127, 128, 129, 257]),
    st.sampled_from([0, 1, 63, 130]),
    st.sampled_from([None, 1, 2, 63, 64, 65, 127, 128, 129, 200]),
    st.sampled_from([1, 2, 3]),
)
def test_edges_of_tiles(queries: int, more: int, window: int | None, share: int) -> None:
    operands = random_call(2 * share, 2, queries, queries + more)
    options: dict[str, Any] = {"is_causal": True, "window": window}
    found, wanted = (results(Call(*operands, options), impl) for impl in ("blocked", "reference"))
    assert_close(found, wanted, **CLOSE)


@pytest.mark.parametrize("queries, keys", [(300, 140), (260, 3)])
def test_more_queries_than_keys(queries: int, keys: int) -> None:
    operands = random_call(2, 1, queries, keys)
    found, wanted = (results(Call(*operands, {"is_causal": True}), impl) for impl in ("blocked", "reference"))
    assert_close(found, wanted, **CLOSE)


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("lengths", [[140, 300], [0, 129], [1, 5]])
def test_key_lengths_around_the_edges_of_tiles(lengths: list[int], is_causal: bool) -> None:
    documents = torch.arange(300).expand(2, 300) // 70
    options = {"is_causal": is_causal, "key_lengths": torch.tensor(lengths)}
    operands = random_call(2, 1, 150, 300)
    for more in ({}, {"documents": documents}, {"alibi": torch.rand(2, dtype=torch.float64)}):
        found, wanted = (results(Call(*operands, options | more), impl) for impl in ("blocked", "reference"))
        assert_close(found, wanted, **CLOSE)


def exact_and_found(operands: list[Tensor], **options: Any) -> tuple[list[Tensor], list[Tensor]]:
    """Output and gradients of the reference in float64 and of blocked, for the same rounded operands."""
    both = []
    for impl, leaves in (("reference", [x.double() for x in operands]), ("blocked", operands)):
        leaves = [x.detach().requires_grad_() for x in leaves]
        out = diff_attention(*leaves, **options, impl=impl)
        cotangent = torch.randn(out.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
        both.append([out.detach(), *torch.autograd.grad(out, leaves, cotangent.to(operands[0].dtype).to(out.dtype))])
    return both[0], both[1]


def error(found: Tensor, exact: Tensor) -> float:
    return float((found.double() - exact).norm() / exact.norm())


def test_float32_is_within_1e_6_of_float64() -> None:
    exact, found = exact_and_found(random_call(4, 2, 300, 300, torch.float32), is_causal=True)
    assert max(map(error, found, exact)) < 1e-6


@pytest.mark.parametrize("dtype, rounding", [(torch.bfloat16, 2.0**-9), (torch.float16, 2.0**-12)])
def test_16_bits_err_by_the_rounding_of_each_result_alone(dtype: torch.dtype, rounding: float) -> None:
    operands = random_call(4, 2, 300, 300, dtype)
    operands[5] = operands[5].float()
    exact, found = exact_and_found(operands, is_causal=True)
    # In the norm, one rounding to the nearest; the cotangent is the same on both sides.
    assert max(map(error, found[:-1], exact[:-1])) < rounding
    assert error(found[-1], exact[-1]) < 1e-5, "lam's gradient comes from float32 maps and is float32"


def test_a_row_that_sees_one_key_has_no_gradient() -> None:
    """Its map is 1 whatever the logit is: nothing flows to queries and keys."""
    operands = [x.requires_grad_() for x in random_call(2, 1, 130, 130, torch.float32)]
    out = diff_attention(*operands, is_causal=True, window=1, impl="blocked")
    q1, k1, q2, k2, *_ = torch.autograd.grad(out.sin().sum(), operands)
    assert not any(x.any() for x in (q1, k1, q2, k2))


def test_saturated_rows_have_no_gradient() -> None:
    """Logits times 8 and far apart: each row is one key to 1e-30, and the truth is 0."""
    keys = torch.eye(16)[None, None].repeat(1, 1, 10, 1)[:, :, :16]
    q, v = 8 * 40 * torch.eye(16).repeat(10, 1)[None, None], torch.randn(1, 1, 16, 8)
    leaves = [x.requires_grad_() for x in (q, keys.clone(), q.flip(2).clone(), keys.clone())]
    out = diff_attention(*leaves, v, 0.7, impl="blocked")
    for gradient in torch.autograd.grad(out.sin().sum(), leaves):
        assert gradient.abs().max() < 1e-6


MEMORY = """
import resource, torch
from diffattn.ops import diff_attention

def kilobytes():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

def run(tokens):
    operands = [torch.randn(1, 1, tokens, width).requires_grad_() for width in (8, 8, 8, 8, 16)]
    before = kilobytes()
    out = diff_attention(*operands, torch.rand(1, 1, 1, requires_grad=True), is_causal=True, impl="blocked")
    torch.autograd.grad(out.sum(), operands)
    return kilobytes() - before

torch.set_num_threads(1)
run(128)
print(run(8192))
"""


def test_memory_of_a_training_step_grows_with_the_tokens_not_with_their_square() -> None:
    used = int(subprocess.check_output([sys.executable, "-W", "ignore", "-c", MEMORY])) / 1024
    # Four buffers of 128 rows are 16 MB, results and gradients 3 MB; one map would be 256 MB.
    assert used < 32


def test_second_derivatives_are_refused_where_they_are_taken() -> None:
    operands = [x.requires_grad_() for x in random_call(2, 1, 5, 5)]
    out = diff_attention(*operands, is_causal=True, impl="blocked")
    gradients = torch.autograd.grad(out.sin().sum(), operands, create_graph=True)
    with pytest.raises(RuntimeError, match="impl='blocked' has no second derivatives; impl='reference' and"):
        torch.autograd.grad(gradients[0].square().sum(), operands)


@pytest.mark.parametrize("name, shape", [("attn_mask", (5, 5)), ("alibi", (2,))])
def test_what_has_no_gradient_here_is_refused_where_one_is_wanted(name: str, shape: tuple[int, ...]) -> None:
    operands = random_call(2, 1, 5, 5)
    wanted = torch.randn(shape, requires_grad=True)
    with pytest.raises(ValueError, match=f"'blocked' cannot serve this call: {name} requires grad"):
        diff_attention(*operands, **{name: wanted}, impl="blocked")
    diff_attention(*operands, **{name: wanted.detach()}, impl="blocked")


@pytest.mark.parametrize("case", ["two maps", "shared keys", "sink"])
def test_its_operators_keep_the_rules_of_torch(case: str) -> None:
    """Schema, fake results, autograd registration, tracing with dynamic shapes."""
    q1, k1, q2, k2, v, lam = (x.requires_grad_() for x in random_call(2, 1, 5, 5, torch.float32))
    restrictions = (
        torch.rand(5, 5),
        True,
        3,
        torch.zeros(2, 5, dtype=torch.int64),
        torch.tensor([5, 4]),
        torch.rand(2),
    )
    maps = {"two maps": (q2, k2, lam, None), "shared keys": (q2, None, lam, None)}
    operands = (q1, k1, v, *maps.get(case, (None, None, None, torch.rand(2, requires_grad=True))), *restrictions, 0.3)
    torch.library.opcheck(torch.ops.diffattn.blocked.default, operands)


@pytest.mark.parametrize("maps", [1, 2])
def test_flops_are_those_of_the_products_over_all_pairs(maps: int) -> None:
    q1, k1, q2, k2, v, lam = (x.requires_grad_() for x in random_call(4, 2, 300, 310))
    with FlopCounterMode(display=False) as counter:
        both = diff_attention(q1, k1, q2, k2, v, lam, impl="blocked") if maps == 2 else None
        out = attention(q1, k1, v, impl="blocked") if both is None else both
        forward = counter.get_total_flops()
        out.sum().backward()
    pairs = 2 * 4 * 300 * 310
    assert forward == 2 * pairs * (maps * 8 + 16)
    # The maps again, dA and dV, dQ and dK.
    assert counter.get_total_flops() - forward == 2 * pairs * (3 * maps * 8 + 2 * 16)
