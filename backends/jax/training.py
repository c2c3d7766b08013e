"""Loss, clipping, optimisers, and the training of a translator, in JAX."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache, reduce
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

from attention_core.errors import check, check_options, check_state
from attention_core.operators.training import ADAM, CLIP_BY_GLOBAL_NORM, MASKED_CROSS_ENTROPY, SGD, Batch
from backends.jax import kernels
from backends.jax.arrays import Lengths
from backends.jax.decoders import Decoder
from backends.jax.graphs import Split
from backends.jax.masking import precise
from backends.jax.module import check_ids
from backends.jax.parameters import get_parameters, set_parameters
from backends.jax.transformer import TransformerDecoder
from backends.jax.translation import EncoderDecoder, TransformerTranslator, Translator

__all__ = ["masked_cross_entropy", "clip_by_global_norm", "sgd", "adam", "Trainer"]

MOMENTS = {"m": "mu", "v": "nu"}
"""Where optax.adam keeps what the specification calls m and v."""

ROWS_MIN_ELEMENTS = 2**19
"""From so many logits on, batch · steps · vocab_size, those of the steps that count are computed alone."""


def masked_cross_entropy(logits: jax.Array, targets: jax.Array, valid_lens: Lengths | None = None) -> jax.Array:
    """Average the cross-entropy of the logits over the open steps; 0 if no step is open.

    loss = sum over open (b, t) of -ln softmax(logits[b, t])[targets[b, t]] / number of open (b, t)

    Every token of the batch has the same weight, in long and in short sentences. Steps that are not open, NaN and inf
    included, have no effect, but their targets must be in the vocabulary.

    Args:
        logits: (batch, steps, vocab_size); scores of each token (natural logarithm)
        targets: integers (batch, steps); the correct tokens
        valid_lens (default None): integers (batch,), or a list; step t is open where t < valid_len; other steps have no
            effect
    Returns:
        loss: (); nats per token; exp(loss) is the perplexity
    Source: Sutskever et al. 2014, section 3.2, arXiv:1409.3215, with a mean over tokens in place of sentences
    Example:
        loss = attention.masked_cross_entropy(logits, targets)
    """
    check(MASKED_CROSS_ENTROPY, logits=logits, targets=targets, valid_lens=valid_lens)
    check_ids("masked_cross_entropy", "targets", targets, logits.shape[-1])
    allowed = open_steps(targets, valid_lens)
    # Cleared first: what stands in hidden steps may be NaN, and 0 · NaN is NaN in the gradient.
    losses = losses_of(jnp.where(allowed[:, :, None], logits, 0.0), targets)
    return (jnp.where(allowed, losses, 0.0).sum() / jnp.maximum(allowed.sum(), 1)).astype(logits.dtype)


def open_steps(targets: jax.Array, valid_lens: Lengths | None) -> jax.Array:
    """Whether each step counts in the loss, (batch, steps)."""
    if valid_lens is None:
        return jnp.ones(targets.shape, bool)
    return jnp.arange(targets.shape[1]) < jnp.asarray(valid_lens)[:, None]


def losses_of(logits: jax.Array, targets: jax.Array) -> jax.Array:
    """The cross-entropy of each row of logits, in float32 at least."""
    # Not optax's cross-entropy, which subtracts a logit from the whole normaliser: large logits would cost it digits.
    return -jnp.take_along_axis(jax.nn.log_softmax(precise(logits)), targets[..., None], axis=-1)[..., 0]


def clip_by_global_norm(
    gradients: Sequence[jax.Array], *, max_norm: float | None = None
) -> tuple[list[jax.Array], jax.Array]:
    """Scale all gradients by one factor, so that their global norm is at most max_norm.

    norm = √(sum over all entries g of all gradients of g²);  clipped = gradients · min(1, max_norm/norm)
    """
    check_options(CLIP_BY_GLOBAL_NORM, max_norm=max_norm)
    # Divided by the largest entry of all, gradients have squares that neither underflow nor overflow.
    largest = reduce(jnp.maximum, [jnp.max(jnp.abs(gradient), initial=0.0) for gradient in gradients], 0.0)
    scale = jnp.where(jnp.isfinite(largest) & (largest > 0.0), largest, 1.0)
    norm = optax.tree.norm([gradient / scale for gradient in gradients]) * scale
    if max_norm is None:
        return list(gradients), norm
    # float: a numpy.float64, which is one, too, would give its dtype to the gradients.
    factor = jnp.where(norm > float(max_norm), float(max_norm) / norm, 1.0)
    return [gradient * factor for gradient in gradients], norm


WRITTEN = (Translator, TransformerTranslator, Decoder, TransformerDecoder)


def as_written(model: EncoderDecoder) -> bool:
    """Whether calls of the translator and its decoder are those written here: not overridden."""
    return all(type(layer).__call__ in [base.__call__ for base in WRITTEN] for layer in (model, model.decoder))


# Kept, since optax compares by identity: the same numbers are then the same optimiser, and a Trainer finds its steps
# compiled. Called with Python's floats, which take the dtype of the parameters.
kept_sgd = cache(optax.sgd)
kept_adam = cache(optax.adam)


def sgd(learning_rate: float, *, warmup: int | None = None) -> optax.GradientTransformation:
    """Stochastic gradient descent, for a Trainer.

    θ' = θ - learning_rate · g
    with warmup, step t counting from 1 has the rate learning_rate · min(t/warmup, √(warmup/t))
    """
    check_options(SGD, learning_rate=learning_rate, warmup=warmup)
    return kept_sgd(with_schedule(float(learning_rate), warmup))


def adam(
    learning_rate: float, beta1: float = 0.9, beta2: float = 0.999, epsilon: float = 1e-08, *, warmup: int | None = None
) -> optax.GradientTransformation:
    """Adam, for a Trainer.

    θ' = θ - learning_rate · m̂ / (√v̂ + epsilon)
    with warmup, step t counting from 1 has the rate learning_rate · min(t/warmup, √(warmup/t))

    optax's own has the same formula. Without jax_enable_x64 it computes 1 - beta2ᵗ in float32: the first step is then
    off by 7e-6 of its length.
    """
    check_options(ADAM, learning_rate=learning_rate, beta1=beta1, beta2=beta2, epsilon=epsilon, warmup=warmup)
    return kept_adam(with_schedule(float(learning_rate), warmup), float(beta1), float(beta2), float(epsilon))


@cache
def with_schedule(learning_rate: float, warmup: int | None) -> optax.ScalarOrSchedule:
    """The learning rate, or a function of the number of steps before a step."""

    def rate(count: jax.Array) -> jax.Array:
        step = (count + 1).astype(jnp.result_type(float))  # a quotient of int32 has float32, even with jax_enable_x64
        return learning_rate * jnp.minimum(step / warmup, jnp.sqrt(warmup / step))

    return learning_rate if warmup is None else rate


def descend(
    optimizer: optax.GradientTransformation, parameters: Sequence[jax.Array], gradients: Sequence[jax.Array]
) -> list[jax.Array]:
    """Return the parameters after one step of the optimiser for each row of the given gradients."""
    moved = list(parameters)
    state = optimizer.init(moved)
    for row in zip(*gradients, strict=True):
        updates, state = optimizer.update(list(row), state, moved)
        moved = optax.apply_updates(moved, updates)
    return moved


class Trainer:
    """Train a translator: each step computes loss and gradients of a batch, clips them, and moves the parameters.

    loss = masked_cross_entropy(model(source, inputs, source_lens), targets, target_lens)

    step and evaluate are compiled once for each set of shapes, for all Trainers of equal models and optimisers. They
    bring their own mode: what they drop does not depend on that of the model, which stays as it is.
    """

    def __init__(
        self, model: EncoderDecoder, optimizer: optax.GradientTransformation, *, max_norm: float | None = None
    ) -> None:
        check_options(CLIP_BY_GLOBAL_NORM, max_norm=max_norm)
        self.model = model
        self.optimizer = nnx.Optimizer(model, optimizer, wrt=nnx.Param)
        self.device = model.decoder.embedding.embedding[...].sharding
        self.training = Split((model, self.optimizer), train, self.device, max_norm)
        self.evaluation = Split(model, evaluate, self.device)

    def step(self, batch: Batch) -> tuple[jax.Array, jax.Array]:
        """Train on one batch.

        Returns (loss, norm): the loss before the step, in nats per token, and the gradients' norm before clipping.
        """
        self._check(batch)
        loss, norm, arrays = self.training.run(batch, self._open_rows(batch))
        self.training.write(arrays)
        return loss, norm

    def evaluate(self, batch: Batch) -> jax.Array:
        """Compute the loss of one batch, in nats per token, without dropout and without a step."""
        self._check(batch)
        return self.evaluation.run(batch._replace(masks={}), self._open_rows(batch))

    def loss(self, batch: Batch) -> jax.Array:
        """Compute the loss of one batch, in the mode of the model, and not compiled as a whole."""
        self._check(batch)
        return loss_of(self.model, batch, self._open_rows(batch))

    def seed(self, number: int) -> None:
        """Seed the model's streams of random numbers, from which dropout draws."""
        streams = [node for _, node in nnx.iter_graph(self.model) if isinstance(node, nnx.RngStream)]
        nnx.reseed(self.model, **{stream.tag: number for stream in streams})

    def get_state(self) -> dict[str, np.ndarray]:
        """Return the optimiser's state: step, the steps done, and of Adam m.<name> and v.<name> of each parameter."""
        arrays: dict[str, np.ndarray] = {"step": np.array(self.optimizer.step[...], np.int64)}
        like = nnx.clone(self.model)
        for moment in self.moments:
            nnx.update(like, self._optimizer_state(MOMENTS[moment]))
            arrays |= {f"{moment}.{name}": array for name, array in get_parameters(like).items()}
        return arrays

    def set_state(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Continue from the state of another Trainer, whose optimiser has the same options."""
        dtype = self.model.decoder.embedding.embedding.dtype
        check_state(self.model.specification, self.model.sizes, dtype, self.moments, arrays)
        like = nnx.clone(self.model)
        for moment in self.moments:
            set_parameters(like, {name: arrays[f"{moment}.{name}"] for name in get_parameters(self.model)})
            nnx.update(self._optimizer_state(MOMENTS[moment]), nnx.state(like, nnx.Param))
        # optax's Adam and its schedules count for themselves.
        counters = optax.tree.get_all_with_path(self.optimizer.opt_state, "count")
        for counter in (self.optimizer.step, *(counter for _, counter in counters)):
            counter[...] = jnp.array(arrays["step"], counter.dtype)

    @property
    def moments(self) -> tuple[str, ...]:
        """The names of the moments that the optimiser keeps of each parameter."""
        return tuple(moment for moment, name in MOMENTS.items() if self._optimizer_state(name) is not None)

    def _optimizer_state(self, name: str) -> Any:
        """The state of optax under that name, or None."""
        return optax.tree.get(self.optimizer.opt_state, name)

    def _check(self, batch: Batch) -> None:
        """Refuse a batch that does not fit the model while its values are known: no compiled function sees them."""
        model, sizes = self.model, self.model.sizes
        model._check("call", **batch.arguments)
        dtype = model.decoder.embedding.embedding.dtype if model.dtype is None else model.dtype
        logits = jax.ShapeDtypeStruct((*batch.inputs.shape, sizes["target_vocab_size"]), dtype)
        check(MASKED_CROSS_ENTROPY, logits=logits, targets=batch.targets, valid_lens=batch.target_lens)
        check_ids(model.encoder.specification.name, "tokens", batch.source, sizes["source_vocab_size"])
        check_ids(model.decoder.specification.name, "tokens", batch.inputs, sizes["target_vocab_size"])
        check_ids("masked_cross_entropy", "targets", batch.targets, sizes["target_vocab_size"])

    # particular to JAX

    def _open_rows(self, batch: Batch) -> np.ndarray | None:
        """The places of the steps that count in the loss, b · steps + t, or None: then all have logits.

        Their number is a multiple of an eighth of all, filled up by a place outside, so that compiled functions are
        few. With few logits, on a mesh, with unknown values, and where a call is overridden, all steps are taken.
        """
        targets, lens, vocabulary = batch.targets, batch.target_lens, self.model.decoder.embedding.embedding
        known = lens is not None and not isinstance(lens, jax.core.Tracer) and len(self.device.device_set) == 1
        known = known and targets.size > 0 and as_written(self.model)
        if not (known and kernels.use_blocks(targets, vocabulary, ROWS_MIN_ELEMENTS, ROWS_MIN_ELEMENTS)):
            return None
        rows = np.flatnonzero(np.arange(targets.shape[1]) < np.asarray(lens)[:, None])
        step = -(-targets.size // 8)
        count = -(-len(rows) // step) * step
        return np.pad(rows, (0, count - len(rows)), constant_values=targets.size).astype(np.int32)


# ------------------------------------------------------------------------------------------------ particular to JAX


def train(
    objects: tuple[EncoderDecoder, nnx.Optimizer], batch: Batch, rows: jax.Array | None, max_norm: float | None
) -> tuple[jax.Array, jax.Array, list[jax.Array]]:
    """Take one step; returns (loss, norm, all arrays of model and optimiser after it)."""
    model, optimizer = objects
    model.train()
    loss, gradients = nnx.value_and_grad(loss_of)(model, batch, rows)
    arrays, structure = jax.tree.flatten(gradients)
    clipped, norm = clip_by_global_norm(arrays, max_norm=max_norm)
    optimizer.update(model, jax.tree.unflatten(structure, clipped))
    return loss, norm, jax.tree.leaves(nnx.state(objects))


def evaluate(model: EncoderDecoder, batch: Batch, rows: jax.Array | None) -> jax.Array:
    """Compute the loss of one batch without dropout."""
    model.eval()
    return loss_of(model, batch, rows)


def loss_of(model: EncoderDecoder, batch: Batch, rows: jax.Array | None) -> jax.Array:
    """Compute the loss of one batch, in the mode of the model; logits of these rows alone, if any are given."""
    targets = batch.targets
    if rows is None:
        return masked_cross_entropy(model(**batch.arguments)[0], targets, batch.target_lens)
    features = model._features(**batch.arguments)
    taken = features.reshape(-1, features.shape[-1]).at[rows].get(mode="fill", fill_value=0)
    words = targets.reshape(-1).at[rows].get(mode="fill", fill_value=0)
    logits, counted = model.decoder._logits(taken), rows < targets.size
    total = jnp.where(counted, losses_of(logits, words), 0.0).sum()
    return (total / jnp.maximum(counted.sum(), 1)).astype(logits.dtype)
