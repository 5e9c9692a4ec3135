"""Every variant against its formula in NumPy, in float64."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch

import support.mixers as small
from diffattn.variants import names
from diffattn.variants.base import Where
from support.numpy_one_map import ONE_MAP
from support.numpy_parts import Settings, written
from support.numpy_two_maps import TWO_MAPS

FORMULAS = {**ONE_MAP, **TWO_MAPS}

HEADS = 4
LAST = {"layer": 2}
"""Of three; tests stand at layer 1 otherwise."""
LAMBDAS = [{"lam": kind} for kind in ("scalar", "per_head", "sigmoid", "fixed")]
NORMS = [{"norm": "plain"}, {"norm": "none"}]
V1 = [{}, LAST, {"lambda_init": 0.8}, {"lambda_init": 0.5, "lam": "fixed"}, {"norm_eps": 0.1}, *LAMBDAS, *NORMS]
SOFTMAX = [{}, {"norm": True}, {"temperature": True}, {"temperature": True, "norm": True, "norm_eps": 0.1}]
WIDER = [{"head_dim": 6}]
"""Heads that together are wider than the model, or narrower."""

OPTIONS: dict[str, list[dict[str, Any]]] = {
    "affine": [{}, *WIDER],
    "dex": [*SOFTMAX, *WIDER, {"progress": 0.0}, {"progress": 0.25}, {"progress": 1.0}, {"lambda_init": 0.3},
            {"dex_heads": (0, 3)}],
    "diff_factored": [*V1, *WIDER, {"biases": True}],
    "diff_fixed": [{}, LAST, *WIDER, {"c": -0.5}, {"c": 0.8, "norm": "none"}, {"norm": "plain"}, {"biases": True}],
    "diff_heaviside": [*V1, *WIDER, {"gate": True}, {"gate": True, "norm": "none"}, {"biases": True}],
    "diff_hierarchical": V1,
    "diff_relu": [*V1, *WIDER, {"renormalise": True}, {"renormalise": True, "norm": "none"}, {"biases": True}],
    "diff_temperature": [{}, *WIDER, {"start": -1.0}, *NORMS],
    "diff_uniform": [*V1, *WIDER, {"biases": True}],
    "diff_v1": [*V1, *WIDER, {"biases": True}, {"equal_maps": True}],
    "diff_v2": [{}, *WIDER, {"norm": True}, {"norm": True, "norm_eps": 0.1}],
    "dint": [*V1, *WIDER, {"biases": True}],
    "expm1": [{}, *WIDER, {"eps": 0.1}],
    "gated_logsigmoid": [{}, *WIDER, {"norm": False}, {"norm_eps": 0.1}],
    "grouped_diff": [*V1, *WIDER, {"share": 1}, {"share": 4}],
    "linear": [{}, *WIDER],
    "map_mix": [{}, *WIDER, {"start": "uniform"}, {"start": "random"}, {"rows_sum_to_one": True},
                {"rows_sum_to_one": True, "start": "uniform"}],
    "map_mix_mlp": [{}, *WIDER],
    "output_gate": [*SOFTMAX, *WIDER, {"per_channel": True}, {"per_channel": True, "norm": True}],
    "qk_norm": [{}, *WIDER, {"norm": True}],
    "shared_diff": [*V1, *WIDER, {"rank": 1}, {"rank": 7}],
    "sigmoid": [{}, *WIDER],
    "sink": [*SOFTMAX, *WIDER],
    "softmax": [*SOFTMAX, *WIDER, {"head_dim": 16}],
    "softmax1": [*SOFTMAX, *WIDER, {"last_layer": False}, {"last_layer": False, **LAST}, LAST],
    "tied_value": [{}, *WIDER, {"c": -0.5}],
}  # fmt: skip


@dataclass(frozen=True)
class Case:
    """Two sequences of tokens, who sees whom, and how many groups of keys serve the four heads."""

    groups: int
    tokens: int
    rotary: bool = True
    causal: bool = True
    window: int | None = None
    documents: tuple[list[int], list[int]] | None = None
    alibi: tuple[float, ...] | None = None
    mask: bool = False
    memory: int | None = None
    """How many tokens keys and values come from, where they are not the queries' own."""

    def fits(self, name: str, options: dict[str, Any]) -> bool:
        """Whether the layer accepts it: a causal mean needs an order, noise heads may not lie between groups."""
        if name == "dint":
            return self.causal
        return self.groups == HEADS or (HEADS // self.groups) % options.get("share", 1) == 0

    def given(self, refuses: frozenset[str]) -> dict[str, Any]:
        """Fields of `Where`, without those that the layer refuses."""
        keys = self.memory or self.tokens
        generator = torch.Generator().manual_seed(7)
        fields = {
            "window": self.window,
            "documents": None if self.documents is None else torch.tensor(self.documents),
            "alibi": None if self.alibi is None else torch.tensor(self.alibi, dtype=torch.float64),
            "attn_mask": torch.randn(HEADS, self.tokens, keys, generator=generator).double() if self.mask else None,
            "memory": small.tokens_of(2, self.memory, seed=1) if self.memory else None,
        }
        return {field: value for field, value in fields.items() if value is not None and field not in refuses}


PACKED = ([-1, -1] + [3] * 5 + [8] * 4, [0] * 4 + [1] * 3 + [2] * 4)
SLOPES = (0.5, 0.25, 0.1, 0.3)

FOR_EVERY_OPTION = {
    "a key for each head": Case(4, 7),
    "one key for all": Case(1, 11),
    "everything": Case(2, 11, documents=PACKED, alibi=SLOPES, window=3, mask=True),
}
FOR_EVERY_VARIANT = {
    **FOR_EVERY_OPTION,
    "one token": Case(2, 1),
    "packed and padded": Case(2, 11, documents=PACKED),
    "alibi": Case(2, 9, rotary=False, alibi=SLOPES),
    "both ways": Case(4, 7, rotary=False, causal=False, alibi=SLOPES, mask=True),
    "memory": Case(2, 5, rotary=False, causal=False, memory=8),
}


def test_every_variant_has_a_formula() -> None:
    assert sorted(FORMULAS) == sorted(OPTIONS) == names()


@pytest.mark.parametrize(
    ("name", "options", "case"),
    [
        pytest.param(name, options, case, id=f"{name}-{options}-{label}")
        for name in OPTIONS
        for options in OPTIONS[name]
        for label, case in (FOR_EVERY_OPTION if options else FOR_EVERY_VARIANT).items()
        if case.fits(name, options)
    ],
)
def test_layer_equals_its_formula(name: str, options: dict[str, Any], case: Case) -> None:
    fields = {field: value for field, value in options.items() if field not in ("layer", "progress")}
    config = small.config_of(name, impl="reference", kv_heads=case.groups, **fields)
    site = replace(small.SITE, layer=options.get("layer", small.SITE.layer))
    layer = small.stirred_mixer_of(name, impl="reference", kv_heads=case.groups, site=site, **fields)
    if "progress" in options:
        layer.advance(options["progress"])
    given = case.given(layer.refuses)
    where = small.where_of if case.rotary else lambda _, tokens, **given: Where(**given)
    x = small.tokens_of(2, case.tokens)
    found = layer(x, where(layer, case.tokens, is_causal=case.causal, **given)).detach().numpy()

    weights = {part: value.numpy() for part, value in layer.state_dict().items()}
    for row in range(2):
        settings = Settings(
            config=config,
            site=site,
            dim=layer.head_dim,
            rotary=case.rotary,
            causal=case.causal,
            window=given.get("window"),
            documents=given["documents"][row].numpy() if "documents" in given else None,
            alibi=given["alibi"].numpy() if "alibi" in given else None,
            mask=given["attn_mask"].numpy() if "attn_mask" in given else None,
            memory=given["memory"][row].numpy() if "memory" in given else None,
        )
        expected = written(weights, FORMULAS[name](weights, x[row].numpy(), settings))
        # Float64 rounding of sums of order 1.
        np.testing.assert_allclose(found[row], expected, rtol=1e-10, atol=1e-10)
