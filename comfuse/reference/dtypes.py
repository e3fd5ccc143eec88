"""Element types: their torch names, and how a value is stored as one."""

from __future__ import annotations

import torch

from comfuse.generator.spec import DType

TORCH_DTYPES: dict[DType, torch.dtype] = {
    DType.BF16: torch.bfloat16,
    DType.FP16: torch.float16,
    DType.FP32: torch.float32,
    DType.E4M3: torch.float8_e4m3fn,
    DType.E5M2: torch.float8_e5m2,
    DType.INT8: torch.int8,
    DType.UINT8: torch.uint8,
    DType.BOOL: torch.bool,
    DType.INT32: torch.int32,
    DType.INT64: torch.int64,
}
SPEC_DTYPES: dict[torch.dtype, DType] = {dtype: name for name, dtype in TORCH_DTYPES.items()}

#: Float32 has all integers up to here; the next one is rounded to it.
LARGEST_EXACT = 2**24
_LARGEST_E4M3 = 448.0


def store(x: torch.Tensor, dtype: DType) -> torch.Tensor:
    """A floating-point tensor as what a kernel stores.

    bf16, fp16, fp32 and e5m2 round to nearest even and overflow to infinity.  e4m3, which has no infinity,
    saturates: infinities too become +-448; NaN stays NaN.  (So does torch from 2.13 on; before, such a cast
    gave NaN.)  Integers are truncated toward zero and saturate, and NaN becomes 0.  A bool is whether the
    value is not zero, so NaN is true.
    """
    target = TORCH_DTYPES[dtype]
    if dtype is DType.BOOL:
        return x != 0
    if dtype is DType.E4M3:
        return x.clamp(-_LARGEST_E4M3, _LARGEST_E4M3).to(target)
    if target.is_floating_point:
        return x.to(target)
    info = torch.iinfo(target)
    # The largest int64 is no float; one more is a power of two.
    below, above = x < float(info.min), x >= float(info.max + 1)
    stored = x.masked_fill(below | above | x.isnan(), 0.0).to(target)
    return stored.masked_fill(below, info.min).masked_fill(above, info.max)
