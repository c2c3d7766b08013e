"""What is right is green, in every style that people write it in, and whatever it does not take."""

import ast
import inspect
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from attention_core import reference
from attention_core.operators import LAYERS, OPERATORS, find
from attention_core.specification import Layer, Operator
from parity_tests.cases.suite import all_cases
from parity_tests.format import expected
from parity_tests.format.call import EARLIER, bind, first_of
from parity_tests.format.case import Case
from parity_tests.format.drawn import Drawn, inputs_of, options_of
from parity_tests.tests.judge.sources import asked_of, target_of, verdicts_of
from parity_tests.tests.places import FAKES
from parity_tests.workers.target import PLAIN, NotImplementedHere, Target, keyword, load, names

pytestmark = pytest.mark.once

# ------------------------------------------------------------------------------------------------ styles

STYLES = FAKES / "styles"


def styles_of(framework: str) -> list[str]:
    """The styles in a file that may not be importable: its classes that have cases."""
    body = ast.parse((STYLES / f"in_{framework}.py").read_text()).body
    assigned = {
        node.name: [ast.unparse(one.targets[0]) for one in node.body if isinstance(one, ast.Assign)]
        for node in body
        if isinstance(node, ast.ClassDef)
    }
    return [name for name, targets in assigned.items() if "cases" in targets]


def in_framework(framework: str) -> list[Any]:
    """The styles of a framework, as parameters that run where it is installed."""
    marks = [pytest.mark.frameworks(framework)] * (framework != "numpy")
    return [pytest.param(framework, style, marks=marks, id=f"{framework}-{style}") for style in styles_of(framework)]


@pytest.mark.parametrize(
    ("framework", "style"),
    [one for framework in ("numpy", "torch", "jax", "tf", "mxnet") for one in in_framework(framework)],
)
def test_what_is_right_is_green_in_every_style(framework: str, style: str):
    where = f"{STYLES / f'in_{framework}.py'}:{style}"
    loaded, runtime = load(where)
    target = Target(loaded, runtime, where, "cpu")
    verdicts = [one for pattern in loaded.cases for one in verdicts_of(target, pattern)]
    assert [f"{one.case} {one.quantity}: {one.reason}" for one in verdicts if one.red] == []
    assert {one.operator for one in verdicts if one.is_judged} == {case.partition("-")[0] for case in loaded.cases}


# ------------------------------------------------------------------------------------------------ what is not taken


def reference_without(lacks: Sequence[str], *, passes_on: bool) -> SimpleNamespace:
    """The reference as functions without those arguments; with passes_on, it is a function behind them that says so."""
    entries = [(entry, method) for entry in LAYERS for method in map(method_of, entry.methods)]
    functions = {}
    for entry, method in [*((operator, "") for operator in OPERATORS), *entries]:
        name = f"{entry.name}_{method}".removesuffix("_call").removesuffix("_")
        if name in names():
            functions[name] = function_without(lacks, entry, method, passes_on=passes_on)
    return SimpleNamespace(**functions)


def method_of(method: Operator) -> str:
    return method.name.rpartition(".")[2]


def function_without(
    lacks: Sequence[str], entry: Operator | Layer, method: str, *, passes_on: bool
) -> Callable[..., Any]:
    tensors = {keyword(tensor.name, entry.name): tensor for tensor in inputs_of(entry, method)}
    arrays = {name: tensor.name for name, tensor in tensors.items()}
    if isinstance(entry, Layer) and first_of(entry, method):
        arrays[keyword(EARLIER, entry.name)] = EARLIER
    config = [option.name for option in entry.options] if method else []
    options = [option.name for option in options_of(entry, method)]
    parameters = [inspect.Parameter("parameters", inspect.Parameter.POSITIONAL_ONLY)] * bool(method)
    for name in dict.fromkeys([*arrays, *config, *options]):
        required = name in tensors and not tensors[name].optional
        default = inspect.Parameter.empty if required else None
        parameters += [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default)] * (name not in lacks)
    signature = inspect.Signature(parameters)

    def call(*positional: Any, **given: Any) -> Any:
        signature.bind(*positional, **given)
        layer = None
        if method:
            layer = getattr(reference, entry.name)(**{name: given[name] for name in config if name in given})
            reference.set_parameters(layer, *positional)
        bound = bind(reference, entry.name, method, {name: given[name] for name in options if name in given})
        return bound(layer, **{arrays[name]: array for name, array in given.items() if name in arrays})

    if not passes_on:
        call.__signature__ = signature  # type: ignore[attr-defined]
    return call


def check_answers(target: Target, cases: Sequence[Case]) -> int:
    """Check that a target answers as the reference wherever it answers; return the number of answers."""
    answers = 0
    for case in cases:
        inputs, parameters = case.at("float64")
        try:
            answer = target.run(asked_of(case), inputs, parameters, {})
        except NotImplementedHere:
            continue
        answers += 1
        for name, array in expected.outputs(case, "float64").items():
            np.testing.assert_allclose(answer.arrays[name], array, 1e-12, 1e-12, err_msg=f"{case.id} {name}")
        assert not answer.changed
    return answers


LACKS: dict[str, tuple[str, ...]] = {
    "nothing": (),
    "lengths": ("valid_lens",),
    "masks": ("mask",),
    "lengths and masks": ("valid_lens", "mask"),
    "dropout": ("dropout_mask", "attention_dropout_mask"),
}
REQUIRED = ("to_key_padding_mask", "to_additive_mask", "training")
"""The operators whose mask is required, and the one that is none."""


@pytest.mark.parametrize("passes_on", [False, True], ids=["by its signature", "by what it calls"])
@pytest.mark.parametrize("lacks", LACKS.values(), ids=LACKS)
def test_what_is_not_taken_does_not_make_the_rest_red(lacks: tuple[str, ...], passes_on: bool):
    target = Target(reference_without(lacks, passes_on=passes_on), PLAIN, "mine", "cpu")
    cases = [case for case in all_cases() if case.operator not in REQUIRED and not case.again and case.has("float64")]
    given = [{keyword(name.removeprefix("second."), case.operator) for name in case.inputs} for case in cases]
    asked = [case for case, inputs in zip(cases, given, strict=True) if inputs & {*lacks}] or cases[::4]
    assert check_answers(target, asked) > len(asked) / 20


ALIKE = Drawn(
    "attention_pooling",
    dtype="float32",
    seed=2630,
    sizes={"batch": 8, "heads": 8, "keys": 1, "queries": 2, "value_features": 0},
    given=("valid_lens", "mask"),
    ones=("keys", "queries"),
    types={"valid_lens": "uint8"},
    layouts={"scores": "strided", "values": "reversed", "valid_lens": "offset", "mask": "expanded"},
)


def test_a_mask_that_is_combined_with_lengths_has_no_stride_of_0():
    case = Case(**ALIKE.as_case())
    assert case.layouts["mask"] == "expanded" and len(set(case.inputs["valid_lens"] > 0)) == 2
    assert check_answers(Target(reference_without(("valid_lens",), passes_on=False), PLAIN, "mine", "cpu"), [case]) == 1


SECONDS: dict[str, dict[str, Any]] = {
    "scores": {"scores": np.arange(12.0).reshape(1, 3, 4)},
    "mask": {"mask": np.array([[[True, False, True, True]]])},
    "lengths": {"valid_lens": np.array([2])},
    "both": {"mask": np.array([[[False, True, True, True]]]), "valid_lens": np.array([3])},
}


@pytest.mark.parametrize("mask", [True, False])
@pytest.mark.parametrize("lacks", [("valid_lens",), ("mask",), ("valid_lens", "mask")], ids=" ".join)
@pytest.mark.parametrize("second", SECONDS.values(), ids=SECONDS)
def test_a_second_call_masks_what_it_is_asked_to(second: dict[str, Any], lacks: tuple[str, ...], mask: bool):
    first = {"scores": np.arange(12.0)[::-1].reshape(1, 3, 4), "valid_lens": np.array([4])}
    first |= {"mask": np.array([[[True, True, True, mask]]])}
    inputs = {**first, **{f"second.{name}": array for name, array in second.items()}}
    case = Case("masked_softmax", f"own_{'_'.join(second)}_{mask}", "Two calls.", inputs, twice=True)
    hides = {*second} - {"scores"} | ({"mask"} if not mask else set())
    answers = check_answers(Target(reference_without(lacks, passes_on=False), PLAIN, "mine", "cpu"), [case])
    assert answers == (lacks == ("valid_lens",) or not hides & {*lacks})


# ------------------------------------------------------------------------------------------------ refused arguments

SOFTMAX = """
import numpy as np

def softmax(scores): return np.exp(scores) / np.exp(scores).sum(-1, keepdims=True)
"""
CALLS = {
    "passed on": ("def masked_softmax(**given): return softmax(**given)", "none"),
    "passed on to C": (
        "def masked_softmax(scores, **given): return softmax(scores) if not given else int(**given)",
        "none",
    ),
    "named": ("def masked_softmax(scores, mask=None): return softmax(scores, mask=mask)", "TypeError"),
    "of its own": ("def masked_softmax(scores, **given): return softmax(scores, axis=1)", "TypeError"),
    "something else": ("def masked_softmax(scores, **given): return softmax(scores) + 'given'", "TypeError"),
}


@pytest.mark.parametrize(("source", "raised"), CALLS.values(), ids=CALLS)
def test_only_an_argument_of_ours_that_is_passed_on_is_not_taken(source: str, raised: str, tmp_path: Path):
    case = Case("masked_softmax", "own", "A mask.", {"scores": np.zeros((1, 2, 3)), "mask": np.zeros((1, 2, 3), bool)})
    target = target_of(SOFTMAX + source, tmp_path)
    for _ in range(2):
        with pytest.raises(NotImplementedHere if raised == "none" else TypeError) as caught:
            target.run(asked_of(case), case.inputs, {}, {})
        assert raised == "TypeError" or str(caught.value) == "masked_softmax does not take mask"
    open_ = replace(case, inputs={**case.inputs, "mask": np.ones((1, 2, 3), bool)})
    if raised == "none":
        weights = target.run(asked_of(open_), open_.inputs, {}, {}).arrays["weights"]
        np.testing.assert_allclose(weights, 1 / 3)


def test_an_array_named_as_an_option_has_another_name():
    named = {entry.name: keyword("bias", entry.name) for entry in LAYERS}
    options = {entry.name for entry in LAYERS if any(option.name == "bias" for option in entry.options)}
    assert {"ConcatAttention", "TransformerEncoder"} < options
    assert {name for name, array in named.items() if array == "score_bias"} == options
    assert keyword("bias", find("DotProductAttention").name) == "bias"


def test_an_option_without_a_default_gets_that_of_the_specification(tmp_path: Path):
    source = "def FeedForward(parameters, inputs, *, activation, gated, bias=None): return inputs * (bias is None)"
    source += " * (activation == 'relu') * (gated is False)"
    (case,) = all_cases().select("FeedForward-plain")
    answer = target_of(source, tmp_path).run(asked_of(case), case.inputs, case.parameters, {})
    np.testing.assert_array_equal(answer.arrays["outputs"], case.inputs["inputs"])
