"""What the attentions with one map are beyond their formulas: equal to each other at their starts, and stable."""

import pytest
import torch
from torch.testing import assert_close

import support.mixers as small
from diffattn import attention, layer
from diffattn.variants.base import Site, Where

EXACT = {"rtol": 0.0, "atol": 1e-12}
"""Float64 rounding of sums of order 1."""


@pytest.mark.parametrize(("heads", "kv_heads", "tokens"), [(4, 2, 9), (2, 2, 5), (6, 1, 7)])
def test_a_sink_of_zero_is_softmax1_and_one_more_key_of_logit_and_value_zero(
    heads: int, kv_heads: int, tokens: int
) -> None:
    options = {"heads": heads, "kv_heads": kv_heads, "head_dim": 8}
    sink, softmax1 = (small.mixer_of(name, **options) for name in ("sink", "softmax1"))
    x = small.tokens_of(2, tokens)
    where = small.where_of(sink, tokens)
    found = softmax1(x, where)
    assert_close(sink(x, where), found, **EXACT)

    q, k, v = softmax1.read(x, where, None)
    k, v = (torch.cat((part.new_zeros(2, kv_heads, 1, 8), part), dim=2) for part in (k, v))
    # One key in front and no more queries: aligned at the bottom right, every query sees the new key.
    assert_close(softmax1.write(attention(q, k, v, is_causal=True, impl="reference")), found, **EXACT)


def test_softmax1_can_leave_the_last_layer_alone() -> None:
    x = small.tokens_of(1, 6)
    for place, equal in ((0, False), (1, False), (2, True)):
        site = Site(width=small.WIDTH, layer=place, layers=3, context=16)
        ordinary = small.mixer_of("softmax", site=site)
        other = small.mixer_of("softmax1", site=site, last_layer=False)
        where = small.where_of(ordinary, 6)
        assert torch.equal(other(x, where), ordinary(x, where)) == equal, place


@pytest.mark.parametrize("size", [1e4, -1e4])
@pytest.mark.parametrize("name", ["softmax1", "sink", "expm1", "sigmoid", "gated_logsigmoid", "diff_relu", "qk_norm"])
def test_huge_logits_of_either_sign_stay_finite(name: str, size: float) -> None:
    mixer = small.mixer_of(name, torch.float32)
    x = small.tokens_of(1, 8, torch.float32)
    with torch.no_grad():
        mixer.k.weight.copy_(mixer.q.weight[: mixer.k.weight.shape[0]] * size)
    for part, value in small.gradients(mixer, x, small.where_of(mixer, 8, torch.float32)).items():
        assert value.isfinite().all(), part


def test_expm1_gives_nothing_where_no_logit_is_positive() -> None:
    mixer = small.mixer_of("expm1", heads=4, kv_heads=4)
    with torch.no_grad():
        mixer.k.weight.copy_(-mixer.q.weight)
    x = small.tokens_of(1, 1)
    # One token without positions: its only logit is -|q|^2 / sqrt(D).
    assert (mixer(x, Where()) == 0).all()


def test_output_gates_can_be_one_for_each_channel() -> None:
    mixer = small.mixer_of("output_gate", per_channel=True)
    x, where = small.tokens_of(2, 5), small.where_of(mixer, 5)
    (open_gates,) = (small.mixer_of("softmax"),)
    gates = (x @ mixer.gate.weight.T).sigmoid()
    expected = (open_gates.attend(x, where, None).transpose(1, 2).flatten(2) * gates) @ mixer.o.weight.T
    assert_close(mixer(x, where), expected, **EXACT)
    config = small.config_of("output_gate", per_channel=True)
    assert config.cost(small.SITE).parameters == sum(p.numel() for p in mixer.parameters())


@pytest.mark.parametrize("name", ["sigmoid", "linear", "affine", "expm1", "diff_relu", "gated_logsigmoid"])
def test_tiles_of_queries_change_nothing(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    mixer, x = small.mixer_of(name), small.tokens_of(2, 11)
    documents = torch.tensor([[0] * 11, [-1] * 2 + [0] * 4 + [1] * 5])
    where = small.where_of(mixer, 11, documents=documents, alibi=torch.tensor([0.5, 0.25, 0.1, 0.05]))
    whole = small.gradients(mixer, x, where)
    monkeypatch.setattr("diffattn.ops.rows.ELEMENTS", 2 * 4 * 3 * 11)
    for part, value in small.gradients(mixer, x, where).items():
        # Sums over tiles are taken in another order.
        assert_close(value, whole[part], rtol=1e-10, atol=1e-12)


def test_qk_norm_needs_a_context_and_no_second_temperature() -> None:
    with pytest.raises(ValueError, match="temperature"):
        layer("qk_norm", width=32, heads=4, temperature=True)
    with pytest.raises(ValueError, match="context"):
        layer("qk_norm", width=32, heads=4, context=1)
    with pytest.raises(ValueError, match="eps"):
        layer("expm1", width=32, heads=4, eps=0.0)
