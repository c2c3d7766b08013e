"""Translators trained epoch by epoch: files, going on, what is the same in every framework, and the commands."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict, fields, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

import backends
from attention_core import reference
from attention_core.errors import OptionError
from backends.archives import ArchiveError
from backends.requirements import XLA_LEVEL
from parity_tests.cases.call import JUDGED_STEPS
from parity_tests.cli.main import main
from parity_tests.cli.translate import train
from parity_tests.tests.places import ROOT
from parity_tests.translation import bleu, corpus
from parity_tests.translation.comparison import compare
from parity_tests.translation.model import Model, Settings, digest_of, new_model, read_data
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


def trained(backend: str, settings: Settings, again: Callable[[Model], Model] | None = None) -> Model:
    """A model trained to its end; `again` is what is made of it between two epochs, for a new worker."""
    data = read_data(settings, PAIRS)
    model = new_model(settings, data, backend)
    at_work = Worker(model, backend)
    while not model.finished:
        assert sum(1 for _ in at_work.train(data)) == -(-settings.train // settings.batch_size)
        if again is not None:
            model = again(model)
            at_work = Worker(model, backend)
    return model


def same(one: Model, other: Model) -> bool:
    """Whether two models are the same to the bit, but for how long they took."""

    def held(model: Model) -> Any:
        groups = (model.parameters, model.last, model.state)
        arrays = [{name: (array.dtype, array.tobytes()) for name, array in own.items()} for own in groups]
        timed = ("seconds", "tokens_per_second")
        history = [{name: value for name, value in own.items() if name not in timed} for own in model.history]
        return arrays, model.losses, model.norms, history

    return held(one) == held(other)


# ------------------------------------------------------------------------------------------------ going on


@pytest.mark.parametrize("drawn", [False, True], ids=["dropout as data", "framework dropout"])
def test_going_on_from_a_file_is_the_same_training_to_the_bit(backend: SimpleNamespace, drawn: bool, tmp_path: Path):
    settings = small(framework_dropout=drawn, epochs=2, validation=2)
    data = read_data(settings, PAIRS)
    whole = new_model(settings, data, backend.name)
    at_work = Worker(whole, backend.name)  # one for all epochs
    while not whole.finished:
        assert list(at_work.train(data))

    def through_a_file(model: Model) -> Model:
        model.save(tmp_path / "model.safetensors")
        return Model.load(tmp_path / "model.safetensors")

    assert same(whole, trained(backend.name, settings, through_a_file))
    assert whole.losses[-1] < whole.losses[0] and len(whole.losses) == 6


def test_an_epoch_that_was_not_done_leaves_the_model_as_it_was(backend: SimpleNamespace):
    settings = small()
    data = read_data(settings, PAIRS)
    model = new_model(settings, data, backend.name)
    before = replace(model, history=[], losses=[], norms=[])
    next(Worker(model, backend.name).train(data))
    assert same(model, before) and model.epoch == 0


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT], ids=["kill -9", "Ctrl-C"])
def test_a_training_that_is_cut_short_loses_one_epoch_at_most(
    backend: SimpleNamespace, number: signal.Signals, tmp_path: Path
):
    """A process is cut short behind its first epoch; what it has kept goes on as if nothing had been."""
    start = (
        "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
        "from parity_tests.cli.main import main; "
    )
    command = [sys.executable, "-c", start + "main()", "translate", "train"]
    options = {
        "cwd": tmp_path,
        "env": {**os.environ, "PYTHONPATH": str(ROOT)},
        "text": True,
    }
    told = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    cut = [*command, "--backend", backend.name, *FLAGS, "--epochs", "100000", "-o", "cut.safetensors"]
    with subprocess.Popen(cut, **options, **told) as process:
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
        assert re.search(r"stopped in epoch \d+; |stopped in epoch \d+: cut.safetensors holds epoch", "".join(lines))
        return
    files = [str(tmp_path / f"{name}.safetensors") for name in ("cut", "whole")]
    until = ["--epochs", str(done + 1)]
    for arguments in (["--resume", files[0]], ["--backend", backend.name, *FLAGS, "-o", files[1]]):
        result = CliRunner().invoke(main, ["translate", "train", *arguments, *until])
        assert result.exit_code == 0, result.output
    one, other = map(Model.load, files)
    assert same(one, other) and one.epoch == done + 1


def test_training_stops_early_and_keeps_the_best_epoch(backend: SimpleNamespace):
    """With a learning rate that is far too long, validation soon becomes worse."""
    model = trained(backend.name, small(epochs=40, patience=2, learning_rate=0.3, validation=2, max_tokens=6))
    losses = [own["validation_loss"] for own in model.history]
    assert model.finished and model.epoch < 40
    assert model.epoch == model.best_epoch + 2 and min(losses) == losses[model.best_epoch - 1]
    assert not np.array_equal(model.parameters["decoder.dense.b"], model.last["decoder.dense.b"])


def test_a_loss_that_is_not_finite_is_refused(backend: SimpleNamespace):
    with pytest.raises(Diverged, match=r"the loss is .* in epoch \d+, step \d+: take a smaller --learning-rate"):
        trained(backend.name, small(optimizer="sgd", learning_rate=3e38, max_norm=None, epochs=50))


def test_a_model_translates_as_the_reference_does(backend: SimpleNamespace):
    """Greedily and by beam search: the tokens of all backends are those of the reference, so they are the same."""
    settings = small(dtype="float64", epochs=2)
    model = trained(backend.name, settings)
    sources = read_data(settings, PAIRS).validation.sources
    own = reference.Translator(**settings.model(model.source, model.target))
    reference.set_parameters(own, model.parameters)
    at_work = Worker(model, backend.name)
    ends = {"bos": 1, "eos": 2, "max_steps": settings.max_tokens}
    tokens, lengths, weights = own.greedy(sources.source, sources.source_lens, **ends)
    found = list(at_work.decoded(sources))
    assert [ids for ids, _ in found] == [row[:n].tolist() for row, n in zip(tokens, lengths, strict=True)]
    for (_, mine), theirs, length in zip(found, weights, sources.source_lens, strict=True):
        np.testing.assert_allclose(mine, theirs[: len(mine), :length], atol=1e-12)
    tokens, lengths, _, _ = own.beam(sources.source, sources.source_lens, width=3, **ends)
    wanted = [row[0, : n[0]].tolist() for row, n in zip(tokens, lengths, strict=True)]
    assert at_work.translated(sources, width=3) == wanted


# ------------------------------------------------------------------------------------------------ data and files


def test_data_is_split_numbered_and_held_out_by_its_sentences():
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
    seen = {tuple(own) for references in data.training.references for own in references}
    for held in (data.validation, data.test):
        assert not seen & {tuple(own) for references in held.references for own in references}


@pytest.fixture
def model() -> Model:
    settings = small()
    made = new_model(settings, read_data(settings, PAIRS), "torch")
    made.losses, made.norms = [2.5, 0.1 + 0.2], [1.0, 2.0]
    made.history = [{"loss": 1.4, "validation_loss": 0.1 + 0.7}]
    made.state = {"step": np.array(2, np.int64)}
    return made


def test_a_file_holds_all_of_a_model_exactly(model: Model, tmp_path: Path):
    model.save(tmp_path / "model.safetensors")
    back = Model.load(tmp_path / "model.safetensors")
    assert same(model, back) and back.settings == model.settings
    assert (back.source, back.target, back.backend) == (model.source, model.target, "torch")


def test_no_part_of_a_file_is_taken_for_the_whole(model: Model, tmp_path: Path):
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
        ({"settings": {}}, "the settings are wrong: other names"),
        ({"settings": {**asdict(Settings()), "epochs": "3"}}, "epochs is '3', expected int"),
        ({"settings": {**asdict(Settings()), "cell": "rnn"}}, "this is no model"),
        ({"source": ["a", "b"]}, "the special tokens come first"),
        ({"source": [*corpus.SPECIAL, "a", "a"]}, "each token occurs once"),
        ({"target": "abc"}, "expected a list of tokens"),
        ({"history": [3]}, "this is no model"),
        ({"target": [*corpus.SPECIAL, "a"]}, "the arrays of parameter are not those of the settings"),
        ({"kind": "recording"}, "this is a 'recording', expected a 'translation model'"),
    ],
)
def test_a_file_that_says_what_no_model_says_is_refused(model: Model, tmp_path: Path, changed: dict, words: str):
    path = tmp_path / "model.safetensors"
    model.save(path)
    arrays, header = backends.load_archive(path)
    backends.save_arrays(path, arrays, {**header, **changed})
    with pytest.raises(ArchiveError, match=re.escape(words)):
        Model.load(path)


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
    said = invoke("train", "--backend", backend.name, *FLAGS)
    file = f"translator-{backend.name}.safetensors"
    assert "training in" in said and "epoch 3/3 loss" in said and f"{file}: epoch" in said
    assert "exists: resume it by --resume" in invoke("train", "--backend", backend.name, *FLAGS, code=2)
    assert f"{file} is done: 3 epochs" in invoke("train", "--resume", file)
    said = invoke("train", "--resume", file, "--epochs", 4, "-o", "more.safetensors")
    assert "epoch 4/4" in said and Model.load("more.safetensors").epoch == 4 and Model.load(file).epoch == 3
    said = invoke("run", file, "3 may 1984", "1 ? may", "--beam", 2, "--heatmap", "heat.png")
    assert said.count("→") == 2 and "not in the vocabulary: ?" in said and "the rest is cut" in said
    assert Path("heat.png").read_bytes().startswith(b"\x89PNG")
    assert invoke("run", file, "--last", input="3 may 1984\n\n4 may 1984\n").count("→") == 2
    said = invoke("test", file, "more.safetensors", "--json", "scores.json")
    assert said.count("4 sentences BLEU") == 2
    report = json.loads(Path("scores.json").read_text(encoding="utf-8"))
    assert [len(own["translations"]) for own in report] == [4, 4] and len(report[1]["history"]) == 4
    invoke("curves", file, "more.safetensors", "-o", "curves.png", "--validation")
    assert Path("curves.png").read_bytes().startswith(b"\x89PNG")


def test_all_backends_are_compared(all_backends: list[str], tmp_path: Path):
    names = all_backends
    arguments = ["compare", "--backend", ",".join(names), *FLAGS, "--dtype", "float64", "--output", tmp_path / "out"]
    said = invoke(*arguments)
    assert "losses near: " in said and f"each model the same in {len(names)} backends: 6 sentences" in said
    assert f"all models the same: 6 sentences by {len(names)} models" in said
    report = json.loads((tmp_path / "out" / "report.json").read_text(encoding="utf-8"))
    assert report["near"] and report["same"] and report["distance_all"] < 1e-12 and report["steps"] == 9
    assert (tmp_path / "out" / "curves.png").read_bytes().startswith(b"\x89PNG")
    said = invoke(*arguments[:-2], "--output", tmp_path / "out", "--rnn", "lstm", code=2)
    assert "was trained with other settings (cell): give another --output" in said


def planted(model: Model, losses: list[float]) -> Model:
    history = [{"validation_loss": 1.0, "bleu": 0.0, "third_party": 0.0, "exact": 0.0, "tokens_per_second": 9.0}]
    return replace(model, losses=losses, history=history)


def test_losses_that_lie_apart_and_translations_that_differ_are_told(model: Model):
    one, near, far = (planted(model, [2.0, 1.0 + apart]) for apart in (0.0, 1e-6, 1e-2))
    said = [{"sources": ["go ."], "translations": [[word]]} for word in ("va", "va", "vas")]
    found = {"torch": {"torch": said[0], "jax": said[1]}, "jax": {"torch": said[1], "jax": said[0]}}
    good = compare({"torch": one, "jax": near}, found, JUDGED_STEPS)
    assert good["near"] and good["same"] and good["distance_judged"] == pytest.approx(1e-6)
    assert not compare({"torch": one, "jax": far}, found, JUDGED_STEPS)["near"]
    double = replace(model.settings, dtype="float64")
    exact = {name: replace(own, settings=double) for name, own in (("torch", one), ("jax", near))}
    assert not compare(exact, found, JUDGED_STEPS)["near"]
    found["jax"]["jax"] = said[2]
    bad = compare({"torch": one, "jax": near}, found, JUDGED_STEPS)
    assert not bad["same"] and bad["moved"] == {"torch": [], "jax": ["go ."]}
    found["torch"]["jax"] = said[2]
    parted = compare({"torch": one, "jax": near}, found, JUDGED_STEPS)
    assert parted["same"] and parted["between_models"] == ["go ."]
    assert not compare(exact, found, JUDGED_STEPS)["same"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["train"], "--backend is missing: name one of torch, tf, jax, mxnet"),
        (["train", "--backend", "caffe", *FLAGS], "no backend 'caffe'"),
        (["train", "--backend", "torch", "--corpus", "nothing.txt"], "nothing.txt cannot be read"),
        (["train", "--backend", "torch", "--corpus", "x", "--download"], "name two corpora: give one"),
        (
            ["train", "--backend", "torch", "--decoder", "fixed", "--score", "dot"],
            "has no attention: leave --score out",
        ),
        (["train", "--backend", "torch", *FLAGS, "-o", "no/folder/model"], "there is no folder"),
        (["train", "--backend", "torch", "--score", "dot", "--bidirectional"], "score='dot' compares them one by one"),
        (["train", "--resume", "model.safetensors", "--hidden", "7"], "leave --hidden out"),
        (["train", "--resume", "model.safetensors", "--corpus", "pairs.txt"], "holds other pairs than those"),
        (["run", "model.safetensors", "  "], "there is nothing to translate"),
        (["run", "pairs.txt", "go ."], "carries no digest"),
        (["compare", "--framework-dropout"], "another training in each framework"),
        (["compare", "--backend", "caffe"], "no backend 'caffe'; there are torch"),
    ],
    ids=lambda value: " ".join(value[:5]) if isinstance(value, list) else "",
)
def test_what_cannot_be_done_is_refused_in_a_line(
    model: Model, arguments: list[str], words: str, tmp_path: Path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    model.save("model.safetensors")
    Path("pairs.txt").write_text("".join(f"go {n}\tva {n}\n" for n in range(200)), encoding="utf-8")
    said = invoke(*arguments, code=2)
    assert words in said and "Traceback" not in said


def test_bad_lines_of_a_corpus_are_told_and_the_rest_is_trained_on(tmp_path: Path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("pairs.txt").write_text("no tab\n" + "".join(f"go {n}\tva {n}\n" for n in range(20)), encoding="utf-8")
    settings, pairs = new_settings(Path("pairs.txt"), {})
    assert len(pairs) == 20 and settings.split == "words" and settings.corpus == "pairs.txt"
    said = invoke("train", "--backend", "torch", "--corpus", "pairs.txt", "--train", 30, code=2)
    assert "1 of 21 lines skipped (line 1: no tab)" in said and "20 pairs left for train, and 30 were requested" in said


def test_an_empty_list_of_pairs_has_no_translations():
    data = read_data(small(test=0), PAIRS)
    assert data.test.sources.source.shape == (0, 9) and data.test.written == []
