"""Rows with nothing to attend: exactly 0, with gradients of exactly 0; and what is not finite stays visible."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from diffattn.ops import attention, attention_maps, diff_attention, diff_attention_maps
from support.implementations import serving

every_impl = pytest.mark.parametrize("impl", ["auto", *serving(torch.float32, 16)])
TOKENS = 5


def mask(*rows: str) -> Tensor:
    return torch.tensor([[entry == "1" for entry in row] for row in rows])


# Each leaves something to attend in some rows and nothing in those that are named.
EMPTY: dict[str, tuple[dict[str, Any], list[int]]] = {
    "bool mask": ({"attn_mask": mask("00000", "11000", "11111", "00000", "00001")}, [0, 3]),
    "float mask": ({"attn_mask": torch.zeros(5, 5).index_fill(0, torch.tensor([1, 2]), -torch.inf)}, [1, 2]),
    "padding": ({"documents": torch.tensor([[-1, -1, 0, 0, -1]])}, [0, 1, 4]),
    "causal padding": ({"documents": torch.tensor([[-1, -1, 0, 0, 0]]), "is_causal": True}, [0, 1]),
    "no keys": ({"key_lengths": torch.tensor([0])}, [0, 1, 2, 3, 4]),
    "more queries than keys": ({"key_lengths": torch.tensor([2]), "is_causal": True}, [0, 1, 2]),
    "mask against causality": (
        {"attn_mask": mask("01111", "00111", "11111", "11111", "11111"), "is_causal": True},
        [0, 1],
    ),
    "all but the hidden": ({"attn_mask": mask(*["10000"] * 5), "is_causal": True, "window": 1}, [1, 2, 3, 4]),
    "alibi": ({"attn_mask": mask("00000", *["11111"] * 4), "alibi": torch.tensor([1.0, 2.0])}, [0]),
}
restrictions = pytest.mark.parametrize("name", EMPTY)


def leaves() -> list[Tensor]:
    shapes = [(1, 2, TOKENS, 16)] * 5 + [(1, 2, TOKENS, 1)]
    return [torch.randn(shape, requires_grad=True) for shape in shapes]


@every_impl
@restrictions
def test_output_and_gradients_are_exactly_zero(name: str, impl: str) -> None:
    options, empty = EMPTY[name]
    operands = leaves()
    out = diff_attention(*operands, **options, impl=impl)
    assert not out[:, :, empty].any() and out.isfinite().all()
    for gradient in torch.autograd.grad(out[:, :, empty].exp().sum(), operands, retain_graph=True):
        assert not gradient.any()
    full = [row for row in range(TOKENS) if row not in empty]
    to_q1, _, to_q2, _, _, to_lam = torch.autograd.grad(out.exp().sum(), operands)
    for gradient in (to_q1, to_q2, to_lam):
        assert not gradient[:, :, empty].any() and gradient.isfinite().all()
    assert all(to_lam[:, :, row].any() for row in full)


@every_impl
@restrictions
@pytest.mark.parametrize("sink", [None, 0.5])
def test_ordinary_attention_too_with_and_without_sink(name: str, sink: float | None, impl: str) -> None:
    options, empty = EMPTY[name]
    q, k, _, _, v, _ = leaves()
    logits = None if sink is None else torch.full((2,), sink, requires_grad=True)
    out = attention(q, k, v, **options, sink=logits, impl=impl)
    assert not out[:, :, empty].any()
    wanted = [q, k, v] if logits is None else [q, k, v, logits]
    gradients = torch.autograd.grad(out.exp().sum(), wanted, retain_graph=True)
    assert all(x.isfinite().all() for x in gradients) and not gradients[0][:, :, empty].any()
    for gradient in torch.autograd.grad(out[:, :, empty].exp().sum(), wanted):
        assert not gradient.any()


@restrictions
def test_maps_have_rows_of_zeros(name: str) -> None:
    options, empty = EMPTY[name]
    q1, k1, q2, k2, _, _ = leaves()
    sink = torch.zeros(2)
    for found in (*diff_attention_maps(q1, k1, q2, k2, **options), attention_maps(q1, k1, **options, sink=sink)):
        sums = found.sum(-1)
        assert not found[:, :, empty].any()
        assert (sums > 0).sum() == 2 * (TOKENS - len(empty))


@every_impl
def test_no_nan_is_ever_made_on_the_way(impl: str) -> None:
    """Anomaly detection stops at the first NaN in a backward pass, even one that is masked out later."""
    operands = leaves()
    options = {"attn_mask": torch.full((TOKENS, TOKENS), -torch.inf), "documents": torch.tensor([[-1, 0, 0, 1, -1]])}
    with torch.autograd.set_detect_anomaly(True):
        diff_attention(*operands, **options, impl=impl).sum().backward()


@every_impl
def test_no_keys_at_all(impl: str) -> None:
    q, k, v = torch.randn(1, 2, 3, 16, requires_grad=True), torch.randn(1, 2, 0, 16), torch.randn(1, 2, 0, 32)
    out = diff_attention(q, k, q, k, v, 0.5, impl=impl)
    out.sum().backward()
    assert out.shape == (1, 2, 3, 32) and not out.any() and not q.grad.any()


@every_impl
def test_a_row_that_sees_one_key_reads_it(impl: str) -> None:
    q, k, v = torch.randn(3, 1, 1, 3, 16)
    out = attention(q, k, v, attn_mask=torch.eye(3, dtype=torch.bool), impl=impl)
    assert_close(out, v)


@every_impl
@pytest.mark.parametrize("poison", [torch.nan, torch.inf])
@pytest.mark.parametrize("where", ["key", "value"])
def test_what_is_not_finite_shows_in_every_row_that_may_attend_it(poison: float, where: str, impl: str) -> None:
    q, k, _, _, v, _ = [x.detach().abs() for x in leaves()]
    poisoned = (k if where == "key" else v)[:, :, 3]
    poisoned[...] = poison
    out = diff_attention(q, k, q.flip(2), k.roll(1, -1), v, 0.5, is_causal=True, impl=impl)
    assert not out[:, :, 3:].isfinite().any(-1).any()


@every_impl
def test_a_mask_that_is_not_a_number_shows(impl: str) -> None:
    q, k, v = torch.randn(1, 1, 2, 16), torch.randn(1, 1, 3, 16), torch.randn(1, 1, 3, 16)
    mask = torch.tensor([[0.0, torch.nan, 0.0], [0.0, 0.0, -torch.inf]])
    out = attention(q, k, v, attn_mask=mask, impl=impl)
    assert out[0, 0, 0].isnan().all() and out[0, 0, 1].isfinite().all()


@every_impl
def test_what_is_not_finite_at_an_empty_row_stays_there(impl: str) -> None:
    """lam in the forward pass; a loss of 0 / 0 at padding in the backward pass."""
    q1, q2 = torch.randn(2, 1, 2, 33, 16, requires_grad=True)
    k1, k2 = torch.randn(2, 1, 2, 33, 16, requires_grad=True)
    v = torch.randn(1, 2, 33, 16, requires_grad=True)
    visible = torch.ones(33, 33, dtype=torch.bool)
    visible[3] = False
    lam = torch.full((1, 2, 33, 1), 0.5)
    lam[:, :, 3] = torch.nan
    assert not diff_attention(q1, k1, q2, k2, v, lam, attn_mask=visible, impl=impl)[:, :, 3].any()
    out = diff_attention(q1, k1, q2, k2, v, 0.5, attn_mask=visible, impl=impl)
    upstream = torch.ones_like(out)
    upstream[:, :, 3] = torch.nan
    assert all(x.isfinite().all() for x in torch.autograd.grad(out, (q1, k1, q2, k2, v), upstream))
