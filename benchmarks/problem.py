"""What the forms of an item share: its parameters and inputs, and what they have to do."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from attention_core.operators import find
from attention_core.operators.training import Batch
from attention_core.operators.translation import TRANSLATORS
from attention_core.specification import Layer
from benchmarks.items import Item
from parity_tests.third_party.layers.shared import part_of


@dataclass(frozen=True)
class Problem:
    """An item at given sizes: the parameters and inputs that all its forms share."""

    item: Item
    sizes: Mapping[str, int]

    @property
    def options(self) -> dict[str, Any]:
        """The arguments of our layer."""
        hidden = self.sizes["hidden"]
        if self.item.layer == "AdditiveAttention":
            return {"query_size": hidden, "key_size": hidden, "hidden_size": hidden}
        if self.item.layer == "BahdanauDecoder":
            features = {"vocab_size": self.sizes["vocabulary"], "embed_size": hidden, "hidden_size": hidden}
            return {**features, "num_layers": self.sizes["layers"]}
        if self.item.layer == "Translator":
            source, target = self.sizes["source_vocabulary"], self.sizes["vocabulary"]
            # Of two directions each has half of the features, and the decoder reads both.
            directions = 2 if self.item.options.get("bidirectional") else 1
            features = {"embed_size": hidden, "hidden_size": hidden // directions, "num_layers": self.sizes["layers"]}
            return {"source_vocab_size": source, "target_vocab_size": target, **features, **self.item.options}
        if self.item.layer == "TransformerTranslator":
            source, target = self.sizes["source_vocabulary"], self.sizes["vocabulary"]
            stack = {"num_heads": self.sizes["heads"], "num_layers": self.sizes["layers"], "hidden_size": 4 * hidden}
            return {"source_vocab_size": source, "target_vocab_size": target, "features": hidden, **stack}
        return {}

    @property
    def work(self) -> int:
        """Count the multiply-adds of a forward pass; of additive attention, the elements of which it takes a tanh."""
        sizes = self.sizes
        batch, keys, hidden = sizes["batch"], sizes["keys"], sizes["hidden"]
        if self.item.layer == "AdditiveAttention":
            return batch * sizes["queries"] * keys * hidden
        if self.item.layer == "DotProductAttention":
            return 2 * batch * sizes["heads"] * sizes["queries"] * keys * hidden
        if self.item.layer == "TransformerTranslator":
            steps, feed_forward = sizes["steps"], 8 * hidden**2
            decoded = steps * self.item.keywords.get("width", 1)
            encoder = keys * (4 * hidden**2 + 2 * keys * hidden + feed_forward)
            decoder = decoded * (6 * hidden**2 + 2 * (steps + keys) * hidden + feed_forward) + keys * 2 * hidden**2
            return batch * (sizes["layers"] * (encoder + decoder) + decoded * hidden * sizes["vocabulary"])
        options, above = self.item.options, (sizes["layers"] - 1) * 2 * hidden
        query = 0 if options.get("score") == "general" else hidden**2
        attentional = 2 * hidden**2 if options.get("decoder") == "luong" else 0
        step = (
            3 * hidden * (3 * hidden + above) + query + 2 * keys * hidden + attentional + hidden * sizes["vocabulary"]
        )
        of_one = hidden // 2 if options.get("bidirectional") else hidden
        encoder = 3 * hidden * (hidden + of_one + above) if self.item.layer == "Translator" else 0
        return batch * (keys * (hidden**2 + encoder) + sizes["steps"] * self.item.keywords.get("width", 1) * step)

    @property
    def tokens(self) -> int:
        """Count the tokens of the translations, without padding, in a training step or a search; else 0."""
        if self.item.layer not in TRANSLATORS:
            return 0
        if self.item.outputs == ("sentences",):
            return self.sizes["batch"] * self.sizes["steps"]  # no sentence ends before
        return int(self.inputs["target_lens"].sum())

    @functools.cached_property
    def parameters(self) -> dict[str, np.ndarray]:
        """Canonical parameters, float32, drawn as frameworks do: uniform in ±1/√n.

        A translator that searches has logits that are farther apart, so that rounding decides no token. It gives words
        alone: JoeyNMT forbids some of the other tokens, and no hypothesis ends before the last step.
        """
        layer = find(self.item.layer)
        assert isinstance(layer, Layer)
        numbers, shapes = np.random.default_rng(1), layer.shapes(layer.sizes(self.options))
        drawn = {
            name: (numbers.uniform(-1, 1, shape) * shape[-1] ** -0.5).astype(np.float32)
            for name, shape in shapes.items()
        }
        for name, value in layer.constants(layer.sizes(self.options)).items():
            drawn[name].fill(value)
        if self.item.layer in TRANSLATORS and self.item.outputs == ("sentences",):
            drawn["decoder.dense.W"] *= SHARPER
            drawn["decoder.dense.b"][:RESERVED] = NEVER
        return drawn

    def stack(self, name: str) -> list[dict[str, np.ndarray]]:
        """The parameters of each layer of the encoder or the decoder of a Transformer."""
        return [part_of(self.parameters, f"{name}.layers.{number}") for number in range(self.sizes["layers"])]

    @functools.cached_property
    def inputs(self) -> dict[str, np.ndarray]:
        """The inputs, and the target of the loss: tokens, or a cotangent by which the context is multiplied.

        The longest sequence of the batch has no padding, as in a batch that was padded to its longest; the shortest is
        half as long. A batch of one is not padded.
        """
        numbers, sizes = np.random.default_rng(2), self.sizes
        batch, keys, hidden = sizes["batch"], sizes["keys"], sizes["hidden"]

        def normal(*shape: int) -> np.ndarray:
            return numbers.standard_normal(shape, np.float32)

        def tokens() -> np.ndarray:
            return numbers.integers(sizes["vocabulary"], size=(batch, sizes["steps"]), dtype=np.int32)

        valid_lens = np.linspace(keys, keys - keys // 2, batch).astype(np.int32)
        if self.item.layer in TRANSLATORS:
            # Between a quarter of the longest and that: about 38 of 100 places are padding, as in a corpus.
            source_lens, target_lens = (
                numbers.integers(max(size // 4, 1), size + 1, batch, np.int32) for size in (keys, sizes["steps"])
            )
            source_lens[0], target_lens[0] = keys, sizes["steps"]
            source_lens = np.sort(source_lens)[::-1].copy()  # as JoeyNMT's encoder takes a batch

            def sentences(vocabulary: int, lens: np.ndarray) -> np.ndarray:
                words = numbers.integers(RESERVED, vocabulary, size=(batch, lens.max()), dtype=np.int32)
                return np.where(np.arange(lens.max()) < lens[:, None], words, np.int32(PAD))

            source = sentences(sizes["source_vocabulary"], source_lens)
            targets = sentences(sizes["vocabulary"], target_lens)
            inputs = np.where(targets == PAD, targets, np.roll(targets, 1, axis=1))
            inputs[:, 0] = BOS
            targets[np.arange(batch), target_lens - 1] = EOS
            arrays = source, source_lens, inputs, targets, target_lens
            return dict(zip(Batch._fields, arrays, strict=False))
        if self.item.layer == "BahdanauDecoder":
            return {
                "tokens": tokens(),
                "encoder_outputs": normal(batch, keys, hidden),
                "state": normal(sizes["layers"], batch, hidden),
                "valid_lens": valid_lens,
                "targets": tokens(),
            }
        lead = (batch, sizes["heads"]) if "heads" in sizes else (batch,)
        queries = (*lead, sizes["queries"], hidden)
        return {
            "queries": normal(*queries),
            "keys": normal(*lead, keys, hidden),
            "values": normal(*lead, keys, hidden),
            "valid_lens": valid_lens,
            "cotangent": normal(*queries),
        }


LEARNED = ("queries", "keys", "values", "encoder_outputs", "state")
"""The inputs that have a gradient, as they have inside a model."""
LEARNING_RATE, MAX_NORM = 1e-3, 1.0
"""Of the trainings."""
UNK, PAD, BOS, EOS = range(4)
"""The tokens for unknown words and padding, and those that a sentence begins and ends with."""
RESERVED = 4
"""The first token that is a word."""
SHARPER = 32.0
"""The factor of the weights of the logits for a search."""
NEVER = -100.0
"""A logit that no token has which is chosen."""
SUBLAYERS = {
    **dict.fromkeys(("self_attention", "cross_attention"), "MultiHeadAttention"),
    **dict.fromkeys(("norm_1", "norm_2", "norm_3"), "LayerNorm"),
}
"""What a Transformer's layer is made of, beside its network."""


def inner_layers(
    arrays: Mapping[str, np.ndarray], num_heads: int
) -> Iterator[tuple[str, dict[str, np.ndarray], dict[str, Any]]]:
    """The attentions of a Transformer's layer, then its normalizations: name, parameters, and what these do not say."""
    forms: dict[str, dict[str, Any]] = {"MultiHeadAttention": {"num_heads": num_heads}, "LayerNorm": {"epsilon": 1e-5}}
    for part, layer in SUBLAYERS.items():
        if parameters := part_of(arrays, part):
            yield layer, parameters, forms[layer]
