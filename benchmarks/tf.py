"""The measured calls in TensorFlow: ours, and those of the textbook, of Keras itself and of toolkits."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from operator import attrgetter
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from tensorflow import Tensor

import backends.tf as ours
from attention_core.operators.training import Batch
from attention_core.operators.translation import TRANSLATORS
from backends.tf.arrays import DEVICES, from_numpy, to_numpy
from backends.tf.runtime import build
from benchmarks.items import EAGER, TOOLKITS
from benchmarks.measure import Call, Form, SearchForm, TrainingForm, canonical, to_stored
from benchmarks.problem import BOS, EOS, LEARNING_RATE, MAX_NORM, Problem
from benchmarks.textbook import tf as textbook

Tensors = dict[str, Tensor]


def configure(threads: int) -> None:
    """The number of threads of an operation, and of operations at once, which are equal in TensorFlow by default."""
    tf.config.threading.set_intra_op_parallelism_threads(threads)
    tf.config.threading.set_inter_op_parallelism_threads(threads)


GATES = [1, 0, 2]
"""The permutation between Keras's order of the gates, z, r, n, and the canonical one, r, z, n."""


def is_kernel(variable: keras.Variable) -> bool:
    """Whether a variable is the transposed canonical array."""
    return variable.path.endswith("kernel")


def variables(layer: keras.layers.Layer, names: Iterable[str]) -> dict[str, keras.Variable]:
    """The variables of a third-party layer by the names of their canonical parameters, but for those of a GRU."""
    paths = {"embedding": "embedding.embeddings", "dense.W": "dense.kernel", "dense.b": "dense.bias"}
    if isinstance(layer, textbook.KerasAdditiveAttention):
        paths["w_v"] = "attention.scale"
    return {name: attrgetter(paths.get(name, f"{name}.kernel"))(layer) for name in names if not name.startswith("rnn.")}


def write(layer: keras.layers.Layer, parameters: Mapping[str, np.ndarray]) -> None:
    """Copy canonical parameters into a third-party layer."""
    for name, variable in variables(layer, parameters).items():
        array = parameters[name]
        variable.assign(np.atleast_2d(array).T if is_kernel(variable) else array)
    for index, gru in enumerate(getattr(layer, "rnn", [])):
        W, U, b, b_hn = (parameters[f"rnn.{index}.{name}"] for name in ("W", "U", "b", "b_hn"))
        gru.cell.kernel.assign(np.concatenate(W[GATES]).T)
        gru.cell.recurrent_kernel.assign(np.concatenate(U[GATES]).T)
        gru.cell.bias.assign(np.stack([b[GATES].ravel(), to_stored(b_hn, (b.size,))]))


def read(
    layer: keras.layers.Layer, shapes: Mapping[str, tuple[int, ...]], values: Mapping[int, np.ndarray]
) -> dict[str, np.ndarray]:
    """The canonical arrays of the values that are given for each variable of a third-party layer, by its id."""
    arrays = {}
    for name, variable in variables(layer, shapes).items():
        value = values[id(variable)]
        arrays[name] = value.T.reshape(shapes[name]) if is_kernel(variable) else value
    for index, gru in enumerate(getattr(layer, "rnn", [])):
        cell = gru.cell
        W, U, biases = (values[id(variable)] for variable in (cell.kernel, cell.recurrent_kernel, cell.bias))
        for name, array in {"W": W.T, "U": U.T, "b": biases[0]}.items():
            path = f"rnn.{index}.{name}"
            arrays[path] = array.reshape(shapes[path])[GATES]
        path = f"rnn.{index}.b_hn"
        arrays[path] = canonical(biases[1], shapes[path])
    return arrays


class LayerForm(Form):
    """One form of a problem: a layer, in eager mode or in tf.function."""

    to_numpy = staticmethod(to_numpy)

    def __init__(
        self,
        problem: Problem,
        layer: keras.layers.Layer,
        device: str,
        write: Callable[[], None],
        read: Callable[[Mapping[int, np.ndarray]], Mapping[str, np.ndarray]],
        keywords: Mapping[str, Any],
        eager: bool = False,
    ) -> None:
        super().__init__(problem, partial(from_numpy, device=device))
        self.layer, self.read, self.keywords, self.device = layer, read, keywords, DEVICES[device]
        if not layer.built:  # Keras makes the parameters in the first call
            whole = ("state", "valid_lens")
            layer(**{name: array if name in whole else array[:, :2] for name, array in self.inputs.items()})
        write()
        self.variables = list(layer.trainable_variables)
        self.optimizer = keras.optimizers.Adam(1e-3) if self.variables else None
        if self.optimizer is not None:
            self.optimizer.build(self.variables)
        as_called = (lambda call: call) if eager else partial(tf.function, autograph=False)
        self.called, self.differentiated, self.stepped = map(as_called, (self.call, self.gradients, self.step))

    def call(self, inputs: Tensors) -> tuple[Tensor, ...]:
        """The outputs."""
        return self.layer(**inputs, **self.keywords)

    def gradients(self, inputs: Tensors, target: Tensor) -> tuple[Tensor, list[Tensor], list[Tensor]]:
        """The loss, the gradients of the parameters and those of the inputs."""
        sources = [variable.value for variable in self.variables]
        learned = [inputs[name] for name in self.learned]
        with tf.GradientTape() as tape:
            tape.watch(learned)
            first = self.layer(**inputs, **self.keywords)[0]
            if target.dtype.is_floating:
                loss = tf.reduce_mean(first * target)
            else:
                losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=target, logits=first)
                loss = tf.reduce_mean(losses)
        gradients = list(map(tf.convert_to_tensor, tape.gradient(loss, [*sources, *learned])))
        return loss, gradients[: len(sources)], gradients[len(sources) :]

    def step(self, inputs: Tensors, target: Tensor) -> tuple[Tensor, list[Tensor]]:
        """Run a step of training."""
        loss, by_variable, by_input = self.gradients(inputs, target)
        if self.optimizer is not None:
            self.optimizer.apply(by_variable)
        return loss, by_input

    def forward(self) -> Any:
        """Run the forward pass, without what a backward would need."""
        with tf.device(self.device):
            outputs = self.called(self.inputs)
        return outputs if "CPU" in self.device else [output.numpy() for output in outputs if output is not None]

    def training(self) -> Any:
        """Run a step of training: forward, backward and Adam."""
        with tf.device(self.device):
            return self.stepped(self.inputs, self.target)[0].numpy()

    def differentiate(self) -> tuple[Any, Mapping[str, Any], Mapping[str, np.ndarray]]:
        """The loss, its gradients by the inputs that have one, and those by the parameters, canonical."""
        with tf.device(self.device):
            loss, by_variable, by_input = self.differentiated(self.inputs, self.target)
        values = {id(variable): to_numpy(array) for variable, array in zip(self.variables, by_variable, strict=True)}
        return loss, dict(zip(self.learned, by_input, strict=True)), self.read(values)


def third_party(problem: Problem, against: str) -> keras.layers.Layer:
    """The layer that ours is compared with, before it has its parameters."""
    sizes, keras_layer = problem.sizes, against.startswith("keras")
    if problem.item.layer == "BahdanauDecoder":
        return textbook.BahdanauDecoder(sizes["vocabulary"], sizes["hidden"], sizes["layers"])
    if problem.item.layer == "AdditiveAttention":
        return (textbook.KerasAdditiveAttention if keras_layer else textbook.AdditiveAttention)(sizes["hidden"])
    return textbook.KerasDotProductAttention() if keras_layer else textbook.DotProductAttention()


def peak_allocation(call: Call, device: str) -> int:
    """The bytes that a call allocates at most on a GPU, beside what is there before."""
    name = DEVICES[device].removeprefix("/device:")
    tf.config.experimental.reset_memory_stats(name)
    before = tf.config.experimental.get_memory_info(name)["current"]
    call()
    return max(tf.config.experimental.get_memory_info(name)["peak"] - before, 1)


def search_form(problem: Problem, against: str | None, device: str) -> SearchForm:
    """A translator that decodes, as tutorials, Keras or a toolkit have it or ours, in tf.function."""
    given = [from_numpy(problem.inputs[name], device) for name in ("source", "source_lens")]
    steps, keywords = problem.sizes["steps"], problem.item.keywords
    if against is None:
        layer = build(getattr(ours, problem.item.layer), problem.options, "float32", device)
        ours.set_parameters(layer, problem.parameters)
        options = {"bos": BOS, "eos": EOS, "max_steps": steps}

        def search(*given: Tensor) -> tuple[Tensor]:
            if "width" in keywords:
                return (layer.beam(*given, **options, **keywords)[0],)
            return (layer.greedy(*given, **options)[0],)

    else:
        if against in TOOLKITS:
            toolkit = importlib.import_module(f"benchmarks.{TOOLKITS[against]}")
            stepping: textbook.Stepping = partial(
                toolkit.stepping, filled_transformer(problem, made=toolkit.DecoderLayer)
            )
        else:
            stepping = third_party_translator(problem).stepping
        search = partial(textbook.beam if "width" in keywords else textbook.greedy, stepping, steps=steps, **keywords)
    return SearchForm(partial(tf.function(search, autograph=False), *given), to_numpy)


def filled_transformer(problem: Problem, **options: Any) -> textbook.Transformer:
    """The Transformer of Keras' layers with the parameters of the problem, which Keras makes in the first call."""
    model = textbook.Transformer(problem, **options)
    model(*first_inputs(problem))
    model.fill(problem)
    return model


def first_inputs(problem: Problem) -> list[Tensor]:
    """The source, its lengths, and the decoder's inputs."""
    return [from_numpy(problem.inputs[name]) for name in Batch._fields[:3]]


def third_party_translator(problem: Problem) -> textbook.Translator | textbook.Transformer:
    """The translator that ours is compared with, with the parameters of the problem."""
    if problem.item.layer == "TransformerTranslator":
        return filled_transformer(problem)
    sizes, arrays = problem.sizes, problem.parameters.items()
    vocabularies = sizes["source_vocabulary"], sizes["vocabulary"]
    model = textbook.Translator(
        *vocabularies, sizes["hidden"], sizes["layers"], problem.item.options.get("decoder", "")
    )
    model(*first_inputs(problem))
    for part, layer in (("encoder.", model.encoder), ("decoder.", model.decoder)):
        write(layer, {name.removeprefix(part): array for name, array in arrays if name.startswith(part)})
    return model


def training_form(problem: Problem, against: str | None, device: str) -> TrainingForm:
    """A translator in training, as tutorials write it or ours."""
    batch = Batch(*(from_numpy(array, device) for array in problem.inputs.values()))
    if against is None:
        layer = build(getattr(ours, problem.item.layer), problem.options, "float32", device)
        ours.set_parameters(layer, problem.parameters)
        trainer = ours.Trainer(layer, ours.adam(LEARNING_RATE), max_norm=MAX_NORM)
        return TrainingForm(partial(trainer.step, batch), to_numpy)
    held: dict[str, Tensor] = {}
    model = third_party_translator(problem)
    if isinstance(model, textbook.Translator):
        # A second bias of the gates r and z, which ours has not, stays 0: Keras has z first, then r, then n.
        biases = [gru.cell.bias for gru in (*model.encoder.rnn, *model.decoder.rnn)]
        columns = tf.repeat(tf.constant([[1.0, 1.0, 1.0], [0.0, 0.0, 1.0]]), problem.sizes["hidden"], axis=1)
        held = {bias.path: columns for bias in biases}
    optimizer = keras.optimizers.Adam(LEARNING_RATE)
    optimizer.build(model.trainable_variables)
    return TrainingForm(
        partial(tf.function(textbook.training_step, autograph=False), model, optimizer, held, batch), to_numpy
    )


def form(problem: Problem, against: str | None, device: str = "cpu") -> Form:
    """The form of a problem that ours is compared with, or ours, which is called in tf.function as a Trainer does."""
    parameters = problem.parameters
    with tf.device(DEVICES[device]):
        if problem.item.layer in TRANSLATORS:
            made = search_form if "sentences" in problem.item.outputs else training_form
            return made(problem, against, device)
        if against is None:
            layer = build(getattr(ours, problem.item.layer), problem.options, "float32", device)
            return LayerForm(
                problem,
                layer,
                device,
                partial(ours.set_parameters, layer, parameters),
                lambda values: ours.get_parameters(layer, read=lambda variable: tf.constant(values[id(variable)])),
                problem.item.keywords,
            )
        layer = third_party(problem, against)
        return LayerForm(
            problem,
            layer,
            device,
            partial(write, layer, parameters),
            partial(read, layer, {name: array.shape for name, array in parameters.items()}),
            {},
            against == EAGER,
        )
