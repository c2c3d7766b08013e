"""Right implementations in PyTorch, as people write them: each class is one style, with the cases it is asked."""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from backends.torch import runtime  # noqa: F401


def opened(shape, valid_lens, mask):
    """What may be attended to, from lengths and a mask."""
    allowed = torch.ones(shape, dtype=torch.bool)
    if valid_lens is not None:
        heads = (1,) * (len(shape) - 3)
        rows = valid_lens.reshape(len(valid_lens), *heads, *(valid_lens.shape[1:] or (1,)), 1)
        allowed = allowed & (torch.arange(shape[-1]) < rows)
    return allowed if mask is None else allowed & mask


def cleared(array, allowed):
    """Keys or values, with those that nobody may attend to set to 0."""
    return array.masked_fill(~allowed.any(dim=-2).unsqueeze(-1), 0.0)


class FillAndWhere:
    """A softmax with -inf at hidden keys, and zeros where a row has no key."""

    cases = (
        "masked_softmax-[!cf]*",
        "attention_pooling-[!cf]*",
        "AdditiveAttention-[nmrlo]*",
        "GeneralAttention-[nmrlo]*",
    )

    def masked_softmax(scores, valid_lens=None, mask=None):
        allowed = opened(scores.shape, valid_lens, mask) & (scores > -torch.inf)
        some = allowed.any(dim=-1, keepdim=True)
        scores = torch.where(allowed, scores, -torch.inf)
        return torch.where(some, torch.softmax(torch.where(some, scores, 0.0), dim=-1), 0.0)

    def attention_pooling(scores, values, valid_lens=None, mask=None, *, dropout_mask=None):
        weights = FillAndWhere.masked_softmax(scores, valid_lens, mask)
        values = cleared(values, opened(scores.shape, valid_lens, mask) & (scores > -torch.inf))
        return torch.matmul(weights if dropout_mask is None else weights * dropout_mask, values), weights

    def AdditiveAttention(parameters, queries, keys, values, valid_lens=None, mask=None):
        allowed = opened((*queries.shape[:-1], keys.shape[-2]), valid_lens, mask)
        projected = F.linear(queries, parameters["W_q"]).unsqueeze(-2)
        hidden = torch.tanh(projected + F.linear(cleared(keys, allowed), parameters["W_k"]).unsqueeze(-3))
        return FillAndWhere.attention_pooling(hidden @ parameters["w_v"], values, mask=allowed)

    def GeneralAttention(parameters, queries, keys, values, valid_lens=None, mask=None):
        allowed = opened((*queries.shape[:-1], keys.shape[-2]), valid_lens, mask)
        scores = torch.einsum("...qd,de,...ke->...qk", queries, parameters["W"], cleared(keys, allowed))
        return FillAndWhere.attention_pooling(scores, values, mask=allowed)


class ScaledDotProductAttention:
    """PyTorch's own function, with a boolean mask, and with one that is added."""

    cases = "DotProductAttention-[!efctp]*", "MultiHeadAttention-[nromlh]*"

    def DotProductAttention(parameters, queries, keys, values, valid_lens=None, mask=None, *, scale=None):
        if valid_lens is None and mask is None:
            return F.scaled_dot_product_attention(queries, keys, values, scale=scale)
        allowed = opened((*queries.shape[:-1], keys.shape[-2]), valid_lens, mask)
        keys, values = cleared(keys, allowed), cleared(values, allowed)
        return F.scaled_dot_product_attention(queries, keys, values, attn_mask=allowed, scale=scale)

    def MultiHeadAttention(parameters, queries, keys, values, valid_lens=None, mask=None, *, num_heads, bias=True):
        def project(array, name):
            return F.linear(array, parameters[f"W_{name}"], parameters[f"b_{name}"] if bias else None)

        if mask is not None and mask.ndim == 3:
            mask = mask[:, None]
        allowed = opened((len(queries), num_heads, queries.shape[1], keys.shape[1]), valid_lens, mask)
        keys, values = (array.masked_fill(~allowed.any(dim=(1, 2))[..., None], 0.0) for array in (keys, values))
        queries, keys, values = (
            torch.stack(project(array, name).chunk(num_heads, dim=-1), dim=1)
            for array, name in ((queries, "q"), (keys, "k"), (values, "v"))
        )
        added = torch.zeros(allowed.shape, dtype=queries.dtype).masked_fill(~allowed, -torch.inf)
        context = F.scaled_dot_product_attention(queries, keys, values, attn_mask=added)
        context = torch.where(allowed.any(dim=-1, keepdim=True), context, 0.0)
        return project(torch.cat(context.unbind(dim=1), dim=-1), "o")


class OnlineSoftmax:
    """Flash attention: blocks of keys, a running maximum, and a running sum."""

    cases = "DotProductAttention-[!efctpl]*", "NadarayaWatson-[!cf]*", "KernelAttention-[nomr]*"

    def attend(scores, values, allowed, block=2):
        highest = torch.full((*scores.shape[:-1], 1), -torch.inf, dtype=scores.dtype)
        total, context = torch.zeros_like(highest), scores.new_zeros(*scores.shape[:-1], values.shape[-1])
        for start in range(0, scores.shape[-1], block):
            part = scores[..., start : start + block].masked_fill(~allowed[..., start : start + block], -torch.inf)
            higher = torch.maximum(highest, part.amax(dim=-1, keepdim=True))
            safe = torch.where(higher == -torch.inf, 0.0, higher)
            raised, rescaled = torch.exp(part - safe), torch.exp(highest - safe)
            total = total * rescaled + raised.sum(dim=-1, keepdim=True)
            context = context * rescaled + raised @ values[..., start : start + block, :]
            highest = higher
        return context / torch.where(total == 0.0, 1.0, total)

    def DotProductAttention(parameters, queries, keys, values, valid_lens=None, mask=None):
        allowed = opened((*queries.shape[:-1], keys.shape[-2]), valid_lens, mask)
        scores = queries @ cleared(keys, allowed).mT / queries.shape[-1] ** 0.5
        return OnlineSoftmax.attend(scores, cleared(values, allowed), allowed)

    def NadarayaWatson(parameters, queries, keys, values, mask=None, *, width=1.0, learned=False):
        allowed = opened((*queries.shape, keys.shape[-1]), None, mask)
        w = parameters["kernel.w"] if learned else 1 / width
        keys, values = cleared(keys.unsqueeze(-1), allowed), cleared(values.unsqueeze(-1), allowed)
        scores = -((queries.unsqueeze(-1) - keys.mT) * w).square() / 2
        return OnlineSoftmax.attend(scores, values, allowed).squeeze(-1)

    def KernelAttention(parameters, queries, keys, values, valid_lens=None, mask=None, width=1.0, learned=False):
        allowed = opened((*queries.shape[:-1], keys.shape[-2]), valid_lens, mask)
        w = parameters["w"] if learned else 1 / width
        distance = (queries.unsqueeze(-2) - cleared(keys, allowed).unsqueeze(-3)) * w
        return OnlineSoftmax.attend(-distance.square().sum(dim=-1) / 2, cleared(values, allowed), allowed)


class Softmax(nn.Module):
    def forward(self, scores: Tensor, mask: Tensor | None = None) -> Tensor:
        return FillAndWhere.masked_softmax(scores, None, mask)


class Score(nn.Module):
    def forward(self, queries: Tensor, keys: Tensor, **options: float) -> Tensor:
        return self.scaled(queries, keys, **options)

    def scaled(self, queries: Tensor, keys: Tensor, scale: float | None = None) -> Tensor:
        return torch.einsum("...qd,...kd->...qk", queries, keys) * (
            max(queries.shape[-1], 1) ** -0.5 if scale is None else scale
        )


class Modules:
    """Instances of modules as functions: forward has the signature, and passes on what it does not name."""

    cases = "masked_softmax-[!cf]*", "scaled_dot_score-[!cf]*"
    masked_softmax = Softmax()
    scaled_dot_score = Score()


class Scored(NamedTuple):
    context: Tensor
    sums: Tensor
    norms: Tensor


class LinearAttention:
    """Linear attention with einsum, a guarded division, and a named tuple."""

    cases = "linear_attention-[!cfs]*", "linear_attention-causal*", "linear_attention_step-[!c]*"

    def features(array):
        return torch.where(array > 0, array + 1, torch.exp(torch.clamp(array, max=0)))

    def divided(totals, norms):
        return totals / torch.where(norms == 0, 1.0, norms)

    def linear_attention(queries, keys, values, valid_lens=None, mask=None, *, causal=False):
        allowed = opened((*keys.shape[:-2], 1, keys.shape[-2]), valid_lens, mask)
        values = cleared(values, allowed)
        keys = torch.where(allowed.mT, LinearAttention.features(cleared(keys, allowed)), 0.0)
        queries = LinearAttention.features(queries)
        if causal:
            weights = torch.tril(torch.einsum("...id,...jd->...ij", queries, keys))
            return LinearAttention.divided(weights @ values, weights.sum(dim=-1, keepdim=True))
        sums = torch.einsum("...jd,...jv->...dv", keys, values)
        norms = torch.einsum("...id,...jd->...i", queries, keys).unsqueeze(-1)
        return LinearAttention.divided(torch.einsum("...id,...dv->...iv", queries, sums), norms)

    def linear_attention_step(queries, keys, values, sums, norms):
        queries, keys = LinearAttention.features(queries), LinearAttention.features(keys)
        sums, norms = sums + torch.einsum("...d,...v->...dv", keys, values), norms + keys
        norm = torch.einsum("...d,...d->...", queries, norms).unsqueeze(-1)
        return Scored(LinearAttention.divided(torch.einsum("...d,...dv->...v", queries, sums), norm), sums, norms)


class Functions:
    """What torch.nn.functional has, and torch.nn's recurrent layers."""

    cases = (
        *("LayerNorm-[!cf]*", "RMSNorm-[!cf]*", "FeedForward-[!cf]*", "masked_cross_entropy-*", "cosine_score-[phns]*"),
        *("patches-[!n]*", "GRU-[!cfs]*", "GRUEncoder-[!cfs]*", "LearnedPositions-*"),
    )

    def LayerNorm(parameters, inputs, *, epsilon=1e-5, bias=True):
        return F.layer_norm(inputs, inputs.shape[-1:], parameters["g"], parameters["b"] if bias else None, epsilon)

    def RMSNorm(parameters, inputs, *, epsilon=1e-5):
        return F.rms_norm(inputs, inputs.shape[-1:], parameters["g"], epsilon)

    def FeedForward(parameters, inputs, activation="relu", gated=False, bias=True):
        def linear(array, name):
            return F.linear(array, parameters[f"W_{name}"], parameters[f"b_{name}"] if bias else None)

        act = {"gelu_tanh": lambda x: F.gelu(x, approximate="tanh")}.get(activation) or getattr(F, activation)
        return linear(act(linear(inputs, 1)) * (linear(inputs, 3) if gated else 1), 2)

    def masked_cross_entropy(logits, targets, valid_lens=None):
        targets = targets.long()  # which holds -100
        if valid_lens is not None:
            hidden = torch.arange(targets.shape[1]) >= valid_lens[:, None]
            targets, logits = targets.masked_fill(hidden, -100), logits.masked_fill(hidden[..., None], 0.0)
        total = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=-100, reduction="sum")
        return total / (targets != -100).sum().clamp(min=1)

    def cosine_score(queries, keys, *, scale=None):
        scores = F.normalize(queries, dim=-1) @ F.normalize(keys, dim=-1).mT
        return scores if scale is None else scale * scores

    def patches(images, *, patch_size):
        channels = images.shape[-1]
        cut = F.unfold(images.permute(0, 3, 1, 2), patch_size, stride=patch_size)
        return cut.mT.unflatten(-1, (channels, patch_size**2)).mT.flatten(-2)

    def GRU(parameters, inputs, valid_lens=None, state=None, num_layers=1):
        hidden = parameters["0.U"].shape[-1]
        if state is None:
            state = inputs.new_zeros(num_layers, len(inputs), hidden)
        last, steps = [], torch.arange(inputs.shape[1])
        shown = torch.ones(inputs.shape[:2], dtype=torch.bool) if valid_lens is None else steps < valid_lens[:, None]
        inputs = inputs.masked_fill(~shown[..., None], 0.0)
        for layer in range(num_layers):
            W, U, b, b_hn = (parameters[f"{layer}.{name}"] for name in ("W", "U", "b", "b_hn"))
            weights = (
                W.flatten(0, 1),
                U.flatten(0, 1),
                b.flatten(),
                torch.cat([torch.zeros(2 * hidden, dtype=b.dtype), b_hn]),
            )
            h, outputs = state[layer], []
            for step in range(inputs.shape[1]):
                open_ = shown[:, step, None]
                h = torch.where(open_, torch.gru_cell(inputs[:, step], h, *weights), h)
                outputs.append(torch.where(open_, h, 0.0))
            last.append(h)
            inputs = torch.stack(outputs, dim=1) if outputs else inputs.new_zeros(len(inputs), 0, hidden)
        return inputs, torch.stack(last)

    def GRUEncoder(parameters, tokens, valid_lens=None, num_layers=1):
        own = {name.removeprefix("rnn."): array for name, array in parameters.items() if name.startswith("rnn.")}
        return Functions.GRU(own, F.embedding(tokens, parameters["embedding"]), valid_lens, None, num_layers)

    def LearnedPositions(parameters, inputs, *, offset=0):
        return inputs + F.embedding(torch.arange(offset, offset + inputs.shape[-2]), parameters["P"])


class Layers:
    """Layers of other papers, by convolutions, concatenation and one_hot."""

    cases = (
        *(f"{name}-[nmrlso]*" for name in ("ConcatAttention", "LocationAttention", "LowRankAttention")),
        *("ConcatAttention-with_bias_[oldf]*", "ConcatAttention-bias", "CompressedAttention-[mrlsobw]*"),
        *("LocalAttention-[nmrlo]*", "HardAttention-[nmrlo]*", "Bridge-[cs][ou][nm]*"),
    )

    def ConcatAttention(
        parameters, queries, keys, values, valid_lens=None, mask=None, bias=False, score_bias=None, dropout_mask=None
    ):
        allowed = opened((*queries.shape[:-1], keys.shape[-2]), valid_lens, mask)
        pairs = queries.unsqueeze(-2), cleared(keys, allowed).unsqueeze(-3)
        shape = torch.broadcast_shapes(*(array.shape[:-1] for array in pairs))
        pairs = [array.expand(*shape, array.shape[-1]) for array in pairs]
        hidden = F.linear(torch.cat(pairs, dim=-1), parameters["W"], parameters["b"] if bias else None)
        scores = hidden.tanh() @ parameters["v"]
        scores = scores if score_bias is None else scores + score_bias
        return FillAndWhere.attention_pooling(scores, values, mask=allowed, dropout_mask=dropout_mask)

    def LocationAttention(parameters, queries, keys, values, valid_lens=None, mask=None):
        scores = F.linear(queries, parameters["W"][: keys.shape[-2]])
        return FillAndWhere.attention_pooling(scores, values, valid_lens, mask)

    def LowRankAttention(parameters, queries, keys, values, mask=None, scale=None):
        allowed = opened((*keys.shape[:-2], 1, keys.shape[-2]), None, mask)
        E, F_ = (parameters[name][:, : keys.shape[-2]] for name in "EF")
        keys, values = E @ cleared(keys, allowed), F_ @ cleared(values, allowed)
        scores = queries @ keys.mT * (queries.shape[-1] ** -0.5 if scale is None else scale)
        return FillAndWhere.attention_pooling(
            scores, values, mask=allowed.any(dim=-1, keepdim=True).expand(scores.shape)
        )

    def CompressedAttention(parameters, queries, keys, values, mask=None, *, bias=True, scale=None):
        allowed = opened((*keys.shape[:-2], 1, keys.shape[-2]), None, mask)
        stride = parameters["W_k"].shape[-1] // keys.shape[-1]
        extra = -keys.shape[-2] % stride

        def compress(array, name):
            array = F.pad(cleared(array, allowed), (0, 0, 0, extra)).flatten(0, -3).mT
            kernel = parameters[f"W_{name}"].unflatten(-1, (stride, array.shape[1])).mT
            short = F.conv1d(array, kernel, parameters[f"b_{name}"] if bias else None, stride=stride)
            return short.mT.unflatten(0, keys.shape[:-2])

        blocks = F.pad(allowed, (0, extra)).unflatten(-1, (-1, stride)).any(dim=-1)
        short, values = compress(keys, "k"), compress(values, "v")
        scores = queries @ short.mT * (short.shape[-1] ** -0.5 if scale is None else scale)
        return FillAndWhere.attention_pooling(scores, values, mask=blocks.expand(scores.shape))

    def LocalAttention(parameters, queries, keys, values, valid_lens=None, mask=None, *, window):
        allowed = opened((*queries.shape[:-1], keys.shape[-2]), valid_lens, mask)
        near = torch.ones(allowed.shape[-2:], dtype=torch.bool).triu(-window).tril(window)
        scores = torch.einsum("...qd,de,...ke->...qk", queries, parameters["scored.W"], cleared(keys, allowed))
        return FillAndWhere.attention_pooling(scores, values, mask=allowed & near)

    def HardAttention(parameters, queries, keys, values, valid_lens=None, mask=None):
        scored = {name.removeprefix("scored."): array for name, array in parameters.items()}
        allowed = opened((*queries.shape[:-1], keys.shape[-2]), valid_lens, mask)
        _, weights = FillAndWhere.AdditiveAttention(scored, queries, keys, values, valid_lens, mask)
        if not keys.shape[-2]:
            return weights @ values, weights
        one = F.one_hot(weights.argmax(dim=-1), keys.shape[-2]).to(values.dtype) * allowed.any(dim=-1, keepdim=True)
        return one @ cleared(values, allowed), one

    def Bridge(parameters, outputs, state, *, method, num_layers, cell):
        if method == "concatenate":
            return outputs, state
        parts = state.unflatten(-1, (2 if cell == "lstm" else 1, 2, -1))
        return sum(outputs.chunk(2, dim=-1)), parts.sum(dim=-2).flatten(-2)


class Views:
    """What is returned is a view of an argument, transposed or expanded, or an argument itself."""

    cases = "location_score-*", "dot_score-*", "from_key_padding_mask-*", "mask_and-*"

    def location_score(num_keys, queries):
        return queries.narrow(-1, 0, num_keys)

    def dot_score(queries, keys):
        return (keys @ queries.mT).mT

    def from_key_padding_mask(key_padding_mask):
        return key_padding_mask.logical_not().unsqueeze(1)

    def mask_and(first, second):
        return second.expand(torch.broadcast_shapes(first.shape, second.shape)) if bool(first.all()) else first & second
