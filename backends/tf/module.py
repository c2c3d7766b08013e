"""What layers in TensorFlow share: the check at the door, drawn parameters and drawn dropout."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from attention_core.errors import check, check_options, check_tokens
from attention_core.specification import DTYPES, Layer
from backends.tf.masking import size


class Specified(keras.layers.Layer):
    """What all layers share: options that are checked and written into the configuration, and the check of a call.

    A public method checks its arguments, once, and calls methods that begin with an underscore, which check nothing.
    Keras rewrites what is raised inside of `call`, so that `__call__` checks, and `call` is behind it.

    A layer without parameters takes inputs of any floating type, or of dtype if given.

    A mixed policy of Keras, given as dtype or in force when the layer is made, is a request for a cast: inputs and
    parameters are cast to its compute dtype. Without one nothing is cast.
    """

    specification: Layer

    def __init__(self, *, dtype: str | tf.DType | None = None, name: str | None = None, **options: Any) -> None:
        policy = keras.dtype_policies.get(dtype)
        super().__init__(dtype=policy, name=name, autocast=policy.compute_dtype != policy.variable_dtype)
        self.sizes = check_options(self.specification, **options)
        self.options = options
        self.takes_any = dtype is None and not (self.specification.trainable or self.autocast)

    def _check(self, method: str, **arguments: Any) -> None:
        """Refuse arguments that do not fit the layer or each other."""
        operator = self.specification.method(method)
        operator = operator.time_major if self.sizes.get("time_major") else operator
        dtype = None if self.takes_any else self.compute_dtype
        check(operator, self.sizes, dtype, DTYPES["floating"] if self.autocast else (), **arguments)

    def get_config(self) -> dict[str, Any]:
        """The constructor's arguments."""
        return {**self.options, "dtype": None if self.takes_any else self.dtype_policy.name, "name": self.name}

    def _projection(self, name: str, input_size: int, units: int, use_bias: bool = False) -> keras.layers.Dense:
        """A projection, with its weights."""
        with keras.name_scope(self.name, caller=self):
            # Keras refuses whole numbers of NumPy.
            dense = keras.layers.Dense(int(units), use_bias=use_bias, dtype=self.dtype_policy, name=name)
            dense.build((None, int(input_size)))
        return dense

    # particular to TensorFlow

    def _cast(self, arrays: Any) -> Any:
        """Cast what is floating to the compute dtype if the policy is mixed, as Keras casts the inputs of a call."""
        if not self.autocast:
            return arrays
        return keras.tree.map_structure(
            lambda array: self.dtype_policy.convert_input(array, True, self.compute_dtype), arrays
        )


def drawn(layer: keras.layers.Layer, name: str, shape: tuple[int, ...], fan_in: int) -> keras.Variable:
    """A parameter of the layer with values from Keras's own generator, uniform in ±1/√fan_in."""
    bound = fan_in**-0.5
    # An initializer draws the same numbers each time it is called, so each parameter has its own.
    uniform = keras.initializers.RandomUniform(-bound, bound)
    return layer.add_weight(name=name, shape=shape, initializer=uniform, autocast=False)


def drawn_mask(
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


def projected(dense: keras.layers.Dense, inputs: tf.Tensor) -> tf.Tensor:
    """The inputs through the layer, as rows of one matrix.

    With more than two axes Keras takes tf.tensordot, which is slower in eager mode, and whose gradient XLA cannot
    compile in a loop over the steps of a batch of unknown size.
    """
    rows = dense(tf.reshape(inputs, (-1, dense.kernel.shape[0])))
    return tf.reshape(rows, [size(inputs, axis) for axis in range(inputs.shape.rank - 1)] + [dense.units])


def chosen(training: bool | None) -> dict[str, bool]:
    """`training` as a keyword if it was given: Keras lets an explicit None win over the mode of the layer around it."""
    return {} if training is None else {"training": training}
