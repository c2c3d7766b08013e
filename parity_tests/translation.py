"""Translation: sentence pairs to arrays, a Translator trained epoch by epoch in any backend, and its file.

What decides a training is data: the settings, the corpus, first parameters drawn from the seed, the order of the
batches of each epoch, and, if asked for, the dropout masks. A backend brings its Translator and its Trainer.
"""

from __future__ import annotations

import functools
import hashlib
import importlib
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import backends
from attention_core import draws
from attention_core.errors import AttentionError
from attention_core.operators import SPECIFICATION_VERSION, TRANSLATOR, Batch
from backends import ArchiveError
from parity_tests import scores, text
from parity_tests.text import BOS, EOS, Vocabulary

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


def read_data(settings: Settings, pairs: Sequence[text.Pair]) -> Data:
    """Split, tokenise and number the pairs.

    Raises: CorpusError if there are fewer than asked for.
    """
    by = 1 if settings.corpus == DATES else 0  # a date that was trained in one form is no unseen date in another
    counts = (settings.train, settings.validation, settings.test)
    lists = text.split(pairs, counts, settings.seed if settings.shuffle else None, by)
    for name, wanted, found in zip(("train", "validation", "test"), counts, map(len, lists), strict=True):
        if found < wanted:
            raise text.CorpusError(
                f"{settings.corpus} has {found} pairs left for {name}, and {wanted} were asked for: pairs with the "
                "same sentence stay together, and each stands once. Ask for fewer."
            )
    tokenised = [[(_tokens(settings, s), _tokens(settings, t)) for s, t in own] for own in lists]
    source, target = (Vocabulary.of([p[side] for p in tokenised[0]], settings.min_frequency) for side in (0, 1))
    arrays = [text.encoded(own, source, target, settings.max_tokens) for own in tokenised]
    held = [_held(settings, *own, source, target) for own in zip(lists, tokenised, arrays, strict=True)]
    return Data(source, target, *held)


def _tokens(settings: Settings, sentence: str) -> list[str]:
    return text.SPLITTERS[settings.split](sentence)


def _held(
    settings: Settings,
    pairs: Sequence[text.Pair],
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
    sources = text.encoded([(own, []) for own in references], source, target, settings.max_tokens)
    return Held(arrays, sources, list(written.values()), list(references.values()))


def digest_of(pairs: Sequence[text.Pair]) -> str:
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
    if tuple(found[:4]) != text.SPECIAL or len(set(found)) != len(found):
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


class Diverged(ArithmeticError):
    """A loss is not finite."""


class Step(NamedTuple):
    """What a step of a training tells: its number in the epoch, the steps of an epoch, loss, norm, and tokens read."""

    number: int
    steps: int
    loss: float
    norm: float
    tokens: int


class Worker:
    """A backend that trains a model, or translates with it."""

    def __init__(self, model: Model, backend: str, device: str = "cpu") -> None:
        self.model = model
        self.device = device
        self.package = backends.load(backend)
        self.runtime = importlib.import_module(f"{self.package.__name__}.runtime")
        self.runtime.configure()
        config = model.settings.model(model.source, model.target)
        self.translator = self.runtime.build(self.package.Translator, config, model.settings.dtype, device)
        self.package.set_parameters(self.translator, model.parameters)

    @functools.cached_property
    def trainer(self) -> Any:
        """The backend's Trainer of the model; to translate, none is needed."""
        settings = self.model.settings
        optimizer = getattr(self.package, settings.optimizer)(settings.learning_rate)
        return self.package.Trainer(self.translator, optimizer, max_norm=settings.max_norm)

    def train(self, data: Data) -> Iterator[Step]:
        """Train one more epoch; the model is changed once it is done, and only then.

        Every epoch begins with what the file of the model holds, so that going on is no other training.
        """
        settings, number = self.model.settings, self.model.epoch + 1
        self.package.set_parameters(self.translator, self.model.last)
        if number > 1:
            self.trainer.set_state(self.model.state)
        self.trainer.seed(int(draws.integers(f"dropout/{number}", (), 2**31 - 1, settings.seed)))
        losses: list[float] = []
        norms: list[float] = []
        seconds: list[float] = []
        tokens = 0
        pairs = data.training.pairs
        order = text.shuffled(f"epoch/{number}", len(pairs.source), settings.seed)
        count = -(-len(order) // settings.batch_size)
        for position in range(count):
            start = time.perf_counter()
            rows = order[position * settings.batch_size : (position + 1) * settings.batch_size]
            batch = text.rows_of(pairs, rows, settings.batch_size)
            tokens += int(batch.target_lens.sum())
            if settings.dropout and not settings.own_dropout:
                batch = batch._replace(**self.masks(number, position))
            loss, norm = (float(self.runtime.to_numpy(found)) for found in self.trainer.step(self.given(batch)))
            if not np.isfinite([loss, norm]).all():
                raise Diverged(
                    f"the loss is {loss} and the norm of its gradients {norm} in epoch {number}, step {position + 1}: "
                    "take a smaller --learning-rate, or clip with --max-norm."
                )
            losses.append(loss)
            norms.append(norm)
            seconds.append(time.perf_counter() - start)
            yield Step(position + 1, count, loss, norm, tokens)
        self.model.last, self.model.state = self.package.get_parameters(self.translator), self.trainer.get_state()
        self.model.losses += losses
        self.model.norms += norms
        # The median: a first step may compile, and a machine may do something else for a while.
        rate = tokens / count / max(float(np.median(seconds)), 1e-9)
        found = {"loss": float(np.mean(losses)), "tokens_per_second": rate, "seconds": sum(seconds)}
        self.model.history.append({**found, **self.score(data.validation)})
        if self.model.best_epoch == number:
            self.model.parameters = self.model.last

    def masks(self, epoch: int, position: int) -> Arrays:
        """The dropout masks of one batch, drawn for epoch and position."""
        settings, sizes = self.model.settings, self.translator.sizes
        rows, steps = settings.batch_size, settings.max_tokens
        shapes = {
            "encoder_dropout_mask": (settings.num_layers - 1, rows, steps, sizes["encoder_size"]),
            "decoder_dropout_mask": (settings.num_layers - 1, rows, steps, sizes["decoder_size"]),
            "attention_dropout_mask": (rows, steps, steps),
        }
        return {
            name: draws.dropout_mask(f"{name}/{epoch}/{position}", shape, settings.dropout, settings.seed)
            for name, shape in shapes.items()
        }

    def given(self, batch: Batch) -> Batch:
        """The batch as arrays of the framework."""
        dtype = self.model.settings.dtype
        arrays = [own if own is None or own.dtype.kind == "i" else own.astype(dtype) for own in batch]
        return Batch(*(None if own is None else self.runtime.from_numpy(own, self.device) for own in arrays))

    def score(self, held: Held) -> dict[str, float]:
        """Loss and scores on pairs held out, of the parameters that the translator has now."""
        total = count = 0.0
        for batch in batches(held.pairs, self.model.settings.batch_size):
            tokens = float(batch.target_lens.sum())
            total += float(self.runtime.to_numpy(self.trainer.evaluate(self.given(batch)))) * tokens
            count += tokens
        found = [self.words(ids) for ids in self.translated(held.sources)]
        return {"validation_loss": total / count, **scored(found, held.references)}

    def translated(self, sources: Batch, **beam: Any) -> list[list[int]]:
        """The ids of each translation, by greedy decoding, or by beam search if it is given its options."""
        return [own[0] for own in self.decoded(sources, **beam)]

    def decoded(self, sources: Batch, **beam: Any) -> Iterator[tuple[list[int], np.ndarray]]:
        """The ids and the attention weights of each translation; weights have a row for eos, too, if it was reached."""
        target, most = self.model.target, self.model.settings.max_tokens
        ends = {"bos": target.index[BOS], "eos": target.index[EOS], "max_steps": most}
        for batch in batches(sources, self.model.settings.batch_size):
            on_device = self.given(batch)
            method = self.translator.beam if beam else self.translator.greedy
            found = [
                self.runtime.to_numpy(own) for own in method(on_device.source, on_device.source_lens, **ends, **beam)
            ]
            tokens, lengths, weights = (own[:, 0] if beam else own for own in (*found[:2], found[-1]))
            for row, (length, source_len) in enumerate(zip(lengths.tolist(), batch.source_lens.tolist(), strict=True)):
                if source_len:  # the others fill the batch
                    yield tokens[row, :length].tolist(), weights[row, : min(length + 1, most), :source_len]

    def words(self, ids: Sequence[int]) -> list[str]:
        """The tokens of a translation."""
        return self.model.target.words(ids)


def batches(arrays: Batch, batch_size: int) -> Iterator[Batch]:
    """The rows in their order, all batches of one size."""
    for start in range(0, len(arrays.source), batch_size):
        yield text.rows_of(arrays, np.arange(start, min(start + batch_size, len(arrays.source))), batch_size)


def scored(found: Sequence[Sequence[str]], references: Sequence[Sequence[Sequence[str]]]) -> dict[str, float]:
    """All scores of translations."""
    textbook = [scores.textbook_score(own, wanted) for own, wanted in zip(found, references, strict=True)]
    return {
        "bleu": scores.bleu(found, references),
        "textbook": float(np.mean(textbook)),
        "exact": scores.exact(found, references),
    }
