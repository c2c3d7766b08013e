"""The items in PyTorch: as tutorials write them, by PyTorch's own functions, and ours."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional

import backends.torch as ours
from backends.torch.arrays import from_numpy, to_numpy
from backends.torch.runtime import build
from parity_tests.bench.items import LEARNED, Item, options
from parity_tests.bench.measure import Call, Clock, wall

Tensors = dict[str, torch.Tensor]


def configure() -> None:
    """One thread; all else as PyTorch has it."""
    torch.set_num_threads(1)


def clock(device: str) -> Clock:
    """What measures a call: on a GPU, events on the device."""
    return wall if device == "cpu" else events


def events(call: Call) -> float:
    """The seconds between two events on the device, around a call."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    call()
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end)) / 1000.0


# ----------------------------------------------------------------------------------------- as tutorials write them


def masked_softmax(scores: torch.Tensor, valid_lens: torch.Tensor) -> torch.Tensor:
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

    def forward(
        self, queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, valid_lens: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
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
        self, tokens: torch.Tensor, encoder_outputs: torch.Tensor, state: torch.Tensor, valid_lens: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
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


class DotProductAttention(nn.Module):
    """softmax(q k / sqrt(d)) v, with one tensor of (batch, heads, queries, keys)."""

    def forward(
        self, queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, valid_lens: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """(context, weights)."""
        scores = torch.matmul(queries, keys.transpose(-2, -1)) / queries.shape[-1] ** 0.5
        weights = masked_softmax(scores, valid_lens)
        return torch.matmul(weights, values), weights


class OwnDotProductAttention(nn.Module):
    """PyTorch's own function, which returns no weights."""

    def forward(
        self, queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, valid_lens: torch.Tensor
    ) -> tuple[torch.Tensor]:
        """The context alone."""
        mask = torch.arange(keys.shape[-2], device=keys.device) < valid_lens[:, None, None, None]
        return (functional.scaled_dot_product_attention(queries, keys, values, attn_mask=mask),)


Read = Callable[[Any], torch.Tensor]


def places(module: nn.Module, read: Read) -> Tensors:
    """What is read of each parameter of a textbook module, by canonical names; written to, it writes there."""
    if isinstance(module, AdditiveAttention):
        return {
            "W_q": read(module.W_q.weight),
            "W_k": read(module.W_k.weight),
            "w_v": read(module.w_v.weight)[0],
        }
    if not isinstance(module, BahdanauDecoder):
        return {}
    found = {
        "embedding": read(module.embedding.weight),
        "dense.W": read(module.dense.weight),
        "dense.b": read(module.dense.bias),
        **{f"attention.{name}": tensor for name, tensor in places(module.attention, read).items()},
    }
    for layer in range(module.rnn.num_layers):
        own = {name: read(getattr(module.rnn, f"{name}_l{layer}")) for name in ("weight_ih", "weight_hh", "bias_ih")}
        hidden_bias = read(getattr(module.rnn, f"bias_hh_l{layer}"))
        found |= {
            f"rnn.{layer}.W": own["weight_ih"].unflatten(0, (3, -1)),
            f"rnn.{layer}.U": own["weight_hh"].unflatten(0, (3, -1)),
            f"rnn.{layer}.b": own["bias_ih"].unflatten(0, (3, -1)),
            f"rnn.{layer}.b_hn": hidden_bias.unflatten(0, (3, -1))[2],
        }
    return found


# ------------------------------------------------------------------------------------------------------ the forms


class Form:
    """One form of an item."""

    def __init__(
        self,
        item: Item,
        module: nn.Module,
        given: Mapping[str, np.ndarray],
        device: str,
        gradients: Callable[[], Mapping[str, np.ndarray]],
        keywords: Mapping[str, Any],
    ) -> None:
        self.module = module.to(device)
        self.keywords = keywords
        self.names = ("logits", "state", "weights") if item.layer == "BahdanauDecoder" else ("context", "weights")
        self.inputs = {name: from_numpy(array, device) for name, array in given.items()}
        self.target = self.inputs.pop("targets" if "targets" in given else "cotangent")
        self.learned = {name: own.requires_grad_() for name, own in self.inputs.items() if name in LEARNED}
        trained = list(module.parameters())
        self.optimizer = torch.optim.Adam(trained) if trained else None
        self.gradients = gradients

    @torch.no_grad()
    def forward(self) -> Any:
        """The forward pass, without what a backward would need."""
        return self.module(**self.inputs, **self.keywords)

    def loss(self) -> torch.Tensor:
        """What a training step makes smaller."""
        first = self.module(**self.inputs, **self.keywords)[0]
        if self.target.dtype.is_floating_point:
            return (first * self.target).mean()
        return functional.cross_entropy(first.flatten(0, 1), self.target.long().flatten())

    def backward(self) -> torch.Tensor:
        """The loss, and the gradients where PyTorch keeps them."""
        for own in self.learned.values():
            own.grad = None
        self.module.zero_grad()
        loss = self.loss()
        loss.backward()
        return loss

    def training(self) -> Any:
        """A step of training: forward, backward and Adam."""
        loss = self.backward()
        if self.optimizer is not None:
            self.optimizer.step()
        return loss

    def answers(self, gradients: bool) -> Mapping[str, np.ndarray]:
        """The outputs, and the gradients by canonical names."""
        outputs = zip(self.names, self.forward(), strict=False)
        found = {name: to_numpy(output) for name, output in outputs if output is not None}
        if gradients:
            found["loss"] = to_numpy(self.backward())
            of_inputs = {name: to_numpy(own.grad) for name, own in self.learned.items()}
            found |= {f"gradient of {name}": array for name, array in {**of_inputs, **self.gradients()}.items()}
        return found


def form(
    item: Item,
    against: str | None,
    sizes: Mapping[str, int],
    parameters: Mapping[str, np.ndarray],
    given: Mapping[str, np.ndarray],
    device: str = "cpu",
) -> Form:
    """The form of an item that ours is held against, or ours."""
    if against is None:
        layer = build(getattr(ours, item.layer), options(item, sizes), "float32", device)
        ours.set_parameters(layer, parameters)
        return Form(
            item, layer, given, device, lambda: ours.get_parameters(layer, read=lambda own: own.grad), item.ours
        )
    module: nn.Module = DotProductAttention()
    if item.layer == "AdditiveAttention":
        module = AdditiveAttention(sizes["hidden"])
    elif item.layer == "BahdanauDecoder":
        module = BahdanauDecoder(sizes["vocabulary"], sizes["hidden"], sizes["layers"])
    elif against != "textbook":
        module = OwnDotProductAttention()
    for own in module.parameters():
        nn.init.zeros_(own)
    with torch.no_grad():
        for name, place in places(module, lambda own: own).items():
            place.copy_(from_numpy(parameters[name]))
    read: Read = lambda own: own.grad  # noqa: E731
    return Form(
        item,
        module,
        given,
        device,
        lambda: {name: to_numpy(gradient) for name, gradient in places(module, read).items()},
        {},
    )
