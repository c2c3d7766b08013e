"""Translation models: settings, data, and a translator in training with its file.

A training is determined by data: the settings, the corpus, initial parameters drawn from the seed, the order of the
batches of each epoch, and, unless the framework draws them, the dropout masks. A backend provides the translators and
a Trainer.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np

import backends
from attention_core import draws
from attention_core.errors import AttentionError, check_options
from attention_core.operators import SPECIFICATION_VERSION
from attention_core.operators.training import Batch
from attention_core.operators.translation import TRANSLATORS
from attention_core.specification import Layer, Sizes
from backends.archives import ArchiveError
from backends.schema import Range, SchemaError, build, clean
from parity_tests.translation import corpus
from parity_tests.translation.corpus import Vocabulary

KIND = "translation model"
DATES = "dates"
"""The name of the generated corpus."""

MIXED = "mixed_bfloat16"
"""Computation in bfloat16 with parameters in float32, as Keras names that policy."""
MOST_PAIRS, MOST_TOKENS = 10**8, 2**20
"""The largest number of pairs in a split, and of tokens in a batch."""

Arrays = dict[str, np.ndarray]

LAYER_OF = {"recurrent": "Translator", "transformer": "TransformerTranslator"}
SETTINGS_OF = {
    "recurrent": ("cell", "encoder_cell", "decoder", "reads", "input_feeding", "bidirectional"),
    "transformer": ("num_heads", "norm", "positions", "tied"),
}
"""The settings that one model has alone."""
NUM_BUCKETS = 32
"""The buckets of relative positions, as in T5."""


@dataclass(frozen=True)
class Settings:
    """The settings of a training, independent of the framework; the annotations are the schema of files and options.

    corpus is DATES, or the name of a file, and digest the SHA-256 of its pairs; train, validation and test are numbers
    of pairs, drawn from the whole corpus if shuffle, and from its beginning otherwise. split selects the tokenisation.
    A sentence has at most max_tokens, including eos; a token of the vocabulary occurs at least min_frequency times.
    Model options have the names of the layer's arguments; the features of a Transformer are embed_size. For
    initialization see `initial_parameters`. Dropout masks are data, unless framework_dropout lets the framework draw
    them. by_length batches sentences of similar length. mixed_bfloat16 computes in bfloat16, with float32 parameters.
    """

    corpus: str = DATES
    digest: str = ""
    split: Literal["words", "characters"] = "words"
    train: Annotated[int, Range(1, MOST_PAIRS)] = 512
    validation: Annotated[int, Range(1, MOST_PAIRS)] = 128
    test: Annotated[int, Range(0, MOST_PAIRS)] = 0
    shuffle: bool = False
    max_tokens: Annotated[int, Range(2, 1024)] = 10
    min_frequency: Annotated[int, Range(1, MOST_PAIRS)] = 1
    model: Literal["recurrent", "transformer"] = "recurrent"
    embed_size: Annotated[int, Range(1, 2**14)] = 256
    hidden_size: Annotated[int, Range(1, 2**14)] = 256
    num_layers: Annotated[int, Range(1, 64)] = 2
    cell: Literal["gru", "lstm"] = "gru"
    encoder_cell: Literal["gru", "lstm"] | None = None
    decoder: Literal["bahdanau", "luong", "fixed"] = "bahdanau"
    reads: Literal["both", "context"] | None = None
    input_feeding: Literal["attentional", "context", "none"] | None = None
    score: str | None = None
    bidirectional: bool = False
    num_heads: Annotated[int, Range(1, 2**10)] = 4
    norm: Literal["post", "pre"] = "post"
    positions: Literal["sinusoidal", "learned", "rotary", "relative", "alibi", "none"] = "sinusoidal"
    tied: bool = False
    initialization: Literal["uniform", "xavier"] = "uniform"
    dropout: Annotated[float, Range(0.0, 0.999)] = 0.0
    framework_dropout: bool = False
    optimizer: Literal["adam", "sgd"] = "adam"
    learning_rate: Annotated[float, Range(1e-12, 1e3)] = 0.005
    warmup: Annotated[int, Range(1, 10**6)] | None = None
    max_norm: Annotated[float, Range(1e-12, 1e12)] | None = 1.0
    batch_size: Annotated[int, Range(1, 2**16)] = 128
    by_length: bool = False
    epochs: Annotated[int, Range(1, 10**6)] = 30
    patience: Annotated[int, Range(1, 10**6)] | None = None
    seed: Annotated[int, Range(0, 2**63 - 1)] = 0
    dtype: Literal["float32", "float64", "mixed_bfloat16"] = "float32"

    def __post_init__(self) -> None:
        if self.batch_size * self.max_tokens > MOST_TOKENS:
            raise ValueError(
                f"batch_size={self.batch_size} sentences of max_tokens={self.max_tokens} exceed the limit of "
                f"{MOST_TOKENS:,} tokens per batch"
            )
        for model, names in SETTINGS_OF.items():
            ignored = [name for name in names if getattr(self, name) != getattr(type(self), name)]
            if ignored and self.model != model:
                raise ValueError(f"{ignored[0]}={getattr(self, ignored[0])!r} requires model={model!r}")

    def tokens(self, sentence: str) -> list[str]:
        """The tokens of a sentence."""
        return corpus.SPLITTERS[self.split](sentence)

    @property
    def parameter_dtype(self) -> str:
        """The dtype of the parameters and of the optimiser's state."""
        return "float32" if self.dtype == MIXED else self.dtype

    @property
    def glue(self) -> str:
        """The separator of tokens in a sentence."""
        return "" if self.split == "characters" else " "

    @property
    def layer(self) -> Layer:
        """The layer that is trained."""
        return TRANSLATORS[LAYER_OF[self.model]]

    def arguments(self, source: Vocabulary, target: Vocabulary) -> dict[str, Any]:
        """The arguments of the layer."""
        names: tuple[str, ...] = ("hidden_size", "num_layers", "dropout", *SETTINGS_OF[self.model])
        given = {"source_vocab_size": len(source), "target_vocab_size": len(target)}
        given["features" if self.model == "transformer" else "embed_size"] = self.embed_size
        if self.score == "location":
            given["num_positions"] = self.max_tokens
        if self.positions == "learned":
            given["num_positions"] = self.max_tokens
        if self.positions == "relative":
            given["num_buckets"] = NUM_BUCKETS
        if self.score is not None:
            names = (*names, "score")
        return {**given, **{name: getattr(self, name) for name in names}}


@dataclass(frozen=True)
class Epoch:
    """The record of an epoch: losses, speed, and the scores of `bleu.scores` on the validation pairs."""

    loss: float
    tokens_per_second: float
    seconds: float
    validation_loss: float
    bleu: float
    third_party: float
    exact: float


@dataclass(frozen=True)
class Header:
    """The schema of a model file's header."""

    kind: Literal["translation model"]
    specification: str
    settings: Settings
    source: tuple[str, ...]
    target: tuple[str, ...]
    backend: Annotated[str, Range(1, 64)]
    history: list[Epoch]


class Split(NamedTuple):
    """A split: all pairs as arrays, each distinct source as written, and all translations of each source."""

    pairs: Batch
    sources: Batch
    written: list[str]
    references: list[list[list[str]]]


@dataclass(frozen=True)
class Data:
    """A corpus prepared for training."""

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
                f"{settings.corpus} has {left} pairs left for {name}, and {count} were requested: pairs with a common "
                "sentence stay together, and duplicates count once. Request fewer."
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
        arrays, once = (corpus.encode(each, source, target, settings.max_tokens) for each in (tokens, sources))
        return Split(arrays, once, list(written.values()), list(references.values()))

    return Data(source, target, *map(split, lists, tokenised))


def digest_of(pairs: Sequence[corpus.Pair]) -> str:
    """The SHA-256 of sentence pairs."""
    return hashlib.sha256("\n".join("\t".join(pair) for pair in pairs).encode()).hexdigest()


# ------------------------------------------------------------------------------------------------ the model's file


@dataclass
class Model:
    """A translator in training: its settings, progress, and the state required to resume.

    parameters are those of the epoch with the lowest validation loss, last those after the most recent epoch, and state
    is the optimiser's; losses and norms have an entry for each step, history an entry for each epoch.
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
        """The number of finished epochs."""
        return len(self.history)

    @property
    def best_epoch(self) -> int:
        """The epoch with the lowest validation loss, the first of them; 0 before the first."""
        losses = [epoch["validation_loss"] for epoch in self.history]
        return losses.index(min(losses)) + 1 if losses else 0

    @property
    def is_finished(self) -> bool:
        """Whether all epochs are finished, or the validation loss has not improved for `patience` epochs."""
        patience = self.settings.patience
        tired = patience is not None and self.epoch - self.best_epoch >= patience
        return self.epoch >= self.settings.epochs or tired

    def save(self, path: str | Path) -> None:
        """Write the model to a file atomically: a reader finds the old file or the new one, never a part."""
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

        Raises: ArchiveError if the file is damaged, or not a model.
        """
        arrays, entries = backends.load_archive(path, KIND)
        try:
            header = build(Header, entries)
            settings = header.settings
            if missing := sorted({setting.name for setting in fields(Settings)} - set(entries["settings"])):
                raise SchemaError(f"settings.{missing[0]}", "missing")
            source, target = _vocabulary("source", header.source), _vocabulary("target", header.target)
            groups: dict[str, Arrays] = {"parameter": {}, "last": {}, "state": {}}
            steps: Arrays = {}
            for name, array in arrays.items():
                group, _, member = name.partition("/")
                (groups.get(group, steps) if member else steps)[member or group] = array
            layer = settings.layer
            shapes = layer.shapes(check_options(layer, **settings.arguments(source, target)))
            for group in ("parameter", "last"):
                if {name: (array.shape, array.dtype.name) for name, array in groups[group].items()} != {
                    name: (shape, settings.parameter_dtype) for name, shape in shapes.items()
                }:
                    raise ArchiveError(f"the arrays of {group} do not match the settings")
            if set(steps) != {"losses", "norms"} or any(array.dtype != np.float64 for array in steps.values()):
                raise ArchiveError("expected losses and norms in float64 beside the parameters")
            losses, norms = steps["losses"], steps["norms"]
            if losses.ndim != 1 or losses.shape != norms.shape or not np.isfinite([losses, norms]).all():
                raise ArchiveError("losses and norms are not finite numbers, one of each for a step")
        except (SchemaError, ArchiveError, AttentionError) as error:
            raise ArchiveError(f"{path}: not a readable model: {error}") from error
        return cls(
            settings=settings,
            source=source,
            target=target,
            backend=header.backend,
            parameters=groups["parameter"],
            last=groups["last"],
            state=groups["state"],
            losses=losses.tolist(),
            norms=norms.tolist(),
            history=[asdict(epoch) for epoch in header.history],
        )


def _vocabulary(path: str, tokens: tuple[str, ...]) -> Vocabulary:
    if tokens[:4] != corpus.SPECIAL or len(set(tokens)) != len(tokens):
        raise SchemaError(path, "the special tokens come first, and each token occurs once")
    for number, token in enumerate(tokens):
        if corpus.CONTROL.search(token):
            raise SchemaError(
                f"{path}[{number}]", f"{clean(token)} has a control character, which a corpus cannot contain"
            )
    return Vocabulary(tokens)


def initial_parameters(settings: Settings, sizes: Sizes) -> Arrays:
    """The parameters before the first epoch, drawn from the seed, the same in every framework.

    "uniform": every entry is uniform in ±1/√n, n being the number of summands that the specification names, or the
    constant that it names. "xavier" (Glorot and Bengio 2010): in ±√(6 / (inputs + outputs)), the gates of a recurrent
    layer being its outputs; biases are 0, and constants stay.
    """
    fans, constants = settings.layer.fans(sizes), settings.layer.constants(sizes)

    def initial(name: str, shape: tuple[int, ...]) -> np.ndarray:
        bound, constant = fans[name] ** -0.5, constants.get(name)
        if settings.initialization == "xavier":
            bound = (6 / (shape[-1] + math.prod(shape[:-1]))) ** 0.5
            if name.rpartition(".")[2].partition("_")[0] == "b":
                constant = 0.0
        if constant is not None:
            return np.full(shape, constant, settings.parameter_dtype)
        return draws.uniform(f"translation/{name}", shape, bound, settings.seed).astype(settings.parameter_dtype)

    return {name: initial(name, shape) for name, shape in settings.layer.shapes(sizes).items()}


def new_model(settings: Settings, data: Data, backend: str) -> Model:
    """Make a model before its first epoch.

    Raises: OptionError if the settings are invalid for the layer.
    """
    parameters = initial_parameters(settings, settings.layer.sizes(settings.arguments(data.source, data.target)))
    return Model(settings, data.source, data.target, backend, parameters, dict(parameters))
