"""The base class of layers in TensorFlow: options, the check of a call, initial values and dropout masks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from attention_core.errors import check, check_options, check_tokens
from attention_core.specification import DTYPES, Layer
from backends.tf.masking import size


class Specified(keras.layers.Layer):
    """A layer of the specification, with checked options, which are its configuration, and checked calls.

    A constructor hands over its arguments, `locals()`, of which the specification's options are taken. A public method
    checks its arguments, once, and calls methods that begin with an underscore, which check nothing. Keras rewrites
    what is raised inside of `call`, so that `__call__` checks, and `call` is behind it.

    A layer without parameters takes inputs of any floating type, or of dtype if given.

    A mixed policy of Keras, given as dtype or in force when the layer is made, is a request for a cast: inputs and
    parameters are cast to its compute dtype. Without one nothing is cast.

    A mask that Keras has attached to an input, as Embedding(mask_zero=True) does, hides those keys or steps, together
    with what is given by hand; that of the first input travels on with the first output.
    """

    specification: Layer

    def __init__(self, arguments: Mapping[str, Any]) -> None:
        policy = keras.dtype_policies.get(arguments["dtype"])
        super().__init__(dtype=policy, name=arguments["name"], autocast=policy.compute_dtype != policy.variable_dtype)
        self.supports_masking = True
        self._options = {option.name: arguments[option.name] for option in self.specification.options}
        self.sizes = check_options(self.specification, **self._options)
        self._takes_any = arguments["dtype"] is None and not (self.specification.trainable or self.autocast)

    def _check(self, method: str, **arguments: Any) -> None:
        """Refuse arguments that do not fit the layer or each other."""
        operator = self.specification.method(method)
        operator = operator.time_major if self.sizes.get("time_major") else operator
        dtype = None if self._takes_any else self.compute_dtype
        check(operator, self.sizes, dtype, DTYPES["floating"] if self.autocast else (), **arguments)

    # particular to TensorFlow

    def get_config(self) -> dict[str, Any]:
        """Return the constructor's arguments."""
        return {**self._options, "dtype": None if self._takes_any else self.dtype_policy.name, "name": self.name}

    def _projection(self, name: str, input_size: int, units: int, use_bias: bool = False) -> keras.layers.Dense:
        """Make a projection with its weights."""
        with keras.name_scope(self.name, caller=self):
            # Keras refuses whole numbers of NumPy.
            dense = keras.layers.Dense(int(units), use_bias=use_bias, dtype=self.dtype_policy, name=name)
            dense.build((None, int(input_size)))
        return dense

    def compute_output_spec(self, *arguments: Any, **options: Any) -> Any:
        """Trace a call for the types of its outputs, too: Keras would take the compute dtype for each."""
        return keras.Operation.compute_output_spec(self, *arguments, **options)

    def compute_output_shape(self, *shapes: tuple[int | None, ...] | None, **named: tuple[int | None, ...]) -> Any:
        """Compute the output shapes of a call from those of its arrays: in their order, or as <name>_shape."""
        given = dict(zip(self.call_signature_parameters, shapes, strict=False))
        given |= {name.removesuffix("_shape"): shape for name, shape in named.items()}
        kinds = {tensor.name: tensor.kind for tensor in self.specification.method("call").inputs}
        dtypes = {"floating": self.compute_dtype, "integer": "int32", "boolean": "bool"}
        arrays = {
            name: keras.KerasTensor(shape, dtypes[kinds[name]]) for name, shape in given.items() if shape is not None
        }
        return keras.tree.map_structure(lambda output: output.shape, self.compute_output_spec(**arrays))

    def _cast(self, arrays: Any) -> Any:
        """Cast what is floating to the compute dtype if the policy is mixed, as Keras casts the inputs of a call."""
        if not self.autocast:
            return arrays

        def cast(array: Any) -> Any:
            return with_mask(self.dtype_policy.convert_input(array, True, self.compute_dtype), attached_mask(array))

        return keras.tree.map_structure(cast, arrays)


def draw_parameter(layer: keras.layers.Layer, name: str, shape: tuple[int, ...], fan_in: int) -> keras.Variable:
    """Add a parameter to the layer, with values from Keras's own generator, uniform in ±1/√fan_in."""
    bound = fan_in**-0.5
    # An initializer draws the same numbers each time it is called, so each parameter has its own.
    uniform = keras.initializers.RandomUniform(-bound, bound)
    return layer.add_weight(name=name, shape=shape, initializer=uniform, autocast=False)


def draw_mask(
    dropout: keras.layers.Dropout,
    like: tf.Tensor,
    training: bool | None,
    *,
    shape: Sequence[int | tf.Tensor] | None = None,
) -> tf.Tensor | None:
    """Draw a dropout mask, in the shape of an array unless another is given; None where nothing is dropped."""
    if not training or dropout.rate == 0.0:
        return None
    return dropout(tf.ones_like(like) if shape is None else tf.ones(shape, like.dtype), training=True)


def check_ids(
    title: str, name: str, tokens: tf.Tensor | np.ndarray | keras.KerasTensor, vocab_size: int | None
) -> None:
    """Refuse token ids outside the vocabulary, where their values are known: not while a graph or a model is traced."""
    known = tf.executing_eagerly() and not isinstance(tokens, keras.KerasTensor)
    if known and vocab_size is not None and 0 not in tokens.shape:
        check_tokens(title, name, int(tf.reduce_min(tokens)), int(tf.reduce_max(tokens)), vocab_size)


# ------------------------------------------------------------------------------------------- particular to TensorFlow


def attached_mask(array: Any) -> tf.Tensor | None:
    """Return the mask that Keras has attached to an array: booleans for its leading axes, True for valid entries."""
    return getattr(array, "_keras_mask", None)


def with_mask(array: tf.Tensor, mask: tf.Tensor | None) -> tf.Tensor:
    """Attach a mask to an array, for Keras and for the layers that read it."""
    if mask is not None:
        array._keras_mask = mask
    return array


def join_attached(mask: tf.Tensor | None, *arrays: tf.Tensor, time_major: bool = False) -> tf.Tensor | None:
    """Join the mask of an attention with those that Keras has attached to its keys or values, by logical and."""
    for attached in {id(found): found for found in map(attached_mask, arrays) if found is not None}.values():
        row = tf.expand_dims(tf.transpose(attached) if time_major else attached, axis=-2)
        if mask is None:
            mask = row
        else:
            with_heads = max(len(mask.shape), row.shape.rank) == 4
            mask, row = (part[:, None] if with_heads and len(part.shape) == 3 else part for part in (mask, row))
            mask = tf.logical_and(mask, row)
    return mask


def project(dense: keras.layers.Dense, inputs: tf.Tensor) -> tf.Tensor:
    """Project the inputs as rows of one matrix.

    With more than two axes Keras takes tf.tensordot, which is slower in eager mode, and whose gradient XLA cannot
    compile in a loop over the steps of a batch of unknown size.
    """
    rows = dense(tf.reshape(inputs, (-1, dense.kernel.shape[0])))
    return tf.reshape(rows, [size(inputs, axis) for axis in range(inputs.shape.rank - 1)] + [dense.units])


def is_usual(layer: keras.layers.Layer, kind: type[keras.layers.Layer]) -> bool:
    """Whether an inner layer is of that kind, and its parameters are numbers: none has replaced or quantized it."""
    return isinstance(layer, kind) and layer.quantization_mode is None


def mode_of(training: bool | None) -> dict[str, bool]:
    """Return `training` as a keyword if it was given: an explicit None would hide the mode of the enclosing layer.

    A model of Keras gives it to every layer, also to one that drops nothing.
    """
    return {} if training is None else {"training": training}
