"""The specification's signatures for third-party calls: what each call takes is data, and it accepts nothing else."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import MISSING, dataclass, fields
from inspect import Parameter, Signature
from typing import Any, TypeVar

Outputs = tuple[Any, ...]
Call = TypeVar("Call")


@dataclass(frozen=True)
class Attention:
    """The arguments of an attention layer: canonical arrays of the framework, and options.

    With raw, the mask goes to the framework's call as it is: `parity_tests.polarity` recognises what True means there.
    With causal, an argument of the call asks for causal masking; with steps, the call gets queries, keys and values one
    by one, and keeps the earlier ones in its cache. Only `parity_tests.behaviour` sets these three.
    """

    parameters: dict[str, Any]
    queries: Any
    keys: Any
    values: Any
    valid_lens: Any = None
    mask: Any = None
    scale: float | None = None
    softcap: float | None = None
    num_heads: int = 1
    num_key_heads: int | None = None
    query_size: int = 0
    hidden_size: int | None = None
    bias: bool = True
    per_head: bool = False
    raw: bool = False
    causal: bool = False
    steps: bool = False

    @property
    def factor(self) -> float:
        """The factor of the scores."""
        return float(self.queries.shape[-1] ** -0.5) if self.scale is None else self.scale

    @property
    def head_size(self) -> int:
        """The features of one head."""
        return int(self.parameters["W_q"].shape[0]) // self.num_heads

    @property
    def head_mask(self) -> Any:
        """The mask with an axis of heads."""
        return self.mask[:, None] if self.mask is not None and len(self.mask.shape) == 3 else self.mask


@dataclass(frozen=True)
class Recurrent:
    """The arguments of a recurrent layer, which reads inputs, or of an encoder, which reads tokens."""

    parameters: dict[str, Any]
    inputs: Any = None
    tokens: Any = None
    valid_lens: Any = None
    state: Any = None
    hidden_size: int = 0
    num_layers: int = 1
    bidirectional: bool = False

    @property
    def directions(self) -> int:
        """2 if the layer reads both ways."""
        return 2 if self.bidirectional else 1


@dataclass(frozen=True)
class Transformer:
    """The arguments of a layer of the Transformer; that of an encoder has no encoder_outputs."""

    parameters: dict[str, Any]
    inputs: Any
    encoder_outputs: Any = None
    valid_lens: Any = None
    num_heads: int = 1
    hidden_size: int = 0
    norm: str = "post"
    activation: str = "relu"
    bias: bool = True
    epsilon: float = 1e-5
    causal: bool = False


@dataclass(frozen=True)
class Stacks:
    """The arguments of a stack of Transformer layers, which reads tokens, or of two, which read source and inputs."""

    parameters: dict[str, Any]
    tokens: Any = None
    source: Any = None
    inputs: Any = None
    encoder_outputs: Any = None
    valid_lens: Any = None
    features: int = 0
    num_heads: int = 1
    hidden_size: int = 0
    num_layers: int = 1
    positions: str = "sinusoidal"
    norm: str = "post"
    last_norm: bool | None = None
    activation: str = "relu"
    bias: bool = True
    epsilon: float = 1e-5
    causal: bool = False
    per_head: bool = False


def takes(kind: type[Call], *names: str) -> Callable[[Callable[[Call], Outputs]], Callable[..., Outputs]]:
    """Decorate a function of one call, such as an `Attention`, to take those of its fields, and the required ones."""
    empty = {MISSING: Parameter.empty}
    signature = Signature(
        [
            Parameter(field.name, Parameter.POSITIONAL_OR_KEYWORD, default=empty.get(field.default, field.default))
            for field in fields(kind)  # type: ignore[arg-type]
            if field.default is MISSING or field.name in names
        ]
    )

    def decorate(answer: Callable[[Call], Outputs]) -> Callable[..., Outputs]:
        @functools.wraps(answer)
        def call(*arguments: Any, **keywords: Any) -> Outputs:
            return answer(kind(**signature.bind(*arguments, **keywords).arguments))

        call.__signature__ = signature  # type: ignore[attr-defined]
        return call

    return decorate
