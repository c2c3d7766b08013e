"""Training, evaluation and translation of a model in one backend."""

from __future__ import annotations

import contextlib
import functools
import importlib
import time
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

import numpy as np

import backends
from attention_core import draws
from attention_core.errors import DtypeError
from attention_core.operators.training import Batch
from parity_tests.translation import bleu, corpus
from parity_tests.translation.corpus import BOS, EOS
from parity_tests.translation.model import Arrays, Data, Model, Split


class Diverged(ArithmeticError):
    """A loss is not finite."""


def check_dtype(package: str, dtype: str) -> None:
    """Raise DtypeError if the framework of a backend lacks a dtype."""
    needed = backends.read_requirements(package)
    for gap in () if needed is None else needed.gaps:
        if gap.get("operator", "*") == "*" and fnmatchcase(dtype, gap.get("dtype", "")):
            raise DtypeError(f"{package} has no dtype {dtype!r}: {gap['reason']}. Use another --backend or --dtype.")


class Step(NamedTuple):
    """A step of a training: its number in the epoch, the steps of an epoch, loss, norm, and tokens read so far."""

    number: int
    steps: int
    loss: float
    norm: float
    tokens: int


class Worker:
    """A backend that trains a model, or translates with it.

    Raises: DtypeError if the framework lacks the dtype of the model.
    """

    def __init__(self, model: Model, backend: str, device: str = "cpu") -> None:
        self.model = model
        self.device = device
        self.package = backends.load(backend)
        check_dtype(self.package.__name__, model.settings.dtype)
        self.runtime = importlib.import_module(f"{self.package.__name__}.runtime")
        self.runtime.configure()
        settings = model.settings
        config, layer = settings.arguments(model.source, model.target), getattr(self.package, settings.layer.name)
        self.translator = self.runtime.build(layer, config, settings.dtype, device)
        self.package.set_parameters(self.translator, model.parameters)
        self.made = (backend, settings.dtype, settings.model, config)
        # PyTorch's mixed precision is a context; the others have it in the layers.
        self.precision = getattr(self.translator, "precision", contextlib.nullcontext())

    def replace_model(self, model: Model, backend: str) -> bool:
        """Load another model to translate with; return False if it needs another backend or other layers."""
        settings = model.settings
        config = settings.arguments(model.source, model.target)
        if self.made != (backend, settings.dtype, settings.model, config):
            return False
        self.model = model
        self.package.set_parameters(self.translator, model.parameters)
        return True

    @functools.cached_property
    def trainer(self) -> Any:
        """The backend's Trainer of the model; not needed for translation."""
        settings = self.model.settings
        optimizer = getattr(self.package, settings.optimizer)(settings.learning_rate, warmup=settings.warmup)
        return self.package.Trainer(self.translator, optimizer, max_norm=settings.max_norm)

    def train(self, data: Data) -> Iterator[Step]:
        """Train one more epoch; the model changes only when the epoch is finished.

        Every epoch starts from the content of the model's file, so that resuming is the same training.
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
        parts = corpus.epoch_rows(pairs, settings.batch_size, number, settings.seed, settings.by_length)
        for position, rows in enumerate(parts):
            start = time.perf_counter()
            batch = corpus.rows_of(pairs, rows, settings.batch_size)
            tokens += int(batch.target_lens.sum())
            batch = corpus.trim(batch, settings.max_tokens)
            if settings.dropout and not settings.framework_dropout:
                batch = batch._replace(masks=self.masks(number, position, batch))
            with self.precision:
                results = self.trainer.step(self.on_device(batch))
            loss, norm = (float(self.runtime.to_numpy(number)) for number in results)
            if not np.isfinite([loss, norm]).all():
                raise Diverged(
                    f"the loss is {loss} and the norm of its gradients {norm} in epoch {number}, step {position + 1}: "
                    "use a smaller --learning-rate, or clip with --max-norm."
                )
            losses.append(loss)
            norms.append(norm)
            seconds.append(time.perf_counter() - start)
            yield Step(position + 1, len(parts), loss, norm, tokens)
        self.model.last, self.model.state = self.package.get_parameters(self.translator), self.trainer.get_state()
        self.model.losses += losses
        self.model.norms += norms
        # The median: a first step may compile, and a machine may do something else for a while.
        rate = tokens / len(parts) / max(float(np.median(seconds)), 1e-9)
        epoch = {"loss": float(np.mean(losses)), "tokens_per_second": rate, "seconds": sum(seconds)}
        self.model.history.append({**epoch, **self.score(data.validation)})
        if self.model.best_epoch == number:
            self.model.parameters = self.model.last

    def masks(self, epoch: int, position: int, batch: Batch) -> Arrays:
        """The dropout masks of one batch, drawn for epoch and position: as much of them as the batch is wide."""
        settings, most = self.model.settings, self.model.settings.max_tokens
        sizes = {**self.translator.sizes, "batch": settings.batch_size, "keys": most, "steps": most}
        used = {"keys": batch.source.shape[1], "steps": batch.inputs.shape[1]}
        drawn = {}
        for tensor in self.translator.specification.method("call").keyword_tensors:
            shape, name = tuple(sizes[axis] for axis in tensor.axes), f"{tensor.name}/{epoch}/{position}"
            whole = draws.dropout_mask(name, shape, settings.dropout, settings.seed)
            drawn[tensor.name] = np.ascontiguousarray(whole[tuple(slice(used.get(axis)) for axis in tensor.axes)])
        return drawn

    def on_device(self, batch: Batch) -> Batch:
        """The batch as arrays of the framework."""
        dtype = self.model.settings.parameter_dtype

        def convert(array: np.ndarray) -> Any:
            return self.runtime.from_numpy(array if array.dtype.kind == "i" else array.astype(dtype), self.device)

        return batch.map_arrays(convert)

    def score(self, split: Split) -> dict[str, float]:
        """Evaluate loss and scores on a split with the current parameters."""
        total = count = 0.0
        for batch in batches(split.pairs, self.model.settings.batch_size):
            tokens = float(batch.target_lens.sum())
            with self.precision:
                loss = self.trainer.evaluate(self.on_device(batch))
            total += float(self.runtime.to_numpy(loss)) * tokens
            count += tokens
        translations = [self.words(ids) for ids in self.translate(split.sources)]
        return {"validation_loss": total / count, **bleu.scores(translations, split.references)}

    def translate(self, sources: Batch, **beam: Any) -> list[list[int]]:
        """Translate sentences to ids, by greedy decoding, or by beam search if its options are passed."""
        return [ids for ids, _ in self.decode(sources, **beam)]

    def decode(self, sources: Batch, **beam: Any) -> Iterator[tuple[list[int], np.ndarray]]:
        """The ids and the attention weights of each translation; weights include a row for eos if it was reached."""
        target, most = self.model.target, self.model.settings.max_tokens
        ends = {"bos": target.index[BOS], "eos": target.index[EOS], "max_steps": most}
        for batch in batches(sources, self.model.settings.batch_size):
            on_device = self.on_device(batch)
            search = self.translator.beam if beam else self.translator.greedy
            with self.precision:
                found = search(on_device.source, on_device.source_lens, **ends, **beam)
            arrays = [*map(self.runtime.to_numpy, found)]
            tokens, lengths, weights = (array[:, 0] if beam else array for array in (*arrays[:2], arrays[-1]))
            for row, (length, source_len) in enumerate(zip(lengths.tolist(), batch.source_lens.tolist(), strict=True)):
                if source_len:  # the others fill the batch
                    yield tokens[row, :length].tolist(), weights[row, : min(length + 1, most), :source_len]

    def words(self, ids: Sequence[int]) -> list[str]:
        """The tokens of a translation."""
        return self.model.target.words(ids)


def batches(arrays: Batch, batch_size: int) -> Iterator[Batch]:
    """Batches of equal size, in order, without columns of padding alone."""
    for start in range(0, len(arrays.source), batch_size):
        rows = np.arange(start, min(start + batch_size, len(arrays.source)))
        yield corpus.trim(corpus.rows_of(arrays, rows, batch_size), arrays.source.shape[1])
