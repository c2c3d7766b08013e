"""What compilers, exports, scans and hooks need of layers in PyTorch; no arithmetic."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, TypeVar

import torch
from torch import nn
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map, tree_unflatten

from backends.torch.arrays import autocast_dtype

Answer = TypeVar("Answer")
State = TypeVar("State")


def is_known(tensor: torch.Tensor) -> bool:
    """Whether a branch may depend on the tensor's values: not while compiling, on meta, or in a vmap."""
    traced = torch.compiler.is_compiling() or torch._C._functorch.is_functorch_wrapped_tensor(tensor)
    return not traced and has_values(tensor)


# ------------------------------------------------------------------------------------------------ particular to PyTorch


Forward = TypeVar("Forward", covariant=True)


class HasForward(Protocol[Forward]):
    """A module, by the type of its `forward`."""

    @property
    def forward(self) -> Forward:
        """What a call enters."""


class TypedCall:
    """The type of a call, for type checkers and editors: that of `forward`, where nn.Module says Callable[..., Any]."""

    def __get__(self, layer: HasForward[Forward], owner: type) -> Forward:
        """Return `forward`."""
        return layer.forward


def has_values(tensor: torch.Tensor) -> bool:
    """Whether a tensor can be asked for its values: not on the meta device, nor where it is a fake one."""
    # A compiler's fake tensors stand for real ones: what depends on values must not be left out of its graph.
    return torch.compiler.is_compiling() or (type(tensor) is torch.Tensor and not tensor.is_meta)


def takes_scan(layer: nn.Module, sequences: torch.Tensor) -> bool:
    """Whether a loop over steps, the second axis, becomes a scan: in a graph that serves every number of steps.

    For evaluation: in an export, and while compiling without gradients. A scan has no autocast, and reads no float that
    a graph leaves open, such as a dropout rate. Elsewhere PyTorch unrolls a loop, for a fixed number of steps.
    """
    if not is_open(sequences) or layer.training or autocast_dtype(sequences) is not None:
        return False
    return torch.compiler.is_exporting() or not torch.is_grad_enabled()


def leaves_graph(sequences: torch.Tensor) -> bool:
    """Whether a loop over steps, the second axis, runs between two graphs: their number is open, and graphs may end."""
    return is_open(sequences) and not is_only_graph()


def is_open(sequences: torch.Tensor) -> bool:
    """Whether a graph that is being made leaves the number of steps open, so that it serves every one."""
    if not torch.compiler.is_compiling():
        return False
    # By its full name, since importing it takes seconds, which a compiler alone has to spend.
    return not torch.fx.experimental.symbolic_shapes.has_static_value(sequences.shape[1])


def is_only_graph() -> bool:
    """Whether the graph that is being made has to be the only one, by fullgraph=True or export.

    Only such a graph has numbers that depend on data, unless config.capture_scalar_outputs is set; PyTorch's own
    compiler fails at a scan without them.
    """
    context = torch._guards.TracingContext.try_get()
    shapes = None if context is None or context.fake_mode is None else context.fake_mode.shape_env
    return shapes is None or shapes.settings.allow_scalar_outputs


# What torch.compiler.assume_constant_result does; like torch.compiler.disable, it imports the compiler, for seconds.
is_only_graph._dynamo_marked_constant = True  # type: ignore[attr-defined]


@torch._disable_dynamo
def outside_graph(function: Callable[..., Answer], *arguments: Any, **options: Any) -> Answer:
    """Call a function between two graphs, as PyTorch calls its own recurrent layers."""
    return function(*arguments, **options)


def scan(
    advance: Callable[[State, Any], tuple[State, Answer]], state: State, steps: dict[str, torch.Tensor]
) -> tuple[State, Answer]:
    """Run advance(state, step) from step to step, the first axis, as one node of a graph: last state, all answers."""
    leaves, form = tree_flatten(state)

    def copy(array: torch.Tensor) -> torch.Tensor:
        return array.clone(memory_format=torch.contiguous_format)

    # A scan takes no named tuples, no integers where autograd looks on, and no array in two places.
    def to_carry(state: State) -> list[torch.Tensor]:
        return [copy(leaf if leaf.is_floating_point() else leaf.float()) for leaf in tree_leaves(state)]

    def from_carry(carry: list[torch.Tensor]) -> State:
        given = zip(carry, leaves, strict=True)
        return tree_unflatten([leaf if of.is_floating_point() else leaf.to(of.dtype) for leaf, of in given], form)

    def turn(carry: list[torch.Tensor], step: dict[str, torch.Tensor]) -> tuple[list[torch.Tensor], Answer]:
        after, answer = advance(from_carry(carry), step)
        return to_carry(after), tree_map(copy, answer)

    last, answers = torch._higher_order_ops.scan(turn, to_carry(state), steps)
    return from_carry(last), answers


def has_hooks(layer: nn.Module) -> bool:
    """Whether hooks are registered for the layer's calls."""
    hooks = layer._forward_pre_hooks or layer._forward_hooks or layer._backward_pre_hooks or layer._backward_hooks
    return bool(hooks) or nn.modules.module._has_any_global_hook()


def as_module(method: Callable[..., Answer], *arguments: Any, **options: Any) -> Answer:
    """Call a method of an inner layer as PyTorch calls a module: with its hooks, by which FSDP gathers parameters."""
    layer: Any = method.__self__  # type: ignore[attr-defined]
    if not has_hooks(layer):
        return method(*arguments, **options)
    if torch.compiler.is_compiling():  # a compiler loses track of a `forward` that is set and deleted
        return outside_graph(as_module, method, *arguments, **options)
    layer.forward = method  # which hides that of the class
    try:
        answer: Answer = layer(*arguments, **options)
    finally:
        del layer.forward
    return answer
