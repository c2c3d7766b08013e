"""The command that fuzzes the backends."""

from __future__ import annotations

import contextlib
import os
import sys

import click

from backends.requirements import XLA_LEVEL
from parity_tests.cases.case import FULL
from parity_tests.cases.drawn import NAMES as DRAWN
from parity_tests.cli import options
from parity_tests.cli.run import jobs_of
from parity_tests.cli.terminal import console, progress, require_hypothesis
from parity_tests.reports.table import report_campaign, report_finding
from parity_tests.workers.process import Server, WorkerFault


@click.command(
    "fuzz",
    short_help="Fuzz the backends with randomly drawn cases.",
    epilog=options.examples(
        "fuzz --seconds 60", "fuzz --backend mxnet --operator masked_softmax --seed 7 --first 128 --examples 1"
    ),
)
@click.option("--seconds", type=options.SECONDS, help="Stop after this many seconds.")
@click.option("--examples", type=click.IntRange(min=1), help="Stop after this many cases.")
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Seed of the drawn cases.")
@click.option("--first", type=click.IntRange(min=0), default=0, show_default=True, help="Index of the first case.")
@options.backends
@click.option(
    "--operator",
    "operators",
    type=options.CommaList(DRAWN),
    metavar="NAMES",
    default=",".join(DRAWN),
    help="Only cases of these operators, with commas.",
)
@options.dtypes
@options.worker
def fuzz_backends(
    seconds: float | None,
    examples: int | None,
    seed: int,
    first: int,
    names: list[str] | None,
    operators: list[str],
    dtypes: list[str],
    device: str,
    pythons: dict[str, str],
) -> None:
    """Fuzz all backends; minimise each failure to one line.

    The same seed draws the same cases. Exits with 0 if at least one case was tested and none failed.
    """
    require_hypothesis()
    from parity_tests.fuzz.campaign import Campaign

    if seconds is None and examples is None:
        raise click.UsageError("pass --seconds, --examples, or both")
    os.environ.setdefault(XLA_LEVEL, "3")  # one compilation serves a whole family of cases
    jobs = [job for job in jobs_of(names, pythons, device)[0] if job.device == device]
    arguments = [f"--seed {seed}"]
    if operators != list(DRAWN):
        arguments.append(f"--operator {','.join(operators)}")
    if dtypes != [*FULL]:
        arguments.append(f"--dtype {','.join(dtypes)}")
    if device != "cpu":
        arguments.append(f"--device {device}")
    try:
        with contextlib.ExitStack() as stack:
            report = stack.enter_context(progress())
            servers = [stack.enter_context(Server(job)) for job in jobs]
            for server in servers:
                report("fuzz", 0, 1, f"starting {server.job.name}")
                server.hello()
            campaign = Campaign(servers, seed, first, operators=operators, dtypes=dtypes)
            for finding in campaign.run(seconds, examples, report):
                command = f"attention-parity fuzz --backend {finding.verdict.backend} {' '.join(arguments)}"
                report_finding(finding, f"{command} --first {finding.number} --examples 1", console)
    except WorkerFault as fault:
        raise click.ClickException(f"{fault}\n{fault.trace}") from fault
    report_campaign(campaign, console)
    sys.exit(1 if campaign.findings or not campaign.cases else 0)
