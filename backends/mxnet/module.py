"""The base class of layers in MXNet: options, the check of a call, initial values and dropout masks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import mxnet as mx
from mxnet import autograd, np, npx
from mxnet.gluon import Block, nn

from attention_core.errors import check_options, check_tokens
from attention_core.specification import Layer
from backends.mxnet.arrays import check


class Specified(Block):
    """A layer of the specification, with checked options and checked calls.

    A constructor hands over its arguments, `locals()`, of which the specification's options are taken. A public method
    checks its arguments, once, and calls methods that begin with an underscore, which check nothing.
    Gluon's own __call__, which runs the hooks and enters `forward`, stands between the two where a layer is called.
    """

    specification: Layer

    def __init__(self, arguments: Mapping[str, Any]) -> None:
        super().__init__(prefix=arguments["prefix"], params=arguments["params"])
        options = {option.name: arguments[option.name] for option in self.specification.options}
        self.sizes = check_options(self.specification, **options)

    def _check(self, method: str, **arguments: Any) -> None:
        """Refuse arguments that do not fit the layer or each other."""
        operator = self.specification.method(method)
        operator = operator.time_major if self.sizes.get("time_major") else operator
        check(operator, self.sizes, dtype_of(self), **arguments)

    # particular to MXNet

    def initialize(
        self,
        init: mx.init.Initializer | None = None,
        ctx: mx.Context | list[mx.Context] | None = None,
        verbose: bool = False,
        force_reinit: bool = False,
    ) -> None:
        """Initialize the matrices; without an initializer, all values are those of the constructor.

        Biases and vectors keep initializers of their own, as biases do in Gluon. A block around the layer needs
        force_reinit=True: the layer has values, which Gluon does not replace otherwise, but warns.
        """
        if init is not None and verbose:
            init.set_verbosity(verbose)
        for parameter in self.collect_params().values():
            if init is not None or force_reinit:
                chosen = init or parameter.drawn if hasattr(parameter, "drawn") else None
                parameter.initialize(chosen, ctx, force_reinit=True)
            elif ctx is not None:
                parameter.reset_ctx(ctx)


def dtype_of(layer: Block) -> Any:
    """Return the floating type of a layer's parameters; None if it has none."""
    return next((parameter.dtype for parameter in layer.collect_params().values()), None)


def draw_mask(rate: float, like: np.ndarray, *, shape: tuple[int, ...] | None = None) -> np.ndarray | None:
    """Draw a dropout mask, in the shape of an array unless another is given; None where nothing is dropped."""
    shape = like.shape if shape is None else shape
    if rate == 0.0 or 0 in shape or not autograd.is_training():
        return None
    return npx.dropout(np.ones(shape, dtype=like.dtype, ctx=like.ctx), p=rate)


def check_ids(title: str, name: str, tokens: np.ndarray, vocab_size: int) -> None:
    """Refuse token ids outside the vocabulary."""
    if tokens.size:
        ids = tokens.asnumpy()
        check_tokens(title, name, int(ids.min()), int(ids.max()), vocab_size)


# ------------------------------------------------------------------------------------------------ particular to MXNet


class Number(Block):
    """A parameter without axes: MXNet cannot set one, so it is stored with one entry, and read and set here."""

    def __init__(self, value: float, *, dtype: str) -> None:
        super().__init__()
        with self.name_scope():
            self.value = self.params.get("value", shape=(1,), dtype=dtype, init=mx.init.Constant(value))

    def data(self) -> np.ndarray:
        """Return the number, as a parameter does."""
        return self.value.data().reshape(())

    def grad(self) -> np.ndarray:
        """Return its gradient, as a parameter does."""
        return self.value.grad().reshape(())

    def set_data(self, number: np.ndarray) -> None:
        """Set it, as a parameter does."""
        self.value.set_data(number.reshape(1))


class Uniform(mx.init.Uniform):
    """Values between -scale and scale, in every floating type: MXNet's own draws float32 alone."""

    def _init_weight(self, name: str, array: np.ndarray) -> None:
        array[:] = np.random.uniform(-self.scale, self.scale, array.shape).astype(array.dtype)


def initialise(block: Block) -> None:
    """Initialize the block's parameters, since their sizes are known, except those shared with another block."""
    for parameter in block.collect_params().values():
        if parameter._data is None:
            parameter.initialize()
            # The bias of a recurrent layer has a row for each gate, and is no matrix.
            if len(parameter.shape) > 1 and not parameter.name.endswith("_b"):
                # Its initializer would win against that of a later call.
                parameter.drawn, parameter.init = parameter.init, None


def linear(inputs: int, outputs: int, *, use_bias: bool, dtype: str) -> nn.Dense:
    """Make a linear map of the last axis."""
    drawn = Uniform(inputs**-0.5)
    return nn.Dense(
        outputs,
        in_units=inputs,
        flatten=False,
        use_bias=use_bias,
        dtype=dtype,
        weight_initializer=drawn,
        bias_initializer=drawn,
    )


def project(dense: nn.Dense, inputs: np.ndarray) -> np.ndarray:
    """Project the inputs by a layer; of empty ones, MXNet would write foreign memory into gradients."""
    if inputs.size == 0:
        return np.zeros((*inputs.shape[:-1], dense.weight.shape[0]), dtype=inputs.dtype, ctx=inputs.ctx)
    return dense(inputs)


def embedding(vocab_size: int, embed_size: int, *, dtype: str) -> nn.Embedding:
    """Make a table with a row for each token id."""
    return nn.Embedding(vocab_size, embed_size, dtype=dtype, weight_initializer=Uniform(embed_size**-0.5))


def embed(layer: nn.Embedding, tokens: np.ndarray) -> np.ndarray:
    """Look up the rows of the tokens; of none, MXNet would read foreign memory or crash."""
    if tokens.size == 0:
        return np.zeros((*tokens.shape, layer.weight.shape[1]), dtype=layer.weight.dtype, ctx=tokens.ctx)
    return layer(tokens)
