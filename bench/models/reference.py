"""What a provider's results are held against before it is timed."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from bench.models.base import Model, Size
from bench.models.providers import PROVIDERS
from bench.models.step import Call, Step, allowed, beyond, distances, truth
from bench.verify import poisoned

_SEED = 11
_PLAINLY_WRONG = 8  # times what is allowed


class Reference:
    """Results and bounds of one step.

    Without random numbers: the results in float64; allowed is twice the eager step's error, or 1.1 times that
    of a baseline if that is more.  Baselines themselves are only kept from being plainly wrong.

    With dropout no eager step draws what a compiled one draws, but all compiled ones draw the same from the
    same seed.  Then: the results of TorchInductor.  Both it and a provider may be off by what is allowed
    without dropout, so twice that is allowed between them.

    Attributes:
        step: what to compile and to time.
        bounds: the error that is allowed, by name.
        eager_error: of the eager step's output against float64, relative.
    """

    def __init__(
        self,
        model: Model,
        size: Size,
        *,
        training: bool,
        device: str,
        yardstick: Callable[[nn.Module], Call] = PROVIDERS["inductor"].compile,
    ) -> None:
        plain = Step.of(model, size, training=training, device=device, dropout=False)
        exact, eager = truth(plain), plain.copy().results()
        self.eager_error = distances(eager, exact)["output"] / float(exact["output"].norm())
        self._names = plain.names
        bounds = allowed(eager, exact)
        self.drawn = model.dropout and training
        if not self.drawn:
            self.step = plain
            self._expected = {name: exact[name] for name in self._names}
            self.bounds = {name: bounds[name] for name in self._names}
            return
        del exact, eager
        self.step = Step.of(model, size, training=training, device=device)
        call = self.step.call(yardstick(self.step.module))
        self._expected = {name: x.double() for name, x in self.results(call).items()}
        self.bounds = {name: 2 * bounds[name] for name in self._names}

    def results(self, call: Callable[[], tuple[Tensor, ...]]) -> dict[str, Tensor]:
        """A call's results, from memory that held NaN, with the reference's seed."""

        def seeded() -> tuple[Tensor, ...]:
            torch.manual_seed(_SEED)
            return call()

        return dict(zip(self._names, poisoned(seeded), strict=True))

    def errors(self, results: dict[str, Tensor]) -> dict[str, float]:
        """The Frobenius norm of each result's difference from what is expected."""
        return distances(results, self._expected)

    def wrong(self, errors: dict[str, float], *, baseline: bool) -> list[str]:
        """What is further off than allowed, as text; a baseline's errors raise what is allowed then."""
        if not baseline:
            return beyond(errors, self.bounds)
        found = beyond(errors, {name: _PLAINLY_WRONG * bound for name, bound in self.bounds.items()})
        if not found:
            self.bounds = {name: max(bound, 1.1 * errors[name]) for name, bound in self.bounds.items()}
        return found

    def relative(self, errors: dict[str, float]) -> float:
        """The output's error as a share of it."""
        return errors["output"] / float(self._expected["output"].norm())
