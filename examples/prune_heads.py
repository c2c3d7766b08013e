"""Head importance, and the loss as unimportant heads are pruned: `python examples/prune_heads.py torch heads.png`.

A layer of four heads learns what a layer of two does, under weight decay. Importance by ablation and by first-order
Taylor expansion tell which of the four came to matter; head_mask then switches heads off, the least important first,
and as many at random. Without the two least important heads, `pruned` makes a smaller layer with the same loss, which
takes less time. Draws the weights of all heads if a file is named.
"""

from __future__ import annotations

import importlib
import sys
import time
from itertools import combinations
from types import ModuleType
from typing import Any

import numpy as np

import backends
from attention_core import draws

BATCH, LENGTH, FEATURES = 16, 6, 8
TEACHER, STUDENT = 2, 4
LONG, REPEATS = 256, 5
STEPS, RATE, MOMENTUM, DECAY = 300, 0.6, 0.9, 0.004


def weights(attention: ModuleType, layer: Any, name: str, scale: float) -> dict[str, np.ndarray]:
    """First values for every parameter of the layer."""
    arrays = attention.get_parameters(layer)
    return {key: draws.uniform(f"{name}/{key}", array.shape, scale) for key, array in arrays.items()}


def main(name: str, file: str | None) -> None:
    """Train, compute the importance of each head, and prune."""
    attention, runtime = backends.load(name), importlib.import_module(f"backends.{name}.runtime")
    runtime.configure()
    teacher, student = (
        runtime.build(
            attention.MultiHeadAttention, {"query_size": FEATURES, "num_heads": heads, "hidden_size": size}, "float64"
        )
        for heads, size in ((TEACHER, FEATURES), (STUDENT, 2 * FEATURES))
    )
    attention.set_parameters(teacher, weights(attention, teacher, "teacher", 0.8))
    inputs = runtime.from_numpy(draws.uniform("inputs", (BATCH, LENGTH, FEATURES), 2.0))
    target = teacher(inputs, inputs, inputs)[0]
    ones = [runtime.from_numpy(np.ones((size, 1))) for size in (FEATURES, LENGTH)]
    on = runtime.from_numpy(np.ones((BATCH, STUDENT)))
    mean = runtime.from_numpy(np.full(BATCH, 1.0 / BATCH))

    def losses(layer: Any, head_mask: Any) -> tuple[Any]:
        """The mean squared error of each example."""
        error = layer(inputs, inputs, inputs, head_mask=head_mask)[0] - target
        return (((error**2 @ ones[0])[..., 0] @ ones[1])[..., 0] / (LENGTH * FEATURES),)

    def student_losses(head_mask: Any) -> Any:
        return losses(student, head_mask)[0]

    trained = weights(attention, student, "student", 0.3)
    speed = {key: np.zeros_like(array) for key, array in trained.items()}
    for _ in range(STEPS):
        attention.set_parameters(student, trained)
        _, _, gradients = runtime.vjp(losses, {"head_mask": on}, {0: mean}, student)
        speed = {key: MOMENTUM * speed[key] - RATE * (gradients[key] + DECAY * trained[key]) for key in trained}
        trained = {key: array + speed[key] for key, array in trained.items()}
    attention.set_parameters(student, trained)

    by_ablation = runtime.to_numpy(attention.ablation_importance(student_losses, on))
    by_taylor = runtime.to_numpy(attention.taylor_importance(student_losses, on))
    print(f"{name}: head  by ablation  by Taylor")
    for head in range(STUDENT):
        print(f"{name}: {head:>4}  {by_ablation[head]:>11.4f}  {by_taylor[head]:>9.4f}")

    def loss_without(*heads: int) -> float:
        """The loss with some heads switched off."""
        mask = np.ones((BATCH, STUDENT))
        mask[:, list(heads)] = 0.0
        return float(runtime.to_numpy(student_losses(runtime.from_numpy(mask))).mean())

    order = np.argsort(by_ablation).tolist()
    print(f"{name}: {STUDENT} heads, loss {loss_without():.4f}")
    for count in range(1, STUDENT):
        at_random = np.mean([loss_without(*heads) for heads in combinations(range(STUDENT), count)])
        print(f"{name}: without head {order[count - 1]} as well, loss {loss_without(*order[:count]):.4f}", end="")
        print(f"; without {count} at random, {at_random:.4f} on average")
    if file is not None:
        from parity_tests.plots import grid

        steps = [str(step) for step in range(LENGTH)]
        drawn = runtime.to_numpy(student(inputs, inputs, inputs, per_head=True)[1])
        grid(drawn[None, 0], steps, steps).savefig(file, dpi=150)
        print(f"drawn in {file}")

    small = student.pruned(order[: STUDENT - TEACHER])
    sequences = runtime.from_numpy(draws.uniform("sequences", (BATCH, LONG, FEATURES), 2.0))

    def contexts(layer: Any, sequences: Any) -> tuple[Any]:
        return (layer(sequences, sequences, sequences, need_weights=False)[0],)

    def seconds(layer: Any) -> float:
        """The shortest time of a few calls on long sequences, after a first one, for which a framework may compile."""
        times = []
        for _ in range(REPEATS + 1):
            start = time.perf_counter()
            runtime.to_numpy(runtime.vjp(contexts, {"sequences": sequences}, {}, layer)[0][0])
            times.append(time.perf_counter() - start)
        return min(times[1:])

    loss = runtime.to_numpy(losses(small, None)[0]).mean()
    before, after = seconds(student), seconds(small)
    print(f"{name}: pruned to {TEACHER} heads, loss {loss:.4f}")
    print(f"{name}: a call with {LONG} steps takes {1e3 * after:.1f} ms instead of {1e3 * before:.1f} ms")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "torch", sys.argv[2] if len(sys.argv) > 2 else None)
