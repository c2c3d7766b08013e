"""Wrong losses, clipping, optimisers, translators and trainings."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from attention_core.reference import training
from parity_tests.format.case import Arrays, Case
from parity_tests.mutants.mutant import INPUTS, Wrong, mutant
from parity_tests.mutants.shared import where_all

CLIPPED = "clip_by_global_norm-[pth]*:clipped.*"
"""Gradients larger than the norm: plain, tiny and huge ones."""

RAGGED = "masked_cross_entropy-{ragged,fully_masked,targets_int64,hidden_{nan,inf},large}:*"
"""The cases of the loss in which some steps are open and some are not."""


def _no_step_open(case: Case, inputs: Arrays) -> bool:
    lens = inputs.get("valid_lens")
    return inputs["targets"].size == 0 or (lens is not None and bool((lens <= 0).all()))


def _corrected(correction: Callable[[float, int], float]) -> Wrong:
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


@mutant(
    "masked_cross_entropy-* training-short",
    of="masked_cross_entropy",
    red=RAGGED + " training-short:*",
    source="PaddlePaddle/Paddle#23708",
)
def mean_over_padding(original: Any, targets: Any, valid_lens: Any) -> Any:
    """The loss is the mean over all steps, padding too."""
    count = targets.size if valid_lens is None else np.clip(valid_lens, 0, targets.shape[1]).sum()
    return original() * count / max(targets.size, 1)


@mutant("masked_cross_entropy-* training-short", of="masked_cross_entropy", red=RAGGED + " training-short:*")
def mean_of_means(original: Any, logits: Any, targets: Any, valid_lens: Any) -> Any:
    """The loss is the mean over sentences of the mean over each one's steps, as textbooks have it."""
    lens = np.full(len(targets), targets.shape[1]) if valid_lens is None else valid_lens
    rows = [slice(row, row + 1) for row in range(len(targets))]
    means = [original(logits=logits[..., row, :, :], targets=targets[row], valid_lens=lens[row]) for row in rows]
    return sum(means) / max(len(targets), 1)


@mutant(
    "masked_cross_entropy-* training-short",
    of="masked_cross_entropy",
    red=RAGGED + " masked_cross_entropy-no_open:* training-short:*",
)
def padding_learned(original: Any, logits: Any) -> Any:
    """The loss counts the steps behind the end."""
    return original(logits=np.where(np.isfinite(logits), logits, 0.0), valid_lens=None)


@mutant("masked_cross_entropy-{none,no_open}", of="masked_cross_entropy", red="masked_cross_entropy-none:*")
def vocabulary_reversed(original: Any, logits: Any) -> Any:
    """The loss reads the vocabulary from its end."""
    return original(logits=logits[..., ::-1])


@mutant("training-{short,short_sgd} sgd-*", of="sgd", red="training-short_sgd:* sgd-{plain*,r*,huge,warmup}:*")
def with_momentum(learning_rate: float) -> Any:
    """Gradient descent keeps a momentum of 0.9."""

    def update(parameters: Mapping[str, np.ndarray], gradients: Mapping[str, np.ndarray], state: Arrays) -> Arrays:
        for name, gradient in gradients.items():
            state[f"m.{name}"] = 0.9 * state[f"m.{name}"] + gradient
        return {name: array - learning_rate * state[f"m.{name}"] for name, array in parameters.items()}

    return training.Optimiser(("m",), update)


@mutant("adam-*", of="adam", red="adam-[!hz]*:*", source="tensorflow/tensorflow#35102")
def epsilon_on_the_raw_root(original: Any, beta2: float, epsilon: float) -> Any:
    """Adam adds epsilon to the root of v before its correction, as Keras and MXNet do."""

    def update(parameters: Any, gradients: Any, state: Any) -> Arrays:
        folded = epsilon / np.sqrt(1.0 - beta2 ** int(state["step"]))
        return original(epsilon=folded).update(parameters, gradients, state)

    return training.Optimiser(("m", "v"), update)


@mutant(
    "training-{short,short_sgd} adam-*",
    of="adam",
    via=_corrected,
    red="training-short:* adam-[!z]*:*",
    source="EurekaLabsAI/micrograd#2",
)
def moments_not_corrected(decay: float, step: int) -> float:
    """Adam does not correct its moments for their start at 0."""
    return 1.0


@mutant(
    "sgd-* training-{short,transformer_sgd}",
    of="sgd",
    red="sgd-warmup:* training-transformer_sgd:*",
    green="*.b_k",  # which moves by rounding alone: a bias of all keys changes no weight
)
def rate_not_warmed_up(original: Any) -> Any:
    """The learning rate is constant: warmup is accepted and ignored."""
    return original(warmup=None)


@mutant("adam-*", of="adam", red="adam-warmup:*")
def warmed_up_one_step_late(original: Any, learning_rate: float, warmup: int | None) -> Any:
    """The schedule counts steps from 0, so that the first has a rate of 0."""
    moves = original()

    def update(parameters: Any, gradients: Any, state: Any) -> Arrays:
        changed, step = moves.update(parameters, gradients, state), int(state["step"])
        late = 1.0 if warmup is None else min((step - 1) / warmup, (warmup / max(step - 1, 1)) ** 0.5)
        due = 1.0 if warmup is None else min(step / warmup, (warmup / step) ** 0.5)
        return {name: array + (changed[name] - array) * (late / due) for name, array in parameters.items()}

    return training.Optimiser(("m", "v"), update)


@mutant("clip_by_global_norm-*", of="clip_by_global_norm", red=CLIPPED)
def clipped_by_value(original: Any, gradients: Any, max_norm: float | None) -> Any:
    """Each entry of a gradient is clipped by itself."""
    limit = np.inf if max_norm is None else max_norm
    return [np.clip(gradient, -limit, limit) for gradient in gradients], original()[1]


@mutant("clip_by_global_norm-*", of="clip_by_global_norm", red=CLIPPED, source="carpedm20/MemN2N-tensorflow#19")
def clipped_one_by_one(original: Any, gradients: Any) -> Any:
    """Each gradient is clipped by its own norm."""
    return [original(gradients=[gradient])[0][0] for gradient in gradients], original()[1]


@mutant("clip_by_global_norm-*", of="clip_by_global_norm", red="clip_by_global_norm-[pth]*:norm")
def norm_after_clipping(original: Any) -> Any:
    """The norm returned is that of the clipped gradients."""
    clipped, _ = original()
    return clipped, original(gradients=clipped)[1]


@mutant("training-short_sgd", of="training.differentiation.gradients", red="training-short_sgd:*")
def biases_twice(original: Any) -> Any:
    """Biases get twice their gradient, as where an input and a hidden bias both get it."""
    return {name: array * (2.0 if name.endswith(".b") else 1.0) for name, array in original().items()}


@mutant("training-short", of=INPUTS, red="training-short:*")
def two_batches_swapped(inputs: Arrays) -> Arrays:
    """Two batches change places."""
    batches = inputs["batches"].copy()
    batches[[2, 3]] = batches[[3, 2]]
    return {**inputs, "batches": batches}


@mutant("training-{dropout,short}", of="training.Trainer.loss", red="training-dropout:*")
def masks_not_trained_with(original: Any, batch: Any) -> Any:
    """Training ignores the dropout masks."""
    return original(batch=batch._replace(masks={}))


@mutant("training-short", of="training.Trainer.loss", red="training-short:*")
def training_sees_padding(original: Any, batch: Any) -> Any:
    """Training reads the padding of the sources."""
    return original(batch=batch._replace(source_lens=None))


@mutant(
    "Translator-{both,none}",
    of="translation.Translator.encode",
    red="Translator-both:*",
    green="*:gradient_decoder.dense.b",
)
def bridge_skipped(original: Any, self: Any, source: Any, valid_lens: Any, dropout_mask: Any) -> Any:
    """A translator's decoder starts with the forward direction alone."""
    outputs, state = original()
    if "bridge" not in self.parts:
        return outputs, state
    outputs, both = self.inside("encoder")(source, valid_lens, dropout_mask=dropout_mask)
    return outputs, both[..., : self.sizes["hidden_size"]]


@mutant(
    "Translator-{gru_lstm,both_gru_lstm,lstm}",
    of="translation.Translator.encode",
    red="Translator-*gru_lstm:*",
    green="*:gradient_decoder.dense.b",
)
def outputs_for_cells(original: Any, self: Any) -> Any:
    """The memory cells of a decoder behind a GRU begin with the outputs."""
    outputs, state = original()
    if self.sizes["encoder_cell"] == self.sizes["cell"]:
        return outputs, state
    first = np.split(state, 2, axis=-1)[0]
    return outputs, np.concatenate([first, first], axis=-1)


@mutant(
    "Translator-{lstm_gru,lstm}",
    of="translation.Translator.encode",
    red="Translator-lstm_gru:*",
    green="*:gradient_decoder.dense.b",
)
def cells_for_outputs(original: Any, self: Any, source: Any, valid_lens: Any, dropout_mask: Any) -> Any:
    """A GRU decoder begins with the memory cells of an LSTM encoder."""
    outputs, state = original()
    if self.sizes["encoder_cell"] == self.sizes["cell"]:
        return outputs, state
    _, both = self.inside("encoder")(source, valid_lens, dropout_mask=dropout_mask)
    return outputs, both[..., self.sizes["encoder_size"] :]


@mutant(
    "Translator-{none,one_step}",
    of="translation.Translator.__call__",
    red="Translator-none:*",
    green="*:gradient_decoder.dense.b",
)
def inputs_late(original: Any, inputs: Any) -> Any:
    """A translator's decoder reads each token a step late."""
    return original(inputs=np.roll(inputs, 1, axis=1))


@mutant(
    "masked_cross_entropy-*",
    of="masked_cross_entropy",
    touches=where_all(_no_step_open),
    source="pytorch/pytorch#70348",
)
def empty_mean(original: Any, targets: Any, valid_lens: Any) -> Any:
    """The loss of a batch without an open step is NaN."""
    lens = targets.shape[1] if valid_lens is None else np.clip(valid_lens, 0, targets.shape[1])
    count = (np.zeros(len(targets), int) + lens).sum()
    return original() + (0.0 if count else np.nan)


@mutant(
    "training-{short_sgd,unclipped}",
    of="training.clip_by_global_norm",
    touches=lambda case: case.options["max_norm"] is not None,
    source="goodfire-ai/spd#643",
)
def norm_raised(original: Any, gradients: Any, max_norm: float | None) -> Any:
    """1e-6 is added to the norm by which gradients are divided."""
    norm = original()[1]
    factor = 1.0 if max_norm is None else min(1.0, max_norm / (norm + 1e-6))
    return [gradient * factor for gradient in gradients], norm


@mutant("adam-*", of="adam", via=_corrected, red="adam-[!z]*:*", source="karpathy/convnetjs#70")
def corrections_multiplied(decay: Any, step: Any) -> Any:
    """Adam multiplies its moments by their corrections instead of dividing."""
    return 1.0 - decay**step


@mutant("adam-*", of="adam", via=_corrected, red="adam-[!fz]*:*", source="eriklindernoren/ML-From-Scratch#35")
def corrections_of_the_first_step(decay: Any, step: Any) -> Any:
    """Adam corrects its moments in every step as in the first."""
    return 1.0 / (1.0 - decay)
