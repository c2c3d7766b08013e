"""Loss, clipping, optimisers, and the training of a translator, in PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch.nn import functional
from torch.optim import Optimizer

from attention_core.errors import check_options, check_state
from attention_core.operators.training import ADAM, CLIP_BY_GLOBAL_NORM, MASKED_CROSS_ENTROPY, SGD, Batch, rate_at
from backends.torch.arrays import Lengths, check, from_numpy, lengths
from backends.torch.decoders import Decoder
from backends.torch.graphs import has_hooks
from backends.torch.masking import precise
from backends.torch.module import check_ids
from backends.torch.parameters import get_parameters, locate_parameters
from backends.torch.transformer import TransformerDecoder
from backends.torch.translation import EncoderDecoder, TransformerTranslator, Translator

__all__ = ["masked_cross_entropy", "clip_by_global_norm", "sgd", "adam", "Trainer"]

MOMENTS = {"m": "exp_avg", "v": "exp_avg_sq"}
"""Where torch.optim.Adam keeps what the specification calls m and v."""


def masked_cross_entropy(
    logits: torch.Tensor, targets: torch.Tensor, valid_lens: Lengths | None = None
) -> torch.Tensor:
    """Average the cross-entropy of the logits over the open steps; 0 if no step is open.

    loss = sum over open (b, t) of -ln softmax(logits[b, t])[targets[b, t]] / number of open (b, t)

    Every token of the batch has the same weight, in long and in short sentences. Steps that are not open, NaN and inf
    included, have no effect, but their targets must be in the vocabulary.

    Args:
        logits: (batch, steps, vocab_size); scores of each token (natural logarithm)
        targets: integers (batch, steps); the correct tokens
        valid_lens (default None): integers (batch,), or a list; step t is open where t < valid_len; other steps have no
            effect
    Returns:
        loss: (); nats per token; exp(loss) is the perplexity
    Source: Sutskever et al. 2014, section 3.2, arXiv:1409.3215, with a mean over tokens in place of sentences
    Example:
        loss = attention.masked_cross_entropy(logits, targets)
    """
    check(MASKED_CROSS_ENTROPY, logits=logits, targets=targets, valid_lens=valid_lens)
    check_ids("masked_cross_entropy", "targets", targets, logits.shape[-1])
    hidden = ~open_steps(targets, valid_lens).flatten()
    # Cleared first: what stands in hidden steps may be NaN, and 0 · NaN is NaN in the gradient.
    losses = losses_of(logits.flatten(0, 1).masked_fill(hidden[:, None], 0.0), targets.flatten())
    return (losses.masked_fill(hidden, 0.0).sum() / (~hidden).sum().clamp(min=1)).to(logits.dtype)


def open_steps(targets: torch.Tensor, valid_lens: Lengths | None) -> torch.Tensor:
    """Whether each step counts in the loss, (batch, steps)."""
    if valid_lens is None:
        return torch.ones_like(targets, dtype=torch.bool)
    return torch.arange(targets.shape[1], device=targets.device) < lengths(valid_lens, targets.device)[:, None]


def losses_of(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """The cross-entropy of each row of logits, in float32 at least."""
    return functional.cross_entropy(precise(logits), targets.long(), reduction="none")


def clip_by_global_norm(
    gradients: Sequence[torch.Tensor], *, max_norm: float | None = None
) -> tuple[list[torch.Tensor], torch.Tensor]:
    """Scale all gradients by one factor, so that their global norm is at most max_norm.

    norm = √(sum over all entries g of all gradients of g²);  clipped = gradients · min(1, max_norm/norm)

    torch.nn.utils.clip_grad_norm_ adds 1e-6 to the norm; here nothing is added.
    """
    check_options(CLIP_BY_GLOBAL_NORM, max_norm=max_norm)
    wide = [precise(gradient) for gradient in gradients if gradient.numel()]
    norm = global_norm(wide).to(gradients[0].dtype) if wide else torch.zeros(())
    if max_norm is None:
        return list(gradients), norm
    factor = torch.where(norm > max_norm, max_norm / norm, 1.0)
    return [gradient * factor for gradient in gradients], norm


def global_norm(gradients: Sequence[torch.Tensor]) -> torch.Tensor:
    """The root of the sum of the squares of all entries; there is at least one."""
    # Divided by the largest entry of all, gradients have squares that neither underflow nor overflow.
    largest = torch.stack([gradient.abs().amax() for gradient in gradients]).amax()
    scale = largest.masked_fill(~largest.isfinite() | (largest == 0.0), 1.0)
    # Not vector_norm, nor what calls it: on a CPU it adds up in a few lanes, and is off by 2e-4 for 8 million float32.
    return torch.stack([(gradient / scale).square().sum() for gradient in gradients]).sum().sqrt() * scale


WRITTEN = (Translator, TransformerTranslator, Decoder, TransformerDecoder)


def as_written(model: EncoderDecoder) -> bool:
    """Whether calls of the translator and its decoder are those written here: not overridden, hooked or compiled."""
    for layer in (model, getattr(model, "decoder", None)):
        forward = getattr(getattr(layer, "forward", None), "__func__", None)
        if forward not in [base.forward for base in WRITTEN] or has_hooks(layer):
            return False
    return not torch.compiler.is_compiling()


Recipe = Callable[[Iterable[torch.nn.Parameter]], Optimizer]
"""What PyTorch's optimisers are without their parameters."""


def sgd(learning_rate: float, *, warmup: int | None = None) -> Recipe:
    """Stochastic gradient descent, for a Trainer.

    θ' = θ - learning_rate · g
    with warmup, step t counting from 1 has the rate learning_rate · min(t/warmup, √(warmup/t))
    """
    check_options(SGD, learning_rate=learning_rate, warmup=warmup)
    return with_schedule(partial(torch.optim.SGD, lr=learning_rate), learning_rate, warmup)


def adam(
    learning_rate: float, beta1: float = 0.9, beta2: float = 0.999, epsilon: float = 1e-08, *, warmup: int | None = None
) -> Recipe:
    """Adam, for a Trainer.

    θ' = θ - learning_rate · m̂ / (√v̂ + epsilon)
    with warmup, step t counting from 1 has the rate learning_rate · min(t/warmup, √(warmup/t))

    PyTorch's own has the same formula; fused, it is one pass over each parameter.
    """
    check_options(ADAM, learning_rate=learning_rate, beta1=beta1, beta2=beta2, epsilon=epsilon, warmup=warmup)
    recipe = partial(torch.optim.Adam, lr=learning_rate, betas=(beta1, beta2), eps=epsilon, fused=True)
    return with_schedule(recipe, learning_rate, warmup)


def with_schedule(recipe: Recipe, learning_rate: float, warmup: int | None) -> Recipe:
    """The optimiser with a rate that follows its steps, which are counted in its groups."""

    def advance(optimizer: Optimizer, *_: Any) -> None:
        for group in optimizer.param_groups:
            group["steps"] = group.get("steps", 0) + 1
            group["lr"] = rate_at(learning_rate, warmup, group["steps"])

    def make(parameters: Iterable[torch.nn.Parameter]) -> Optimizer:
        optimizer = recipe(parameters)
        optimizer.register_step_pre_hook(advance)
        return optimizer

    return recipe if warmup is None else make


def descend(
    optimizer: Recipe, parameters: Sequence[torch.Tensor], gradients: Sequence[torch.Tensor]
) -> list[torch.Tensor]:
    """Return the parameters after one step of the optimiser for each row of the given gradients."""
    moved = [torch.nn.Parameter(array.detach().clone()) for array in parameters]
    made = optimizer(moved)
    for row in zip(*gradients, strict=True):
        for parameter, gradient in zip(moved, row, strict=True):
            parameter.grad = gradient.detach().clone()
        made.step()
    return [parameter.detach() for parameter in moved]


class Trainer:
    """Train a translator: each step computes loss and gradients of a batch, clips them, and moves the parameters.

    loss = masked_cross_entropy(model(source, inputs, source_lens), targets, target_lens)
    """

    def __init__(self, model: EncoderDecoder, optimizer: Recipe, *, max_norm: float | None = None) -> None:
        check_options(CLIP_BY_GLOBAL_NORM, max_norm=max_norm)
        self.model = model
        self.optimizer = optimizer(model.parameters())
        self.max_norm = max_norm
        self.steps = 0

    def step(self, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        """Train on one batch.

        Returns (loss, norm): the loss before the step, in nats per token, and the gradients' norm before clipping.
        """
        self.model.train()
        self.optimizer.zero_grad()
        loss = self.loss(batch)
        loss.backward()
        parameters = list(self.model.parameters())
        gradients = [torch.zeros_like(one) if one.grad is None else one.grad for one in parameters]
        clipped, norm = clip_by_global_norm(gradients, max_norm=self.max_norm)
        for parameter, gradient in zip(parameters, clipped, strict=True):
            parameter.grad = gradient
        self.optimizer.step()
        self.steps += 1
        return loss.detach(), norm

    @torch.no_grad()
    def evaluate(self, batch: Batch) -> torch.Tensor:
        """Compute the loss of one batch, in nats per token, without dropout and without a step."""
        self.model.eval()
        return self.loss(batch._replace(masks={}))

    def loss(self, batch: Batch) -> torch.Tensor:
        """Compute the loss of one batch; of steps that do not count in it, no logits."""
        model, targets = self.model, batch.targets
        if not as_written(model):
            return masked_cross_entropy(model(**batch.arguments)[0], targets, batch.target_lens)
        self._check(batch)
        opened = open_steps(targets, batch.target_lens)
        # A recurrent decoder leaves out the other steps, a Transformer computes all at once.
        skipped = {"lens": opened.sum(dim=1)} if isinstance(model, Translator) else {}
        features = model._features(**batch.arguments, **skipped)
        rows = opened.flatten().nonzero()[:, 0]
        logits = model.decoder._logits(features.flatten(0, 1)[rows])
        return (losses_of(logits, targets.flatten()[rows]).sum() / max(len(rows), 1)).to(logits.dtype)

    def seed(self, number: int) -> None:
        """Seed PyTorch's generator, from which dropout draws."""
        torch.manual_seed(number)

    def get_state(self) -> dict[str, np.ndarray]:
        """Return the optimiser's state: step, the steps done, and of Adam m.<name> and v.<name> of each parameter."""
        arrays: dict[str, np.ndarray] = {"step": np.array(self.steps, np.int64)}
        for moment in self.moments:
            read = lambda parameter, kept=MOMENTS[moment]: self.optimizer.state[parameter].get(kept)  # noqa: E731
            arrays |= {f"{moment}.{name}": array for name, array in get_parameters(self.model, read=read).items()}
        return arrays

    def set_state(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Continue from the state of another Trainer, whose optimiser has the same options."""
        dtype = self.model.decoder.embedding.weight.dtype
        check_state(self.model.specification, self.model.sizes, dtype, self.moments, arrays)
        self.steps = int(arrays["step"])
        for group in self.optimizer.param_groups:
            group["steps"] = self.steps
        for name, parameter, axes in locate_parameters(self.model):
            for moment in self.moments:
                array = arrays[f"{moment}.{name}"]
                array = array if axes is None else array.transpose(np.argsort(axes))
                self.optimizer.state[parameter][MOMENTS[moment]] = from_numpy(array).to(parameter.device)
            if self.moments:
                self.optimizer.state[parameter]["step"] = torch.tensor(float(self.steps), device=parameter.device)

    @property
    def moments(self) -> tuple[str, ...]:
        """The names of the moments that the optimiser keeps of each parameter."""
        return tuple(MOMENTS) if isinstance(self.optimizer, torch.optim.Adam) else ()

    def _check(self, batch: Batch) -> None:
        """Refuse a batch that does not fit the model; the encoder checks its tokens itself."""
        model, vocab_size = self.model, self.model.sizes["target_vocab_size"]
        model._check("call", **batch.arguments)
        logits = torch.empty(*batch.inputs.shape, vocab_size, dtype=model.decoder.embedding.weight.dtype, device="meta")
        check(MASKED_CROSS_ENTROPY, logits=logits, targets=batch.targets, valid_lens=batch.target_lens)
        check_ids(model.decoder.specification.name, "tokens", batch.inputs, vocab_size)
        check_ids("masked_cross_entropy", "targets", batch.targets, vocab_size)
