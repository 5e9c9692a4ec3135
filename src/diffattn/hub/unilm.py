"""Weights of the official implementations (microsoft/unilm, Diff-Transformer) as layers of ours."""

from collections.abc import Mapping
from typing import Any, Literal

import torch
from torch import Tensor

from diffattn.variants.base import MixerConfig, Site, check_whole
from diffattn.variants.dropin import Layer

Version = Literal["v1", "v2", "baseline"]

_PROJECTIONS = {"q_proj.weight": "q.weight", "k_proj.weight": "k.weight", "v_proj.weight": "v.weight"}
_NAMES = {
    "v1": _PROJECTIONS
    | {"out_proj.weight": "o.weight", "subln.weight": "norm_weight"}
    | {name: name for name in ("lambda_q1", "lambda_k1", "lambda_q2", "lambda_k2")},
    "v2": _PROJECTIONS | {"o_proj.weight": "o.weight", "lambda_proj.weight": "lambda_proj.weight"},
    "baseline": _PROJECTIONS | {"out_proj.weight": "o.weight"},
}
_VARIANTS = {"v1": "diff_v1", "v2": "diff_v2", "baseline": "softmax"}


def load_unilm(
    state_dict: Mapping[str, Tensor],
    num_heads: int,
    num_kv_heads: int | None = None,
    layer: int = 0,
    version: Version = "v1",
) -> Layer:
    """Make a layer from the official weights of one attention module; dtypes and devices stay as they are.

    Their order of heads and their interleaved rotary are ours too, so the values load unchanged. Under grouped queries
    the result is the function of the official flash files, not that of the plain file. A V1 state dict without
    `subln.weight` (older files) gives a norm without weight.

    Args:
        state_dict: official names without prefix, such as `q_proj.weight`.
        num_heads: output heads, as the official classes count them.
        num_kv_heads: key/value groups; None: as many as heads.
        layer: the official `depth`, from 0.
        version: "v1" (multihead_diffattn and the flash files), "v2" or "baseline" (also V2's with use_diff_v2 off).

    Raises:
        ValueError: missing or unknown names, shapes that do not fit the head counts, pairs across key/value groups.
    """
    if version not in _NAMES:
        raise ValueError(f"version: got {version!r}, needs one of {', '.join(_NAMES)}")
    names, options = dict(_NAMES[version]), {}
    if version == "v1" and "subln.weight" not in state_dict:
        options["norm"] = "plain"
        del names["subln.weight"]
    if version == "baseline" and "o_proj.weight" in state_dict:
        names["o_proj.weight"] = names.pop("out_proj.weight")
    _check_names(state_dict, names, version)
    _check_values(state_dict)

    config, site = _shape(state_dict["q_proj.weight"], num_heads, num_kv_heads, layer, version, options)
    with torch.device("meta"):
        made = Layer(config, site)
    wanted = made.mixer.state_dict()
    for official, ours in names.items():
        if state_dict[official].shape != wanted[ours].shape:
            raise ValueError(
                f"{official}: got shape {list(state_dict[official].shape)}, needs {list(wanted[ours].shape)} with "
                f"num_heads={num_heads}, num_kv_heads={num_kv_heads} and a head width of {made.mixer.head_dim}"
            )
    # Copies, so that training the layer leaves the caller's tensors alone.
    values = {ours: state_dict[official].detach().clone() for official, ours in names.items()}
    made.mixer.load_state_dict(values, assign=True)
    return made


def _check_names(state_dict: Mapping[str, Tensor], names: Mapping[str, str], version: str) -> None:
    missing = [name for name in names if name not in state_dict]
    unknown = [name for name in state_dict if name not in names]
    if missing or unknown:
        raise ValueError(
            f"these are not the weights of one official {version!r} attention module: "
            + "; ".join(
                f"{what} {', '.join(some)}" for what, some in (("missing", missing), ("unknown", unknown)) if some
            )
            + f". Needed are {', '.join(names)}, without prefix"
        )


def _check_values(state_dict: Mapping[str, Tensor]) -> None:
    """Tensors all, and projections of one floating dtype: a call multiplies them with the same tokens."""
    for name, value in state_dict.items():
        if not isinstance(value, Tensor) or not value.is_floating_point():
            got = value.dtype if isinstance(value, Tensor) else type(value).__name__
            raise ValueError(f"{name}: got {got}, needs a floating tensor")
    dtype = state_dict["q_proj.weight"].dtype
    for name, value in state_dict.items():
        if "proj" in name and value.dtype != dtype:
            raise ValueError(f"{name}: got {value.dtype}, needs {dtype} like q_proj.weight; convert them to one dtype")


def _shape(
    q: Tensor, heads: int, kv_heads: int | None, layer: int, version: str, options: dict[str, Any]
) -> tuple[MixerConfig, Site]:
    check_whole("num_heads", heads, 1)
    queries = heads if version == "baseline" else 2 * heads
    if q.ndim != 2 or q.shape[0] % queries:
        raise ValueError(
            f"q_proj.weight: got shape {list(q.shape)}, needs rows for {queries} query heads of equal width"
        )
    fields = {"name": _VARIANTS[version], "heads": heads, "kv_heads": kv_heads, "head_dim": q.shape[0] // queries}
    return MixerConfig.from_dict({**fields, **options}), Site(width=q.shape[1], layer=layer)
