"""The end of a worker: nothing that it started outlives it, whatever that did to get away.

A worker forks as it starts. The child goes on as the worker; the parent keeps it: once the child has ended, or the
judge is gone, it kills every process that descends from it. On Linux, a process whose parent has ended becomes a child
of the nearest ancestor that is a subreaper, which the keeper is: a session or group of its own does not help a process.
Elsewhere the judge kills the worker's group.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
from contextlib import suppress
from pathlib import Path

LIFELINE = "ATTENTION_PARITY_LIFELINE"
"""The variable that names the descriptor of a pipe whose other end the judge holds, and never writes to."""

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36


def keep() -> None:
    """Go on in a child, and keep it from this process; without a lifeline, as when started by hand, do nothing."""
    lifeline = int(os.environ.pop(LIFELINE, -1))
    if lifeline < 0:
        return
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    keeper = os.getpid()
    child = os.fork()
    if child == 0:
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)  # should the keeper be killed itself
        os.close(lifeline)
        if os.getppid() != keeper:
            os._exit(1)
        return
    nothing = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):  # the streams end with the worker
        os.dup2(nothing, descriptor)
    threading.Thread(target=end_with_judge, args=(lifeline, child), daemon=True).start()
    status = os.waitpid(child, 0)[1]
    end_children()
    code = os.waitstatus_to_exitcode(status)
    if code < 0:  # ended by a signal, and so is this process
        with suppress(OSError):  # SIGKILL has no handler
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)


def prctl(option: int, value: int) -> None:
    """Set an attribute of this process, on Linux."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def end_with_judge(lifeline: int, child: int) -> None:
    """Wait until the judge is gone, whose end of the pipe closes with it, and kill the worker."""
    os.read(lifeline, 1)
    with suppress(ProcessLookupError):
        os.kill(child, signal.SIGKILL)


def end_children() -> None:
    """Kill all processes that descend from this one: whose parent has ended is a child of this one by then."""
    children = Path(f"/proc/self/task/{os.getpid()}/children")
    with suppress(ChildProcessError, FileNotFoundError):  # there are no more, or this is not Linux
        while True:
            for child in children.read_text().split():
                with suppress(ProcessLookupError):
                    os.kill(int(child), signal.SIGKILL)
            os.wait()
