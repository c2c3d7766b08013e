"""Translation: sentence pairs to arrays, a Translator trained epoch by epoch in any backend, and its file.

A training is determined by data: the settings, the corpus, first parameters drawn from the seed, the order of the
batches of each epoch, and, unless the framework draws them, the dropout masks. A backend brings its Translator and its
Trainer.
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
    """All that determines a training, whatever the framework.

    corpus is DATES, or the name of a file, and digest the SHA-256 of its pairs; train, validation and test are numbers
    of pairs, drawn from the whole corpus if shuffle, from its beginning otherwise. split says what a token is. A
    sentence has max_tokens at most, eos included; a token has to occur min_frequency times. The names of the model's
    options are those of Translator. Dropout masks are data, unless framework_dropout has the framework draw them.
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
    framework_dropout: bool = False
    optimizer: str = "adam"
    learning_rate: float = 0.005
    max_norm: float | None = 1.0
    batch_size: int = 128
    epochs: int = 30
    patience: int | None = None
    seed: int = 0
    dtype: str = "float32"

    @classmethod
    def of(cls, entries: Any) -> Settings:
        """The settings in the header of a file.

        Raises: ArchiveError if they are none.
        """
        types = {setting.name: str(setting.type) for setting in fields(cls)}
        if not isinstance(entries, dict) or set(entries) != set(types):
            raise ArchiveError("the settings are wrong: other names than those of this version")
        for name, value in entries.items():
            if ("None" if value is None else type(value).__name__) not in types[name].split(" | "):
                raise ArchiveError(f"the settings are wrong: {name} is {value!r}, expected {types[name]}")
        return cls(**entries)

    def tokens(self, sentence: str) -> list[str]:
        """The tokens of a sentence."""
        return corpus.SPLITTERS[self.split](sentence)

    @property
    def glue(self) -> str:
        """The text between two tokens of a sentence."""
        return "" if self.split == "characters" else " "

    def model(self, source: Vocabulary, target: Vocabulary) -> dict[str, Any]:
        """The arguments of the Translator."""
        names = ("embed_size", "hidden_size", "num_layers", "cell", "decoder", "score", "bidirectional", "dropout")
        sizes = {"source_vocab_size": len(source), "target_vocab_size": len(target)}
        located = {"num_positions": self.max_tokens} if self.score == "location" else {}
        return {**sizes, **located, **{name: getattr(self, name) for name in names}}


class Split(NamedTuple):
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
    training: Split
    validation: Split
    test: Split


def read_data(settings: Settings, pairs: Sequence[corpus.Pair]) -> Data:
    """Split, tokenise and number the pairs.

    Raises: CorpusError if there are fewer than the settings need.
    """
    by = 1 if settings.corpus == DATES else 0  # a date that was trained in one form is no unseen date in another
    counts = {"train": settings.train, "validation": settings.validation, "test": settings.test}
    lists = corpus.split(pairs, list(counts.values()), settings.seed if settings.shuffle else None, by)
    for (name, count), left in zip(counts.items(), map(len, lists), strict=True):
        if left < count:
            raise corpus.CorpusError(
                f"{settings.corpus} has {left} pairs left for {name}, and {count} were requested: pairs with the same "
                "sentence stay together, and repeated pairs count once. Request fewer."
            )
    tokenised = [[(settings.tokens(source), settings.tokens(target)) for source, target in each] for each in lists]
    source, target = (Vocabulary.of([pair[side] for pair in tokenised[0]], settings.min_frequency) for side in (0, 1))

    def split(pairs: Sequence[corpus.Pair], tokens: Sequence[tuple[list[str], list[str]]]) -> Split:
        written: dict[tuple[str, ...], str] = {}
        references: dict[tuple[str, ...], list[list[str]]] = {}
        for (sentence, _), (words, translation) in zip(pairs, tokens, strict=True):
            written.setdefault(tuple(words), sentence)
            references.setdefault(tuple(words), []).append(translation)
        sources = [(words, ()) for words in references]
        arrays, once = (corpus.encoded(each, source, target, settings.max_tokens) for each in (tokens, sources))
        return Split(arrays, once, list(written.values()), list(references.values()))

    return Data(source, target, *map(split, lists, tokenised))


def digest_of(pairs: Sequence[corpus.Pair]) -> str:
    """The SHA-256 of sentence pairs."""
    return hashlib.sha256("\n".join("\t".join(pair) for pair in pairs).encode()).hexdigest()


# ------------------------------------------------------------------------------------------------ the model's file


@dataclass
class Model:
    """A Translator in training: its settings, how far it is, and all that resuming needs.

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
        losses = [epoch["validation_loss"] for epoch in self.history]
        return losses.index(min(losses)) + 1 if losses else 0

    @property
    def finished(self) -> bool:
        """Whether the requested epochs are done, or validation has not become better for too long."""
        patience = self.settings.patience
        tired = patience is not None and self.epoch - self.best_epoch >= patience
        return self.epoch >= self.settings.epochs or tired

    def save(self, path: str | Path) -> None:
        """Write the model to a file, in one step: a reader finds the old one or the new one, and never a part."""
        groups = {"parameter": self.parameters, "last": self.last, "state": self.state}
        arrays = {f"{group}/{name}": array for group, members in groups.items() for name, array in members.items()}
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
                group, slash, member = name.partition("/")
                if slash:
                    groups[group][member] = array
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
                [{str(name): float(value) for name, value in epoch.items()} for epoch in header["history"]],
            )
        except ArchiveError as error:
            raise ArchiveError(f"{path}: {error}") from error
        except (KeyError, TypeError, ValueError, AttributeError, AttentionError) as error:
            raise ArchiveError(f"{path}: this is no model that could be read: {error!r}") from error


def _vocabulary(tokens: Any) -> Vocabulary:
    if not isinstance(tokens, list) or not all(isinstance(token, str) for token in tokens):
        raise ArchiveError("a vocabulary is wrong: expected a list of tokens")
    if tuple(tokens[:4]) != corpus.SPECIAL or len(set(tokens)) != len(tokens):
        raise ArchiveError("a vocabulary is wrong: the special tokens come first, and each token occurs once")
    return Vocabulary(tuple(tokens))


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
