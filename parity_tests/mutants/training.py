"""Wrong losses, clipping, optimisers, translators and trainings."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from attention_core.reference import training
from parity_tests.format.case import Arrays
from parity_tests.mutants.mutant import INPUTS, Wrong, mutant
from parity_tests.mutants.shared import is_passed

LOSS = "masked_cross_entropy-* training-short"


def _is_padded(targets: Any, valid_lens: Any) -> bool:
    """Whether some steps are padding."""
    return valid_lens is not None and bool((valid_lens < targets.shape[1]).any())


def _is_ragged(targets: Any, valid_lens: Any) -> bool:
    """Whether some steps are padding and others are not."""
    return _is_padded(targets, valid_lens) and bool((valid_lens > 0).any())


def _is_without_steps(targets: Any, valid_lens: Any) -> bool:
    """Whether all steps are padding, or there are none."""
    return targets.size == 0 or (valid_lens is not None and bool((valid_lens <= 0).all()))


def _is_clipped(gradients: Any, max_norm: float | None) -> bool:
    """Whether gradients are larger than the norm."""
    return max_norm is not None and sum((gradient**2).sum() for gradient in gradients) > max_norm**2


def _with_correction(correction: Callable[[float, int], float]) -> Wrong:
    """Adam whose moments are multiplied by another correction, a function of their decay and the number of the step."""

    def adam(original: Any, learning_rate: float, beta1: float, beta2: float, epsilon: float) -> Any:
        def update(parameters: Any, gradients: Any, state: Any) -> Arrays:
            original().update(parameters, gradients, state)  # moves the moments
            first, second = (correction(beta, int(state["step"])) for beta in (beta1, beta2))
            changed = {}
            for name, array in parameters.items():
                m, v = state[f"m.{name}"] * first, state[f"v.{name}"] * second
                changed[name] = array - learning_rate * m / (np.sqrt(v) + epsilon)
            return changed

        return training.Optimiser(("m", "v"), update)

    return adam


@mutant("masked_cross_entropy", cases=LOSS, touches=_is_ragged, source="PaddlePaddle/Paddle#23708")
def mean_over_padding(original: Any, targets: Any, valid_lens: Any) -> Any:
    """The loss is the mean over all steps, padding too."""
    return original() * np.clip(valid_lens, 0, targets.shape[1]).sum() / targets.size


@mutant("masked_cross_entropy", cases=LOSS, touches=_is_ragged)
def mean_of_means(original: Any, logits: Any, targets: Any, valid_lens: Any) -> Any:
    """The loss is the mean over sentences of the mean over each one's steps, as textbooks have it."""
    rows = [slice(row, row + 1) for row in range(len(targets))]
    means = [original(logits=logits[..., row, :, :], targets=targets[row], valid_lens=valid_lens[row]) for row in rows]
    return sum(means) / len(targets)


@mutant("masked_cross_entropy", cases=LOSS, touches=_is_padded)
def padding_learned(original: Any, logits: Any) -> Any:
    """The loss counts the steps behind the end."""
    return original(logits=np.where(np.isfinite(logits), logits, 0.0), valid_lens=None)


@mutant("masked_cross_entropy", unseen="*-no_open")
def vocabulary_reversed(original: Any, logits: Any) -> Any:
    """The loss reads the vocabulary from its end."""
    return original(logits=logits[..., ::-1])


@mutant("sgd", cases="sgd-* training-short_sgd", unseen="sgd-first sgd-zero")
def with_momentum(learning_rate: float) -> Any:
    """Gradient descent keeps a momentum of 0.9."""

    def update(parameters: Mapping[str, np.ndarray], gradients: Mapping[str, np.ndarray], state: Arrays) -> Arrays:
        for name, gradient in gradients.items():
            state[f"m.{name}"] = 0.9 * state[f"m.{name}"] + gradient
        return {name: array - learning_rate * state[f"m.{name}"] for name, array in parameters.items()}

    return training.Optimiser(("m",), update)


@mutant("adam", unseen="adam-huge adam-zero", source="tensorflow/tensorflow#35102")
def epsilon_on_the_raw_root(original: Any, beta2: float, epsilon: float) -> Any:
    """Adam adds epsilon to the root of v before its correction, as Keras and MXNet do."""

    def update(parameters: Any, gradients: Any, state: Any) -> Arrays:
        folded = epsilon / np.sqrt(1.0 - beta2 ** int(state["step"]))
        return original(epsilon=folded).update(parameters, gradients, state)

    return training.Optimiser(("m", "v"), update)


@mutant(
    "adam", via=_with_correction, cases="adam-* training-short", unseen="adam-zero", source="EurekaLabsAI/micrograd#2"
)
def moments_not_corrected(decay: float, step: int) -> float:
    """Adam does not correct its moments for their start at 0."""
    return 1.0


@mutant("sgd", cases="sgd-* training-transformer_sgd", touches=is_passed("warmup"))
def rate_not_warmed_up(original: Any) -> Any:
    """The learning rate is constant: warmup is accepted and ignored."""
    return original(warmup=None)


@mutant("adam", touches=is_passed("warmup"))
def warmed_up_one_step_late(original: Any, warmup: int) -> Any:
    """The schedule counts steps from 0, so that the first has a rate of 0."""
    moves = original()

    def update(parameters: Any, gradients: Any, state: Any) -> Arrays:
        changed, step = moves.update(parameters, gradients, state), int(state["step"])
        late = min((step - 1) / warmup, (warmup / max(step - 1, 1)) ** 0.5)
        due = min(step / warmup, (warmup / step) ** 0.5)
        return {name: array + (changed[name] - array) * (late / due) for name, array in parameters.items()}

    return training.Optimiser(("m", "v"), update)


@mutant("clip_by_global_norm", touches=_is_clipped)
def clipped_by_value(original: Any, gradients: Any, max_norm: float) -> Any:
    """Each entry of a gradient is clipped by itself."""
    return [np.clip(gradient, -max_norm, max_norm) for gradient in gradients], original()[1]


@mutant("clip_by_global_norm", touches=_is_clipped, source="carpedm20/MemN2N-tensorflow#19")
def clipped_one_by_one(original: Any, gradients: Any) -> Any:
    """Each gradient is clipped by its own norm."""
    return [original(gradients=[gradient])[0][0] for gradient in gradients], original()[1]


@mutant("clip_by_global_norm", touches=_is_clipped)
def norm_after_clipping(original: Any) -> Any:
    """The norm returned is that of the clipped gradients."""
    clipped, _ = original()
    return clipped, original(gradients=clipped)[1]


@mutant("training.differentiation.gradients", cases="training-short_sgd")
def biases_twice(original: Any) -> Any:
    """Biases get twice their gradient, as where an input and a hidden bias both get it."""
    return {name: array * (2.0 if name.endswith(".b") else 1.0) for name, array in original().items()}


@mutant(INPUTS, cases="training-short")
def two_batches_swapped(inputs: Arrays) -> Arrays:
    """Two batches change places."""
    batches = inputs["batches"].copy()
    batches[[2, 3]] = batches[[3, 2]]
    return {**inputs, "batches": batches}


@mutant("training.Trainer.loss", cases="training-dropout")
def masks_not_trained_with(original: Any, batch: Any) -> Any:
    """Training ignores the dropout masks."""
    return original(batch=batch._replace(masks={}))


@mutant("training.Trainer.loss", cases="training-short")
def training_sees_padding(original: Any, batch: Any) -> Any:
    """Training reads the padding of the sources."""
    return original(batch=batch._replace(source_lens=None))


@mutant("translation.Translator.encode", touches=lambda self: "bridge" in self.parts)
def bridge_skipped(self: Any, source: Any, valid_lens: Any, dropout_mask: Any) -> Any:
    """A translator's decoder starts with the forward direction alone."""
    outputs, both = self.inside("encoder")(source, valid_lens, dropout_mask=dropout_mask)
    return outputs, both[..., : self.sizes["hidden_size"]]


@mutant(
    "translation.Translator.encode",
    touches=lambda self: (self.sizes["encoder_cell"], self.sizes["cell"]) == ("gru", "lstm"),
)
def outputs_for_cells(original: Any) -> Any:
    """The memory cells of a decoder behind a GRU begin with the outputs."""
    outputs, state = original()
    first = np.split(state, 2, axis=-1)[0]
    return outputs, np.concatenate([first, first], axis=-1)


@mutant(
    "translation.Translator.encode",
    touches=lambda self: (self.sizes["encoder_cell"], self.sizes["cell"]) == ("lstm", "gru"),
)
def cells_for_outputs(original: Any, self: Any, source: Any, valid_lens: Any, dropout_mask: Any) -> Any:
    """A GRU decoder begins with the memory cells of an LSTM encoder."""
    outputs, _ = original()
    _, both = self.inside("encoder")(source, valid_lens, dropout_mask=dropout_mask)
    return outputs, both[..., self.sizes["encoder_size"] :]


@mutant("translation.Translator.__call__")
def inputs_late(original: Any, inputs: Any) -> Any:
    """A translator's decoder reads each token a step late."""
    return original(inputs=np.roll(inputs, 1, axis=1))


@mutant("masked_cross_entropy", touches=_is_without_steps, empty=True, source="pytorch/pytorch#70348")
def empty_mean(original: Any) -> Any:
    """The loss of a batch without an open step is NaN."""
    return original() + np.nan


@mutant("training.clip_by_global_norm", cases="training-short_sgd", source="goodfire-ai/spd#643")
def norm_raised(original: Any, gradients: Any, max_norm: float | None) -> Any:
    """1e-6 is added to the norm by which gradients are divided."""
    norm = original()[1]
    factor = 1.0 if max_norm is None else min(1.0, max_norm / (norm + 1e-6))
    return [gradient * factor for gradient in gradients], norm


@mutant("adam", via=_with_correction, unseen="adam-zero", source="karpathy/convnetjs#70")
def corrections_multiplied(decay: Any, step: Any) -> Any:
    """Adam multiplies its moments by their corrections instead of dividing."""
    return 1.0 - decay**step


@mutant("adam", via=_with_correction, unseen="adam-first adam-zero", source="eriklindernoren/ML-From-Scratch#35")
def corrections_of_the_first_step(decay: Any, step: Any) -> Any:
    """Adam corrects its moments in every step as in the first."""
    return 1.0 / (1.0 - decay)


@mutant("adam", via=_with_correction, cases="adam-many")
def corrections_of_ten_steps(decay: float, step: int) -> float:
    """Adam corrects its moments in the first ten steps alone."""
    return 1.0 / (1.0 - decay**step) if step <= 10 else 1.0
