"""What the build reads out of texts: includes, ptxas output, compiler messages."""

from __future__ import annotations

from pathlib import Path

import pytest

from comfuse.build import compile as compiling
from comfuse.build import headers, ptxas


@pytest.fixture
def include(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(headers, "INCLUDE_DIR", tmp_path)
    files = {
        "comfuse/a.hpp": '#pragma once\n#include "comfuse/b.hpp"\n#include <vector>\n',
        "comfuse/b.hpp": '#pragma once\n#include <comfuse/a.hpp>\n  #  include "sub/c.hpp"\n',
        "comfuse/sub/c.hpp": "int c;\n",
        "comfuse/unused.hpp": "int unused;\n",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def test_includes_are_followed(include: Path) -> None:
    found = headers.included("#include <comfuse/a.hpp>\n#include <cuda_runtime.h>\n#include <../outside.h>\n")
    assert [path.relative_to(include).as_posix() for path in found] == [
        "comfuse/a.hpp",
        "comfuse/b.hpp",
        "comfuse/sub/c.hpp",
    ]


def test_the_digest_is_that_of_what_is_included(include: Path) -> None:
    text = "#include <comfuse/a.hpp>\n"
    before = headers.digest(text)
    (include / "comfuse/unused.hpp").write_text("int changed;\n")
    assert headers.digest(text) == before
    (include / "comfuse/sub/c.hpp").write_text("int changed;\n")
    assert headers.digest(text) != before


def test_the_device_headers_are_found() -> None:
    found = headers.included("#include <comfuse/sm90/fused_gemm.hpp>\n")
    names = {path.relative_to(headers.INCLUDE_DIR).as_posix() for path in found}
    assert {"comfuse/abi.h", "comfuse/functors.hpp", "comfuse/sm90/fused_gemm.hpp"} <= names


PTXAS = """\
[1/2] nvcc ...
ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'cf_one' for 'sm_90a'
ptxas info    : Function properties for cf_one
    {stack} bytes stack frame, {stores} bytes spill stores, {loads} bytes spill loads
ptxas info    : Used 168 registers, used 3 barriers
ptxas info    : (C7510) Potential Performance Loss: wgmma.mma_async instructions are serialized
ptxas info    : (C7510) Potential Performance Loss: wgmma.mma_async instructions are serialized
[2/2] c++ ...
"""


def test_ptxas_output() -> None:
    facts = ptxas.facts(PTXAS.format(stack=16, stores=8, loads=12))
    assert facts == {
        "functions": 1,
        "registers": 168,
        "stack_bytes": 16,
        "spill_bytes": 20,
        "messages": [
            "(C7510) Potential Performance Loss: wgmma.mma_async instructions are serialized",
        ],
    }


def test_a_silent_ptxas() -> None:
    facts = ptxas.facts("")
    assert (facts["functions"], facts["registers"], facts["spill_bytes"], facts["messages"]) == (
        0,
        None,
        None,
        [],
    )


NVCC_ERROR = """\
[1/2] /opt/cuda/bin/nvcc -DTORCH_EXTENSION_NAME=cf ... error_prone_flag
FAILED: [code=1] cf.cuda.o
/opt/cuda/bin/nvcc --generate-dependencies ...
/tmp/cf.cu(12): error: identifier "Foo" is undefined
  using x = Foo<int>;
            ^

1 error detected in the compilation of "/tmp/cf.cu".
ninja: build stopped: subcommand failed.
Traceback (most recent call last):
  File "worker.py", line 1
RuntimeError: Error building extension 'cf'
"""


def test_the_compiler_s_words_are_picked_out() -> None:
    message = compiling.message_of(NVCC_ERROR)
    assert message.startswith('/tmp/cf.cu(12): error: identifier "Foo" is undefined\n  using x = Foo<int>;')
    assert "1 error detected" in message
    assert "Traceback" not in message
    assert "nvcc -D" not in message


def test_a_failure_without_a_compiler_s_words_shows_the_end() -> None:
    log = (
        "\n".join(f"line {i}" for i in range(100)) + "\nTraceback (most recent call last):\nOSError: no ninja"
    )
    message = compiling.message_of(log)
    assert message.splitlines()[-1] == "OSError: no ninja"
    assert len(message.splitlines()) <= 40
