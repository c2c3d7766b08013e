"""The Transformer: encoders and decoders of several layers, in NumPy."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from attention_core.operators.transformer import (
    TRANSFORMER_DECODER,
    TRANSFORMER_ENCODER,
)
from attention_core.reference.arrays import align, linear, optional, promote
from attention_core.reference.encoders import embed, known_tokens
from attention_core.reference.masking import attention_mask
from attention_core.reference.memory import Memory
from attention_core.reference.positions import LearnedPositions, SinusoidalPositions, alibi_bias, relative_bias
from attention_core.reference.search import beam_search, greedy_search
from attention_core.reference.transformer_layers import (
    Container,
    TransformerDecoderLayer,
    TransformerEncoderLayer,
    without_padding,
)
from attention_core.specification import Layer

__all__ = ["TransformerState", "TransformerEncoder", "TransformerDecoder"]


class TransformerState(NamedTuple):
    """The state of a TransformerDecoder between two steps; `start` makes it, `step` takes and returns it.

    Shapes: keys (batch, num_layers, key_heads, max_steps, memory_features), values (batch, num_layers, key_heads,
    max_steps, head_size), position (batch,), int32.
    """

    keys: np.ndarray
    values: np.ndarray
    position: np.ndarray


class Stack(Container):
    """Base class of the encoder and the decoder."""

    classes = (
        *Container.classes,
        *(SinusoidalPositions, LearnedPositions, TransformerEncoderLayer, TransformerDecoderLayer),
    )


class TransformerEncoder(Stack):
    """Embed tokens and run layers of self-attention over them.

    outputs = x
    x = √features embedding[tokens] + positions, then each of the layers, then the last norm
    """

    specification: Layer = TRANSFORMER_ENCODER

    def __init__(
        self,
        vocab_size: int,
        features: int,
        num_heads: int,
        hidden_size: int,
        num_layers: int = 1,
        *,
        positions: str = "sinusoidal",
        num_positions: int | None = None,
        num_buckets: int | None = None,
        max_distance: int | None = None,
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
        last_norm: bool | None = None,
    ) -> None:
        super().__init__(locals())

    def __call__(
        self,
        tokens: np.ndarray,
        valid_lens: np.ndarray | None = None,
        mask: np.ndarray | None = None,
        *,
        need_weights: bool = True,
        bias: np.ndarray | None = None,
        embedding_dropout_mask: np.ndarray | None = None,
        self_dropout_mask: np.ndarray | None = None,
        hidden_dropout_mask: np.ndarray | None = None,
        dropout_mask: np.ndarray | None = None,
    ) -> tuple[np.ndarray, np.ndarray | Any]:
        """Encode a batch of token sequences.

        outputs = x
        x = √features embedding[tokens] + positions, then each of the layers, then the last norm

        Tokens of padded steps must be in the vocabulary, and have no effect.
        """
        masks = {
            "self_dropout_mask": self_dropout_mask,
            "hidden_dropout_mask": hidden_dropout_mask,
            "dropout_mask": dropout_mask,
        }
        self._check(
            "call",
            tokens=tokens,
            valid_lens=valid_lens,
            mask=mask,
            need_weights=need_weights,
            bias=bias,
            embedding_dropout_mask=embedding_dropout_mask,
            **masks,
        )
        known_tokens("TransformerEncoder", tokens, self.sizes["vocab_size"])
        x = embed_tokens(self, tokens, embedding_dropout_mask)
        bias, weights = position_bias(self, bias, x, x.shape[-2]), []
        for number in range(self.sizes["num_layers"]):
            factors = {
                name: None if array is None else of_layer(array, number, AXES[name]) for name, array in masks.items()
            }
            x, of_heads = self.inside(f"layers.{number}")(x, valid_lens, mask, bias=optional(bias), **factors)
            weights.append(of_heads)
        x = without_padding(self._normalize(x), valid_lens)
        return x, np.stack(weights, axis=-5) if need_weights else None

    def _normalize(self, x: np.ndarray) -> np.ndarray:
        """The last norm, with norm='pre'."""
        return self.inside("norm")(x) if "norm" in self.parts else x


class TransformerDecoder(Stack):
    """Embed tokens and run layers of causal self-attention and attention to an encoder's outputs over them.

    logits = dense.W x + dense.b, or embedding x if tied
    x = √features embedding[tokens] + positions, then each of the layers, then the last norm
    step t attends to the steps up to t, and to the encoder's outputs
    """

    specification: Layer = TRANSFORMER_DECODER

    def __init__(
        self,
        vocab_size: int,
        features: int,
        num_heads: int,
        hidden_size: int,
        num_layers: int = 1,
        *,
        memory_size: int | None = None,
        positions: str = "sinusoidal",
        num_positions: int | None = None,
        num_buckets: int | None = None,
        max_distance: int | None = None,
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
        last_norm: bool | None = None,
        tied: bool = False,
    ) -> None:
        super().__init__(locals())

    def prepare(
        self, encoder_outputs: np.ndarray, valid_lens: np.ndarray | None = None, mask: np.ndarray | None = None
    ) -> Memory:
        """Project the encoder's outputs for every layer and zero the hidden ones, once for all steps.

        memory = cross_attention.prepare(encoder_outputs, encoder_outputs) of each layer
        """
        self._check("prepare", encoder_outputs=encoder_outputs, valid_lens=valid_lens, mask=mask)
        encoded = promote(encoder_outputs)
        layers = [
            layer.inside("cross_attention").prepare(encoded, encoded, valid_lens, mask) for layer in self._layers()
        ]
        keys, values = (np.stack(arrays, axis=-4) for arrays in zip(*(layer[:2] for layer in layers), strict=True))
        return Memory(keys, values, attention_mask(encoded.shape[-2], valid_lens, mask))

    def start(self, memory: Memory, *, max_steps: int) -> TransformerState:
        """Return the decoder's state before its first step, with room for max_steps.

        state = (0, 0, 0)
        """
        self._check("start", memory=memory, max_steps=max_steps)
        *lead, _, size = memory.values.shape
        keys = np.zeros((*lead, max_steps, memory.keys.shape[-1]))
        return TransformerState(keys, np.zeros((*lead, max_steps, size)), np.zeros(lead[-3], np.int32))

    def step(
        self, tokens: np.ndarray, state: TransformerState, memory: Memory
    ) -> tuple[np.ndarray, TransformerState, np.ndarray]:
        """Decode one token.

        logits = dense.W x + dense.b, or embedding x if tied
        x = √features embedding[tokens] + positions, then each of the layers, then the last norm
        step t attends to the steps up to t, and to the encoder's outputs

        The keys and values of earlier steps are those of the state: nothing is computed twice. The mask of the memory
        has one row, that of this step. Sequences may be at different positions; a step behind the last place of the
        state is not kept.
        """
        self._check("step", tokens=tokens, state=state, memory=memory)
        embedded = embed("TransformerDecoder", tokens, self.parameters["embedding"])
        x = (self.sizes["features"] ** 0.5 * embedded)[..., None, :] + self._positions(state)[..., None, :]
        mask = None if memory.mask is None else memory.mask[:, None]
        bias, kept = position_bias(self, None, x, state.keys.shape[-2], state.position), []
        for number, layer in enumerate(self._layers()):
            past = Memory(state.keys[..., number, :, :, :], state.values[..., number, :, :, :], None)
            prepared = Memory(memory.keys[..., number, :, :, :], memory.values[..., number, :, :, :], mask)
            x, after, weights = layer._step(x, past, state.position, prepared, bias)
            kept.append(after)
        keys, values = (np.stack(arrays, axis=-4) for arrays in zip(*(after[:2] for after in kept), strict=True))
        state = TransformerState(keys, values, state.position + np.int32(1))
        return self._logits(x)[..., 0, :], state, weights[..., 0, :]

    def __call__(
        self,
        tokens: np.ndarray,
        encoder_outputs: np.ndarray,
        valid_lens: np.ndarray | None = None,
        mask: np.ndarray | None = None,
        *,
        per_head: bool = False,
        need_weights: bool = True,
        bias: np.ndarray | None = None,
        embedding_dropout_mask: np.ndarray | None = None,
        self_dropout_mask: np.ndarray | None = None,
        attention_dropout_mask: np.ndarray | None = None,
        hidden_dropout_mask: np.ndarray | None = None,
        dropout_mask: np.ndarray | None = None,
    ) -> tuple[np.ndarray, np.ndarray | Any]:
        """Decode given tokens: each step reads the given token, not the predicted one (teacher forcing).

        logits = dense.W x + dense.b, or embedding x if tied
        x = √features embedding[tokens] + positions, then each of the layers, then the last norm
        step t attends to the steps up to t, and to the encoder's outputs
        """
        masks = {
            "self_dropout_mask": self_dropout_mask,
            "attention_dropout_mask": attention_dropout_mask,
            "hidden_dropout_mask": hidden_dropout_mask,
            "dropout_mask": dropout_mask,
        }
        self._check(
            "call",
            tokens=tokens,
            encoder_outputs=encoder_outputs,
            valid_lens=valid_lens,
            mask=mask,
            per_head=per_head,
            need_weights=need_weights,
            bias=bias,
            embedding_dropout_mask=embedding_dropout_mask,
            **masks,
        )
        known_tokens("TransformerDecoder", tokens, self.sizes["vocab_size"])
        x, encoded = embed_tokens(self, tokens, embedding_dropout_mask), promote(encoder_outputs)
        bias, weights = position_bias(self, bias, x, x.shape[-2]), []
        for number, layer in enumerate(self._layers()):
            factors = {
                name: None if array is None else of_layer(array, number, AXES[name]) for name, array in masks.items()
            }
            x, of_heads, _ = layer(x, encoded, valid_lens, mask, bias=optional(bias), **factors)
            weights.append(of_heads)
        if not need_weights:
            return self._logits(x), None
        return self._logits(x), np.stack(weights, axis=-5) if per_head else weights[-1].mean(axis=-3)

    def greedy(
        self,
        encoder_outputs: np.ndarray,
        valid_lens: np.ndarray | None = None,
        mask: np.ndarray | None = None,
        *,
        bos: int,
        eos: int,
        max_steps: int,
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Decode by feeding back the most probable token until the end token.

        token[t] = argmax of logits[t], logits[t] = step(token[t - 1]), token[-1] = bos; stop at eos
        """
        options = {"bos": bos, "eos": eos, "max_steps": max_steps}
        self._check("greedy", encoder_outputs=encoder_outputs, valid_lens=valid_lens, mask=mask, **options)
        memory = self.prepare(encoder_outputs, valid_lens, mask)
        return greedy_search(self.step, self.start(memory, max_steps=max_steps), memory, **options)

    def beam(
        self,
        encoder_outputs: np.ndarray,
        valid_lens: np.ndarray | None = None,
        mask: np.ndarray | None = None,
        *,
        bos: int,
        eos: int,
        max_steps: int,
        width: int,
        num_best: int = 1,
        length_penalty: float = 0.0,
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Decode by keeping the best hypotheses at every step (beam search).

        score = sum of ln p(token[t]) / ((5 + n)/6)^length_penalty, n counting the tokens up to eos
        keep the width best continuations; a finished hypothesis continues unchanged
        """
        options: dict[str, Any] = {
            "bos": bos,
            "eos": eos,
            "max_steps": max_steps,
            "width": width,
            "num_best": num_best,
            "length_penalty": length_penalty,
        }
        self._check("beam", encoder_outputs=encoder_outputs, valid_lens=valid_lens, mask=mask, **options)
        memory = self.prepare(encoder_outputs, valid_lens, mask)
        state = self.start(memory, max_steps=max_steps)
        return beam_search(self.step, rows_of, state, memory, vocab_size=self.sizes["vocab_size"], **options)

    def _layers(self) -> list[Any]:
        return [self.inside(f"layers.{number}") for number in range(self.sizes["num_layers"])]

    def _positions(self, state: TransformerState) -> np.ndarray:
        """What is added to the embedded token of each sequence at its position."""
        room = max(state.keys.shape[-2], 1)
        if "positions" not in self.parts:
            return np.zeros(self.sizes["features"])
        table = self.inside("positions")(np.zeros((1, room, self.sizes["features"])))
        rows = table[..., np.minimum(state.position, room - 1), :]
        return rows[0] if len(rows) == 1 else rows

    def _logits(self, x: np.ndarray) -> np.ndarray:
        """The logits, from the output of the last layer."""
        x = self.inside("norm")(x) if "norm" in self.parts else x
        matrix = self.parameters["embedding" if self.sizes["tied"] else "dense.W"]
        return linear(x, matrix, self.parameters.get("dense.b"))


AXES = {"self_dropout_mask": 4, "attention_dropout_mask": 4, "hidden_dropout_mask": 3, "dropout_mask": 4}
"""The number of axes of a layer's dropout masks."""


def of_layer(array: np.ndarray, number: int, axes: int) -> np.ndarray:
    """The entry of an array for one layer; each layer's has that many axes."""
    return promote(array).take(number, axis=-axes - 1)


def embed_tokens(layer: Container, tokens: np.ndarray, dropout_mask: np.ndarray | None) -> np.ndarray:
    """√features embedding[tokens], with the positions added."""
    x = layer.sizes["features"] ** 0.5 * embed(layer.specification.name, tokens, layer.parameters["embedding"])
    x = layer.inside("positions")(x) if "positions" in layer.parts else x
    with np.errstate(invalid="ignore"):  # an infinite embedding times a 0 of the mask is NaN, which may be hidden
        return x if dropout_mask is None else x * promote(dropout_mask)


def position_bias(
    stack: Stack, bias: np.ndarray | None, x: np.ndarray, num_keys: int, offset: np.ndarray | None = None
) -> np.ndarray | None:
    """The bias of the scores of self-attention, with that of positions='relative' and 'alibi'."""
    sizes, num_queries = stack.sizes, x.shape[-2]
    if sizes["positions"] == "relative":
        options = {name: sizes[name] for name in ("bidirectional", "max_distance")}
        added = relative_bias(num_queries, num_keys, stack.parameters["bias_table"], **options, offset=offset)
    elif sizes["positions"] == "alibi":
        added = alibi_bias(sizes["num_heads"], num_queries, num_keys, dtype="float64", offset=offset)
        added = added.reshape((1,) * (x.ndim - 3) + added.shape)  # the leading axes of the parameters
    else:
        return bias
    return added if bias is None else added + align(promote(bias), 2, x.ndim + 1)


def rows_of(state: TransformerState, rows: np.ndarray) -> TransformerState:
    """The state of these rows of the batch, in this order."""
    return TransformerState(*(array[rows] for array in state))
