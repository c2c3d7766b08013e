"""The cases: different sizes, sane expectations, and none that is blind."""

from __future__ import annotations

import numpy as np
import pytest

from attention_core import reference
from attention_core.operators import LAYERS, OPERATORS
from attention_core.specification import Layer
from parity_tests.cases import DECODER, GAP, Case, all_cases, epsilon, greedy_gap, select
from parity_tests.expected import build_reference, expected, gradients, outputs
from parity_tests.invocation import bind
from parity_tests.text import read_pairs

# What fuzzing found is as small as it can be: the rest of this file is about cases that were thought out.
CASES = [case for case in all_cases() if not case.name.startswith("found_")]
by_id = {case.id: case for case in CASES}

# What an option, a rule or an input of the specification is, and a case whose answer changes without it.
NOTICES = [
    ("scaled_dot_score-scale", "options", "scale"),
    ("cosine_score-scale", "options", "scale"),
    ("gaussian_score-width", "inputs", "w"),
    ("causal_mask-offset", "options", "offset"),
    ("window_mask-offset", "options", "offset"),
    ("block_mask-offset", "options", "offset"),
    ("stride_mask-offset", "options", "offset"),
    ("masked_softmax-ragged_rows", "inputs", "valid_lens"),
    ("masked_softmax-mask", "inputs", "mask"),
    ("attention_pooling-lens_and_mask", "inputs", "valid_lens"),
    ("attention_pooling-lens_and_mask", "inputs", "mask"),
    ("attention_pooling-dropout", "inputs", "dropout_mask"),
    ("DotProductAttention-scale", "config", "scale"),
    ("DotProductAttention-dropout", "inputs", "dropout_mask"),
    ("AdditiveAttention-closed", "inputs", "valid_lens"),
    ("GeneralAttention-mask", "inputs", "mask"),
    ("GeneralAttention-dropout", "inputs", "dropout_mask"),
    ("ConcatAttention-closed", "inputs", "valid_lens"),
    ("ConcatAttention-dropout", "inputs", "dropout_mask"),
    ("CosineAttention-scale", "config", "scale"),
    ("CosineAttention-closed", "inputs", "valid_lens"),
    ("CosineAttention-dropout", "inputs", "dropout_mask"),
    ("AdditiveAttention-dropout", "inputs", "dropout_mask"),
    ("GRU-ragged", "inputs", "valid_lens"),
    ("GRU-open", "inputs", "state"),
    ("GRU-dropout", "inputs", "dropout_mask"),
    ("GRU-step_dropout", "inputs", "dropout_mask"),
    ("GRUEncoder-closed", "inputs", "valid_lens"),
    ("GRUEncoder-dropout", "inputs", "dropout_mask"),
    ("BahdanauDecoder-ragged_rows", "inputs", "valid_lens"),
    ("BahdanauDecoder-mask", "inputs", "mask"),
    ("BahdanauDecoder-dropout", "inputs", "dropout_mask"),
    ("BahdanauDecoder-dropout", "inputs", "attention_dropout_mask"),
    ("BahdanauDecoder-greedy", "inputs", "valid_lens"),
]


def test_ids_are_unique_and_every_entry_has_cases():
    assert len(by_id) == len(CASES)
    operators = {case.operator for case in CASES}
    assert operators == {*(entry.name for entry in OPERATORS), *(entry.name for entry in LAYERS), "sentences"}
    for layer in LAYERS:
        methods = {case.method for case in CASES if case.operator == layer.name}
        assert methods | {"prepare"} == {method.name.partition(".")[2] for method in layer.methods} | {"prepare"}


def test_the_issue_of_every_operator_with_a_mask_is_covered():
    wanted = {"none", "ragged", "ragged_rows", "mask", "closed", "one_key", "no_keys", "no_queries", "no_batch"}
    wanted |= {"large", "hidden_nan", "hidden_inf", "heads", "heads_mask"}
    attention = [layer.name for layer in LAYERS if layer.module == "layers"]
    for operator in ("masked_softmax", "attention_pooling", *attention):
        bounded = {"large"} if operator == "CosineAttention" else set()
        assert wanted - bounded <= {case.name for case in CASES if case.operator == operator}
    for layer in ("GRUEncoder", "BahdanauDecoder"):
        names = {case.name for case in CASES if case.operator == layer}
        assert {"three_layers", "many_steps", "sentences", "hidden_nan", "closed", "no_steps"} <= names


SIZED = [case for case in CASES if "sentences" not in (case.operator, case.name)]  # a corpus has the sizes it has


@pytest.mark.parametrize("case", SIZED, ids=lambda case: case.id)
def test_no_two_axes_have_the_same_size(case: Case):
    """A swapped axis cannot pass. Axes of size 0 and 1 stand for themselves, and the gates of a GRU are three."""
    sizes = {}
    for name, array in {**case.inputs, **expected(case, case.tiers[0])}.items():
        if name.startswith("gradient_") or array.ndim < 2:
            continue
        large = [size for size in array.shape if size > 1]
        assert len(set(large)) == len(large), f"{name} {array.shape}"
        sizes[name] = array.shape
    assert sizes or case.operator == "attention_mask"


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_expectations_are_finite_and_not_trivial(case: Case):
    for tier in case.tiers:
        found = expected(case, tier)
        for name, array in found.items():
            assert array.dtype.kind != "f" or np.isfinite(array).all(), name
        empty = case.name.startswith("no_")
        assert empty or any(np.any(array) for array in found.values())


@pytest.mark.parametrize(("case_id", "kind", "name"), NOTICES, ids=["/".join(entry) for entry in NOTICES])
def test_a_case_notices_its_option(case_id: str, kind: str, name: str):
    case = by_id[case_id]
    inputs, parameters = case.at("float64")
    given = {"inputs": dict(inputs), "options": dict(case.options), "config": dict(case.config)}
    del given[kind][name]
    changed = Case(
        case.operator, case.name, "", given["inputs"], given["options"], case.method, given["config"], parameters
    )
    layer = build_reference(changed, parameters)
    answer = bind(reference, case.operator, case.method, changed.options)(layer, **changed.inputs)
    differences = [
        not np.array_equal(found, wanted)
        for found, wanted in zip(answer, outputs(case, "float64").values(), strict=True)
    ]
    assert any(differences)


def test_every_option_and_optional_input_has_a_case_that_notices_it():
    noticed = {(case_id.partition("-")[0], name) for case_id, _, name in NOTICES}
    for entry in (*OPERATORS, *LAYERS):
        called = entry.method("call") if isinstance(entry, Layer) else entry
        names = {tensor.name for tensor in called.inputs if tensor.optional}
        names |= {option.name for option in entry.options if option.keyword_only and option.name in ("scale",)}
        if entry.name == "attention_mask":  # its cases are lengths and masks alone, and together
            continue
        covered = {name for operator, name in noticed if operator == entry.name}
        similar = {
            "DotProductAttention": {"valid_lens", "mask"},
            "AdditiveAttention": {"mask"},
            "GeneralAttention": {"valid_lens"},
            "ConcatAttention": {"mask"},
            "CosineAttention": {"mask"},
            "GRUEncoder": {"state"},
        }
        assert names - covered <= similar.get(entry.name, set()), entry.name


def test_greedy_cases_cannot_be_decided_by_rounding():
    for case in CASES:
        if case.method == "greedy":
            assert greedy_gap(case)[0] > GAP
            lengths = expected(case, "float32")["lengths"]
            assert len(set(lengths.tolist())) > 1, "the sequences should end at different steps"


def test_a_decoder_has_a_size_of_its_own_for_every_axis():
    assert len(set(DECODER.values())) == len(DECODER)


def test_large_cases_are_large_and_saturated():
    for operator in (
        "masked_softmax",
        "attention_pooling",
        "DotProductAttention",
        "AdditiveAttention",
        "GeneralAttention",
        "ConcatAttention",
        "BahdanauDecoder",
    ):
        weights = expected(by_id[f"{operator}-large"], "float32")["weights"]
        assert set(np.unique(weights)) <= {0.0, 0.2, 0.5, 1.0}
        assert len(np.unique(weights.argmax(axis=-1))) > 2


def test_sentences_of_a_corpus_take_the_place_of_dates(tmp_path):
    path = tmp_path / "pairs.txt"
    path.write_text("Go now.\tVa maintenant !\nI won!\tJ'ai gagné !\nHe ran away.\tIl a fui.\n", encoding="utf-8")
    (case,) = select(all_cases(read_pairs(path)), "sentences-*")
    assert case.inputs["tokens"].shape[0] == 3
    assert case.inputs["valid_lens"].tolist() == [4, 4, 5]


def test_selection_is_by_pattern_and_operator():
    assert [case.id for case in select(CASES, "GRU-s*")] == ["GRU-step", "GRU-step_dropout"]
    assert {case.operator for case in select(CASES, "*-large", ["dot_score", "masked_softmax"])} == {
        "dot_score",
        "masked_softmax",
    }


def test_gradients_are_taken_against_a_drawn_cotangent():
    """A plain sum is blind: the rows of a softmax sum to 1."""
    assert np.abs(gradients(by_id["masked_softmax-none"], "float64")["scores"]).max() > 0.01


def test_half_tiers_ask_every_operator_a_plain_case_and_one_with_a_mask_or_lengths():
    for entry in (*OPERATORS, *LAYERS):
        own = [case for case in CASES if case.operator == entry.name and "bfloat16" in case.tiers]
        assert [case for case in own if "float16" in case.tiers] == own
        if entry.module == "masking" and entry.name != "masked_softmax":
            assert own == [], "a mask is exact, and has no tiers"
            continue
        masked = [case for case in own if not np.all(case.inputs.get("mask", True))]
        ragged = [case for case in own if "valid_lens" in case.inputs and len(set(case.inputs["valid_lens"].flat)) > 1]
        assert own and (masked or ragged or entry.name.endswith("_score")), entry.name


def test_a_tier_rounds_floating_arrays_alone():
    inputs, parameters = by_id["BahdanauDecoder-mask"].at("bfloat16")
    assert inputs["tokens"].dtype == np.int32 and inputs["mask"].dtype == bool
    assert {array.dtype.name for array in parameters.values()} == {"bfloat16"}
    assert epsilon("bfloat16") == 2.0**-7 and epsilon("float16") == 2.0**-10
