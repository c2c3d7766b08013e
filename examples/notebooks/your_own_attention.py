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
# # Test your own attention
#
# An implementation is compared with the specification, case by case, in outputs and gradients: first one with a common
# mistake, then the same without. Any framework will do; here it is PyTorch: `pip install '.[torch,notebooks]'`.

# %%
import inspect
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import torch

from attention_core import reference
from attention_core.draws import uniform
from parity_tests.judge.assertion import assert_parity
from parity_tests.plots import heatmap

folder = Path(tempfile.mkdtemp())


def attention_parity(*arguments: object) -> None:
    """Run a command, as in a terminal, and print its output."""
    command = [sys.executable, "-m", "parity_tests", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, "COLUMNS": "110"})
    print(done.stdout or done.stderr)


# %% [markdown]
# ## An implementation
#
# A file with a function under a name of the specification, here the softmax over the keys that a query may attend to.
# `runtime` is how arrays and gradients come from and go to NumPy.

# %%
MINE = """
import torch
from backends.torch import runtime


def masked_softmax(scores, mask=None):
    if mask is not None:
        scores = scores.masked_fill(~mask, float("-inf"))
    return torch.softmax(scores, -1)
"""
file = folder / "mine.py"
_ = file.write_text(MINE)

# %% [markdown]
# ## The verdict
#
# Everything that the file implements is tested, in float64 and float32; `--case` and `--dtype` select.

# %%
attention_parity("check", file, "--case", "masked_softmax-[a-m]*", "--dtype", "float64")

# %% [markdown]
# Read it from below. `looks like` names the mistake, among the hundreds that are known: a query that may attend to
# nothing has weights of NaN, since a softmax over -inf alone divides 0 by 0. It counts the answers that were compared:
# the mutant with that mistake gives all of the wrong ones, and the right ones, too. The line above is **red**. Each
# `fail` has the first wrong entries, what was expected there, and the command that repeats the case.
#
# In a heatmap, what is NaN has no colour. The second query may attend to nothing:

# %%
scores = torch.from_numpy(uniform("scores", (1, 3, 4), 3.0))
mask = torch.tensor([[[True, True, True, False], [False] * 4, [True, False, True, True]]])
weights = torch.softmax(scores.masked_fill(~mask, float("-inf")), -1)
heatmap(weights[0], ["first", "second", "third"], ["a", "b", "c", "d"])

# %% [markdown]
# ## The correction
#
# Scores of such a row become 0, so that its softmax and its gradients are finite, and its weights become 0 afterwards.
# A score of -inf counts as masked: a row can be fully masked by its scores alone, as in the case `infinite`.


# %%
def masked_softmax(scores, mask=None):
    attended = scores != float("-inf")
    if mask is not None:
        attended = attended & mask
    scores = scores.masked_fill(~attended, float("-inf")).masked_fill(~attended.any(-1, keepdim=True), 0.0)
    return torch.softmax(scores, -1).masked_fill(~attended, 0.0)


weights = masked_softmax(scores, mask)
heatmap(weights[0], ["first", "second", "third"], ["a", "b", "c", "d"])

# %% [markdown]
# In a test of one's own, `assert_parity` compares two arrays by the same tolerances. It passes now:

# %%
expected = reference.masked_softmax(scores.numpy(), mask=mask.numpy())
assert_parity(weights, expected, operator="masked_softmax", quantity="weights")

# %% [markdown]
# And the command is green:

# %%
_ = file.write_text("import torch\nfrom backends.torch import runtime\n\n\n" + inspect.getsource(masked_softmax))
attention_parity("check", file, "--case", "masked_softmax-[a-m]*", "--dtype", "float64")
