from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from comfuse.build.compile import require_cuda_torch, toolchain
from comfuse.errors import ToolchainError


def missing_toolchain() -> str:
    """Why nothing can be compiled here, or an empty string."""
    try:
        require_cuda_torch()
        toolchain()
    except ToolchainError as e:
        return str(e)
    return ""


@dataclass(frozen=True)
class Source:
    """A translation unit that no planner made."""

    name: str
    text: str
    plan: None = None


TRIVIAL = """\
#include <comfuse/abi.h>
#include <cuda_runtime.h>

#define CF_API extern "C" __attribute__((visibility("default")))

__global__ void kernel(float* p) { p[threadIdx.x] += 1.0f; }

CF_API int cf_launch_NAME(CfArgs const* args, void*, void* stream) {
  if (args->abi_version != CF_ABI_VERSION) return CF_ERROR_ABI;
  kernel<<<1, 32, 0, static_cast<cudaStream_t>(stream)>>>(static_cast<float*>(args->outputs[0].data));
  return cudaGetLastError();
}
CF_API int64_t cf_workspace_NAME(int64_t m, int64_t batches) { return 8 * m * batches; }
CF_API int cf_info_NAME(CfInfo* info) { return *info = {CF_ABI_VERSION, 8, 0, 0, 1, 32}, 0; }
"""


def trivial(name: str = "cf_trivial") -> Source:
    return Source(name, TRIVIAL.replace("NAME", name))


@pytest.fixture
def cache_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, used by this test and the processes it starts."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("COMFUSE_CACHE_DIR", str(folder))
    return folder


@pytest.fixture
def compilers() -> None:
    """Skips a test that compiles where nothing can be compiled."""
    reason = missing_toolchain()
    if reason:
        pytest.skip(reason)
