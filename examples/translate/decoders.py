"""What decoders gain and cost in other forms: another recurrent layer, another score, and what a step reads.

    python examples/translate/decoders.py FILE [--backend torch] [--folder decoders]

FILE holds English-French pairs, as `attention-parity translate train --download` fetches them. Each form is trained on
the same pairs, in the same order, and tested on others, with the parameters of its epoch of lowest validation loss. The
speed is that of training steps taken in turn, in one process, beside the first form. Models that are in the folder
already are not trained again.
"""

import argparse
import json
from pathlib import Path
from typing import Any

from textbooks import relative_speeds, translate

from parity_tests.translation import corpus

SHARED = {
    "--train": 4000,
    "--validation": 500,
    "--test": 500,
    "--max-tokens": 10,
    "--min-frequency": 2,
    "--embed": 128,
    "--hidden": 128,
    "--layers": 1,
    "--batch-size": 64,
    "--learning-rate": 0.002,
    "--epochs": 10,
}
LUONG = {"--decoder": "luong", "--score": "additive"}
FORMS: dict[str, dict[str, object]] = {
    "GRU, additive score": {},
    "LSTM": {"--rnn": "lstm"},
    "GRU encoder, LSTM decoder": {"--rnn": "lstm", "--encoder-rnn": "gru"},
    "LSTM encoder, GRU decoder": {"--rnn": "gru", "--encoder-rnn": "lstm"},
    "scaled dot-product": {"--score": "scaled_dot"},
    "concat with a bias": {"--score": "concat_bias"},
    "the context alone is read": {"--reads": "context"},
    "Luong: the attentional vector is fed": LUONG,
    "Luong: the context is fed": {**LUONG, "--input-feeding": "context"},
    "Luong: nothing is fed": {**LUONG, "--input-feeding": "none"},
}
"""The options of each form, beside those that all share; the first is Bahdanau's decoder."""


def main() -> None:
    """Train every form, and print a table in Markdown."""
    parser = argparse.ArgumentParser(description="Train translators with decoders of several forms, and compare them.")
    parser.add_argument("file", type=Path)
    parser.add_argument("--backend", default="torch")
    parser.add_argument("--folder", type=Path, default=Path("decoders"))
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    forms = {name: {**SHARED, **chosen} for name, chosen in FORMS.items()}
    pairs = corpus.read_corpus(arguments.file).pairs[::4]  # of all lengths: a corpus begins with its shortest
    speeds = relative_speeds(pairs, arguments.backend, forms)
    print("| decoder | training loss | validation loss | BLEU, held out | speed |\n|---|---|---|---|---|")
    for number, (name, options) in enumerate(forms.items()):
        model, shuffled = arguments.folder / f"{number}.safetensors", ("--shuffle",)
        if not model.exists():
            given: dict[str, Any] = {**options, "--corpus": arguments.file, "--backend": arguments.backend}
            translate("train", *shuffled, *(word for pair in given.items() for word in pair), "-o", model)
        scores = arguments.folder / "scores.json"
        translate("test", model, "--corpus", arguments.file, "--json", scores)
        (report,) = json.loads(scores.read_text(encoding="utf-8"))
        best = min(report["history"], key=lambda epoch: epoch["validation_loss"])
        losses = f"{best['loss']:.2f} | {best['validation_loss']:.2f}"
        print(f"| {name} | {losses} | {report['scores']['bleu']:.1f} | {speeds[name]:.2f} |", flush=True)


if __name__ == "__main__":
    main()
