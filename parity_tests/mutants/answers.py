"""Answers that are wrong as a whole: their shape, type, bits, or completeness."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from parity_tests.format.call import EARLIER, SECOND
from parity_tests.format.case import Arrays, Case
from parity_tests.format.expected import computed_outputs
from parity_tests.mutants.mutant import ANSWER, Wrong, mutant


def _is_later(case: Case) -> bool:
    """Whether a step comes after others."""
    return EARLIER in case.inputs


@mutant(ANSWER, cases="to_additive_mask-*")
def additive_in_float32(case: Case, answer: Arrays) -> Arrays:
    """An additive mask is float32, whatever the dtype."""
    with np.errstate(over="ignore"):
        return {name: array.astype(np.float32) for name, array in answer.items()}


@mutant(ANSWER, cases="to_additive_mask-*", touches=lambda case: case.options.get("finite"))
def nearly_the_least(case: Case, answer: Arrays) -> Arrays:
    """The least finite number is off by one in its last digit."""
    return {name: np.where(np.isfinite(array), np.nextafter(array, 0.0), array) for name, array in answer.items()}


@mutant(ANSWER, cases="masked_softmax-*", dtype="float32")
def too_precise(case: Case, answer: Arrays) -> Arrays:
    """float32 comes back as float64."""
    return {name: array.astype(np.float64) for name, array in answer.items()}


@mutant(ANSWER, cases="attention_pooling-no_keys", empty=True)
def almost_zero(case: Case, answer: Arrays) -> Arrays:
    """What is zero comes back as 1e-30."""
    return {**answer, "context": answer["context"] + 1e-30}


@mutant(ANSWER, cases="dot_score-* scaled_dot_score-*", touches=lambda case: case.again)
def other_bits_again(case: Case, answer: Arrays) -> Arrays:
    """A repeated call gives the last bit of another rounding."""
    return {name: np.nextafter(array, np.inf) for name, array in answer.items()}


def _keeps(name: str, unseen: str = "") -> None:
    """Make a mutant whose second call answers as the first where that argument alone is another one."""

    def keep(case: Case, answer: Arrays) -> Arrays:
        return {key: answer[key.removeprefix(SECOND)] if key.startswith(SECOND) else answer[key] for key in answer}

    words = f"What is computed of other arguments is kept, and not computed anew if {name} alone changes."
    cases, made = f"*-second_{name}", f"{name}_of_the_call_before"
    mutant(ANSWER, cases=cases, unseen=unseen, name=made, sentence=words)(keep)


_keeps("keys", "LocationAttention-*")  # whose scores come from the query alone
_keeps("queries", "HardAttention-second_queries")  # which choose the same keys
for _name in ("values", "scores", "valid_lens", "mask", "state", "tokens", "encoder_outputs"):
    _keeps(_name)


@mutant(ANSWER, cases="BahdanauDecoder-step* LuongDecoder-step* FixedContextDecoder-step*", touches=_is_later)
def always_the_first_step(case: Case, answer: Arrays) -> Arrays:
    """A step of a decoder starts from its first state, whatever steps came before."""
    inputs = {name: array for name, array in case.inputs.items() if name != EARLIER}
    return {**answer, **computed_outputs(replace(case, inputs=inputs), inputs, case.parameters)}


@mutant(ANSWER, cases="attention_pooling-*", touches=lambda case: case.gradients)
def gradient_missing(case: Case, answer: Arrays) -> Arrays:
    """The gradient of the values is missing."""
    return {name: array for name, array in answer.items() if name != "gradient_values"}


@mutant(cases="attention_pooling-*", touches=lambda case: case.gradients, withheld="gradient_values")
def gradient_withheld() -> Mapping[str, Wrong]:
    """The gradient of the values is reported as not implemented, by a backend that has to implement all."""
    return {}


@mutant(ANSWER, cases="DotProductAttention-*", touches=lambda case: case.options.get("need_weights") is False)
def weights_all_the_same(case: Case, answer: Arrays) -> Arrays:
    """The weights come back, needed or not."""
    return {**answer, "output_1": answer["context"]}


@mutant(ANSWER, cases="AdditiveAttention-*", touches=lambda case: case.gradients)
def axis_kept(case: Case, answer: Arrays) -> Arrays:
    """The gradient of a vector comes back as a matrix of one row."""
    return {**answer, "gradient_w_v": answer["gradient_w_v"][None]}


@mutant(ANSWER, cases="GRU-*", touches=lambda case: case.gradients)
def gradient_transposed(case: Case, answer: Arrays) -> Arrays:
    """The gradient of U is transposed."""
    return {**answer, "gradient_0.U": answer["gradient_0.U"].swapaxes(-1, -2)}


@mutant(ANSWER, cases="GRU-*", touches=lambda case: case.gradients)
def bias_counted_twice(case: Case, answer: Arrays) -> Arrays:
    """The gradient of the bias is doubled, as where two biases are kept."""
    return {**answer, "gradient_0.b": 2.0 * answer["gradient_0.b"]}


@mutant(ANSWER, cases="GRU-*", touches=lambda case: case.gradients)
def second_bias(case: Case, answer: Arrays) -> Arrays:
    """A redundant bias gets a gradient, too."""
    return {**answer, "gradient_0.b_hr": answer["gradient_0.b"][0]}
