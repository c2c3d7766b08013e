"""Loss, clipping, optimisers, and the training of a translator."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from attention_core import differentiation
from attention_core.errors import check_options, check_state, check_tokens
from attention_core.operators.training import ADAM, CLIP_BY_GLOBAL_NORM, MASKED_CROSS_ENTROPY, SGD, Batch, rate_at
from attention_core.reference.arrays import check, promote
from attention_core.reference.masking import log_softmax_over
from attention_core.reference.translation import TransformerTranslator, Translator

__all__ = ["masked_cross_entropy", "clip_by_global_norm", "sgd", "adam", "Trainer"]

Arrays = dict[str, np.ndarray]
Update = Callable[[Mapping[str, np.ndarray], Mapping[str, np.ndarray], Arrays], Arrays]
"""Parameters, gradients and the optimiser's state to the parameters after a step; the state is changed in place."""


def masked_cross_entropy(logits: np.ndarray, targets: np.ndarray, valid_lens: np.ndarray | None = None) -> np.ndarray:
    """Average the cross-entropy of the logits over the open steps; 0 if no step is open.

    loss = sum over open (b, t) of -ln softmax(logits[b, t])[targets[b, t]] / number of open (b, t)

    Every token of the batch has the same weight, in long and in short sentences. Steps that are not open, NaN and inf
    included, have no effect, but their targets must be in the vocabulary.
    """
    check(MASKED_CROSS_ENTROPY, logits=logits, targets=targets, valid_lens=valid_lens)
    logits, (batch, steps) = promote(logits), targets.shape
    if targets.size:
        check_tokens("masked_cross_entropy", "targets", int(targets.min()), int(targets.max()), logits.shape[-1])
    lens = np.full(batch, steps) if valid_lens is None else np.asarray(valid_lens)
    allowed = np.arange(steps) < lens[:, None]
    count = int(allowed.sum())
    if count == 0:
        return np.zeros(logits.shape[:-3])
    logs = log_softmax_over(np.where(allowed[..., None], logits, 0.0), np.ones((), bool))
    chosen = np.take_along_axis(logs, np.broadcast_to(targets, logs.shape[:-1])[..., None], axis=-1)[..., 0]
    return -np.where(allowed, chosen, 0.0).sum(axis=(-2, -1)) / count


def clip_by_global_norm(
    gradients: Sequence[np.ndarray], *, max_norm: float | None = None
) -> tuple[list[np.ndarray], np.ndarray]:
    """Scale all gradients by one factor, so that their global norm is at most max_norm.

    norm = √(sum over all entries g of all gradients of g²);  clipped = gradients · min(1, max_norm/norm)

    Nothing is added to the norm: gradients whose norm is at most max_norm are returned bit for bit, and so are all
    without max_norm. The norm is correct even where squares of entries underflow or overflow in the type of the arrays.

    Shapes: gradients is a list of arrays of any shape; returns (clipped, norm), a list of the same shapes and a number.
    Raises: OptionError if max_norm is not positive.
    Source: Pascanu et al. 2013, algorithm 1, arXiv:1211.5063.
    """
    check_options(CLIP_BY_GLOBAL_NORM, max_norm=max_norm)
    gradients = [promote(gradient) for gradient in gradients]
    norm = np.sqrt(sum((gradient**2).sum() for gradient in gradients))
    if max_norm is None or not norm > max_norm:
        return list(gradients), norm
    return [gradient * (max_norm / norm) for gradient in gradients], norm


class Optimiser:
    """An optimiser for a Trainer: the names of its moments, and the update of a step."""

    def __init__(self, moments: tuple[str, ...], update: Update) -> None:
        self.moments = moments
        self.update = update


def sgd(learning_rate: float, *, warmup: int | None = None) -> Optimiser:
    """Stochastic gradient descent, for a Trainer.

    θ' = θ - learning_rate · g
    with warmup, step t counting from 1 has the rate learning_rate · min(t/warmup, √(warmup/t))

    Raises: OptionError if learning_rate or warmup is not positive.
    Source: Robbins and Monro 1951, doi:10.1214/aoms/1177729586. It is the same in all frameworks.
    """
    check_options(SGD, learning_rate=learning_rate, warmup=warmup)

    def update(parameters: Mapping[str, np.ndarray], gradients: Mapping[str, np.ndarray], state: Arrays) -> Arrays:
        rate = rate_at(learning_rate, warmup, int(state["step"]))
        return {name: array - rate * gradients[name] for name, array in parameters.items()}

    return Optimiser((), update)


def adam(
    learning_rate: float, beta1: float = 0.9, beta2: float = 0.999, epsilon: float = 1e-08, *, warmup: int | None = None
) -> Optimiser:
    """Adam, for a Trainer.

    θ' = θ - learning_rate · m̂ / (√v̂ + epsilon)
    m' = beta1 m + (1 - beta1) g;  v' = beta2 v + (1 - beta2) g²
    m̂ = m'/(1 - beta1ᵗ);  v̂ = v'/(1 - beta2ᵗ), t counting steps from 1
    with warmup, step t counting from 1 has the rate learning_rate · min(t/warmup, √(warmup/t))

    Raises: OptionError if learning_rate, epsilon or warmup is not positive, or beta1 or beta2 not in [0, 1).
    Source: Kingma and Ba 2015, algorithm 1, arXiv:1412.6980.
    """
    check_options(ADAM, learning_rate=learning_rate, beta1=beta1, beta2=beta2, epsilon=epsilon, warmup=warmup)

    def update(parameters: Mapping[str, np.ndarray], gradients: Mapping[str, np.ndarray], state: Arrays) -> Arrays:
        step, changed = int(state["step"]), {}
        rate = rate_at(learning_rate, warmup, step)
        for name, array in parameters.items():
            gradient = gradients[name]
            m = state[f"m.{name}"] = beta1 * state[f"m.{name}"] + (1 - beta1) * gradient
            v = state[f"v.{name}"] = beta2 * state[f"v.{name}"] + (1 - beta2) * gradient**2
            divisor = np.sqrt(v / (1 - beta2**step)) + epsilon
            changed[name] = array - rate * (m / (1 - beta1**step)) / divisor
        return changed

    return Optimiser(("m", "v"), update)


def descend(
    optimizer: Optimiser, parameters: Sequence[np.ndarray], gradients: Sequence[np.ndarray]
) -> list[np.ndarray]:
    """Take one step of the optimiser for each row of the given gradients; return the parameters.

    Shapes: parameters is a list of arrays of any shape, gradients of as many, with steps as their first axis.
    """
    moved = {str(index): promote(array) for index, array in enumerate(parameters)}
    state = {f"{moment}.{name}": np.zeros(array.shape) for moment in optimizer.moments for name, array in moved.items()}
    for step, row in enumerate(zip(*map(promote, gradients), strict=True)):
        state["step"] = np.array(step + 1)
        moved = optimizer.update(moved, dict(zip(moved, row, strict=True)), state)
    return list(moved.values())


class Trainer:
    """Train a translator: each step computes loss and gradients of a batch, clips them, and moves the parameters.

    loss = masked_cross_entropy(model(source, inputs, source_lens), targets, target_lens)

    Arguments: model is a Translator or a TransformerTranslator; optimizer comes from sgd or adam; max_norm bounds the
    global norm of the gradients, None disables clipping. The reference differentiates by
    attention_core.differentiation.
    Raises: OptionError if max_norm is not positive.
    """

    def __init__(
        self, model: Translator | TransformerTranslator, optimizer: Optimiser, *, max_norm: float | None = None
    ) -> None:
        check_options(CLIP_BY_GLOBAL_NORM, max_norm=max_norm)
        self.model = model
        self.optimizer = optimizer
        self.max_norm = max_norm
        blank = {name: np.zeros(array.shape) for name, array in model.parameters.items()}
        moments = {f"{moment}.{name}": array for moment in optimizer.moments for name, array in blank.items()}
        self.state: Arrays = {"step": np.array(0, np.int64), **moments}

    def step(self, batch: Batch) -> tuple[np.ndarray, np.ndarray]:
        """Train on one batch.

        Returns (loss, norm): the loss before the step, in nats per token, and the gradients' norm before clipping.
        Raises: as the model and masked_cross_entropy.
        """
        parameters = {name: promote(array) for name, array in self.model.parameters.items()}
        loss = self.loss(batch, parameters)
        gradients = differentiation.gradients(
            lambda arrays: (self.loss(batch, arrays),), parameters, {"0": np.ones(())}, stacked=True
        )
        clipped, norm = clip_by_global_norm(list(gradients.values()), max_norm=self.max_norm)
        self.state["step"] = self.state["step"] + 1
        self.model.parameters = self.optimizer.update(
            parameters, dict(zip(gradients, clipped, strict=True)), self.state
        )
        return loss, norm

    def evaluate(self, batch: Batch) -> np.ndarray:
        """Compute the loss of one batch, in nats per token, without dropout and without a step.

        Raises: as the model and masked_cross_entropy.
        """
        return self.loss(batch._replace(masks={}), self.model.parameters)

    def loss(self, batch: Batch, parameters: Mapping[str, np.ndarray]) -> np.ndarray:
        """Compute the loss of the model with these parameters."""
        self.model.parameters, before = dict(parameters), self.model.parameters
        try:
            logits, _ = self.model(**batch.arguments)
        finally:
            self.model.parameters = before
        return masked_cross_entropy(logits, batch.targets, batch.target_lens)

    def get_state(self) -> Arrays:
        """Return the optimiser's state: step, the steps done, and of Adam m.<name> and v.<name> of each parameter.

        With the model's canonical parameters, another Trainer can continue from it, in any framework.
        """
        return dict(self.state)

    def set_state(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Continue from the state of another Trainer, whose optimiser has the same options.

        Raises: ParameterError if the arrays are not those of this optimiser for this model.
        """
        check_state(self.model.specification, self.model.sizes, np.float64, self.optimizer.moments, arrays)
        self.state = {name: arrays[name] for name in self.state}
