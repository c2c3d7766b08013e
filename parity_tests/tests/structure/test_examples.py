"""The examples run, and print what they claim."""

from __future__ import annotations

import importlib
import os
import re
import runpy
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from parity_tests.cli.main import main
from parity_tests.tests.places import ROOT
from parity_tests.translation.corpus import Vocabulary
from parity_tests.translation.model import Settings
from parity_tests.workers.target import load


def run(*arguments: str) -> str:
    """The output of a process."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, *arguments]
    process = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stderr
    return process.stdout


ONCE = pytest.mark.frameworks("torch")
"""An example that reads the backend's name, and is long: where PyTorch is tested, in each backend that is tested."""


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Run a script here, where its framework is imported already, and return its output."""

    def script(name: str, *arguments: object) -> str:
        monkeypatch.setattr(sys, "argv", [name, *map(str, arguments)])
        runpy.run_path(str(ROOT / "examples" / name), run_name="__main__")
        return capsys.readouterr().out

    return script


def test_pick_a_backend(backend: SimpleNamespace, example: Callable[..., str]):
    output = example("pick_a_backend.py", backend.name)
    assert output.startswith(f"{backend.name}: ") and "[[[2.0, 3.0, 4.0, 5.0]], [[10.0, 11.0, 12.0" in output


def test_move_weights(backend: SimpleNamespace, example: Callable[..., str]):
    """From the backend to itself: two decoders, one file. Pairs of frameworks are judged by the parity run."""
    output = example("move_weights.py", backend.name, backend.name)
    assert f"{backend.name} -> {backend.name}: 1800 logits" in output


def test_kernel_regression(backend: SimpleNamespace, example: Callable[..., str], tmp_path: Path):
    """The learned width is better than fixed ones and than one for each of 50 samples, and the picture is drawn."""
    file = tmp_path / "fit.png"
    output = example("kernel_regression.py", backend.name, file)
    errors = [float(error) for error in re.findall(r"error ([\d.]+)", output)]
    assert len(errors) == 5 and errors[3] == min(errors) and "learned: 0.29" in output
    assert errors[4] == 0.262 and "each: 0.10 to 0.73" in output
    assert file.read_bytes().startswith(b"\x89PNG")


def test_scores(backend: SimpleNamespace, example: Callable[..., str], tmp_path: Path):
    """Equal keys make all scores alike, random ones do not; a sum has no say; the picture is drawn."""
    file = tmp_path / "weights.png"
    output = example("scores.py", backend.name, file)
    equal, random = re.findall(r"differ by up to ([\d.]+);", output)
    assert (equal, random) == ("0.000", "0.424") and "49 % of a query's weight" in output
    of_sums, of_scores = map(float, re.findall(r"two queries differ by up to (\S+)\n", output))
    assert of_sums < 1e-15 < 0.03 < of_scores
    assert file.read_bytes().startswith(b"\x89PNG")


@ONCE
def test_positions(backend: SimpleNamespace, example: Callable[..., str]):
    """Without positions no output changes; rotated heads tell the order again in every layer, added vectors do not."""
    rows = re.findall(r": (\w+) +((?:[\d.]+% *)+)\n", example("positions.py", backend.name))
    changes = {kind: [float(change) for change in row.replace("%", "").split()] for kind, row in rows}
    assert list(changes) == ["none", "sinusoidal", "learned", "rotary", "relative", "alibi"]
    assert changes["none"] == [0.0] * 4
    assert changes["rotary"] == [26.54, 42.34, 53.76, 59.87] and changes["sinusoidal"] == [18.49, 18.41, 20.25, 22.94]


@ONCE
def test_long_inputs(backend: SimpleNamespace, example: Callable[..., str]):
    """A row of milliseconds and one of MiB for each length, in seven forms."""
    rows = [line.split() for line in example("long_inputs.py", backend.name, 256).splitlines()[2:]]
    assert [row[:-7] for row in rows] == [["256", "ms"], ["MiB"]]
    assert all(float(number) > 0.0 for row in rows for number in row[-7:])


@ONCE
def test_segments(backend: SimpleNamespace, example: Callable[..., str]):
    """Steps report what is in their segment or its memory, and guess the rest."""
    output = example("segments.py", backend.name)
    rows = [list(map(float, row.split())) for row in re.findall(r"segments before: \d +([\d. ]+)\n", output)]
    assert [row[-1] for row in rows] == [2.784, 1.778, 0.0]
    assert min(rows[0]) > 2.7 and min(rows[1][:2]) > 2.7 and max(rows[1][2:4]) < 0.3


@ONCE
def test_patterns(backend: SimpleNamespace, example: Callable[..., str], tmp_path: Path):
    """Of what is left out, some comes over further layers and some never; each head has its pattern."""
    file = tmp_path / "patterns.png"
    output = example("patterns.py", backend.name, file)
    rows = re.findall(r": (\S.*?) +(\d+) % of the pairs, layers: (\w+)\n", output)
    assert [(share, layers) for _, share, layers in rows] == [
        *(("13", "18"), ("13", "never"), ("17", "never"), ("31", "2")),
        *(("19", "2"), ("20", "4"), ("25", "2"), ("18", "10")),
    ]
    assert float(re.findall(r"alone, within (\S+),", output)[0]) < 1e-15 and "and 0 where a head's" in output
    assert file.read_bytes().startswith(b"\x89PNG")


@ONCE
def test_hard_attention(backend: SimpleNamespace, example: Callable[..., str], tmp_path: Path):
    """A baseline makes estimates better, and training faster; their mean is near the gradient; the picture is drawn."""
    file = tmp_path / "learning.png"
    output = example("hard_attention.py", backend.name, file)
    assert re.findall(r"an estimate is off by ([\d.]+) times", output) == ["8.9", "1.7"]
    assert re.findall(r"the mean of 50 by ([\d.]+)", output) == ["1.2", "0.2"]
    curves = [list(map(float, re.findall(r"\d\.\d{3}", line))) for line in output.splitlines()[5:8]]
    assert [curve[0] for curve in curves] == [1.649, 1.468, 1.364] and max(curve[-1] for curve in curves) < 1.02
    assert file.read_bytes().startswith(b"\x89PNG")


@ONCE
def test_spatial_attention(backend: SimpleNamespace, example: Callable[..., str], tmp_path: Path):
    """The decoder comes to read the digits, and to look at each; the picture is drawn."""
    file = tmp_path / "words.png"
    output = example("spatial_attention.py", backend.name, file)
    rows = [list(map(int, row)) for row in re.findall(r"steps: (\d+) %.*: (\d+) %.*, (\d+) %.*, (\d+) %", output)]
    assert len(rows) == 4 and max(rows[0]) < 20 and rows[-1][0] == 100 and min(rows[-1]) > 90
    assert file.read_bytes().startswith(b"\x89PNG")


def test_beam_search(backend: SimpleNamespace, example: Callable[..., str]):
    """Without a penalty the shortest hypothesis is the best one, and with it a long one."""
    rows = re.findall(r"length_penalty (\S+): score (\S+): ([\d ]+)\n", example("beam_search.py", backend.name))
    assert [row for row in rows if row[0] == "0.0"] == [
        ("0.0", "-2.014", "0"),
        ("0.0", "-3.467", "0 7 7 8 8 8 8 8"),
        ("0.0", "-3.839", "0 0 7 7 8 8 8 8"),
    ]
    assert [row[1:] for row in rows[3:5]] == [("-1.600", "0 7 7 8 8 8 8 8"), ("-1.726", "0")] and len(rows) == 6


def test_time_major(backend: SimpleNamespace, example: Callable[..., str]):
    output = example("time_major.py", backend.name)
    assert "time_major=True: context (3, 2, 6), weights (2, 3, 7)\n" in output
    assert "time_major=False: context (2, 3, 6), weights (2, 3, 7)\n" in output
    assert float(output.rpartition(" ")[2]) < 1e-15


@pytest.mark.frameworks("torch", "tf", "jax", "mxnet")
def test_vision_transformer(tmp_path: Path):
    """The digits are read, with the same weights alike everywhere; what the class token attends to is drawn."""
    file = tmp_path / "digits.png"
    output = run("examples/vision_transformer.py", "torch", str(file), "tf", "jax", "mxnet")
    right = [float(share) for share in re.findall(r"steps: ([\d.]+) % of 360", output)]
    assert len(right) == 3 and right[-1] >= 95.0
    moved = re.findall(r"torch -> (\w+): same classes of 360 of 360 images; .* ([\d.e-]+)\n", output)
    assert [name for name, _ in moved] == ["tf", "jax", "mxnet"] and all(float(error) < 1e-5 for _, error in moved)
    assert file.read_bytes().startswith(b"\x89PNG")


@ONCE
def test_prune_heads(backend: SimpleNamespace, example: Callable[..., str], tmp_path: Path):
    """Both kinds of importance find the two heads of four that came to nothing; nothing is lost without them.

    Heads at random cost more. A smaller layer of the others has the loss of the whole one with the two switched off.
    """
    file = tmp_path / "heads.png"
    output = example("prune_heads.py", backend.name, file)
    table = re.findall(r": +(\d) +([\d.]+) +([\d.]+)\n", output)
    by_ablation, by_taylor = ([float(row[column]) for row in table] for column in (1, 2))
    assert sorted(range(4), key=by_ablation.__getitem__)[:2] == sorted(range(4), key=by_taylor.__getitem__)[:2]
    losses = [float(loss) for loss in re.findall(r"loss ([\d.]+)", output)]
    assert len(losses) == 5 and losses[2] < 2.0 * losses[0] and losses[3] > 50.0 * losses[0]
    assert losses[4] == losses[2] and re.search(r"256 steps takes [\d.]+ ms instead of [\d.]+ ms\n", output)
    at_random = [float(loss) for loss in re.findall(r"at random, ([\d.]+) on average", output)]
    assert [*map(len, (at_random, losses[1:4]))] == [3, 3] and np.all(np.array(at_random) > losses[1:4])
    assert file.read_bytes().startswith(b"\x89PNG")


@pytest.mark.frameworks("torch")
def test_the_lines_about_heads_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    pytest.importorskip("scipy")
    pytest.importorskip("matplotlib")
    (lines,) = re.findall(r"```python\n(.*?)```", (ROOT / "examples" / "README.md").read_text("utf-8"), re.DOTALL)
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    exec(lines, names)
    assert names["rollout"].shape == names["flow"].shape == (1, 6, 6) and names["smaller"].sizes["num_heads"] == 2
    assert all((tmp_path / name).read_bytes().startswith(b"\x89PNG") for name in ("heads.png", "layers.png"))


def test_a_translator_in_twenty_lines(backend: SimpleNamespace):
    """With a twentieth of its pairs it learns little, and all of its lines have run, in a process of its own."""
    output = run(f"examples/translate/{backend.name}_loop.py", "200")
    losses = [float(loss) for loss in re.findall(r"loss ([\d.]+)", output)]
    assert len(losses) == 3 and losses[2] < losses[0] < 3.0 and "16 may 1984  → " in output


@ONCE
def test_the_cost_over_the_length(backend: SimpleNamespace, example: Callable[..., str]):
    """Times and memory are measured; what is due by the counts is equal at twice the features."""
    lines = example("cost_over_length.py", backend.name, 256).splitlines()
    assert [line.split()[0] for line in lines[2:]] == ["128", "256"]
    numbers = [list(map(float, line.split()[1:])) for line in lines[2:]]
    assert all(len(row) == 6 and min(row) > 0.0 for row in numbers)
    assert [row[3] for row in numbers] == [0.62, 0.75]


@pytest.mark.frameworks("jax")
def test_the_rates_of_xla(backend: SimpleNamespace):
    """A rate for each operation, the time of each part, and three stages for each layer."""
    lines = run("examples/xla_rates.py", "3", "2", "8").splitlines()
    assert all(float(line.split()[-1]) > 0.0 for line in lines[:7]) and len(lines) == 12
    assert all(re.search(r": \d\.\d{3} s$", line) for line in lines[7:10])
    assert [line.split(":")[0] for line in lines[-2:]] == ["GRU", "BahdanauDecoder"]
    assert all(len(re.findall(r"in \d+\.\d\d", line)) == 3 for line in lines[-2:])


@pytest.mark.parametrize("task", ["next", "masked"])
def test_a_language_model_learns(
    backend: SimpleNamespace, task: str, example: Callable[..., str], monkeypatch: pytest.MonkeyPatch
):
    """With a tenth of its sentences the perplexity falls, and the framework does not show in its first digits."""
    monkeypatch.syspath_prepend(str(ROOT / "examples" / "language_models"))
    output = example(f"language_models/{backend.name}_loop.py", task, "", 400)
    perplexities = [float(number) for number in re.findall(r"perplexity ([\d.]+)", output)]
    assert perplexities == sorted(perplexities, reverse=True) and len(perplexities) == 5
    assert perplexities[0] == pytest.approx(PERPLEXITIES[task], rel=1e-3) and "  →  " in output


PERPLEXITIES = {"next": 74.26, "masked": 116.9}
"""After the first epoch, in all frameworks: they begin with the same parameters and the same batches."""


def command(*arguments: object) -> str:
    """The output of a command, which has to succeed."""
    result = CliRunner().invoke(main, list(map(str, arguments)))
    assert result.exit_code == 0, result.output
    return result.output


def test_the_forms_of_decoders_are_translators_that_differ(monkeypatch: pytest.MonkeyPatch):
    """Each form has flags of the command, and makes a translator that no other form makes."""
    monkeypatch.syspath_prepend(str(ROOT / "examples" / "translate"))
    script = runpy.run_path(str(ROOT / "examples" / "translate" / "decoders.py"))
    flags, words, made = command("translate", "train", "--help"), Vocabulary.of([["a"]]), []
    for chosen in script["FORMS"].values():
        options = {**script["SHARED"], **chosen}
        assert all(f"{flag} " in flags for flag in options)
        settings_of = importlib.import_module("textbooks").SETTINGS
        named = {name: options[flag] for flag, name in settings_of.items() if flag in options}
        settings = Settings("pairs", **named)
        made.append(settings.layer.sizes(settings.arguments(words, words)))
    assert len(made) == 10 and all(made.count(sizes) == 1 for sizes in made)


FROM_SCRATCH = """
from backends.{name} import runtime
from parity_tests.workers.target import load

example, _ = load({file!r})


def AdditiveAttention(parameters, queries, keys, values, mask=None):
    return example.additive_attention(queries, keys, values, mask=mask, **parameters)
"""


def test_attention_from_scratch(backend: SimpleNamespace, tmp_path: Path):
    """The function passes `check`; the module beside it holds the parameters of the function."""
    file, target = ROOT / "examples" / "from_scratch" / f"{backend.name}_attention.py", tmp_path / "target.py"
    target.write_text(FROM_SCRATCH.format(name=backend.name, file=str(file)), encoding="utf-8")
    assert "\ngreen " in command("check", target, "--operator", "AdditiveAttention")
    example, _ = load(str(file))
    keywords = {"rngs": importlib.import_module("flax.nnx").Rngs(0)} if backend.name == "jax" else {}
    module = example.BahdanauAttention(20, 2, 8, **keywords)
    if backend.name == "mxnet":
        module.initialize()
    values = np.tile(np.arange(40.0, dtype=np.float32).reshape(1, 10, 4), (2, 1, 1))
    mask = np.arange(10) < np.array([2, 6])[:, None, None]
    inputs = [np.zeros((2, 1, 20), np.float32), np.ones((2, 10, 2), np.float32), values, mask]
    context, weights = map(backend.runtime.to_numpy, module(*map(backend.runtime.from_numpy, inputs)))
    assert context.round(3).tolist() == [[[2, 3, 4, 5]], [[10, 11, 12, 13]]]
    np.testing.assert_allclose(weights, mask / mask.sum(-1, keepdims=True), rtol=1e-6)


@pytest.mark.frameworks("mxnet", "jax")
def test_a_port_from_mxnet_to_jax(tmp_path: Path):
    run("examples/port/gluon_encoder.py", str(tmp_path))
    file, out = tmp_path / "encoder.params", tmp_path / "gru.safetensors"
    output = command("convert", file, "--prefix", "1.", "--to", "jax", "-o", out)
    assert "jax is the same function as gluon.rnn.GRU" in output
    output = run("examples/port/jax_encoder.py", str(tmp_path))
    assert float(output.rpartition(" ")[2]) < 1e-6


@pytest.mark.frameworks("tf", "torch")
def test_a_port_from_keras_to_pytorch(tmp_path: Path):
    run("examples/port/keras_reader.py", str(tmp_path))
    file = tmp_path / "reader.weights.h5"
    gru = "torch.nn.GRU", "-o", tmp_path / "gru.pt"
    assert "is the same function as keras.GRU" in command("convert", file, "--prefix", "layers/gru/", "--to", *gru)
    heads = "torch.nn.MultiheadAttention", "-o", tmp_path / "heads.pt", "--set", "num_heads=4"
    output = command("convert", file, "--prefix", "layers/multi_head_attention/", "--to", *heads)
    assert "is the same function as keras.MultiHeadAttention in float32" in output.replace("\n", " ")
    output = run("examples/port/torch_reader.py", str(tmp_path))
    assert float(output.rpartition(" ")[2]) < 1e-6
