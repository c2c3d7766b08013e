"""What attention is: the specification as data, and a NumPy float64 reference of it.

`attention_core.operators` holds every function and layer as data, `attention_core.errors` the words of every refusal,
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
