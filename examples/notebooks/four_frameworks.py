# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Attention in four frameworks
#
# The same layer in PyTorch, TensorFlow, JAX and MXNet: the same arguments, the same parameters, the same weights. Each
# cell reads as code of its framework. Needs all four: `pip install '.[all,notebooks]' -c constraints/parity.txt`.

# %%
import os

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"  # TensorFlow is silent about the GPU that there may not be

import jax.numpy as jnp
import numpy as np
import tensorflow as tf
import torch
from flax import nnx
from IPython.display import HTML

from attention_core.draws import uniform
from backends import jax as jax_attention
from backends import mxnet as mxnet_attention  # before mxnet, which today's NumPy does not suit without it
from backends import tf as tf_attention
from backends import torch as torch_attention
from parity_tests.plots import heatmap
from parity_tests.reports.heatmap import interactive_heatmap

# isort: split
import mxnet as mx

# %% [markdown]
# ## One layer, four times
#
# Inputs are drawn once, in NumPy, and so are the parameters: every framework starts from the same arrays, with the same
# names. The second sentence has four words, and its padding is hidden by `valid_lens`.

# %%
SENTENCE = ["the", "cat", "sat", "on", "the", "mat"]
SIZE, HEADS = 16, 4
states = uniform("states", (2, len(SENTENCE), SIZE), 3.0).astype(np.float32)
lens = np.array([6, 4], np.int32)

# %%
layer = torch_attention.MultiHeadAttention(SIZE, HEADS)
parameters = {name: uniform(name, array.shape, 0.5) for name, array in torch_attention.get_parameters(layer).items()}
parameters = {name: array.astype(np.float32) for name, array in parameters.items()}
{name: array.shape for name, array in parameters.items()}

# %%
torch_attention.set_parameters(layer, parameters)
inputs = torch.from_numpy(states)
context, weights = layer(inputs, inputs, inputs, valid_lens=torch.from_numpy(lens), per_head=True)
answers = {"torch": (context.detach().numpy(), weights.detach().numpy())}

# %%
layer = tf_attention.MultiHeadAttention(SIZE, HEADS)
tf_attention.set_parameters(layer, parameters)
inputs = tf.constant(states)
context, weights = layer(inputs, inputs, inputs, valid_lens=tf.constant(lens), per_head=True)
answers["tf"] = context.numpy(), weights.numpy()

# %%
layer = jax_attention.MultiHeadAttention(SIZE, HEADS, rngs=nnx.Rngs(0))
jax_attention.set_parameters(layer, parameters)
inputs = jnp.asarray(states)
context, weights = layer(inputs, inputs, inputs, valid_lens=jnp.asarray(lens), per_head=True)
answers["jax"] = np.asarray(context), np.asarray(weights)

# %%
layer = mxnet_attention.MultiHeadAttention(SIZE, HEADS)
mxnet_attention.set_parameters(layer, parameters)
inputs = mx.np.array(states)
context, weights = layer(inputs, inputs, inputs, valid_lens=mx.np.array(lens, dtype="int32"), per_head=True)
answers["mxnet"] = context.asnumpy(), weights.asnumpy()

# %% [markdown]
# ## They are equal, up to rounding
#
# The largest distance of each from PyTorch, as a share of the largest entry: a few eps of float32, which is 1.2e-07.

# %%
for name, (context, weights) in answers.items():
    distances = [
        np.abs(array - first).max() / np.abs(first).max()
        for array, first in zip((context, weights), answers["torch"], strict=True)
    ]
    print(f"{name:6} context {distances[0]:.1e}   weights {distances[1]:.1e}")
    assert max(distances) < 1e-5

# %% [markdown]
# ## The weights
#
# A row for each query, a column for each key. The heads of the first sentence, in one framework:

# %%
heatmap(answers["torch"][1][0], SENTENCE, SENTENCE, titles=[f"head {number + 1}" for number in range(HEADS)])

# %% [markdown]
# The first head in all four, and of the second sentence: what `valid_lens` hides has weights of 0, and is cut off.

# %%
firsts = [weights[sentence, 0] for sentence in range(2) for _, weights in answers.values()]
titles = [f"{name}, sentence {sentence + 1}" for sentence in range(2) for name in answers]
heatmap(firsts, SENTENCE, SENTENCE, [6] * 4 + [4] * 4, titles=titles)

# %% [markdown]
# The same to point at: the weights of a query are listed by number, all heads side by side. The arrow keys move, too.

# %%
HTML(interactive_heatmap(answers["jax"][1][0], SENTENCE, SENTENCE, label="Weights of four heads"))
