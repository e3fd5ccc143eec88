"""The command line: ``comfuse`` and ``python -m comfuse``."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

import comfuse
from comfuse.cli.cache import cache
from comfuse.cli.calibrate import calibrate
from comfuse.cli.library import build_library, library
from comfuse.cli.tune import tune
from comfuse.errors import ComFuseError
from comfuse.generator.plan import GPUS
from comfuse.generator.spec import DType

_SHAPES = click.option(
    "--shapes",
    required=True,
    metavar="NAME=VALUE ...",
    help='The function\'s inputs in one string, e.g. "x=bf16[16384,1024] w=bf16[1024,1024] eps=1e-5". '
    f"Tensors are DTYPE[SIZES] with {', '.join(d.value for d in DType)}; other values are numbers, true, "
    "false, none.",
)
_GPU = click.option(
    "--gpu", type=click.Choice(list(GPUS)), default="h200", show_default=True, help="The GPU to plan for."
)


class _Commands(click.Group):
    """An error of ours is a message, not a traceback."""

    def invoke(self, context: click.Context) -> Any:
        try:
            return super().invoke(context)
        except ComFuseError as e:
            raise click.ClickException("\n".join([str(e), *getattr(e, "__notes__", ())])) from e


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(comfuse.__version__)
def main() -> None:
    """A GEMM and what follows it, compiled into one Hopper kernel."""


@main.command()
def doctor() -> None:
    """Show GPU, driver, torch, CUTLASS, nvcc and cache, and what will work.

    Exits with 0 if kernels can be compiled and run here, else with 1.
    """
    from comfuse.cli.doctor import abilities, findings

    found = findings()
    able = abilities(found)
    marks = {True: "ok", False: "--", None: "  "}
    for heading, part in (("found", found), ("what works", able)):
        click.echo(heading)
        width = max(len(f.what) for f in part)
        for f in part:
            click.echo(f"  {marks[f.ok]}  {f.what:<{width}}  {f.found}")
        click.echo()
    sys.exit(0 if all(f.ok for f in able) else 1)


@main.command()
@click.option(
    "--rounds",
    default=30,
    show_default=True,
    type=click.IntRange(min=1),
    help="Timing rounds; each times every candidate once.",
)
@click.option("--no-inductor", is_flag=True, help="Leave out TorchInductor, which takes a while to compile.")
def demo(rounds: int, no_inductor: bool) -> None:
    """Build, check and time BERT-large's out-projection + bias + residual + LayerNorm."""
    from comfuse import demo as demonstration

    sys.exit(demonstration.run(click.echo, rounds=rounds, inductor=not no_inductor))


@main.command()
@click.argument("target", metavar="FILE:FUNCTION|MODEL")
@_SHAPES
@_GPU
@click.option("--training", is_flag=True, help="Of a model: with gradients, the backward graph too.")
@click.option(
    "--catalogue",
    type=click.Path(path_type=Path, dir_okay=False),
    help="A file that gets the kernels as a catalogue for `comfuse build-library`.",
)
def explain(target: str, shapes: str, gpu: str, training: bool, catalogue: Path | None) -> None:
    """Show phases, plan, where values live and predicted time of a function, or why it is not fused.

    Of a module, or of a function with --training, show each GEMM as torch.compile takes it with ComFuse.
    Exits with 1 if nothing is fused.
    """
    from torch import nn

    from comfuse.cli.target import load_function, parse_shapes
    from comfuse.explain import Explanation
    from comfuse.explain import explain as explain_program
    from comfuse.frontend import unfused
    from comfuse.library.catalogue import text_of

    program = unfused(load_function(target))
    is_model = isinstance(program, nn.Module)
    inputs = parse_shapes(program.forward if is_model else program, shapes)
    program = program.to("meta") if is_model else program  # where the inputs are

    explained = explain_program(program, *inputs, gpu=gpu, training=training or None)
    click.echo(str(explained))
    if catalogue is not None:
        _write(catalogue, text_of(explained.kernels, gpu, f"{target} {shapes}"))
    fused = not explained.refused if isinstance(explained, Explanation) else explained.fused > 0
    sys.exit(0 if fused else 1)


@main.command()
@click.argument("target", metavar="FILE:FUNCTION")
@_SHAPES
@_GPU
@click.option(
    "-o",
    "--output",
    type=click.Path(),
    help="A file, or a folder that gets NAME.cu and is made if it ends in /; printed if not given.",
)
def emit(target: str, shapes: str, gpu: str, output: str | None) -> None:
    """Print or write the CUDA source of a function's kernel."""
    import math

    from comfuse import calibration
    from comfuse.cli.target import load_function, parse_shapes
    from comfuse.frontend import trace_region, unfused
    from comfuse.library.source import source_of

    function = unfused(load_function(target))
    inputs = parse_shapes(function, shapes)

    region = trace_region(function, inputs)
    source = source_of(region.spec, calibration.gpu(gpu), math.prod(region.lead))
    if output is None:
        click.echo(source.text, nl=False)
        return
    path = Path(output)
    if output.endswith("/") or path.is_dir():
        path /= f"{source.name}.cu"
        with _said(path.parent):
            path.parent.mkdir(parents=True, exist_ok=True)
    _write(path, source.text)
    click.echo(str(path))


def _write(path: Path, text: str) -> None:
    with _said(path):
        path.write_text(text)


@contextmanager
def _said(path: Path) -> Iterator[None]:
    """Makes what the system has against writing ``path`` a message."""
    try:
        yield
    except OSError as e:
        raise click.FileError(str(path), e.strerror or str(e)) from e


main.add_command(calibrate)
main.add_command(cache)
main.add_command(build_library)
main.add_command(library)
main.add_command(tune)
