"""The steps of Bahdanau's decoder in PyTorch as one function with a backward by hand."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from backends.torch.blocked.additive import SATURATED
from backends.torch.blocked.blocks import BOUND, autocast_off, mapped
from backends.torch.blocked.choice import use_blocks

STEPS_MIN_ELEMENTS = 2**12
"""The number of elements, batch · steps · keys · features, from which on a decoder's steps are faster as one."""

BY_STEPS = 2**19
"""The elements of a block in a decoder's step."""


def takes_steps(
    tokens: torch.Tensor,
    state: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    mask: torch.Tensor | None,
    dropout_mask: torch.Tensor | None,
    attention_dropout_mask: torch.Tensor | None,
) -> bool:
    """Whether a decoder's steps become one function: from STEPS_MIN_ELEMENTS elements on, or as `set_path` says.

    elements = batch · steps · keys · features of a key

    On a CPU, in float32 or float64, outside of a compiler, with one mask for all steps, and where no dropout mask has a
    gradient. Step by step everything else is computed.
    """
    if keys.device.type != "cpu" or keys.dtype not in BOUND or state.dtype != keys.dtype:
        return False
    if torch.compiler.is_compiling() or not (tokens.numel() and keys.numel() and values.numel()):
        return False
    if mask is not None and mask.shape[1] > 1:
        return False
    if any(array is not None and array.requires_grad for array in (dropout_mask, attention_dropout_mask)):
        return False
    return use_blocks(keys[:, :1].expand(-1, tokens.shape[1], -1), keys, STEPS_MIN_ELEMENTS)


def blocked_steps(
    embedded: torch.Tensor,
    places: torch.Tensor,
    state: torch.Tensor,
    memory: tuple[torch.Tensor, torch.Tensor, torch.Tensor | None],
    W_q: torch.Tensor,
    w_v: torch.Tensor,
    layers: list[list[torch.Tensor]],
    dropout_mask: torch.Tensor | None,
    attention_dropout_mask: torch.Tensor | None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Run the steps of Bahdanau's decoder: (outputs of the top layer, the last state, weights, contexts).

    embedded is one row for each word that occurs, which meets its part of W once, and places (steps, batch) gives the
    row of each token. memory is keys, values and mask; layers are W, U, b and the hidden bias of each, as PyTorch's GRU
    takes them. All that is returned but the state has its steps first. It has first derivatives, in reverse mode.
    """
    keys, values, mask = memory
    hidden = None if mask is None else ~mask[:, 0].expand(len(keys), -1)
    given = []
    for layer, (W, U, b, b_h) in enumerate(layers):
        W, b = (array.unflatten(0, (3, -1)).roll(1, 0).flatten(0, 1) for array in (W, b))  # to n, r, z
        if layer == 0:
            W, of_tokens = W.split([values.shape[-1], embedded.shape[-1]], dim=1)
            b = torch.nn.functional.linear(embedded, of_tokens, b)[places]
        given += [W, U, b, b_h]
    factors = (
        None if dropout_mask is None else dropout_mask.transpose(1, 2),
        None if attention_dropout_mask is None else attention_dropout_mask.transpose(0, 1),
    )
    keep = torch.is_grad_enabled()
    results = Steps.apply(keep, state, keys, values, hidden, W_q, w_v, *factors, *given)
    outputs, last, weights, contexts, *_ = results
    return outputs, last, weights, contexts


class Steps(torch.autograd.Function):
    """The steps of Bahdanau's decoder with gated recurrent units and additive scores.

    With s the top output, k the keys, h and x what a layer of units is given:

        e[j] = w · t[j], t[j] = tanh(W_q s + k[j]);  p = softmax(e);  c = sum over j of p[j] values[j]
        r, z = σ(W x + b + U h);  m = U h + b_h;  n = tanh(W x + b + r m);  h' = n + z (h - n)

    Backwards from step to step, with the gradient dh of h', those of what n, r, z and m are made of are

        dn = (1 - z)(1 - n²) dh;  dr = r(1 - r) m dn;  dz = z(1 - z)(h - n) dh;  dm = r dn

    which give the gradient of x by W, and of h by U and z dh. Of the context it goes to p, e, W_q s, and k:

        dp[j] = dc · values[j];  de = p (dp - p · dp)
        d(W_q s) = w sum over j of de[j] (1 - t[j]²), as dk[j] over steps

    Gates are in the order n, r, z, m: x has to do with the first three, h with the last three. The gradients of W, U,
    W_q and of the values are one product each, of all steps, after the loop.
    """

    @staticmethod
    def forward(
        keep: bool,
        state: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        hidden: torch.Tensor | None,
        W_q: torch.Tensor,
        w_v: torch.Tensor,
        between: torch.Tensor | None,
        factors: torch.Tensor | None,
        *layers: torch.Tensor,
    ) -> tuple[torch.Tensor, ...]:
        """(Outputs, last state, weights, contexts), and what the backward needs where keep is true."""
        steps, kept, (count, batch, size) = len(layers[2]), len(layers[2]) if keep else 1, state.shape
        below, top = state.new_empty(count - 1, steps, batch, size), state.new_empty(steps, batch, size)
        outputs = *below, top
        gates, queries = state.new_empty(count, kept, batch, 4 * size), state.new_empty(kept, batch, len(W_q))
        weights = keys.new_empty(steps, batch, keys.shape[1])
        contexts = values.new_empty(steps, batch, values.shape[-1])
        features, inputs, last = Features(keys, w_v), state.new_empty(batch, 3 * size), list(state)
        for t in range(steps):
            query = torch.mm(last[-1], W_q.t(), out=queries[t % kept])
            scores = weights[t]
            features.score(query, scores)
            if hidden is not None:
                scores.masked_fill_(hidden, -torch.inf)
            torch.softmax(scores, dim=-1, out=scores)
            if hidden is not None:
                scores.masked_fill_(hidden, 0.0)  # of a fully masked row, too, which is NaN
            weighted = scores if factors is None else scores * factors[t]
            x = contexts[t]
            torch.bmm(weighted[:, None], values, out=x[:, None])
            for layer, (W, U, b, b_h) in enumerate(grouped(layers)):
                h, gate = last[layer], gates[layer, t % kept]
                n, r, z, m = gate.chunk(4, dim=1)
                torch.addmm(b_h, h, U.t(), out=gate[:, size:])
                torch.addmm(b if layer else b[t], x, W.t(), out=inputs)
                gate[:, size : 3 * size].add_(inputs[:, size:]).sigmoid_()
                torch.addcmul(inputs[:, :size], r, m, out=n).tanh_()
                x = last[layer] = torch.lerp(n, h, z, out=outputs[layer][t])
                if between is not None and layer + 1 < count:
                    x = x * between[layer, t]
        return top, torch.stack(last), weights, contexts, below, gates, queries

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[torch.Tensor, ...]) -> None:
        """Keep what the backward needs."""
        _, state, keys, values, _, W_q, w_v, between, factors, *layers = inputs
        top, _, weights, contexts, below, gates, queries = output
        ctx.mark_non_differentiable(below, gates, queries)
        ctx.set_materialize_grads(False)
        given = state, keys, values, W_q, w_v, between, factors
        ctx.save_for_backward(*given, top, weights, contexts, below, gates, queries, *layers[0::4], *layers[1::4])

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        """The gradients of the arguments."""
        with autocast_off(ctx.saved_tensors[0]):
            results = StepsGradients.apply(*gradients[:4], *ctx.saved_tensors)
        d_state, d_keys, d_values, d_W_q, d_w_v, *d_layers = results
        return None, d_state, d_keys, d_values, None, d_W_q, d_w_v, None, None, *d_layers

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *arguments: Any) -> tuple[Any, Any]:
        """One call for each position of the axis that torch.func.vmap adds."""
        return mapped(Steps, info, in_dims, arguments)


class StepsGradients(torch.autograd.Function):
    """The gradients of the steps, of which there are no further ones."""

    @staticmethod
    def forward(
        d_top: torch.Tensor | None,
        d_last: torch.Tensor | None,
        d_weights: torch.Tensor | None,
        d_contexts: torch.Tensor | None,
        state: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        W_q: torch.Tensor,
        w_v: torch.Tensor,
        between: torch.Tensor | None,
        factors: torch.Tensor | None,
        top: torch.Tensor,
        weights: torch.Tensor,
        contexts: torch.Tensor,
        below: torch.Tensor,
        gates: torch.Tensor,
        queries: torch.Tensor,
        *of_layers: torch.Tensor,
    ) -> tuple[torch.Tensor, ...]:
        """The gradients of state, keys, values, W_q, w_v, and of each layer's parameters."""
        (count, steps, _, _), size, outputs = gates.shape, state.shape[-1], (*below, top)
        Ws, Us = of_layers[:count], of_layers[count:]
        d_gates, d_queries, d_given = torch.empty_like(gates), torch.empty_like(queries), torch.empty_like(contexts)
        d_states = list(torch.zeros_like(state) if d_last is None else d_last.clone())
        features, d_keys, d_w_v = Features(keys, w_v), torch.zeros_like(keys), torch.zeros_like(w_v)
        for t in reversed(range(steps)):
            if d_top is not None:
                d_states[-1] += d_top[t]
            for layer in reversed(range(count)):
                h, dh = (outputs[layer][t - 1] if t else state[layer]), d_states[layer]
                n, r, z, m = gates[layer, t].chunk(4, dim=1)
                d_gate = d_gates[layer, t]
                dn, dr, dz, dm = d_gate.chunk(4, dim=1)
                torch.addcmul(dh, dh, z, value=-1, out=dn)
                dn.mul_(1 - n * n)
                torch.mul(dn, r, out=dm)
                torch.mul(dn, m, out=dr).mul_(r - r * r)
                torch.mul(h - n, dh, out=dz).mul_(z - z * z)
                dh *= z
                dh.addmm_(d_gate[:, size:], Us[layer])
                dx = torch.mm(d_gate[:, : 3 * size], Ws[layer])
                if layer:
                    d_states[layer - 1] += dx if between is None else dx * between[layer - 1, t]
            d_given[t] = dx if d_contexts is None else dx + d_contexts[t]
            dp = torch.bmm(d_given[t, :, None], values.mT)[:, 0]
            if factors is not None:
                dp *= factors[t]
            if d_weights is not None:
                dp += d_weights[t]
            p = weights[t]
            de = p * (dp - (p * dp).sum(dim=-1, keepdim=True))
            features.gradients(queries[t], de, d_queries[t], d_keys, d_w_v)
            d_states[-1].addmm_(d_queries[t], W_q)
        d_layers = []
        for layer in range(count):
            g, x = d_gates[layer].flatten(0, 1), outputs[layer - 1] if layer else contexts
            if layer and between is not None:
                x = x * between[layer - 1]
            total = g.sum(dim=0)
            dW, dU = g[:, : 3 * size].t() @ x.flatten(0, 1), g[:, size:].t() @ before(outputs[layer], state[layer])
            d_layers += [dW, dU, total[: 3 * size] if layer else d_gates[0, :, :, : 3 * size], total[size:]]
        weighted = weights if factors is None else weights * factors
        d_values = weighted.permute(1, 2, 0) @ d_given.transpose(0, 1)
        d_W_q = d_queries.flatten(0, 1).t() @ before(top, state[-1])
        return torch.stack(d_states), d_keys.mul_(w_v), d_values, d_W_q, d_w_v, *d_layers

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[torch.Tensor, ...]) -> None:
        """Keep nothing."""

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Refuse."""
        raise RuntimeError(
            "BahdanauDecoder: no second derivative is known where its steps are one function. Step by step it has all: "
            'call backends.torch.blocked.set_path("plain") before it is called.'
        )

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *arguments: Any) -> tuple[Any, Any]:
        """One call for each position of the axis that torch.func.vmap adds."""
        return mapped(StepsGradients, info, in_dims, arguments)


class Features:
    """t = tanh(q + k) of one query for each key of its sequence, some sequences at a time, and what is made of it.

    By the formula of the module, s + p / (1/n + a (c/n)), where exponentials of the keys hold. m is that of the keys:
    the number between -k of all keys of the sequence that is nearest to 0, so that s is no larger than the largest t.
    A query is clipped to where t has long been 1 to the last bit, so that the exponentials of queries hold always.
    """

    def __init__(self, keys: torch.Tensor, w_v: torch.Tensor) -> None:
        self.w, self.one = w_v, torch.ones_like(w_v)
        self.exact = not bool(keys.abs().max() <= BOUND[keys.dtype])
        self.rows = max(1, BY_STEPS // keys[0].numel())
        given: tuple[torch.Tensor, ...] = (keys,)
        if not self.exact:
            least, most = -keys.amax(dim=1), -keys.amin(dim=1)
            self.m, margin = torch.zeros_like(least).clamp(least, most), SATURATED[keys.dtype]
            self.least, self.most = least - margin, most + margin
            shifted = keys + self.m[:, None]
            reciprocals = (2 * shifted).exp_().add_(1).mul_(0.5)  # 1/n; 1 - s would be 0 where s is 1
            given = shifted.tanh_(), reciprocals, (-2 * keys).exp_().mul_(reciprocals)
        self.given = [array.split(self.rows) for array in given]
        self.room = torch.empty_like(self.given[0][0])

    def blocks(self, query: torch.Tensor) -> Iterator[torch.Tensor]:
        """The features, block by block, in the same place."""
        if self.exact:
            for q, k in zip(query[:, None].split(self.rows), *self.given, strict=True):
                yield torch.add(q, k, out=self.room[: len(k)]).tanh_()
            return
        query = query.clamp(self.least, self.most)
        factors = (-2 * query).exp_(), (-2 * (query - self.m)).expm1_().neg_()
        parts = (factor[:, None].split(self.rows) for factor in factors)
        for a, p, s, first, other in zip(*parts, *self.given, strict=True):
            t = torch.addcmul(first, a, other, out=self.room[: len(s)])
            yield torch.addcdiv(s, p, t, out=t)

    def score(self, query: torch.Tensor, scores: torch.Tensor) -> None:
        """Set the scores to w · t."""
        for t, block in zip(self.blocks(query), scores.split(self.rows), strict=True):
            torch.mv(t.flatten(0, 1), self.w, out=block.flatten())

    def gradients(
        self,
        query: torch.Tensor,
        gradient: torch.Tensor,
        d_query: torch.Tensor,
        d_keys: torch.Tensor,
        d_w: torch.Tensor,
    ) -> None:
        """Set d_query, and add to d_keys, without the factor w, and to d_w."""
        blocks = (tensor.split(self.rows) for tensor in (gradient, d_query, d_keys))
        for t, g, of_query, of_keys in zip(self.blocks(query), *blocks, strict=True):
            d_w.addmv_(t.flatten(0, 1).t(), g.flatten())
            torch.addcmul(self.one, t, t, value=-1, out=t)
            torch.bmm(g[:, None], t, out=of_query[:, None])
            of_keys.addcmul_(t, g[..., None])
        d_query *= self.w


def before(outputs: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
    """The state before each step, all steps and sequences as one axis."""
    return torch.cat([state[None], outputs[:-1]]).flatten(0, 1)


def grouped(layers: tuple[torch.Tensor, ...]) -> Iterator[tuple[torch.Tensor, ...]]:
    """W, U, b and the hidden bias of each layer."""
    return zip(layers[0::4], layers[1::4], layers[2::4], layers[3::4], strict=True)
