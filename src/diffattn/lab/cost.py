"""What a differential model costs beside its baseline: parameters, FLOPs, memory, in training and in inference."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from diffattn.lab.arms import mixer_like
from diffattn.lab.budget import match
from diffattn.lab.footprint import Footprint, Setting, inference, training
from diffattn.model.config import ModelConfig
from diffattn.variants.parts import HeadsConfig

SHARE = 0.62
"""arXiv 2410.05258, section 3.2: 6.8 B differential parameters reach the loss of 11 B (62.2 %), embeddings included."""

COUNTED = (
    "Counted: every tensor of the program as it runs on this machine's CPU, uncompiled, though none is allocated. Not",
    "counted: what kernels allocate within themselves, the process, what an allocator wastes. GPU kernels may differ.",
    "Training: weights, gradients and AdamW's two moments are float32 whatever the precision; the loss takes the",
    "vocabulary in pieces; kept: by the forward pass for the backward pass. Inference: weights and cache have the",
    "precision; a prompt of context - 1 tokens enters, then one token. FLOPs: of matrix products. least: for the",
    "function, causality not credited; executed: by these kernels, the output head of a prompt at its last token only.",
)


@dataclass(frozen=True)
class Sized:
    """A model, and how it came to its size."""

    label: str
    how: str
    model: ModelConfig


def sized(baseline: ModelConfig, variants: Sequence[str], share: float) -> list[Sized]:
    """List the baseline and, of each variant, the model of equal size and those with a share of its parameters.

    Equal size: heads as wide as the baseline's, the feed-forward solved for equal non-embedding parameters. A share of
    all parameters, embeddings included, is reached in two ways: fewer heads of the same width, so that model and
    feed-forward are narrower; or fewer layers; the feed-forward takes up what whole heads or layers leave over. They
    are what would reach the baseline's loss if the published share held. ValueError: a share outside 0 to 1, or fewer
    parameters than a variant has with the smallest feed-forward.
    """
    if not 0 < share <= 1:
        raise ValueError(f"share is {share}; expected a share of the parameters, above 0 and at most 1")
    cost = baseline.cost()
    found = [Sized("baseline", "as given", baseline)]
    for name in variants:
        mixer = replace(mixer_like(name, baseline.mixer), impl=baseline.mixer.impl)
        equal = _nearest([replace(baseline, mixer=mixer, mixers_by_layer={})], cost.parameters, "heads as wide")
        target = share * cost.parameters
        found.append(Sized("equal size", "the baseline's non-embedding parameters", equal))
        if isinstance(mixer, HeadsConfig):
            how = "fewer heads of the same width"
            found.append(Sized(f"{share:.0%}, narrower", how, _nearest(_by_heads(equal, mixer), target, how)))
        how = "fewer layers"
        found.append(Sized(f"{share:.0%}, shallower", how, _nearest(_by_layers(equal), target, how)))
    return found


def _by_heads(model: ModelConfig, mixer: HeadsConfig) -> list[ModelConfig]:
    step = mixer.heads // mixer.groups
    options = []
    for heads in range(step, mixer.heads + 1, step):
        kv_heads = None if mixer.kv_heads is None else heads // step
        widths = {
            "width": model.width * heads // mixer.heads,
            "ffn_width": round(model.ffn_width * heads / mixer.heads),
        }
        options.append(replace(model, **widths, mixer=replace(mixer, heads=heads, kv_heads=kv_heads)))
    return options


def _by_layers(model: ModelConfig) -> list[ModelConfig]:
    return [replace(model, layers=layers) for layers in range(1, model.layers + 1)]


def _nearest(options: Sequence[ModelConfig], target: float, how: str) -> ModelConfig:
    """The option whose parameters are nearest, its feed-forward then solved for the rest; how: what they have."""
    least = [replace(option, ffn_width=1).cost().parameters for option in options]
    possible = [option for option, fewest in zip(options, least, strict=True) if fewest <= target]
    if not possible:
        raise ValueError(
            f"{options[0].mixer.name} with {how} cannot have as few as {target:,.0f} parameters: embeddings included "
            f"and with a feed-forward of width 1, it has {min(least):,} at least; give a larger share, or the baseline "
            "a larger feed-forward (model.ffn_width)"
        )
    model = min(possible, key=lambda option: abs(option.cost().parameters - target))
    return match(model, round(target - model.cost().embedding_parameters))


def cost(baseline: ModelConfig, variants: Sequence[str], setting: Setting, share: float = SHARE) -> dict[str, Any]:
    """Count every model of `sized`, ready for JSON; bytes and FLOPs. ValueError: what no model or setting can be."""
    if baseline.context < 2:
        raise ValueError(f"model.context is {baseline.context}; expected at least 2 tokens, a prompt and a new one")
    arms = [_arm(one, setting) for one in sized(baseline, variants, share)]
    found = {"setting": asdict(setting), "share": share, "share_source": "arXiv 2410.05258, section 3.2"}
    return {**found, "counted": " ".join(COUNTED), "arms": arms, "sentences": sentences(arms)}


def _arm(one: Sized, setting: Setting) -> dict[str, Any]:
    model, known = one.model, one.model.cost()
    steps, prompts = training(model, setting), inference(model, setting)
    rows = setting.batch_size * model.context
    prompted = setting.batch_size * (model.context - 1)
    flops = {
        "training_least": known.flops_algebra,
        "training_executed": sum(steps.flops.values()) / rows,
        "inference_least": known.flops_algebra / 3,
        "inference_executed": prompts.flops["prompt"] / prompted,
    }
    return {
        "variant": model.mixer.name,
        "label": one.label,
        "how": one.how,
        "model": model.to_dict(),
        "parameters": known.parameters,
        "embedding_parameters": known.embedding_parameters,
        "flops_per_token": flops,
        "cache_bytes_per_token": known.cache_bytes * (2 if setting.precision == "bfloat16" else 4) // 4,
        "training": _memory(steps),
        "inference": _memory(prompts),
    }


def _memory(found: Footprint) -> dict[str, Any]:
    return {
        "held_bytes": found.held,
        "peak_bytes": found.peak,
        "peak_in": found.phase,
        "peak_parts_bytes": found.peak_parts,
        "phase_peak_bytes": found.phases,
    }


def sentences(arms: Sequence[dict[str, Any]]) -> list[str]:
    """Say of each model what it needs of the baseline's memory, and whether its profile is another."""
    first, *others = arms
    lines = []
    for arm in others:
        needs = {mode: arm[mode]["peak_bytes"] / first[mode]["peak_bytes"] for mode in ("training", "inference")}
        lines.append(
            f"{arm['variant']}, {arm['label']}: {arm['parameters'] / first['parameters']:.0%} of the parameters, "
            f"{needs['training']:.0%} of the memory in training, {needs['inference']:.0%} in inference. "
            f"Profile: {_difference(first, arm, 'training')}; {_difference(first, arm, 'inference')}."
        )
    return lines


def shares(arm: dict[str, Any], mode: str) -> dict[str, float]:
    """Give what a peak is made of, as shares of it; the temporary part holds the tokens too."""
    parts, peak = arm[mode]["peak_parts_bytes"], arm[mode]["peak_bytes"]
    groups = {
        "weights, gradients, moments" if mode == "training" else "weights": ("weights", "gradients", "moments"),
        "activations": ("activations",),
        "cached keys and values": ("cache",),
        "temporary tensors": ("temporary", "tokens"),
    }
    return {name: sum(parts.get(kind, 0) for kind in kinds) / peak for name, kinds in groups.items()}


def _difference(first: dict[str, Any], arm: dict[str, Any], mode: str) -> str:
    before, after = shares(first, mode), shares(arm, mode)
    part = max(before, key=lambda name: abs(after[name] - before[name]))
    change = 100 * (after[part] - before[part])
    if abs(change) < 1:
        return f"in {mode} the same within a point"
    return f"in {mode} {part} are {after[part]:.0%} of the peak instead of {before[part]:.0%}, no part differs more"
