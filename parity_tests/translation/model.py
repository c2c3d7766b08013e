"""Translation: sentence pairs to arrays, a Translator trained epoch by epoch in any backend, and its file.

What decides a training is data: the settings, the corpus, first parameters drawn from the seed, the order of the
batches of each epoch, and, if asked for, the dropout masks. A backend brings its Translator and its Trainer.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import backends
from attention_core import draws
from attention_core.errors import AttentionError
from attention_core.operators import SPECIFICATION_VERSION
from attention_core.operators.training import Batch
from attention_core.operators.translation import TRANSLATOR
from backends.archives import ArchiveError
from parity_tests.translation import corpus
from parity_tests.translation.corpus import Vocabulary

KIND = "translation model"
DATES = "dates"
"""The name of the corpus that needs no file."""

Arrays = dict[str, np.ndarray]


@dataclass(frozen=True)
class Settings:
    """What decides a training, whatever the framework.

    corpus is DATES, or the name of a file, and digest the SHA-256 of its pairs; train, validation and test are numbers
    of pairs, drawn from the whole corpus if shuffle, from its beginning otherwise. split says what a token is. A
    sentence has max_tokens at most, eos included; a token has to stand min_frequency times. The names of the model's
    options are those of Translator. own_dropout leaves what is dropped to the framework; it is data otherwise.
    """

    corpus: str = DATES
    digest: str = ""
    split: str = "words"
    train: int = 512
    validation: int = 128
    test: int = 0
    shuffle: bool = False
    max_tokens: int = 10
    min_frequency: int = 1
    embed_size: int = 256
    hidden_size: int = 256
    num_layers: int = 2
    cell: str = "gru"
    decoder: str = "bahdanau"
    score: str | None = None
    bidirectional: bool = False
    dropout: float = 0.0
    own_dropout: bool = False
    optimizer: str = "adam"
    learning_rate: float = 0.005
    max_norm: float | None = 1.0
    batch_size: int = 128
    epochs: int = 30
    patience: int | None = None
    seed: int = 0
    dtype: str = "float32"

    @classmethod
    def of(cls, found: Any) -> Settings:
        """The settings that a file holds.

        Raises: ArchiveError if they are none.
        """
        kinds = {"str": str, "int": int, "bool": bool, "float": float}
        if not isinstance(found, dict) or set(found) != {own.name for own in fields(cls)}:
            raise ArchiveError("the settings are wrong: other names than those of this version")
        for own in fields(cls):
            words = str(own.type).split(" | ")
            right = type(found[own.name]) in [kinds[word] for word in words if word != "None"]
            if not right and not (found[own.name] is None and "None" in words):
                raise ArchiveError(f"the settings are wrong: {own.name} is {found[own.name]!r}, expected {own.type}")
        return cls(**found)

    def model(self, source: Vocabulary, target: Vocabulary) -> dict[str, Any]:
        """The arguments of the Translator."""
        names = ("embed_size", "hidden_size", "num_layers", "cell", "decoder", "score", "bidirectional", "dropout")
        sizes = {"source_vocab_size": len(source), "target_vocab_size": len(target)}
        located = {"num_positions": self.max_tokens} if self.score == "location" else {}
        return {**sizes, **located, **{name: getattr(self, name) for name in names}}


class Held(NamedTuple):
    """Pairs of one list: all of them as arrays, each source once, as written, and all translations of each source."""

    pairs: Batch
    sources: Batch
    written: list[str]
    references: list[list[list[str]]]


@dataclass(frozen=True)
class Data:
    """A corpus as a training sees it."""

    source: Vocabulary
    target: Vocabulary
    training: Held
    validation: Held
    test: Held


def read_data(settings: Settings, pairs: Sequence[corpus.Pair]) -> Data:
    """Split, tokenise and number the pairs.

    Raises: CorpusError if there are fewer than asked for.
    """
    by = 1 if settings.corpus == DATES else 0  # a date that was trained in one form is no unseen date in another
    counts = (settings.train, settings.validation, settings.test)
    lists = corpus.split(pairs, counts, settings.seed if settings.shuffle else None, by)
    for name, wanted, found in zip(("train", "validation", "test"), counts, map(len, lists), strict=True):
        if found < wanted:
            raise corpus.CorpusError(
                f"{settings.corpus} has {found} pairs left for {name}, and {wanted} were asked for: pairs with the "
                "same sentence stay together, and each stands once. Ask for fewer."
            )
    tokenised = [[(_tokens(settings, s), _tokens(settings, t)) for s, t in own] for own in lists]
    source, target = (Vocabulary.of([p[side] for p in tokenised[0]], settings.min_frequency) for side in (0, 1))
    arrays = [corpus.encoded(own, source, target, settings.max_tokens) for own in tokenised]
    held = [_held(settings, *own, source, target) for own in zip(lists, tokenised, arrays, strict=True)]
    return Data(source, target, *held)


def _tokens(settings: Settings, sentence: str) -> list[str]:
    return corpus.SPLITTERS[settings.split](sentence)


def _held(
    settings: Settings,
    pairs: Sequence[corpus.Pair],
    tokenised: Any,
    arrays: Batch,
    source: Vocabulary,
    target: Vocabulary,
) -> Held:
    references: dict[tuple[str, ...], list[list[str]]] = {}
    written: dict[tuple[str, ...], str] = {}
    for (sentence, _), (tokens, translation) in zip(pairs, tokenised, strict=True):
        references.setdefault(tuple(tokens), []).append(translation)
        written.setdefault(tuple(tokens), sentence)
    sources = corpus.encoded([(own, []) for own in references], source, target, settings.max_tokens)
    return Held(arrays, sources, list(written.values()), list(references.values()))


def digest_of(pairs: Sequence[corpus.Pair]) -> str:
    """The SHA-256 of sentence pairs."""
    return hashlib.sha256("\n".join("\t".join(pair) for pair in pairs).encode()).hexdigest()


# ------------------------------------------------------------------------------------------------ the model's file


@dataclass
class Model:
    """A Translator in training: what it was made with, how far it is, and all that going on needs.

    parameters are those of the epoch with the lowest validation loss, last those after the newest epoch, and state is
    the optimiser's; losses and norms have an entry for each step; history an entry for each epoch.
    """

    settings: Settings
    source: Vocabulary
    target: Vocabulary
    backend: str
    parameters: Arrays
    last: Arrays
    state: Arrays = field(default_factory=dict)
    losses: list[float] = field(default_factory=list)
    norms: list[float] = field(default_factory=list)
    history: list[dict[str, float]] = field(default_factory=list)

    @property
    def epoch(self) -> int:
        """The epochs done."""
        return len(self.history)

    @property
    def best_epoch(self) -> int:
        """The epoch with the lowest validation loss, the first of them; 0 before the first."""
        losses = [own["validation_loss"] for own in self.history]
        return losses.index(min(losses)) + 1 if losses else 0

    @property
    def finished(self) -> bool:
        """Whether the epochs asked for are done, or validation has not become better for too long."""
        patience = self.settings.patience
        tired = patience is not None and self.epoch - self.best_epoch >= patience
        return self.epoch >= self.settings.epochs or tired

    def save(self, path: str | Path) -> None:
        """Write the model to a file, in one step: a reader finds the old one or the new one, and never a part."""
        groups = {"parameter": self.parameters, "last": self.last, "state": self.state}
        arrays = {f"{group}/{name}": array for group, own in groups.items() for name, array in own.items()}
        arrays |= {"losses": np.array(self.losses, np.float64), "norms": np.array(self.norms, np.float64)}
        header = {
            "kind": KIND,
            "specification": SPECIFICATION_VERSION,
            "settings": asdict(self.settings),
            "source": list(self.source.tokens),
            "target": list(self.target.tokens),
            "backend": self.backend,
            "history": self.history,
        }
        backends.save_arrays(path, arrays, header)

    @classmethod
    def load(cls, path: str | Path) -> Model:
        """Read a model from a file.

        Raises: ArchiveError if the file is damaged, or is no model.
        """
        arrays, header = backends.load_archive(path, KIND)
        try:
            settings = Settings.of(header.get("settings"))
            source, target = (_vocabulary(header.get(side)) for side in ("source", "target"))
            groups: dict[str, Arrays] = {"parameter": {}, "last": {}, "state": {}}
            for name, array in arrays.items():
                group, slash, own = name.partition("/")
                if slash:
                    groups[group][own] = array
            shapes = TRANSLATOR.shapes(TRANSLATOR.sizes(settings.model(source, target)))
            for group in ("parameter", "last"):
                if {name: array.shape for name, array in groups[group].items()} != shapes:
                    raise ArchiveError(f"the arrays of {group} are not those of the settings")
            return cls(
                settings,
                source,
                target,
                str(header["backend"]),
                groups["parameter"],
                groups["last"],
                groups["state"],
                arrays["losses"].tolist(),
                arrays["norms"].tolist(),
                [{str(name): float(value) for name, value in own.items()} for own in header["history"]],
            )
        except ArchiveError as error:
            raise ArchiveError(f"{path}: {error}") from error
        except (KeyError, TypeError, ValueError, AttributeError, AttentionError) as error:
            raise ArchiveError(f"{path}: this is no model that could be read: {error!r}") from error


def _vocabulary(found: Any) -> Vocabulary:
    if not isinstance(found, list) or not all(isinstance(token, str) for token in found):
        raise ArchiveError("a vocabulary is wrong: expected a list of tokens")
    if tuple(found[:4]) != corpus.SPECIAL or len(set(found)) != len(found):
        raise ArchiveError("a vocabulary is wrong: the special tokens come first, and each token stands once")
    return Vocabulary(tuple(found))


def new_model(settings: Settings, data: Data, backend: str) -> Model:
    """A model before its first epoch, with parameters drawn from the seed: the same in every framework.

    Every entry is uniform in ±1/√n, n being the number of summands that the specification names.
    Raises: OptionError if the settings make no Translator.
    """
    sizes = TRANSLATOR.sizes(settings.model(data.source, data.target))
    fans = TRANSLATOR.fans(sizes)
    parameters = {
        name: draws.uniform(f"translation/{name}", shape, fans[name] ** -0.5, settings.seed).astype(settings.dtype)
        for name, shape in TRANSLATOR.shapes(sizes).items()
    }
    return Model(settings, data.source, data.target, backend, parameters, dict(parameters))


# ------------------------------------------------------------------------------------------------ in a framework
