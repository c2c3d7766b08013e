"""The cases: different sizes, sane expectations, and none that is blind."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import combinations, product

import numpy as np
import pytest

from attention_core import reference
from attention_core.errors import AttentionError
from attention_core.operators import FILE_OF, LAYERS, OPERATORS, find
from attention_core.operators.translation import TRANSLATORS
from attention_core.specification import Layer, Operator
from parity_tests.cases import covering
from parity_tests.cases.attention import LARGE, WITHOUT_LARGE
from parity_tests.cases.decoders import DECODER
from parity_tests.cases.seeds import first_steady, steady
from parity_tests.cases.suite import all_cases, with_seed
from parity_tests.format.call import SECOND, STEPS, TRAINING, bind
from parity_tests.format.case import DTYPES, FULL, Case, epsilon, is_floating
from parity_tests.format.drawn import called_of
from parity_tests.format.expected import build_reference, expected_values, gradients, in_memory, outputs
from parity_tests.format.selection import Cell
from parity_tests.judge.question import Question
from parity_tests.translation.corpus import read_corpus

ALL = [*all_cases()]
# Drawn cases and repeated ones have tests of their own: most of this file is about cases that were thought out.
CASES = [case for case in ALL if case.drawn is None and not case.again]
by_id = {case.id: case for case in CASES}

IN_TRAINING = {"dropout"}
"""Options that act in training alone: the judge hands the masks in; each framework's own tests ask for training."""


def test_ids_are_unique_and_every_method_has_cases():
    assert len({case.id for case in ALL}) == len(ALL)
    for layer in LAYERS:
        methods = {case.method for case in CASES if case.operator == layer.name}
        assert methods | {"prepare"} == {method.name.partition(".")[2] for method in layer.methods} | {"prepare"}


def test_every_score_is_used_in_every_layer_with_a_score_option():
    for layer in LAYERS:
        scores = next((option for option in layer.options if option.name == "score"), None)
        if scores is not None and layer.name not in covering.TRANSFORMERS:  # which pass it to a MultiHeadAttention
            given = {case.config.get("score", scores.value) for case in CASES if case.operator == layer.name}
            assert given - {None} == set(scores.choices), layer.name
        for option in layer.options:
            values = {case.config.get(option.name, option.value) for case in CASES if case.operator == layer.name}
            passed = option.name == "score" and layer.name in covering.TRANSFORMERS
            assert set(option.choices) <= values or (passed and len(values) > 1), (layer.name, option.name)
            assert option.type != "bool" or values - {None} == {True, False}, (layer.name, option.name)


def test_the_issue_of_every_operator_with_a_mask_is_covered():
    expected_names = {
        "none",
        "ragged",
        "ragged_rows",
        "mask",
        "fully_masked",
        "one_key",
        "no_keys",
        "no_queries",
        "no_batch",
    }
    expected_names |= {"large", "hidden_nan", "hidden_inf", "heads", "heads_mask"}
    attention = [layer.name for layer in LAYERS if layer.name.endswith("Attention")]
    undecided = sorted({*attention} - {*LARGE, *WITHOUT_LARGE})
    assert not undecided, f"name {', '.join(undecided)} in LARGE or WITHOUT_LARGE of parity_tests/cases/attention.py"
    for operator in ("masked_softmax", "attention_pooling", *attention):
        other = set() if operator in (*LARGE, "masked_softmax", "attention_pooling") else {"large"}
        other |= {"heads"} if operator == "MultiHeadAttention" else set()
        other |= {"heads", "heads_mask"} if operator == "InducedAttention" else set()
        other |= {"ragged", "ragged_rows", "heads"} if operator == "SegmentAttention" else set()  # it takes no lengths
        other |= {"ragged_rows"} if FILE_OF.get(operator) == "compressed" else set()  # one length for all queries
        assert expected_names - other <= {case.name for case in CASES if case.operator == operator}, operator
    rooms = ("recurrent", "encoders", "decoders", "translation")
    recurrent = [layer.name for layer in LAYERS if FILE_OF[layer.name] in rooms and layer.name != "Bridge"]
    for operator in recurrent:
        names = {case.name for case in CASES if case.operator == operator}
        long = {"many_steps"} if operator not in TRANSLATORS else set()  # which their parts have
        assert {"hidden_nan", "fully_masked", "dropout", "no_steps"} | long <= names, operator
    for operator in ("GRUEncoder", "BahdanauDecoder"):
        assert "three_layers" in {case.name for case in CASES if case.operator == operator}


SIZED = [case for case in CASES if not case.name.startswith("sentences")]  # a corpus has the sizes it has


def repeated_axes(case: Case, name: str) -> list[int]:
    """The places of axes that a tensor has a second time, as the weights of self-attention have steps."""
    if case.operator == TRAINING or case.method == "pruned":
        return []
    called = called_of(find(case.operator), case.method)
    tensors = {tensor.name: tensor.layouts for tensor in (*called.inputs, *called.outputs)}
    layouts = tensors.get(name.removeprefix(SECOND), ())
    rank = {**case.inputs, **outputs(case, case.dtypes[0])}[name].ndim
    axes = next((layout for layout in layouts if len(layout) == rank), ())
    if case.operator == "SegmentAttention" and np.size(case.inputs.get("previous", ())) == 0:  # the keys are its steps
        axes = tuple("queries" if axis == "keys" else axis for axis in axes)
    return [place for place, axis in enumerate(axes) if axis in axes[:place]]


@pytest.mark.parametrize("case", SIZED, ids=lambda case: case.id)
def test_no_two_axes_have_the_same_size(case: Case):
    """A swapped axis cannot pass. Axes of size 0 and 1 stand for themselves, and the gates of a GRU are three."""
    sizes = {}
    for name, array in {**case.inputs, **outputs(case, case.dtypes[0])}.items():
        if array.ndim < 2:
            continue
        twice = repeated_axes(case, name)
        large = [size for axis, size in enumerate(array.shape) if size > 1 and axis not in twice]
        assert len(set(large)) == len(large), f"{name} {array.shape}"
        sizes[name] = array.shape
    assert sizes or case.operator in ("attention_mask", "position_permutation")


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_expectations_are_finite_and_not_trivial(case: Case, request: pytest.FixtureRequest):
    for dtype in case.dtypes if request.config.getoption("--slow") else case.dtypes[:1]:
        answer = expected_values(case, dtype)
        for name, array in answer.items():
            if case.operator == "to_additive_mask":  # whose answer is -inf where a key is hidden
                array = array[array != -np.inf]
            assert array.dtype.kind != "f" or np.isfinite(array).all(), name
        empty = re.match("(predictive_|both_|with_bias_|context_|log_prob_)?no_", case.name)
        # There is nothing to clip, no step so far, and no other key.
        nothing = case.id in ("clip_by_global_norm-zero", "TransformerDecoder-start", "HardAttention-log_prob_one_key")
        assert empty or nothing or any(np.any(array) for array in answer.values())


def notices(case: Case, kind: str, name: str) -> bool:
    """Whether the answer to a case changes, or is refused, without an option or an input of it."""
    inputs, parameters = case.at(case.dtypes[0])
    given = {"inputs": dict(inputs), "options": dict(case.options), "config": dict(case.config)}
    if given[kind].pop(name, None) is None:
        return False
    changed = replace(case, inputs=given["inputs"], options=given["options"], config=given["config"])
    try:
        layer = build_reference(changed, parameters)
        answer = bind(reference, case.operator, case.method, changed.options)(layer, **changed.inputs)
    except AttentionError:
        return True
    right = outputs(case, case.dtypes[0]).values()
    return len(answer) != len(right) or not all(map(np.array_equal, answer, right))


@pytest.mark.parametrize("entry", (*OPERATORS, *LAYERS), ids=lambda entry: entry.name)
def test_every_option_and_optional_input_has_a_case_that_notices_it(entry: Operator | Layer):
    cases = [case for case in CASES if case.operator == entry.name]
    if isinstance(entry, Layer):
        for option in entry.options:
            if option.default is not None and option.name not in IN_TRAINING:
                assert any(notices(case, "config", option.name) for case in cases), option.name
    for called in entry.methods if isinstance(entry, Layer) else (entry,):
        method = called.name.partition(".")[2]
        asked = [case for case in cases if case.method == method]
        for option in called.options:
            if option.default is not None:
                assert any(notices(case, "options", option.name) for case in asked), f"{called.name} {option.name}"
        for tensor in called.inputs:
            name = STEPS + tensor.name if method == "extend" else tensor.name
            if tensor.optional and method != "prepare" and "." not in tensor.name:
                assert any(notices(case, "inputs", name) for case in asked), f"{called.name} {tensor.name}"


@pytest.mark.parametrize("case", [case for case in CASES if with_seed(case, 1)], ids=lambda case: case.id)
def test_rounding_cannot_decide_a_token_a_choice_or_a_window(case: Case):
    """Where it can, the message names a seed for `parity_tests.cases.seeds.SEEDS` with which it cannot."""
    if not steady(case):
        raise AssertionError(f"seed {first_steady(lambda seed: with_seed(case, seed))[0]} would do")


@pytest.mark.parametrize("name", ["greedy", "paper"])
def test_the_tokens_of_sentences_cannot_be_decided_by_rounding(name: str):
    (case,) = all_cases().select(f"Translator-sentences_{name}")
    lengths = expected_values(case, "float32")["lengths"]
    assert len(set(lengths.tolist())) > 1, "the sequences should end at different steps"


def test_a_decoder_has_a_size_of_its_own_for_every_axis():
    assert len(set(DECODER.values())) == len(DECODER)


def test_large_cases_are_large_and_saturated():
    for operator in ("masked_softmax", "attention_pooling", *LARGE, "BahdanauDecoder"):
        weights = expected_values(by_id[f"{operator}-large"], "float32")["weights"]
        assert set(np.unique(weights)) <= {0.0, 0.2, 0.5, 1.0}
        assert len(np.unique(weights.argmax(axis=-1))) > 2


def test_sentences_of_a_corpus_replace_dates(tmp_path):
    path = tmp_path / "pairs.txt"
    path.write_text("Go now.\tVa maintenant !\nI won!\tJ'ai gagné !\nHe ran away.\tIl a fui.\n", encoding="utf-8")
    (case,) = all_cases(read_corpus(path).pairs).select("Translator-sentences_greedy")
    assert case.inputs["source"].shape[0] == 3
    assert case.inputs["valid_lens"].tolist() == [4, 4, 5]


def test_selection_is_by_pattern_and_operator():
    assert [case.id for case in all_cases().select("GRU-st*")] == ["GRU-step", "GRU-step_dropout", "GRU-step_again"]
    operators = ["dot_score", "masked_softmax"]
    assert sorted({case.operator for case in all_cases().select("*-large", operators)}) == operators


def test_gradients_use_a_drawn_cotangent():
    """A plain sum is blind: the rows of a softmax sum to 1."""
    assert np.abs(gradients(by_id["masked_softmax-none"], "float64")["scores"]).max() > 0.01


def test_half_dtypes_have_a_plain_case_and_one_with_a_mask_or_lengths_of_every_operator():
    for entry in (*OPERATORS, *LAYERS):
        if entry.name in ("to_additive_mask", "alibi_bias"):  # whose dtype is an option
            asked = {case.options.get("dtype", "float32"): case.dtypes for case in CASES if case.operator == entry.name}
            assert asked == {dtype: FULL if dtype == "float16" else (dtype,) for dtype in DTYPES}
            continue
        half = [case for case in CASES if case.operator == entry.name and "bfloat16" in case.dtypes]
        assert [case for case in half if "float16" in case.dtypes] == half
        if FILE_OF[entry.name] == "masking" and not any(tensor.kind == "floating" for tensor in entry.inputs):
            assert half == [], "a mask is exact, and has no dtypes"
            continue
        if entry.name in ("position_permutation", "relative_buckets"):
            assert half == [], "whole numbers have no dtypes"
            continue
        called = entry.method("call") if isinstance(entry, Layer) else entry
        if not {"mask", "valid_lens"} & {tensor.name for tensor in called.inputs}:
            assert half, entry.name
            continue
        masked = [case for case in half if not np.all(case.inputs.get("mask", True))]
        ragged = [case for case in half if "valid_lens" in case.inputs and len(set(case.inputs["valid_lens"].flat)) > 1]
        assert masked or ragged, entry.name


def test_a_dtype_rounds_floating_arrays_alone():
    inputs, parameters = by_id["BahdanauDecoder-mask"].at("bfloat16")
    assert inputs["tokens"].dtype == np.int32 and inputs["mask"].dtype == bool
    assert {array.dtype.name for array in parameters.values()} == {"bfloat16"}
    assert epsilon("bfloat16") == 2.0**-7 and epsilon("float16") == 2.0**-10


# ------------------------------------------------------------------------------------------------ training

TRAINED = {case.id: case for case in all_cases(trained=True) if case.operator == "training"}


def test_trainings_are_opt_in_and_cover_the_required_settings():
    assert not [case for case in CASES if case.operator == "training"]
    steps = {
        (case.config["cell"], case.config["score"], case.options["optimizer"]): len(case.inputs["batches"])
        for case in TRAINED.values()
        if case.dtypes == FULL and "cell" in case.config
    }
    assert set(steps) == set(product(("gru", "lstm"), ("additive", "dot"), ("adam", "sgd")))
    assert min(steps.values()) >= 26
    long = [kind for kind, count in steps.items() if count >= 100]
    met, possible = ({pair for kind in kinds for pair in combinations(kind, 2)} for kinds in (long, steps))
    assert met == possible


@pytest.mark.parametrize("name", ["short", "short_sgd"])
def test_a_training_learns_and_clips_gradients_in_some_steps_only(name: str):
    case = TRAINED[f"training-{name}"]
    trained = outputs(case, "float64")
    assert trained["losses"][-1] < 0.95 * trained["losses"][0]
    above = trained["norms"] > case.options["max_norm"]
    assert (above.any() and not above.all()) or (name == "short" and above.all())


def test_both_dtypes_of_a_training_begin_with_the_same_numbers():
    case = TRAINED["training-gru_dot_sgd"]
    for name, array in case.at("float32")[1].items():
        assert np.array_equal(array, case.parameters[name])


def test_an_epoch_of_a_training_reads_every_sentence_once_in_an_order_of_its_own():
    rows = TRAINED["training-gru_dot_sgd"].inputs["batches"].reshape(-1, 4, 6).reshape(-1, 24)
    assert all(sorted(epoch) == list(range(24)) for epoch in rows.tolist())
    assert len(np.unique(rows, axis=0)) == len(rows) == 26


# ------------------------------------------------------------------------------------------------ drawn and repeated

DRAWN = [case for case in ALL if case.drawn is not None]


@pytest.mark.parametrize("operator", dict.fromkeys(case.operator for case in DRAWN))
def test_rounding_cannot_change_the_answer_to_a_drawn_case(operator: str):
    assert [
        case.id for case in DRAWN if case.operator == operator and not Question(Cell(case, case.dtypes[0])).is_certain
    ] == []


def test_every_function_and_method_is_repeated_after_all_others():
    repeated = [case for case in ALL if case.again]
    assert list(ALL[-len(repeated) :]) == repeated
    assert {(case.operator, case.method) for case in repeated} == {(case.operator, case.method) for case in ALL}
    first = {case.id: case for case in ALL}
    for case in repeated:
        assert case.inputs is first[case.again].inputs and set(case.dtypes) <= set(first[case.again].dtypes)


def test_calls_of_layers_that_have_half_precision_have_mixed_precision_with_the_same_numbers():
    layers = {entry.name for entry in LAYERS}
    assert {case.operator for case in CASES if case.has("mixed_bfloat16")} == layers
    for case in CASES:
        assert case.has("mixed_float16") == (case.has("float16") and case.method not in ("", "train"))
    case = by_id["AdditiveAttention-ragged"]
    for half, mixed in zip(case.at("float16"), case.at("mixed_float16"), strict=True):
        for name, array in half.items():
            assert mixed[name].dtype == ("float32" if is_floating(array) else array.dtype)
            assert np.array_equal(array, mixed[name], equal_nan=True)
    of_mixed, of_half = (expected_values(case, dtype) for dtype in ("mixed_float16", "float16"))
    assert of_mixed and all(np.array_equal(of_mixed[name], array) for name, array in of_half.items())


def test_cases_of_one_name_do_not_share_what_is_kept_in_memory():
    case = by_id["dot_score-plain"]
    other = replace(case, inputs={**case.inputs, "queries": 2.0 * case.inputs["queries"]})
    with in_memory():
        expected = expected_values(case, "float64")["scores"]
        assert np.array_equal(expected_values(other, "float64")["scores"], 2.0 * expected)
