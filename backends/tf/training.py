"""Loss, clipping, optimisers, and the training of a translator, in TensorFlow and Keras."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from attention_core.errors import check, check_options, check_state
from attention_core.operators.training import ADAM, CLIP_BY_GLOBAL_NORM, MASKED_CROSS_ENTROPY, SGD, Batch
from backends.tf.arrays import Lengths, from_numpy
from backends.tf.decoders import Decoder
from backends.tf.masking import precise, size
from backends.tf.module import attached_mask, check_ids
from backends.tf.parameters import get_parameters, locate_parameters
from backends.tf.transformer import TransformerDecoder
from backends.tf.translation import EncoderDecoder, TransformerTranslator, Translator

__all__ = ["masked_cross_entropy", "clip_by_global_norm", "sgd", "adam", "Trainer"]


def masked_cross_entropy(logits: tf.Tensor, targets: tf.Tensor, valid_lens: Lengths | None = None) -> tf.Tensor:
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
    allowed = open_steps(targets, valid_lens, attached_mask(logits))
    # Cleared first: what stands in hidden steps may be NaN, and 0 · NaN is NaN in the gradient.
    losses = losses_of(tf.where(allowed[:, :, None], logits, 0.0), targets)
    total, count = tf.reduce_sum(tf.where(allowed, losses, 0.0)), tf.math.count_nonzero(allowed)
    return tf.cast(total / tf.cast(tf.maximum(count, 1), total.dtype), logits.dtype)


def open_steps(targets: tf.Tensor, valid_lens: Lengths | None, attached: tf.Tensor | None = None) -> tf.Tensor:
    """Whether each step counts in the loss, (batch, steps); attached is the mask that Keras knows of them."""
    allowed = tf.ones_like(targets, tf.bool) if attached is None else attached
    if valid_lens is None:
        return allowed
    return allowed & (tf.range(tf.cast(size(targets, 1), tf.int64)) < tf.cast(valid_lens, tf.int64)[:, None])


def losses_of(logits: tf.Tensor, targets: tf.Tensor) -> tf.Tensor:
    """The cross-entropy of each row of logits, in float32 at least."""
    return tf.nn.sparse_softmax_cross_entropy_with_logits(tf.cast(targets, tf.int64), precise(logits))


def clip_by_global_norm(
    gradients: Sequence[tf.Tensor], *, max_norm: float | None = None
) -> tuple[list[tf.Tensor], tf.Tensor]:
    """Scale all gradients by one factor, so that their global norm is at most max_norm.

    norm = √(sum over all entries g of all gradients of g²);  clipped = gradients · min(1, max_norm/norm)

    The gradient of an embedding holds a row for each token that was looked up, tf.IndexedSlices, some of them twice:
    tf.linalg.global_norm would not add those before it squares. Here they become a matrix first.
    """
    check_options(CLIP_BY_GLOBAL_NORM, max_norm=max_norm)
    dense = [tf.convert_to_tensor(gradient) for gradient in gradients]
    # Divided by the largest entry of all, gradients have squares that neither underflow nor overflow.
    wide = [precise(gradient) for gradient in dense]
    largest = tf.reduce_max([tf.reduce_max(tf.abs(gradient)) for gradient in wide])
    scale = tf.where(tf.math.is_finite(largest) & (largest > 0.0), largest, tf.ones_like(largest))
    norm = tf.linalg.global_norm([gradient / scale for gradient in wide]) * scale
    rounded = tf.cast(norm, dense[0].dtype)
    if max_norm is None:
        return dense, rounded
    factor = tf.cast(tf.where(norm > max_norm, max_norm / norm, 1.0), rounded.dtype)
    return [gradient * factor for gradient in dense], rounded


WRITTEN = (Translator, TransformerTranslator, Decoder, TransformerDecoder)


def as_written(model: EncoderDecoder) -> bool:
    """Whether calls of the translator and its decoder are those written here: not overridden."""
    calls = [(base.__call__, base.call) for base in WRITTEN]
    return all((type(layer).__call__, type(layer).call) in calls for layer in (model, model.decoder))


def sgd(learning_rate: float, *, warmup: int | None = None) -> keras.optimizers.Optimizer:
    """Stochastic gradient descent, for a Trainer.

    θ' = θ - learning_rate · g
    with warmup, step t counting from 1 has the rate learning_rate · min(t/warmup, √(warmup/t))
    """
    check_options(SGD, learning_rate=learning_rate, warmup=warmup)
    return ExactSGD(float(learning_rate), warmup)


def adam(
    learning_rate: float, beta1: float = 0.9, beta2: float = 0.999, epsilon: float = 1e-08, *, warmup: int | None = None
) -> keras.optimizers.Optimizer:
    """Adam, for a Trainer.

    θ' = θ - learning_rate · m̂ / (√v̂ + epsilon)
    with warmup, step t counting from 1 has the rate learning_rate · min(t/warmup, √(warmup/t))

    Keras's own folds the corrections into the rate, and adds its epsilon to √v, not to √v̂.
    """
    check_options(ADAM, learning_rate=learning_rate, beta1=beta1, beta2=beta2, epsilon=epsilon, warmup=warmup)
    return ExactAdam(float(learning_rate), float(beta1), float(beta2), float(epsilon), warmup)


def descend(
    optimizer: keras.optimizers.Optimizer, parameters: Sequence[tf.Tensor], gradients: Sequence[tf.Tensor]
) -> list[tf.Tensor]:
    """Return the parameters after one step of the optimiser for each row of the given gradients."""
    moved = [keras.Variable(array, dtype=array.dtype.name) for array in parameters]
    copy = optimizer.from_config(optimizer.get_config())
    copy.build(moved)
    for row in zip(*map(tf.unstack, gradients), strict=True):
        copy.apply(list(row), moved)
    return [variable.value.read_value() for variable in moved]


class Trainer:
    """Train a translator: each step computes loss and gradients of a batch, clips them, and moves the parameters.

    loss = masked_cross_entropy(model(source, inputs, source_lens), targets, target_lens)

    A step is one graph, traced once for each set of shapes. Keras lets an optimiser belong to one model alone: the
    Trainer makes its own, like the one that is given.
    """

    def __init__(
        self, model: EncoderDecoder, optimizer: keras.optimizers.Optimizer, *, max_norm: float | None = None
    ) -> None:
        check_options(CLIP_BY_GLOBAL_NORM, max_norm=max_norm)
        self.model = model
        self.max_norm = max_norm
        # TensorFlow computes on a GPU whatever it can, wherever the parameters are, unless told where.
        self.device = model.decoder.embedding.embeddings.value.device
        with tf.device(self.device):
            self.optimizer = optimizer.from_config(optimizer.get_config())
            self.parameters = list(model.trainable_variables)
            self.optimizer.build(self.parameters)
        self._train = tf.function(self.train, autograph=False)
        self._loss = tf.function(self.loss, autograph=False)

    def step(self, batch: Batch) -> tuple[tf.Tensor, tf.Tensor]:
        """Train on one batch.

        Returns (loss, norm): the loss before the step, in nats per token, and the gradients' norm before clipping.
        """
        self._check(batch)
        with tf.device(self.device):
            return self._train(batch)

    def evaluate(self, batch: Batch) -> tf.Tensor:
        """Compute the loss of one batch, in nats per token, without dropout and without a step."""
        batch = batch._replace(masks={})
        self._check(batch)
        with tf.device(self.device):
            return self._loss(batch, training=False)

    def loss(self, batch: Batch, *, training: bool | None = None) -> tf.Tensor:
        """Compute the loss of one batch; of steps that do not count in it, no logits."""
        model, targets = self.model, batch.targets
        if not as_written(model):
            logits, _ = model(**batch.arguments, training=training)
            return masked_cross_entropy(logits, targets, batch.target_lens)
        self._check(batch)
        # Not by a call, in which Keras would cast.
        allowed, lens = open_steps(targets, batch.target_lens), None
        if batch.target_lens is not None:
            lens = tf.math.count_nonzero(allowed, axis=1)
        # A recurrent decoder leaves out the other steps, a Transformer computes all at once.
        skipped = {"lens": lens} if isinstance(model, Translator) else {}
        features = model._features(**model._cast(batch.arguments), training=training, **skipped)
        logits = model.decoder._logits(tf.boolean_mask(features, allowed))
        losses = losses_of(logits, tf.boolean_mask(targets, allowed))
        count = tf.cast(tf.maximum(tf.size(losses), 1), losses.dtype)
        return tf.cast(tf.reduce_sum(losses) / count, logits.dtype)

    def seed(self, number: int) -> None:
        """Seed the generators of the model's layers, from which dropout draws."""
        # What a model holds beside its weights are the states of Keras's generators, (seed, numbers drawn), one for
        # each layer that drops: each gets a seed of its own, or layers would drop alike.
        states = [variable for variable in self.model.variables if variable.name == "seed_generator_state"]
        seeds = np.random.SeedSequence(number).generate_state(len(states))
        for state, drawn in zip(states, seeds, strict=True):
            state.assign([int(drawn), 0])

    def get_state(self) -> dict[str, np.ndarray]:
        """Return the optimiser's state: step, the steps done, and of Adam m.<name> and v.<name> of each parameter."""
        arrays = {"step": np.array(self.optimizer.iterations.numpy(), np.int64)}
        for moment in self.moments:
            kept = self._optimizer_state(moment)
            # Of what was frozen when the Trainer was made, nothing is kept: that is 0.
            read = lambda parameter, kept=kept: kept.get(id(parameter))  # noqa: E731
            arrays |= {f"{moment}.{name}": array for name, array in get_parameters(self.model, read=read).items()}
        return arrays

    def set_state(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Continue from the state of another Trainer, whose optimiser has the same options."""
        check_state(self.model.specification, self.model.sizes, self.model.variable_dtype, self.moments, arrays)
        self.optimizer.iterations.assign(int(arrays["step"]))
        for moment in self.moments:
            kept = self._optimizer_state(moment)
            for name, parameter, axes in locate_parameters(self.model):
                array = arrays[f"{moment}.{name}"]
                array = array if axes is None else array.transpose(np.argsort(axes))
                if id(parameter) in kept:
                    kept[id(parameter)].assign(from_numpy(array))

    @property
    def moments(self) -> tuple[str, ...]:
        """The names of the moments that the optimiser keeps of each parameter."""
        return ("m", "v") if isinstance(self.optimizer, ExactAdam) else ()

    def _optimizer_state(self, moment: str) -> dict[int, keras.Variable]:
        """The moments of each parameter, by the parameter's identity."""
        return dict(zip(map(id, self.parameters), getattr(self.optimizer, moment), strict=True))

    def _check(self, batch: Batch) -> None:
        """Refuse a batch that does not fit the model while its values are known: a graph sees shapes alone."""
        model, sizes = self.model, self.model.sizes
        model._check("call", **batch.arguments)
        logits = tf.TensorSpec((*batch.inputs.shape, sizes["target_vocab_size"]), model.compute_dtype)
        check(MASKED_CROSS_ENTROPY, logits=logits, targets=batch.targets, valid_lens=batch.target_lens)
        check_ids(model.encoder.specification.name, "tokens", batch.source, sizes["source_vocab_size"])
        check_ids(model.decoder.specification.name, "tokens", batch.inputs, sizes["target_vocab_size"])
        check_ids("masked_cross_entropy", "targets", batch.targets, sizes["target_vocab_size"])

    # particular to TensorFlow

    def train(self, batch: Batch) -> tuple[tf.Tensor, tf.Tensor]:
        """Take the step for a batch that was checked; TensorFlow traces it."""
        variables = [parameter.value for parameter in self.parameters]
        with tf.GradientTape() as tape:
            loss = self.loss(batch, training=True)
        gradients = tape.gradient(loss, variables, unconnected_gradients=tf.UnconnectedGradients.ZERO)
        clipped, norm = clip_by_global_norm(gradients, max_norm=self.max_norm)
        self.optimizer.apply(clipped)
        return loss, norm


# ------------------------------------------------------------------------------------------- particular to TensorFlow


class Exact(keras.optimizers.Optimizer):
    """A learning rate in float64: that of Keras is in float32, whatever the parameters are."""

    def __init__(self, learning_rate: float, warmup: int | None = None, *, name: str | None = None) -> None:
        super().__init__(learning_rate=lambda: learning_rate, name=name)
        self.warmup = warmup
        self._learning_rate = keras.Variable(learning_rate, dtype="float64", trainable=False, name="learning_rate")

    def get_config(self) -> dict[str, Any]:
        """The constructor's arguments."""
        return {"learning_rate": float(self.learning_rate.numpy()), "warmup": self.warmup, "name": self.name}

    def rate(self, learning_rate: keras.Variable, step: tf.Tensor) -> tf.Tensor:
        """The rate of a step, counted from 1 in float64."""
        rate = tf.convert_to_tensor(learning_rate)
        return rate if self.warmup is None else rate * tf.minimum(step / self.warmup, tf.sqrt(self.warmup / step))


@keras.saving.register_keras_serializable(package="attention_parity")
class ExactSGD(Exact):
    """Stochastic gradient descent: θ' = θ - learning_rate · g."""

    def update_step(self, gradient: tf.Tensor, variable: tf.Variable, learning_rate: keras.Variable) -> None:
        """Move one parameter."""
        rate = self.rate(learning_rate, tf.cast(self.iterations + 1, tf.float64))
        variable.assign_sub(tf.cast(rate, variable.dtype) * gradient)


@keras.saving.register_keras_serializable(package="attention_parity")
class ExactAdam(Exact):
    """Adam as it was published: θ' = θ - learning_rate · m̂ / (√v̂ + epsilon)."""

    def __init__(
        self,
        learning_rate: float,
        beta1: float,
        beta2: float,
        epsilon: float,
        warmup: int | None = None,
        *,
        name: str | None = None,
    ) -> None:
        super().__init__(learning_rate, warmup, name=name)
        self.beta1, self.beta2, self.epsilon = beta1, beta2, epsilon

    def build(self, variables: list[keras.Variable]) -> None:
        """Make m and v of each parameter."""
        if not self.built:
            super().build(variables)
            self.m = self.add_optimizer_variables(variables, "m")
            self.v = self.add_optimizer_variables(variables, "v")

    def update_step(self, gradient: tf.Tensor, variable: tf.Variable, learning_rate: keras.Variable) -> None:
        """Move one parameter, and its m and v."""
        index, dtype = self._get_variable_index(variable), variable.dtype
        m, v = self.m[index].value, self.v[index].value
        # In float32, 1 - 0.999 has lost three digits: what depends on the step alone is rounded last.
        step = tf.cast(self.iterations + 1, tf.float64)
        rate = tf.cast(self.rate(learning_rate, step) / (1.0 - self.beta1**step), dtype)
        root = tf.cast(tf.sqrt(1.0 - self.beta2**step), dtype)
        mean = m.assign(self.beta1 * m + (1.0 - self.beta1) * gradient)
        square = v.assign(self.beta2 * v + (1.0 - self.beta2) * tf.square(gradient))
        variable.assign_sub(rate * mean / (tf.sqrt(square) / root + self.epsilon))

    def get_config(self) -> dict[str, Any]:
        """The constructor's arguments."""
        return {**super().get_config(), "beta1": self.beta1, "beta2": self.beta2, "epsilon": self.epsilon}
