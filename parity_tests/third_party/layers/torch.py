"""PyTorch's own layers, and third-party layers in PyTorch, as targets: parameters are those of a state_dict."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any, TypeAlias

import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

import backends.torch
from backends.torch import runtime
from parity_tests.third_party.layers.shared import RECURRENT, backend_layers, matching, part_of
from parity_tests.third_party.signatures import Attention, Outputs, Recurrent, Stacks, Transformer, takes
from parity_tests.workers.target import NotImplementedHere

Parameters: TypeAlias = dict[str, torch.Tensor]
Tensor: TypeAlias = torch.Tensor


def load_state(layer: nn.Module, parameters: Mapping[str, Tensor]) -> nn.Module:
    """The layer with that state_dict, whatever prefix its names have, in its dtype and place, in evaluation mode."""
    layer = layer.to(next(iter(parameters.values())))
    known = layer.state_dict()
    layer.load_state_dict({matching(name, known): array for name, array in parameters.items()})
    return layer.eval()


attention_parity = backend_layers(
    backends.torch, runtime, load_state, lambda tensor: str(tensor.dtype).removeprefix("torch.")
)


def run(made: type[nn.GRU] | type[nn.LSTM], call: Recurrent) -> Outputs:
    """Outputs and state of a recurrent layer; the lengths go in as a packed sequence."""
    batch, steps, features = call.inputs.shape
    hidden, layers, directions = call.hidden_size, call.num_layers, call.directions
    bias = any(name.endswith("bias_ih_l0") for name in call.parameters)
    layer = made(features, hidden, layers, bias, batch_first=True, bidirectional=call.bidirectional)
    first: Any = None
    if call.state is not None:
        # Ours: (layers, batch, parts · directions · hidden); theirs: (layers · directions, batch, hidden) of each part.
        split = call.state.reshape(layers, batch, -1, directions, hidden).permute(2, 0, 3, 1, 4)
        first = tuple(split.reshape(-1, layers * directions, batch, hidden).contiguous())
        first = first if made is nn.LSTM else first[0]
    inputs = call.inputs
    if call.valid_lens is not None:
        inputs = pack_padded_sequence(inputs, call.valid_lens, batch_first=True, enforce_sorted=False)
    outputs, last = load_state(layer, call.parameters)(inputs, first)
    if call.valid_lens is not None:
        outputs, _ = pad_packed_sequence(outputs, batch_first=True, total_length=steps)
    parts = torch.stack(last if made is nn.LSTM else (last,))
    parts = parts.reshape(len(parts), layers, directions, batch, hidden).permute(1, 3, 0, 2, 4)
    return outputs, parts.reshape(layers, batch, -1)


def recurrent(made: type[nn.GRU] | type[nn.LSTM]) -> Callable[..., Outputs]:
    """torch.nn.GRU or LSTM."""
    return takes(Recurrent, "inputs", *RECURRENT)(lambda call: run(made, call))


GRU, LSTM = recurrent(nn.GRU), recurrent(nn.LSTM)


def hidden_keys(keys: Tensor, valid_lens: Tensor) -> Tensor:
    """True where a key is hidden: PyTorch's key_padding_mask, (batch, keys)."""
    return torch.arange(keys.shape[1], device=keys.device) >= valid_lens[:, None]


@takes(Attention, "valid_lens", "num_heads", "bias", "per_head")
def MultiHeadAttention(call: Attention) -> Outputs:
    """torch.nn.MultiheadAttention, whose key_padding_mask is True where a key is hidden."""
    arrays = (call.queries, call.keys, call.values)
    query_size, key_size, value_size = (array.shape[-1] for array in arrays)
    layer = nn.MultiheadAttention(
        query_size, call.num_heads, 0.0, call.bias, kdim=key_size, vdim=value_size, batch_first=True
    )
    hidden = None if call.valid_lens is None else hidden_keys(call.keys, call.valid_lens)
    keywords = {"key_padding_mask": hidden, "need_weights": True, "average_attn_weights": not call.per_head}
    return load_state(layer, call.parameters)(*arrays, **keywords)


# ------------------------------------------------------------------------------------------------ Transformer

SUBLAYERS = ("valid_lens", "num_heads", "hidden_size", "norm", "activation", "bias", "epsilon")
ACTIVATIONS = {
    "relu": nn.functional.relu,
    "gelu": nn.functional.gelu,
    "gelu_tanh": partial(nn.functional.gelu, approximate="tanh"),
    "silu": nn.functional.silu,
}


def make_layer(kind: Any, features: int, call: Transformer | Stacks, **sizes: int) -> Any:
    """A Transformer of PyTorch, or a layer of one, with the options of the call."""
    return kind(
        features,
        call.num_heads,
        dim_feedforward=call.hidden_size,
        activation=ACTIVATIONS[call.activation],
        layer_norm_eps=call.epsilon,
        batch_first=True,
        norm_first=call.norm == "pre",
        bias=call.bias,
        **sizes,
    )


def transformer(kind: type[nn.TransformerEncoderLayer] | type[nn.TransformerDecoderLayer], call: Transformer) -> Any:
    """A layer with the parameters of the call."""
    return load_state(make_layer(kind, call.inputs.shape[-1], call), call.parameters)


def weights_of(attention: nn.MultiheadAttention) -> list[Tensor]:
    """The weights of every head, in the next call: the layer around this one does not ask for them."""
    changed, weights = {"need_weights": True, "average_attn_weights": False}, []
    attention.register_forward_pre_hook(lambda _, arrays, options: (arrays, {**options, **changed}), with_kwargs=True)
    attention.register_forward_hook(lambda _, arrays, outputs: weights.append(outputs[1]))
    return weights


def later_steps(inputs: Tensor) -> Tensor:
    """True where a step comes later than the one that attends: PyTorch's mask, (steps, steps)."""
    return inputs.new_ones(inputs.shape[1], inputs.shape[1], dtype=torch.bool).triu(1)


def LayerNorm(parameters: Parameters, inputs: Tensor, *, bias: bool = True, epsilon: float) -> Tensor:
    """torch.nn.LayerNorm."""
    return load_state(nn.LayerNorm(inputs.shape[-1], epsilon, bias=bias), parameters)(inputs)


def RMSNorm(parameters: Parameters, inputs: Tensor, *, epsilon: float) -> Tensor:
    """torch.nn.RMSNorm."""
    return load_state(nn.RMSNorm(inputs.shape[-1], epsilon), parameters)(inputs)


@takes(Transformer, *SUBLAYERS, "causal")
def TransformerEncoderLayer(call: Transformer) -> Outputs:
    """torch.nn.TransformerEncoderLayer; src_key_padding_mask is True where a step is hidden.

    It computes the padded steps, too: here they are 0 before and after, as in the specification.
    """
    layer = transformer(nn.TransformerEncoderLayer, call)
    weights, mask = weights_of(layer.self_attn), later_steps(call.inputs) if call.causal else None
    if call.valid_lens is None:
        return layer(call.inputs, mask), *weights
    hidden = hidden_keys(call.inputs, call.valid_lens)
    outputs = layer(call.inputs.masked_fill(hidden[..., None], 0.0), mask, hidden)
    return outputs.masked_fill(hidden[..., None], 0.0), *weights


@takes(Transformer, "encoder_outputs", *SUBLAYERS)
def TransformerDecoderLayer(call: Transformer) -> Outputs:
    """torch.nn.TransformerDecoderLayer; memory_key_padding_mask is True where a key is hidden."""
    layer, memory = transformer(nn.TransformerDecoderLayer, call), call.encoder_outputs
    self_weights, weights = weights_of(layer.self_attn), weights_of(layer.multihead_attn)
    hidden = None if call.valid_lens is None else hidden_keys(memory, call.valid_lens)
    outputs = layer(call.inputs, memory, later_steps(call.inputs), memory_key_padding_mask=hidden)
    return outputs, *weights, *self_weights


# ------------------------------------------------------------------------------------------------ stacks

STACKED = ("valid_lens", "features", "num_layers", "positions", "last_norm", *SUBLAYERS[1:])


def last_norm(call: Stacks) -> nn.LayerNorm | None:
    """The norm at the end of a stack, which PyTorch takes as an argument."""
    given = call.norm == "pre" if call.last_norm is None else call.last_norm
    return nn.LayerNorm(call.features, call.epsilon, bias=call.bias) if given else None


def between(stack: nn.Module, parameters: Parameters, start: str = "") -> None:
    """Give a stack what a model has around it, under the names of our tables: embeddings, and a projection."""
    for name in ("embedding", "positions"):
        if f"{start}{name}.weight" in parameters:
            setattr(stack, name, nn.Embedding(*parameters[f"{start}{name}.weight"].shape))
    if f"{start}dense.weight" in parameters:
        stack.dense = nn.Linear(*reversed(parameters[f"{start}dense.weight"].shape))


def embed(stack: Any, tokens: Tensor, call: Stacks) -> Tensor:
    """The input of a stack: √features times the embedded tokens, and their positions."""
    vectors = call.features**0.5 * stack.embedding(tokens.long())
    steps = torch.arange(tokens.shape[1])
    if call.positions == "learned":
        return vectors + stack.positions(steps)
    if call.positions == "none":
        return vectors
    if call.positions != "sinusoidal":
        raise NotImplementedHere(f"nothing here adds positions={call.positions!r}")
    rates = 10000.0 ** (-torch.arange(0, call.features, 2, dtype=torch.float64) / call.features)
    angles = steps[:, None] * rates
    return vectors + torch.stack((angles.sin(), angles.cos()), -1).flatten(1).to(vectors)


def encode(stack: nn.TransformerEncoder, tokens: Tensor, call: Stacks) -> tuple[Tensor, Tensor]:
    """The outputs of an encoder, and the weights of all layers and heads; padded steps are 0 around every layer."""
    weights = [weights_of(layer.self_attn) for layer in stack.layers]
    inputs = embed(stack, tokens, call)
    mask, hidden = later_steps(inputs) if call.causal else None, None
    if call.valid_lens is not None:
        hidden = hidden_keys(inputs, call.valid_lens)
        inputs = inputs.masked_fill(hidden[..., None], 0.0)
        for module in (*stack.layers, stack):
            module.register_forward_hook(lambda _, inputs, outputs: outputs.masked_fill(hidden[..., None], 0.0))
    return stack(inputs, mask, hidden), torch.stack([of_heads for (of_heads,) in weights])


def decode(stack: nn.TransformerDecoder, tokens: Tensor, memory: Tensor, call: Stacks) -> tuple[Tensor, Tensor]:
    """The logits of a decoder, and the weights of all layers and heads over the memory."""
    weights = [weights_of(layer.multihead_attn) for layer in stack.layers]
    inputs = embed(stack, tokens, call)
    hidden = None if call.valid_lens is None else hidden_keys(memory, call.valid_lens)
    outputs = stack(inputs, memory, later_steps(inputs), memory_key_padding_mask=hidden)
    return stack.dense(outputs), torch.stack([of_heads for (of_heads,) in weights])


@takes(Stacks, "tokens", *STACKED, "causal")
def TransformerEncoder(call: Stacks) -> Outputs:
    """torch.nn.TransformerEncoder behind an nn.Embedding."""
    layer = make_layer(nn.TransformerEncoderLayer, call.features, call)
    stack = nn.TransformerEncoder(layer, call.num_layers, last_norm(call), enable_nested_tensor=False)
    between(stack, call.parameters)
    return encode(load_state(stack, call.parameters), call.tokens, call)


@takes(Stacks, "tokens", "encoder_outputs", *STACKED, "per_head")
def TransformerDecoder(call: Stacks) -> Outputs:
    """torch.nn.TransformerDecoder between an nn.Embedding and an nn.Linear."""
    stack = nn.TransformerDecoder(
        make_layer(nn.TransformerDecoderLayer, call.features, call), call.num_layers, last_norm(call)
    )
    between(stack, call.parameters)
    logits, weights = decode(load_state(stack, call.parameters), call.tokens, call.encoder_outputs, call)
    return logits, weights if call.per_head else weights[-1].mean(1)


@takes(Stacks, "source", "inputs", *STACKED)
def TransformerTranslator(call: Stacks) -> Outputs:
    """torch.nn.Transformer between an nn.Embedding of each language and an nn.Linear."""
    sizes = {"num_encoder_layers": call.num_layers, "num_decoder_layers": call.num_layers}
    model = make_layer(nn.Transformer, call.features, call, **sizes)
    for name in ("encoder", "decoder"):
        between(getattr(model, name), call.parameters, f"{name}.")
    model = load_state(model, call.parameters)
    memory, _ = encode(model.encoder, call.source, call)
    logits, weights = decode(model.decoder, call.inputs, memory, call)
    return logits, weights[-1].mean(1)


# ------------------------------------------------------------------------------------------------ from their formulas


def pool(scores: Tensor, call: Attention) -> Outputs:
    """Context and weights, with -inf where a key is hidden."""
    if call.valid_lens is not None:
        scores = scores.masked_fill(hidden_keys(call.values, call.valid_lens)[:, None], float("-inf"))
    weights = scores.softmax(-1)
    return weights @ call.values, weights


def linear(parameters: Parameters, name: str, inputs: Tensor) -> Tensor:
    """An nn.Linear of that name, with a bias if there is one."""
    arrays = part_of(parameters, name)
    return nn.functional.linear(inputs, arrays["weight"], arrays.get("bias"))


def encoder(made: type[nn.GRU] | type[nn.LSTM]) -> Callable[..., Outputs]:
    """The recurrent encoder of Dive into Deep Learning: an embedding, then PyTorch's layer."""

    @takes(Recurrent, "tokens", *RECURRENT)
    def call(call: Recurrent) -> Outputs:
        inputs = part_of(call.parameters, "embedding")["weight"][call.tokens]
        return run(made, replace(call, inputs=inputs, parameters=part_of(call.parameters, "rnn")))

    return call


GRUEncoder, LSTMEncoder = encoder(nn.GRU), encoder(nn.LSTM)


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
    """The attention decoder of Dive into Deep Learning, from its formulas; hidden scores are -1e6 there.

    The query is the top layer's last output; the recurrent layer reads [context; embedded token].
    """
    embedding, arrays = part_of(parameters, "embedding")["weight"], part_of(parameters, "rnn")
    made = nn.LSTM if cell == "lstm" else nn.GRU
    rnn = load_state(made(arrays["weight_ih_l0"].shape[1], hidden_size, num_layers, batch_first=True), arrays)
    parts = tuple(part.contiguous() for part in state.split(hidden_size, -1))
    keys = linear(parameters, "attention.W_k", encoder_outputs)
    logits, weights = [], []
    for token in tokens.unbind(1):
        query = linear(parameters, "attention.W_q", parts[0][-1])[:, None]
        scores = linear(parameters, "attention.w_v", torch.tanh(query + keys)).swapaxes(1, 2)
        if valid_lens is not None:
            scores = scores.masked_fill(hidden_keys(keys, valid_lens)[:, None], -1e6)
        weight = scores.softmax(-1)
        context = weight @ encoder_outputs
        inputs = torch.cat([context, embedding[token][:, None]], -1)
        outputs, last = rnn(inputs, parts if cell == "lstm" else parts[0])
        parts = last if cell == "lstm" else (last,)
        logits.append(linear(parameters, "dense", outputs))
        weights.append(weight)
    return torch.cat(logits, 1), torch.cat(parts, -1), torch.cat(weights, 1)


@takes(Attention, "valid_lens")
def GeneralAttention(call: Attention) -> Outputs:
    """OpenNMT-py's GlobalAttention up to its context, attn_type="general": scores = linear_in(queries) · keys."""
    return pool(linear(call.parameters, "linear_in", call.queries) @ call.keys.mT, call)


@takes(Attention, "valid_lens")
def AdditiveAttention(call: Attention) -> Outputs:
    """The same with attn_type="mlp": scores = v tanh(linear_query(queries) + linear_context(keys))."""
    hidden = linear(call.parameters, "linear_query", call.queries)[:, :, None]
    hidden = hidden + linear(call.parameters, "linear_context", call.keys)[:, None]
    return pool(linear(call.parameters, "v", torch.tanh(hidden))[..., 0], call)


@takes(Attention, "valid_lens", "scale")
def DotProductAttention(call: Attention) -> Outputs:
    """The same with attn_type="dot": scores = queries · keys, without a scale."""
    return pool(call.queries @ call.keys.mT, call)


@takes(Attention, "valid_lens")
def joey_bahdanau(call: Attention) -> Outputs:
    """JoeyNMT's BahdanauAttention: scores = energy_layer tanh(query_layer(queries) + key_layer(keys))."""
    hidden = linear(call.parameters, "query_layer", call.queries)[:, :, None]
    hidden = hidden + linear(call.parameters, "key_layer", call.keys)[:, None]
    return pool(linear(call.parameters, "energy_layer", torch.tanh(hidden))[..., 0], call)


@takes(Attention, "valid_lens")
def joey_luong(call: Attention) -> Outputs:
    """JoeyNMT's LuongAttention: scores = queries · key_layer(keys)."""
    return pool(call.queries @ linear(call.parameters, "key_layer", call.keys).mT, call)


joeynmt = SimpleNamespace(AdditiveAttention=joey_bahdanau, GeneralAttention=joey_luong)
