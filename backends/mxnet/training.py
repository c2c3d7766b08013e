"""Loss, clipping, optimisers, and the training of a translator, in MXNet."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import SimpleNamespace

import mxnet as mx
import numpy
from mxnet import autograd, np, npx

from attention_core.errors import check_options, check_state
from attention_core.operators.training import ADAM, CLIP_BY_GLOBAL_NORM, MASKED_CROSS_ENTROPY, SGD, Batch, rate_at
from backends.mxnet.arrays import Lengths, check, from_numpy, lengths
from backends.mxnet.decoders import Decoder
from backends.mxnet.masking import precise
from backends.mxnet.module import check_ids
from backends.mxnet.parameters import get_parameters, locate_parameters
from backends.mxnet.transformer import TransformerDecoder
from backends.mxnet.translation import EncoderDecoder, TransformerTranslator, Translator

__all__ = ["masked_cross_entropy", "clip_by_global_norm", "sgd", "adam", "Trainer"]


def masked_cross_entropy(logits: np.ndarray, targets: np.ndarray, valid_lens: Lengths | None = None) -> np.ndarray:
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
    if targets.size == 0:  # over an empty axis, MXNet reads foreign memory or crashes
        return np.zeros((), dtype=logits.dtype, ctx=logits.ctx)
    count = targets.size
    if valid_lens is not None:
        lens = lengths(valid_lens, targets.ctx).astype("int64")
        lens = np.minimum(np.maximum(lens, 0), targets.shape[1])  # a negative one is a crash
        count = np.maximum(np.sum(lens), 1)
        # Cleared first: what stands in hidden steps may be NaN, and 0 · NaN is NaN in the gradient. MXNet's where does
        # the same, 30 times slower.
        logits = npx.sequence_mask(logits, lens, use_sequence_length=True, axis=1)
    losses = losses_of(logits, targets)
    if valid_lens is not None:
        losses, count = npx.sequence_mask(losses, lens, use_sequence_length=True, axis=1), count.astype(losses.dtype)
    return (np.sum(losses) / count).astype(logits.dtype)


def losses_of(logits: np.ndarray, targets: np.ndarray) -> np.ndarray:
    """The cross-entropy of each row of logits, in float32 at least."""
    wide = precise(logits)
    # The softmax is spelled out: in float32, npx.log_softmax is off by 30 eps.
    shifted = wide - np.max(wide, axis=-1, keepdims=True).detach()
    return np.log(np.sum(np.exp(shifted), axis=-1)) - npx.pick(shifted, targets.astype("int32"))


def clip_by_global_norm(
    gradients: Sequence[np.ndarray], *, max_norm: float | None = None
) -> tuple[list[np.ndarray], np.ndarray]:
    """Scale all gradients by one factor, so that their global norm is at most max_norm.

    norm = √(sum over all entries g of all gradients of g²);  clipped = gradients · min(1, max_norm/norm)

    gluon.utils.clip_global_norm adds 1e-8 to the norm; here nothing is added.
    """
    check_options(CLIP_BY_GLOBAL_NORM, max_norm=max_norm)
    rows = [gradient.reshape(-1) for gradient in gradients if gradient.size]
    norm = global_norm(rows) if rows else np.zeros(())
    if max_norm is None:
        return list(gradients), norm
    factor = np.where(norm > max_norm, max_norm / norm, np.ones_like(norm))
    return [gradient * factor for gradient in gradients], norm


def global_norm(rows: Sequence[np.ndarray]) -> np.ndarray:
    """The root of the sum of the squares of all entries; there is at least one."""
    # Divided by the largest entry of all, gradients have squares that neither underflow nor overflow.
    largest = np.max(np.stack([np.max(np.abs(row)) for row in rows]))
    ones = np.ones_like(largest)
    scale = np.where(np.isfinite(largest), np.where(largest > 0, largest, ones), ones)
    rows = [row / scale for row in rows]
    return np.sqrt(np.sum(np.stack([np.dot(row, row) for row in rows]))) * scale


WRITTEN = (Translator, TransformerTranslator, Decoder, TransformerDecoder)


def as_written(model: EncoderDecoder) -> bool:
    """Whether calls of the translator and its decoder are those written here: not overridden and not hooked."""
    calls = [(base.__call__, base.forward) for base in WRITTEN]
    for layer in (model, model.decoder):
        if layer._forward_hooks or layer._forward_pre_hooks or (type(layer).__call__, type(layer).forward) not in calls:
            return False
    return True


Recipe = Callable[[], "Optimizer"]
"""What an optimiser is before a Trainer begins: MXNet's optimisers count the steps of the parameters they have seen."""


def sgd(learning_rate: float, *, warmup: int | None = None) -> Recipe:
    """Stochastic gradient descent, for a Trainer.

    θ' = θ - learning_rate · g
    with warmup, step t counting from 1 has the rate learning_rate · min(t/warmup, √(warmup/t))
    """
    check_options(SGD, learning_rate=learning_rate, warmup=warmup)
    return partial(GradientDescent, learning_rate=learning_rate, warmup=warmup)


def adam(
    learning_rate: float, beta1: float = 0.9, beta2: float = 0.999, epsilon: float = 1e-08, *, warmup: int | None = None
) -> Recipe:
    """Adam, for a Trainer.

    θ' = θ - learning_rate · m̂ / (√v̂ + epsilon)
    with warmup, step t counting from 1 has the rate learning_rate · min(t/warmup, √(warmup/t))

    MXNet's own adds epsilon to √v', not to √v̂.
    """
    check_options(ADAM, learning_rate=learning_rate, beta1=beta1, beta2=beta2, epsilon=epsilon, warmup=warmup)
    return partial(Adam, learning_rate=learning_rate, beta1=beta1, beta2=beta2, epsilon=epsilon, warmup=warmup)


def descend(optimizer: Recipe, parameters: Sequence[np.ndarray], gradients: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Return the parameters after one step of the optimiser for each row of the given gradients."""
    moved = [array.copy() for array in parameters]
    updater = mx.optimizer.get_updater(optimizer())
    with autograd.pause():
        for row in zip(*gradients, strict=True):
            updater(list(range(len(moved))), list(row), moved)
    return moved


class Trainer:
    """Train a translator: each step computes loss and gradients of a batch, clips them, and moves the parameters.

    loss = masked_cross_entropy(model(source, inputs, source_lens), targets, target_lens)

    gluon.Trainer wants the gradients where backward left them; MXNet's updater takes the clipped ones as they are.
    """

    def __init__(self, model: EncoderDecoder, optimizer: Recipe, *, max_norm: float | None = None) -> None:
        check_options(CLIP_BY_GLOBAL_NORM, max_norm=max_norm)
        self.model = model
        self.optimizer = optimizer()
        self.updater = mx.optimizer.get_updater(self.optimizer)
        self.parameters = model.collect_params()
        self.max_norm = max_norm

    def step(self, batch: Batch) -> tuple[np.ndarray, np.ndarray]:
        """Train on one batch.

        Returns (loss, norm): the loss before the step, in nats per token, and the gradients' norm before clipping.
        """
        self.parameters.zero_grad()  # backward leaves alone what the loss does not depend on
        with autograd.record():
            loss = self.loss(batch)
        if batch.targets.size:  # MXNet refuses to differentiate what depends on no parameter
            loss.backward()
        trained = [parameter for parameter in self.parameters.values() if parameter.grad_req != "null"]
        clipped, norm = clip_by_global_norm([parameter.grad() for parameter in trained], max_norm=self.max_norm)
        self.updater([parameter.name for parameter in trained], clipped, [parameter.data() for parameter in trained])
        return loss.detach(), norm

    def evaluate(self, batch: Batch) -> np.ndarray:
        """Compute the loss of one batch, in nats per token, without dropout and without a step."""
        with autograd.pause():
            return self.loss(batch._replace(masks={}))

    def loss(self, batch: Batch) -> np.ndarray:
        """Compute the loss of one batch; of steps that do not count in it, no logits."""
        model, targets = self.model, batch.targets
        if not as_written(model):
            return masked_cross_entropy(model(**batch.arguments)[0], targets, batch.target_lens)
        self._check(batch)
        rows = open_rows(targets, batch.target_lens)
        if rows.size == 0:  # over an empty axis, MXNet reads foreign memory or crashes
            return masked_cross_entropy(model(**batch.arguments)[0], targets, batch.target_lens)
        features = model._features(**batch.arguments)
        logits = model.decoder._logits(np.take(np.reshape(features, (-1, features.shape[-1])), rows, axis=0))
        return (np.sum(losses_of(logits, np.take(np.reshape(targets, (-1,)), rows))) / rows.size).astype(logits.dtype)

    def seed(self, number: int) -> None:
        """Seed MXNet's generator, from which dropout draws."""
        mx.random.seed(number)

    def get_state(self) -> dict[str, numpy.ndarray]:
        """Return the optimiser's state: step, the steps done, and of Adam m.<name> and v.<name> of each parameter."""
        arrays = {"step": numpy.array(self.optimizer.num_update, numpy.int64)}
        blank = [None] * len(self.optimizer.moments)
        for place, moment in enumerate(self.optimizer.moments):
            read = lambda parameter, place=place: self.updater.states.get(parameter.name, blank)[place]  # noqa: E731
            arrays |= {f"{moment}.{name}": array for name, array in get_parameters(self.model, read=read).items()}
        return arrays

    def set_state(self, arrays: Mapping[str, numpy.ndarray]) -> None:
        """Continue from the state of another Trainer, whose optimiser has the same options."""
        moments = self.optimizer.moments
        check_state(
            self.model.specification, self.model.sizes, self.model.decoder.embedding.weight.dtype, moments, arrays
        )
        self.optimizer.resume(int(arrays["step"]))
        for name, parameter, axes in locate_parameters(self.model):
            given = [arrays[f"{moment}.{name}"] for moment in moments]
            given = given if axes is None else [array.transpose(numpy.argsort(axes)) for array in given]
            ctx = parameter.data().ctx
            self.updater.states[parameter.name] = tuple(from_numpy(array).as_in_ctx(ctx) for array in given)
            self.updater.states_synced[parameter.name] = True

    def _check(self, batch: Batch) -> None:
        """Refuse a batch that does not fit the model; the encoder checks its tokens itself."""
        model, vocab_size = self.model, self.model.sizes["target_vocab_size"]
        model._check("call", **batch.arguments)
        logits = SimpleNamespace(shape=(*batch.inputs.shape, vocab_size), dtype=model.decoder.embedding.weight.dtype)
        check(MASKED_CROSS_ENTROPY, logits=logits, targets=batch.targets, valid_lens=batch.target_lens)
        check_ids(model.decoder.specification.name, "tokens", batch.inputs, vocab_size)
        check_ids("masked_cross_entropy", "targets", batch.targets, vocab_size)


# ------------------------------------------------------------------------------------------------ particular to MXNet


def open_rows(targets: np.ndarray, valid_lens: Lengths | None) -> np.ndarray:
    """The places of the steps that count in the loss, b · steps + t."""
    batch, steps = targets.shape
    lens = numpy.full(batch, steps) if valid_lens is None else lengths(valid_lens, targets.ctx).asnumpy()
    return np.array(numpy.flatnonzero(numpy.arange(steps) < lens[:, None]), dtype="int64", ctx=targets.ctx)


class Optimizer(mx.optimizer.Optimizer):
    """An optimiser with options in float64: those of MXNet are in float32, whatever the parameters are."""

    moments: tuple[str, ...] = ()

    def __init__(self, learning_rate: float, warmup: int | None) -> None:
        super().__init__(learning_rate=learning_rate)
        self.warmup = warmup

    def create_state(self, index: str, weight: mx.nd.NDArray) -> tuple[np.ndarray, ...]:
        """The moments of one parameter before its first step."""
        return tuple(np.zeros_like(weight.as_np_ndarray()) for _ in self.moments)

    def update(self, index: str, weight: mx.nd.NDArray, grad: mx.nd.NDArray, state: tuple[np.ndarray, ...]) -> None:
        """Move one parameter and its moments, in place."""
        self._update_count(index)
        gradient = grad.as_np_ndarray()  # an updater passes legacy arrays; this is the same memory
        if self.rescale_grad != 1.0:
            gradient = gradient * self.rescale_grad
        step = self._index_update_count[index]
        self.move(weight.as_np_ndarray(), gradient, state, rate_at(self._get_lr(index), self.warmup, step), step)

    def move(
        self, weight: np.ndarray, gradient: np.ndarray, state: tuple[np.ndarray, ...], rate: float, step: int
    ) -> None:
        """The formula."""
        raise NotImplementedError

    def resume(self, steps: int) -> None:
        """Continue to count from that step."""
        self.begin_num_update = self.num_update = steps
        self._index_update_count.clear()  # what is not in it begins with begin_num_update


class GradientDescent(Optimizer):
    """Stochastic gradient descent, as MXNet runs it."""

    def move(
        self, weight: np.ndarray, gradient: np.ndarray, state: tuple[np.ndarray, ...], rate: float, step: int
    ) -> None:
        """The formula."""
        weight -= rate * gradient


class Adam(Optimizer):
    """Adam, as MXNet runs it."""

    moments = ("m", "v")

    def __init__(self, learning_rate: float, beta1: float, beta2: float, epsilon: float, warmup: int | None) -> None:
        super().__init__(learning_rate, warmup)
        self.beta1, self.beta2, self.epsilon = beta1, beta2, epsilon

    def move(
        self, weight: np.ndarray, gradient: np.ndarray, state: tuple[np.ndarray, ...], rate: float, step: int
    ) -> None:
        """The formula, in place wherever that spares memory."""
        m, v = state
        m *= self.beta1
        m += (1 - self.beta1) * gradient
        v *= self.beta2
        v += (1 - self.beta2) * np.square(gradient)
        divisor = v / (1 - self.beta2**step)
        np.sqrt(divisor, out=divisor)
        divisor += self.epsilon
        change = m * (rate / (1 - self.beta1**step))
        change /= divisor
        weight -= change
