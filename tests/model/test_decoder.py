"""The decoder: who may see whom, starting values that arms share, and what can be watched from outside."""

import pytest
import torch
from torch import Tensor

from diffattn.model.decoder import Decoder, build
from diffattn.variants.base import MixerConfig
from support.implementations import RUNNING, home
from support.models import VARIANTS, random_tokens, small_config, small_model

# Float64: rounding moves logits of size 1 by about 1e-15; what leaks moves them by 1e-3 and more.
TIGHT = {"rtol": 0.0, "atol": 1e-12}

every_variant = pytest.mark.parametrize("variant", VARIANTS)
every_implementation = pytest.mark.parametrize("impl", RUNNING)
with_and_without_shift = pytest.mark.parametrize("token_shift", [False, True])


def changed(tokens: Tensor, row: int, start: int, stop: int) -> Tensor:
    """Copy with other ids at row, start..stop - 1."""
    other = tokens.clone()
    other[row, start:stop] = (other[row, start:stop] + 7) % 40
    return other


def differs(a: Tensor, b: Tensor) -> bool:
    """What leaks moves logits of size 1 by 1e-3 and more."""
    return (a - b).abs().max().item() > 1e-4


@every_variant
@every_implementation
@with_and_without_shift
def test_a_future_token_changes_nothing_before_it(variant: str, impl: str, token_shift: bool) -> None:
    model = small_model(variant, impl=impl, token_shift=token_shift)
    tokens = random_tokens(2, 12)
    before, after = model(tokens), model(changed(tokens, 0, 7, 8))
    torch.testing.assert_close(after[0, :7], before[0, :7], **home(impl).close)
    torch.testing.assert_close(after[1], before[1], **home(impl).close)
    assert differs(after[0, 7], before[0, 7])
    assert differs(after[0, 11], before[0, 11])


@every_variant
@every_implementation
@with_and_without_shift
def test_another_document_changes_nothing(variant: str, impl: str, token_shift: bool) -> None:
    model = small_model(variant, impl=impl, token_shift=token_shift)
    tokens, documents = random_tokens(1, 12), torch.tensor([[3] * 4 + [4] * 5 + [9] * 3])
    before, after = model(tokens, documents), model(changed(tokens, 0, 0, 4), documents)
    torch.testing.assert_close(after[0, 4:], before[0, 4:], **home(impl).close)
    assert differs(after[0, 3], before[0, 3])


@every_variant
@every_implementation
@with_and_without_shift
def test_a_packed_document_reads_as_it_does_alone(variant: str, impl: str, token_shift: bool) -> None:
    model = small_model(variant, impl=impl, token_shift=token_shift)
    tokens, documents = random_tokens(1, 12), torch.tensor([[0] * 5 + [1] * 7])
    # Rotary sees differences of positions only; turning by other angles rounds.
    torch.testing.assert_close(model(tokens, documents)[:, 5:], model(tokens[:, 5:]), **home(impl).close)


@every_variant
@every_implementation
@with_and_without_shift
@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_changes_nothing(variant: str, impl: str, token_shift: bool, side: str) -> None:
    model = small_model(variant, impl=impl, token_shift=token_shift)
    tokens, mask = random_tokens(2, 12), torch.ones(2, 12, dtype=torch.int64)
    padded, kept = (slice(0, 4), slice(4, 12)) if side == "left" else (slice(8, 12), slice(0, 8))
    mask[0, padded] = 0
    logits = model(tokens, attention_mask=mask)
    other = model(changed(tokens, 0, padded.start, padded.stop), attention_mask=mask)
    torch.testing.assert_close(other[0, kept], logits[0, kept], **home(impl).close)
    torch.testing.assert_close(logits[0, kept], model(tokens[:1, kept])[0], **home(impl).close)
    torch.testing.assert_close(logits[1], model(tokens[1:])[0], **home(impl).close)


@every_variant
def test_padding_gives_finite_gradients(variant: str) -> None:
    model = small_model(variant, token_shift=True)
    mask = torch.tensor([[0] * 5 + [1] * 3, [1] * 8])
    model(random_tokens(2, 8), attention_mask=mask).logsumexp(-1)[mask == 1].sum().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None and parameter.grad.isfinite().all(), name


def test_ids_at_padding_may_lie_outside_the_vocabulary() -> None:
    model, tokens = small_model(), random_tokens(1, 6)
    mask = torch.tensor([[0, 0, 1, 1, 1, 1]])
    outside = tokens.masked_fill(mask == 0, -100)
    assert torch.equal(model(outside, attention_mask=mask)[:, 2:], model(tokens, attention_mask=mask)[:, 2:])


def test_token_shift_reads_half_of_the_channels_from_the_token_before() -> None:
    model = small_model(token_shift=True)
    plain = small_model(token_shift=False)
    tokens = random_tokens(1, 6)
    shifted, unshifted = model.captured(tokens)[0][1], plain.captured(tokens)[0][1]
    assert torch.equal(shifted[..., 16:], unshifted[..., 16:])
    assert torch.equal(shifted[:, 1:, :16], unshifted[:, :-1, :16])
    assert torch.equal(shifted[:, 0, :16], torch.zeros(1, 16, dtype=torch.float64))


def test_token_shift_starts_anew_with_each_document() -> None:
    documents = torch.tensor([[0, 0, 0, 1, 1, -1]])
    x = small_model(token_shift=True).captured(random_tokens(1, 6), documents)[0][1]
    zero = (x[0, :, :16] == 0).all(dim=-1)
    assert zero.tolist() == [True, False, False, True, False, True]


@every_variant
@pytest.mark.parametrize("tied", [True, False])
def test_every_weight_has_a_value_after_the_meta_device(variant: str, tied: bool) -> None:
    model = small_model(variant, tied_embeddings=tied)
    for parameter in model.parameters():
        parameter.data.fill_(torch.nan)
    model.init_weights(seed=0)
    again = small_model(variant, tied_embeddings=tied)
    for (name, parameter), other in zip(model.named_parameters(), again.parameters(), strict=True):
        assert parameter.isfinite().all(), name
        assert torch.equal(parameter, other), name
    assert not any(tensor.is_meta for tensor in model.state_dict().values())


def test_another_seed_gives_other_weights() -> None:
    assert differs(small_model(seed=0).embedding.weight, small_model(seed=1).embedding.weight)


def test_softmax_and_differential_arms_start_in_pairs() -> None:
    softmax = build(small_config("softmax", {"heads": 8, "kv_heads": None}))
    diff = build(small_config("diff_v1", {"heads": 4, "kv_heads": None}))
    shared = {
        name: parameter
        for name, parameter in diff.named_parameters()
        if name.split(".")[-2] in {"embedding", "gate", "up", "down", "q", "k", "v"}
    }
    assert len(shared) == 1 + 2 * 6
    weights = dict(softmax.named_parameters())
    for name, parameter in shared.items():
        assert torch.equal(parameter, weights[name]), name


def test_feed_forwards_of_other_widths_share_channels() -> None:
    narrow, wide = build(small_config(ffn_width=24)).blocks()[1], build(small_config(ffn_width=48)).blocks()[1]
    assert torch.equal(narrow.gate.weight, wide.gate.weight[:24])
    assert torch.equal(narrow.up.weight, wide.up.weight[:24])
    # The standard deviation is fan-in^-1/2, so the shared values differ by a factor of sqrt(2); float32 rounds at 1e-7.
    torch.testing.assert_close(narrow.down.weight, wide.down.weight[:, :24] * 2**0.5, rtol=1e-6, atol=0.0)


def test_embedding_scale_makes_the_input_of_size_one() -> None:
    for scaled, start in ((True, 32**-0.5), (False, 0.02)):
        model = small_model(embedding_scale=scaled)
        # 40 x 32 values: the standard deviation is known to 2 %; 8 % is four of those.
        assert model.embedding.weight.std().item() == pytest.approx(start, rel=0.08)
    model, tokens = small_model(embedding_scale=True), random_tokens(1, 5)
    inputs: list[Tensor] = []
    model.blocks()[0].register_forward_pre_hook(lambda _, arguments: inputs.append(arguments[0]))
    model(tokens)
    torch.testing.assert_close(inputs[0], model.embedding.weight[tokens] * 32**0.5, rtol=1e-15, atol=0.0)


def test_head_is_the_embedding_only_where_tied() -> None:
    tied, untied = small_model(), small_model(tied_embeddings=False)
    assert tied.head is tied.embedding.weight
    assert untied.head is not untied.embedding.weight
    tokens = random_tokens(1, 4)
    torch.testing.assert_close(untied(tokens), untied.hidden(tokens) @ untied.head.T, **TIGHT)


@every_variant
def test_captured_gives_what_each_layer_was_called_with(variant: str) -> None:
    model, tokens = small_model(variant), random_tokens(1, 6)
    documents = torch.tensor([[0, 0, 0, 1, 1, 1]])
    outputs: list[Tensor] = []
    for block in model.blocks():
        block.mixer.register_forward_hook(lambda _, __, output: outputs.append(output))
    logits = model(tokens, documents)
    seen = model.captured(tokens, documents)
    assert len(seen) == 2
    for (mixer, x, where), output in zip(seen, outputs[:2], strict=True):
        torch.testing.assert_close(mixer(x, where), output, **TIGHT)
        maps = mixer.maps(x, where)
        assert (maps[..., 3:, :3] == 0).all() and (maps.triu(1) == 0).all()
    assert torch.equal(model(tokens, documents), logits)


def test_lambdas_are_those_of_the_formula_per_layer() -> None:
    config = small_config("diff_v1", {"lam": "fixed"}, mixers_by_layer={1: MixerConfig.from_dict({"name": "softmax"})})
    first, second = build(config).lambdas(random_tokens(1, 5))
    assert first is not None and first.item() == pytest.approx(0.2, rel=1e-6)  # 0.8 - 0.6 exp(0)
    assert second is None
    by_token = small_model("diff_v2").lambdas(random_tokens(2, 5))[0]
    assert by_token is not None and by_token.shape == (2, 5, 4)


@every_variant
def test_activation_checkpointing_changes_no_gradient(variant: str) -> None:
    model, tokens = small_model(variant, token_shift=True), random_tokens(2, 8)
    documents = torch.tensor([[0] * 8, [0] * 3 + [1] * 5])
    gradients: list[list[Tensor | None]] = []
    for checkpointed in (False, True):
        model.checkpoint_activations = checkpointed
        model.zero_grad()
        model(tokens, documents).logsumexp(-1).sum().backward()
        gradients.append([parameter.grad for parameter in model.parameters()])
    torch.testing.assert_close(gradients[1], gradients[0], **TIGHT)


@pytest.mark.slow
def test_the_model_compiles_as_one_graph() -> None:
    model, tokens = small_model("diff_v1", token_shift=True), random_tokens(2, 8)
    documents = torch.tensor([[0] * 8, [0] * 3 + [1] * 5])
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(tokens, documents), model(tokens, documents), **TIGHT)


@pytest.mark.parametrize("variant", VARIANTS)
def test_bfloat16_models_stay_near_float32(variant: str) -> None:
    wide, narrow = small_model(variant, torch.float32), small_model(variant, torch.bfloat16)
    tokens = random_tokens(2, 12)
    error = (narrow(tokens).float() - wide(tokens)).square().mean().sqrt() / wide(tokens).square().mean().sqrt()
    # bfloat16 rounds weights and each of some ten stages by 2^-9 relative: about 1 % together; 5 % is a bug.
    assert error < 0.05


def test_wrong_shapes_are_refused_by_name() -> None:
    model = small_model()
    with pytest.raises(ValueError, match=r"tokens must be \[B, T\]"):
        model(torch.zeros(5, dtype=torch.int64))
    with pytest.raises(ValueError, match="at least one token"):
        model(torch.zeros(2, 0, dtype=torch.int64))
    with pytest.raises(ValueError, match=r"int64 or int32 ids; got torch.float32"):
        model(torch.zeros(2, 3))
    with pytest.raises(ValueError, match=r"attention_mask must have the shape of tokens, \[2, 3\]"):
        model(torch.zeros(2, 3, dtype=torch.int64), attention_mask=torch.ones(2, 4))
    assert isinstance(model, Decoder)


@pytest.mark.parametrize("wrong", [-1, 40])
def test_ids_outside_the_vocabulary_are_named(wrong: int) -> None:
    with pytest.raises(ValueError, match=f"tokens: got ids from .*{wrong}.*the vocabulary has ids 0 to 39"):
        small_model()(torch.tensor([[0, wrong]]))
