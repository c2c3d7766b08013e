"""The measured calls in MXNet: ours, and those of the textbook."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from operator import attrgetter, methodcaller
from typing import Any

import mxnet as mx
import numpy
from mxnet import autograd, gluon, np, npx
from mxnet.gluon import nn

import backends.mxnet as ours
from attention_core.operators.training import Batch
from backends.mxnet.arrays import context, from_numpy, to_numpy
from backends.mxnet.runtime import build
from benchmarks.measure import Form, SearchForm, TrainingForm, canonical, parameter_path, to_stored
from benchmarks.problem import BOS, EOS, LEARNING_RATE, MAX_NORM, Problem
from benchmarks.textbook import mxnet as textbook


def configure(threads: int) -> None:
    """Nothing: the environment variables have set it."""


class BlockForm(Form):
    """One form of a problem: a block."""

    to_numpy = staticmethod(to_numpy)

    def __init__(
        self, problem: Problem, block: nn.Block, device: str, gradients: Callable[[], Mapping[str, numpy.ndarray]]
    ) -> None:
        super().__init__(problem, partial(from_numpy, device=device))
        for array in self.learned.values():
            array.attach_grad()
        self.block, self.gradients = block, gradients
        self.trainer = gluon.Trainer(block.collect_params(), "adam", {"learning_rate": 1e-3})
        self.cross_entropy = gluon.loss.SoftmaxCrossEntropyLoss()

    def forward(self) -> Any:
        """Run the forward pass, without what a backward would need."""
        outputs = self.block(*self.inputs.values())
        npx.waitall()
        return outputs

    def backward(self) -> np.ndarray:
        """The loss; the gradients are where MXNet keeps them."""
        with autograd.record():
            first = self.block(*self.inputs.values())[0]
            if self.target.dtype.kind == "f":
                loss = (first * self.target).mean()
            else:
                loss = self.cross_entropy(first, self.target).mean()
        loss.backward()
        return loss

    def training(self) -> Any:
        """Run a step of training: forward, backward and Adam."""
        loss = self.backward()
        self.trainer.step(1)
        npx.waitall()
        return loss

    def differentiate(self) -> tuple[Any, Mapping[str, Any], Mapping[str, numpy.ndarray]]:
        """The loss, its gradients by the inputs that have one, and those by the parameters, canonical."""
        loss = self.backward()
        return loss, {name: array.grad for name, array in self.learned.items()}, self.gradients()


def third_party(problem: Problem) -> nn.Block:
    """The block that ours is compared with, before it has its parameters."""
    sizes = problem.sizes
    if problem.item.layer == "BahdanauDecoder":
        return textbook.BahdanauDecoder(sizes["vocabulary"], sizes["hidden"], sizes["layers"])
    if problem.item.layer == "Translator":
        return textbook.Translator(sizes["source_vocabulary"], sizes["vocabulary"], sizes["hidden"], sizes["layers"])
    return textbook.AdditiveAttention(sizes["hidden"])


def fill(problem: Problem, block: nn.Block) -> dict[str, gluon.Parameter]:
    """Copy the problem's parameters into a third-party block; return its own by their canonical names."""
    block.initialize(mx.init.Zero())
    places = {name: attrgetter(parameter_path(name, textbook.GRU))(block) for name in problem.parameters}
    for name, place in places.items():
        place.set_data(from_numpy(to_stored(problem.parameters[name], place.shape)))
    return places


def training_form(problem: Problem, against: str | None, device: str) -> TrainingForm:
    """A translator in training, as tutorials write it or ours."""
    batch = Batch(*(from_numpy(array, device) for array in problem.inputs.values()))
    if against is None:
        layer = build(ours.Translator, problem.options, "float32", device)
        ours.set_parameters(layer, problem.parameters)
        trainer = ours.Trainer(layer, ours.adam(LEARNING_RATE), max_norm=MAX_NORM)
        return TrainingForm(partial(trainer.step, batch), to_numpy)
    block = third_party(problem)
    fill(problem, block)
    stepper = gluon.Trainer(block.collect_params(), "adam", {"learning_rate": LEARNING_RATE})
    return TrainingForm(partial(textbook.training_step, block, stepper, batch), to_numpy)


def search_form(problem: Problem, against: str | None, device: str) -> SearchForm:
    """A translator that decodes, as tutorials write it or ours."""
    given = [from_numpy(problem.inputs[name], device) for name in ("source", "source_lens")]
    steps, keywords = problem.sizes["steps"], problem.item.keywords
    if against is None:
        layer = build(ours.Translator, problem.options, "float32", device)
        ours.set_parameters(layer, problem.parameters)
        search = partial(layer.beam if "width" in keywords else layer.greedy, bos=BOS, eos=EOS, max_steps=steps)
    else:
        block = third_party(problem)
        fill(problem, block)
        search = partial(textbook.beam if "width" in keywords else textbook.greedy, block, steps=steps)

    def search_tokens() -> tuple[np.ndarray]:
        tokens = search(*given, **keywords)[0]
        tokens.wait_to_read()
        return (tokens,)

    return SearchForm(search_tokens, to_numpy)


def form(problem: Problem, against: str | None, device: str = "cpu") -> Form:
    """The form of a problem that ours is compared with, or ours."""
    with context(device):
        if problem.item.layer == "Translator":
            made = search_form if "sentences" in problem.item.outputs else training_form
            return made(problem, against, device)
        if against is None:
            layer = build(getattr(ours, problem.item.layer), problem.options, "float32", device)
            ours.set_parameters(layer, problem.parameters)
            return BlockForm(problem, layer, device, partial(ours.get_parameters, layer, read=methodcaller("grad")))
        block = third_party(problem)
        places = fill(problem, block)

        def read() -> dict[str, numpy.ndarray]:
            shapes = {name: array.shape for name, array in problem.parameters.items()}
            return {name: canonical(to_numpy(place.grad()), shapes[name]) for name, place in places.items()}

        return BlockForm(problem, block, device, read)
