"""The C++ binding built for host tensors: its checks, copies, table and workspaces, tested without a GPU.

Everything of csrc/binding but cuda_api.cpp, for which host/fake_cuda.cpp stands in, under the op namespace
``comfuse_host``.  A "kernel" is a Python function that gets the arguments of abi.h.
"""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from comfuse.build import binding
from comfuse.build.compile import compile_cxx
from comfuse.build.toolkit import BINDING_DIR
from comfuse.generator.spec import FusedSpec
from comfuse.library import abi
from comfuse.ops import native, programs, schema

LAUNCH = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(abi.Args), ctypes.c_void_p, ctypes.c_void_p)
WORKSPACE = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)
RESOLVER = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_int32)

_NAMES = itertools.count()


def compile_host(folder: Path) -> Path:
    """The binding for host tensors."""
    sources = [source for source in binding.sources() if source.name != "cuda_api.cpp"]
    return compile_cxx(
        "comfuse_host",
        [*sources, Path(__file__).parent / "host" / "fake_cuda.cpp"],
        folder,
        lambda: None,
        flags=("-DCOMFUSE_NAMESPACE=comfuse_host", "-DCOMFUSE_DISPATCH_KEY=CPU"),
        include=(BINDING_DIR,),
    )


@dataclass
class Launched:
    """The arguments of one launch, copied, and the tensors behind them."""

    name: str
    args: abi.Args
    workspace: int | None
    stream: int | None


@dataclass
class Host:
    """The loaded binding, and what was launched through it."""

    library: ctypes.CDLL
    launched: list[Launched] = field(default_factory=list)
    keep: list[object] = field(default_factory=list)
    resolve: Callable[[str, int], int | str] = lambda spec, m: 1

    @classmethod
    def load(cls, path: Path) -> Host:
        torch_library = torch.library.Library("comfuse_host", "FRAGMENT")
        torch_library.define("region" + schema._GENERAL)
        for count in range(schema.MAX_FIXED + 1):
            torch_library.define(f"region_1.t{count}" + schema._fixed(count))
        library = ctypes.CDLL(str(path))
        native._declare(library)
        host = cls(library, keep=[torch_library])

        @RESOLVER
        def resolve(spec: int, length: int, m: int, device: int) -> int:
            answer = host.resolve(ctypes.string_at(spec, length).decode(), m)
            if isinstance(answer, int):
                return answer
            library.comfuse_set_error(answer.encode())
            return 2

        host.keep.append(resolve)
        library.comfuse_set_resolver(ctypes.cast(resolve, native._RESOLVER))
        library.fake_set_stream.argtypes = (ctypes.c_void_p,)
        return host

    def register(
        self,
        spec: FusedSpec,
        *,
        min_m: int = 1,
        max_m: int = 2**31 - 1,
        workspace: int = 0,
        code: int = 0,
        run: Callable[[abi.Args], None] | None = None,
    ) -> str:
        """A kernel for ``spec``; ``workspace``: bytes a block of 128 rows.  Returns its name."""
        text = spec.text().encode()
        name = f"kernel_{next(_NAMES)}"

        @LAUNCH
        def launch(args: object, memory: int | None, stream: int | None) -> int:
            copy = abi.Args.from_buffer_copy(args.contents)  # type: ignore[attr-defined]
            self.launched.append(Launched(name, copy, memory, stream))
            if run is not None:
                run(copy)
            return code

        @WORKSPACE
        def size(m: int) -> int:
            return -(-m // 128) * workspace

        self.keep += [launch, size]
        facts = programs.facts(programs.parse(spec.text()))
        self.library.comfuse_register_program(text, len(text), ctypes.byref(facts))
        addresses = [ctypes.cast(function, ctypes.c_void_p) for function in (launch, size)]
        assert not self.library.comfuse_register_kernel(
            text, len(text), min_m, max_m, name.encode(), *addresses
        )
        return name

    def call(
        self, spec: FusedSpec, a: Tensor, b: Tensor, operands: tuple[Tensor, ...] = (), *scalars: float
    ) -> Tensor:
        op = getattr(torch.ops.comfuse_host.region_1, f"t{len(operands)}")
        return op(spec.text(), a, b, *operands, *scalars)


def view(memory: abi.Tensor, rows: int, columns: int, dtype: torch.dtype) -> Tensor:
    """The (rows, columns) tensor at an address of the host; rows are ``memory.stride`` elements apart."""
    count = (rows - 1) * memory.stride + columns
    raw = (ctypes.c_char * (count * dtype.itemsize)).from_address(memory.data)
    return torch.frombuffer(raw, dtype=dtype).as_strided((rows, columns), (memory.stride, 1))
