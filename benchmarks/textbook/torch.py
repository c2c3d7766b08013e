"""What ours is compared with in PyTorch: as tutorials write it, and by PyTorch's own functions and layers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from attention_core.operators.training import Batch
from backends import weights
from backends.torch.arrays import from_numpy
from benchmarks.problem import BOS, EOS, MAX_NORM, Problem


def masked_softmax(scores: Tensor, valid_lens: Tensor) -> Tensor:
    """Softmax over the keys, with a large negative number where there is padding."""
    padding = torch.arange(scores.shape[-1], device=scores.device) >= valid_lens[:, None]
    for _ in range(scores.dim() - 2):
        padding = padding.unsqueeze(1)
    return torch.softmax(scores.masked_fill(padding, -1e6), dim=-1)


class AdditiveAttention(nn.Module):
    """softmax(w_v tanh(W_q q + W_k k)) v, with one tensor of (batch, queries, keys, hidden)."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.W_q = nn.Linear(size, size, bias=False)
        self.W_k = nn.Linear(size, size, bias=False)
        self.w_v = nn.Linear(size, 1, bias=False)

    def forward(self, queries: Tensor, keys: Tensor, values: Tensor, valid_lens: Tensor) -> tuple[Tensor, Tensor]:
        """(context, weights)."""
        features = torch.tanh(self.W_q(queries).unsqueeze(2) + self.W_k(keys).unsqueeze(1))
        scores = self.w_v(features).squeeze(-1)
        weights = masked_softmax(scores, valid_lens)
        return torch.bmm(weights, values), weights


class BahdanauDecoder(nn.Module):
    """A loop over the steps; each projects the keys, attends, and runs the recurrent layers for one step."""

    def __init__(self, vocabulary: int, size: int, layers: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, size)
        self.attention = AdditiveAttention(size)
        self.rnn = nn.GRU(2 * size, size, layers)
        self.dense = nn.Linear(size, vocabulary)

    def forward(
        self, tokens: Tensor, encoder_outputs: Tensor, state: Tensor, valid_lens: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """(logits, state, weights)."""
        embedded = self.embedding(tokens).transpose(0, 1)
        outputs, attended = [], []
        for x in embedded:
            query = state[-1].unsqueeze(1)
            context, weights = self.attention(query, encoder_outputs, encoder_outputs, valid_lens)
            step = torch.cat([context, x.unsqueeze(1)], dim=-1)
            output, state = self.rnn(step.transpose(0, 1), state)
            outputs.append(output)
            attended.append(weights)
        logits = self.dense(torch.cat(outputs, dim=0))
        return logits.transpose(0, 1), state, torch.cat(attended, dim=1)


class LuongDecoder(BahdanauDecoder):
    """A loop over the steps; each runs the recurrent layers, projects the keys, and attends with the new output."""

    def __init__(self, vocabulary: int, size: int, layers: int) -> None:
        super().__init__(vocabulary, size, layers)
        self.W_c = nn.Linear(2 * size, size, bias=False)

    def forward(
        self, tokens: Tensor, encoder_outputs: Tensor, state: Tensor, valid_lens: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """(logits, state, weights)."""
        attentional, outputs, attended = torch.zeros_like(state[-1]), [], []
        for x in self.embedding(tokens).transpose(0, 1):
            output, state = self.rnn(torch.cat([x, attentional], dim=-1).unsqueeze(0), state)
            query = output.transpose(0, 1)
            context, weights = self.attention(query, encoder_outputs, encoder_outputs, valid_lens)
            attentional = torch.tanh(self.W_c(torch.cat([context, query], dim=-1))).squeeze(1)
            outputs.append(attentional)
            attended.append(weights)
        return self.dense(torch.stack(outputs, dim=1)), state, torch.cat(attended, dim=1)


Step = Callable[[Tensor, Any], tuple[Tensor, Any]]
"""The logits behind the tokens of each row so far, and the state after them, whose rows are its second axis."""


class Translator(nn.Module):
    """An encoder, which leaves padding out, of one direction or two, and a decoder of those above."""

    def __init__(
        self, source_vocabulary: int, vocabulary: int, size: int, layers: int, decoder: str, bidirectional: bool
    ) -> None:
        super().__init__()
        self.encoder = nn.ModuleDict({"embedding": nn.Embedding(source_vocabulary, size)})
        directions = 2 if bidirectional else 1
        self.encoder["rnn"] = nn.GRU(size, size // directions, layers, batch_first=True, bidirectional=bidirectional)
        made = LuongDecoder if decoder == "luong" else BahdanauDecoder
        self.decoder = made(vocabulary, size, layers)

    def forward(self, source: Tensor, source_lens: Tensor, inputs: Tensor) -> Tensor:
        """The logits."""
        logits, _, _ = self.decoder(inputs, *self.encode(source, source_lens), source_lens)
        return logits

    def encode(self, source: Tensor, source_lens: Tensor) -> tuple[Tensor, Tensor]:
        """The encoder's outputs, and its state."""
        embedded = self.encoder["embedding"](source)
        packed = pack_padded_sequence(embedded, source_lens.cpu(), batch_first=True, enforce_sorted=False)
        outputs, state = self.encoder["rnn"](packed)
        outputs, _ = pad_packed_sequence(outputs, batch_first=True, total_length=source.shape[1])
        if self.encoder["rnn"].bidirectional:
            state = torch.cat([state[0::2], state[1::2]], dim=-1)
        return outputs, state

    def stepping(self, source: Tensor, source_lens: Tensor, width: int) -> tuple[Step, Tensor]:
        """A step of Bahdanau's decoder, and its first state."""
        outputs, state = self.encode(source, source_lens)
        outputs, lens = (array.repeat_interleave(width, dim=0) for array in (outputs, source_lens))

        def step(tokens: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
            logits, state, _ = self.decoder(tokens[:, -1:], outputs, state, lens)
            return logits[:, 0], state

        return step, state.repeat_interleave(width, dim=1)


class Transformer(nn.Module):
    """Embeddings times √size, with sines and cosines added, PyTorch's own layers, and logits."""

    def __init__(
        self, source_vocabulary: int, vocabulary: int, size: int, heads: int, hidden_size: int, layers: int
    ) -> None:
        super().__init__()
        self.source, self.target = nn.Embedding(source_vocabulary, size), nn.Embedding(vocabulary, size)
        options = {"dim_feedforward": hidden_size, "dropout": 0.0, "batch_first": True}
        self.encoder = nn.TransformerEncoder(
            nn.TransformerEncoderLayer(size, heads, **options), layers, enable_nested_tensor=False
        )
        self.decoder = nn.TransformerDecoder(nn.TransformerDecoderLayer(size, heads, **options), layers)
        self.dense = nn.Linear(size, vocabulary)

    @staticmethod
    def embed(embedding: nn.Embedding, tokens: Tensor) -> Tensor:
        """The tokens as vectors, at their positions."""
        size = embedding.embedding_dim
        steps = torch.arange(tokens.shape[1], device=tokens.device)
        angles = steps[:, None] / 10000 ** (torch.arange(0, size, 2, device=tokens.device) / size)
        positions = torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(1)
        return embedding(tokens) * size**0.5 + positions

    def encode(self, source: Tensor, source_lens: Tensor) -> tuple[Tensor, Tensor]:
        """The encoder's outputs, and where they are padding."""
        padding = torch.arange(source.shape[1], device=source.device) >= source_lens[:, None]
        return self.encoder(self.embed(self.source, source), src_key_padding_mask=padding), padding

    def decode(self, inputs: Tensor, memory: Tensor, padding: Tensor) -> Tensor:
        """The features of each step."""
        future = nn.Transformer.generate_square_subsequent_mask(inputs.shape[1], device=inputs.device).isinf()
        masks = {"tgt_mask": future, "tgt_is_causal": True, "memory_key_padding_mask": padding}
        return self.decoder(self.embed(self.target, inputs), memory, **masks)

    def forward(self, source: Tensor, source_lens: Tensor, inputs: Tensor) -> Tensor:
        """The logits."""
        return self.dense(self.decode(inputs, *self.encode(source, source_lens)))

    def stepping(self, source: Tensor, source_lens: Tensor, width: int) -> tuple[Step, None]:
        """A step that decodes all tokens so far, since PyTorch's layers have no cache, and no state."""
        encoded = [array.repeat_interleave(width, dim=0) for array in self.encode(source, source_lens)]
        return lambda tokens, _: (self.dense(self.decode(tokens, *encoded)[:, -1]), None), None


def transformer(problem: Problem) -> Transformer:
    """The Transformer of PyTorch's layers with the parameters of the problem."""
    sizes, options, parameters = problem.sizes, problem.options, problem.parameters
    vocabularies = sizes["source_vocabulary"], sizes["vocabulary"]
    made = Transformer(*vocabularies, options["features"], *(options[name] for name in STACK))

    def load(module: nn.Module, arrays: Mapping[str, np.ndarray]) -> None:
        module.load_state_dict({name: from_numpy(array) for name, array in arrays.items()})

    load(made.source, {"weight": parameters["encoder.embedding"]})
    load(made.target, {"weight": parameters["decoder.embedding"]})
    load(made.dense, {"weight": parameters["decoder.dense.W"], "bias": parameters["decoder.dense.b"]})
    for name, stack in (("Encoder", made.encoder), ("Decoder", made.decoder)):
        kind = f"Transformer{name}Layer"
        for layer, arrays in zip(stack.layers, problem.stack(name.lower()), strict=True):
            form = {**FORM, "num_heads": options["num_heads"]}
            load(layer, weights.from_canonical(kind, arrays, f"torch.nn.{kind}", **form))
    return made


@torch.no_grad()
def greedy(model: Translator | Transformer, source: Tensor, source_lens: Tensor, steps: int) -> tuple[Tensor]:
    """A loop over the steps, up to the one in which the last sentence ends."""
    step, state = model.stepping(source, source_lens, 1)
    tokens = source.new_full((len(source), 1), BOS)
    ended = torch.zeros_like(tokens[:, 0], dtype=torch.bool)
    while tokens.shape[1] <= steps and not ended.all():
        logits, state = step(tokens, state)
        token = torch.where(ended, EOS, logits.argmax(-1))
        tokens, ended = torch.cat([tokens, token[:, None]], dim=1), ended | (token == EOS)
    return (functional.pad(tokens[:, 1:], (0, steps + 1 - tokens.shape[1]), value=EOS),)


@torch.no_grad()
def beam(
    model: Translator | Transformer, source: Tensor, source_lens: Tensor, steps: int, width: int, num_best: int
) -> tuple[Tensor]:
    """The same for all hypotheses of a sentence side by side; what has ended goes on as itself."""
    batch, (step, state) = len(source), model.stepping(source, source_lens, width)
    tokens = source.new_full((batch * width, 1), BOS)
    ended = torch.zeros_like(tokens[:, 0], dtype=torch.bool)
    totals = torch.tensor([0.0] + [-torch.inf] * (width - 1), device=source.device).repeat(batch, 1)
    first = torch.arange(batch, device=source.device)[:, None] * width
    while tokens.shape[1] <= steps and not ended.all():
        logits, state = step(tokens, state)
        logs = logits.log_softmax(-1)
        logs[ended] = -torch.inf
        logs[ended, EOS] = 0.0
        totals, best = (totals[..., None] + logs.unflatten(0, (batch, width))).flatten(1).topk(width)
        rows, token = (first + best // logs.shape[-1]).flatten(), (best % logs.shape[-1]).flatten()
        tokens, ended = torch.cat([tokens[rows], token[:, None]], dim=1), ended[rows] | (token == EOS)
        state = None if state is None else state[:, rows]
    tokens = functional.pad(tokens[:, 1:], (0, steps + 1 - tokens.shape[1]), value=EOS)
    return (tokens.unflatten(0, (batch, width))[:, :num_best],)


STACK = ("num_heads", "hidden_size", "num_layers")
FORM = {"norm": "post", "activation": "relu", "epsilon": 1e-5}
"""What no array says of a layer: the defaults of both."""


def masked_loss(model: nn.Module, batch: Batch) -> Tensor:
    """Logits of all steps, and a loss for each, of which those of padding are masked."""
    logits = model(batch.source, batch.source_lens, batch.inputs)
    losses = functional.cross_entropy(logits.permute(0, 2, 1), batch.targets.long(), reduction="none")
    mask = torch.arange(losses.shape[1], device=losses.device) < batch.target_lens[:, None]
    return (losses * mask).sum() / mask.sum()


def training_step(
    loss_of: Callable[[], Tensor], model: nn.Module, optimizer: torch.optim.Optimizer
) -> tuple[Tensor, Tensor]:
    """The loss, backward, clipping, and Adam."""
    loss = loss_of()
    optimizer.zero_grad()
    loss.backward()
    for name, parameter in model.named_parameters():
        if "bias_hh" in name and parameter.grad is not None:
            # A second bias of the gates r and z, which ours has not, stays 0.
            parameter.grad[: len(parameter) // 3 * 2] = 0
    norm = nn.utils.clip_grad_norm_(model.parameters(), MAX_NORM)
    optimizer.step()
    return loss.detach(), norm


class DotProductAttention(nn.Module):
    """softmax(q k / sqrt(d)) v, with one tensor of (batch, heads, queries, keys)."""

    def forward(self, queries: Tensor, keys: Tensor, values: Tensor, valid_lens: Tensor) -> tuple[Tensor, Tensor]:
        """(context, weights)."""
        scores = torch.matmul(queries, keys.transpose(-2, -1)) / queries.shape[-1] ** 0.5
        weights = masked_softmax(scores, valid_lens)
        return torch.matmul(weights, values), weights


class ScaledDotProductAttention(nn.Module):
    """PyTorch's own function, which returns no weights."""

    def forward(self, queries: Tensor, keys: Tensor, values: Tensor, valid_lens: Tensor) -> tuple[Tensor]:
        """The context alone."""
        mask = torch.arange(keys.shape[-2], device=keys.device) < valid_lens[:, None, None, None]
        return (functional.scaled_dot_product_attention(queries, keys, values, attn_mask=mask),)
