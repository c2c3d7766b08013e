"""Translators trained epoch by epoch: files, going on, what is the same in every framework, and the commands."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from dataclasses import asdict, fields, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_args, get_type_hints

import numpy as np
import pytest
from click.testing import CliRunner

import backends
from attention_core import reference
from attention_core.errors import OptionError
from attention_core.operators.translation import DECODERS
from backends.archives import ArchiveError
from backends.requirements import XLA_LEVEL
from parity_tests.cases.call import JUDGED_STEPS
from parity_tests.cli.main import main
from parity_tests.cli.translate import train
from parity_tests.tests.places import ROOT
from parity_tests.translation import bleu, corpus
from parity_tests.translation.comparison import CLOSE, compare
from parity_tests.translation.model import Epoch, Model, Settings, digest_of, new_model, read_data
from parity_tests.translation.preparation import DATE_SETTINGS, new_settings
from parity_tests.translation.trainer import Diverged, Worker

SMALL: dict[str, Any] = {
    "split": "characters",
    "train": 40,
    "validation": 6,
    "test": 4,
    "max_tokens": 9,
    "embed_size": 4,
    "hidden_size": 6,
    "num_layers": 2,
    "dropout": 0.25,
    "batch_size": 16,
    "epochs": 3,
}
FLAGS = [
    *("--train", "40", "--validation", "6", "--test", "4", "--max-tokens", "9", "--embed", "4", "--hidden", "6"),
    *("--layers", "2", "--dropout", "0.25", "--batch-size", "16", "--epochs", "3", "--one-direction"),
]
PAIRS = corpus.dates(120)
EPOCH = Epoch(1.4, 900.0, 2.0, validation_loss=0.1 + 0.7, bleu=0.0, third_party=0.0, exact=0.0)
COMMAND = """
import signal
from parity_tests.cli.main import main

signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell has its background jobs ignore it
main()
"""


@pytest.fixture(autouse=True)
def _compiled_quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    """JAX compiles in a command, which takes its time for what runs for hours, as it does here."""
    monkeypatch.setenv(XLA_LEVEL, "0")


def small(**changes: Any) -> Settings:
    return Settings(**{**SMALL, "digest": digest_of(PAIRS), **changes})


def trained(backend: str, settings: Settings) -> Model:
    """A model trained to its end."""
    data = read_data(settings, PAIRS)
    model = new_model(settings, data, backend)
    worker = Worker(model, backend)
    while not model.finished:
        assert len(list(worker.train(data))) == -(-settings.train // settings.batch_size)
    return model


def differences(one: Model, other: Model) -> list[str]:
    """What is not the same to the bit in two models, but for how long they took."""

    def content(model: Model) -> dict[str, Any]:
        groups = {"parameters": model.parameters, "last": model.last, "state": model.state}
        arrays = {f"{group}/{name}": array for group, members in groups.items() for name, array in members.items()}
        timed = ("seconds", "tokens_per_second")
        history = [{name: value for name, value in epoch.items() if name not in timed} for epoch in model.history]
        kept: dict[str, Any] = {name: (array.dtype, array.tobytes()) for name, array in arrays.items()}
        return kept | {"losses": model.losses, "norms": model.norms, "history": history}

    first, second = content(one), content(other)
    return [name for name in first | second if first.get(name) != second.get(name)]


# ------------------------------------------------------------------------------------------------ resuming


@pytest.mark.parametrize("drawn", [False, True], ids=["dropout as data", "framework dropout"])
def test_resuming_from_a_file_is_the_same_training_to_the_bit(backend: SimpleNamespace, drawn: bool, tmp_path: Path):
    settings = small(framework_dropout=drawn, epochs=2, validation=2)
    data = read_data(settings, PAIRS)
    whole = new_model(settings, data, backend.name)
    worker = Worker(whole, backend.name)  # one for both epochs
    assert list(worker.train(data))
    whole.save(tmp_path / "model.safetensors")
    assert list(worker.train(data))
    resumed = Model.load(tmp_path / "model.safetensors")
    assert list(Worker(resumed, backend.name).train(data))
    assert not differences(whole, resumed)
    assert whole.losses[-1] < whole.losses[0] and len(whole.losses) == 6


@pytest.mark.parametrize("score", [None, "location"])
def test_another_amount_of_padding_is_the_same_training(
    backend: SimpleNamespace, score: str | None, monkeypatch: pytest.MonkeyPatch
):
    """With and without the columns that no sentence of a batch reaches."""
    settings = small(dtype="float64", batch_size=4, epochs=1, train=20, max_tokens=24, score=score)
    less = trained(backend.name, settings)
    widths, trimmed = set(), corpus.trimmed
    monkeypatch.setattr(corpus, "trimmed", lambda batch, most: widths.add(trimmed(batch, most).source.shape) or batch)
    whole = trained(backend.name, settings)
    assert len(widths) > 1, "some batches have no sentence of 24 tokens"
    np.testing.assert_allclose(less.losses, whole.losses, rtol=1e-11)
    assert less.history[0]["validation_loss"] == pytest.approx(whole.history[0]["validation_loss"], rel=1e-11)


def test_an_epoch_that_was_not_done_leaves_the_model_as_it_was(backend: SimpleNamespace):
    settings = small()
    data = read_data(settings, PAIRS)
    model = new_model(settings, data, backend.name)
    before = replace(model, history=[], losses=[], norms=[])
    next(Worker(model, backend.name).train(data))
    assert not differences(model, before) and model.epoch == 0


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT], ids=["kill -9", "Ctrl-C"])
def test_a_training_that_is_cut_short_loses_one_epoch_at_most(
    backend: SimpleNamespace, number: signal.Signals, tmp_path: Path
):
    """A process is cut short behind its first epoch; its file is resumed as if there had been no break."""
    options = [*FLAGS, "--layers", "1", "--dropout", "0"]
    train = [sys.executable, "-c", COMMAND, "translate", "train", "--backend", backend.name, *options]
    with subprocess.Popen(
        [*train, "--epochs", "100000", "-o", "cut.safetensors"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    ) as process:
        assert process.stdout is not None
        lines = []
        for line in process.stdout:
            lines.append(line)
            if line.startswith("epoch   1/"):
                process.send_signal(number)
                break
        lines += process.stdout
        assert process.wait(timeout=120) == (130 if number == signal.SIGINT else -9), "".join(lines)
    done = Model.load(tmp_path / "cut.safetensors").epoch
    assert done >= 1 and [path.name for path in tmp_path.iterdir()] == ["cut.safetensors"]
    if number == signal.SIGINT:  # what follows is the same, and the other process has lost more
        assert re.search(r"stopped in epoch \d+; cut.safetensors holds epoch", "".join(lines))
        return
    files = [str(tmp_path / f"{name}.safetensors") for name in ("cut", "whole")]
    until = ["--epochs", str(done + 1)]
    for arguments in (["--resume", files[0]], ["--backend", backend.name, *options, "-o", files[1]]):
        result = CliRunner().invoke(main, ["translate", "train", *arguments, *until])
        assert result.exit_code == 0, result.output
    one, other = map(Model.load, files)
    assert not differences(one, other) and one.epoch == done + 1


def test_training_stops_early_and_keeps_the_best_epoch(backend: SimpleNamespace):
    """With a learning rate that is far too long, validation soon becomes worse."""
    model = trained(backend.name, small(epochs=40, patience=2, learning_rate=0.3, validation=2, max_tokens=6))
    losses = [epoch["validation_loss"] for epoch in model.history]
    assert model.finished and model.epoch < 40
    assert model.epoch == model.best_epoch + 2 and min(losses) == losses[model.best_epoch - 1]
    assert not np.array_equal(model.parameters["decoder.dense.b"], model.last["decoder.dense.b"])


def test_a_loss_that_is_not_finite_is_refused(backend: SimpleNamespace):
    with pytest.raises(Diverged, match=r"the loss is .* in epoch \d+, step \d+: use a smaller --learning-rate"):
        trained(backend.name, small(optimizer="sgd", learning_rate=3e38, max_norm=None, epochs=50))


def test_a_model_translates_as_the_reference_does(backend: SimpleNamespace):
    """Greedily and by beam search: the tokens of all backends are those of the reference, so they are the same."""
    settings = small(dtype="float64", epochs=2)
    model = trained(backend.name, settings)
    sources = read_data(settings, PAIRS).validation.sources
    layer = reference.Translator(**settings.model(model.source, model.target))
    reference.set_parameters(layer, model.parameters)
    worker = Worker(model, backend.name)
    ends = {"bos": 1, "eos": 2, "max_steps": settings.max_tokens}
    tokens, lengths, weights = layer.greedy(sources.source, sources.source_lens, **ends)
    decoded = list(worker.decoded(sources))
    assert [ids for ids, _ in decoded] == [row[:n].tolist() for row, n in zip(tokens, lengths, strict=True)]
    for (_, actual), expected, length in zip(decoded, weights, sources.source_lens, strict=True):
        np.testing.assert_allclose(actual, expected[: len(actual), :length], atol=1e-12)
    tokens, lengths, _, _ = layer.beam(sources.source, sources.source_lens, width=3, **ends)
    expected = [row[0, : n[0]].tolist() for row, n in zip(tokens, lengths, strict=True)]
    assert worker.translated(sources, width=3) == expected


# ------------------------------------------------------------------------------------------------ data and files


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


@pytest.fixture
def model() -> Model:
    settings = small()
    made = new_model(settings, read_data(settings, PAIRS), "torch")
    made.losses, made.norms = [2.5, 0.1 + 0.2], [1.0, 2.0]
    made.history = [asdict(EPOCH)]
    made.state = {"step": np.array(2, np.int64)}
    return made


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


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--batch-size", "70000"], "70000 is not in the range 1<=x<=65536"),
        (["--batch-size", "65536", "--max-tokens", "1000"], "exceed the limit of 1,048,576 tokens per batch"),
        (["--corpus", "/dev/zero"], "this is a device, expected a regular file"),
        (["--corpus", "/"], "this is a folder, expected a regular file"),
    ],
)
def test_settings_that_would_fill_memory_are_refused(arguments: list[str], words: str):
    assert words in invoke("train", "--backend", "torch", *arguments, code=2)


def test_first_parameters_follow_from_the_seed_alone():
    data = read_data(small(), PAIRS)
    one, other, third = (new_model(small(seed=seed), data, "jax").parameters for seed in (0, 0, 1))
    assert all(np.array_equal(array, other[name]) for name, array in one.items())
    assert not np.array_equal(one["decoder.dense.W"], third["decoder.dense.W"])
    with pytest.raises(OptionError, match="decoder='fixed' has no attention"):
        new_model(small(decoder="fixed", score="dot"), data, "jax")


def test_every_setting_is_an_option_of_the_command_and_has_its_default():
    names = {setting.name for setting in fields(Settings)} - {"corpus", "digest"}
    assert names <= {option.name for option in train.params}
    settings, _ = new_settings(None, {})
    assert asdict(settings) == {**asdict(Settings()), **DATE_SETTINGS, "digest": settings.digest}


def test_scores_come_together():
    scores = bleu.scores([["a", "b", "c", "d"], ["x"]], [[["a", "b", "c", "d"]], [["y"]]])
    assert set(scores) == {"bleu", "third_party", "exact"} and scores["exact"] == scores["third_party"] == 0.5


# ------------------------------------------------------------------------------------------------ commands


def invoke(*arguments: object, code: int = 0, **keywords: Any) -> str:
    result = CliRunner().invoke(main, ["translate", *map(str, arguments)], **keywords)
    assert result.exit_code == code, result.output
    return re.sub(r"\s+", " ", result.output)


def test_the_commands_walk_through_a_training(backend: SimpleNamespace, tmp_path: Path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    output = invoke("train", "--backend", backend.name, *FLAGS)
    file = f"translator-{backend.name}.safetensors"
    assert "training in" in output and "epoch 3/3 loss" in output and f"{file}: epoch" in output
    assert "exists: pass --resume" in invoke("train", "--backend", backend.name, *FLAGS, code=2)
    assert f"{file} is finished: 3 epochs" in invoke("train", "--resume", file)
    output = invoke("train", "--resume", file, "--epochs", 4, "-o", "more.safetensors")
    assert "epoch 4/4" in output and Model.load("more.safetensors").epoch == 4 and Model.load(file).epoch == 3
    output = invoke("run", file, "3 may 1984", "1 ? may", "--beam", 2, "--heatmap", "heat.png")
    assert output.count("→") == 2 and "not in the vocabulary: ?" in output and "truncated from" in output
    assert Path("heat.png").read_bytes().startswith(b"\x89PNG")
    assert invoke("run", file, "--last", input="3 may 1984\n\n4 may 1984\n").count("→") == 2
    output = invoke("test", file, "more.safetensors", "--json", "scores.json")
    assert output.count("4 sentences BLEU") == 2
    report = json.loads(Path("scores.json").read_text(encoding="utf-8"))
    assert [len(each["translations"]) for each in report] == [4, 4] and len(report[1]["history"]) == 4
    invoke("curves", file, "more.safetensors", "-o", "curves.png", "--validation")
    assert Path("curves.png").read_bytes().startswith(b"\x89PNG")


def test_all_backends_are_compared(all_backends: list[str], tmp_path: Path):
    names = all_backends
    arguments = ["compare", "--backend", ",".join(names), *FLAGS, "--dtype", "float64", "--output", tmp_path / "out"]
    output = invoke(*arguments)
    assert "losses near: " in output and f"each model the same in {len(names)} backends: 6 sentences" in output
    assert f"all models the same: 6 sentences by {len(names)} models" in output
    report = json.loads((tmp_path / "out" / "report.json").read_text(encoding="utf-8"))
    assert report["near"] and report["same"] and report["distance_all"] < 1e-12 and report["steps"] == 9
    assert (tmp_path / "out" / "curves.png").read_bytes().startswith(b"\x89PNG")
    output = invoke(*arguments[:-2], "--output", tmp_path / "out", "--rnn", "lstm", code=2)
    assert "was trained with other settings (cell): pass another --output" in output


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
    translations["torch"]["jax"] = vas
    parted = compare({"torch": one, "jax": near}, translations, JUDGED_STEPS)
    assert parted["same"] and parted["between_models"] == ["go ."]
    assert not compare(exact, translations, JUDGED_STEPS)["same"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["train"], "--backend is missing: name one of torch, tf, jax, mxnet"),
        (["train", "--backend", "caffe", *FLAGS], "no backend 'caffe'"),
        (["train", "--backend", "torch", "--corpus", "nothing.txt"], "nothing.txt: there is no such file"),
        (["train", "--backend", "torch", "--corpus", "x", "--download"], "--download and --corpus cannot be combined"),
        (
            ["train", "--backend", "torch", "--decoder", "fixed", "--score", "dot"],
            "has no attention: omit --score",
        ),
        (["train", "--backend", "torch", *FLAGS, "-o", "no/folder/model"], "there is no folder"),
        (["train", "--backend", "torch", "--score", "dot", "--bidirectional"], "score='dot' compares them one by one"),
        (["train", "--resume", "model.safetensors", "--hidden", "7"], "omit --hidden"),
        (["train", "--resume", "model.safetensors", "--corpus", "pairs.txt"], "was trained on other pairs"),
        (["run", "model.safetensors"], "nothing to translate"),
        (["run", "model.safetensors", "  ", "go ."], "an argument is empty: omit it, or pass a value"),
        (["run", "pairs.txt", "go ."], "has no digest"),
        (["compare", "--framework-dropout"], "trainings with framework dropout are not comparable"),
        (["compare", "--backend", "caffe"], "no backend 'caffe'; there are torch"),
    ],
    ids=lambda value: " ".join(value[:5]) if isinstance(value, list) else "",
)
def test_a_wrong_command_is_refused_in_a_line(
    model: Model, arguments: list[str], words: str, tmp_path: Path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    model.save("model.safetensors")
    Path("pairs.txt").write_text("".join(f"go {n}\tva {n}\n" for n in range(200)), encoding="utf-8")
    output = invoke(*arguments, code=2)
    assert words in output and "Traceback" not in output


def test_bad_lines_of_a_corpus_are_reported_and_the_rest_is_trained_on(tmp_path: Path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("pairs.txt").write_text("no tab\n" + "".join(f"go {n}\tva {n}\n" for n in range(20)), encoding="utf-8")
    settings, pairs = new_settings(Path("pairs.txt"), {})
    assert len(pairs) == 20 and settings.split == "words" and settings.corpus == "pairs.txt"
    output = invoke("train", "--backend", "torch", "--corpus", "pairs.txt", "--train", 30, code=2)
    assert (
        "1 of 21 lines skipped (line 1: no tab)" in output
        and "20 pairs left for train, and 30 were requested" in output
    )


def test_an_empty_list_of_pairs_has_no_translations():
    data = read_data(small(test=0), PAIRS)
    assert data.test.sources.source.shape == (0, 9) and data.test.written == []
