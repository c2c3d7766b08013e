"""What layers in PyTorch share: the check at the door, drawn parameters and drawn dropout."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, Protocol, TypeVar

import torch
from torch import nn
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map, tree_unflatten

from attention_core.errors import check_options, check_tokens
from attention_core.specification import Layer
from backends.torch.arrays import autocast_dtype, check

Answer = TypeVar("Answer")
State = TypeVar("State")

AUTOCAST = ("float32", "float16", "bfloat16")
"""The floating types that autocast casts."""


class Specified(nn.Module):
    """What all layers share: options that are checked, and the check of a call.

    A public method checks its arguments, once, and calls methods that begin with an underscore, which check nothing.
    """

    specification: Layer

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.sizes = check_options(self.specification, **options)

    def _check(self, method: str, **arguments: Any) -> None:
        """Refuse arguments that do not fit the layer or each other."""
        operator = self.specification.method(method)
        operator = operator.time_major if self.sizes.get("time_major") else operator
        check(operator, self.sizes, dtype_of(self), castable(arguments.values()), **arguments)

    # particular to PyTorch

    __call__: TypedCall

    def reset_parameters(self) -> None:
        """Draw all parameters anew, those of inner layers included, as the constructor draws them."""
        fans = self.specification.fans(self.sizes)
        for name, parameter in self.named_parameters(recurse=False):
            redraw(parameter, fans[name])
        reset_children(self)


def drawn(
    shape: tuple[int, ...], fan_in: int, dtype: torch.dtype | None, device: torch.device | str | None
) -> nn.Parameter:
    """A parameter with values from PyTorch's own generator, uniform in ±1/√fan_in."""
    parameter = nn.Parameter(torch.empty(shape, dtype=dtype, device=device))
    redraw(parameter, fan_in)
    return parameter


def dtype_of(layer: nn.Module) -> torch.dtype | None:
    """The floating type that a layer has fixed: that of its parameters, or None where it has none."""
    return next((parameter.dtype for parameter in layer.parameters()), None)


def drawn_mask(dropout: nn.Dropout, like: torch.Tensor, *, shape: Sequence[int] | None = None) -> torch.Tensor | None:
    """Draw a dropout mask, in the shape of an array unless another is given; None where nothing is dropped."""
    if not dropout.training or dropout.p == 0.0:
        return None
    return dropout(torch.ones(like.shape if shape is None else shape, dtype=like.dtype, device=like.device))


def check_ids(title: str, name: str, tokens: torch.Tensor, vocab_size: int) -> None:
    """Refuse token ids outside the vocabulary, where there are values: not while compiling, on meta, or in a vmap."""
    if tokens.numel() and is_known(tokens):
        lowest, highest = tokens.aminmax()
        check_tokens(title, name, int(lowest), int(highest), vocab_size)


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
        """Give `forward`."""
        return layer.forward


def has_values(tensor: torch.Tensor) -> bool:
    """Whether a tensor can be asked for its values: not on the meta device, nor where it is a fake one."""
    # A compiler's fake tensors stand for real ones: what depends on values must not be left out of its graph.
    return torch.compiler.is_compiling() or (type(tensor) is torch.Tensor and not tensor.is_meta)


def is_known(tensor: torch.Tensor) -> bool:
    """Whether a tensor has values that may decide what is computed: not while compiling, on meta, or in a vmap."""
    traced = torch.compiler.is_compiling() or torch._C._functorch.is_functorch_wrapped_tensor(tensor)
    return not traced and has_values(tensor)


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


def scanned(
    advance: Callable[[State, Any], tuple[State, Answer]], state: State, steps: dict[str, torch.Tensor]
) -> tuple[State, Answer]:
    """Run advance(state, step) from step to step, the first axis, as one node of a graph: last state, all answers."""
    leaves, form = tree_flatten(state)

    def copied(array: torch.Tensor) -> torch.Tensor:
        return array.clone(memory_format=torch.contiguous_format)

    # A scan takes no named tuples, no integers where autograd looks on, and no array in two places.
    def carried(state: State) -> list[torch.Tensor]:
        return [copied(leaf if leaf.is_floating_point() else leaf.float()) for leaf in tree_leaves(state)]

    def restored(carry: list[torch.Tensor]) -> State:
        given = zip(carry, leaves, strict=True)
        return tree_unflatten([leaf if of.is_floating_point() else leaf.to(of.dtype) for leaf, of in given], form)

    def turn(carry: list[torch.Tensor], step: dict[str, torch.Tensor]) -> tuple[list[torch.Tensor], Answer]:
        after, answer = advance(restored(carry), step)
        return carried(after), tree_map(copied, answer)

    last, answers = torch._higher_order_ops.scan(turn, carried(state), steps)
    return restored(last), answers


def castable(arguments: Iterable[Any]) -> Collection[str]:
    """The floating types that autocast casts to its own, if it is on for the device of the arguments."""
    fields = (field for one in arguments for field in (one if isinstance(one, tuple) else (one,)))  # of a memory, too
    first = next((field for field in fields if isinstance(field, torch.Tensor)), None)
    return () if first is None or autocast_dtype(first) is None else AUTOCAST


def redraw(parameter: nn.Parameter, fan_in: int) -> None:
    """Fill a parameter with new values, uniform in ±1/√fan_in."""
    nn.init.uniform_(parameter, -(fan_in**-0.5), fan_in**-0.5)


def reset_children(module: nn.Module) -> None:
    """Call `reset_parameters` of all modules below that have one."""
    for child in module.children():
        if hasattr(child, "reset_parameters"):
            child.reset_parameters()
        else:
            reset_children(child)


class Matrix(nn.Linear):
    """A Linear whose weight a layer reads itself; `quantize_dynamic`, which goes by the type, leaves it as it is."""


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
