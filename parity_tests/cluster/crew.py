"""The workers of one column, and the pieces that they run: each is sent again if its worker is lost.

A piece is sent to one worker, which has no other one of this client at that time: so what a lost worker was running is
known without asking Dask, whatever the scheduler's own settings are.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from typing import Any, Generic, Protocol

from backends.archives import ArchiveError
from parity_tests.cluster.pieces import Failure, Piece, Result, Unable
from parity_tests.workers.process import PATIENCE_SECONDS, Job

LOST_SECONDS = 60.0
"""Seconds that a column without a worker waits for another one."""
GRACE_SECONDS = 10.0
"""Seconds that workers have to return what they answered, once the run was interrupted."""
MOST_TRIES = 2
"""How often a piece is sent if its worker is lost, or if it arrives damaged."""


class Workers(Protocol):
    """The workers of a session, which its columns share."""

    def addresses(self, job: Job) -> set[str]:
        """The workers of a column that are there now."""

    def claim(self, address: str, owner: object) -> bool:
        """Whether the owner has the worker to itself."""

    def release(self, owner: object) -> None:
        """Leave all workers of the owner to other columns."""

    def submit(self, address: str, call: Callable, arguments: tuple[Any, ...]) -> Any:
        """The future of a call on one worker."""


@dataclass
class Column:
    """The workers that fill one column: their addresses, and those where the framework does not start."""

    job: Job
    about: Mapping[str, Any] = field(default_factory=dict)
    addresses: set[str] = field(default_factory=set)
    unable: dict[str, str] = field(default_factory=dict)


@dataclass
class Sent(Generic[Result]):
    """A piece on its way, with the times it was lost, and the times it failed otherwise."""

    piece: Piece[Result]
    lost: int = 0
    failed: int = 0


class Crew(Generic[Result]):
    """The workers of a column and what they run, in the thread of that column."""

    def __init__(self, workers: Workers, column: Column, pieces: Iterator[Piece[Result]]) -> None:
        self.workers = workers
        self.column = column
        self.rest = (Sent(piece) for piece in pieces)
        self.again: deque[Sent[Result]] = deque()
        self.running: dict[str, tuple[Any, Sent[Result]]] = {}
        self.done: SimpleQueue[tuple[str, Any]] = SimpleQueue()
        self.seen = time.monotonic()
        """When the column had a worker last."""
        self._fill()

    @property
    def busy(self) -> bool:
        """Whether anything is running or waiting."""
        return bool(self.running or self.again)

    def _fill(self) -> None:
        """Take the next piece, unless some wait."""
        if not self.again:
            self.again.extend(sent for sent in [next(self.rest, None)] if sent is not None)

    def turn(self) -> Iterator[tuple[Piece[Result], Result | Failure]]:
        """Send what can be sent, and wait a moment for results."""
        alive = self.workers.addresses(self.column.job)
        if alive:
            self.seen = time.monotonic()
        for address in self.running.keys() - alive:
            future, sent = self.running.pop(address)
            future.cancel()
            yield from self._lose(address, sent)
        for address in sorted(alive - self.running.keys()):
            if not self.again or not self.workers.claim(address, self):
                continue
            self._send(address, self.again.popleft())
            self._fill()
        if not self.again:
            self._leave()
        with suppress(Empty):
            yield from self._end(*self.done.get(timeout=PATIENCE_SECONDS))
        if not self.running and time.monotonic() > self.seen + self._patience():
            yield from self._given_up()

    def _send(self, address: str, sent: Sent[Result]) -> None:
        future = self.workers.submit(address, *sent.piece.call)
        self.running[address] = future, sent
        future.add_done_callback(lambda ended: self.done.put((address, ended)))

    def _leave(self) -> None:
        """Leave idle workers to other columns."""
        if not self.running:
            self.workers.release(self)

    def _end(self, address: str, future: Any) -> Iterator[tuple[Piece[Result], Result | Failure]]:
        if address not in self.running or self.running[address][0] is not future:
            return  # of a worker that was lost meanwhile
        from distributed import KilledWorker

        _, sent = self.running.pop(address)
        try:
            if future.status != "finished":
                raise future.exception() if future.status == "error" else RuntimeError(f"it was {future.status}")
            yield sent.piece, sent.piece.read(future.result(), address)
        except Unable as error:
            self.column.unable[address] = str(error)
            self.again.append(sent)
        except ArchiveError as error:
            words = f"the answer was damaged on its way, twice, and so says nothing about values: {error}"
            yield from self._fail(sent, words)
        except KilledWorker:  # Dask has seen the loss before this client has
            yield from self._lose(address, sent)
        except Exception as error:
            yield from self._fail(sent, f"{address} cannot run this: {type(error).__name__}: {error}")
        self._fill()

    def _fail(self, sent: Sent[Result], words: str) -> Iterator[tuple[Piece[Result], Result | Failure]]:
        sent.failed += 1
        if sent.failed < MOST_TRIES:
            self.again.append(sent)
        else:
            yield sent.piece, Failure("error", words)

    def _lose(self, address: str, sent: Sent[Result]) -> Iterator[tuple[Piece[Result], Result | Failure]]:
        sent.lost += 1
        if sent.lost < MOST_TRIES:
            self.again.append(sent)
        elif parts := sent.piece.parts():
            self.again.extend(Sent(part) for part in parts)
        else:
            words = f"the Dask worker was lost {sent.lost} times while it ran this alone"
            yield sent.piece, Failure("crash", words, deadly=True)
        self._fill()

    def _patience(self) -> float:
        """Seconds to wait for a worker: none if the framework starts on no worker that is there."""
        return 0.0 if self.column.unable else LOST_SECONDS

    def _given_up(self) -> Iterator[tuple[Piece[Result], Result | Failure]]:
        unable = self.column.unable
        words = next(iter(unable.values()), f"not run: no worker of {self.column.job.name} is left")
        for sent in [*self.again, *self.rest]:
            yield sent.piece, Failure("crash", words)
        self.again.clear()

    def remains(self) -> Iterator[tuple[Piece[Result], Result | Failure]]:
        """What workers return once they are interrupted; the rest is cancelled."""
        deadline = time.monotonic() + GRACE_SECONDS
        while self.running and time.monotonic() < deadline:
            with suppress(Empty):
                address, future = self.done.get(timeout=PATIENCE_SECONDS)
                _, sent = self.running.pop(address, (None, None))
                if sent is not None and future.status == "finished":
                    with suppress(ArchiveError, Unable):
                        yield sent.piece, sent.piece.read(future.result(), address)

    def release(self) -> None:
        """Cancel what is still running, and leave the workers to other columns."""
        for future, _ in self.running.values():
            future.cancel()
        self.workers.release(self)
