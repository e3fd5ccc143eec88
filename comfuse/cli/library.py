"""``comfuse build-library`` and ``comfuse library``: kernels that are built ahead of time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

import click

from comfuse.errors import ComFuseError

T = TypeVar("T")


@click.command("build-library")
@click.argument("catalogues", metavar="CATALOG...", nargs=-1, required=True)
@click.option(
    "-o", "--output", type=click.Path(path_type=Path, file_okay=False), required=True, help="The folder."
)
@click.option(
    "-j",
    "--jobs",
    type=click.IntRange(min=1),
    help="Compilers at once; by processors and memory if not given. With a compiler launcher that spreads "
    "compiles over machines it may be more than this one has processors.",
)
def build_library(catalogues: Sequence[str], output: Path, jobs: int | None) -> None:
    """Compile the kernels of catalogues into a folder that serves machines without a compiler.

    CATALOG is a TOML file or the name of a catalogue that comes with ComFuse: graph-networks, llm-blocks,
    postnorm, recsys. A build that was cut off goes on where it stopped.

    Exits with 1 if some kernels were refused; the library has the others.
    """
    from comfuse.library import builder, catalogue

    def run() -> int:
        read = [catalogue.read(which) for which in catalogues]
        made = builder.build_library(read, output, jobs=jobs, say=lambda line: click.echo(line, err=True))
        for refusal in made.refused:
            low, high = refusal["rows"]
            click.echo(f"refused: {refusal['label']}, rows {low} to {high}: {refusal['reason']}", err=True)
        size = sum(file.bytes for file in made.files)
        click.echo(
            f"{output}: {len({k.name for k in made.kernels})} kernels for {len(made.kernels)} classes of "
            f"rows of {len({k.signature for k in made.kernels})} programs, {len(made.files)} files, "
            f"{size / 2**20:.1f} MiB"
        )
        return 1 if made.refused else 0

    raise SystemExit(_run(run))


def _run(command: Callable[[], T]) -> T:
    """Runs a command; an error of ours is a message, not a traceback."""
    try:
        return command()
    except ComFuseError as e:
        raise click.ClickException(str(e)) from e
