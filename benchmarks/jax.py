"""The measured calls in JAX: ours, and those of the textbook and of JAX itself."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

import backends.jax as ours
from attention_core.operators.training import Batch
from attention_core.operators.translation import TRANSLATORS
from backends.jax.arrays import from_numpy, to_numpy
from backends.jax.runtime import build
from benchmarks.items import UNCOMPILED
from benchmarks.measure import Form, SearchForm, TrainingForm
from benchmarks.problem import BOS, EOS, LEARNED, LEARNING_RATE, MAX_NORM, Problem
from benchmarks.textbook import jax as textbook

Arrays = dict[str, jax.Array]


def configure(threads: int) -> None:
    """Run in the calling thread; the CPU is as many devices as threads are asked for.

    Otherwise a call returns with its result, and gives back its memory later: at the cost of the other form, whose turn
    it is then.
    """
    jax.config.update("jax_cpu_enable_async_dispatch", False)
    jax.config.update("jax_num_cpu_devices", threads)


Function = Callable[..., tuple[jax.Array, ...]]


class FunctionForm(Form):
    """One form of a problem: a function of parameters and inputs, compiled or not."""

    to_numpy = staticmethod(to_numpy)

    def __init__(
        self,
        problem: Problem,
        function: Function,
        parameters: Any,
        device: str,
        canonical: Callable[[Any], Mapping[str, np.ndarray]],
        compiled: bool = True,
    ) -> None:
        place, batch = partial(from_numpy, device=device), problem.sizes["batch"]
        if device == "cpu" and jax.device_count("cpu") > 1:
            place, function = partial(place_parts, batch), by_devices(function, batch)
            parameters = jax.device_put(parameters, NamedSharding(mesh_of(batch), PartitionSpec()))
        super().__init__(problem, place)
        self.canonical, self.parameters, target = canonical, parameters, self.target
        self.rest = {name: array for name, array in self.inputs.items() if name not in LEARNED}
        optimizer = optax.adam(1e-3)
        self.state = optimizer.init(parameters)

        def forward(parameters: Any, learned: Arrays, rest: Arrays) -> tuple[jax.Array, ...]:
            return function(parameters, **learned, **rest)

        def loss(parameters: Any, learned: Arrays, rest: Arrays) -> jax.Array:
            first = forward(parameters, learned, rest)[0]
            if jnp.issubdtype(target.dtype, jnp.floating):
                return jnp.vdot(first, target) / target.size  # without an array of products
            return optax.softmax_cross_entropy_with_integer_labels(first, target).mean()

        gradients = jax.value_and_grad(loss, argnums=(0, 1))

        def step(parameters: Any, state: Any, learned: Arrays, rest: Arrays) -> tuple[Any, ...]:
            value, (by_parameter, by_input) = gradients(parameters, learned, rest)
            updates, state = optimizer.update(by_parameter, state, parameters)
            return value, optax.apply_updates(parameters, updates), state, by_input

        self.gradients = jax.jit(gradients)
        self.functions = {"forward": jax.jit(forward) if compiled else forward, "training": jax.jit(step)}

    def arguments(self, part: str) -> tuple[Any, ...]:
        """What the function of a part is called with."""
        state = (self.state,) if part == "training" else ()
        return (self.parameters, *state, self.learned, self.rest)

    def forward(self) -> Any:
        """Run the forward pass."""
        return jax.block_until_ready(self.functions["forward"](*self.arguments("forward")))

    def training(self) -> Any:
        """Run a step of training: forward, backward and Adam."""
        loss, self.parameters, self.state, by_input = self.functions["training"](*self.arguments("training"))
        return jax.block_until_ready((loss, self.parameters, by_input))

    def differentiate(self) -> tuple[Any, Mapping[str, Any], Mapping[str, np.ndarray]]:
        """The loss, its gradients by the inputs that have one, and those by the parameters, canonical."""
        loss, (by_parameter, by_input) = self.gradients(*self.arguments("forward"))
        return loss, by_input, self.canonical(by_parameter)

    def compile_part(self, part: str) -> Any:
        """The compiled function of a part: traced, lowered and compiled."""
        return self.functions[part].lower(*self.arguments(part)).compile()

    def planned_bytes(self, part: str) -> int:
        """The bytes that the compiled function takes beside its arguments and results, as XLA has planned them."""
        return max(int(self.compile_part(part).memory_analysis().temp_size_in_bytes), 1)


def mesh_of(batch: int) -> Mesh:
    """As many devices of the CPU as divide the batch evenly."""
    count = math.gcd(batch, jax.device_count("cpu"))
    return jax.make_mesh((count,), ("batch",), axis_types=(AxisType.Auto,), devices=jax.devices("cpu")[:count])


def divided_batch(batch: int, array: Any) -> PartitionSpec:
    """Where an array has its batch: first, or after the layers."""
    return PartitionSpec(*("batch" if axis == array.shape.index(batch) else None for axis in range(array.ndim)))


def place_parts(batch: int, array: np.ndarray) -> jax.Array:
    """The array with each device's part of the batch there."""
    return jax.device_put(array, NamedSharding(mesh_of(batch), divided_batch(batch, array)))


def by_devices(function: Function, batch: int) -> Function:
    """The function of each device's part of a batch; all have the parameters."""

    def call(parameters: Any, **arrays: jax.Array) -> tuple[jax.Array, ...]:
        def of_part(parameters: Any, arrays: Arrays) -> tuple[jax.Array, ...]:
            return function(parameters, **arrays)

        results = jax.eval_shape(of_part, parameters, arrays)
        given, returned = (jax.tree.map(partial(divided_batch, batch), tree) for tree in (arrays, results))
        specs = {"in_specs": (PartitionSpec(), given), "out_specs": returned}
        return jax.shard_map(of_part, mesh=mesh_of(batch), **specs)(parameters, arrays)

    return call


THIRD_PARTY: dict[str, Function] = {
    "AdditiveAttention": textbook.additive_attention,
    "BahdanauDecoder": textbook.decoder,
    "DotProductAttention": textbook.dot_product_attention,
}


def search_form(problem: Problem, against: str | None, device: str) -> SearchForm:
    """A translator that decodes, as tutorials or Flax have it or ours, in one compiled function."""
    source, lens = (from_numpy(problem.inputs[name], device) for name in ("source", "source_lens"))
    steps, keywords = problem.sizes["steps"], problem.item.keywords
    if against is None:
        model = build(getattr(ours, problem.item.layer), problem.options, "float32", device)
        ours.set_parameters(model, problem.parameters)
        options = {"bos": BOS, "eos": EOS, "max_steps": steps}

        def search(model: Any, *given: jax.Array) -> tuple[jax.Array]:
            if "width" in keywords:
                return (model.beam(*given, **options, **keywords)[0],)
            return (model.greedy(*given, **options)[0],)

    else:
        recurrent = problem.item.layer == "Translator"
        model = textbook.kernels(dict(problem.parameters)) if recurrent else textbook.Transformer(problem)
        stepping = textbook.translator_stepping if recurrent else textbook.transformer_stepping
        search = partial(textbook.beam if "width" in keywords else textbook.greedy, stepping, steps=steps, **keywords)
    graphdef, state = (None, model) if isinstance(model, dict) else nnx.split(model)
    state = jax.device_put(state, source.device)
    searching = jax.jit(lambda state, *given: search(state if graphdef is None else nnx.merge(graphdef, state), *given))
    return SearchForm(lambda: jax.block_until_ready(searching(state, source, lens)), to_numpy)


def training_form(problem: Problem, against: str | None, device: str) -> TrainingForm:
    """A translator in training, as tutorials write it or ours."""
    batch = Batch(*(from_numpy(array, device) for array in problem.inputs.values()))
    if against is None:
        layer = build(getattr(ours, problem.item.layer), problem.options, "float32", device)
        ours.set_parameters(layer, problem.parameters)
        trainer = ours.Trainer(layer, ours.adam(LEARNING_RATE), max_norm=MAX_NORM)
        return TrainingForm(partial(trainer.step, batch), to_numpy)
    optimizer = optax.chain(optax.clip_by_global_norm(MAX_NORM), optax.adam(LEARNING_RATE))
    parameters: Any = textbook.kernels({name: from_numpy(array, device) for name, array in problem.parameters.items()})
    model: Callable[..., jax.Array] = textbook.translator
    if problem.item.layer == "TransformerTranslator":
        graphdef, parameters, rest = nnx.split(textbook.Transformer(problem), nnx.Param, ...)

        def model(parameters: Any, *given: jax.Array) -> jax.Array:
            return nnx.merge(graphdef, parameters, rest)(*given)

    stepped = jax.jit(partial(textbook.training_step, optimizer=optimizer, model=model))
    held = [parameters, optimizer.init(parameters)]

    def step() -> tuple[jax.Array, jax.Array]:
        held[0], held[1], loss, norm = stepped(*held, batch)
        return loss, norm

    return TrainingForm(step, to_numpy)


def form(problem: Problem, against: str | None, device: str = "cpu") -> Form:
    """The form of a problem that ours is compared with, or ours."""
    item = problem.item
    if item.layer in TRANSLATORS:
        made = search_form if "sentences" in item.outputs else training_form
        return made(problem, against, device)
    if against is not None:
        arrays = {name: from_numpy(array, device) for name, array in problem.parameters.items()}
        function = THIRD_PARTY[item.layer]
        if item.name == "greedy":
            function = textbook.greedy_decoder
        elif against == "jax.nn.dot_product_attention":
            function = textbook.jax_dot_product_attention

        def canonical(arrays: Arrays) -> dict[str, np.ndarray]:
            return {name: to_numpy(array) for name, array in textbook.kernels(arrays).items()}

        return FunctionForm(problem, function, textbook.kernels(arrays), device, canonical, against != UNCOMPILED)
    layer = build(getattr(ours, item.layer), problem.options, "float32", device)
    ours.set_parameters(layer, problem.parameters)
    graphdef, state, rest = nnx.split(layer, nnx.Param, ...)

    def call(parameters: Any, /, **arrays: jax.Array) -> tuple[jax.Array, ...]:
        whole = nnx.merge(graphdef, parameters, rest)
        if item.name == "greedy":
            steps = arrays.pop("tokens").shape[1]
            return whole.greedy(**arrays, bos=BOS, eos=EOS, max_steps=steps)
        return whole(**arrays, **item.keywords)

    return FunctionForm(problem, call, state, device, lambda tree: ours.get_parameters(nnx.merge(graphdef, tree, rest)))
