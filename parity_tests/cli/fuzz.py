"""The command that fuzzes the backends."""

from __future__ import annotations

import contextlib
import os
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import click
from rich.text import Text

from backends.requirements import XLA_LEVEL
from parity_tests.cli import options
from parity_tests.cli.run import jobs_of
from parity_tests.cli.terminal import Refused, cluster, console, progress, require_hypothesis, signals
from parity_tests.cluster.client import missing_of
from parity_tests.cluster.worker import offers
from parity_tests.format.case import FULL
from parity_tests.format.drawn import NAMES as DRAWN
from parity_tests.reports.table import report_campaign, report_finding
from parity_tests.workers.process import Server, WorkerFault

if TYPE_CHECKING:  # fuzzing needs hypothesis
    from parity_tests.fuzz.campaign import Campaign, Finding


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
@options.scheduler
@options.output_file(
    "--output",
    "file",
    help="With --scheduler: append counts and findings to a file as they come, and go on with the campaign in it.",
)
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
    scheduler: str | None,
    file: Path | None,
) -> None:
    """Fuzz all backends; minimise each failure to one line.

    The same seed draws the same cases. With --scheduler, the workers of a Dask cluster take ranges of numbers, and
    compare their cases themselves. Exits with 0 if at least one case was tested and none failed.
    """
    require_hypothesis()
    from parity_tests.fuzz.campaign import Campaign

    if seconds is None and examples is None:
        raise click.UsageError("pass --seconds, --examples, or both")
    if scheduler is not None and pythons:
        raise click.UsageError("--scheduler cannot be combined with --python")
    if file is not None and scheduler is None:
        raise click.UsageError("--output requires --scheduler")
    os.environ.setdefault(XLA_LEVEL, "3")  # one compilation serves a whole family of cases
    if scheduler is not None:
        campaign = Campaign([], seed, first, operators=operators, dtypes=dtypes)
        fuzz_cluster(scheduler, names, device, campaign, file, seconds, examples)
    jobs = [job for job in jobs_of(names, pythons, device)[0] if job.device == device]
    try:
        with contextlib.ExitStack() as stack:
            report = stack.enter_context(progress())
            servers = [stack.enter_context(Server(job)) for job in jobs]
            for server in servers:
                report("fuzz", 0, 1, f"starting {server.job.name}")
                server.hello()
            campaign = Campaign(servers, seed, first, operators=operators, dtypes=dtypes)
            for finding in campaign.run(seconds, examples, report):
                report_finding(finding, again(campaign, finding), console)
    except WorkerFault as fault:
        raise click.ClickException(f"{fault}\n{fault.trace}") from fault
    report_campaign(campaign, console)
    sys.exit(1 if campaign.findings or not campaign.cases else 0)


def again(campaign: Campaign, finding: Finding, *given: str) -> str:
    """The command that repeats a finding, with these other options."""
    verdict = finding.verdict
    parts = ["attention-parity", "fuzz", *given, "--backend", verdict.backend, "--seed", str(campaign.seed)]
    if campaign.operators != list(DRAWN):
        parts += ["--operator", ",".join(campaign.operators)]
    if campaign.dtypes != [*FULL]:
        parts += ["--dtype", ",".join(campaign.dtypes)]
    if verdict.device != "cpu":
        parts += ["--device", verdict.device]
    return shlex.join([*parts, "--first", str(finding.number), "--examples", "1"])


def fuzz_cluster(
    scheduler: str,
    names: list[str] | None,
    device: str,
    campaign: Campaign,
    file: Path | None,
    seconds: float | None,
    examples: int | None,
) -> NoReturn:
    """Run a campaign on the workers of a scheduler, and exit."""
    from parity_tests.cluster.campaign import ClusterCampaign, Log, LogError

    with contextlib.ExitStack() as stack:
        caught, report = stack.enter_context(signals()), stack.enter_context(progress())
        made = stack.enter_context(cluster(scheduler, offers, names, [device], True, stopped=lambda: bool(caught)))
        for name, reason in missing_of(made, names or []).items():
            raise Refused(f"{name}: {reason}")
        try:
            log = stack.enter_context(Log(file, campaign))
        except LogError as error:
            raise Refused(str(error)) from error
        on_cluster = ClusterCampaign(made, campaign, log)
        for finding in on_cluster.run(seconds, examples, report):
            report_finding(finding, again(campaign, finding, "--scheduler", scheduler), console)
    report_campaign(campaign, console)
    for line in on_cluster.not_done:
        console.print(Text(f"not done    {line}", style="yellow"), soft_wrap=True)
    if caught:
        sys.exit(128 + caught[0])
    sys.exit(1 if campaign.findings or on_cluster.not_done or not campaign.cases else 0)
