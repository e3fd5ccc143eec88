"""Operators that are rewritten in terms of others before the lowering sees them.

What the lowering knows by itself (layer_norm, softmax, gelu, ...) stays whole, so that its values keep their
names.
"""

from __future__ import annotations

import torch
from torch._decomp import get_decompositions

aten = torch.ops.aten

_NAMES = (
    "addr", "_batch_norm_no_update", "_batch_norm_with_update",
    "_batch_norm_with_update_functional", "binary_cross_entropy", "binary_cross_entropy_with_logits",
    "celu", "cudnn_batch_norm", "deg2rad", "dist", "elu_backward", "frac", "_fused_rms_norm",
    "_fused_rms_norm_backward", "glu", "glu_backward", "hardshrink", "hardsigmoid_backward",
    "hardtanh_backward", "heaviside", "huber_loss", "lerp", "log_sigmoid_backward", "log_sigmoid_forward",
    "_log_softmax_backward_data", "logaddexp", "logaddexp2", "logit", "logit_backward", "mse_loss",
    "mse_loss_backward", "nan_to_num", "nansum", "native_batch_norm", "native_batch_norm_backward",
    "_native_batch_norm_legit", "_native_batch_norm_legit_functional",
    "_native_batch_norm_legit_no_training", "native_dropout_backward", "native_layer_norm_backward", "norm",
    "_prelu_kernel_backward", "rad2deg", "relu6", "selu", "sgn", "sinc", "smooth_l1_loss", "soft_margin_loss",
    "_softmax_backward_data", "softshrink", "special_entr", "special_xlog1py", "std", "std_mean",
    "threshold", "var", "var_mean", "xlogy",
)  # fmt: skip
_KEPT = {aten.var.correction, aten.var_mean.correction}

DECOMPOSED = {
    overload: function
    for overload, function in get_decompositions(
        [getattr(aten, name) for name in _NAMES if hasattr(aten, name)]
    ).items()
    if overload not in _KEPT
}
