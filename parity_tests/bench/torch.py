"""The items in PyTorch: as tutorials write them, by PyTorch's own function, as toolkits have them, and ours."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from functools import partial
from operator import attrgetter
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

import backends.torch as ours
from attention_core.operators.training import Batch
from attention_core.operators.translation import TRANSLATORS
from backends import weights
from backends.torch.arrays import from_numpy, to_numpy
from backends.torch.runtime import build
from parity_tests.bench.items import THIRD_PARTY, TOOLKITS
from parity_tests.bench.measure import Call, Form, SearchForm, TrainingForm, canonical, parameter_path, stored
from parity_tests.bench.problem import BOS, EOS, LEARNING_RATE, MAX_NORM, Problem


def configure(threads: int) -> None:
    """The number of threads; all else as PyTorch has it."""
    torch.set_num_threads(threads)


# ----------------------------------------------------------------------------------------- as tutorials write them


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
    def embedded(embedding: nn.Embedding, tokens: Tensor) -> Tensor:
        """The tokens as vectors, at their positions."""
        size = embedding.embedding_dim
        steps = torch.arange(tokens.shape[1], device=tokens.device)
        angles = steps[:, None] / 10000 ** (torch.arange(0, size, 2, device=tokens.device) / size)
        positions = torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(1)
        return embedding(tokens) * size**0.5 + positions

    def encode(self, source: Tensor, source_lens: Tensor) -> tuple[Tensor, Tensor]:
        """The encoder's outputs, and where they are padding."""
        padding = torch.arange(source.shape[1], device=source.device) >= source_lens[:, None]
        return self.encoder(self.embedded(self.source, source), src_key_padding_mask=padding), padding

    def decode(self, inputs: Tensor, memory: Tensor, padding: Tensor) -> Tensor:
        """The features of each step."""
        future = nn.Transformer.generate_square_subsequent_mask(inputs.shape[1], device=inputs.device).isinf()
        masks = {"tgt_mask": future, "tgt_is_causal": True, "memory_key_padding_mask": padding}
        return self.decoder(self.embedded(self.target, inputs), memory, **masks)

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


# ------------------------------------------------------------------------------------------------------ the forms

GRU = {"W": "rnn.weight_ih_l{}", "U": "rnn.weight_hh_l{}", "b": "rnn.bias_ih_l{}", "b_hn": "rnn.bias_hh_l{}"}


class ModuleForm(Form):
    """One form of a problem: a module."""

    to_numpy = staticmethod(to_numpy)

    def __init__(
        self,
        problem: Problem,
        module: nn.Module,
        device: str,
        gradients: Callable[[], Mapping[str, np.ndarray]],
        keywords: Mapping[str, Any],
    ) -> None:
        super().__init__(problem, partial(from_numpy, device=device))
        for array in self.learned.values():
            array.requires_grad_()
        self.module, self.keywords, self.gradients, self.device = module.to(device), keywords, gradients, device
        trained = list(module.parameters())
        self.optimizer = torch.optim.Adam(trained) if trained else None

    def seconds(self, call: Call) -> float:
        """The seconds of a call: on a GPU, between two events on the device."""
        if self.device == "cpu":
            return super().seconds(call)
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        call()
        end.record()
        end.synchronize()
        return float(start.elapsed_time(end)) / 1000.0

    @torch.no_grad()
    def forward(self) -> Any:
        """Run the forward pass, without what a backward would need."""
        return self.module(**self.inputs, **self.keywords)

    def loss(self) -> Tensor:
        """What a training step makes smaller."""
        first = self.module(**self.inputs, **self.keywords)[0]
        if self.target.dtype.is_floating_point:
            return (first * self.target).mean()
        return functional.cross_entropy(first.flatten(0, 1), self.target.long().flatten())

    def backward(self) -> Tensor:
        """The loss; the gradients are where PyTorch keeps them."""
        for array in self.learned.values():
            array.grad = None
        self.module.zero_grad()
        loss = self.loss()
        loss.backward()
        return loss

    def training(self) -> Any:
        """Run a step of training: forward, backward and Adam."""
        loss = self.backward()
        if self.optimizer is not None:
            self.optimizer.step()
        return loss

    def compiled(self, part: str) -> Any:
        """Compile the module for all sizes, in the first call of a part."""
        self.module = torch.compile(self.module, dynamic=True)
        return getattr(self, part)()

    def differentiate(self) -> tuple[Any, Mapping[str, Any], Mapping[str, np.ndarray]]:
        """The loss, its gradients by the inputs that have one, and those by the parameters, canonical."""
        loss = self.backward()
        return loss, {name: array.grad for name, array in self.learned.items()}, self.gradients()


def allocated(call: Call, device: str) -> int:
    """The bytes that a call allocates at most on a GPU, beside what is there before."""
    torch.cuda.synchronize(device)
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    call()
    torch.cuda.synchronize(device)
    return max(torch.cuda.max_memory_allocated(device) - before, 1)


def third_party(problem: Problem, against: str) -> nn.Module:
    """The module that ours is compared with, before it has its parameters."""
    sizes = problem.sizes
    if problem.item.layer == "AdditiveAttention":
        return AdditiveAttention(sizes["hidden"])
    if problem.item.layer == "BahdanauDecoder":
        return BahdanauDecoder(sizes["vocabulary"], sizes["hidden"], sizes["layers"])
    if problem.item.layer == "Translator":
        vocabularies, options = (sizes["source_vocabulary"], sizes["vocabulary"]), problem.item.options
        decoder, bidirectional = options.get("decoder", ""), options.get("bidirectional", False)
        return Translator(*vocabularies, sizes["hidden"], sizes["layers"], decoder, bidirectional)
    return DotProductAttention() if against == THIRD_PARTY else ScaledDotProductAttention()


def filled(
    parameters: Mapping[str, np.ndarray], module: nn.Module, paths: Mapping[str, str] | None = None
) -> dict[str, Tensor]:
    """Copy canonical parameters into a third-party module; return its own by their canonical names.

    paths has the module's paths where they are not those of the textbook's.
    """
    found = {name: parameter_path(name, GRU) for name in parameters}
    places = {name: module.get_parameter((paths or {}).get(path, path)) for name, path in found.items()}
    with torch.no_grad():
        for name, place in places.items():
            place.copy_(from_numpy(stored(parameters[name], place.shape)))
    return places


def translator_form(problem: Problem, against: str | None, device: str) -> Form:
    """A translator that is trained or searches: as tutorials or PyTorch have it, as a toolkit does, or ours."""
    item, steps = problem.item, problem.sizes["steps"]
    batch = Batch(*(from_numpy(array, device) for array in problem.inputs.values()))
    searches = "sentences" in item.outputs
    if against is None:
        layer = build(getattr(ours, item.layer), problem.options, "float32", device)
        ours.set_parameters(layer, problem.parameters)
        if searches:
            return SearchForm(partial(our_search, layer, batch, steps, **item.keywords), to_numpy)
        trainer = ours.Trainer(layer, ours.adam(LEARNING_RATE), max_norm=MAX_NORM)
        return TrainingForm(partial(trainer.step, batch), to_numpy)
    if against in TOOLKITS:
        toolkit = importlib.import_module(f"parity_tests.bench.{TOOLKITS[against]}")
        module = toolkit.translator(problem).to(device)
        filled(toolkit.arranged(problem.parameters), module, toolkit.PATHS)
        if searches:
            return SearchForm(toolkit.search(module, batch, steps, **item.keywords), to_numpy)
        loss_of = toolkit.loss(module, batch)
    else:
        if item.layer == "TransformerTranslator":
            module = transformer(problem).to(device)
        else:
            module = third_party(problem, against).to(device)
            filled(problem.parameters, module)
        if searches:
            find = partial(beam if "width" in item.keywords else greedy, module.eval())
            return SearchForm(partial(find, batch.source, batch.source_lens, steps, **item.keywords), to_numpy)
        loss_of = partial(masked_loss, module, batch)
    optimizer = torch.optim.Adam([one for one in module.parameters() if one.requires_grad], LEARNING_RATE)
    return TrainingForm(partial(training_step, loss_of, module, optimizer), to_numpy)


def our_search(layer: Any, batch: Batch, steps: int, width: int = 1, num_best: int = 1) -> tuple[Tensor]:
    """Greedy decoding, or beam search by more than one hypothesis."""
    given, options = (batch.source, batch.source_lens), {"bos": BOS, "eos": EOS, "max_steps": steps}
    if width == 1:
        return (layer.greedy(*given, **options)[0],)
    return (layer.beam(*given, **options, width=width, num_best=num_best)[0].squeeze(1),)


def form(problem: Problem, against: str | None, device: str = "cpu") -> Form:
    """The form of a problem that ours is compared with, or ours."""
    if problem.item.layer in TRANSLATORS:
        return translator_form(problem, against, device)
    if against is None:
        layer = build(getattr(ours, problem.item.layer), problem.options, "float32", device)
        ours.set_parameters(layer, problem.parameters)
        gradients = partial(ours.get_parameters, layer, read=attrgetter("grad"))
        return ModuleForm(problem, layer, device, gradients, problem.item.keywords)
    module = third_party(problem, against)
    places = filled(problem.parameters, module)

    def read() -> dict[str, np.ndarray]:
        shapes = {name: array.shape for name, array in problem.parameters.items()}
        return {name: canonical(to_numpy(place.grad), shapes[name]) for name, place in places.items()}

    return ModuleForm(problem, module, device, read, {})
