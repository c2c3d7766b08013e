"""What the bench measures, as data: items, their sizes, and the ratio that each has to reach."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from backends import FRAMEWORKS

THIRD_PARTY = "third party"
EAGER = "third party, eager"
GRAPH = "third party, tf.function"
UNCOMPILED = "third party, uncompiled"
LAYERS = {"torch": "layers of torch.nn", "tf": "Keras layers, tf.function", "jax": "layers of flax.nnx"}
"""Transformers of the frameworks' own layers: a cache of keys and values they have not, or not in a stack."""

ONE_THREAD = "one thread"
"""Our layers themselves, with which those with more threads are compared."""
SCALED = 0.85
"""The least part of what so many threads could gain."""

TOOLKITS = {"JoeyNMT": "joeynmt", "OpenNMT-py": "onmt", "keras-hub": "keras_hub"}
"""Toolkits that people train translators with, and their packages: they are measured where they are installed."""
JOEYNMT, OPENNMT, KERASHUB = TOOLKITS

DIRECTIONS = ("forward", "training", "memory", "compile")
PARTS = ("forward", "training")
"""What is timed, what is compiled, and what memory is taken by: the forward pass, or forward, backward and Adam."""


@dataclass(frozen=True)
class Goal:
    """One ratio to measure, theirs / ours: the least that it has to be, and the one aimed at, where there are any.

    part is what is compiled, or what takes the memory; of a time it is the direction itself.
    """

    framework: str
    direction: str
    least: float | None = None
    aim: float | None = None
    against: str = THIRD_PARTY
    part: str = ""

    def __post_init__(self) -> None:
        if not self.part:
            object.__setattr__(self, "part", self.direction if self.direction in PARTS else "training")

    @property
    def is_timed(self) -> bool:
        """Whether it is a time, and not memory or compilation."""
        return self.direction in PARTS


@dataclass(frozen=True)
class Item:
    """Something to compute: the layer, its options and sizes, and the goals.

    special holds the sizes that differ in a framework, and quick those of a short run, to which no goal applies.
    options holds what our layer is made with beside its sizes, and keywords what it is called with beside the inputs,
    such as need_weights=False.
    """

    name: str
    summary: str
    layer: str
    sizes: Mapping[str, int]
    goals: tuple[Goal, ...]
    quick: Mapping[str, int]
    special: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    keywords: Mapping[str, Any] = field(default_factory=dict)
    outputs: tuple[str, ...] = ("context", "weights")
    target: str = "cotangent"

    @property
    def frameworks(self) -> tuple[str, ...]:
        """The frameworks in which it is measured."""
        return tuple(name for name in FRAMEWORKS if any(goal.framework == name for goal in self.goals))

    def sizes_in(self, framework: str, quick: bool = False) -> dict[str, int]:
        """Its sizes in a framework."""
        return {**self.sizes, **self.special.get(framework, {}), **(self.quick if quick else {})}

    def goals_in(self, framework: str, quick: bool = False) -> list[Goal]:
        """What to measure in a framework; a short run has the ratios, but nothing to reach."""
        goals = [goal for goal in self.goals if goal.framework == framework]
        return [replace(goal, least=None, aim=None) for goal in goals] if quick else goals

    def variant(self, suffix: str, words: str, **sizes: int) -> Item:
        """The same at other sizes, with what its name and its summary say of them."""
        summary = f"{self.summary}, {words}"
        return replace(self, name=f"{self.name}-{suffix}", summary=summary, sizes={**self.sizes, **sizes})

    def against(self, other: str) -> Item:
        """The same in all its directions against something else, with nothing to reach."""
        goals = (Goal(goal.framework, goal.direction, against=other, part=goal.part) for goal in self.goals)
        return replace(self, goals=tuple(dict.fromkeys(goals)))

    def against_one_thread(self, threads: int) -> Item:
        """The same with more threads against one: what is timed, and how many times as fast it has to be."""
        goals = self.against(ONE_THREAD).goals
        return replace(self, goals=tuple(replace(goal, least=SCALED * threads) for goal in goals if goal.is_timed))


def time_goals(
    framework: str,
    forward: tuple[float, float] | None = None,
    training: tuple[float, float] | None = None,
    against: str = THIRD_PARTY,
) -> tuple[Goal, ...]:
    """The goals of the forward pass and of a training step; without figures they are measured all the same."""
    figures = {"forward": forward or (None, None), "training": training or (None, None)}
    return tuple(Goal(framework, direction, least, aim, against) for direction, (least, aim) in figures.items())


ADDITIVE = Item(
    "additive",
    "additive attention",
    "AdditiveAttention",
    {"batch": 8, "queries": 512, "keys": 512, "hidden": 256},
    (
        *time_goals("torch", (18, 25), (9, 12)),
        Goal("torch", "memory", 100),
        *time_goals("tf", (2.4, 5), (2.2, 4), GRAPH),
        Goal("tf", "memory", 50, against=GRAPH),
        *time_goals("tf", against="keras.layers.AdditiveAttention"),
        *time_goals("jax", (11, 15), (12, 15)),
        Goal("jax", "memory", 100),
        *time_goals("mxnet", (6, 8), (2.4, 3)),
        Goal("mxnet", "memory", 50),
    ),
    quick={"batch": 2, "queries": 256, "keys": 256, "hidden": 128},  # the smallest that go by blocks in all frameworks
    special={"mxnet": {"batch": 2}},
)
ADDITIVE_CONTEXT = replace(
    ADDITIVE,
    name="additive-context",
    summary="additive attention, context only",
    goals=tuple(goal for goal in ADDITIVE.goals if goal.against in (THIRD_PARTY, GRAPH)),
    keywords={"need_weights": False},
)
DECODER = Item(
    "decoder",
    "Bahdanau decoder",
    "BahdanauDecoder",
    {"batch": 128, "hidden": 256, "layers": 2, "vocabulary": 200, "steps": 50, "keys": 50},
    (
        *time_goals("torch", (3.1, 4), (2.5, 3)),
        Goal("torch", "memory", 4, 6),
        Goal("torch", "compile", part="forward"),
        Goal("torch", "compile", part="training"),
        *time_goals("tf", (9, 12), (5, 6), EAGER),
        *time_goals("tf", (2.2, 2.7), None, GRAPH),
        Goal("tf", "compile", 18, 30, GRAPH, "forward"),
        *time_goals("jax", (0.97, 1.1), (2.5, 3)),
        Goal("jax", "compile", 15, 20, part="forward"),
        Goal("jax", "compile", 11, 12, part="training"),
        *time_goals("mxnet", (3, 3), (2, 2)),
    ),
    quick={"batch": 16, "hidden": 64, "steps": 9, "keys": 9},
    outputs=("logits", "state", "weights"),
    target="targets",
)
SHORT = replace(
    DECODER,
    name="decoder-short",
    summary="Bahdanau decoder, short",
    sizes={**DECODER.sizes, "steps": 9, "keys": 9},
    goals=(
        *time_goals("torch", (1.6, 1.6), (1.4, 1.4)),
        *time_goals("tf", (10, 10), (5, 5), EAGER),
        *time_goals("jax", (0.97, 0.97), (1.2, 1.2)),
        *time_goals("mxnet", (3, 3), (1.7, 1.7)),
    ),
)
GREEDY = replace(
    DECODER,
    name="greedy",
    summary="greedy decoding, against an uncompiled loop",
    sizes={**DECODER.sizes, "batch": 4, "steps": 10, "keys": 10},
    goals=(Goal("jax", "forward", 100, 100, UNCOMPILED),),
    quick={"hidden": 64},
    outputs=("sentences",),
)
DOT = Item(
    "dot",
    "dot-product attention, context only",
    "DotProductAttention",
    {"batch": 8, "heads": 8, "queries": 512, "keys": 512, "hidden": 64},
    (
        *time_goals("torch", (5.4, 7), (4, 5.5)),
        *time_goals("torch", against="torch scaled_dot_product_attention"),
        Goal("torch", "memory"),
        *time_goals("tf", (1.3, 2), (1.2, 1.2), GRAPH),
        *time_goals("tf", against="keras.ops.dot_product_attention"),
        *time_goals("jax", (2.6, 3), (2, 2.5)),
        *time_goals("jax", against="jax.nn.dot_product_attention"),
        Goal("jax", "memory", 26, 50),
    ),
    quick={"batch": 2, "heads": 2, "queries": 64, "keys": 64},
    keywords={"need_weights": False},
)
DOT_LONG = DOT.variant("long", "long", keys=4096)
WEIGHTS = replace(
    DOT,
    name="dot-weights",
    summary="dot-product attention, weights returned",
    goals=time_goals("torch", (2, 3), (3, 4)),
    keywords={},
)
WEIGHTS_LONG = WEIGHTS.variant("long", "long", keys=4096)
TRANSLATOR = Item(
    "translator",
    "a translator's training step, sentences of 20 tokens",
    "Translator",
    {
        "batch": 64,
        "hidden": 256,
        "layers": 1,
        "source_vocabulary": 2082,
        "vocabulary": 3193,
        "steps": 20,
        "keys": 20,
    },
    (
        Goal("torch", "training", 2),
        Goal("tf", "training", 2, against=GRAPH),
        Goal("jax", "training", 2),
        Goal("mxnet", "training", 2),
    ),
    quick={"batch": 8, "hidden": 32, "source_vocabulary": 50, "vocabulary": 60, "steps": 5, "keys": 6},
)
TRANSLATOR_SHORT = replace(
    TRANSLATOR,
    name="translator-short",
    summary="a translator's training step, sentences of 10 tokens",
    sizes={**TRANSLATOR.sizes, "steps": 10, "keys": 10},
)
TRANSLATOR_LONG = replace(
    TRANSLATOR,
    name="translator-long",
    summary="a translator's training step, sentences of 50 tokens",
    sizes={**TRANSLATOR.sizes, "steps": 50, "keys": 50},
)
TRANSLATOR_128 = replace(
    TRANSLATOR,
    name="translator-128",
    summary="a translator's training step, 128 sentences of 20 tokens",
    sizes={**TRANSLATOR.sizes, "batch": 128},
)
TRANSLATOR_LUONG_PLAIN = replace(
    TRANSLATOR,
    name="translator-luong-plain",
    summary="a translator's training step, Luong's decoder with additive scores and input feeding",
    goals=(Goal("tf", "training", 2, against=GRAPH),),
    options={"decoder": "luong", "score": "additive"},
)
TRANSLATOR_LUONG = replace(
    TRANSLATOR,
    name="translator-luong",
    summary="a translator's training step, two directions, Luong's decoder with additive scores and input feeding",
    goals=(Goal("torch", "training", 2), Goal("torch", "training", 1.5, against=JOEYNMT)),
    options={"bidirectional": True, "bridge": "concatenate", "decoder": "luong", "score": "additive"},
)
TRANSLATOR_LUONG_SHORT = TRANSLATOR_LUONG.variant("short", "sentences of 10 tokens", steps=10, keys=10)
TRANSLATOR_LUONG_LONG = TRANSLATOR_LUONG.variant("long", "sentences of 50 tokens", steps=50, keys=50)
TRANSLATOR_LUONG_128 = TRANSLATOR_LUONG.variant("128", "128 sentences", batch=128)
TRANSLATOR_GENERAL = replace(
    TRANSLATOR_LUONG,
    name="translator-general",
    summary="a translator's training step, two directions, Luong's decoder with general scores and input feeding",
    goals=(Goal("torch", "training", 1.5, against=JOEYNMT), Goal("torch", "training", against=OPENNMT)),
    options={**TRANSLATOR_LUONG.options, "score": "general"},
)


def search(least: float) -> tuple[Goal, ...]:
    """The goals of a search, by each toolkit: its time, and no more memory than it takes."""
    return tuple(
        goal
        for against in (JOEYNMT, OPENNMT)
        for goal in (
            Goal("torch", "forward", least, against=against),
            Goal("torch", "memory", 1, against=against, part="forward"),
        )
    )


TRANSLATOR_GREEDY = replace(
    TRANSLATOR_GENERAL,
    name="translator-greedy",
    summary="greedy decoding by the translator of translator-general, 20 tokens",
    goals=search(1.5),
    outputs=("sentences",),
)
TRANSLATOR_GREEDY_ONE = TRANSLATOR_GREEDY.variant("one", "one sentence", batch=1)
TRANSLATOR_BEAM = replace(
    TRANSLATOR_GREEDY,
    name="translator-beam",
    summary="beam search by the translator of translator-general, 5 hypotheses, 20 tokens",
    goals=search(1.3),
    keywords={"width": 5},
)
TRANSLATOR_BEAM_ONE = TRANSLATOR_BEAM.variant("one", "one sentence", batch=1)
GREEDY_PLAIN = replace(
    TRANSLATOR,
    name="translator-greedy-plain",
    summary="greedy decoding by the translator of translator, 20 tokens",
    goals=tuple(replace(goal, direction="forward", part="forward", least=1.5) for goal in TRANSLATOR.goals),
    outputs=("sentences",),
)
GREEDY_PLAIN_ONE = GREEDY_PLAIN.variant("one", "one sentence", batch=1)
BEAM_PLAIN = replace(
    GREEDY_PLAIN,
    name="translator-beam-plain",
    summary="beam search by the translator of translator, 5 hypotheses, 20 tokens",
    goals=tuple(replace(goal, least=1.3) for goal in GREEDY_PLAIN.goals),
    keywords={"width": 5, "num_best": 5},
)
BEAM_PLAIN_ONE = BEAM_PLAIN.variant("one", "one sentence", batch=1)
TRANSFORMER = Item(
    "transformer",
    "a Transformer's training step, sentences of 20 tokens",
    "TransformerTranslator",
    {**TRANSLATOR.sizes, "heads": 4, "layers": 2},
    tuple(Goal(framework, "training", 1, against=against) for framework, against in LAYERS.items()),
    quick={**TRANSLATOR.quick, "layers": 1},
)
TRANSFORMER_GREEDY = replace(
    TRANSFORMER,
    name="transformer-greedy",
    summary="greedy decoding by the Transformer, 20 tokens",
    goals=(
        *(Goal(framework, "forward", 1, against=against) for framework, against in LAYERS.items()),
        Goal("tf", "forward", 1, against=KERASHUB),
    ),
    outputs=("sentences",),
)
TRANSFORMER_GREEDY_ONE = TRANSFORMER_GREEDY.variant("one", "one sentence", batch=1)
TRANSFORMER_GREEDY_LONG = replace(
    TRANSFORMER_GREEDY,
    name="transformer-greedy-long",
    summary="greedy decoding by the Transformer, 80 tokens",
    sizes={**TRANSFORMER.sizes, "steps": 80},
    goals=tuple(goal for goal in TRANSFORMER_GREEDY.goals if goal.framework != "tf"),
)
TRANSFORMER_BEAM = replace(
    TRANSFORMER_GREEDY,
    name="transformer-beam",
    summary="beam search by the Transformer, 5 hypotheses, 20 tokens",
    keywords={"width": 5, "num_best": 5},  # the best alone is that of greedy decoding: it shows no mistake of a beam
)
TRANSFORMER_BEAM_ONE = TRANSFORMER_BEAM.variant("one", "one sentence", batch=1)

ITEMS = {
    item.name: item
    for item in (
        *(ADDITIVE, ADDITIVE_CONTEXT, DECODER, SHORT, GREEDY, DOT, DOT_LONG, WEIGHTS, WEIGHTS_LONG),
        *(TRANSLATOR, TRANSLATOR_SHORT, TRANSLATOR_LONG, TRANSLATOR_128, TRANSLATOR_LUONG_PLAIN),
        *(TRANSLATOR_LUONG, TRANSLATOR_LUONG_SHORT, TRANSLATOR_LUONG_LONG, TRANSLATOR_LUONG_128),
        *(TRANSLATOR_GENERAL, TRANSLATOR_GREEDY, TRANSLATOR_GREEDY_ONE, TRANSLATOR_BEAM, TRANSLATOR_BEAM_ONE),
        *(GREEDY_PLAIN, GREEDY_PLAIN_ONE, BEAM_PLAIN, BEAM_PLAIN_ONE),
        *(TRANSFORMER, TRANSFORMER_GREEDY, TRANSFORMER_GREEDY_ONE, TRANSFORMER_GREEDY_LONG),
        *(TRANSFORMER_BEAM, TRANSFORMER_BEAM_ONE),
    )
}
"""Every item by its name."""

LENGTH = "length"
"""The item that is drawn over the length of queries and keys."""
LENGTHS = tuple(2**power for power in range(8, 15))
LENGTH_FRAMEWORKS = ("torch", "tf", "jax")
LENGTH_SIZES = {"batch": 1, "hidden": 256}


def size_line(sizes: Mapping[str, int]) -> str:
    """Sizes in one line."""
    return ", ".join(f"{name} {size}" for name, size in sizes.items())
