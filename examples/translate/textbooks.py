"""What attention, its score and the recurrent layer cost and gain in the textbooks' set-ups: a row for each training.

    python examples/translate/textbooks.py FILE [--backend torch] [--folder textbooks]

FILE holds English-French pairs, shortest first, as `attention-parity translate train --download` fetches them. Models
that are in the folder already are not trained again.
"""

import argparse
import json
import statistics
import subprocess
import sys
from pathlib import Path

SENTENCES = ("go .", "i lost .", "i won !", "i'm home .")
SHARED = {
    "--train": 512,
    "--validation": 128,
    "--layers": 2,
    "--dropout": 0.2,
    "--learning-rate": 0.005,
    "--max-norm": 1,
}
SETUPS = {
    "large": {**SHARED, "--max-tokens": 9, "--embed": 256, "--hidden": 256, "--batch-size": 128, "--epochs": 30},
    "small": {**SHARED, "--max-tokens": 10, "--embed": 32, "--hidden": 32, "--batch-size": 64, "--epochs": 250},
}
ROUNDS = 5
ATTENTION = {
    "none": {"--decoder": "fixed"},
    "additive": {"--decoder": "bahdanau", "--score": "additive"},
    "dot": {"--decoder": "bahdanau", "--score": "dot"},
}


def translate(*arguments: object) -> str:
    """What a command of `attention-parity translate` prints."""
    command = [sys.executable, "-m", "parity_tests", "translate", *map(str, arguments)]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def main() -> None:
    """Train every combination, and print a table in Markdown."""
    parser = argparse.ArgumentParser(description="Train the textbooks' translators, and compare them.")
    parser.add_argument("file", type=Path)
    parser.add_argument("--backend", default="torch")
    parser.add_argument("--folder", type=Path, default=Path("textbooks"))
    asked = parser.parse_args()
    asked.folder.mkdir(parents=True, exist_ok=True)
    print("| set-up | attention | RNN | tokens/s | loss | seen: k=2 | held out: k=2 | " + " | ".join(SENTENCES) + " |")
    print("|---|---|---|---|---|---|---|" + "---|" * len(SENTENCES))
    for setup, options in SETUPS.items():
        combinations = [(attention, rnn) for attention in ATTENTION for rnn in ("gru", "lstm")]
        for part in range(1, ROUNDS + 1):  # in turn, so that their speeds compare
            for attention, rnn in combinations:
                model = asked.folder / f"{setup}-{attention}-{rnn}.safetensors"
                until = {"--epochs": options["--epochs"] * part // ROUNDS}
                if model.exists():
                    given = {"--resume": model, **until}
                else:
                    own = {"--rnn": rnn, "--corpus": asked.file, "--backend": asked.backend, "-o": model}
                    given = {**options, **ATTENTION[attention], **own, **until}
                translate("train", *(word for pair in given.items() for word in pair))
        for attention, rnn in combinations:
            model = asked.folder / f"{setup}-{attention}-{rnn}.safetensors"
            print(row(setup, attention, rnn, model, asked.folder / "scores.json"), flush=True)


def row(setup: str, attention: str, rnn: str, model: Path, scores: Path) -> str:
    """What became of one training: the parameters are those of its last epoch, as in the textbooks."""
    found = {}
    for part in ("training", "validation"):
        translate("test", model, "--last", "--on", part, "--json", scores)
        found[part] = json.loads(scores.read_text(encoding="utf-8"))[0]
    history = found["training"]["history"]
    rate = statistics.median(epoch["tokens_per_second"] for epoch in history)
    said = translate("run", model, "--last", *SENTENCES).splitlines()
    cells = [setup, attention, rnn, f"{rate:,.0f}", f"{history[-1]['loss']:.3f}"]
    cells += [f"{found[part]['scores']['textbook']:.3f}" for part in ("training", "validation")]
    return "| " + " | ".join([*cells, *(line.partition("→")[2].strip() for line in said)]) + " |"


if __name__ == "__main__":
    main()
