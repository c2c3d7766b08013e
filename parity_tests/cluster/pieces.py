"""Pieces of work for one worker of a cluster, and what becomes of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeVar

from backends.archives import ArchiveError
from parity_tests.cluster import worker
from parity_tests.cluster.worker import Order
from parity_tests.workers.answers import Answer, AnswerStatus
from parity_tests.workers.recordings import Batch, Recording


class Unable(Exception):
    """The framework does not start on a worker that offered it."""


@dataclass(frozen=True)
class Failure:
    """Why a piece has no result, as the status and message of its cells, and whether it ended its workers itself."""

    status: AnswerStatus
    message: str
    deadly: bool = False


Result = TypeVar("Result", covariant=True)


class Piece(Protocol[Result]):
    """Work for one worker: a function that the worker imports, with arguments."""

    @property
    def call(self) -> tuple[Callable, tuple[Any, ...]]:
        """The function and its arguments."""

    def read(self, returned: Any, sender: str) -> Result:
        """What the function returned, checked.

        Raises: ArchiveError if it is damaged; Unable if the framework could not start.
        """

    def parts(self) -> Sequence[Piece[Result]]:
        """The smallest pieces that this one consists of; none if it is one of them."""


@dataclass(frozen=True)
class BatchPiece:
    """A batch of cells, which becomes a recording."""

    order: Order
    batch: Batch

    @property
    def call(self) -> tuple[Callable, tuple[Any, ...]]:
        """The function and its arguments."""
        return worker.answers, (self.order, self.batch.packed)

    def read(self, returned: Any, sender: str) -> Recording:
        """The recording; its inputs are those that were sent."""
        data, start_seconds, seconds = returned
        recording = Recording.unpack(data, sender)
        if recording.inputs != self.batch.digests or not recording.answers.keys() <= recording.inputs.keys():
            raise ArchiveError(f"{sender}: the recording is of other cells than were sent")
        if recording.answers and not recording.about:
            raise Unable(next(iter(recording.answers.values())).message)
        recording.start_seconds, recording.busy_seconds = start_seconds, seconds
        return recording

    def parts(self) -> list[BatchPiece]:
        """A batch for each cell."""
        cells = self.batch.cells if len(self.batch.cells) > 1 else []
        return [replace(self, batch=self.batch.only([cell])) for cell in cells]

    def with_failure(self, failure: Failure) -> Recording:
        """A recording in which each cell has the failure as its answer."""
        recording = Recording(self.order.job.backend, self.order.job.device, inputs=self.batch.digests)
        answer = Answer(failure.status, failure.message)
        return replace(recording, answers=dict.fromkeys(self.batch.digests, answer))
