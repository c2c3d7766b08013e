"""The steps of a decoder with attention in PyTorch as one function with a backward by hand."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cached_property, partial
from typing import Any

import torch
from torch import nn

from backends.torch import kernels
from backends.torch.attention import Form
from backends.torch.blocked.additive import SATURATED
from backends.torch.blocked.blocks import BOUND, autocast_off, map_axis
from backends.torch.decoders import BahdanauDecoder, Lens, LuongDecoder, Masks
from backends.torch.graphs import has_hooks
from backends.torch.memory import Memory
from backends.torch.module import draw_mask

STEPS_MIN_ELEMENTS = 2**12
"""The number of elements, batch · steps · keys · features, from which on a decoder's steps are faster as one."""

BY_STEPS = 2**19
"""The elements of a block in a decoder's step."""

Tensors = tuple[torch.Tensor, ...]


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
    return kernels.use_blocks(keys[:, :1].expand(-1, tokens.shape[1], -1), keys, STEPS_MIN_ELEMENTS)


def steps_form(decoder: BahdanauDecoder | LuongDecoder) -> Form | None:
    """Return the form of the decoder's score, with the matrix W_q itself; None if its steps cannot be one function.

    The function reads the parameters by itself, so nobody may have hooked or replaced a module that it passes by.
    """
    form, W_c = decoder.attention._form(decoder.sizes["hidden_size"]), getattr(decoder, "W_c", None)
    if form is None or form.softcap is not None or not isinstance(W_c, nn.Linear | None):
        return None
    if any(map(has_hooks, [*decoder.attention.modules(), *decoder.rnn.modules(), *([W_c] if W_c else [])])):
        return None
    if isinstance(form.W_q, nn.Linear):
        return form._replace(W_q=form.W_q.weight)
    return None if isinstance(form.W_q, nn.Module) else form


def serves(
    decoder: BahdanauDecoder | LuongDecoder, tokens: torch.Tensor, state: torch.Tensor, memory: Memory, masks: Masks
) -> bool:
    """Whether the steps of a decoder become one function: for scores of a form, under the condition `takes_steps`."""
    return steps_form(decoder) is not None and takes_steps(tokens, state, *memory, *masks)


@kernels.register("decoder_steps", serves)
def run_steps(
    decoder: BahdanauDecoder | LuongDecoder,
    tokens: torch.Tensor,
    state: torch.Tensor,
    memory: Memory,
    masks: Masks,
    lens: Lens,
    *attentional: torch.Tensor,
) -> tuple[torch.Tensor, ...]:
    """Run the steps of a decoder: what `blocked_steps` returns, the embedding of each word, and their places."""
    form, attention, rnn = steps_form(decoder), decoder.attention, decoder.rnn
    assert form is not None
    (dropout_mask, attention_dropout_mask), (batch, steps) = masks, tokens.shape
    if dropout_mask is None:
        dropout_mask = draw_mask(rnn.dropout, state, shape=rnn._between(batch, steps))
    if attention_dropout_mask is None:
        scores = memory.keys[:, None, :, 0].expand(-1, steps, -1)
        attention_dropout_mask = draw_mask(attention.dropout, scores)
    words, places = tokens.T.unique(return_inverse=True)
    embedded, layers = decoder.embedding(words.long()), rnn._of_steps()
    factors, luong = (dropout_mask, attention_dropout_mask), [decoder.W_c.weight, *attentional] if attentional else []
    read = embedded[:, :0] if decoder.sizes.get("reads") == "context" else embedded
    results = blocked_steps(read, places, state, memory, form, layers, *factors, lens, *luong)
    return *results, embedded, places


def blocked_steps(
    embedded: torch.Tensor,
    places: torch.Tensor,
    state: torch.Tensor,
    memory: tuple[torch.Tensor, torch.Tensor, torch.Tensor | None],
    form: Form,
    layers: list[list[torch.Tensor]],
    dropout_mask: torch.Tensor | None,
    attention_dropout_mask: torch.Tensor | None,
    lens: torch.Tensor | None,
    W_c: torch.Tensor | None = None,
    attentional: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Run the steps of a decoder: (features of the logits, the last state, weights, contexts).

    Bahdanau's decoder attends before its layers, which read the context; its features are the top outputs. With W_c and
    the first attentional vector it is Luong's, which attends after its layers; its features are the attentional
    vectors, each of which the next step reads.

    embedded is one row for each word that occurs, which meets its part of W once, without features where no token is
    read, and places (steps, batch) gives the row of each token. memory is keys, values and mask; layers are W, U, b and
    the hidden bias of each, as PyTorch's kernels take them. All that is returned but the state has its steps first. It
    has first derivatives, in reverse mode. With lens (batch,), a sequence takes its first steps alone: of later ones
    all is 0, and its state stays.
    """
    keys, values, mask = memory
    hidden = None if mask is None else ~mask[:, 0].expand(len(keys), -1)
    between = None if dropout_mask is None else dropout_mask.transpose(1, 2)
    factors = None if attention_dropout_mask is None else attention_dropout_mask.transpose(0, 1)
    running, order = torch.full((len(places),), len(keys)), None
    if lens is not None:  # the longest first: those that take a step are then the first rows
        lens, order = lens.sort(descending=True, stable=True)
        running = (torch.arange(len(places))[:, None] < lens).sum(dim=1)
        rows = partial(reorder, order)
        keys, values, hidden, attentional = (rows(0, array) for array in (keys, values, hidden, attentional))
        places, state, factors, between = rows(1, places), rows(1, state), rows(1, factors), rows(2, between)
    given, size = [], layers[0][1].shape[1]
    for layer, parameters in enumerate(layers):
        W, U, b, b_h = UNITS[state.shape[-1] // size].arrange(*parameters)
        if layer == 0:
            tokens, fed = embedded.shape[-1], W.shape[1] - embedded.shape[-1]
            if W_c is None:
                W, of_tokens = W.split([fed, tokens], dim=1)
            else:
                of_tokens, W = W.split([tokens, fed], dim=1)
            b = torch.nn.functional.linear(embedded, of_tokens, b)[places]
        given += [W, U, b, b_h]
    read = keys, values, hidden, form.W_q, form.w_v, W_c, between, factors
    options = torch.is_grad_enabled(), form.scale, running
    features, last, weights, contexts, *_ = Steps.apply(*options, state, attentional, *read, *given)
    if order is None:
        return features, last, weights, contexts
    back = order.argsort()
    return features[:, back], last[:, back], weights[:, back], contexts[:, back]


class GatedUnits:
    """One step of a layer of gated recurrent units, and one step back.

    r, z = σ(W x + b + U h);  m = U h + b_h;  n = tanh(W x + b + r m);  h' = n + z (h - n)

    With the gradient dh of h', those of what n, r, z and m are made of are

        dn = (1 - z)(1 - n²) dh;  dr = r(1 - r) m dn;  dz = z(1 - z)(h - n) dh;  dm = r dn

    which give the gradient of x by W, and of h by U and z dh. Gates are in the order n, r, z, m: x has to do with the
    first three, h with the last three.
    """

    @staticmethod
    def arrange(W: torch.Tensor, U: torch.Tensor, b: torch.Tensor, b_h: torch.Tensor) -> list[torch.Tensor]:
        """The parameters in the order of the gates."""
        return [third_first(W, 3), U, third_first(b, 3), b_h]

    @staticmethod
    def parts(gates: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """What of the gates has to do with x, and with h."""
        size = gates.shape[-1] // 4
        return gates[..., : 3 * size], gates[..., size:]

    @staticmethod
    def advance(
        parameters: Tensors, x: torch.Tensor, state: torch.Tensor, gate: torch.Tensor, after: torch.Tensor
    ) -> None:
        """Set the gates, and the state after the step."""
        (W, U, b, b_h), size = parameters, state.shape[-1]
        n, r, z, m = gate.chunk(4, dim=1)
        torch.addmm(b_h, state, U.t(), out=gate[:, size:])
        inputs = torch.addmm(b, x, W.t())
        gate[:, size : 3 * size].add_(inputs[:, size:]).sigmoid_()
        torch.addcmul(inputs[:, :size], r, m, out=n).tanh_()
        torch.lerp(n, state, z, out=after)

    @staticmethod
    def retreat(
        U: torch.Tensor,
        state: torch.Tensor,
        gate: torch.Tensor,
        after: torch.Tensor,
        d_gate: torch.Tensor,
        d_state: torch.Tensor,
    ) -> None:
        """Set the gradients of the gates, and make that of the state after the step the one of the state before it."""
        n, r, z, m = gate.chunk(4, dim=1)
        dn, dr, dz, dm = d_gate.chunk(4, dim=1)
        torch.addcmul(d_state, d_state, z, value=-1, out=dn)
        dn.mul_(1 - n * n)
        torch.mul(dn, r, out=dm)
        torch.mul(dn, m, out=dr).mul_(r - r * r)
        torch.mul(state - n, d_state, out=dz).mul_(z - z * z)
        d_state *= z
        d_state.addmm_(GatedUnits.parts(d_gate)[1], U)


class LongUnits:
    """One step of a layer of long short-term memory, and one step back; its state is [h; c].

    g = tanh(W x + b + U h);  i, f, o = σ(W x + b + U h);  c' = f c + i g;  h' = o t, t = tanh(c')

    With the gradients dh of h' and e = dc' + o (1 - t²) dh of c' in all, those of what the gates are made of are

        dg = i (1 - g²) e;  di = i(1 - i) g e;  df = f(1 - f) c e;  do = o(1 - o) t dh

    which give the gradient of x by W, and of h by U; that of c is f e. Gates are in the order g, i, f, o.
    """

    @staticmethod
    def arrange(W: torch.Tensor, U: torch.Tensor, b: torch.Tensor, b_h: torch.Tensor) -> list[torch.Tensor]:
        """The parameters in the order of the gates."""
        return [third_first(array, 4) for array in (W, U, b, b_h)]

    @staticmethod
    def parts(gates: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """What of the gates has to do with x, and with h."""
        return gates, gates

    @staticmethod
    def advance(
        parameters: Tensors, x: torch.Tensor, state: torch.Tensor, gate: torch.Tensor, after: torch.Tensor
    ) -> None:
        """Set the gates, and the state after the step."""
        (W, U, b, _), (h, c), (new_h, new_c) = parameters, state.chunk(2, dim=1), after.chunk(2, dim=1)
        torch.addmm(b, x, W.t(), out=gate).addmm_(h, U.t())
        gate[:, : h.shape[1]].tanh_()
        gate[:, h.shape[1] :].sigmoid_()
        g, i, f, o = gate.chunk(4, dim=1)
        torch.mul(f, c, out=new_c).addcmul_(i, g)
        torch.tanh(new_c, out=new_h).mul_(o)

    @staticmethod
    def retreat(
        U: torch.Tensor,
        state: torch.Tensor,
        gate: torch.Tensor,
        after: torch.Tensor,
        d_gate: torch.Tensor,
        d_state: torch.Tensor,
    ) -> None:
        """Set the gradients of the gates, and make that of the state after the step the one of the state before it."""
        (_, c), (_, new_c), (dh, e) = (array.chunk(2, dim=1) for array in (state, after, d_state))
        g, i, f, o = gate.chunk(4, dim=1)
        dg, di, df, do = d_gate.chunk(4, dim=1)
        t = new_c.tanh()
        e.addcmul_(dh, o - o * t * t)
        torch.mul(dh, t, out=do).mul_(o - o * o)
        torch.mul(e, i, out=dg).mul_(1 - g * g)
        torch.mul(e, g, out=di).mul_(i - i * i)
        torch.mul(e, c, out=df).mul_(f - f * f)
        e *= f
        torch.mm(d_gate, U, out=dh)


UNITS: dict[int, type[GatedUnits | LongUnits]] = {1: GatedUnits, 2: LongUnits}
"""By the number of vectors in a state."""


def third_first(array: torch.Tensor, gates: int) -> torch.Tensor:
    """The parameters of gates on the first axis, those of the third gate, which is the one with a tanh, in front."""
    first, second, third, *rest = array.chunk(gates)
    return torch.cat([third, first, second, *rest])


class Steps(torch.autograd.Function):
    """The steps of a decoder: recurrent layers, and attention before them or after them.

    With the query q = W_q s, or s, of the top output s, the keys k, and x what a layer of units is given:

        e[j] = w · tanh(q + k[j]), or scale q·k[j];  p = softmax(e);  c = sum over j of p[j] values[j]

    Bahdanau's: s is of the step before, and x = c. Luong's: x = a, the attentional vector of the step before; s is of
    this step, and the new a = tanh(W_c [c; s]).

    Backwards from step to step, with da of the attentional vector, [dc; ds] = da (1 - a²) W_c. From the context it goes
    to p, e, q, and k:

        dp[j] = dc · values[j];  de = p (dp - p · dp)
        dq = w sum over j of de[j] (1 - tanh²[j]), as dk[j] over steps; or scale sum over j of de[j] k[j]

    `GatedUnits` and `LongUnits` say how it goes on. The gradients of W, U, W_q, W_c and of the values are one product
    each, of all steps, after the loop.
    """

    @staticmethod
    def forward(
        keep: bool,
        scale: float,
        running: torch.Tensor,
        state: torch.Tensor,
        attentional: torch.Tensor | None,
        keys: torch.Tensor,
        values: torch.Tensor,
        hidden: torch.Tensor | None,
        W_q: torch.Tensor | None,
        w_v: torch.Tensor | None,
        W_c: torch.Tensor | None,
        between: torch.Tensor | None,
        factors: torch.Tensor | None,
        *layers: torch.Tensor,
    ) -> tuple[torch.Tensor, ...]:
        """(Features, last state, weights, contexts), and what the backward needs where keep is true.

        Step t is taken by the first running[t] sequences, of which there are no more than in the step before.
        """
        parameters, (count, batch, width), size = group_layers(layers), state.shape, layers[1].shape[1]
        units, steps = UNITS[width // size], len(layers[2])
        kept = steps if keep else 1
        states, gates = state.new_empty(count, steps, batch, width), state.new_empty(count, kept, batch, 4 * size)
        queries = state.new_zeros(kept, batch, 0 if W_q is None else len(W_q))
        weights = keys.new_zeros(steps, batch, keys.shape[1])
        contexts = values.new_zeros(steps, batch, values.shape[-1])
        attentionals = state.new_zeros(steps, batch, 0 if W_c is None else len(W_c))
        scored, last = Features(keys, w_v) if w_v is not None else Products(keys, scale), list(state)
        finite = w_v is not None or bool(values.isfinite().all())

        def attend(t: int, n: int) -> torch.Tensor:
            query, scores, visible = last[-1][:n, :size], weights[t, :n], values[:n]
            scored.score(query if W_q is None else torch.mm(query, W_q.t(), out=queries[t % kept, :n]), scores)
            if hidden is not None:
                scores.masked_fill_(hidden[:n], -torch.inf)
            # A weight of 0 does not silence a NaN.
            visible = visible if finite else visible.masked_fill((scores == -torch.inf)[..., None], 0.0)
            torch.softmax(scores, dim=-1, out=scores)
            if hidden is not None:
                scores.masked_fill_(hidden[:n], 0.0)  # of a fully masked row, too, which is NaN
            weighted = scores if factors is None else scores * factors[t, :n]
            torch.bmm(weighted[:, None], visible, out=contexts[t, :n, None])
            return contexts[t, :n]

        for t, n in enumerate(running.tolist()):
            x = attend(t, n) if attentional is None else attentional[:n]
            for layer, (W, U, b, b_h) in enumerate(parameters):
                here = W, U, b if layer else b[t, :n], b_h
                after = states[layer, t]
                units.advance(here, x, last[layer][:n], gates[layer, t % kept, :n], after[:n])
                after[n:] = last[layer][n:]
                last[layer], x = after, after[:n, :size]
                if between is not None and layer + 1 < count:
                    x = x * between[layer, t, :n]
            if W_c is not None:
                attentional = attentionals[t]
                of_context, of_output = W_c.split([contexts.shape[-1], size], dim=1)
                torch.mm(attend(t, n), of_context.t(), out=attentional[:n]).addmm_(x, of_output.t()).tanh_()
        features = attentionals
        if W_c is None:
            left_out = torch.arange(batch) >= running[:, None]
            features = states[-1, ..., :size].masked_fill(left_out[..., None], 0.0)
        return features, torch.stack(last), weights, contexts, states, gates, queries

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[torch.Tensor, ...]) -> None:
        """Keep what the backward needs."""
        _, scale, running, state, attentional, keys, values, _, W_q, w_v, W_c, between, factors, *layers = inputs
        features, _, weights, contexts, states, gates, queries = output
        ctx.options = scale, running
        ctx.mark_non_differentiable(states, gates, queries)
        ctx.set_materialize_grads(False)
        given = state, attentional, keys, values, W_q, w_v, W_c, between, factors
        ctx.save_for_backward(*given, features, weights, contexts, states, gates, queries, *layers[0::4], *layers[1::4])

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        """The gradients of the arguments."""
        with autocast_off(ctx.saved_tensors[0]):
            results = StepsGradients.apply(*ctx.options, *gradients[:4], *ctx.saved_tensors)
        d_state, d_attentional, d_keys, d_values, d_W_q, d_w_v, d_W_c, *d_layers = results
        of_memory = d_keys, d_values, None
        return None, None, None, d_state, d_attentional, *of_memory, d_W_q, d_w_v, d_W_c, None, None, *d_layers

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *arguments: Any) -> tuple[Any, Any]:
        """One call for each position of the axis that torch.func.vmap adds."""
        return map_axis(Steps, info, in_dims, arguments)


class StepsGradients(torch.autograd.Function):
    """Backward of the steps; first derivatives only."""

    @staticmethod
    def forward(
        scale: float,
        running: torch.Tensor,
        d_features: torch.Tensor | None,
        d_last: torch.Tensor | None,
        d_weights: torch.Tensor | None,
        d_contexts: torch.Tensor | None,
        state: torch.Tensor,
        attentional: torch.Tensor | None,
        keys: torch.Tensor,
        values: torch.Tensor,
        W_q: torch.Tensor | None,
        w_v: torch.Tensor | None,
        W_c: torch.Tensor | None,
        between: torch.Tensor | None,
        factors: torch.Tensor | None,
        features: torch.Tensor,
        weights: torch.Tensor,
        contexts: torch.Tensor,
        states: torch.Tensor,
        gates: torch.Tensor,
        queries: torch.Tensor,
        *of_layers: torch.Tensor,
    ) -> tuple[torch.Tensor | None, ...]:
        """The gradients of state, attentional, keys, values, W_q, w_v, W_c, and of each layer's parameters."""
        count, steps, batch, width = states.shape
        size = gates.shape[-1] // 4
        units, Ws, Us, outputs = UNITS[width // size], of_layers[:count], of_layers[count:], states[..., :size]
        read = [before(states[layer], state[layer]) for layer in range(count)]
        scored = Features(keys, w_v) if w_v is not None else Products(keys, scale)
        attended = outputs[-1] if attentional is not None else read[-1][..., :size]
        d_gates, d_given = torch.zeros_like(gates), torch.zeros_like(contexts)
        d_scores, d_attended = torch.zeros_like(weights), attended.new_zeros(steps, batch, keys.shape[-1])
        d_joined = None if attentional is None else torch.zeros_like(features)
        d_states = list(torch.zeros_like(state) if d_last is None else d_last.clone())
        d_attentional = None if attentional is None else torch.zeros_like(attentional)

        def retreat(t: int, n: int, d_context: torch.Tensor) -> None:
            torch.add(d_context, 0 if d_contexts is None else d_contexts[t, :n], out=d_given[t, :n])
            dp, p = torch.bmm(d_given[t, :n, None], values[:n].mT)[:, 0], weights[t, :n]
            if factors is not None:
                dp *= factors[t, :n]
            if d_weights is not None:
                dp += d_weights[t, :n]
            torch.mul(p, dp - (p * dp).sum(dim=-1, keepdim=True), out=d_scores[t, :n])
            query = (attended if W_q is None else queries)[t, :n]
            scored.retreat(query, d_scores[t, :n], d_attended[t, :n])
            d_output = d_states[-1][:n, :size]
            if W_q is None:
                d_output += d_attended[t, :n]
            else:
                d_output.addmm_(d_attended[t, :n], W_q)

        for t, n in reversed(list(enumerate(running.tolist()))):
            if d_attentional is None or d_joined is None or W_c is None:
                if d_features is not None:
                    d_states[-1][:n, :size] += d_features[t, :n]
            else:
                if d_features is not None:
                    d_attentional[:n] += d_features[t, :n]
                read_by_logits = features[t, :n]
                joined = torch.mul(d_attentional[:n], 1 - read_by_logits * read_by_logits, out=d_joined[t, :n])
                of_context, of_output = W_c.split([contexts.shape[-1], size], dim=1)
                d_states[-1][:n, :size].addmm_(joined, of_output)
                retreat(t, n, joined @ of_context)
            for layer in reversed(range(count)):
                d_gate, d_state = d_gates[layer, t, :n], d_states[layer][:n]
                units.retreat(Us[layer], read[layer][t, :n], gates[layer, t, :n], states[layer, t, :n], d_gate, d_state)
                dx = torch.mm(units.parts(d_gate)[0], Ws[layer])
                if layer:
                    d_states[layer - 1][:n, :size] += dx if between is None else dx * between[layer - 1, t, :n]
            if d_attentional is None:
                retreat(t, n, dx)
            else:
                d_attentional[:n] = dx
        taken = torch.arange(batch) < running[:, None]
        product = products(None if bool(taken.all()) else taken.flatten().nonzero()[:, 0])
        d_layers = []
        for layer in range(count):
            of_x, of_h = units.parts(d_gates[layer])
            if layer == 0:
                x = contexts if attentional is None else before(features, attentional)
            else:
                x = outputs[layer - 1] if between is None else outputs[layer - 1] * between[layer - 1]
            d_b = of_x.sum(dim=(0, 1)) if layer else of_x
            d_layers += [product(of_x, x), product(of_h, read[layer][..., :size]), d_b, of_h.sum(dim=(0, 1))]
        weighted = weights if factors is None else weights * factors
        d_values = weighted.permute(1, 2, 0) @ d_given.transpose(0, 1)
        d_keys, d_w_v = scored.gradients(attended, d_scores)
        d_W_q = None if W_q is None else product(d_attended, attended)
        d_W_c = None if d_joined is None else product(d_joined, torch.cat([contexts, outputs[-1]], dim=-1))
        return torch.stack(d_states), d_attentional, d_keys, d_values, d_W_q, d_w_v, d_W_c, *d_layers

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[torch.Tensor, ...]) -> None:
        """Keep the operator's name."""
        ctx.operator = "BahdanauDecoder" if inputs[7] is None else "LuongDecoder"

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Refuse."""
        raise RuntimeError(
            f"{ctx.operator}: no second derivative is known where its steps are one function. Step by step it has all: "
            'call backends.torch.kernels.set_path("plain") before it is called.'
        )

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *arguments: Any) -> tuple[Any, Any]:
        """One call for each position of the axis that torch.func.vmap adds."""
        return map_axis(StepsGradients, info, in_dims, arguments)


class Features:
    """Additive scores of one query and each key of its sequence, some sequences at a time, with t = tanh(q + k).

    By the formula of the module, s + p / (1/n + a (c/n)), where exponentials of the keys hold. m is that of the keys:
    the number between -k of all keys of the sequence that is nearest to 0, so that s is no larger than the largest t.
    A query is clipped to where t has long been 1 to the last bit, so that the exponentials of queries hold always.
    """

    def __init__(self, keys: torch.Tensor, w_v: torch.Tensor) -> None:
        self.keys, self.w, self.one = keys, w_v, torch.ones_like(w_v)
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

    @cached_property
    def d_keys(self) -> torch.Tensor:
        """The sum of the gradients of the keys, without the factor w."""
        return torch.zeros_like(self.keys)

    @cached_property
    def d_w(self) -> torch.Tensor:
        """The sum of the gradients of w."""
        return torch.zeros_like(self.w)

    def blocks(self, query: torch.Tensor) -> Iterator[torch.Tensor]:
        """The features of the first sequences, as many as there are queries, block by block, in the same place."""
        if self.exact:
            for q, k in zip(query[:, None].split(self.rows), *self.given, strict=False):
                yield torch.add(q, k[: len(q)], out=self.room[: len(q)]).tanh_()
            return
        n = len(query)
        query = query.clamp(self.least[:n], self.most[:n])
        factors = (-2 * query).exp_(), (-2 * (query - self.m[:n])).expm1_().neg_()
        parts = (factor[:, None].split(self.rows) for factor in factors)
        for a, p, *given in zip(*parts, *self.given, strict=False):
            s, first, other = (array[: len(a)] for array in given)
            t = torch.addcmul(first, a, other, out=self.room[: len(a)])
            yield torch.addcdiv(s, p, t, out=t)

    def score(self, query: torch.Tensor, scores: torch.Tensor) -> None:
        """Set the scores to w · t."""
        for t, block in zip(self.blocks(query), scores.split(self.rows), strict=True):
            torch.mv(t.flatten(0, 1), self.w, out=block.flatten())

    def retreat(self, query: torch.Tensor, d_scores: torch.Tensor, d_query: torch.Tensor) -> None:
        """Set d_query, and add to the gradients of the keys and of w."""
        blocks = (tensor.split(self.rows) for tensor in (d_scores, d_query, self.d_keys[: len(query)]))
        for t, g, of_query, of_keys in zip(self.blocks(query), *blocks, strict=True):
            self.d_w.addmv_(t.flatten(0, 1).t(), g.flatten())
            torch.addcmul(self.one, t, t, value=-1, out=t)
            torch.bmm(g[:, None], t, out=of_query[:, None])
            of_keys.addcmul_(t, g[..., None])
        d_query *= self.w

    def gradients(self, queries: torch.Tensor, d_scores: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The gradients of the keys and of w, after all steps."""
        return self.d_keys * self.w, self.d_w


class Products:
    """Inner products of one query with each key of its sequence, and their gradients."""

    def __init__(self, keys: torch.Tensor, scale: float) -> None:
        self.keys, self.scale = keys, scale

    def score(self, query: torch.Tensor, scores: torch.Tensor) -> None:
        """Set the scores to scale · q·k."""
        # A row on the left: with a column on the right, the product of a batch takes eight times as long.
        torch.bmm(query[:, None], self.keys[: len(query)].mT, out=scores[:, None])
        scores *= self.scale

    def retreat(self, query: torch.Tensor, d_scores: torch.Tensor, d_query: torch.Tensor) -> None:
        """Set d_query."""
        torch.bmm(d_scores[:, None], self.keys[: len(query)], out=d_query[:, None])
        d_query *= self.scale

    def gradients(self, queries: torch.Tensor, d_scores: torch.Tensor) -> tuple[torch.Tensor, None]:
        """The gradient of the keys, one product of all steps."""
        return d_scores.permute(1, 2, 0) @ queries.transpose(0, 1) * self.scale, None


def reorder(order: torch.Tensor, axis: int, array: torch.Tensor | None) -> Any:
    """The rows along an axis in this order."""
    return None if array is None else array.index_select(axis, order)


def before(arrays: torch.Tensor, first: torch.Tensor) -> torch.Tensor:
    """The state that each step reads: that of the step before, or the given one at the first step."""
    return torch.cat([first[None], arrays[:-1]])


def products(taken: torch.Tensor | None) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
    """The gradient of the matrix that multiplied the inputs, over all steps and sequences, or over those taken."""

    def product(gradients: torch.Tensor, inputs: torch.Tensor) -> torch.Tensor:
        gradients, inputs = gradients.flatten(0, 1), inputs.flatten(0, 1)
        return gradients.t() @ inputs if taken is None else gradients[taken].t() @ inputs[taken]

    return product


def group_layers(layers: tuple[torch.Tensor, ...]) -> list[tuple[torch.Tensor, ...]]:
    """W, U, b and the hidden bias of each layer."""
    return list(zip(layers[0::4], layers[1::4], layers[2::4], layers[3::4], strict=True))
