"""What can go wrong in a worker: at its start, in a call, in what the call answers, in the frame that carries it."""

import fcntl
import os
import resource
import signal
import sys
import termios
import time
from pathlib import Path

import numpy as np

FOREVER = 3600


# ---------------------------------------------------------------------------------------------------- at the start


def fail_to_import():
    raise ImportError("this backend was told not to start")


def hang():
    time.sleep(FOREVER)


def begin_with_the_end():
    wrong_frame(lambda stream, arrays, header: frame(stream, {}, {"kind": "end"}))


START = {
    "import": fail_to_import,
    "hang": hang,
    "no-hello": begin_with_the_end,
}


# --------------------------------------------------------------------------------------------------------- in a call


def die_by(number):
    return lambda arguments: os.kill(os.getpid(), number)


def end_with(code):
    return lambda arguments: os._exit(code)


def raise_an(error):
    def call(arguments):
        raise error

    return call


def recurse(arguments):
    recurse(arguments)


def compute_forever(arguments):
    """Never let another thread of Python, or a handler of a signal, come to its turn."""
    sum(iter(int, 1))


def exhaust_memory(arguments):
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + 2**26, resource.RLIM_INFINITY))
    np.ones(2**32)


def print_rubbish(arguments):
    print("rubbish on standard output", flush=True)
    os.write(1, b"rubbish on file descriptor 1\n")
    os.write(2, b"\xff\x00 rubbish on file descriptor 2\n")


def print_without_end(arguments):
    for _ in range(64):
        os.write(2, b"x" * 2**20)
    os.write(2, b"\nthe last words")
    os._exit(3)


def die_and_leave_a_child(arguments):
    if os.fork() == 0:
        time.sleep(FOREVER)
    os.kill(os.getpid(), signal.SIGSEGV)


def change_an_argument(arguments):
    arguments["scores"].flat[0] += 1.0


def hang_in_a_session(arguments):
    """A daemon, as people write one: no process group reaches it, and its parent has ended."""
    if os.fork() == 0:
        os.setsid()
        if os.fork():
            os._exit(0)
        hang()
    compute_forever(arguments)


def hang_with_a_child(arguments):
    """Once there is a child, the judge has read every answer that was given before."""
    caller = sys._getframe()
    while caller.f_code.co_name != "main":
        caller = caller.f_back
    while any(fcntl.ioctl(caller.f_locals["stream"], termios.FIONREAD, bytes(4))):
        time.sleep(0.01)
    os.fork()
    compute_forever(arguments)


# --------------------------------------------------------------------------------------------------------- in a frame


def wrong_frame(write):
    """Have the next frame written by write(stream, arrays, header)."""
    worker = sys.modules["__main__"]
    right = worker.send

    def send(stream, arrays, header):
        worker.send = right
        write(stream, arrays, header)
        stream.flush()

    worker.send = send


def frame(stream, arrays, header, change=lambda data: data):
    data = sys.modules["__main__"].pack_arrays(arrays, header)
    stream.write(change(len(data).to_bytes(8, "big") + data))


def rubbish(stream, arrays, header):
    stream.write(b"\xff" * 64)


def damaged(stream, arrays, header):
    frame(stream, arrays, header, lambda data: data[:-1] + bytes([data[-1] ^ 1]))


def giant(stream, arrays, header):
    stream.write((2**40).to_bytes(8, "big") + b"and little more")


def of_another_cell(stream, arrays, header):
    frame(stream, arrays, {**header, "key": "dot_score-large/float64"})


def twice(stream, arrays, header):
    frame(stream, arrays, header)
    frame(stream, arrays, header)


def half(then):
    def write(stream, arrays, header):
        frame(stream, arrays, header, lambda data: data[: len(data) // 2])
        stream.flush()
        then()

    return write


def closed(stream, arrays, header):
    os.close(stream.fileno())
    hang()


def with_a_frame(write):
    return lambda arguments: wrong_frame(write)


CALL = {
    **{name: die_by(getattr(signal, name)) for name in ("SIGSEGV", "SIGKILL", "SIGABRT", "SIGBUS", "SIGTERM")},
    "SIGRTMIN+3": die_by(signal.SIGRTMIN + 3),
    "exit-0": end_with(0),
    "exit": end_with(3),
    "raise": raise_an(ValueError("this backend was told to raise")),
    "SystemExit": raise_an(SystemExit(0)),
    "KeyboardInterrupt": raise_an(KeyboardInterrupt()),
    "recursion": recurse,
    "memory": exhaust_memory,
    "hang": lambda arguments: hang(),
    "compute-forever": compute_forever,
    "hang-with-child": hang_with_a_child,
    "in-a-session": hang_in_a_session,
    "print": print_rubbish,
    "print-without-end": print_without_end,
    "leave-a-child": die_and_leave_a_child,
    "change-argument": change_an_argument,
    "rubbish": with_a_frame(rubbish),
    "damaged": with_a_frame(damaged),
    "giant": with_a_frame(giant),
    "other-cell": with_a_frame(of_another_cell),
    "twice": with_a_frame(twice),
    "half-and-end": with_a_frame(half(lambda: os._exit(3))),
    "half-and-hang": with_a_frame(half(hang)),
    "close": with_a_frame(closed),
}


# -------------------------------------------------------------------------------------------------------- in an answer


def first(change):
    """Put something else in the place of the first output."""
    return lambda outputs, of_inputs, of_parameters: ((change(outputs[0]), *outputs[1:]), of_inputs, of_parameters)


def with_nan(array):
    array = array.copy()
    array.flat[0] = np.nan
    return array


ANSWER = {
    "wrong-shape": first(lambda array: array[..., :-1]),
    "wrong-dtype": first(lambda array: array.astype(np.float32)),
    "integers": first(lambda array: array.astype(np.int64)),
    "nan": first(with_nan),
    "no-array": first(lambda array: "an array, honestly"),
    "nothing": first(lambda array: None),
    "no-outputs": lambda outputs, of_inputs, of_parameters: ((), of_inputs, of_parameters),
    "too-many-outputs": lambda outputs, of_inputs, of_parameters: ((*outputs, outputs[0]), of_inputs, of_parameters),
    "no-gradients": lambda outputs, of_inputs, of_parameters: (outputs, {}, of_parameters),
    "too-many-gradients": lambda outputs, of_inputs, of_parameters: (
        outputs,
        {**of_inputs, "valid_lens": outputs[0]},
        of_parameters,
    ),
    "one-number": first(lambda array: array.sum()),
}
