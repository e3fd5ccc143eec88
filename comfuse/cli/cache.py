"""``comfuse cache``: what the cache of built kernels holds, and what of it can go."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import click

from comfuse import settings

if TYPE_CHECKING:
    from comfuse.build.prune import Item


@click.group()
def cache() -> None:
    """The cache of built kernels: what it holds, and what of it can go.

    It is in COMFUSE_CACHE_DIR, or in the user's cache folder.
    """


@cache.command("list")
@click.option("--all", "every", is_flag=True, help="Every entry, too.")
def list_items(every: bool) -> None:
    """Show how much there is of each kind, and how much of it is of other versions."""
    from comfuse.build.prune import items

    found = items()
    click.echo(f"{settings.cache_dir()}: {_size(found)}")
    kinds: dict[str, list[Item]] = {}
    for item in found:
        kinds.setdefault(_kind(item), []).append(item)
    for kind, those in kinds.items():
        click.echo(f"  {kind}: {len(those)}, {_size(those)}")
        for item in those if every else ():
            click.echo(f"    {_line(item)}")


@cache.command()
@click.option(
    "--days",
    default=30.0,
    show_default="30",
    type=click.FloatRange(min=0),
    help="What was used less than so many days ago stays.",
)
@click.option("--dry-run", is_flag=True, help="Show what would go, and remove nothing.")
def prune(days: float, dry_run: bool) -> None:
    """Remove kernels of other versions that are no longer used, and what broken builds left.

    Another version is another ComFuse, nvcc or CUTLASS than those that are found here; of these no kernel
    goes, nor one that is being built. What failed builds and damage left goes after the same number of days,
    what killed builds left at once. A process that has loaded a kernel keeps it.
    """
    from comfuse.build.prune import removable, remove

    going = removable(days)
    gone = [item for item in going if dry_run or remove(item)]
    for item in gone:
        click.echo(f"{'would remove' if dry_run else 'removed'} {_kind(item)} {_line(item)}")
    said = f"{len(gone)} folders, {_size(gone)}"
    click.echo(f"{settings.cache_dir()}: {said}{' would go' if dry_run else ' removed'}")
    if len(gone) < len(going):
        click.echo(f"{len(going) - len(gone)} stay: in use, or used meanwhile")


def _kind(item: Item) -> str:
    return f"{item.kind} of another version" if item.kind == "kernel" and not item.current else item.kind


def _line(item: Item) -> str:
    return f"{item.path.name}: {_size([item])}, {item.days:.0f} days"


def _size(found: Iterable[Item]) -> str:
    return f"{sum(item.bytes for item in found) / 2**20:.1f} MiB"
