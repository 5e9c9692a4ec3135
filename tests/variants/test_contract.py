"""What every registered variant must do, with every implementation that runs here."""

import dataclasses
import json
from collections import Counter

import pytest
import torch
from torch.testing import assert_close

import support.mixers as small
from diffattn.variants import names
from diffattn.variants.base import Draw, MixerConfig, Where
from support.flops import counted_flops
from support.implementations import RUNNING, home

EXACT = {"rtol": 0.0, "atol": 1e-12}
"""Float64 rounding of sums of order 1."""

every_variant = pytest.mark.parametrize("name", names())
every_way = pytest.mark.parametrize(
    ("name", "impl"), [(name, impl) for name in names() for impl in small.served_by(name)]
)


@every_way
@pytest.mark.parametrize("tokens", [1, 7])
def test_tokens_keep_their_shape(name: str, impl: str, tokens: int) -> None:
    mixer = small.stirred_mixer_of(name, impl=impl)
    x = small.tokens_of(2, tokens, home(impl).dtype)
    assert mixer(x, small.where_of(mixer, tokens)).shape == x.shape


@every_way
def test_memory_is_attended_without_order(name: str, impl: str) -> None:
    mixer, at = small.stirred_mixer_of(name, impl=impl), home(impl)
    x, memory = small.tokens_of(2, 3, at.dtype), small.tokens_of(2, 5, at.dtype, seed=1)
    if "memory" in mixer.refuses:
        with pytest.raises(ValueError, match="memory"):
            mixer(x, Where(memory=memory, is_causal=False))
        return
    y = mixer(x, Where(memory=memory, is_causal=False))
    assert y.shape == x.shape
    assert_close(mixer(x, Where(memory=memory.flip(1), is_causal=False)), y, **at.close)
    assert not torch.allclose(mixer(x, Where(memory=memory * 2, is_causal=False)), y)


@every_way
def test_the_future_is_unseen(name: str, impl: str) -> None:
    mixer = small.stirred_mixer_of(name, impl=impl)
    x = small.tokens_of(2, 8, home(impl).dtype)
    changed = x.clone()
    changed[:, 5] += 3.0
    where = small.where_of(mixer, 8)
    before, after = mixer(x, where), mixer(changed, where)
    assert_close(after[:, :5], before[:, :5], **home(impl).close)
    assert ((after - before)[:, 5:].abs().amax(-1) > 1e-4).all()


@pytest.mark.parametrize(
    ("name", "impl"), [(name, impl) for name in names() for impl in small.served_by(name) if impl != "reference"]
)
def test_gradients_equal_the_references(name: str, impl: str) -> None:
    at, found = home(impl), {}
    for which in (impl, "reference"):
        mixer = small.stirred_mixer_of(name, at.dtype, impl=which, head_dim=at.width)
        x = small.tokens_of(2, 9, at.dtype)
        window = None if "window" in mixer.refuses else 4
        documents = torch.tensor([[0] * 9, [-1] * 2 + [0] * 3 + [1] * 4])
        where = small.where_of(mixer, 9, documents=documents, window=window)
        found[which] = small.gradients(mixer, x, where)
    assert found[impl].keys() == found["reference"].keys()
    for part, value in found["reference"].items():
        # Another order of summation of values of order 1 to 100.
        size = max(1.0, float(value.abs().max()))
        allowed = {"rtol": at.close["rtol"], "atol": size * at.close["atol"]}
        assert_close(found[impl][part], value, **allowed, msg=lambda text, part=part: f"{part}: {text}")


@every_way
def test_every_parameter_matters(name: str, impl: str) -> None:
    mixer = small.stirred_mixer_of(name, impl=impl)
    found = small.gradients(mixer, small.tokens_of(2, 9, home(impl).dtype), small.where_of(mixer, 9))
    for part, _ in mixer.named_parameters():
        assert found[part].abs().max() > 1e-5, part


@every_way
def test_bfloat16_errs_as_rounding_does(name: str, impl: str) -> None:
    """The budget is what rounding the projections' results alone does to a float64 layer, times 4 for the rest."""
    low = small.stirred_mixer_of(name, torch.bfloat16, impl=impl)
    x = small.tokens_of(2, 16, torch.bfloat16)
    found = low(x, small.where_of(low, 16, torch.float32)).double()

    exact = small.stirred_mixer_of(name, head_dim=low.head_dim, impl="reference")
    exact.load_state_dict({part: value.double() for part, value in low.state_dict().items()})
    where = small.where_of(exact, 16)
    truth = exact(x.double(), where)
    for part in exact.modules():
        if isinstance(part, torch.nn.Linear):
            part.register_forward_hook(lambda _, __, y: y.bfloat16().double())
    budget = 4 * (exact(x.double(), where) - truth).abs().max()
    assert (found - truth).abs().max() < budget


@every_way
def test_autocast_trains_float32_weights(name: str, impl: str) -> None:
    mixer = small.stirred_mixer_of(name, torch.float32, impl=impl)
    where = small.where_of(mixer, 16, torch.float32)
    errors, sizes = Counter(), Counter()
    for seed in range(4):
        x = small.tokens_of(2, 16, torch.float32, seed)
        exact = small.gradients(mixer, x, where)
        with torch.autocast("cpu", torch.bfloat16):
            found = small.gradients(mixer, x, where)
            assert small.decoded(mixer, x[:, :8], prefill=5).dtype == torch.bfloat16
        for part, value in exact.items():
            errors[part] += (found[part].float() - value).square().sum().item()
            sizes[part] += value.square().sum().item()
    for part, size in sizes.items():
        # bfloat16 keeps 8 bits; a handful of roundings in a row. The gradient of λ is one number, in which terms may
        # cancel: so all batches together.
        assert errors[part] < 0.1**2 * size, part


@every_way
def test_prefill_and_decoding_equal_the_full_forward(name: str, impl: str) -> None:
    mixer = small.stirred_mixer_of(name, torch.float32, impl=impl)
    x = small.tokens_of(2, 8, torch.float32)
    with torch.no_grad():
        whole = mixer(x, small.where_of(mixer, 8, torch.float32))
        assert_close(small.decoded(mixer, x, prefill=5), whole, rtol=0, atol=1e-5)


@every_way
def test_left_padding_changes_nothing(name: str, impl: str) -> None:
    mixer = small.stirred_mixer_of(name, torch.float32, impl=impl)
    x = small.tokens_of(1, 8, torch.float32)
    padded = torch.cat((small.tokens_of(1, 3, torch.float32, seed=5), x[:, :5]), dim=1)
    both = torch.cat((x, padded))
    documents = torch.tensor([[0] * 8, [-1] * 3 + [0] * 5])
    with torch.no_grad():
        whole = mixer(x, small.where_of(mixer, 8, torch.float32))
        together = mixer(both, small.where_of(mixer, 8, torch.float32, documents=documents))
        stepwise = small.decoded(mixer, both, prefill=5, documents=documents)
    for found in (together, stepwise):
        assert_close(found[0], whole[0], rtol=0, atol=1e-5)
        # Rotary is relative: three places further right the same tokens read the same.
        assert_close(found[1, 3:], whole[0, :5], rtol=0, atol=1e-5)


@every_way
def test_sequences_in_one_cache_may_differ_in_length(name: str, impl: str) -> None:
    mixer = small.stirred_mixer_of(name, torch.float32, impl=impl)
    x = small.tokens_of(2, 6, torch.float32)
    state, lengths = mixer.new_state(2, 12), torch.tensor([4, 2])
    with torch.no_grad():
        whole = mixer(x, small.where_of(mixer, 6, torch.float32))
        for row, length in enumerate(lengths.tolist()):
            where = small.where_of(mixer, length, torch.float32, key_lengths=lengths[row : row + 1])
            mixer(x[row : row + 1, :length], where, {part: value[row : row + 1] for part, value in state.items()})
        where = Where(positions=small.tables_of(mixer, lengths[:, None], x.dtype), key_lengths=lengths + 1)
        y = mixer(x[torch.arange(2), lengths][:, None], where, state)
    assert_close(y[:, 0], whole[torch.arange(2), lengths], rtol=0, atol=1e-5)


@every_way
def test_documents_are_isolated(name: str, impl: str) -> None:
    mixer = small.stirred_mixer_of(name, impl=impl)
    x = small.tokens_of(1, 9, home(impl).dtype)
    documents = torch.tensor([[7] * 4 + [2] * 5])
    packed = mixer(x, small.where_of(mixer, 9, documents=documents))
    alone = [mixer(part, small.where_of(mixer, part.shape[1])) for part in (x[:, :4], x[:, 4:])]
    assert_close(packed, torch.cat(alone, dim=1), **home(impl).close)


@every_way
def test_a_window_hides_what_lies_before_it(name: str, impl: str) -> None:
    mixer = small.stirred_mixer_of(name, impl=impl)
    x = small.tokens_of(2, 9, home(impl).dtype)
    if "window" in mixer.refuses:
        with pytest.raises(ValueError, match="window"):
            mixer(x, small.where_of(mixer, 9, window=3))
        return
    near = torch.ones(9, 9, dtype=torch.bool).triu(-2)
    windowed = mixer(x, small.where_of(mixer, 9, window=3))
    assert_close(windowed, mixer(x, small.where_of(mixer, 9, attn_mask=near)), **home(impl).close)
    assert not torch.allclose(windowed, mixer(x, small.where_of(mixer, 9)))


@every_way
def test_rows_without_any_key_stay_finite(name: str, impl: str) -> None:
    mixer = small.stirred_mixer_of(name, impl=impl)
    mask = torch.ones(6, 6, dtype=torch.bool)
    mask[2] = False
    documents = torch.tensor([[0] * 6, [-1] * 6])
    attn_mask = None if "attn_mask" in mixer.refuses else mask
    where = small.where_of(mixer, 6, attn_mask=attn_mask, documents=documents)
    found = small.gradients(mixer, small.tokens_of(2, 6, home(impl).dtype), where)
    for part, value in found.items():
        assert value.isfinite().all(), part
    assert (found["x"][1] == 0).all()


@every_variant
def test_maps_are_those_of_the_branches_and_causal(name: str) -> None:
    mixer = small.stirred_mixer_of(name)
    x = small.tokens_of(2, 6)
    where = small.where_of(mixer, 6)
    maps = mixer.maps(x, where)
    assert maps.shape == (2, 4, 6, 6)
    assert (maps.triu(1) == 0).all()
    assert_close(maps, sum(branch.coefficient * branch.map for branch in mixer.branches(x, where)), **EXACT)


@every_variant
def test_weights_materialised_from_meta_are_the_same(name: str) -> None:
    direct = small.mixer_of(name, torch.float32)
    with torch.device("meta"):
        mixer = small.config_of(name).build(small.SITE)
    assert all(parameter.is_meta for parameter in mixer.parameters())
    mixer.to_empty(device="cpu").init_weights(Draw(0))
    assert mixer.state_dict().keys() == direct.state_dict().keys()
    for part, value in mixer.state_dict().items():
        assert torch.equal(value, direct.state_dict()[part]), part


@every_variant
def test_cost_counts_parameters_and_cache(name: str) -> None:
    cost = small.config_of(name).cost(small.SITE)
    mixer = small.stirred_mixer_of(name, torch.float32)
    assert cost.parameters == sum(parameter.numel() for parameter in mixer.parameters())
    state = mixer.new_state(1, 16)
    # By growth: what a sequence needs whatever its length (the running sum of dint) is not per token.
    longer = mixer.new_state(1, 32)
    assert cost.cache_bytes * 16 == sum(longer[part].nbytes - value.nbytes for part, value in state.items())
    assert all((value == 0).all() for value in state.values())


@pytest.mark.parametrize(
    ("name", "impl", "context"),
    [
        (name, impl, context)
        for name in names()
        for impl, context in [
            *((impl, 16) for impl in RUNNING),
            ("blocked", 300),
            *(("auto", n) for n in (16, 64, 128)),
        ]
        if impl in ("auto", *small.served_by(name))
    ],
)
def test_cost_counts_the_flops_that_torch_counts(name: str, impl: str, context: int) -> None:
    mixer = small.stirred_mixer_of(name, torch.float32, impl=impl)
    x = small.tokens_of(1, context, torch.float32).requires_grad_()
    where = small.where_of(mixer, context, torch.float32)
    cost = small.config_of(name, impl=impl).cost(dataclasses.replace(small.SITE, context=context))
    assert round(counted_flops(lambda: mixer(x, where)) / context) == cost.flops_executed
    assert cost.flops_algebra <= cost.flops_executed


@every_variant
def test_config_survives_json(name: str) -> None:
    config = small.config_of(name)
    assert MixerConfig.from_dict(json.loads(json.dumps(config.to_dict()))) == config
    assert config.describe()


@every_variant
def test_state_dict_survives(name: str) -> None:
    mixer, other = small.stirred_mixer_of(name, seed=1), small.stirred_mixer_of(name, seed=2)
    x, where = small.tokens_of(2, 5), small.where_of(mixer, 5)
    assert not torch.allclose(other(x, where), mixer(x, where))
    other.load_state_dict(mixer.state_dict())
    assert torch.equal(other(x, where), mixer(x, where))


@every_way
def test_repetition_gives_the_same_bits(name: str, impl: str) -> None:
    x = small.tokens_of(2, 16, torch.float32)
    runs = []
    for _ in range(2):
        mixer = small.stirred_mixer_of(name, torch.float32, impl=impl)
        runs.append(small.gradients(mixer, x, small.where_of(mixer, 16, torch.float32)))
    for part, value in runs[0].items():
        assert torch.equal(runs[1][part], value), part


def compiled_equals_eager(name: str, impl: str, backend: str) -> None:
    mixer = small.stirred_mixer_of(name, torch.float32, impl=impl)
    x = small.tokens_of(2, 6, torch.float32)
    where = small.where_of(mixer, 6, torch.float32, documents=torch.tensor([[0] * 6, [-1] + [0] * 5]))
    torch.compiler.reset()
    compiled = torch.compile(mixer, backend=backend, fullgraph=True)
    expected = small.gradients(mixer, x, where)
    for part, value in small.gradients(compiled, x, where).items():
        assert_close(value, expected[part.removeprefix("_orig_mod.")], rtol=1e-4, atol=1e-5)
    with torch.no_grad():
        assert_close(
            small.decoded(mixer, x, prefill=4, step_by=compiled), small.decoded(mixer, x, prefill=4), rtol=0, atol=1e-5
        )


# How an implementation is traced does not depend on the variant: three are compiled with each of them, all with one.
@pytest.mark.parametrize(
    ("name", "impl"),
    [
        (name, impl)
        for name in names()
        for impl in (small.served_by(name) if name in ("softmax", "diff_v1", "diff_v2") else ["auto"])
    ],
)
def test_compiles_as_one_graph(name: str, impl: str) -> None:
    compiled_equals_eager(name, impl, "aot_eager")


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", ["softmax", "diff_v1", "diff_v2"])
def test_compiles_with_inductor(name: str) -> None:
    compiled_equals_eager(name, "auto", "inductor")
