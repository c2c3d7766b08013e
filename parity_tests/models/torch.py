"""PyTorch models and functions as sides."""

from __future__ import annotations

import contextlib
import copy
import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import nn

from backends.torch.arrays import to_numpy
from parity_tests.models.calls import Answer, Arrays, Recorder, RunOptions, flatten, leaves
from parity_tests.models.sides import Side, SideError, arguments_of


def open_model(model: nn.Module | Callable[..., Any]) -> Side:
    """The side of a module or function."""
    return TorchSide(model if isinstance(model, nn.Module) else Function(model), model)


class Function(nn.Module):
    """A function as a module without parameters."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.forward = function


class TorchSide(Side):
    """A module, copied; a compiled one is run as it is, and recorded as the module that was compiled."""

    framework = "torch"

    def __init__(self, model: nn.Module, given: Any) -> None:
        super().__init__()
        self.model = copy.deepcopy(model) if _is_copied(model) else model
        plain = self.plain
        parameters = dict(plain.named_parameters())
        first = {id(parameter): name for name, parameter in parameters.items()}
        every = plain.named_parameters(remove_duplicate=False)
        self.tied = {name: first[id(one)] for name, one in every if first[id(one)] != name}
        buffers = dict(plain.named_buffers())
        self.parameters, self.state = tuple(parameters), tuple(buffers)
        self.arrays = {name: _read(tensor) for name, tensor in {**parameters, **buffers}.items()}
        floating = [one.dtype for one in parameters.values() if one.is_floating_point()]
        self.dtype = str(floating[0] if floating else torch.get_default_dtype()).removeprefix("torch.")
        self.dtypes = tuple(dict.fromkeys(("float64", "float32", "bfloat16", self.dtype)))
        self.device = next((one.device for one in parameters.values()), torch.device("cpu"))
        self.given = given

    @property
    def plain(self) -> nn.Module:
        """The module itself, or the one that was compiled."""
        compiled: nn.Module = getattr(self.model, "_orig_mod", self.model)
        return compiled

    @functools.cache  # noqa: B019  # a side lives as long as its copies
    def _copy(self, dtype: str, plain: bool) -> nn.Module:
        model = self.plain if plain else self.model
        made = copy.deepcopy(model) if _is_copied(model) else model
        without_dropout(made)
        return made.to(getattr(torch, dtype)) if _is_copied(made) else made

    def answer(self, inputs: Mapping[str, np.ndarray], options: RunOptions) -> Answer:
        """The answer to these inputs, as `Side.run` describes it."""
        dtype, cotangents, training, recorder = options
        model = self._copy(dtype, recorder is not None)
        plain = getattr(model, "_orig_mod", model)
        model.train(training)
        tensors = {**dict(plain.named_parameters()), **dict(plain.named_buffers())}
        with torch.no_grad():
            for name, tensor in tensors.items():
                tensor.copy_(_tensor(self.arrays[name], tensor.dtype, self.device))
        given = {name: _tensor(array, getattr(torch, dtype), self.device) for name, array in inputs.items()}
        before = {name: tensor.clone() for name, tensor in given.items()}
        floating = {name: tensor for name, tensor in given.items() if tensor.is_floating_point() and cotangents}
        for tensor in floating.values():
            tensor.requires_grad_()
        # A leaf that needs a gradient cannot be changed in place: a view of it can, and the change is seen.
        passed = {name: tensor.view_as(tensor) if name in floating else tensor for name, tensor in given.items()}
        positional, keywords = arguments_of(plain.forward, passed, self.label or type(plain).__name__)
        with contextlib.ExitStack() as stack:
            stack.enter_context(contextlib.nullcontext() if cotangents else torch.no_grad())
            if recorder is not None:
                stack.enter_context(recording(plain, recorder))
            result = model(*positional, **keywords)
        found = dict(leaves(result, torch.is_tensor))
        outputs, unread = flatten(result, torch.is_tensor, to_numpy)
        gradients: Arrays = {}
        if cotangents:
            named = {f"input.{name}": tensor for name, tensor in floating.items()}
            named |= {
                f"parameter.{name}": tensors[name] for name in self.parameters if tensors[name].is_floating_point()
            }
            gradients = _gradients(found, cotangents, named)
        changed = tuple(name for name, tensor in given.items() if not _same(tensor, before[name]))
        state = {name: _read(tensors[name]) for name in self.state} if training else {}
        return Answer(outputs, gradients, state, tuple(unread), changed)


def _gradients(
    outputs: Mapping[str, Any], cotangents: Mapping[str, np.ndarray], sources: Mapping[str, torch.Tensor]
) -> Arrays:
    """The gradients of the sources by name; zeros where no output depends on one."""
    chosen = [
        name for name, one in outputs.items() if name in cotangents and torch.is_tensor(one) and one.requires_grad
    ]
    needed = {name: source for name, source in sources.items() if source.requires_grad}
    if not chosen or not needed:
        return {name: _read(torch.zeros_like(source)) for name, source in needed.items()}
    # The gradient of a sum: with cotangents of its own, autograd imports the compiler of symbolic shapes first.
    products = (outputs[name] * _tensor(cotangents[name], outputs[name].dtype, outputs[name].device) for name in chosen)
    computed = torch.autograd.grad(
        torch.stack([product.sum() for product in products]).sum(),
        list(needed.values()),
        allow_unused=True,
        materialize_grads=True,
    )
    return {name: _read(gradient) for name, gradient in zip(needed, computed, strict=True)}


def without_dropout(model: nn.Module) -> None:
    """Set every probability of dropout to 0: those of modules, and attributes named so."""
    for module in model.modules():
        if isinstance(module, nn.modules.dropout._DropoutNd):
            module.p = 0.0
        for name, value in vars(module).items():
            if "drop" in name and isinstance(value, float):
                setattr(module, name, 0.0)


@contextlib.contextmanager
def recording(model: nn.Module, recorder: Recorder) -> Iterator[None]:
    """Record the calls of all sublayers, by hooks, and the gradients of their outputs."""
    handles: list[Any] = []
    running: dict[int, list[int]] = {}
    called: set[str] = set()

    def begin(path: str, module: nn.Module, positional: Any, keywords: Any) -> None:
        called.add(path)
        arrays, _ = flatten([*positional, *keywords.values()], torch.is_tensor, to_numpy)
        names = dict(zip(arrays, [*map(str, range(len(positional))), *keywords], strict=False))
        parameters = [f"{path}.{name}" if path else name for name, _ in module.named_parameters(recurse=False)]
        settings = {name: value for name, value in vars(module).items() if _is_setting(name, value)}
        named = {names.get(name, name): array for name, array in arrays.items()}
        running.setdefault(id(module), []).append(
            recorder.enter(path, type(module).__name__, named, parameters, settings)
        )

    def end(module: nn.Module, positional: Any, keywords: Any, outputs: Any) -> None:
        index = running[id(module)].pop()
        recorder.leave(index, flatten(outputs, torch.is_tensor, to_numpy)[0])
        for name, tensor in leaves(outputs, torch.is_tensor):
            if torch.is_tensor(tensor) and tensor.requires_grad:
                tensor.register_hook(lambda gradient, name=name: recorder.gradient(index, name, to_numpy(gradient)))

    for path, module in model.named_modules():
        if isinstance(module, torch.jit.ScriptModule):
            recorder.unseen[f"{path or 'the model'} (a compiled script)"] = None
            continue
        handles.append(module.register_forward_pre_hook(functools.partial(begin, path), with_kwargs=True))
        handles.append(module.register_forward_hook(end, with_kwargs=True))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
    for path, module in model.named_modules():
        if path not in called and any(True for _ in module.parameters(recurse=False)):
            recorder.unseen[f"{path} (not called: its parameters are read by the layer around it)"] = None


def _is_setting(name: str, value: Any) -> bool:
    return not name.startswith("_") and name != "training" and isinstance(value, (bool, int, float, str))


def _is_copied(model: nn.Module) -> bool:
    """Whether a copy has arrays of its own: a function has none, and its globals are not copied."""
    return not isinstance(model, Function)


def _tensor(array: np.ndarray, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    tensor = torch.from_numpy(np.array(array if array.dtype.name != "bfloat16" else array.astype(np.float32)))
    return tensor.to(device, dtype if tensor.is_floating_point() and dtype.is_floating_point else tensor.dtype)


def _read(tensor: torch.Tensor) -> np.ndarray:
    """The values of a tensor, floating ones in float64."""
    wide = tensor.detach().to("cpu", torch.float64 if tensor.is_floating_point() else tensor.dtype)
    return wide.numpy().copy()


def _same(one: torch.Tensor, other: torch.Tensor) -> bool:
    return torch.equal(torch.nan_to_num(one.detach()), torch.nan_to_num(other))


__all__ = ["TorchSide", "open_model", "recording", "SideError"]
