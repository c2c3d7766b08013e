"""Process supervision: kill all descendants of a worker when it ends, including detached ones.

A worker forks at its start. The child continues as the worker; the parent is its keeper, which kills all descendants
once the child has ended or the judge is gone. On Linux, an orphaned process becomes a child of the nearest ancestor
that is a subreaper; the keeper is one, so a new session or process group does not evade it. On other systems, the judge
kills the worker's process group.
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
"""The variable with the descriptor of a pipe whose other end belongs to the judge, which never writes to it."""

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36


def keep() -> None:
    """Continue in a child and supervise it from this process; do nothing without a lifeline (started by hand)."""
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
    """Kill the worker when the judge is gone, which closes its end of the pipe."""
    os.read(lifeline, 1)
    with suppress(ProcessLookupError):
        os.kill(child, signal.SIGKILL)


def end_children() -> None:
    """Kill all descendants of this process; orphans have become its children by then."""
    children = Path(f"/proc/self/task/{os.getpid()}/children")
    with suppress(ChildProcessError, FileNotFoundError):  # there are no more, or this is not Linux
        while True:
            for child in children.read_text().split():
                with suppress(ProcessLookupError):
                    os.kill(int(child), signal.SIGKILL)
            os.wait()
