"""The C++ binding built for host tensors: its checks, copies, table and workspaces, tested without a GPU.

Everything of csrc/binding but cuda_api.cpp, for which host/fake_cuda.cpp stands in, under the op namespace
``comfuse_host``.  A "kernel" is a Python function that gets the arguments of abi.h.
"""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from comfuse.build import binding
from comfuse.build.compile import compile_cxx
from comfuse.build.toolkit import BINDING_DIR
from comfuse.generator.chain import ChainSpec
from comfuse.generator.spec import FusedSpec
from comfuse.library import abi
from comfuse.ops import native, programs, schema
from comfuse.ops.facts import facts

LAUNCH = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(abi.Args), ctypes.c_void_p, ctypes.c_void_p)
WORKSPACE = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64, ctypes.c_int64)
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
    resolve: Callable[[str, int], int | str] = lambda spec, rows: 1

    @classmethod
    def load(cls, path: Path) -> Host:
        torch_library = torch.library.Library("comfuse_host", "FRAGMENT")
        for name, arguments in schema.schemas().items():
            torch_library.define(name + arguments)
        library = ctypes.CDLL(str(path))
        native._declare(library)
        host = cls(library, keep=[torch_library])

        @RESOLVER
        def resolve(spec: int, length: int, rows: int, device: int) -> int:
            answer = host.resolve(ctypes.string_at(spec, length).decode(), rows)
            if isinstance(answer, int):
                return answer
            library.comfuse_set_error(answer.encode())
            return 2

        host.keep.append(resolve)
        library.comfuse_set_resolver(ctypes.cast(resolve, native._RESOLVER))
        library.fake_set_stream.argtypes = (ctypes.c_void_p,)
        return host

    def register_program(self, spec: FusedSpec | ChainSpec) -> None:
        text, known = spec.text().encode(), facts(programs.parse(spec.text()))
        self.library.comfuse_register_program(text, len(text), ctypes.byref(known))

    def register(
        self,
        spec: FusedSpec | ChainSpec,
        *,
        min_rows: int = 1,
        max_rows: int = 2**31 - 1,
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
        def size(m: int, batches: int) -> int:
            return batches * -(-m // 128) * workspace

        self.keep += [launch, size]
        self.register_program(spec)
        addresses = [ctypes.cast(function, ctypes.c_void_p) for function in (launch, size)]
        assert not self.library.comfuse_register_kernel(
            text, len(text), min_rows, max_rows, name.encode(), *addresses
        )
        return name

    def call(
        self,
        spec: FusedSpec | ChainSpec,
        a: Tensor,
        b: Tensor,
        operands: Sequence[Tensor] = (),
        *scalars: float,
    ) -> Any:
        """The outputs; one alone where there is one."""
        outputs = programs.parse(spec.text()).outputs
        forms = getattr(torch.ops.comfuse_host, f"region_{len(outputs)}")
        return getattr(forms, f"t{len(operands)}")(spec.text(), a, b, *operands, *scalars)

    def call_into(
        self,
        spec: FusedSpec | ChainSpec,
        a: Tensor,
        b: Tensor,
        operands: Sequence[Tensor],
        out: Sequence[Tensor],
        scalars: Sequence[float] = (),
    ) -> None:
        torch.ops.comfuse_host.region_out(spec.text(), a, b, list(operands), list(scalars), list(out))

    @property
    def copies(self) -> list[int]:
        """Copies of a, of a b, of an operand."""
        return [self.library.comfuse_copies(slot) for slot in range(3)]
