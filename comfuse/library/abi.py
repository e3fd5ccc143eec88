"""csrc/include/comfuse/abi.h for ctypes."""

from __future__ import annotations

import ctypes

ABI_VERSION = 5
MAX_OPERANDS = 16
MAX_OUTPUTS = 8
MAX_SCALARS = 16
MAX_FACTORS = 3


class Tensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("stride", ctypes.c_int64),
        ("batch_stride", ctypes.c_int64),
        ("batch_period", ctypes.c_int64),
        ("batch_outer", ctypes.c_int64),
        ("row_period", ctypes.c_int64),
        ("row_outer", ctypes.c_int64),
        ("column_stride", ctypes.c_int64),
        ("column_period", ctypes.c_int64),
        ("column_outer", ctypes.c_int64),
    )


class Args(ctypes.Structure):
    _fields_ = (
        ("abi_version", ctypes.c_uint32),
        ("reserved", ctypes.c_uint32),
        ("m", ctypes.c_int64),
        ("k", ctypes.c_int64),
        ("batches", ctypes.c_int64),
        ("a", Tensor),
        ("b", Tensor * MAX_FACTORS),
        ("k1", ctypes.c_int64),
        ("a1", Tensor),
        ("operands", Tensor * MAX_OPERANDS),
        ("outputs", Tensor * MAX_OUTPUTS),
        ("scalars", ctypes.c_float * MAX_SCALARS),
    )


class Info(ctypes.Structure):
    _fields_ = (
        ("abi_version", ctypes.c_uint32),
        ("registers", ctypes.c_int32),
        ("local_bytes", ctypes.c_int32),
        ("shared_bytes", ctypes.c_int32),
        ("max_active_clusters", ctypes.c_int32),
        ("threads", ctypes.c_int32),
    )


_ERRORS = {
    -1: "it was built against another version of comfuse/abi.h",
    -2: "a pointer or a stride is misaligned, or a size is out of range",
    -3: "the driver refused a TMA descriptor",
    -4: "there is no usable CUDA driver",
    -5: "the GPU cannot hold all tiles at once that wait for each other",
}


def describe(code: int) -> str:
    """What a kernel library's return code means: 0, a negative CF_ERROR, or a cudaError_t."""
    return _ERRORS.get(code, f"CUDA error {code}" if code > 0 else f"error {code}")
