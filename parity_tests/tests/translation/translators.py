"""What the tests of translation share: a small training, models to compare, and the command."""

from __future__ import annotations

import re
from typing import Any

from click.testing import CliRunner

from parity_tests.cli.main import main
from parity_tests.translation import corpus
from parity_tests.translation.model import Epoch, Model, Settings, digest_of

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


def small(**changes: Any) -> Settings:
    return Settings(**{**SMALL, "digest": digest_of(PAIRS), **changes})


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


def invoke(*arguments: object, code: int = 0, **keywords: Any) -> str:
    result = CliRunner().invoke(main, ["translate", *map(str, arguments)], **keywords)
    assert result.exit_code == code, result.output
    return re.sub(r"\s+", " ", result.output)
