"""What the instruments find inside a model: the frozen result that evals/inside.json holds. No torch is imported here.

A "map" is one of a layer's attention maps (A; A1 and A2) or "effective", what multiplies the values in the end. Rows
are queries; an entry counts where its query may see its key. H output heads, T tokens of a window. None stands where
there is nothing to divide by, or where a layer has no such thing. Of windows longer than 2048 tokens the first 2048 are
read. Gradients are those of a quarter of the tokens: the first 1024 of every 4096.
"""

from dataclasses import asdict, dataclass
from typing import Any

DISTANCES = (0, 1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768)
"""First distance (query position - key position, in tokens) of each bin of `MapInside.by_distance`."""
WEIGHTS = (0.0, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1)
"""First |entry| of each bin of `MapInside.gradient_by_weight`."""
LOSSES = (0.0, 0.01, 0.03, 0.1, 0.3, 1.0, 2.0, 3.0, 5.0, 8.0)
"""First loss, in nats, of each bin of `PairInside.js_by_loss`."""
RANKS = 64
"""Places of `MapInside.sorted_mass`."""
DEAD = 1e-4
"""A key is dead if no later query gives it as much |weight|."""
INSIDE_TOKENS = 16384
"""Tokens that are read where nobody says how many: maps are large."""
OUTLIER = 6.0
"""|hidden| from which LLM.int8() (arXiv 2208.07339) speaks of an outlier."""


@dataclass(frozen=True)
class PerHead:
    """A number of each head, and the mean over those heads that have one."""

    mean: float | None
    heads: list[float | None]


@dataclass(frozen=True)
class Curve:
    """A list of numbers of each head, and its mean over heads, place by place."""

    mean: list[float | None]
    heads: list[list[float | None]]


@dataclass(frozen=True)
class Share:
    """How much of a map lies on some keys; both divide by the sum of |entries| of the counted rows."""

    signed: PerHead
    """Sum of the entries there / sum of |entries| of all keys; between -absolute and absolute."""
    absolute: PerHead
    """Sum of |entries| there / sum of |entries| of all keys; between 0 and 1."""


@dataclass(frozen=True)
class Allocation:
    """Where a map's mass lies. Rows: those with a marked answer where the data marks answers, else all."""

    answer: Share | None
    """On the keys that hold the answer: where the pair (this token, its target) ended earlier; None: none is marked."""
    first: Share
    """On the first key that the row sees."""
    rest: Share
    """On all others: the noise, where answers are marked."""


@dataclass(frozen=True)
class MapInside:
    """One map of a layer. Sums over all rows of all windows, divided once."""

    name: str
    """"A", "A1", "A2", ... as the layer calls it, or "effective"."""
    coefficient: PerHead
    """Mean over tokens of what the map is multiplied by in the effective map (A2 of V1: -λ); effective: 1."""
    allocation: Allocation
    negative_mass: PerHead
    """Sum of |negative entries| / sum of |entries|."""
    exact_zeros: PerHead
    """Share of entries that are exactly 0."""
    non_convex_rows: PerHead
    """Share of rows with an entry below -1e-6 after division by the row's sum; rows that sum to 0 are among them."""
    effective_keys: PerHead
    """Mean over rows of exp(entropy of |entries| / their sum): 1 where one key has it all, n where n share evenly."""
    dead_keys: PerHead
    """Share of keys, among those that a later query sees, to which no later query gives |weight| >= 1e-4."""
    weight_by_distance: Curve
    """Mean entry (signed) at each bin of `DISTANCES`; as many bins as the windows reach."""
    mass_by_distance: Curve
    """Sum of |entries| in each bin / sum of |entries|."""
    sorted_mass: Curve
    """|Entries| / their row's sum, largest first: the mean over every 17th row at ranks 1 to 64; its running sum is the
    mass of the k largest."""
    head_cosine: list[list[float | None]]
    """[H][H]: cosine of the maps of two heads, all entries of all windows as one vector."""
    gradient_norm: PerHead | None
    """Root mean square over rows of the norm of d loss / d logits (nats; loss summed over tokens); None: effective,
    and layers that take no mask or have no `OutputsInside`."""
    gradient_by_weight: Curve | None
    """Mean |d loss / d logit| of the entries in each bin of `WEIGHTS`, in every 17th row; None: as above."""


@dataclass(frozen=True)
class PairInside:
    """How the two maps A1 and A2 of each head relate."""

    cosine: PerHead
    """Cosine of A1 and A2, all entries of all windows as one vector."""
    lam: PerHead
    """Learned λ: mean over tokens of minus A2's coefficient."""
    lam_least_squares: PerHead
    """λ that makes the sum of (A1 - λ A2)^2 least, over entries that are no answer, of the rows of `Allocation`."""
    r2: PerHead
    """1 - that least sum / sum of (A1 - mean A1)^2, over the same entries: 1 where A2 tells all of A1's noise."""
    r2_learned: PerHead
    """The same with the learned λ; negative where the mean of A1 would be closer."""
    jensen_shannon: PerHead
    """Mean over rows of the Jensen-Shannon divergence of A1 and A2, in nats, 0 to ln 2."""
    js_loss_correlation: PerHead
    """Pearson correlation over scored tokens of that divergence and the token's loss: do maps part at surprises?"""
    js_by_loss: Curve
    """Mean divergence of the scored tokens in each bin of `LOSSES`."""


@dataclass(frozen=True)
class SignalToNoise:
    """|Read from the answer|^2 / |read from all other keys|^2 over answer rows, both as vectors of a head's values."""

    first_map: PerHead
    """Read through the first map alone: before the subtraction."""
    effective: PerHead
    """Read through the effective map."""
    normed: PerHead
    """The same with each row scaled as the norm (and gain or gate) behind the map scales it."""


@dataclass(frozen=True)
class OutputsInside:
    """What heads put into the residual stream; None of it exists where W_O does not follow head by head."""

    first_weight: PerHead
    """Share of the first visible key in |effective entries|, all rows."""
    first_contribution: PerHead
    """Share of the first visible key in |entry| x |v W_O| (arXiv 2004.10102; the norm's weight included, its row factor
    left out): attention is not contribution."""
    relative_norm: PerHead
    """Root mean square over tokens of a head's part of the layer's output / that of the residual before the layer."""
    signal_to_noise: SignalToNoise | None
    """None: no answers are marked."""
    outside_hull: PerHead | None
    """Share of sampled reads (effective map x values, before the norm) outside the convex hull of the visible values;
    None: not asked for."""
    hull_samples: int
    """Sampled reads of this layer, evenly spread over heads and tokens."""


@dataclass(frozen=True)
class LamInside:
    """λ of one layer over its heads and, where it depends on them, tokens; None: not a finite number."""

    mean: float | None
    min: float | None
    max: float | None
    below_0: float | None
    """Share of values below 0."""
    above_1: float | None
    """Share of values above 1."""


@dataclass(frozen=True)
class LayerInside:
    """One layer's attention."""

    layer: int
    heads: int
    lam: LamInside | None
    maps: list[MapInside]
    """The layer's own maps in order, "effective" last; a layer with one map has "A" and "effective", which are then
    alike. Mixtures of more than three maps: "effective" alone."""
    pair: PairInside | None
    """None: no maps called A1 and A2."""
    outputs: OutputsInside | None
    mixing: list[list[float | None]] | None
    """The learned matrix [H][H] that mixes the heads' maps, row i for output head i; None: there is none."""


@dataclass(frozen=True)
class Spread:
    """Absolute values of many numbers, and how heavy their tails are; None: not a finite number."""

    top1: float | None
    top2: float | None
    top3: float | None
    top10: float | None
    top100: float | None
    """The k-th largest |value|, exact (the smallest where there are fewer)."""
    median: float | None
    """Of |values|; off by at most one bin of a histogram with 32 bins an octave: 3 %."""
    rms: float | None
    ratio: float | None
    """top1 / rms."""
    kurtosis: float | None
    """Fourth central moment / variance^2: 3 for a normal distribution."""
    count: int


@dataclass(frozen=True)
class FirstApart:
    """The same values in two parts: massive ones are mostly the first token's, and hide what the others do."""

    first: Spread
    """Hidden states of tokens that see no earlier one; logits between any token and the first that it sees."""
    others: Spread | None
    """All others; None: there are none."""


@dataclass(frozen=True)
class LayerOutliers:
    """Outliers of one layer."""

    layer: int
    logits: Spread
    """Logits of all maps before mask and position bias, at visible entries."""
    hidden: Spread
    """The block's output after both residual additions; its ratio is that of the largest to the layer's own rms."""
    first_token: float | None
    """Sum of |effective entries| on the first visible key / sum of all, over heads and rows."""
    logits_apart: FirstApart
    hidden_apart: FirstApart


@dataclass(frozen=True)
class Outliers:
    """Massive values, layer by layer and of the whole model."""

    tokens: int
    logits: Spread
    hidden: Spread
    first_token: float | None
    """Mean over layers."""
    int8_channels: int
    """Channels of the hidden states with |h| >= 6 somewhere in at least 25 % of the layers and in at least 6 % of all
    (layer, position) places: LLM.int8()'s criterion, arXiv 2208.07339, section 4.1."""
    logits_apart: FirstApart
    hidden_apart: FirstApart
    hidden_ratio: float | None
    """Largest ratio of any layer's hidden states; that of `hidden` divides by the rms of all layers together."""
    layers: list[LayerOutliers]

    def to_dict(self) -> dict[str, Any]:
        """Give the fields ready for JSON."""
        return asdict(self)


@dataclass(frozen=True)
class Inside:
    """Everything the instruments found on some held-out tokens."""

    tokens: int
    windows: int
    answers: int
    """Rows with a marked answer; 0: the data marks none."""
    layers: list[LayerInside]
    outliers: Outliers

    def to_dict(self) -> dict[str, Any]:
        """Give the fields ready for JSON."""
        return asdict(self)
