"""PyTorch's own layers, and what others wrote in PyTorch, as targets: parameters are those of a state_dict."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

import backends.torch
from backends.torch import runtime
from parity_tests.third_party.layers.own import longest, own_layers

Parameters: TypeAlias = dict[str, torch.Tensor]
Tensor: TypeAlias = torch.Tensor


def loaded(layer: nn.Module, parameters: Mapping[str, Tensor]) -> nn.Module:
    """The layer with that state_dict, whatever stands before its names, in its dtype, to evaluate."""
    layer = layer.to(next(iter(parameters.values())).dtype)
    known = layer.state_dict()
    layer.load_state_dict({longest(name, known): array for name, array in parameters.items()})
    return layer.eval()


Own = own_layers(backends.torch, runtime, loaded, lambda tensor: str(tensor.dtype).removeprefix("torch."))


def recurrent(
    made: type[nn.GRU] | type[nn.LSTM],
    parameters: Parameters,
    inputs: Tensor,
    valid_lens: Tensor | None,
    state: Tensor | None,
    hidden: int,
    layers: int,
    bidirectional: bool,
) -> tuple[Tensor, Tensor]:
    """Outputs and state of a recurrent layer; the lengths go in as a packed sequence."""
    batch, steps, features = inputs.shape
    directions = 2 if bidirectional else 1
    bias = any(name.endswith("bias_ih_l0") for name in parameters)
    layer = made(features, hidden, layers, bias, batch_first=True, bidirectional=bidirectional)
    first: Any = None
    if state is not None:
        # Ours: (layers, batch, parts · directions · hidden); theirs: (layers · directions, batch, hidden) of each part.
        split = state.reshape(layers, batch, -1, directions, hidden).permute(2, 0, 3, 1, 4)
        first = tuple(split.reshape(-1, layers * directions, batch, hidden).contiguous())
        first = first if made is nn.LSTM else first[0]
    given: Any = inputs
    if valid_lens is not None:
        given = pack_padded_sequence(inputs, valid_lens, batch_first=True, enforce_sorted=False)
    outputs, last = loaded(layer, parameters)(given, first)
    if valid_lens is not None:
        outputs, _ = pad_packed_sequence(outputs, batch_first=True, total_length=steps)
    parts = torch.stack(last if made is nn.LSTM else (last,))
    parts = parts.reshape(len(parts), layers, directions, batch, hidden).permute(1, 3, 0, 2, 4)
    return outputs, parts.reshape(layers, batch, -1)


class GRU:
    """torch.nn.GRU."""

    @staticmethod
    def GRU(
        parameters: Parameters,
        inputs: Tensor,
        valid_lens: Tensor | None = None,
        state: Tensor | None = None,
        *,
        hidden_size: int,
        num_layers: int = 1,
        bidirectional: bool = False,
    ) -> tuple[Tensor, Tensor]:
        """The lengths go in as a packed sequence."""
        return recurrent(nn.GRU, parameters, inputs, valid_lens, state, hidden_size, num_layers, bidirectional)


class LSTM:
    """torch.nn.LSTM."""

    @staticmethod
    def LSTM(
        parameters: Parameters,
        inputs: Tensor,
        valid_lens: Tensor | None = None,
        state: Tensor | None = None,
        *,
        hidden_size: int,
        num_layers: int = 1,
        bidirectional: bool = False,
    ) -> tuple[Tensor, Tensor]:
        """The lengths go in as a packed sequence."""
        return recurrent(nn.LSTM, parameters, inputs, valid_lens, state, hidden_size, num_layers, bidirectional)


def hidden_keys(keys: Tensor, valid_lens: Tensor) -> Tensor:
    """True where a key is hidden: PyTorch's key_padding_mask, (batch, keys)."""
    return torch.arange(keys.shape[1]) >= valid_lens[:, None]


class MultiheadAttention:
    """torch.nn.MultiheadAttention."""

    @staticmethod
    def MultiHeadAttention(
        parameters: Parameters,
        queries: Tensor,
        keys: Tensor,
        values: Tensor,
        valid_lens: Tensor | None = None,
        *,
        num_heads: int,
        bias: bool = True,
        per_head: bool = False,
    ) -> tuple[Tensor, Tensor]:
        """key_padding_mask is True where a key is hidden."""
        sizes = queries.shape[-1], keys.shape[-1], values.shape[-1]
        layer = nn.MultiheadAttention(sizes[0], num_heads, 0.0, bias, kdim=sizes[1], vdim=sizes[2], batch_first=True)
        hidden = None if valid_lens is None else hidden_keys(keys, valid_lens)
        return loaded(layer, parameters)(
            queries, keys, values, key_padding_mask=hidden, need_weights=True, average_attn_weights=not per_head
        )


# ------------------------------------------------------------------------------------------------ from their formulas


def pooled(scores: Tensor, values: Tensor, valid_lens: Tensor | None, hidden: float) -> tuple[Tensor, Tensor]:
    """Context and weights, with a fill where a key is hidden."""
    if valid_lens is not None:
        scores = scores.masked_fill(hidden_keys(values, valid_lens)[:, None], hidden)
    weights = scores.softmax(-1)
    return weights @ values, weights


def part_of(parameters: Parameters, name: str) -> Parameters:
    """The arrays of a part, by their names in it."""
    return {
        path.rpartition(f"{name}.")[2]: array for path, array in parameters.items() if f".{path}".count(f".{name}.")
    }


def linear(parameters: Parameters, name: str, inputs: Tensor) -> Tensor:
    """An nn.Linear of that name, with a bias if there is one."""
    found = part_of(parameters, name)
    return nn.functional.linear(inputs, found["weight"], found.get("bias"))


class TextbookEncoder:
    """The recurrent encoder of Dive into Deep Learning: an embedding, then PyTorch's own layer."""

    @staticmethod
    def GRUEncoder(
        parameters: Parameters,
        tokens: Tensor,
        valid_lens: Tensor | None = None,
        state: Tensor | None = None,
        *,
        hidden_size: int,
        num_layers: int = 1,
        bidirectional: bool = False,
    ) -> tuple[Tensor, Tensor]:
        """The lengths go in as a packed sequence."""
        inputs, own = part_of(parameters, "embedding")["weight"][tokens], part_of(parameters, "rnn")
        return recurrent(nn.GRU, own, inputs, valid_lens, state, hidden_size, num_layers, bidirectional)

    @staticmethod
    def LSTMEncoder(
        parameters: Parameters,
        tokens: Tensor,
        valid_lens: Tensor | None = None,
        state: Tensor | None = None,
        *,
        hidden_size: int,
        num_layers: int = 1,
        bidirectional: bool = False,
    ) -> tuple[Tensor, Tensor]:
        """The lengths go in as a packed sequence."""
        inputs, own = part_of(parameters, "embedding")["weight"][tokens], part_of(parameters, "rnn")
        return recurrent(nn.LSTM, own, inputs, valid_lens, state, hidden_size, num_layers, bidirectional)


class TextbookBahdanauDecoder:
    """The attention decoder of Dive into Deep Learning, from its formulas; hidden scores are -1e6 there."""

    @staticmethod
    def BahdanauDecoder(
        parameters: Parameters,
        tokens: Tensor,
        encoder_outputs: Tensor,
        state: Tensor,
        valid_lens: Tensor | None = None,
        *,
        hidden_size: int,
        num_layers: int = 1,
        cell: str = "gru",
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The query is the top layer's last output; the recurrent layer reads [context; embedded token]."""
        embedding, own = part_of(parameters, "embedding")["weight"], part_of(parameters, "rnn")
        made = nn.LSTM if cell == "lstm" else nn.GRU
        rnn = loaded(made(own["weight_ih_l0"].shape[1], hidden_size, num_layers, batch_first=True), own)
        parts = tuple(part.contiguous() for part in state.split(hidden_size, -1))
        keys = linear(parameters, "attention.W_k", encoder_outputs)
        logits, weights = [], []
        for token in tokens.unbind(1):
            query = linear(parameters, "attention.W_q", parts[0][-1])[:, None]
            scores = linear(parameters, "attention.w_v", torch.tanh(query + keys)).swapaxes(1, 2)
            context, weight = pooled(scores, encoder_outputs, valid_lens, -1e6)
            inputs = torch.cat([context, embedding[token][:, None]], -1)
            outputs, last = rnn(inputs, parts if cell == "lstm" else parts[0])
            parts = last if cell == "lstm" else (last,)
            logits.append(linear(parameters, "dense", outputs))
            weights.append(weight)
        return torch.cat(logits, 1), torch.cat(parts, -1), torch.cat(weights, 1)


class OpenNMTGlobalAttention:
    """OpenNMT-py's GlobalAttention up to its context, from its formulas: linear_out is what follows it."""

    @staticmethod
    def GeneralAttention(
        parameters: Parameters, queries: Tensor, keys: Tensor, values: Tensor, valid_lens: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """attn_type="general": scores = linear_in(queries) · keys."""
        scores = linear(parameters, "linear_in", queries) @ keys.mT
        return pooled(scores, values, valid_lens, float("-inf"))

    @staticmethod
    def AdditiveAttention(
        parameters: Parameters, queries: Tensor, keys: Tensor, values: Tensor, valid_lens: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """attn_type="mlp": scores = v tanh(linear_query(queries) + linear_context(keys))."""
        hidden = linear(parameters, "linear_query", queries)[:, :, None]
        hidden = hidden + linear(parameters, "linear_context", keys)[:, None]
        scores = linear(parameters, "v", torch.tanh(hidden))[..., 0]
        return pooled(scores, values, valid_lens, float("-inf"))

    @staticmethod
    def DotProductAttention(
        parameters: Parameters,
        queries: Tensor,
        keys: Tensor,
        values: Tensor,
        valid_lens: Tensor | None = None,
        *,
        scale: float | None = None,
    ) -> tuple[Tensor, Tensor]:
        """attn_type="dot": scores = queries · keys, without a scale."""
        return pooled(queries @ keys.mT, values, valid_lens, float("-inf"))
