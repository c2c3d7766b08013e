"""What layers in TensorFlow share: their dtype, drawn parameters and drawn dropout."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from attention_core.errors import check_options
from attention_core.specification import Layer
from backends.tf.masking import size


class Specified(keras.layers.Layer):
    """What all layers of this file share: options that are checked and written into the configuration, and a dtype.

    A layer without parameters takes inputs of any floating type, or of dtype if given.
    """

    specification: Layer

    def __init__(
        self, *, dtype: str | tf.DType | None = None, name: str | None = None, **options: int | float | str | None
    ) -> None:
        super().__init__(dtype=parameter_dtype(dtype), name=name, autocast=False)
        self.sizes = check_options(self.specification, **options)
        self.options = options
        self.required_dtype = None if dtype is None and not self.specification.trainable else self.variable_dtype

    def projection(self, name: str, input_size: int, units: int, use_bias: bool = False) -> keras.layers.Dense:
        """A projection, with its weights."""
        with keras.name_scope(self.name, caller=self):
            # Keras refuses whole numbers of NumPy.
            dense = keras.layers.Dense(int(units), use_bias=use_bias, dtype=self.variable_dtype, name=name)
            dense.build((None, int(input_size)))
        return dense

    def uniform(self, name: str, shape: tuple[int, ...], fan_in: int) -> keras.Variable:
        """A parameter drawn from ±1/√fan_in."""
        uniform = keras.initializers.RandomUniform(-(fan_in**-0.5), fan_in**-0.5)
        return self.add_weight(name=name, shape=shape, initializer=uniform, autocast=False)

    def get_config(self) -> dict[str, Any]:
        """The constructor's arguments."""
        return {**self.options, "dtype": self.required_dtype, "name": self.name}


def projected(dense: keras.layers.Dense, inputs: tf.Tensor) -> tf.Tensor:
    """The inputs through the layer, as rows of one matrix.

    With more than two axes Keras takes tf.tensordot, which is slower in eager mode, and whose gradient XLA cannot
    compile in a loop over the steps of a batch of unknown size.
    """
    rows = dense(tf.reshape(inputs, (-1, dense.kernel.shape[0])))
    return tf.reshape(rows, [size(inputs, axis) for axis in range(inputs.shape.rank - 1)] + [dense.units])


def drops(dropout: keras.layers.Dropout, dropout_mask: tf.Tensor | None, training: bool | None) -> bool:
    """Whether weights are dropped: by a given mask, or by one that is to be drawn."""
    return dropout_mask is not None or bool(training and dropout.rate > 0.0)


def drawn_mask(dropout: keras.layers.Dropout, like: tf.Tensor, training: bool | None) -> tf.Tensor | None:
    """A dropout mask from Keras's own generator, or None where nothing is dropped."""
    return dropout(tf.ones_like(like), training=True) if training and dropout.rate > 0.0 else None


def chosen(training: bool | None) -> dict[str, bool]:
    """`training` as a keyword if it was given: Keras lets an explicit None win over the mode of the layer around it."""
    return {} if training is None else {"training": training}


def parameter_dtype(dtype: str | tf.DType | None) -> str:
    """The type of parameters under that Keras policy; mixed policies would compute in another, by a silent cast."""
    return keras.dtype_policies.get(dtype).variable_dtype
