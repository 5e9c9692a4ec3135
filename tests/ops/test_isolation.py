"""What a query may not attend cannot reach it: perturbing it changes no bit of the result, nor of any gradient."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from diffattn.ops import attention, diff_attention
from support.implementations import serving

every_impl = pytest.mark.parametrize("impl", ["auto", *serving(torch.float32, 16)])
BATCH, HEADS, GROUPS, TOKENS, WIDTH = 2, 4, 2, 10, 16
Operator = Callable[..., Tensor]


def differential(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    return diff_attention(q, k, q.flip(1), k.flip(3), v, 0.6, **options)


operators = pytest.mark.parametrize("operator", [differential, attention])


def operands(queries: int = TOKENS) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(queries)
    shapes = [(HEADS, queries, WIDTH), (GROUPS, TOKENS, WIDTH), (GROUPS, TOKENS, 2 * WIDTH)]
    q, k, v = (torch.randn(BATCH, *shape, generator=generator) for shape in shapes)
    return q, k, v


def perturbed(x: Tensor, hidden: Tensor) -> Tensor:
    """x [B, G, S, *] with the keys that `hidden` [B, S] names replaced by something large."""
    return torch.where(hidden[:, None, :, None], 50.0 + x.flip(2), x)


def assert_unmoved(operator: Operator, rows: Tensor, hidden: Tensor, options: dict[str, Any]) -> None:
    """The rows [B, T] of the result ignore the keys and values that `hidden` [B, S] names; the other rows see them."""
    q, k, v = operands(rows.shape[1])
    before = operator(q, k, v, **options)
    moved = (operator(q, perturbed(k, hidden), perturbed(v, hidden), **options) != before).any(-1).any(1)
    assert not moved[rows].any()
    assert moved[~rows].any() or rows.all()

    k, v = k.requires_grad_(), v.requires_grad_()
    out = operator(q, k, v, **options)
    to_keys, to_values = torch.autograd.grad(out.square().sum((1, 3))[rows].sum(), (k, v))
    assert not to_keys.movedim(1, 2)[hidden].any() and not to_values.movedim(1, 2)[hidden].any()


@every_impl
@operators
def test_the_future(operator: Operator, impl: str) -> None:
    late = torch.arange(TOKENS).expand(BATCH, -1) >= 6
    assert_unmoved(operator, ~late, late, {"is_causal": True, "impl": impl})


@every_impl
@operators
def test_the_future_where_a_mask_of_zeros_is_given(operator: Operator, impl: str) -> None:
    """In the official plain file a mask switches causality off; here they combine."""
    late = torch.arange(TOKENS).expand(BATCH, -1) >= 6
    options = {"is_causal": True, "attn_mask": torch.zeros(TOKENS, TOKENS), "impl": impl}
    assert_unmoved(operator, ~late, late, options)


@every_impl
@operators
def test_what_lies_before_the_window(operator: Operator, impl: str) -> None:
    rows, early = (torch.arange(TOKENS).expand(BATCH, -1) >= 5, torch.arange(TOKENS).expand(BATCH, -1) < 3)
    assert_unmoved(operator, rows, early, {"is_causal": True, "window": 3, "impl": impl})


@every_impl
@operators
@pytest.mark.parametrize("is_causal", [True, False])
def test_other_documents(operator: Operator, is_causal: bool, impl: str) -> None:
    documents = torch.tensor([[0] * 4 + [1] * 6, [3] * 7 + [9] * 3])
    first = documents == documents[:, :1]
    assert_unmoved(operator, ~first, first, {"is_causal": is_causal, "documents": documents, "impl": impl})
    assert_unmoved(operator, first, ~first, {"is_causal": is_causal, "documents": documents, "impl": impl})


@every_impl
@operators
def test_padding_on_the_left(operator: Operator, impl: str) -> None:
    padding = torch.arange(TOKENS) < torch.tensor([[3], [0]])
    everywhere = torch.ones(BATCH, TOKENS, dtype=torch.bool)
    options = {"is_causal": True, "documents": torch.where(padding, -1, 0), "impl": impl}
    assert_unmoved(operator, everywhere, padding, options)


@every_impl
@operators
def test_slots_of_a_cache_behind_the_key_length(operator: Operator, impl: str) -> None:
    lengths = torch.tensor([4, 9])
    behind = torch.arange(TOKENS) >= lengths[:, None]
    everywhere = torch.ones(BATCH, 3, dtype=torch.bool)
    assert_unmoved(operator, everywhere, behind, {"is_causal": True, "key_lengths": lengths, "impl": impl})


@every_impl
@operators
@pytest.mark.parametrize("as_float", [False, True])
def test_keys_that_a_mask_hides(operator: Operator, as_float: bool, impl: str) -> None:
    hidden = torch.arange(TOKENS) >= torch.tensor([[7], [2]])
    mask = ~hidden[:, None, None, :]
    if as_float:
        mask = torch.zeros(mask.shape).masked_fill(~mask, -torch.inf)
    everywhere = torch.ones(BATCH, TOKENS, dtype=torch.bool)
    assert_unmoved(operator, everywhere, hidden, {"attn_mask": mask, "impl": impl})
