"""What attention, its score, the recurrent layer or a Transformer cost and gain in the textbooks' set-ups, row by row.

    python examples/translate/textbooks.py FILE [--backend torch] [--folder textbooks] [--speed | --exact]

FILE holds English-French pairs, shortest first, as `attention-parity translate train --download` fetches them. Models
that are in the folder already are not trained again. --speed trains a few steps of each in turn, in one process, and
prints how fast each is beside the first. --exact trains the textbooks' translators with every setting as they print it,
and draws what the last one attends to.
"""

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from parity_tests.cli.translate import start_worker
from parity_tests.translation import corpus
from parity_tests.translation.bleu import third_party_score
from parity_tests.translation.model import Settings, new_model, read_data
from parity_tests.translation.preparation import load_model

SENTENCES = ("go .", "i lost .", "i won !", "i'm home .")
COMMON = {"--validation": 128, "--layers": 2, "--learning-rate": 0.005}
SMALL = {"--max-tokens": 10, "--embed": 32, "--hidden": 32, "--batch-size": 64}
LARGE = {"--max-tokens": 9, "--embed": 256, "--hidden": 256, "--batch-size": 128}
SHARED = {**COMMON, "--train": 512, "--dropout": 0.2, "--max-norm": 1}
SETUPS = {
    "large": {**SHARED, **LARGE, "--epochs": 30},
    "small": {**SHARED, **SMALL, "--epochs": 250},
}
PRINTED = {
    "go .": "va !",
    "i lost .": "j'ai perdu .",
    "he's calm .": "il est calme .",
    "i'm home .": "je suis chez moi .",
    "good night !": "bonne nuit !",
    "i'm ok .": "je vais bien .",
    "i won !": "j'ai gagné !",
}
"""The sentences that textbooks translate, with the translation that each is scored against."""

AS_SUM = {**SMALL, "--max-norm": 0.03}
EXACT: dict[str, dict[str, Any]] = {
    "500 epochs": AS_SUM | {"--train": 1000, "--min-frequency": 3, "--rnn": "lstm", "--dropout": 0, "--epochs": 500},
    "250 epochs": AS_SUM | {"--train": 512, "--min-frequency": 2, "--dropout": 0.1, "--epochs": 250},
    "30 epochs": SHARED | LARGE | {"--min-frequency": 2, "--epochs": 30},
}
"""The textbooks' set-ups in the order of their editions, with and without attention.

The first two clip the gradient of a sum: over the sentences, of the mean over 10 steps. That of the mean over tokens,
which is clipped here, is as many times smaller as a batch has tokens for each step: about 30.
"""

ROUNDS, STEPS = 5, 3
ATTENTION = {
    "none": {"--decoder": "fixed"},
    "additive": {"--decoder": "bahdanau", "--score": "additive"},
    "dot": {"--decoder": "bahdanau", "--score": "dot"},
}
RNNS = ("gru", "lstm")
TRANSFORMER = {"--model": "transformer", "--heads": 4, "--hidden": 64}
TRANSFORMERS = {
    "large": {**TRANSFORMER, "--learning-rate": 0.001},
    "small": {**TRANSFORMER, "--dropout": 0.1, "--epochs": 200},
}

Kind = TypeVar("Kind")
SETTINGS = {
    "--embed": "embed_size",
    "--hidden": "hidden_size",
    "--layers": "num_layers",
    "--batch-size": "batch_size",
    "--model": "model",
    "--rnn": "cell",
    "--encoder-rnn": "encoder_cell",
    "--decoder": "decoder",
    "--reads": "reads",
    "--input-feeding": "input_feeding",
    "--score": "score",
    "--heads": "num_heads",
}
"""The settings whose speed is compared, by their flags; dropout masks as data would be drawn beside the steps."""


def kinds(setup: str) -> dict[tuple[str, str], dict[str, object]]:
    """The options of each training of a set-up, by attention and recurrent layer."""
    recurrent = {(name, rnn): {**chosen, "--rnn": rnn} for name, chosen in ATTENTION.items() for rnn in RNNS}
    return {**recurrent, ("Transformer", "none"): TRANSFORMERS[setup]}


def translate(*arguments: object) -> str:
    """What a command of `attention-parity translate` prints."""
    command = [sys.executable, "-m", "parity_tests", "translate", *map(str, arguments)]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def train(model: Path, given: Mapping[str, object]) -> None:
    """Train a model with these options, unless its file is there."""
    if not model.exists():
        translate("train", *(word for pair in given.items() for word in pair), "-o", model)


def main() -> None:
    """Train every combination, and print a table in Markdown."""
    parser = argparse.ArgumentParser(description="Train the textbooks' translators, and compare them.")
    parser.add_argument("file", type=Path)
    parser.add_argument("--backend", default="torch")
    parser.add_argument("--folder", type=Path, default=Path("textbooks"))
    chosen = parser.add_mutually_exclusive_group()
    chosen.add_argument("--speed", action="store_true")
    chosen.add_argument("--exact", action="store_true")
    arguments = parser.parse_args()
    if arguments.speed:
        speeds(arguments.file, arguments.backend)
        return
    arguments.folder.mkdir(parents=True, exist_ok=True)
    if arguments.exact:
        exact(arguments.file, arguments.backend, arguments.folder)
        return
    print("| set-up | attention | RNN | loss | seen: k=2 | held out: k=2 | " + " | ".join(SENTENCES) + " |")
    print("|---|---|---|---|---|---|" + "---|" * len(SENTENCES))
    for setup, options in SETUPS.items():
        for (attention, rnn), chosen in kinds(setup).items():
            model = arguments.folder / f"{setup}-{attention}-{rnn}.safetensors"
            given = {**options, **chosen, "--corpus": arguments.file, "--backend": arguments.backend}
            train(model, given)
            print(row(setup, attention, rnn, model, arguments.folder / "scores.json"), flush=True)


def speeds(file: Path, backend: str) -> None:
    """Print the speed of every combination beside the first, from steps that are taken in turn."""
    pairs = corpus.read_corpus(file).pairs
    print("| set-up | attention | RNN | beside the first |\n|---|---|---|---|")
    for setup, options in SETUPS.items():
        chosen = {kind: {**options, **of_kind} for kind, of_kind in kinds(setup).items()}
        for (attention, rnn), speed in relative_speeds(pairs, backend, chosen).items():
            print(f"| {setup} | {attention} | {rnn} | {speed:.2f} |", flush=True)


def relative_speeds(
    pairs: Sequence[corpus.Pair], backend: str, kinds: Mapping[Kind, Mapping[str, object]]
) -> dict[Kind, float]:
    """The speed of training of each kind beside the first, by steps that are taken in turn, from its options."""
    training: dict[Kind, Any] = {}
    for kind, options in kinds.items():
        named: dict[str, Any] = {SETTINGS[flag]: options[flag] for flag in options.keys() & SETTINGS.keys()}
        settings = Settings("pairs", train=4096, **named)
        data = read_data(settings, pairs)
        training[kind] = start_worker(new_model(settings, data, backend), backend).train(data)
    seconds: dict[Kind, list[float]] = {kind: [] for kind in training}
    for number in range(1 + ROUNDS * STEPS):
        for kind, steps in training.items():
            start = time.perf_counter()
            next(steps)
            if number:  # the first may compile
                seconds[kind].append(time.perf_counter() - start)
    medians = {kind: statistics.median(each) for kind, each in seconds.items()}
    first = next(iter(medians.values()))
    return {kind: first / median for kind, median in medians.items()}


def exact(file: Path, backend: str, folder: Path) -> None:
    """Print a row for each of the textbooks' set-ups, and draw the weights of the last one."""
    print(
        "| set-up | attention | nats per token | over padded steps | tokens per second | " + " | ".join(PRINTED) + " |"
    )
    print("|---|---|---|---|---|" + "---|" * len(PRINTED))
    for setup, options in EXACT.items():
        for attention in ("none", "additive"):
            model = folder / f"{setup}-{attention}.safetensors".replace(" ", "-")
            given = {
                **COMMON,
                "--initialization": "xavier",
                **options,
                **ATTENTION[attention],
                "--corpus": file,
                "--backend": backend,
            }
            train(model, given)
            epochs = load_model(model, last=True).history
            loss, rate = epochs[-1]["loss"], statistics.median(epoch["tokens_per_second"] for epoch in epochs)
            cells = [setup, attention, f"{loss:.3f}", f"{loss / options['--max-tokens']:.4f}", f"{rate:,.0f}"]
            lines = translate("run", model, "--last", *PRINTED).splitlines()
            for line, expected in zip(lines, PRINTED.values(), strict=True):
                cells.append(f"{third_party_score(line.partition('→')[2].split(), [expected.split()]):.2f}")
            print("| " + " | ".join(cells) + " |", flush=True)
    picture = folder / "weights.png"
    translate("run", model, "--last", *list(PRINTED)[-4:], "--heatmap", picture)
    print(f"Its weights for the last four sentences: {picture}")


def row(setup: str, attention: str, rnn: str, model: Path, scores: Path) -> str:
    """The row of one training: the parameters are those of its last epoch, as in the textbooks."""
    reports = []
    for part in ("training", "validation"):
        translate("test", model, "--last", "--on", part, "--json", scores)
        reports += json.loads(scores.read_text(encoding="utf-8"))
    lines = translate("run", model, "--last", *SENTENCES).splitlines()
    cells = [setup, attention, rnn, f"{reports[0]['history'][-1]['loss']:.3f}"]
    cells += [f"{report['scores']['third_party']:.3f}" for report in reports]
    return "| " + " | ".join([*cells, *(line.partition("→")[2].strip() for line in lines)]) + " |"


if __name__ == "__main__":
    main()
