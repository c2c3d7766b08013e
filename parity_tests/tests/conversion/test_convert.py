"""The command converts, refuses bad requests, and certifies what it validated."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result

import backends
from backends import weights
from parity_tests.cli.main import main
from parity_tests.conversion import conversion
from parity_tests.tests.commands import squeezed
from parity_tests.tests.conversion.conversions import HEADS, drawn, invoke, of, swapped, takes_lengths
from parity_tests.tests.places import ROOT
from parity_tests.third_party import layers


def torch_gru(**config: int) -> dict[str, np.ndarray]:
    sizes = {"input_size": 4, "hidden_size": 5, **config}
    return weights.from_canonical("GRU", drawn("GRU", sizes), "torch.nn.GRU")


def heads() -> dict[str, np.ndarray]:
    return weights.from_canonical(
        "MultiHeadAttention", drawn("MultiHeadAttention", HEADS), "torch.nn.MultiheadAttention", num_heads=3
    )


GRU = torch_gru()
REFUSED: dict[str, tuple[dict[str, np.ndarray], tuple[str, ...], str]] = {
    "unknown target": (GRU, ("--to", "numpy"), "numpy: expected one of torch, tf, jax, mxnet, or of "),
    "unknown source": (GRU, ("--to", "jax", "--from", "torch.GRU"), "no source 'torch.GRU'; there are "),
    "another source": (GRU, ("--to", "jax", "--from", "keras.GRU"), "keras.GRU: none of the arrays "),
    "nothing fits": ({"a": np.ones(3)}, ("--to", "jax"), "no source fits the arrays a (3,)"),
    "missing": (
        {name: array for name, array in GRU.items() if name != "weight_hh_l0"},
        ("--to", "jax", "--from", "torch.nn.GRU"),
        "missing: weight_hh_l0",
    ),
    "left over": (
        {**GRU, "classifier": np.ones(2)},
        ("--to", "jax", "--from", "torch.nn.GRU"),
        "left over: classifier",
    ),
    "transposed": (
        {**GRU, "weight_ih_l0": GRU["weight_ih_l0"].T},
        ("--to", "jax", "--from", "torch.nn.GRU"),
        "weight_ih_l0 has shape (4, 15), expected (15, i)",
    ),
    "unseen": (heads(), ("--to", "jax"), "num_heads=... "),
    "already there": (GRU, ("--to", "torch.nn.GRU"), "the arrays are already those of torch.nn.GRU."),
    "another layer": (GRU, ("--to", "keras.LSTM"), "keras.LSTM holds LSTM, not GRU."),
    "no place": (GRU, ("--to", "flax.nnx.GRUCell"), "b_hn"),
    "wrong option": (GRU, ("--to", "jax", "--set", "heads=2"), "GRU has no option 'heads'"),
    "no option": (GRU, ("--to", "jax", "--set", "heads"), "'heads': expected NAME=VALUE, such as num_heads=8"),
    "no layer": (GRU, ("--to", "jax", "--from", "canonical"), "the layer of the canonical arrays is unknown"),
}


@pytest.mark.parametrize(("arrays", "arguments", "words"), REFUSED.values(), ids=list(REFUSED))
def test_the_command_refuses_and_writes_nothing(arrays, arguments, words, file, tmp_path: Path):
    out = tmp_path / "out.safetensors"
    result = invoke(file(arrays), *arguments, "-o", out, "--validate", "no")
    assert result.exit_code == 2, result.output
    assert words in result.output and not out.exists()


def test_a_refusal_names_the_options_of_this_command(file, tmp_path: Path):
    result = invoke(file(heads()), "--to", "jax", "-o", tmp_path / "out.safetensors")
    assert "any other NAME=... is --set" in result.output


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("given.safetensors", "is SOURCE itself"),
        ("nowhere/out.safetensors", "there is no folder"),
        ("out.pt", "canonical arrays are written as .safetensors"),
    ],
)
def test_the_command_refuses_to_write_there(name: str, words: str, file, tmp_path: Path):
    before = file(GRU).read_bytes()
    result = invoke(file(GRU), "--to", "jax", "-o", tmp_path / name, "--validate", "no")
    assert result.exit_code == 2 and words in result.output
    assert file(GRU).read_bytes() == before


def test_the_command_refuses_a_missing_file(tmp_path: Path):
    result = invoke(tmp_path / "gone.pt", "--to", "jax", "-o", tmp_path / "out.safetensors")
    assert result.exit_code == 2 and "there is no such file" in result.output


@pytest.fixture
def nothing_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """No worker may start, and nothing be judged."""
    monkeypatch.setattr(conversion, "validate", lambda *arguments, **keywords: pytest.fail("a validation began"))


@pytest.mark.usefixtures("nothing_runs")
def test_a_missing_framework_is_noticed_before_anything_runs(file, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    reasons = {"torch": "not installed: torch. Run: pip install torch"}
    monkeypatch.setattr(layers, "absence", lambda framework, python=None, also=(): reasons.get(framework))
    result = invoke(file(GRU), "--to", "jax", "-o", tmp_path / "out.safetensors")
    assert result.exit_code == 1 and [path.name for path in tmp_path.iterdir()] == ["given.safetensors"]
    assert (
        "torch.nn.GRU cannot be validated here: not installed: torch. Run: pip install torch. Or run it in another "
        "environment, --python torch=PATH; or validate jax only, --validate own; or skip the validation, --validate no."
    ) in squeezed(result)


@pytest.mark.usefixtures("nothing_runs")
@pytest.mark.parametrize(
    ("script", "words"),
    [("echo torch", "python does not have torch"), ("echo oh >&2; exit 3", "python does not run: oh")],
)
def test_an_interpreter_is_probed_for_its_requirements(script: str, words: str, file, tmp_path: Path):
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\n{script}\n", encoding="ascii")
    python.chmod(0o755)
    result = invoke(file(GRU), "--to", "jax", "-o", tmp_path / "out.safetensors", "--python", f"torch={python}")
    assert result.exit_code == 1 and words in squeezed(result)


@pytest.mark.usefixtures("nothing_runs")
def test_what_cannot_be_written_is_noticed_before_anything_runs(file, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """An .onnx file is never written, and Keras' file needs names that it finds."""
    for target, name in (("onnx.GRU", "out.onnx"), ("flax.linen.GRUCell", "out.h5")):
        result = invoke(file(GRU), "--to", target, "-o", tmp_path / name)
        assert result.exit_code == 2 and {path.name for path in tmp_path.iterdir()} == {"given.safetensors"}


def test_the_textbooks_decoder_is_converted_out_of_a_whole_model(file, tmp_path: Path):
    """As docs/porting.md has it, which begins with it."""
    sizes = {"embed_size": 32, "hidden_size": 64, "num_layers": 2}
    whole = {}
    for part, vocab, layer in (("Encoder", 60, "GRUEncoder"), ("BahdanauDecoder", 70, "BahdanauDecoder")):
        arrays, prefix = drawn(layer, {"vocab_size": vocab, **sizes}), f"{part[-7:].lower()}."
        whole |= weights.from_canonical(layer, arrays, f"textbook.{part}", prefix=prefix)
    whole = {name: array.astype(np.float32) for name, array in whole.items()}
    out = tmp_path / "out.safetensors"
    result = invoke(file(whole), "--prefix", "decoder.", "--to", "jax", "-o", out, "--validate", "no")
    page = (ROOT / "docs" / "porting.md").read_text(encoding="utf-8")
    constructor, setter = result.output.splitlines()[-2:]
    assert "layer = attention.BahdanauDecoder(70, 32, 64, " in constructor and constructor in page
    assert setter.replace(str(out), "decoder.safetensors") in page
    for line in (line for line in result.output.splitlines() if line.startswith("warning")):
        assert " ".join(line.split()) in " ".join(page.split())


def test_a_transformer_layer_is_converted_with_the_options_that_no_array_shows(file, tmp_path: Path):
    """As docs/porting.md has it."""
    page = " ".join((ROOT / "docs" / "porting.md").read_text(encoding="utf-8").split())
    options = {"num_heads": 4, "norm": "pre", "activation": "gelu", "epsilon": 1e-5}
    layer, prefix = "TransformerEncoderLayer", "encoder.layers.0."
    arrays = drawn(layer, {"features": 24, "hidden_size": 48, **options})
    whole = weights.from_canonical(layer, arrays, f"torch.nn.{layer}", prefix=prefix, **options)
    whole = {"embedding": np.ones((3, 24), np.float32)} | {n: a.astype(np.float32) for n, a in whole.items()}
    given = (file(whole), "--prefix", prefix, "--to", "jax", "-o", tmp_path / "out.safetensors", "--validate", "no")
    refused = squeezed(invoke(*given))
    assert refused.partition(" In options")[0].partition("Error: ")[2] in page
    settings = "--set num_heads=4 --set norm=pre --set activation=gelu --set epsilon=1e-5"
    result = invoke(*given, *settings.split())
    assert result.exit_code == 0 and settings in page, result.output
    assert result.output.splitlines()[-2] in page


def test_a_whole_transformer_is_converted_with_the_embeddings_of_its_model(file, tmp_path: Path):
    """As docs/porting.md has it."""
    page = " ".join((ROOT / "docs" / "porting.md").read_text(encoding="utf-8").replace("\\\n", "").split())
    options = {"num_heads": 4, "positions": "sinusoidal", "norm": "pre", "activation": "relu", "epsilon": 1e-5}
    sizes = {"source_vocab_size": 60, "target_vocab_size": 70, "features": 24, "hidden_size": 48, "num_layers": 2}
    parts = {"encoder.embedding": "source.", "decoder.embedding": "target.", "decoder.dense": "generator."}
    layer, source = "TransformerTranslator", "torch.nn.Transformer"
    arrays = drawn(layer, {**sizes, **options})
    whole = weights.from_canonical(layer, arrays, source, prefix={"": "transformer.", **parts}, **options)
    whole = {"unused": np.ones(2, np.float32)} | {name: array.astype(np.float32) for name, array in whole.items()}
    given = (file(whole), "--to", "jax", "-o", tmp_path / "out.safetensors", "--validate", "no")
    refused = squeezed(invoke(*given, "--from", source)).partition("Error: ")[2]
    start, _, rest = refused.partition("transformer.decoder.embedding.weight")
    end = "For parts" + rest.partition("For parts")[2].partition(" In options")[0]
    assert start in page and end in page
    entries = ["--prefix transformer.", *(f"--prefix {part}={prefix}" for part, prefix in parts.items())]
    entries += [f"--set {name}={value}" for name, value in options.items()]
    settings = " ".join(entries).replace("1e-05", "1e-5")
    result = invoke(*given, *settings.split())
    assert result.exit_code == 0 and settings in page, result.output
    assert result.output.splitlines()[-2] in page
    written = backends.load_arrays(tmp_path / "out.safetensors")
    assert all(np.array_equal(written[name], array.astype(np.float32)) for name, array in arrays.items())


def test_prefixes_of_parts_are_one_for_each(file, tmp_path: Path):
    given = (file(GRU), "--to", "jax", "-o", tmp_path / "out.safetensors", "--validate", "no")
    result = invoke(*given, "--prefix", "rnn=a.", "--prefix", "rnn=b.")
    assert result.exit_code == 2 and "rnn has two prefixes, 'a.' and 'b.'." in squeezed(result)
    result = invoke(*given, "--prefix", "rnn=a.")
    assert result.exit_code == 2 and "no array begins with 'a.', the prefix of rnn." in squeezed(result)


def test_padding_and_hidden_keys_come_with_a_warning(file, tmp_path: Path):
    """Of both sides: the one that the arrays come from, and the one that they go to."""
    result = invoke(file(GRU), "--to", "keras.GRU", "-o", tmp_path / "out.safetensors", "--validate", "no")
    for words in ("torch.nn.GRU: Without lengths, it reads padding", "keras.GRU: Under a mask its padded"):
        assert f"warning {words}" in squeezed(result)


def test_every_layer_of_a_framework_documents_its_padding_or_hidden_keys():
    for name, source in weights.SOURCES.items():
        assert bool(source.warnings) == (not source.framework and takes_lengths(source.layer)), name


PASTED = {
    "torch": ("import torch", "layer = attention.GRU(4, 5, num_layers=2, dtype=torch.float64)"),
    "tf": ("import backends", 'layer = attention.GRU(4, 5, num_layers=2, dtype="float64")'),
    "jax": (
        "from flax import nnx",
        'layer = attention.GRU(4, 5, num_layers=2, param_dtype="float64", rngs=nnx.Rngs(0))',
    ),
    "mxnet": ("import backends", 'layer = attention.GRU(4, 5, num_layers=2, dtype="float64")'),
}


@pytest.mark.parametrize("target", [of(name) for name in PASTED])
def test_the_lines_to_paste_load_the_file(target: str, file, tmp_path: Path):
    """The constructor has the arguments that differ from its defaults, and the lines run as they are printed."""
    arrays = file(torch_gru(num_layers=2))
    result = invoke(arrays, "--to", target, "-o", tmp_path / "out.safetensors", "--validate", "no")
    lines = result.output.partition("To load it:\n\n")[2]
    assert set(PASTED[target]) <= set(lines.splitlines())
    (tmp_path / "pasted.py").write_text(lines, encoding="utf-8")
    made = runpy.run_path(str(tmp_path / "pasted.py"))
    parameters, written = (
        made["attention"].get_parameters(made["layer"]),
        backends.load_arrays(tmp_path / "out.safetensors"),
    )
    assert all(np.array_equal(parameters[name], array) for name, array in written.items())


def test_without_a_validation_the_command_reports_the_file_as_unvalidated(file, tmp_path: Path):
    out = tmp_path / "out.safetensors"
    result = invoke(file(GRU), "--to", "jax", "-o", out, "--validate", "no")
    assert result.exit_code == 0 and "unvalidated" in result.output and "green" not in result.output
    arrays, header = backends.load_archive(out)
    assert header["layer"] == "GRU" and header["config"]["hidden_size"] == 5 and header["source"] == "torch.nn.GRU"
    assert list(arrays) == ["0.W", "0.U", "0.b", "0.b_hn"]


def test_the_command_reads_its_own_files(file, tmp_path: Path):
    """Canonical arrays go on to another framework's layer, and back to the same ones."""
    there, on, back = (tmp_path / name for name in ("there.safetensors", "on.safetensors", "back.safetensors"))
    named = (there, "--to", "onnx.GRU", "--to-prefix", "encoder.", "-o", on)
    for arguments in ((file(GRU), "--to", "jax", "-o", there), named):
        result = invoke(*arguments, "--validate", "no")
        assert result.exit_code == 0, result.output
    assert list(weights.read_arrays(on)) == ["encoder.W", "encoder.R", "encoder.B"]
    assert invoke(on, "--prefix", "encoder.", "--to", "mxnet", "-o", back, "--validate", "no").exit_code == 0
    first, last = weights.read_arrays(there), weights.read_arrays(back)
    assert all(np.array_equal(first[name], last[name]) for name in first)


def test_the_dtype_of_the_file_is_kept(file, tmp_path: Path):
    out = tmp_path / "out.safetensors"
    single = {name: array.astype(np.float32) for name, array in GRU.items()}
    assert invoke(file(single), "--to", "jax", "-o", out, "--validate", "no").exit_code == 0
    arrays = weights.read_arrays(out)
    assert {array.dtype.name for array in arrays.values()} == {"float32"}
    both = single["bias_ih_l0"] + single["bias_hh_l0"]
    np.testing.assert_array_equal(arrays["0.b"].reshape(-1)[:10], both[:10])


@pytest.mark.frameworks("torch")
def test_a_wrong_table_is_red_and_nothing_is_written(file, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    right = weights.to_canonical

    def wrong(*arguments: Any, **keywords: Any) -> weights.Converted:
        converted = right(*arguments, **keywords)
        return weights.replace(converted, arrays=swapped(converted.arrays))

    monkeypatch.setattr(weights, "to_canonical", wrong)
    out = tmp_path / "out.safetensors"
    result = invoke(file(GRU), "--to", "torch", "-o", out)
    assert result.exit_code == 1 and not out.exists()
    assert "out.safetensors is not written" in result.output.replace("\n", "")


def verified(certificate: str, source: str) -> Result:
    return CliRunner().invoke(main, ["verify", certificate, source])


@pytest.mark.frameworks("torch")
def test_a_validated_file_is_written_certified_and_verified(file, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    source, new = file(GRU).name, Path("new.safetensors")
    outputs = ("-o", new, "--json", "verdicts.json", "--certificate", "validation.json")
    done = invoke(source, "--to", "torch", *outputs)
    assert done.exit_code == 0 and new.exists(), done.output
    assert "torch is the same function as torch.nn.GRU in float64 and float32: 48 comparisons" in done.output
    assert '"cells"' in Path("verdicts.json").read_text(encoding="utf-8")
    page = Path("validation.md").read_text(encoding="utf-8")
    assert f"attention-parity convert {source} --to torch -o {new}" in page and f"`{new}`: SHA-256" in page
    again = verified("validation.json", source)
    assert again.exit_code == 0 and "verified" in again.output, again.output
    new.write_bytes(b"something else")
    again = verified("validation.json", source)
    assert again.exit_code == 1 and f"{new} is not the file that was tested" in " ".join(again.output.split())


def test_a_certificate_without_a_validation_is_refused(file, tmp_path: Path):
    new = tmp_path / "new.safetensors"
    done = invoke(file(GRU), "--to", "jax", "-o", new, "--validate", "no", "--certificate", tmp_path / "a.json")
    assert done.exit_code == 2 and "--certificate cannot be combined with --validate=no" in " ".join(
        done.output.split()
    )
    assert not new.exists()
