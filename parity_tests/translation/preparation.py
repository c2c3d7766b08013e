"""Preparation of a training or a translation: settings, pairs, model file and backend."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any

import backends
from backends.archives import ArchiveError
from backends.schema import build
from parity_tests.translation.corpus import CorpusError, Pair, dates, read_corpus
from parity_tests.translation.model import DATES, SETTINGS_OF, Data, Model, Settings, digest_of, read_data

DATE_SETTINGS: dict[str, Any] = {
    "split": "characters",
    "train": 10_000,
    "validation": 500,
    "test": 1_000,
    "max_tokens": 26,
    "embed_size": 32,
    "hidden_size": 64,
    "num_layers": 1,
    "bidirectional": True,
    "epochs": 6,
}
"""The defaults for dates that differ from those for sentences."""
MOST_DATES = 2**20
"""More than twice as many as there are distinct dates in every form."""
RESUMABLE = ("epochs", "patience")
"""The settings that may change when a training is resumed."""

Read = Callable[[Path], list[Pair]]
"""Reads the pairs of a file."""


def read_pairs(path: Path) -> list[Pair]:
    """The pairs of a file."""
    return read_corpus(path).pairs


def pairs_of(corpus: Path | None, chosen: Mapping[str, Any], read: Read) -> tuple[str, list[Pair]]:
    """The name and pairs of a corpus: without a file, generated dates, twice as many as are used."""
    if corpus is not None:
        return str(corpus), read(corpus)
    counts = (chosen.get(name) or DATE_SETTINGS[name] for name in ("train", "validation", "test"))
    return DATES, dates(min(2 * sum(counts), MOST_DATES), chosen.get("seed") or 0)


def new_settings(
    corpus: Path | None, chosen: Mapping[str, Any], read: Read = read_pairs
) -> tuple[Settings, list[Pair]]:
    """The chosen settings, with the defaults of the corpus, and its pairs.

    Raises: SchemaError with the name of the setting, CorpusError.
    """
    name, pairs = pairs_of(corpus, chosen, read)
    model = chosen.get("model", Settings.model)
    others = {setting for other, names in SETTINGS_OF.items() if other != model for setting in names}
    defaults = {setting: value for setting, value in DATE_SETTINGS.items() if name == DATES and setting not in others}
    return build(Settings, {**defaults, **chosen, "corpus": name, "digest": digest_of(pairs)}), pairs


def data_of(settings: Settings, corpus: Path | None, read: Read = read_pairs) -> Data:
    """The data of a model, from its corpus or another file.

    Raises: CorpusError if the model was trained on other pairs.
    """
    if corpus is None and settings.corpus != DATES:
        corpus = Path(settings.corpus)
    name, pairs = pairs_of(corpus, asdict(settings), read)
    if digest_of(pairs) != settings.digest:
        raise CorpusError(f"the model was trained on other pairs ({settings.corpus}) than those in {name}.")
    return read_data(settings, pairs)


def load_model(file: str | Path, last: bool) -> Model:
    """Load a model to translate with, after the best or the last epoch."""
    model = Model.load(file)
    return replace(model, parameters=model.last) if last else model


def check_settings(file: Path, settings: Settings) -> None:
    """Check that a model's training can be resumed with these settings.

    Raises: ArchiveError if it was trained with others.
    """
    present = Model.load(file).settings
    names = [field.name for field in fields(Settings) if field.name not in RESUMABLE]
    differing = [name for name in names if getattr(present, name) != getattr(settings, name)]
    if differing:
        raise ArchiveError(f"{file} was trained with other settings ({', '.join(differing)}): pass another --output")


def choose_backend(requested: str | None, trained: str) -> str:
    """The backend to translate with: the requested one, the one that trained the model, or any installed one."""
    if requested is not None:
        return requested
    known = backends.available()
    return next((name for name in (trained, *known) if name in known and known[name].reason is None), trained)
