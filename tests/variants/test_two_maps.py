"""Two-map variants: what they start from, what they refuse, and the step of `diff_heaviside`."""

import pytest
import torch
from torch.testing import assert_close

import support.mixers as small


def test_first_maps_start_as_v1s() -> None:
    v1 = small.mixer_of("diff_v1")
    x, where = small.tokens_of(2, 7), small.where_of(v1, 7)
    maps = [branch.map for branch in v1.branches(x, where)]
    for name in ("diff_uniform", "diff_hierarchical", "grouped_diff", "shared_diff", "tied_value", "diff_fixed"):
        # Products of matrices of other shapes round differently.
        assert_close(small.mixer_of(name).branches(x, where)[0].map, maps[0], rtol=0, atol=1e-12)
    # Noise head 0 of heads 0 and 1 is V1's second map of head 0.
    noise = small.mixer_of("grouped_diff").branches(x, where)[1].map
    assert_close(noise, maps[1][:, [0, 0, 2, 2]], rtol=0, atol=1e-12)


def test_temperatures_start_from_v1s_channels() -> None:
    v1, mixer = small.mixer_of("diff_v1"), small.mixer_of("diff_temperature", start=-1.0)
    for name in ("q", "k", "v", "o"):
        assert torch.equal(getattr(mixer, name).weight, getattr(v1, name).weight)
    assert (mixer.tau == -1).all()


def test_shared_projections_start_with_the_first_map_as_the_shared_one() -> None:
    mixer = small.mixer_of("shared_diff", rank=3)
    for name in ("q", "k"):
        assert (getattr(mixer, f"{name}1_up").weight == 0).all()
        for part in (f"{name}1_down", f"{name}2_down", f"{name}2_up"):
            # Of 48 numbers and more, the deviation is known to a third.
            assert 0.013 < getattr(mixer, part).weight.std() < 0.027


def test_second_queries_know_what_was_read() -> None:
    """Another value at a key that the first map sees moves the second map, and leaves the first as it is."""
    mixer = small.mixer_of("diff_hierarchical")
    x, where = small.tokens_of(1, 6), small.where_of(mixer, 6)
    before = mixer.branches(x, where)
    mixer.v.weight.data *= 2
    after = mixer.branches(x, where)
    assert torch.equal(after[0].map, before[0].map)
    assert (after[1].map - before[1].map).abs().max() > 1e-3


@pytest.mark.parametrize("gate", [False, True])
def test_a_step_at_0_is_0_and_its_gradient_is_1(gate: bool) -> None:
    mixer = small.mixer_of("diff_heaviside", gate=gate)
    first = torch.tensor([0.5, 0.25, 0.1, 0.15], dtype=torch.float64, requires_grad=True)
    second = torch.tensor([0.25, 0.5, 0.2, 0.0], dtype=torch.float64, requires_grad=True)
    lam = torch.tensor(0.5, dtype=torch.float64, requires_grad=True)
    step = torch.tensor([1.0, 0.0, 0.0, 1.0], dtype=torch.float64)
    found = mixer.bracket(first, second, lam)
    assert_close(found, first * step if gate else first - 0.5 * step)
    found.sum().backward()
    # d step = d A1 - lam d A2 - A2 d lam, times the factor that the step has.
    factor = first.detach() if gate else torch.full_like(first, -0.5)
    assert_close(first.grad, factor + (step if gate else 1.0))
    assert_close(second.grad, -0.5 * factor)
    assert_close(lam.grad, (-second * factor - (0.0 if gate else step)).sum().detach())


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("diff_fixed", {"lambda_init": 0.5}, "lambda_init: got 0.5 for diff_fixed"),
        ("diff_fixed", {"lam": "exp"}, "lam: got 'exp' for diff_fixed"),
        ("diff_fixed", {"c": 1}, "c: got 1, needs a finite number other than 1"),
        ("tied_value", {"c": float("nan")}, "c: got nan"),
        ("diff_uniform", {"equal_maps": True}, "equal_maps: got True for diff_uniform"),
        ("diff_temperature", {"start": "cold"}, "start: got 'cold'"),
        ("diff_temperature", {"norm": "layer"}, "norm: got 'layer'"),
        ("diff_temperature", {"norm_eps": 0.0}, "norm_eps: got 0.0"),
        ("diff_hierarchical", {"heads": 2}, "2 heads of 2 x 4 are 16 channels, needs the width, 32"),
        ("grouped_diff", {"share": 4}, "share: got 4, needs a divisor of 2"),
        ("grouped_diff", {"share": 3, "kv_heads": 4}, "share: got 3, needs a divisor of 4"),
        ("grouped_diff", {"share": 0}, "share: got 0"),
        ("shared_diff", {"rank": 0}, "rank: got 0"),
        ("shared_diff", {"biases": True}, "biases: got True for shared_diff"),
        ("diff_heaviside", {"impl": "sdpa"}, "impl: got 'sdpa'"),
    ],
)
def test_configs_that_cannot_stand_are_refused(name: str, options: dict, message: str) -> None:
    if name == "diff_hierarchical":
        options = {**options, "head_dim": 4}
    with pytest.raises(ValueError, match=message):
        small.get(name)(**{"heads": 4, "kv_heads": 2, **options}).build(small.SITE)
