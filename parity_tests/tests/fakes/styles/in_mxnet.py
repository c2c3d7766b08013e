"""Right implementations in MXNet, as people write them: each class is one style, with the cases it is asked."""

from mxnet import np, npx
from mxnet.gluon import HybridBlock

from backends.mxnet import runtime  # noqa: F401


class Additive(HybridBlock):
    def forward(self, queries, keys, w_v):
        return np.dot(np.tanh(np.expand_dims(queries, -2) + np.expand_dims(keys, -3)), w_v)


class Blocks:
    """A block, called by position, and operators of its own."""

    cases = "additive_score-[phb]*", "dot_score-[ph]*"
    block = Additive()

    def additive_score(queries, keys, w_v):
        return Blocks.block(queries, keys, w_v)

    def dot_score(queries, keys):
        return npx.batch_dot(queries, keys, transpose_b=True)
