"""The formulas in NumPy: the outputs that every backend has to match.

The reference is float64 throughout, and differentiable by complex step.

Arrays are promoted to float64, or kept complex while `attention_core.differentiation` perturbs them. Every floating
argument and parameter may then carry one more leading axis, the same for all of them: one pass computes many
perturbations. Formulas therefore compare by the real part, and use neither abs nor norm.

No random numbers are drawn: whatever the option dropout says, what is dropped is what the dropout masks say.
"""

from attention_core.operators import exports
from attention_core.reference.attention import *
from attention_core.reference.compressed import *
from attention_core.reference.decoders import *
from attention_core.reference.encoders import *
from attention_core.reference.feed_forward import *
from attention_core.reference.hard import *
from attention_core.reference.images import *
from attention_core.reference.linear import *
from attention_core.reference.local import *
from attention_core.reference.masking import *
from attention_core.reference.memory import *
from attention_core.reference.multi_head import *
from attention_core.reference.normalization import *
from attention_core.reference.parameters import *
from attention_core.reference.pooling import *
from attention_core.reference.positions import *
from attention_core.reference.recurrent import *
from attention_core.reference.regression import *
from attention_core.reference.scoring import *
from attention_core.reference.segments import *
from attention_core.reference.training import *
from attention_core.reference.transformer import *
from attention_core.reference.transformer_layers import *
from attention_core.reference.translation import *

__all__ = exports(__name__)
