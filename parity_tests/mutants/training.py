"""Wrong losses, clipping, optimisers, translators and trainings."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from attention_core.operators.training import MASKS
from attention_core.reference import training
from parity_tests.cases.case import Arrays, Case
from parity_tests.mutants.mutant import INPUTS, Break, mutant
from parity_tests.mutants.shared import where_all


def _loss(change: Callable[..., Any]) -> Break:
    """A loss of the original, and of what it was given."""
    return lambda original: lambda logits, targets, valid_lens=None: change(original, logits, targets, valid_lens)


def _optimiser(change: Callable[..., Arrays]) -> Break:
    """Adam whose step is made by change(original, numbers, parameters, gradients, state)."""

    def broken(original: Any) -> Any:
        def adam(learning_rate: float, beta1: float = 0.9, beta2: float = 0.999, epsilon: float = 1e-8) -> Any:
            numbers = (learning_rate, beta1, beta2, epsilon)
            return training.Optimiser(("m", "v"), lambda *given: change(original, numbers, *given))

        return adam

    return broken


def _training_on(change: Callable[[Any], Any]) -> Break:
    """Training on what change makes of each batch."""
    return lambda original: lambda trainer, batch, parameters: original(trainer, change(batch), parameters)


CLIPPED = tuple(f"clip_by_global_norm-{size}:clipped.*" for size in ("plain", "tiny", "huge"))


RAGGED = ("ragged", "closed", "targets_int64", "hidden_nan", "hidden_inf", "large")
"""The cases of the loss in which some steps are open and some are not."""


def _no_step_open(case: Case, inputs: Arrays) -> bool:
    lens = inputs.get("valid_lens")
    return inputs["targets"].size == 0 or (lens is not None and bool((lens <= 0).all()))


def _corrected(change: Callable[[float, int], float]) -> Break:
    """Adam whose moments are multiplied by another correction, of a decay and the steps that were made."""

    def stepped(original: Any, numbers: Any, parameters: Any, gradients: Any, state: Any) -> Arrays:
        rate, beta1, beta2, epsilon = numbers
        step, changed = int(state["step"]), {}
        for name, array in parameters.items():
            gradient = gradients[name]
            m = state[f"m.{name}"] = beta1 * state[f"m.{name}"] + (1 - beta1) * gradient
            v = state[f"v.{name}"] = beta2 * state[f"v.{name}"] + (1 - beta2) * gradient**2
            divisor = np.sqrt(v * change(beta2, step)) + epsilon
            changed[name] = array - rate * m * change(beta1, step) / divisor
        return changed

    return _optimiser(stepped)


@mutant(
    ("masked_cross_entropy-*", "training-short"),
    of="masked_cross_entropy",
    via=_loss,
    red=(*(f"masked_cross_entropy-{name}:*" for name in RAGGED), "training-short:*"),
    source="PaddlePaddle/Paddle#23708",
)
def mean_over_padding(original: Any, logits: Any, targets: Any, valid_lens: Any) -> Any:
    """The loss is the mean over all steps, padding too."""
    steps = targets.shape[1]
    count = targets.size if valid_lens is None else np.clip(valid_lens, 0, steps).sum()
    return original(logits, targets, valid_lens) * count / max(targets.size, 1)


@mutant(
    ("masked_cross_entropy-*", "training-short"),
    of="masked_cross_entropy",
    via=_loss,
    red=(*(f"masked_cross_entropy-{name}:*" for name in RAGGED), "training-short:*"),
)
def mean_of_means(original: Any, logits: Any, targets: Any, valid_lens: Any) -> Any:
    """The loss is the mean over sentences of the mean over each one's steps, as textbooks have it."""
    batch = len(targets)
    lens = [None] * batch if valid_lens is None else [valid_lens[row : row + 1] for row in range(batch)]
    own = [original(logits[..., row : row + 1, :, :], targets[row : row + 1], lens[row]) for row in range(batch)]
    return sum(own) / max(batch, 1)


@mutant(
    ("masked_cross_entropy-*", "training-short"),
    of="masked_cross_entropy",
    via=_loss,
    red=(*(f"masked_cross_entropy-{name}:*" for name in (*RAGGED, "no_open")), "training-short:*"),
)
def padding_learned(original: Any, logits: Any, targets: Any, valid_lens: Any) -> Any:
    """The loss counts the steps behind the end."""
    return original(np.where(np.isfinite(logits), logits, 0.0), targets)


@mutant(
    ("masked_cross_entropy-none", "masked_cross_entropy-no_open"),
    of="masked_cross_entropy",
    via=_loss,
    red="masked_cross_entropy-none:*",
)
def vocabulary_reversed(original: Any, logits: Any, targets: Any, valid_lens: Any) -> Any:
    """The loss reads the vocabulary from its end."""
    return original(logits[..., ::-1], targets, valid_lens)


@mutant(
    ("training-short", "training-short_sgd", "sgd-*"),
    of="sgd",
    red=("training-short_sgd:*", "sgd-plain*:*", "sgd-r*:*", "sgd-huge:*"),
)
def with_momentum(original: Any) -> Any:
    """Gradient descent keeps a momentum of 0.9.

    What moved last moves on, nine tenths as far.
    """

    def sgd(learning_rate: float) -> Any:
        def update(parameters: Mapping[str, np.ndarray], gradients: Mapping[str, np.ndarray], state: Arrays) -> Arrays:
            for name, gradient in gradients.items():
                state[f"m.{name}"] = 0.9 * state[f"m.{name}"] + gradient
            return {name: array - learning_rate * state[f"m.{name}"] for name, array in parameters.items()}

        return training.Optimiser(("m",), update)

    return sgd


@mutant("adam-*", of="adam", via=_optimiser, red="adam-[!hz]*:*", source="tensorflow/tensorflow#35102")
def epsilon_on_the_raw_root(original: Any, numbers: Any, parameters: Any, gradients: Any, state: Any) -> Arrays:
    """Adam adds epsilon to the root of v before its correction, as Keras and MXNet do."""
    rate, beta1, beta2, epsilon = numbers
    folded = epsilon / np.sqrt(1.0 - beta2 ** int(state["step"]))
    return original(rate, beta1, beta2, folded).update(parameters, gradients, state)


@mutant("adam-*", of="adam", via=_optimiser, red="adam-[!hz]*:*")
def epsilon_of_keras(original: Any, numbers: Any, parameters: Any, gradients: Any, state: Any) -> Arrays:
    """Adam takes the epsilon 1e-7."""
    rate, beta1, beta2, _ = numbers
    return original(rate, beta1, beta2, 1e-7).update(parameters, gradients, state)


@mutant("adam-*", of="adam", via=_optimiser, red="adam-decays:*")
def decays_ignored(original: Any, numbers: Any, parameters: Any, gradients: Any, state: Any) -> Arrays:
    """Adam takes 0.9 and 0.999 for its decays, whatever they are."""
    return original(numbers[0], epsilon=numbers[3]).update(parameters, gradients, state)


@mutant(
    ("training-short", "training-short_sgd", "adam-*"),
    of="adam",
    via=_optimiser,
    red=("training-short:*", "adam-[!z]*:*"),
    source="EurekaLabsAI/micrograd#2",
)
def moments_not_corrected(original: Any, numbers: Any, parameters: Any, gradients: Any, state: Any) -> Arrays:
    """Adam does not correct its moments for their start at 0."""
    late = {**state, "step": np.array(10**9)}
    changed = original(*numbers).update(parameters, gradients, late)
    state.update({name: array for name, array in late.items() if name != "step"})
    return changed


@mutant("clip_by_global_norm-*", of="clip_by_global_norm", red=CLIPPED)
def clipped_by_value(original: Any) -> Any:
    """Each entry of a gradient is clipped by itself."""

    def clip(gradients: Any, *, max_norm: float | None = None) -> Any:
        limit = np.inf if max_norm is None else max_norm
        return [np.clip(gradient, -limit, limit) for gradient in gradients], original(gradients)[1]

    return clip


@mutant("clip_by_global_norm-*", of="clip_by_global_norm", red=CLIPPED, source="carpedm20/MemN2N-tensorflow#19")
def clipped_one_by_one(original: Any) -> Any:
    """Each gradient is clipped by its own norm."""

    def clip(gradients: Any, *, max_norm: float | None = None) -> Any:
        each = [original([gradient], max_norm=max_norm)[0][0] for gradient in gradients]
        return each, original(gradients)[1]

    return clip


@mutant(
    ("training-short_sgd", "training-unclipped", "clip_by_global_norm-*"),
    of="clip_by_global_norm",
    red=("training-short_sgd:*", *CLIPPED),
)
def not_clipped(original: Any) -> Any:
    """Gradients are not clipped."""
    return lambda gradients, *, max_norm=None: original(gradients)


@mutant(
    "clip_by_global_norm-*", of="clip_by_global_norm", red=tuple(own.replace("clipped.*", "norm") for own in CLIPPED)
)
def norm_after_clipping(original: Any) -> Any:
    """The norm that is told is that of the clipped gradients."""

    def clip(gradients: Any, *, max_norm: float | None = None) -> Any:
        clipped, _ = original(gradients, max_norm=max_norm)
        return clipped, original(clipped)[1]

    return clip


@mutant("training-short_sgd", of="training.differentiation.gradients", red="training-short_sgd:*")
def biases_twice(original: Any) -> Any:
    """Biases get twice their gradient, as where an input and a hidden bias both get it."""

    def found(*given: Any, **keywords: Any) -> Any:
        gradients = original(*given, **keywords)
        return {name: array * (2.0 if name.endswith(".b") else 1.0) for name, array in gradients.items()}

    return found


@mutant("training-short", of=INPUTS, red="training-short:*")
def two_batches_swapped(inputs: Arrays) -> Arrays:
    """Two batches change places."""
    batches = inputs["batches"].copy()
    batches[[2, 3]] = batches[[3, 2]]
    return {**inputs, "batches": batches}


@mutant(("training-dropout", "training-short"), of="training.Trainer.loss", via=_training_on, red="training-dropout:*")
def masks_not_trained_with(batch: Any) -> Any:
    """Training drops nothing, whatever the masks say."""
    return batch._replace(**dict.fromkeys(MASKS))


@mutant("training-short", of="training.Trainer.loss", via=_training_on, red="training-short:*")
def training_sees_padding(batch: Any) -> Any:
    """Training reads the padding of the sources."""
    return batch._replace(source_lens=None)


@mutant(
    ("Translator-none", "Translator-ragged"),
    of="decoders.Decoder.__call__",
    red="Translator-ragged:*",
    green="*:gradient_decoder.dense.b",
)
def decoder_sees_padding(original: Any) -> Any:
    """A translator's decoder attends to the padding of the sources."""

    def call(layer: Any, tokens: Any, encoder_outputs: Any, state: Any, valid_lens: Any, **keywords: Any) -> Any:
        return original(layer, tokens, encoder_outputs, state, None, **keywords)

    return call


@mutant(
    ("Translator-both", "Translator-none"),
    of="translation.Translator.encode",
    red="Translator-both:*",
    green="*:gradient_decoder.dense.b",
)
def bridge_skipped(original: Any) -> Any:
    """A translator's decoder starts with the forward direction alone."""

    def encode(layer: Any, source: Any, valid_lens: Any, dropout_mask: Any = None) -> Any:
        outputs, state = original(layer, source, valid_lens, dropout_mask)
        if "bridge" not in layer.parts:
            return outputs, state
        outputs, both = layer.parts["encoder"](source, valid_lens, dropout_mask=dropout_mask)
        return outputs, both[..., : layer.sizes["hidden_size"]]

    return encode


@mutant(
    ("Translator-none", "Translator-one_step"),
    of="translation.Translator.__call__",
    red="Translator-none:*",
    green="*:gradient_decoder.dense.b",
)
def inputs_late(original: Any) -> Any:
    """A translator's decoder reads each token a step late."""

    def call(layer: Any, source: Any, inputs: Any, valid_lens: Any = None, **keywords: Any) -> Any:
        return original(layer, source, np.roll(inputs, 1, axis=1), valid_lens, **keywords)

    return call


@mutant(
    "masked_cross_entropy-*",
    of="masked_cross_entropy",
    via=_loss,
    touches=where_all(_no_step_open),
    source="pytorch/pytorch#70348",
)
def empty_mean(original: Any, logits: Any, targets: Any, valid_lens: Any) -> Any:
    """The loss of a batch without an open step is NaN."""
    lens = targets.shape[1] if valid_lens is None else np.clip(valid_lens, 0, targets.shape[1])
    count = (np.zeros(len(targets), int) + lens).sum()
    return original(logits, targets, valid_lens) + (0.0 if count else np.nan)


@mutant(
    ("training-short_sgd", "training-unclipped"),
    of="training.clip_by_global_norm",
    touches=lambda case: case.options["max_norm"] is not None,
    source="goodfire-ai/spd#643",
)
def norm_raised(original: Any) -> Any:
    """1e-6 is added to the norm by which gradients are divided."""

    def clip(gradients: Any, *, max_norm: float | None = None) -> Any:
        norm = original(gradients)[1]
        factor = 1.0 if max_norm is None else min(1.0, max_norm / (norm + 1e-6))
        return [gradient * factor for gradient in gradients], norm

    return clip


@mutant("adam-*", of="adam", via=_corrected, red="adam-[!z]*:*", source="karpathy/convnetjs#70")
def corrections_multiplied(decay: Any, step: Any) -> Any:
    """Adam multiplies its moments by their corrections instead of dividing."""
    return 1.0 - decay**step


@mutant("adam-*", of="adam", via=_corrected, red="adam-[!fz]*:*", source="eriklindernoren/ML-From-Scratch#35")
def corrections_of_the_first_step(decay: Any, step: Any) -> Any:
    """Adam corrects its moments in every step as in the first."""
    return 1.0 / (1.0 - decay)
