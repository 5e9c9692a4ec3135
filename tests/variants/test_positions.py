"""Every registered variant with every way of telling positions, with every implementation that serves it."""

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

import support.mixers as small
from diffattn.ops.positions import alibi_slopes, xpos_tables
from diffattn.variants import names
from diffattn.variants.base import Mixer, Where, get
from support.implementations import home

KINDS = ["xpos", "alibi", "none"]
"""Beside rope, with which the contract suite runs."""

WAYS = [(name, impl) for name in names() for impl in small.served_by(name)]

every_way = pytest.mark.parametrize(("name", "impl"), WAYS)
every_kind = pytest.mark.parametrize("kind", KINDS)


def where_of(kind: str, mixer: Mixer, positions: Tensor, **restrictions: Tensor | None) -> Where:
    """Causal, told of positions [T] or [B, T] in one way alone."""
    dtype = next(mixer.parameters()).dtype
    tables = of_keys = slopes = None
    if kind == "xpos":
        tables, of_keys = xpos_tables(positions, mixer.head_dim, center=8, dtype=dtype)
    if kind == "alibi":
        slopes = alibi_slopes(mixer.heads, dtype=dtype)
    return Where(positions=tables, key_positions=of_keys, alibi=slopes, **restrictions)


@every_way
@every_kind
def test_the_future_is_unseen(name: str, impl: str, kind: str) -> None:
    mixer = small.stirred_mixer_of(name, impl=impl)
    x = small.tokens_of(2, 8, home(impl).dtype)
    changed = x.clone()
    changed[:, 5] += 3.0
    where = where_of(kind, mixer, torch.arange(8))
    before, after = mixer(x, where), mixer(changed, where)
    assert_close(after[:, :5], before[:, :5], **home(impl).close)
    assert ((after - before)[:, 5:].abs().amax(-1) > 1e-4).all()


@every_way
@every_kind
def test_prefill_and_decoding_behind_left_padding_equal_the_full_forward(name: str, impl: str, kind: str) -> None:
    mixer = small.stirred_mixer_of(name, torch.float32, impl=impl)
    x = small.tokens_of(1, 8, torch.float32)
    padded = torch.cat((small.tokens_of(1, 3, torch.float32, seed=5), x[:, :5]), dim=1)
    both, documents = torch.cat((x, padded)), torch.tensor([[0] * 12, [-1] * 3 + [0] * 9])
    numbers = torch.stack((torch.arange(8), (torch.arange(8) - 3).clamp(min=0)))
    state, parts = mixer.new_state(2, 12), []
    with torch.no_grad():
        whole = mixer(x, where_of(kind, mixer, torch.arange(8)))
        for new in [range(5), range(5, 6), range(6, 7), range(7, 8)]:
            at, lengths = slice(new.start, new.stop), torch.full((2,), new.stop)
            where = where_of(kind, mixer, numbers[:, at], documents=documents, key_lengths=lengths)
            parts.append(mixer(both[:, at], where, state))
    found = torch.cat(parts, dim=1)
    # Float32 rounding of sums of order 1, in another order.
    assert_close(found[0], whole[0], rtol=0, atol=1e-5)
    assert_close(found[1, 3:], whole[0, :5], rtol=0, atol=1e-5)


@every_way
def test_xpos_depends_on_distances_alone(name: str, impl: str) -> None:
    """Keys turned by the queries' tables would make logits shrink with the position."""
    mixer = small.stirred_mixer_of(name, impl=impl)
    x = small.tokens_of(2, 8, home(impl).dtype)
    near, far = (mixer(x, where_of("xpos", mixer, torch.arange(8) + start)) for start in (0, 300))
    assert_close(far, near, **home(impl).close)
    assert not torch.allclose(near, mixer(x, where_of("none", mixer, torch.arange(8))))


@pytest.mark.parametrize(
    ("name", "impl"), [(name, impl) for name, impl in WAYS if "attn_mask" not in get(name).refuses]
)
def test_alibi_is_the_float_mask_of_distances(name: str, impl: str) -> None:
    mixer = small.stirred_mixer_of(name, impl=impl)
    at = home(impl)
    x = small.tokens_of(2, 8, at.dtype)
    distances = (torch.arange(8)[:, None] - torch.arange(8)).to(at.dtype)
    # Hidden keys get another number than in the operators; it must not matter.
    mask = -alibi_slopes(mixer.heads, dtype=at.dtype)[:, None, None] * distances
    by_slopes, by_mask = where_of("alibi", mixer, torch.arange(8)), Where(attn_mask=mask)
    assert_close(mixer(x, by_slopes), mixer(x, by_mask), **at.close)
    assert_close(mixer.maps(x, by_slopes), mixer.maps(x, by_mask), **at.close)
    assert not torch.allclose(mixer(x, by_slopes), mixer(x, Where()))
