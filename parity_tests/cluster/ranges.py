"""Ranges of a campaign's numbers: a Dask worker draws their cases, runs and compares them, and returns its counts.

The reference of drawn cases takes longer than their transport, so it is computed where the cases are run. What a range
returns depends on the seed, the range, and what its column computes, and not on the worker or on what it ran before.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from hypothesis.errors import HypothesisDeprecationWarning

from backends.archives import ArchiveError, pack_arrays, unpack_arrays
from backends.schema import SchemaError, build
from parity_tests.cases.draw import FAMILY, draw
from parity_tests.cluster.pieces import Failure, Unable
from parity_tests.cluster.worker import Order, serving
from parity_tests.format.drawn import parse_drawn
from parity_tests.fuzz.campaign import Campaign, Finding, Kind
from parity_tests.judge.verdict import Explanation, Verdict
from parity_tests.workers.process import WorkerFault

RANGE = 8 * FAMILY
"""The numbers in a range: whole families, whose cases share their shapes, and so their compiled programs."""


@dataclass(frozen=True)
class Found:
    """A finding as plain data: the case is its line."""

    number: int
    line: str
    verdict: Verdict
    explanation: Explanation | None = None

    @property
    def kind(self) -> Kind:
        """The kind of the failure in which this was the first case."""
        operator, method = parse_drawn(self.line).operator, parse_drawn(self.line).method
        return self.verdict.backend, operator, method, self.verdict.status

    def as_finding(self, version: str) -> Finding:
        """The finding, in the column of that version."""
        return Finding(self.number, parse_drawn(self.line), replace(self.verdict, version=version), self.explanation)


@dataclass(frozen=True)
class Counts:
    """The counts of a range of one column, as plain data: see `fuzz.campaign.Campaign`."""

    first: int
    count: int
    left_out: int = 0
    cases: dict[str, int] = field(default_factory=dict)
    worst: dict[str, float] = field(default_factory=dict)
    missing: dict[str, int] = field(default_factory=dict)
    repeated: list[tuple[Kind, int]] = field(default_factory=list)
    findings: list[Found] = field(default_factory=list)

    @classmethod
    def of(cls, campaign: Campaign) -> Counts:
        """The counts of a campaign on one backend."""
        return cls(
            campaign.first,
            campaign.done,
            campaign.left_out,
            {operator: count for (_, operator), count in campaign.cases.items()},
            {operator: share for (_, operator), share in campaign.worst.items()},
            dict(campaign.missing),
            list(campaign.repeated.items()),
            [Found(one.number, repr(one.drawn), one.verdict, one.explanation) for one in campaign.findings.values()],
        )

    def as_json(self) -> dict[str, Any]:
        """The counts as an object."""
        found = [{**asdict(one), "verdict": one.verdict.as_json()} for one in self.findings]
        return {**asdict(self), "findings": found}

    def add_to(self, campaign: Campaign, name: str, version: str) -> list[Finding]:
        """Add the counts to a campaign over ranges and columns, and return the findings of new kinds."""
        campaign.left_out += self.left_out
        campaign.missing += Counter(self.missing)
        campaign.cases += Counter({(name, operator): count for operator, count in self.cases.items()})
        for operator, share in self.worst.items():
            campaign.worst[name, operator] = max(campaign.worst.get((name, operator), 0.0), share)
        for (_, *kind), count in self.repeated:
            campaign.repeated[(name, *kind)] += count  # type: ignore[index]
        new = {(name, *one.kind[1:]): one.as_finding(version) for one in self.findings}
        new = {kind: finding for kind, finding in new.items() if kind not in campaign.findings}
        campaign.findings.update(new)
        return list(new.values())


def count_range(
    order: Order, first: int, count: int, seed: int, operators: Sequence[str], dtypes: Sequence[str], kinds: Any
) -> bytes:
    """Run the cases of a range on an order's backend: the counts, packed with a digest, or why it cannot start.

    If the session ends meanwhile, there are no counts: a range is done as a whole, or not at all.
    """
    with serving(order) as server:
        server.deadly.clear()  # of an earlier range: which cases are run must not depend on it
        try:
            server.hello()
            campaign = Campaign([server], seed, first, operators=operators, dtypes=dtypes, familiar=kinds)
            with warnings.catch_warnings():
                # Dask's own threads draw random numbers meanwhile, which hypothesis takes for those of a strategy.
                warnings.simplefilter("ignore", HypothesisDeprecationWarning)
                for _ in campaign.run(examples=count):
                    pass
            if server.stopped():
                return pack_arrays({}, {})
        except WorkerFault as fault:
            return pack_arrays({}, {"unable": f"{fault}\n{fault.trace}".strip()})
    return pack_arrays({}, {"counts": Counts.of(campaign).as_json()})


@dataclass(frozen=True)
class RangePiece:
    """A range of numbers for a column, which becomes counts; kinds is what is known already, and grows meanwhile."""

    order: Order
    first: int
    count: int
    seed: int
    operators: Sequence[str]
    dtypes: Sequence[str]
    kinds: Collection[Kind]

    @property
    def call(self) -> tuple[Any, tuple[Any, ...]]:
        """The function and its arguments."""
        where = self.order, self.first, self.count, self.seed
        return count_range, (*where, list(self.operators), list(self.dtypes), set(self.kinds))

    def read(self, returned: Any, sender: str) -> Counts:
        """The counts."""
        header = unpack_arrays(returned)[1]
        if "unable" in header:
            raise Unable(header["unable"])
        counts = counts_in(header.get("counts"), sender)
        if (counts.first, counts.count) != (self.first, self.count):
            raise ArchiveError(f"{sender}: the counts are of another range than was sent")
        return counts

    def parts(self) -> list[RangePiece]:
        """A range for each number."""
        numbers = range(self.first, self.first + self.count) if self.count > 1 else ()
        return [replace(self, first=number, count=1) for number in numbers]

    def with_failure(self, failure: Failure) -> Counts:
        """The counts of a number whose case ends Dask workers: a finding."""
        drawn = draw(self.seed, self.first, self.operators, self.dtypes)
        job = self.order.job
        where = drawn.operator, f"{drawn.operator}-{drawn.name}", job.backend, "reference", job.device, drawn.dtype
        verdict = Verdict(*where, "*", failure.status, reason=failure.message)  # type: ignore[arg-type]
        found = Found(self.first, repr(drawn), verdict)
        return Counts(
            self.first,
            self.count,
            cases={drawn.operator: 1},
            repeated=[(found.kind, 1)],
            findings=[found],
        )


def counts_in(content: Any, source: str) -> Counts:
    """Read counts from plain data.

    Raises: ArchiveError if they are none.
    """
    try:
        counts: Counts = build(Counts, content)
        for found in counts.findings:
            parse_drawn(found.line)
    except (SchemaError, ValueError) as error:
        raise ArchiveError(f"{source}: invalid counts of a range: {error}") from error
    return counts
