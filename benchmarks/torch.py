"""The measured calls in PyTorch: ours, and those of the textbook, of PyTorch itself and of toolkits."""

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

import backends.torch as ours
from attention_core.operators.training import Batch
from attention_core.operators.translation import TRANSLATORS
from backends.torch.arrays import from_numpy, to_numpy
from backends.torch.runtime import build
from benchmarks.items import THIRD_PARTY, TOOLKITS
from benchmarks.measure import Call, Form, SearchForm, TrainingForm, canonical, parameter_path, to_stored
from benchmarks.problem import BOS, EOS, LEARNING_RATE, MAX_NORM, Problem
from benchmarks.textbook import torch as textbook


def configure(threads: int) -> None:
    """The number of threads; all else as PyTorch has it."""
    torch.set_num_threads(threads)


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

    def compile_part(self, part: str) -> Any:
        """Compile the module for all sizes, in the first call of a part."""
        self.module = torch.compile(self.module, dynamic=True)
        return getattr(self, part)()

    def differentiate(self) -> tuple[Any, Mapping[str, Any], Mapping[str, np.ndarray]]:
        """The loss, its gradients by the inputs that have one, and those by the parameters, canonical."""
        loss = self.backward()
        return loss, {name: array.grad for name, array in self.learned.items()}, self.gradients()


def peak_allocation(call: Call, device: str) -> int:
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
        return textbook.AdditiveAttention(sizes["hidden"])
    if problem.item.layer == "BahdanauDecoder":
        return textbook.BahdanauDecoder(sizes["vocabulary"], sizes["hidden"], sizes["layers"])
    if problem.item.layer == "Translator":
        vocabularies, options = (sizes["source_vocabulary"], sizes["vocabulary"]), problem.item.options
        decoder, bidirectional = options.get("decoder", ""), options.get("bidirectional", False)
        return textbook.Translator(*vocabularies, sizes["hidden"], sizes["layers"], decoder, bidirectional)
    return textbook.DotProductAttention() if against == THIRD_PARTY else textbook.ScaledDotProductAttention()


def fill(
    parameters: Mapping[str, np.ndarray], module: nn.Module, paths: Mapping[str, str] | None = None
) -> dict[str, Tensor]:
    """Copy canonical parameters into a third-party module; return its own by their canonical names.

    paths has the module's paths where they are not those of the textbook's.
    """
    found = {name: parameter_path(name, GRU) for name in parameters}
    places = {name: module.get_parameter((paths or {}).get(path, path)) for name, path in found.items()}
    with torch.no_grad():
        for name, place in places.items():
            place.copy_(from_numpy(to_stored(parameters[name], place.shape)))
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
        toolkit = importlib.import_module(f"benchmarks.{TOOLKITS[against]}")
        module = toolkit.translator(problem).to(device)
        fill(toolkit.arrange(problem.parameters), module, toolkit.PATHS)
        if searches:
            return SearchForm(toolkit.search(module, batch, steps, **item.keywords), to_numpy)
        loss_of = toolkit.loss(module, batch)
    else:
        if item.layer == "TransformerTranslator":
            module = textbook.transformer(problem).to(device)
        else:
            module = third_party(problem, against).to(device)
            fill(problem.parameters, module)
        if searches:
            find = partial(textbook.beam if "width" in item.keywords else textbook.greedy, module.eval())
            return SearchForm(partial(find, batch.source, batch.source_lens, steps, **item.keywords), to_numpy)
        loss_of = partial(textbook.masked_loss, module, batch)
    optimizer = torch.optim.Adam([one for one in module.parameters() if one.requires_grad], LEARNING_RATE)
    return TrainingForm(partial(textbook.training_step, loss_of, module, optimizer), to_numpy)


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
    places = fill(problem.parameters, module)

    def read() -> dict[str, np.ndarray]:
        shapes = {name: array.shape for name, array in problem.parameters.items()}
        return {name: canonical(to_numpy(place.grad), shapes[name]) for name, place in places.items()}

    return ModuleForm(problem, module, device, read, {})
