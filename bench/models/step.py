"""One inference or one training step: what is timed, what is checked, and how far it may be off."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from bench.models.base import Model, Size, without_dropout

Call = Callable[..., Tensor]

# Half a unit in the last place, of the largest share of a value: what the store alone may lose.
_ROUNDING = {torch.bfloat16: 2.0**-9, torch.float16: 2.0**-12, torch.float32: 2.0**-25, torch.float64: 0.0}


@dataclass(frozen=True)
class Step:
    """A module with its inputs.

    Attributes:
        module: in training mode or not, in the dtype that is measured.
        inputs: its arguments; floating ones in the module's dtype.
        training: whether gradients are taken too.
        gradient: of the output, where they are.
    """

    module: nn.Module
    inputs: tuple[Tensor, ...]
    training: bool
    gradient: Tensor | None = None

    @staticmethod
    def of(
        model: Model,
        size: Size,
        *,
        training: bool,
        device: str = "cpu",
        dtype: torch.dtype = torch.bfloat16,
        dropout: bool = True,
        seed: int = 0,
    ) -> Step:
        """Of a model at a size; without dropout a training step is deterministic."""
        with torch.device(device):
            module = model.module(size, seed=seed).to(dtype).train(training)
            inputs = tuple(x.to(dtype) for x in model.arguments(size, seed=seed + 1))
            if not dropout:
                without_dropout(module)
            if not training:
                return Step(module, inputs, training)
            with torch.no_grad():
                shape = copy.deepcopy(module)(*inputs).shape
            return Step(module, inputs, training, torch.randn(shape).to(dtype))

    def to(self, dtype: torch.dtype) -> Step:
        """A copy in another dtype."""
        gradient = None if self.gradient is None else self.gradient.to(dtype)
        inputs = tuple(x.to(dtype) for x in self.inputs)
        return Step(copy.deepcopy(self.module).to(dtype), inputs, self.training, gradient)

    def copy(self) -> Step:
        """The same step on a module of its own: BatchNorm's statistics change with every training step."""
        return self.to(self.inputs[0].dtype)

    def call(self, compiled: Call | None = None) -> Callable[[], tuple[Tensor, ...]]:
        """A function of nothing that runs the step: the output, then the gradients in the order of `names`.

        Args:
            compiled: what runs the module; None: the module itself.
        """
        run = compiled if compiled is not None else self.module
        if not self.training:

            def infer() -> tuple[Tensor, ...]:
                with torch.no_grad():
                    return (run(*self.inputs),)

            return infer

        first = self.inputs[0].detach().requires_grad_()
        leaves = [first, *self.module.parameters()]

        def train() -> tuple[Tensor, ...]:
            output = run(first, *self.inputs[1:])
            gradients = torch.autograd.grad(output, leaves, self.gradient)
            return (output.detach(), *gradients)

        return train

    @property
    def names(self) -> list[str]:
        """Of what `call` gives."""
        if not self.training:
            return ["output"]
        parameters = [f"gradient of {name}" for name, _ in self.module.named_parameters()]
        return ["output", "gradient of the input", *parameters]

    def results(self, compiled: Call | None = None) -> dict[str, Tensor]:
        """What one step gives, by name; the module's floating-point buffers as they are after it too."""
        given = dict(zip(self.names, self.call(compiled)(), strict=True))
        if self.training:
            given |= {n: b.clone() for n, b in self.module.named_buffers() if b.is_floating_point()}
        return given


def truth(step: Step) -> dict[str, Tensor]:
    """The step's results in float64.

    RMSNorms of transformers take their statistics in float32 even then: exact to 1e-7, far below what is
    compared with it.
    """
    return step.to(torch.float64).results()


def distances(results: Mapping[str, Tensor], exact: Mapping[str, Tensor]) -> dict[str, float]:
    """The Frobenius norm of each result's error; infinite if an element is not finite.

    Raises:
        ValueError: the two do not name the same tensors.
    """
    if results.keys() != exact.keys():
        raise ValueError(f"results {sorted(results)}, expected {sorted(exact)}")
    return {name: _distance(x, exact[name]) for name, x in results.items()}


def _distance(x: Tensor, exact: Tensor) -> float:
    if not bool(torch.isfinite(x.float()).all()):
        return math.inf
    return float((x.double() - exact).norm())


def allowed(results: Mapping[str, Tensor], exact: Mapping[str, Tensor]) -> dict[str, float]:
    """The error that a fused step may have, from the results of the eager one: twice as much as that one, and
    always what its last rounding alone may lose.
    """
    errors = distances(results, exact)
    return {
        name: max(2 * error, _ROUNDING[results[name].dtype] * float(exact[name].norm()))
        for name, error in errors.items()
    }


def beyond(errors: Mapping[str, float], bounds: Mapping[str, float]) -> list[str]:
    """The errors above their bounds, as text; empty if all are within."""
    return [f"{n}: error {e:.3e}, {bounds[n]:.3e} allowed" for n, e in errors.items() if not e <= bounds[n]]
