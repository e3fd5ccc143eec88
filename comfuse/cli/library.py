"""``comfuse build-library`` and ``comfuse library``: kernels that are built ahead of time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from comfuse.generator.chain import ChainSpec
    from comfuse.generator.spec import FusedSpec
    from comfuse.library.catalogue import Catalogue
    from comfuse.library.manifest import Manifest


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

    CATALOG is a TOML file, the name of a catalogue that comes with ComFuse (graph-networks, llm-blocks,
    postnorm, recsys), or a package of AOTInductor (.pt2), which stands for the kernels that it needs. A build
    that was cut off goes on where it stopped.

    Exits with 1 if some kernels were refused; the library has the others.
    """
    from comfuse.library import builder, catalogue, package
    from comfuse.ops import served

    read = [catalogue.read(which) for which in catalogues]
    packages = [package.read(Path(which)) for which in catalogues if which.endswith(package.SUFFIX)]
    made = builder.build_library(read, output, jobs=jobs, say=lambda line: click.echo(line, err=True))
    served.write(output, [text for one in packages for text in one.programs], made)
    for refusal in made.refused:
        low, high = refusal["rows"]
        click.echo(f"refused: {refusal['label']}, rows {low} to {high}: {refusal['reason']}", err=True)
    click.echo("\n  ".join([f"{output}", *_summary(made)]))
    raise SystemExit(1 if made.refused else 0)


@click.group()
def library() -> None:
    """Kernel libraries: what is there, whether it is intact, why it is not used.

    They are looked for in COMFUSE_LIBRARY, in the package and in the user's data folder.
    """


@library.command("list")
@click.option("--kernels", is_flag=True, help="Every kernel, too.")
def list_libraries(kernels: bool) -> None:
    """Show the libraries that are found, in the order in which they are asked.

    Exits with 1 if there is none.
    """
    from comfuse.library import lookup
    from comfuse.library.manifest import visible_damage

    shelves = lookup.shelves()
    for shelf in shelves:
        click.echo(f"{shelf.folder}")
        if shelf.unfit:
            click.echo(f"  not used: {shelf.unfit}")
        if shelf.manifest is None:
            continue
        for line in _summary(shelf.manifest):
            click.echo(f"  {line}")
        for name, reason in visible_damage(shelf.folder, shelf.manifest):
            click.echo(f"  damaged: {name}: {reason}")
        for kernel in shelf.manifest.kernels if kernels else ():
            low, high = kernel.rows
            click.echo(f"    {kernel.label}, {kernel.gpu}, rows {low} to {high}: {kernel.name}")
    if all(shelf.manifest is None for shelf in shelves):
        raise _no_library()


def _no_library() -> click.ClickException:
    from comfuse.build.folders import library_folders

    return click.ClickException(
        f"there is no kernel library; looked in {', '.join(map(str, library_folders()))}"
    )


@library.command()
@click.argument("folders", nargs=-1, type=click.Path(path_type=Path, file_okay=False))
def verify(folders: Sequence[Path]) -> None:
    """Check every file and every kernel of libraries: those in FOLDERS, or all that are found.

    Exits with 1 if something is wrong, or there is none.
    """
    from comfuse.library import lookup

    folders = folders or [shelf.folder for shelf in lookup.shelves()]
    if not folders:
        raise _no_library()
    wrong = 0
    for folder in folders:
        problems = lookup.problems(folder)
        wrong += len(problems)
        for problem in problems:
            click.echo(f"{folder}: {problem}")
        if not problems:
            click.echo(f"{folder}: ok")
    raise SystemExit(1 if wrong else 0)


@library.command("why-not")
@click.argument("spec", metavar="SPEC|FILE:FUNCTION|CATALOG|PACKAGE")
@click.option("--shapes", metavar="NAME=VALUE ...", help="The function's inputs, as for `comfuse explain`.")
@click.option("--rows", type=click.IntRange(min=1), help="Their number; all classes if not given.")
@click.option(
    "--gpu",
    help="The GPU, such as h100:114 with 114 SMs; if not given that of the catalogue or package, else h200.",
)
def why_not(spec: str, shapes: str | None, rows: int | None, gpu: str | None) -> None:
    """Say which library has the kernel of a program, or why none does.

    SPEC is the text of a program (or a file with it); a function comes with --shapes.  Of a catalogue (a TOML
    file, or the name of one that comes with ComFuse), all kernels that it asks for; of a package of
    AOTInductor (.pt2), all that it needs; those beside it count.  Exits with 1 if some kernel is in no
    library.
    """
    from comfuse.library import lookup
    from comfuse.library.rows import classes_on, m_class, served

    missing = 0
    wanted = _wanted(spec, shapes, gpu)
    for entry in wanted.entries:
        classes = classes_on(entry.spec, wanted.gpu)
        asked = entry.hints(wanted.gpu) if rows is None else [m_class(rows, classes)]
        for hint in asked:
            low, high = served(hint, classes)
            answers = lookup.why_not(entry.spec, (low, high), wanted.gpu)
            missing += all(reason for _, reason in answers)
            click.echo(f"{entry.label}, rows {low} to {high}")
            for folder, reason in answers or [("no library", "none is found")]:
                click.echo(f"  {folder}: {reason or 'has it'}")
    raise SystemExit(1 if missing else 0)


def _wanted(given: str, shapes: str | None, gpu: str | None) -> Catalogue:
    """The programs that a command line names, for a GPU."""
    from comfuse.build import folders
    from comfuse.generator.plan import gpus
    from comfuse.library import catalogue, package

    gpus.find(gpu or "h200")  # raises for one that nobody knows
    path = Path(given)
    if shapes is None and path.suffix == package.SUFFIX and path.is_file():
        from comfuse.deploy import kernels_of

        folders.add(kernels_of(path))
        made = package.read(path)
        return catalogue.of_package(replace(made, gpu=gpu or made.gpu))
    if shapes is None and catalogue.is_named(given):
        found = catalogue.read(given)
        return replace(found, gpu=gpu or found.gpu)
    program = _program(given, shapes)
    entry = catalogue.Entry(catalogue.label_of(program), program)
    return catalogue.Catalogue(given, "", gpu or "h200", (entry,))


def _program(given: str, shapes: str | None) -> FusedSpec | ChainSpec:
    if shapes is not None:
        from comfuse.cli.target import load_function, parse_shapes
        from comfuse.frontend import trace_region, unfused

        function = unfused(load_function(given))
        return trace_region(function, parse_shapes(function, shapes)).spec
    from comfuse.cli.target import read_spec

    return read_spec(given)


def _summary(made: Manifest) -> list[str]:
    size = sum(file.bytes for file in made.files)
    gpus = sorted({kernel.gpu for kernel in made.kernels})
    return [
        f"{', '.join(made.catalogues)}: {len({k.name for k in made.kernels})} kernels for "
        f"{len(made.kernels)} classes of rows of {len({k.signature for k in made.kernels})} programs",
        f"planned for {', '.join(gpus)}; {len(made.files)} files, {size / 2**20:.1f} MiB",
        f"by ComFuse {made.comfuse}, nvcc {made.toolchain['nvcc']}, CUTLASS {made.toolchain['cutlass']}, "
        f"ABI version {made.abi_version}, device code {made.device_code}",
    ]
