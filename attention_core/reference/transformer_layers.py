"""The layers of the Transformer: self-attention, cross-attention and feed-forward networks, in NumPy."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from attention_core.operators.transformer_layers import (
    TRANSFORMER_DECODER_LAYER,
    TRANSFORMER_ENCODER_LAYER,
)
from attention_core.reference.arrays import Specified, inner, optional, promote
from attention_core.reference.feed_forward import FeedForward
from attention_core.reference.masking import causal_mask
from attention_core.reference.memory import Memory
from attention_core.reference.multi_head import MultiHeadAttention
from attention_core.reference.normalization import LayerNorm, RMSNorm
from attention_core.specification import Layer

__all__ = ["TransformerEncoderLayer", "TransformerDecoderLayer"]

Classes = tuple[type[Specified], ...]

Sublayer = Callable[[np.ndarray], np.ndarray]


class Container(Specified):
    """Base class of layers that consist of other layers: `inside` gives one of them, with its parameters."""

    classes: Classes = (MultiHeadAttention, FeedForward, LayerNorm, RMSNorm)

    def __init__(self, arguments: Mapping[str, Any]) -> None:
        super().__init__(arguments)
        parts = self.specification.inside(self.sizes)
        made: dict[str, Any] = {kind.__name__: kind for kind in self.classes}
        self.parts: dict[str, Any] = {name: made[part.layer.name](**part.config) for name, part in parts.items()}
        self.shared = {name: part.shared for name, part in parts.items()}
        for name, part in self.parts.items():
            arrays = {array: values for array, values in part.parameters.items() if array not in self.shared[name]}
            self.parameters |= {f"{name}.{array}": values for array, values in arrays.items()}

    def inside(self, name: str) -> Any:
        """The inner layer of that name."""
        part = self.parts[name]
        shared = {array: self.parameters[other] for array, other in self.shared[name].items()}
        part.parameters = inner(self.parameters, f"{name}.") | shared
        return part


class TransformerLayer(Container):
    """Base class of the layers: sublayers with residuals and normalization."""

    def _add_sublayer(
        self, number: int, x: np.ndarray, sublayer: Sublayer, dropout_mask: np.ndarray | None
    ) -> np.ndarray:
        """norm(x + f(x)), or x + f(norm(x)); number counts the sublayers from 1."""
        norm, pre = self.inside(f"norm_{number}"), self.sizes["norm"] == "pre"
        added = sublayer(norm(x) if pre else x)
        if dropout_mask is not None:
            added = added * promote(dropout_mask)[..., number - 1, :, :, :]
        return x + added if pre else norm(x + added)

    def _attend(
        self, which: str, queries: np.ndarray, keys: np.ndarray, *masks: np.ndarray | None, **factors: np.ndarray | None
    ) -> tuple[np.ndarray, np.ndarray]:
        """The context and weights of one of the attentions, with every head."""
        return self.inside(which)(queries, keys, keys, *masks, per_head=True, **factors)


class TransformerEncoderLayer(TransformerLayer):
    """Let each step attend to all steps, then transform it on its own.

    x' = norm(x + f(x)) (post), x + f(norm(x)) (pre), for each sublayer f in order
    f = self_attention(x, x, x), feed_forward(x)

    What stands in a step from valid_lens on, NaN and inf included, has no effect and gets gradient 0.
    """

    specification: Layer = TRANSFORMER_ENCODER_LAYER

    def __init__(
        self,
        features: int,
        num_heads: int,
        hidden_size: int,
        *,
        num_key_heads: int | None = None,
        score: str = "scaled_dot",
        rotary_layout: str | None = None,
        rotary_base: float | None = None,
        norm: str = "post",
        rms: bool = False,
        activation: str = "relu",
        gated: bool = False,
        bias: bool = True,
        epsilon: float = 1e-5,
        dropout: float = 0.0,
        causal: bool = False,
    ) -> None:
        super().__init__(locals())

    def __call__(
        self,
        inputs: np.ndarray,
        valid_lens: np.ndarray | None = None,
        mask: np.ndarray | None = None,
        *,
        need_weights: bool = True,
        bias: np.ndarray | None = None,
        self_dropout_mask: np.ndarray | None = None,
        hidden_dropout_mask: np.ndarray | None = None,
        dropout_mask: np.ndarray | None = None,
    ) -> tuple[np.ndarray, np.ndarray | Any]:
        """Transform the steps of a batch of sequences.

        x' = norm(x + f(x)) (post), x + f(norm(x)) (pre), for each sublayer f in order
        f = self_attention(x, x, x), feed_forward(x)
        """
        self._check(
            "call",
            inputs=inputs,
            valid_lens=valid_lens,
            mask=mask,
            need_weights=need_weights,
            bias=bias,
            self_dropout_mask=self_dropout_mask,
            hidden_dropout_mask=hidden_dropout_mask,
            dropout_mask=dropout_mask,
        )
        inputs = promote(inputs)
        if self.sizes["causal"]:
            causal = causal_mask(inputs.shape[-2], inputs.shape[-2])
            mask = causal if mask is None else mask & causal
        weights: list[np.ndarray] = []

        def self_attention(x: np.ndarray) -> np.ndarray:
            context, of_heads = self._attend(
                "self_attention", x, x, valid_lens, mask, bias=optional(bias), dropout_mask=optional(self_dropout_mask)
            )
            weights.append(of_heads)
            return context

        x = self._add_sublayer(1, without_padding(inputs, valid_lens), self_attention, dropout_mask)
        transform = self.inside("feed_forward")
        x = self._add_sublayer(2, x, lambda x: transform(x, dropout_mask=optional(hidden_dropout_mask)), dropout_mask)
        return without_padding(x, valid_lens), weights[0] if need_weights else None


class TransformerDecoderLayer(TransformerLayer):
    """Let each step attend to the steps so far and to an encoder's outputs, then transform it on its own.

    x' = norm(x + f(x)) (post), x + f(norm(x)) (pre), for each sublayer f in order
    f = self_attention(x, x, x), cross_attention(x, encoder_outputs, encoder_outputs), feed_forward(x)
    step t attends to the steps up to t

    valid_lens and mask are of cross-attention. A key that no step may attend to has no effect.
    """

    specification: Layer = TRANSFORMER_DECODER_LAYER

    def __init__(
        self,
        features: int,
        num_heads: int,
        hidden_size: int,
        *,
        memory_size: int | None = None,
        num_key_heads: int | None = None,
        score: str = "scaled_dot",
        rotary_layout: str | None = None,
        rotary_base: float | None = None,
        norm: str = "post",
        rms: bool = False,
        activation: str = "relu",
        gated: bool = False,
        bias: bool = True,
        epsilon: float = 1e-5,
        dropout: float = 0.0,
    ) -> None:
        super().__init__(locals())

    def __call__(
        self,
        inputs: np.ndarray,
        encoder_outputs: np.ndarray,
        valid_lens: np.ndarray | None = None,
        mask: np.ndarray | None = None,
        *,
        need_weights: bool = True,
        bias: np.ndarray | None = None,
        self_dropout_mask: np.ndarray | None = None,
        attention_dropout_mask: np.ndarray | None = None,
        hidden_dropout_mask: np.ndarray | None = None,
        dropout_mask: np.ndarray | None = None,
    ) -> tuple[np.ndarray, np.ndarray | Any, np.ndarray | Any]:
        """Transform the steps of a batch of sequences.

        x' = norm(x + f(x)) (post), x + f(norm(x)) (pre), for each sublayer f in order
        f = self_attention(x, x, x), cross_attention(x, encoder_outputs, encoder_outputs), feed_forward(x)
        step t attends to the steps up to t
        """
        self._check(
            "call",
            inputs=inputs,
            encoder_outputs=encoder_outputs,
            valid_lens=valid_lens,
            mask=mask,
            need_weights=need_weights,
            bias=bias,
            self_dropout_mask=self_dropout_mask,
            attention_dropout_mask=attention_dropout_mask,
            hidden_dropout_mask=hidden_dropout_mask,
            dropout_mask=dropout_mask,
        )
        encoded, weights = promote(encoder_outputs), {}
        causal = causal_mask(inputs.shape[-2], inputs.shape[-2])

        def self_attention(x: np.ndarray) -> np.ndarray:
            factors = {"bias": optional(bias), "dropout_mask": optional(self_dropout_mask)}
            context, weights["self"] = self._attend("self_attention", x, x, None, causal, **factors)
            return context

        def cross_attention(x: np.ndarray) -> np.ndarray:
            context, weights["cross"] = self._attend(
                "cross_attention", x, encoded, valid_lens, mask, dropout_mask=optional(attention_dropout_mask)
            )
            return context

        transform = self.inside("feed_forward")
        x = self._add_sublayer(1, promote(inputs), self_attention, dropout_mask)
        x = self._add_sublayer(2, x, cross_attention, dropout_mask)
        x = self._add_sublayer(3, x, lambda x: transform(x, dropout_mask=optional(hidden_dropout_mask)), dropout_mask)
        return (x, weights["cross"], weights["self"]) if need_weights else (x, None, None)

    def _step(
        self, x: np.ndarray, past: Memory, position: np.ndarray, memory: Memory, bias: np.ndarray | None
    ) -> tuple[np.ndarray, Memory, np.ndarray]:
        """One step, behind those of the past: its output, the past with it, and the weights of cross-attention."""
        places = np.arange(past.keys.shape[-2])
        now, seen = (places == position[:, None])[:, None, :, None], (places <= position[:, None])[:, None, None, :]
        kept: dict[str, Any] = {}

        def self_attention(x: np.ndarray) -> np.ndarray:
            attention = self.inside("self_attention")
            new = attention._prepare(x, x, None, None, position)
            keys, values = np.where(now, new.keys, past.keys), np.where(now, new.values, past.values)
            kept["past"] = Memory(keys, values, seen)
            offset = None if attention.rotary is None else position
            return attention.attend(x, kept["past"], bias=bias, offset=offset)[0]

        def cross_attention(x: np.ndarray) -> np.ndarray:
            context, kept["weights"] = self.inside("cross_attention").attend(x, memory)
            return context

        x = self._add_sublayer(1, x, self_attention, None)
        x = self._add_sublayer(2, x, cross_attention, None)
        return self._add_sublayer(3, x, self.inside("feed_forward"), None), kept["past"], kept["weights"]


def without_padding(steps: np.ndarray, valid_lens: np.ndarray | None) -> np.ndarray:
    """The steps with zeros from valid_lens on."""
    if valid_lens is None:
        return steps
    valid = np.arange(steps.shape[-2]) < np.asarray(valid_lens)[:, None]
    return np.where(valid[..., None], steps, 0.0)
