"""``comfuse calibrate``: the cost model's constants, measured on this GPU."""

from __future__ import annotations

from dataclasses import fields

import click

from comfuse.calibration import Calibration
from comfuse.generator.plan.constants import Constants


@click.command()
@click.option(
    "--rounds",
    default=20,
    show_default=True,
    type=click.IntRange(min=1),
    help="Timing rounds of each launch.",
)
def calibrate(rounds: int) -> None:
    """Measure on this GPU what the cost model predicts times with, and plan with that from now on.

    Builds some thirty small kernels and times them, which takes a few minutes. What was found is kept in the
    user's data folder, or in that which COMFUSE_CALIBRATION names, for this model of GPU and its number of
    SMs; deleting the file brings the planner's own constants back.
    """
    import torch

    from comfuse import calibration
    from comfuse.calibrate import calibrate as measure
    from comfuse.calibrate.on_gpu import GpuTimer
    from comfuse.ops import resolver

    def say(line: str) -> None:
        click.echo(line, err=True)

    timer = GpuTimer(rounds, say)
    device = torch.cuda.current_device()
    made = measure(resolver.planner_gpu(device), timer, device=torch.cuda.get_device_name(device), say=say)
    file = calibration.write(made)
    click.echo("\n".join(text(made)))
    click.echo(f"kept in {file}")


def text(made: Calibration) -> list[str]:
    """What a calibration changes, and how far the model was and is off."""
    units = {f.name: f.metadata["unit"] for f in fields(Constants)} | {"flops": "1/s", "bandwidth": "bytes/s"}
    lines = [f"{made.device or made.gpu}, planned for as {made.gpu}: {made.date}, comfuse {made.comfuse}"]
    for name, (own, measured) in made.changed().items():
        lines.append(f"  {name:<30}{own:>10.4g} -> {measured:<10.4g} {units[name]}")
    lines.append(
        f"  median error on the launches: {100 * made.error_before:.1f} % -> {100 * made.error:.1f} %"
    )
    return lines
