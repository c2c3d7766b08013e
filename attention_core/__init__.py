"""The specification of attention: operators and layers as data, error messages, and a NumPy reference.

`attention_core.operators` has every function and layer as data, `attention_core.errors` every error message,
`attention_core.reference` the formulas in NumPy. Nothing here imports a framework, starts a process or opens a file.
"""

from attention_core.errors import (
    AttentionError,
    DtypeError,
    MaskError,
    OptionError,
    ParameterError,
    ShapeError,
    TokenError,
)
from attention_core.operators import LAYERS, OPERATORS, SPECIFICATION_VERSION, find

__all__ = [
    "LAYERS",
    "OPERATORS",
    "SPECIFICATION_VERSION",
    "AttentionError",
    "DtypeError",
    "MaskError",
    "OptionError",
    "ParameterError",
    "ShapeError",
    "TokenError",
    "find",
]
