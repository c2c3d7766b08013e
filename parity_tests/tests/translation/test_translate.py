"""The commands: a training from its beginning to its curves, and what they refuse."""

from __future__ import annotations

import io
import json
from dataclasses import asdict, fields
from pathlib import Path
from types import SimpleNamespace

import pytest
from rich.console import Console

from parity_tests.cli.translate import train
from parity_tests.reports.trainings import print_comparison
from parity_tests.tests.translation.translators import FLAGS, invoke
from parity_tests.translation.model import Model, Settings
from parity_tests.translation.preparation import DATE_SETTINGS, new_settings


@pytest.mark.frameworks("torch")
def test_the_commands_walk_through_a_training(tmp_path: Path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    output = invoke("train", "--backend", "torch", *FLAGS)
    file = "translator-torch.safetensors"
    assert "training in" in output and "epoch 3/3 loss" in output and f"{file}: epoch" in output
    assert "exists: pass --resume" in invoke("train", "--backend", "torch", *FLAGS, code=2)
    assert f"{file} is finished: 3 epochs" in invoke("train", "--resume", file)
    output = invoke("train", "--resume", file, "--epochs", 4, "-o", "more.safetensors")
    assert "epoch 4/4" in output and Model.load("more.safetensors").epoch == 4 and Model.load(file).epoch == 3
    output = invoke("run", file, "3 may 1984", "1 ? may", "--beam", 2, "--heatmap", "heat.png")
    assert output.count("→") == 2 and "not in the vocabulary: ?" in output and "truncated from" in output
    full = Path("heat.png").read_bytes()
    assert full.startswith(b"\x89PNG")
    invoke("run", file, "3 may 1984", "1 ? may", "--beam", 2, "--heatmap", "heat.png", "--scale", "each")
    assert Path("heat.png").read_bytes() != full
    assert "name its file by --heatmap" in invoke("run", file, "3 may 1984", "--scale", "each", code=2)
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


def test_chosen_sentences_alone_are_printed():
    sources, settings = ["16 may 1984", "7 july 1906"], Settings("dates", split="characters")
    training = dict.fromkeys(("bleu", "third_party", "exact", "loss", "validation_loss", "tokens_per_second"), 1.0)
    report = {"trainings": {"torch": {**training, "epochs": 3}}, "moved": {}, "between_models": [], "sentences": 2}
    report |= {"near": True, "same": True, "steps": 9, "distance_judged": 0.0, "distance_all": 0.0, "judged_steps": 9}
    report |= {"bound": 1.0}
    translations = {"torch": {"torch": {"sources": sources, "translations": [list("1984"), list("1906")]}}}

    def printed(*sentences: str) -> str:
        console = Console(file=io.StringIO(), width=120)
        print_comparison(console, {"torch": SimpleNamespace(settings=settings)}, report, translations, sentences)
        return console.file.getvalue()

    assert "16 may 1984" in printed() and "7 july 1906" in printed()
    assert "16 may 1984" not in printed("7 July 1906") and "1906" in printed("7 July 1906")


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


def test_every_setting_is_an_option_of_the_command_and_has_its_default():
    names = {setting.name for setting in fields(Settings)} - {"corpus", "digest"}
    assert names <= {option.name for option in train.params}
    settings, _ = new_settings(None, {})
    assert asdict(settings) == {**asdict(Settings()), **DATE_SETTINGS, "digest": settings.digest}


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
        (
            ["train", "--backend", "torch", "--model", "transformer", "--rnn", "gru"],
            "transformer has no --rnn",
        ),
        (["train", "--backend", "torch", "--norm", "post"], "--model recurrent has no --norm: omit it"),
        (["train", "--backend", "torch", "--model", "transformer", "--heads", "7"], "a multiple of num_heads"),
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
