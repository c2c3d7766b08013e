"""What the bench measures, as data: items, their sizes, and the ratio that each has to reach."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from attention_core.operators import find
from attention_core.specification import Layer
from backends import FRAMEWORKS

TEXTBOOK = "textbook"
EAGER = "textbook, eager"
GRAPH = "textbook, tf.function"

DIRECTIONS = ("forward", "training", "memory", "compile")
PARTS = ("forward", "training")
"""What is timed, what is compiled, and what memory is taken by: the forward pass, or forward, backward and Adam."""


@dataclass(frozen=True)
class Goal:
    """One ratio to measure, theirs / ours: how much it has to be at least, and how much is wanted, where that is said.

    part says what is compiled, or what memory is taken by; of a time it is the direction itself.
    """

    framework: str
    direction: str
    least: float | None = None
    wanted: float | None = None
    against: str = TEXTBOOK
    part: str = ""

    def __post_init__(self) -> None:
        if not self.part:
            object.__setattr__(self, "part", self.direction if self.direction in PARTS else "training")


@dataclass(frozen=True)
class Item:
    """Something to compute: the layer, its options and sizes, and the goals.

    own holds the sizes that differ in a framework, and quick those of a short run, to which no goal applies. ours holds
    what our layer is called with beside the inputs, such as that the weights are not asked for.
    """

    name: str
    summary: str
    layer: str
    sizes: Mapping[str, int]
    goals: tuple[Goal, ...]
    quick: Mapping[str, int]
    own: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    ours: Mapping[str, Any] = field(default_factory=dict)

    @property
    def frameworks(self) -> tuple[str, ...]:
        """The frameworks in which it is measured."""
        return tuple(name for name in FRAMEWORKS if any(goal.framework == name for goal in self.goals))

    def sizes_in(self, framework: str, quick: bool = False) -> dict[str, int]:
        """Its sizes in a framework."""
        return {**self.sizes, **self.own.get(framework, {}), **(self.quick if quick else {})}

    def goals_in(self, framework: str, quick: bool = False) -> list[Goal]:
        """What to measure in a framework; a short run has the ratios, but nothing to reach."""
        own = [goal for goal in self.goals if goal.framework == framework]
        return [replace(goal, least=None, wanted=None) for goal in own] if quick else own


def timed(
    framework: str,
    forward: tuple[float, float] | None = None,
    training: tuple[float, float] | None = None,
    against: str = TEXTBOOK,
) -> tuple[Goal, ...]:
    """The goals of the forward pass and of a training step; without figures they are measured all the same."""
    figures = {"forward": forward or (None, None), "training": training or (None, None)}
    return tuple(Goal(framework, direction, least, wanted, against) for direction, (least, wanted) in figures.items())


ADDITIVE = Item(
    "additive",
    "additive attention",
    "AdditiveAttention",
    {"batch": 8, "queries": 512, "keys": 512, "hidden": 256},
    (
        *timed("torch", (18, 25), (9, 12)),
        Goal("torch", "memory", 100),
        *timed("tf", (2.4, 5), (2.2, 4), GRAPH),
        Goal("tf", "memory", 50, against=GRAPH),
        *timed("tf", against="keras.layers.AdditiveAttention"),
        *timed("jax", (11, 15), (12, 15)),
        Goal("jax", "memory", 100),
        *timed("mxnet", (6, 8), (2.4, 3)),
        Goal("mxnet", "memory", 50),
    ),
    quick={"batch": 2, "queries": 256, "keys": 256, "hidden": 128},  # the smallest that go by blocks in all frameworks
    own={"mxnet": {"batch": 2}},
)
ADDITIVE_CONTEXT = replace(
    ADDITIVE,
    name="additive-context",
    summary="additive attention, context only",
    goals=tuple(goal for goal in ADDITIVE.goals if goal.against in (TEXTBOOK, GRAPH)),
    ours={"need_weights": False},
)
DECODER = Item(
    "decoder",
    "Bahdanau decoder",
    "BahdanauDecoder",
    {"batch": 128, "hidden": 256, "layers": 2, "vocabulary": 200, "steps": 50, "keys": 50},
    (
        *timed("torch", (3.1, 4), (2.5, 3)),
        Goal("torch", "memory", 4, 6),
        *timed("tf", (9, 12), (5, 6), EAGER),
        *timed("tf", (2.2, 2.7), None, GRAPH),
        Goal("tf", "compile", 18, 30, GRAPH, "forward"),
        *timed("jax", (0.97, 1.1), (2.5, 3)),
        Goal("jax", "compile", 15, 20, part="forward"),
        Goal("jax", "compile", 11, 12, part="training"),
        *timed("mxnet", (3, 3), (2, 2)),
    ),
    quick={"batch": 16, "hidden": 64, "steps": 9, "keys": 9},
)
SHORT = Item(
    "decoder-short",
    "Bahdanau decoder, short",
    "BahdanauDecoder",
    {**DECODER.sizes, "steps": 9, "keys": 9},
    (
        *timed("torch", (1.6, 1.6), (1.4, 1.4)),
        *timed("tf", (10, 10), (5, 5), EAGER),
        *timed("jax", (0.97, 0.97), (1.2, 1.2)),
        *timed("mxnet", (3, 3), (1.7, 1.7)),
    ),
    quick=DECODER.quick,
)
GREEDY = Item(
    "greedy",
    "greedy decoding, against an uncompiled loop",
    "BahdanauDecoder",
    {**DECODER.sizes, "batch": 4, "steps": 10, "keys": 10},
    (Goal("jax", "forward", 100, 100, "textbook, uncompiled"),),
    quick={"hidden": 64},
)
DOT = Item(
    "dot",
    "dot-product attention, context only",
    "DotProductAttention",
    {"batch": 8, "heads": 8, "queries": 512, "keys": 512, "hidden": 64},
    (
        *timed("torch", (5.4, 7), (4, 5.5)),
        *timed("torch", against="torch scaled_dot_product_attention"),
        Goal("torch", "memory"),
        *timed("tf", (1.3, 2), (1.2, 1.2), GRAPH),
        *timed("tf", against="keras.ops.dot_product_attention"),
        *timed("jax", (2.6, 3), (2, 2.5)),
        *timed("jax", against="jax.nn.dot_product_attention"),
        Goal("jax", "memory", 26, 50),
    ),
    quick={"batch": 2, "heads": 2, "queries": 64, "keys": 64},
    ours={"need_weights": False},
)
DOT_LONG = replace(
    DOT,
    name="dot-long",
    summary="dot-product attention, context only, long",
    sizes={**DOT.sizes, "keys": 4096},
)
WEIGHTS = Item(
    "dot-weights",
    "dot-product attention, weights returned",
    "DotProductAttention",
    DOT.sizes,
    timed("torch", (2, 3), (3, 4)),
    quick=DOT.quick,
)
WEIGHTS_LONG = replace(
    WEIGHTS,
    name="dot-weights-long",
    summary="dot-product attention, weights returned, long",
    sizes=DOT_LONG.sizes,
)

ITEMS = {
    item.name: item
    for item in (ADDITIVE, ADDITIVE_CONTEXT, DECODER, SHORT, GREEDY, DOT, DOT_LONG, WEIGHTS, WEIGHTS_LONG)
}
"""Every item by its name."""

LENGTH = "length"
"""The item that is drawn over the length of queries and keys."""
LENGTHS = tuple(2**power for power in range(8, 14))
LENGTH_FRAMEWORKS = ("torch", "jax")
LENGTH_SIZES = {"batch": 1, "hidden": 256}


def shown(sizes: Mapping[str, int]) -> str:
    """Sizes in one line."""
    return ", ".join(f"{name} {size}" for name, size in sizes.items())


def options(item: Item, sizes: Mapping[str, int]) -> dict[str, int]:
    """What the layer is made with."""
    hidden = sizes["hidden"]
    if item.layer == "AdditiveAttention":
        return {"query_size": hidden, "key_size": hidden, "hidden_size": hidden}
    if item.layer == "BahdanauDecoder":
        own = {"vocab_size": sizes["vocabulary"], "embed_size": hidden, "hidden_size": hidden}
        return {**own, "num_layers": sizes["layers"]}
    return {}


def work(item: Item, sizes: Mapping[str, int]) -> int:
    """What a forward pass has to do: multiply-adds, but of additive attention the elements of which it takes a tanh."""
    batch, keys, hidden = sizes["batch"], sizes["keys"], sizes["hidden"]
    if item.layer == "AdditiveAttention":
        return batch * sizes["queries"] * keys * hidden
    if item.layer == "DotProductAttention":
        return 2 * batch * sizes["heads"] * sizes["queries"] * keys * hidden
    recurrent = 3 * hidden * (3 * hidden + (sizes["layers"] - 1) * 2 * hidden)
    step = recurrent + hidden**2 + 2 * keys * hidden + hidden * sizes["vocabulary"]
    return batch * (keys * hidden**2 + sizes["steps"] * step)


def parameters(item: Item, sizes: Mapping[str, int]) -> dict[str, np.ndarray]:
    """The parameters that all forms of the item share, canonical, float32, drawn as frameworks do: uniform, ±1/√n."""
    layer = find(item.layer)
    assert isinstance(layer, Layer)
    numbers, complete = np.random.default_rng(1), layer.sizes(options(item, sizes))
    shapes = layer.shapes(complete)
    return {
        name: (numbers.uniform(-1, 1, shape) * shape[-1] ** -0.5).astype(np.float32) for name, shape in shapes.items()
    }


def inputs(item: Item, sizes: Mapping[str, int]) -> dict[str, np.ndarray]:
    """The inputs that all forms of the item share.

    The longest sequence of the batch has no padding, as in a batch that was padded to its longest; the shortest is half
    as long. A batch of one is not padded. cotangent is what the context is multiplied by to become a loss.
    """
    numbers = np.random.default_rng(2)
    batch, keys, hidden = sizes["batch"], sizes["keys"], sizes["hidden"]

    def normal(*shape: int) -> np.ndarray:
        return numbers.standard_normal(shape, np.float32)

    def tokens() -> np.ndarray:
        return numbers.integers(sizes["vocabulary"], size=(batch, sizes["steps"]), dtype=np.int32)

    valid_lens = np.linspace(keys, keys - keys // 2, batch).astype(np.int32)
    if item.layer != "BahdanauDecoder":
        lead = (batch, sizes["heads"]) if "heads" in sizes else (batch,)
        queries = normal(*lead, sizes["queries"], hidden)
        return {
            "queries": queries,
            "keys": normal(*lead, keys, hidden),
            "values": normal(*lead, keys, hidden),
            "valid_lens": valid_lens,
            "cotangent": normal(*queries.shape),
        }
    return {
        "tokens": tokens(),
        "encoder_outputs": normal(batch, keys, hidden),
        "state": normal(sizes["layers"], batch, hidden),
        "valid_lens": valid_lens,
        "targets": tokens(),
    }


LEARNED = ("queries", "keys", "values", "encoder_outputs", "state")
"""The inputs that have a gradient, as they have inside a model."""
BOS, EOS = 2, 3
"""The tokens that greedy decoding begins and ends with."""
