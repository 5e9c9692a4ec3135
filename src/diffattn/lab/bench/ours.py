"""This package's implementations as contenders, `attention` and `diff_attention` of each."""

from collections.abc import Callable

from torch import Tensor

import diffattn
from diffattn.lab.bench.contenders import FORMS, Form, Inputs, holds_maps

ATTENTION = "attention:"
"""How the names of ordinary attention on our code begin; the others are differential."""


def contenders(only: tuple[str, ...] = ()) -> dict[str, Form]:
    """Every contender by name, ours behind the outside forms; `only` those named, (a) and (d) always.

    ValueError naming what there is where a name is unknown.
    """
    found = dict(FORMS)
    for prefix, run in ((ATTENTION, _attention), ("diff_attention:", _diff_attention)):
        for impl, missing in diffattn.implementations().items():
            title = f"{prefix}{impl}"
            found[title] = Form("", title, run(impl), _refuses(impl, missing))
    for name in only:
        if name not in found:
            raise ValueError(f"contenders: there is no {name!r}; there are {', '.join(found)}")
    return {name: form for name, form in found.items() if not only or name in (*only, "ordinary", "four_calls")}


def is_ordinary(name: str) -> bool:
    """Whether a contender computes ordinary attention, which (a) is."""
    return name == "ordinary" or name.startswith(ATTENTION)


def _attention(impl: str) -> Callable[[Inputs], Tensor]:
    def run(x: Inputs) -> Tensor:
        return diffattn.attention(*x.one_map(), is_causal=x.shape.is_causal, window=x.shape.window, impl=impl)

    return run


def _diff_attention(impl: str) -> Callable[[Inputs], Tensor]:
    def run(x: Inputs) -> Tensor:
        restrictions = {"is_causal": x.shape.is_causal, "window": x.shape.window}
        return diffattn.diff_attention(*x.two_maps(), x.lam, **restrictions, impl=impl)

    return run


def _refuses(impl: str, missing: str | None) -> Callable[[Inputs, bool], str | None]:
    def refuses(x: Inputs, backward: bool) -> str | None:
        return missing or (holds_maps(x, backward) if impl == "reference" else None)

    return refuses
