"""`auto` takes the implementation that was measured to be the fastest (benchmarks/attention.py) of those that serve."""

import pytest
import torch
from torch import Tensor

from diffattn.ops import attention, diff_attention, implementations


def operands(queries: int, keys: int, value: int, dtype: torch.dtype, width: int = 16) -> tuple[Tensor, ...]:
    q1, q2 = torch.randn(2, 1, 2, queries, width, dtype=dtype)
    k1, k2 = torch.randn(2, 1, 2, keys, width, dtype=dtype)
    return q1, k1, q2, k2, torch.randn(1, 2, keys, value, dtype=dtype)


def taken(queries: int, keys: int, value: int, dtype: torch.dtype) -> set[str]:
    """Names of the implementations whose bits are those of `auto`, for two maps."""
    x = operands(queries, keys, value, dtype)
    auto = diff_attention(*x, 0.3, is_causal=True)
    names = [name for name in ("reference", "sdpa", "blocked", "cpu") if serves(name, dtype)]
    return {name for name in names if torch.equal(diff_attention(*x, 0.3, is_causal=True, impl=name), auto)}


def serves(name: str, dtype: torch.dtype) -> bool:
    return implementations()[name] is None and (name != "cpu" or dtype in (torch.float32, torch.bfloat16))


@pytest.mark.parametrize("queries, keys, value", [(32, 32, 32), (96, 96, 32), (1, 700, 16), (512, 512, 32)])
def test_the_compiled_kernel_takes_what_it_serves(queries: int, keys: int, value: int) -> None:
    assert taken(queries, keys, value, torch.float32) == {"cpu"}


@pytest.mark.parametrize("queries, keys, value", [(32, 32, 32), (96, 96, 32), (1, 700, 32), (16, 700, 16)])
def test_without_it_small_maps_and_few_queries_go_to_the_formula(queries: int, keys: int, value: int) -> None:
    assert taken(queries, keys, value, torch.float64) == {"reference"}


@pytest.mark.parametrize("queries, keys, value", [(128, 128, 32), (64, 64, 16), (17, 700, 32)])
def test_without_it_larger_ones_go_to_torch(queries: int, keys: int, value: int) -> None:
    assert taken(queries, keys, value, torch.float64) == {"sdpa"}


def test_without_it_two_long_maps_go_to_blocks_and_one_to_torch() -> None:
    assert taken(512, 512, 32, torch.float64) == {"blocked"}
    q, k, _, _, v = operands(512, 512, 16, torch.float64)
    auto = attention(q, k, v, is_causal=True)
    assert torch.equal(auto, attention(q, k, v, is_causal=True, impl="sdpa"))
    assert not torch.equal(auto, attention(q, k, v, is_causal=True, impl="blocked"))


@pytest.mark.parametrize("queries", [8, 40, 600])
def test_a_mask_that_is_learned_goes_where_it_gets_its_gradient(queries: int) -> None:
    mask = torch.randn(queries, queries, requires_grad=True)
    out = diff_attention(*operands(queries, queries, 32, torch.float32), 0.3, attn_mask=mask)
    assert torch.autograd.grad(out.sum(), mask)[0].abs().sum() > 0
