"""What most variants share: head counts, the four projections, the key/value cache, the arithmetic of costs."""

import math
from dataclasses import dataclass
from typing import Any, ClassVar, get_args

import torch
from torch import Tensor, nn

from diffattn.ops import implementations
from diffattn.ops.call import Norm
from diffattn.ops.dispatch import taken_by_auto
from diffattn.ops.positions import apply_rotary
from diffattn.ops.reference import normed
from diffattn.variants.base import Cost, Draw, Mixer, MixerConfig, Site, Where, check_whole


@dataclass(frozen=True, kw_only=True)
class HeadsConfig(MixerConfig):
    """Head counts and the width of a head."""

    heads: int = 8
    """Output heads: those that leave the layer."""
    kv_heads: int | None = None
    """Key/value groups; None: one for each output head."""
    head_dim: int | None = None
    """Width of one query or key head, D; None: such that the output heads together are as wide as the model."""

    values_per_key: ClassVar[int] = 1
    """Width of a value head in query heads: 1, or 2 where a head has two maps and E = 2 D."""

    @property
    def groups(self) -> int:
        """Number of key/value groups, G."""
        return self.heads if self.kv_heads is None else self.kv_heads

    def key_dim(self, site: Site) -> int:
        """Width of one query or key head, D."""
        return self.head_dim or site.width // (self.heads * self.values_per_key)

    def validate(self, site: Site) -> None:
        """Raise ValueError where the heads do not divide or the implementation does not exist."""
        for field in ("heads", "kv_heads", "head_dim"):
            value = getattr(self, field)
            if value is None and field != "heads":
                continue
            check_whole(field, value, 1)
        if self.heads % self.groups:
            raise ValueError(
                f"{self.name}: {self.heads} output heads cannot share {self.groups} key/value heads evenly; "
                "kv_heads must divide heads"
            )
        share = self.heads * self.values_per_key
        if self.head_dim is None and site.width % share:
            raise ValueError(
                f"{self.name}: width {site.width} does not divide by {share} ({self.heads} output heads, each "
                f"{self.values_per_key} x head_dim wide); change heads or width, or set head_dim"
            )
        served = self.implementations or tuple(implementations())
        if self.impl not in ("auto", *served):
            raise ValueError(f"impl: got {self.impl!r}, needs auto or one of {', '.join(served)} for {self.name}")


class ProjectedMixer(Mixer):
    """Queries, keys and values by linear maps of the tokens, an output map behind the heads, and a cache of K and V."""

    def __init__(self, config: HeadsConfig, site: Site, queries: int, keys: int, biases: str = "") -> None:
        """Make the projections for `queries` query heads and `keys` key heads in all; `biases` names those with one."""
        super().__init__()
        self.site = site
        self.heads, self.groups, self.queries, self.keys = config.heads, config.groups, queries, keys
        self.head_dim = config.key_dim(site)
        self.value_dim = self.head_dim * config.values_per_key
        self.impl = config.impl
        self.norm_eps: float | None = None
        self.norm_weight: nn.Parameter | None = None
        self.variant, self.refuses = config.name, config.refuses
        self.q = nn.Linear(site.width, queries * self.head_dim, bias="q" in biases)
        self.k = nn.Linear(site.width, keys * self.head_dim, bias="k" in biases)
        self.v = nn.Linear(site.width, self.groups * self.value_dim, bias="v" in biases)
        self.o = nn.Linear(self.heads * self.value_dim, site.width, bias="o" in biases)

    def add_norm(self, eps: float, weight: bool = True) -> None:
        """Put RMSNorm behind each head, with one weight vector shared by all heads or without; there is none else."""
        self.norm_eps = eps
        self.norm_weight = nn.Parameter(torch.empty(self.value_dim)) if weight else None

    def read(self, x: Tensor, where: Where, state: dict[str, Tensor] | None) -> tuple[Tensor, Tensor, Tensor]:
        """Give q [B, queries, T, D], k [B, keys, S, D], v [B, G, S, E], rotated; with a state, its whole buffers."""
        for field in self.refuses:
            if getattr(where, field) is not None:
                raise ValueError(f"{field}: {self.variant} has no meaning for it; leave it out")
        source = x if where.memory is None else where.memory
        q = _split(self.project_queries(x), self.queries)
        k = _split(self.project_keys(source), self.keys)
        v = _split(self.v(source), self.groups)
        q, k = self.before_positions(q, k)
        if where.positions is not None:
            assert where.memory is None, "keys of a memory have no positions of their own: pass positions=None"
            q = apply_rotary(q, *where.positions)
            k = apply_rotary(k, *(where.key_positions or where.positions))
        if state is not None:
            assert where.key_lengths is not None, "a state needs key_lengths, the lengths after this call's tokens"
            k = _store(state["k"], k, where.key_lengths)
            v = _store(state["v"], v, where.key_lengths)
        return q, k, v

    def before_positions(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        """Give the projected queries and keys as rotary and the cache shall see them."""
        return q, k

    def project_queries(self, x: Tensor) -> Tensor:
        """Give the queries of all maps, [B, T, queries * D], head beside head."""
        return self.q(x)

    def project_keys(self, source: Tensor) -> Tensor:
        """Give the keys of all maps, [B, S, keys * D], head beside head."""
        return self.k(source)

    def norm_heads(self, heads: Tensor, gain: float = 1.0) -> Tensor:
        """Give heads [B, H, T, E] behind the norm, where there is one, times the gain; float32 or float64."""
        return normed(heads, Norm(self.norm_weight, self.norm_eps, gain))

    def write(self, heads: Tensor) -> Tensor:
        """Map the output heads [B, H, T, E] back to [B, T, W]."""
        return self.o(heads.transpose(1, 2).flatten(2))

    def logit_factors(self, x: Tensor, where: Where) -> list[tuple[Tensor, Tensor]]:
        """Give queries / sqrt(D) and keys, of one map."""
        q, k, _ = self.read(x, where, None)
        return [(q * self.head_dim**-0.5, k)]

    def new_state(self, batch: int, capacity: int, device: Any = None, dtype: Any = None) -> dict[str, Tensor]:
        """Allocate k [B, keys, capacity, D], kept after rotation, and v [B, G, capacity, E], zero-filled."""
        weight = self.k.weight
        return {
            "k": weight.new_zeros(batch, self.keys, capacity, self.head_dim, device=device, dtype=dtype),
            "v": weight.new_zeros(batch, self.groups, capacity, self.value_dim, device=device, dtype=dtype),
        }

    def init_weights(self, draw: Draw) -> None:
        """Fill the projections: q, k, v ~ N(0, 1/fan-in), o ~ N(0, 1/(fan-in * 2 layers)), biases 0; the norm: 1."""
        fill(self.q.weight, self.starting_queries(draw))
        for role, part in (("k", self.k), ("v", self.v)):
            fill(part.weight, draw.normal(role, part.weight.shape, self.site.width**-0.5))
        fan_in = self.o.weight.shape[1]
        # Drawn transposed, so that the heads are the first axis, the one that may grow.
        fill(self.o.weight, draw.normal("o", self.o.weight.shape[::-1], (fan_in * 2 * self.site.layers) ** -0.5).T)
        for part in (self.q, self.k, self.v, self.o):
            if part.bias is not None:
                nn.init.zeros_(part.bias)
        if self.norm_weight is not None:
            nn.init.ones_(self.norm_weight)

    def starting_queries(self, draw: Draw) -> Tensor:
        """Give the first values of q's weight."""
        return draw.normal("q", self.q.weight.shape, self.site.width**-0.5)


def pairs(heads: Tensor) -> tuple[Tensor, Tensor]:
    """Views of the heads 2i and of the heads 2i + 1 of [B, 2 N, T, D], each [B, N, T, D].

    As slices they would each take a tensor of zeros and an addition in the backward pass.
    """
    first, second = heads.unflatten(1, (-1, 2)).unbind(2)
    return first, second


def check_eps(eps: float) -> None:
    """Raise ValueError for a norm_eps that would divide by 0."""
    if not is_number(eps) or not eps > 0:
        raise ValueError(f"norm_eps: got {eps!r}, needs a finite number above 0")


def check_choice(name: str, value: object, choices: Any) -> None:
    """Raise ValueError, naming the argument, unless the value is one of a Literal's."""
    if value not in get_args(choices):
        raise ValueError(f"{name}: got {value!r}, needs one of {', '.join(get_args(choices))}")


def is_number(value: object) -> bool:
    """Whether a value is a finite int or float."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


@torch.no_grad()
def fill(parameter: Tensor, values: Tensor) -> None:
    """Copy starting values into a parameter of any dtype, on any device."""
    parameter.copy_(values)


def wide(x: Tensor) -> Tensor:
    """Give x in float32, or as it is where it is float64."""
    return x if x.dtype == torch.float64 else x.float()


def layer_cost(matrices: int, vectors: int, attention: tuple[int, int], cached: int) -> Cost:
    """Add up a layer: entries of matrices that tokens are multiplied by, all other parameters, (algebra, executed)
    FLOPs per token of the products with keys and values, numbers per token that decoding remembers."""
    algebra, executed = attention
    return Cost(
        parameters=matrices + vectors,
        flops_algebra=6 * matrices + algebra,
        flops_executed=6 * matrices + executed,
        cache_bytes=4 * cached,
    )


def projection_weights(config: HeadsConfig, site: Site, queries: int, keys: int) -> int:
    """Count the entries of the matrices q, k, v and o."""
    key_dim = config.key_dim(site)
    value_dim = key_dim * config.values_per_key
    return site.width * ((queries + keys) * key_dim + (config.groups + config.heads) * value_dim)


def training_flops(config: HeadsConfig, site: Site, maps: int, sink: bool = False) -> tuple[int, int]:
    """Count the FLOPs per token of the products with keys and values: (algebra, executed), forward and backward.

    Algebra combines the maps before the product with V. `reference` executes just that; `sdpa` calls torch's fused
    attention for each map, with queries and keys padded to V's width, and its backward pass takes five products,
    because it computes the map again; a sink is one more key, query and channel to it. `blocked` and `cpu` combine the
    maps and compute only the logits again. Pairs that the causal rule hides count, as in torch's own formulas. `auto`
    counts as what it takes on this machine's CPU.
    """
    key_dim = config.key_dim(site)
    value_dim = key_dim * config.values_per_key
    per_channel = 2 * config.heads * site.context
    algebra = 3 * per_channel * (maps * key_dim + value_dim)
    impl = taken_by_auto(key_dim, value_dim, maps, site.context) if config.impl == "auto" else config.impl
    if impl == "reference":
        return algebra, algebra
    if impl in ("blocked", "cpu"):
        return algebra, algebra + per_channel * maps * key_dim
    if sink:
        return algebra, round(7 * 2 * config.heads * (site.context + 1) ** 2 * (value_dim + 1) / site.context)
    return algebra, per_channel * maps * (2 + 5) * value_dim


def _split(projected: Tensor, heads: int) -> Tensor:
    return projected.unflatten(-1, (heads, -1)).transpose(1, 2)


def _store(buffer: Tensor, new: Tensor, lengths: Tensor) -> Tensor:
    """Write new [B, N, T, D] to the last T slots before `lengths` [B]; give the whole buffer [B, N, capacity, D]."""
    tokens = new.shape[2]
    slots = lengths.long()[:, None] - tokens + torch.arange(tokens, device=new.device)
    buffer.scatter_(2, slots[:, None, :, None].expand_as(new), new.detach().to(buffer.dtype))
    return buffer.to(new.dtype)
