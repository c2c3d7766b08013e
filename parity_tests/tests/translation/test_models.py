"""The data of a training, and the files of models."""

from __future__ import annotations

import re
from dataclasses import asdict, replace
from pathlib import Path
from typing import get_args, get_type_hints
from unittest.mock import ANY

import numpy as np
import pytest

import backends
from attention_core.errors import OptionError
from attention_core.operators.translation import DECODERS
from backends.archives import ArchiveError
from parity_tests.format.call import JUDGED_STEPS
from parity_tests.tests.translation.translators import EPOCH, PAIRS, differences, small
from parity_tests.translation import bleu, corpus
from parity_tests.translation.comparison import CLOSE, compare
from parity_tests.translation.model import MIXED, Model, Settings, new_model, read_data
from parity_tests.translation.preparation import new_settings


def test_data_is_split_by_sentence_and_numbered():
    settings = small(split="words", corpus="file", train=3, validation=3, test=0, max_tokens=4)
    pairs = [
        ("Go.", "Va !"),
        ("Run!", "Cours !"),
        ("Go .", "Bouge !"),
        ("Hi.", "Salut !"),
        ("Hi.", "Salut."),
        ("Oh!", "Oh !"),
    ]
    data = read_data(settings, pairs)
    assert data.source.tokens[4:] == (".", "go", "!", "run")
    assert data.training.written == ["Go.", "Run!"]
    assert data.training.references == [[["va", "!"], ["bouge", "!"]], [["cours", "!"]]]
    assert data.validation.written == ["Hi.", "Oh!"] and len(data.validation.pairs.source) == 3
    assert data.validation.sources.source.tolist() == [[3, 4, 2, 0], [3, 6, 2, 0]], "unknown words are unk"
    assert data.test.written == []
    with pytest.raises(corpus.CorpusError, match="file has 2 pairs left for validation, and 3 were requested"):
        read_data(settings, pairs[:-1] and pairs[:5])


def test_a_date_that_was_trained_in_one_form_is_not_held_out_in_another():
    data = read_data(small(train=60, validation=20, test=20), PAIRS)
    seen, *others = (
        {tuple(reference) for references in split.references for reference in references}
        for split in (data.training, data.validation, data.test)
    )
    assert not any(seen & other for other in others)


def test_a_file_holds_all_of_a_model_exactly(model: Model, tmp_path: Path):
    model.save(tmp_path / "model.safetensors")
    back = Model.load(tmp_path / "model.safetensors")
    assert not differences(model, back) and back.settings == model.settings
    assert (back.source, back.target, back.backend) == (model.source, model.target, "torch")


def test_a_truncated_file_is_refused(model: Model, tmp_path: Path):
    path = tmp_path / "model.safetensors"
    model.save(path)
    data = path.read_bytes()
    for length in (0, 7, 100, len(data) // 2, len(data) - 1):
        path.write_bytes(data[:length])
        with pytest.raises(ArchiveError, match=r"model\.safetensors"):
            Model.load(path)
    path.write_bytes(data[:-9] + bytes([data[-9] ^ 1]) + data[-8:])
    with pytest.raises(ArchiveError, match="does not match its digest"):
        Model.load(path)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"settings": {}}, "settings.batch_size: missing"),
        ({"settings": {**asdict(Settings()), "epochs": "3"}}, "settings.epochs: '3', expected an integer"),
        ({"settings": {**asdict(Settings()), "cell": "rnn"}}, "settings.cell: 'rnn', expected one of 'gru', 'lstm'"),
        ({"settings": {**asdict(Settings()), "batch_size": 0}}, "settings.batch_size: 0, expected an integer from 1"),
        ({"settings": {**asdict(Settings()), "batch_size": 10**9}}, "settings.batch_size: 1000000000, expected"),
        ({"settings": {**asdict(Settings()), "batch_size": 2**16, "max_tokens": 999}}, "settings: batch_size=65536"),
        ({"settings": {**asdict(Settings()), "num_layers": 10**9}}, "settings.num_layers: 1000000000, expected"),
        ({"settings": {**asdict(Settings()), "optimizer": "__class__"}}, "settings.optimizer: '__class__', expected"),
        ({"settings": {**asdict(Settings()), "score": "__class__"}}, "score is '__class__', expected one of"),
        ({"settings": {**asdict(Settings()), "learning_rate": True}}, "settings.learning_rate: True, expected a"),
        ({"settings": {**asdict(Settings()), "\x1b[2J": 1}}, r"settings.'\x1b[2J': there is no such entry"),
        ({"source": ["a", "b"]}, "source: the special tokens come first"),
        ({"source": [*corpus.SPECIAL, "a", "a"]}, "each token occurs once"),
        ({"source": [*corpus.SPECIAL, "a\x1b[2J"]}, r"source[4]: 'a\x1b[2J' has a control character"),
        ({"source": [*corpus.SPECIAL, "\ud800"]}, r"source[4]: '\ud800' has a lone surrogate"),
        ({"target": "abc"}, "target: 'abc', expected a list"),
        ({"history": [3]}, "history[0]: 3, expected an object"),
        ({"history": [{**asdict(EPOCH), "loss": None}]}, "history[0].loss: None, expected a finite number"),
        ({"target": [*corpus.SPECIAL, "a"]}, "the arrays of parameter do not match the settings"),
        ({"backend": ["torch"]}, "backend: a list of 1, expected text"),
        ({"kind": "recording"}, "this is a 'recording', expected a 'translation model'"),
    ],
)
def test_a_header_that_is_not_that_of_a_model_is_refused(model: Model, tmp_path: Path, changed: dict, words: str):
    path = tmp_path / "model.safetensors"
    model.save(path)
    arrays, header = backends.load_archive(path)
    backends.save_arrays(path, arrays, {**header, **changed})
    with pytest.raises(ArchiveError, match=re.escape(words)):
        Model.load(path)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"losses": np.array(["a"] * 2).view(np.uint32)}, "expected losses and norms in float64"),
        ({"losses": np.ones((2, 1))}, "one of each for a step"),
        ({"norms": np.array([1.0, np.nan])}, "are not finite numbers"),
        ({"other": np.ones(2)}, "expected losses and norms in float64"),
        ({"last/encoder.embedding": np.ones(2)}, "the arrays of last do not match the settings"),
    ],
)
def test_arrays_that_are_not_those_of_a_model_are_refused(model: Model, tmp_path: Path, changed: dict, words: str):
    path = tmp_path / "model.safetensors"
    model.save(path)
    arrays, header = backends.load_archive(path)
    backends.save_arrays(path, {**arrays, **changed}, header)
    with pytest.raises(ArchiveError, match=re.escape(words)):
        Model.load(path)


def test_settings_allow_what_the_specification_knows():
    schema = get_type_hints(Settings, include_extras=True)
    known = {"split": corpus.SPLITTERS, "decoder": DECODERS, "dtype": CLOSE}
    assert all(set(get_args(schema[name])) == set(choices) for name, choices in known.items())


def test_first_parameters_follow_from_the_seed_alone():
    data = read_data(small(), PAIRS)
    one, other, third = (new_model(small(seed=seed), data, "jax").parameters for seed in (0, 0, 1))
    assert all(np.array_equal(array, other[name]) for name, array in one.items())
    assert not np.array_equal(one["decoder.dense.W"], third["decoder.dense.W"])
    with pytest.raises(OptionError, match="decoder='fixed' has no attention"):
        new_model(small(decoder="fixed", score="dot"), data, "jax")


def test_xavier_bounds_a_matrix_by_its_inputs_and_outputs_and_begins_with_biases_of_zero():
    settings = [small(), small(model="transformer", num_heads=2)]
    settings = [replace(each, initialization="xavier") for each in settings]
    recurrent, transformer = (new_model(each, read_data(each, PAIRS), "jax").parameters for each in settings)
    for matrix, inputs, outputs in (
        (recurrent["encoder.rnn.0.W"], 4, 3 * 6),
        (recurrent["decoder.rnn.0.U"], 6, 3 * 6),
        (recurrent["decoder.attention.w_v"], 6, 1),
        (transformer["encoder.layers.0.self_attention.W_q"], 4, 4),
        (transformer["encoder.layers.0.feed_forward.W_1"], 4, 6),
    ):
        bound = (6 / (inputs + outputs)) ** 0.5
        assert 0.7 * bound < abs(matrix).max() <= bound
    for name, array in {**recurrent, **transformer}.items():
        assert array.any() != name.rpartition(".")[2].startswith("b"), name


def test_a_transformer_begins_with_gains_of_one_and_has_no_settings_of_recurrent_layers():
    data = read_data(small(), PAIRS)
    settings, _ = new_settings(None, {"model": "transformer"})
    assert not settings.bidirectional, "which is the default for dates"
    model = new_model(small(model="transformer", num_heads=2), data, "jax")
    gains, biases = (
        [array for name, array in model.parameters.items() if name.endswith(end)] for end in (".g", "_1.b")
    )
    assert gains and all((array == 1).all() for array in gains) and not np.concatenate(biases).any()
    for wrong, words in (
        ({"cell": "lstm", "model": "transformer"}, "cell='lstm' requires model='recurrent'"),
        ({"norm": "pre"}, "norm='pre' requires model='transformer'"),
    ):
        with pytest.raises(ValueError, match=words):
            small(**wrong)


def test_a_transformer_has_the_arrays_of_its_positions_and_a_tied_one_no_matrix_of_logits():
    data = read_data(small(), PAIRS)
    relative, learned = (
        new_model(small(model="transformer", num_heads=2, positions=kind, tied=kind == "relative"), data, "jax")
        for kind in ("relative", "learned")
    )
    assert relative.parameters["decoder.bias_table"].shape == (32, 2)
    assert learned.parameters["encoder.positions.P"].shape[0] == small().max_tokens
    assert ["decoder.dense.W" in model.parameters for model in (relative, learned)] == [False, True]


def test_scores_come_together():
    scores = bleu.scores([["a", "b", "c", "d"], ["x"]], [[["a", "b", "c", "d"]], [["y"]]])
    assert set(scores) == {"bleu", "third_party", "exact"} and scores["exact"] == scores["third_party"] == 0.5


def planted(model: Model, losses: list[float]) -> Model:
    history = [{"validation_loss": 1.0, "bleu": 0.0, "third_party": 0.0, "exact": 0.0, "tokens_per_second": 9.0}]
    return replace(model, losses=losses, history=history)


def test_losses_and_translations_that_differ_are_reported(model: Model):
    one, near, far = (planted(model, [2.0, 1.0 + apart]) for apart in (0.0, 1e-6, 1e-2))
    va, vas = ({"sources": ["go ."], "translations": [[word]]} for word in ("va", "vas"))
    translations = {"torch": {"torch": va, "jax": va}, "jax": {"torch": va, "jax": va}}
    good = compare({"torch": one, "jax": near}, translations, JUDGED_STEPS)
    assert good["near"] and good["same"] and good["distance_judged"] == pytest.approx(1e-6)
    assert not compare({"torch": one, "jax": far}, translations, JUDGED_STEPS)["near"]
    double = replace(model.settings, dtype="float64")
    exact = {name: replace(each, settings=double) for name, each in (("torch", one), ("jax", near))}
    assert not compare(exact, translations, JUDGED_STEPS)["near"]
    translations["jax"]["jax"] = vas
    bad = compare({"torch": one, "jax": near}, translations, JUDGED_STEPS)
    assert not bad["same"] and bad["moved"] == {"torch": [], "jax": ["go ."]}
    half = {name: replace(each, settings=replace(model.settings, dtype=MIXED)) for name, each in exact.items()}
    assert compare(half, translations, JUDGED_STEPS) == {**bad, "settings": ANY, "bound": CLOSE[MIXED], "same": True}
    translations["torch"]["jax"] = vas
    parted = compare({"torch": one, "jax": near}, translations, JUDGED_STEPS)
    assert parted["same"] and parted["between_models"] == ["go ."]
    assert not compare(exact, translations, JUDGED_STEPS)["same"]


def test_an_empty_list_of_pairs_has_no_translations():
    data = read_data(small(test=0), PAIRS)
    assert data.test.sources.source.shape == (0, 9) and data.test.written == []
