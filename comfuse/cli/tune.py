"""``comfuse tune``: kernels chosen by measurement."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from comfuse.errors import PlanError, SpecError, TuneError

if TYPE_CHECKING:
    from comfuse.tune import Target


@click.command()
@click.argument("what", metavar="FILE:FUNCTION|FILE:MODEL|SPEC|CATALOG")
@click.option("--shapes", metavar="NAME=VALUE ...", help="The inputs, as for `comfuse explain`.")
@click.option(
    "--rows",
    type=click.IntRange(min=1),
    multiple=True,
    help="Of a spec or a catalogue: the number of rows to measure with; may be given several times. The "
    "largest of each class of rows, and 16384 for many, if not given.",
)
@click.option("--training", is_flag=True, help="Of a model: with gradients, the backward graph too.")
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path, dir_okay=False),
    help="The table; the user's own if not given, which ComFuse finds by itself. COMFUSE_TUNED names others.",
)
@click.option(
    "--exhaustive", is_flag=True, help="Time every plan that the planner has, none left out and none dropped."
)
@click.option("--dry-run", is_flag=True, help="Show what would be timed. Needs no GPU, and writes nothing.")
def tune(
    what: str,
    shapes: str | None,
    rows: Sequence[int],
    training: bool,
    output: Path | None,
    exhaustive: bool,
    dry_run: bool,
) -> None:
    """Time the planner's kernels of a program on this GPU, and remember the fastest.

    Those that the cost model rules out are left out; each of the others has to be right, against float64,
    before it is timed. A function and a model come with --shapes; SPEC is the text of a program or a file
    with it; CATALOG is a TOML file or the name of a catalogue that comes with ComFuse.

    Exits with 1 if a kernel's results were wrong, or something could not be tuned.
    """
    from comfuse.library.tuned import lookup

    if dry_run:
        raise SystemExit(_show(what, shapes, rows, training, exhaustive))
    raise SystemExit(_tune(what, shapes, rows, training, output or lookup.user_table(), exhaustive))


def _tune(
    what: str, shapes: str | None, rows: Sequence[int], training: bool, table: Path, exhaustive: bool
) -> int:
    from comfuse.library.tuned.table import update
    from comfuse.tune import GpuRunner
    from comfuse.tune import tune as tune_target
    from comfuse.tune.text import not_tuned_text, outcome_text

    runner = GpuRunner(say=lambda line: click.echo(line, err=True))
    targets = _targets(what, shapes, rows, training, runner.gpu)
    update(table, ())  # fails now if it cannot be written, not after minutes
    plans = []
    for target in targets:
        try:
            plans += target.candidates(runner.gpu, exhaustive=exhaustive).kept
        except (SpecError, PlanError):  # which is said below
            continue
    runner.build(plans)  # all at once, which is faster
    failed = 0
    for target in targets:
        try:
            outcome = tune_target(target, runner, exhaustive=exhaustive)
        except (SpecError, PlanError, TuneError) as e:  # anything else would meet the others too
            failed += 1
            click.echo(not_tuned_text(target, runner.gpu, e))
            continue
        failed += bool(outcome.wrong)
        update(table, [outcome.entry])
        click.echo("\n".join(outcome_text(outcome)) + "\n")
    click.echo(f"{len(targets)} tuned on {runner.name}; {failed} with failures; {table}")
    return 1 if failed else 0


def _show(what: str, shapes: str | None, rows: Sequence[int], training: bool, exhaustive: bool) -> int:
    from comfuse.inductor.choose import gpu_name
    from comfuse.inductor.policy import Policy
    from comfuse.tune.text import candidates_text, not_tuned_text

    gpu = gpu_name(Policy())
    failed = 0
    for target in _targets(what, shapes, rows, training, gpu):
        try:
            considered = target.candidates(gpu, exhaustive=exhaustive)
        except (SpecError, PlanError) as e:
            failed += 1
            click.echo(not_tuned_text(target, gpu, e))
            continue
        click.echo("\n".join(candidates_text(target, considered, gpu)) + "\n")
    return 1 if failed else 0


def _targets(what: str, shapes: str | None, rows: Sequence[int], training: bool, gpu: str) -> list[Target]:
    """Raises click.BadParameter or ComFuseError: the command line names nothing to tune."""
    from torch import nn

    from comfuse.cli.target import load_function, parse_shapes, read_spec
    from comfuse.frontend import unfused
    from comfuse.library import catalogue
    from comfuse.tune import targets

    if shapes is None:
        if catalogue.is_named(what):
            return _said(what, *targets.of_catalogue(catalogue.read(what), gpu, rows))
        return targets.of_spec(read_spec(what), gpu, rows)
    if rows:
        raise click.BadParameter("--rows is for specs and catalogues; --shapes says how many rows there are")
    program = unfused(load_function(what))
    if not isinstance(program, nn.Module) and not training:
        return targets.of_function(program, parse_shapes(program, shapes), gpu)
    is_module = isinstance(program, nn.Module)
    inputs = parse_shapes(program.forward if is_module else program, shapes)
    on_meta = program.to("meta") if is_module else program
    return _said(what, *targets.of_model(on_meta, inputs, gpu, training=training))


def _said(what: str, found: list[Target], left_out: list[str]) -> list[Target]:
    """The kernels to tune, once it is printed which are not.  Raises click.ClickException: there are none."""
    for line in left_out:
        click.echo(f"left out: {line}", err=True)
    if not found:
        raise click.ClickException(f"nothing of {what} can be tuned; `comfuse explain` says what is fused")
    return found
