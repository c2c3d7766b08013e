"""The behaviour of the frameworks' own attention, in every version that a cluster has."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version

from parity_tests.behaviour.findings import Findings, answers_of, findings_of, is_installed, job_of
from parity_tests.cluster.client import Cluster
from parity_tests.cluster.worker import Offer, Offers, source
from parity_tests.third_party.attention import THIRD_PARTY, ThirdParty
from parity_tests.workers.process import Job, Progress, untold
from parity_tests.workers.recordings import Batch, Recording


def targets_of(module: str) -> list[ThirdParty]:
    """The calls in a module."""
    return [target for target in THIRD_PARTY if target.module == module]


def offers_of_modules(modules: Sequence[str]) -> Offers:
    """A column for each of the modules whose packages are installed here, with the versions of all of them."""
    made, reasons = list[Offer](), dict[str, str]()
    for module in modules:
        targets = targets_of(module)
        packages = dict.fromkeys(name for target in targets for name in target.packages)
        if not all(map(is_installed, targets)):
            reasons[module] = f"not all installed: {', '.join(packages)}"
            continue
        job = job_of(targets)
        versions = ", ".join(f"{name} {_version(name)}" for name in packages)
        made.append(Offer(replace(job, backend=f"{module}_{job.backend}", version=versions)))
    return Offers(source(), made, reasons)


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:  # a build under another name, as tensorflow-cpu
        return "of another name"


def ask_cluster(cluster: Cluster, progress: Progress = untold) -> list[dict[str, tuple[str, Findings]]]:
    """For each column, versions and findings of every call in its module, by id.

    Raises: RuntimeError if a framework cannot be started.
    """

    def one(job: Job) -> dict[str, tuple[str, Findings]]:
        module = job.module.partition(":")[0].rpartition(".")[2]
        targets, found = targets_of(module), dict[str, tuple[str, Findings]]()

        def answer(batch: Batch) -> Recording:
            return cluster.record(job, [batch])

        for done, recording in enumerate(answers_of(targets, answer), 1):
            found[targets[done - 1].id] = findings_of(targets[done - 1], recording)
            progress(job.name, done, len(targets), targets[done].id if done < len(targets) else "")
        return found

    with ThreadPoolExecutor(len(cluster.columns)) as pool:
        return list(pool.map(one, cluster.jobs))
