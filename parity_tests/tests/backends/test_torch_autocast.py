"""PyTorch's autocast: which dtypes layers of float32 take and give under it."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

import backends.torch
from attention_core.draws import uniform
from attention_core.errors import DtypeError
from parity_tests.tests.backends.blocks import on_path


def called(layer: torch.nn.Module, *arguments: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
    """What a layer answers under autocast, after a backward pass under autocast, too."""
    with torch.autocast("cpu", dtype):
        outputs = layer(*arguments)
        sum(output.float().sum() for output in outputs).backward()
    return tuple(output.detach() for output in outputs)


def leaf(*shape: int) -> torch.Tensor:
    return torch.as_tensor(uniform("autocast", shape).astype("float32")).requires_grad_()


@pytest.mark.parametrize("path", ["plain", "blocked"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_multi_head_attention_is_that_of_pytorch(dtype: torch.dtype, path: str):
    ours = backends.torch.MultiHeadAttention(8, 2, bias=False)
    theirs = torch.nn.MultiheadAttention(8, 2, bias=False, batch_first=True)
    with torch.no_grad():
        theirs.in_proj_weight.copy_(torch.cat([ours.W_q.weight, ours.W_k.weight, ours.W_v.weight]))
        theirs.out_proj.weight.copy_(ours.W_o.weight)
    queries, keys = leaf(2, 3, 8), leaf(2, 5, 8)
    with on_path(SimpleNamespace(name="torch"), path):
        context, weights = called(ours, queries, keys, keys, dtype=dtype)
    own = queries.grad
    queries.grad = None
    expected, averaged = called(theirs, queries, keys, keys, dtype=dtype)
    eps = torch.finfo(dtype).eps
    assert (context.dtype, weights.dtype, own.dtype) == (dtype, dtype, torch.float32)
    torch.testing.assert_close(context, expected, rtol=0.0, atol=4 * eps)
    torch.testing.assert_close(weights.mean(dim=1) if weights.ndim == 4 else weights, averaged, rtol=0.0, atol=eps)
    torch.testing.assert_close(own, queries.grad, rtol=0.0, atol=16 * eps)


@pytest.mark.parametrize("path", ["plain", "blocked"])
@pytest.mark.parametrize("need_weights", [True, False])
@pytest.mark.parametrize("name", ["DotProductAttention", "KernelAttention", "AdditiveAttention"])
def test_inputs_may_have_different_types_and_answers_have_one(name: str, need_weights: bool, path: str):
    layer = getattr(backends.torch, name)(
        **({"query_size": 8, "key_size": 8, "hidden_size": 6} if name[0] == "A" else {})
    )
    queries, keys, values = leaf(2, 3, 8), leaf(2, 5, 8).to(torch.bfloat16), leaf(2, 5, 4)
    with on_path(SimpleNamespace(name="torch"), path), torch.autocast("cpu", torch.bfloat16):
        answers = layer(queries, keys, values, need_weights=need_weights)
        answers[0].sum().backward()
    assert {answer.dtype for answer in answers if answer is not None} == {torch.bfloat16}
    assert queries.grad is not None and queries.grad.dtype == torch.float32 and queries.grad.isfinite().all()


def theirs(layer: torch.nn.Module, inputs: torch.Tensor, name: str) -> tuple[torch.Tensor, ...]:
    """PyTorch's answers, without oneDNN, which has no bfloat16 on every processor.

    PyTorch casts the inputs of an LSTM for oneDNN and for cuDNN; what has neither is given them cast.
    """
    given = inputs.to(torch.get_autocast_dtype("cpu")) if name.startswith("LSTM") else inputs
    with torch.backends.mkldnn.flags(enabled=False):
        outputs, state = layer(given)
    return outputs, *(state if isinstance(state, tuple) else (state,))


@pytest.mark.filterwarnings("ignore:TF32")
@pytest.mark.parametrize("name", ["GRU", "LSTM"])
def test_recurrent_layers_have_the_dtypes_of_pytorch(name: str):
    ours, own = (getattr(place, name) for place in (backends.torch, torch.nn))
    for given in (torch.float32, torch.bfloat16):
        inputs = leaf(2, 3, 4).to(given)
        with torch.autocast("cpu", torch.bfloat16):
            expected = theirs(own(4, 5, batch_first=True), inputs, name)[0].dtype
            for lens in (None, torch.tensor([1, 3])):
                assert {output.dtype for output in ours(4, 5)(inputs, lens)} == {expected}


@pytest.mark.filterwarnings("ignore:TF32")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", ["GRUEncoder", "LSTMEncoder"])
def test_encoders_are_those_of_pytorch(name: str, dtype: torch.dtype):
    ours = getattr(backends.torch, name)(11, 4, 5, 2, bidirectional=True)
    kind = name.removesuffix("Encoder")
    own = getattr(torch.nn, kind)(4, 5, 2, batch_first=True, bidirectional=True)
    directions = zip(ours.rnn.layers, ours.rnn.backward_layers, strict=True)
    weights = [array for both in directions for layer in both for array in ours.rnn._kernel_weights(layer)]
    with torch.no_grad():
        for parameter, array in zip(own.parameters(), weights, strict=True):
            parameter.copy_(array)
    tokens = torch.arange(6).view(2, 3)
    with torch.autocast("cpu", dtype):
        outputs, state = ours(tokens)
        expected, *states = theirs(own, ours.embedding(tokens), kind)
    # Ours has the outputs of a layer, forward then backward, and behind them an LSTM's cells alike.
    last = torch.cat([torch.cat(array.unflatten(0, (2, 2)).unbind(1), dim=-1) for array in states], dim=-1)
    eps = torch.finfo(dtype).eps
    for actual, wanted in ((outputs, expected), (state, last)):
        assert actual.dtype == wanted.dtype
        torch.testing.assert_close(actual, wanted, rtol=0.0, atol=2 * eps)
    exact = ours(tokens)[0]
    assert (outputs - exact).abs().max() > eps / 64  # autocast has cast something


def test_what_autocast_does_not_cast_is_refused_as_without_it():
    layer, queries = backends.torch.AdditiveAttention(4, 4, 8), leaf(1, 2, 4)
    for arguments in ((queries.double(),) * 3, (queries, queries, queries.double())):
        with (
            torch.autocast("cpu", torch.bfloat16),
            pytest.raises(DtypeError, match="is float64 but the layer is float32"),
        ):
            layer(*arguments)
    with pytest.raises(DtypeError, match="queries is bfloat16 but the layer is float32"):
        layer(*(queries.bfloat16(),) * 3)
