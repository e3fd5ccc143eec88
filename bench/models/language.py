"""Blocks of published language models: transformers' own classes with random weights."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from transformers.models.bert.modeling_bert import BertConfig, BertLayer
from transformers.models.gemma2.modeling_gemma2 import Gemma2Config, Gemma2DecoderLayer, Gemma2RotaryEmbedding
from transformers.models.gpt2.modeling_gpt2 import GPT2Block, GPT2Config
from transformers.models.llama.modeling_llama import LlamaConfig, LlamaDecoderLayer, LlamaRotaryEmbedding
from transformers.models.olmo2.modeling_olmo2 import Olmo2Config, Olmo2DecoderLayer, Olmo2RotaryEmbedding

from bench.models.base import Model, Size
from bench.models.networks import sequences

_ATTENTION = "sdpa"


def _bert(size: Size) -> nn.Module:
    """Post-norm, gelu, dropout 0.1 on both residual branches and in attention."""
    config = BertConfig(
        hidden_size=size.width,
        num_attention_heads=size.heads,
        intermediate_size=size.inner,
        attn_implementation=_ATTENTION,
    )
    return BertLayer(config)


def _gpt2(size: Size) -> nn.Module:
    """Pre-norm; its products are ``Conv1D``, whose weights are (K, N)."""
    config = GPT2Config(
        n_embd=size.width, n_head=size.heads, n_inner=size.inner, attn_implementation=_ATTENTION
    )
    return GPT2Block(config, layer_idx=0)


class Rotated(nn.Module):
    """A decoder layer whose rotary angles come as inputs: a model computes them once for all its layers."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """x (batch, tokens, width), cos and sin (1, tokens, head) to the shape of x; attention is causal."""
        return self.layer(x, position_embeddings=(cos, sin))


def _decoder(size: Size) -> dict[str, object]:
    return {
        "hidden_size": size.width,
        "num_attention_heads": size.heads,
        "num_key_value_heads": size.groups,
        "head_dim": size.head,
        "intermediate_size": size.inner,
        "num_hidden_layers": 2,
        "attn_implementation": _ATTENTION,
    }


def _llama_config(size: Size) -> LlamaConfig:
    theta = {"rope_type": "default", "rope_theta": 500_000.0}
    return LlamaConfig(**_decoder(size), rms_norm_eps=1e-5, rope_parameters=theta)


def _olmo2_config(size: Size) -> Olmo2Config:
    theta = {"rope_type": "default", "rope_theta": 500_000.0}
    return Olmo2Config(**_decoder(size), rms_norm_eps=1e-6, rope_parameters=theta)


def _gemma2_config(size: Size) -> Gemma2Config:
    """Without the soft cap of its attention scores, which scaled_dot_product_attention cannot compute."""
    return Gemma2Config(
        **_decoder(size),
        query_pre_attn_scalar=size.head,
        attn_logit_softcapping=None,
        hidden_activation="gelu_pytorch_tanh",
    )


def _llama(size: Size) -> nn.Module:
    return Rotated(LlamaDecoderLayer(_llama_config(size), layer_idx=0))


def _olmo2(size: Size) -> nn.Module:
    """RMSNorm behind attention and MLP, before the residual sums, and on all of q and k."""
    return Rotated(Olmo2DecoderLayer(_olmo2_config(size), layer_idx=0))


def _gemma2(size: Size) -> nn.Module:
    """Norms before and behind attention and MLP.  The second layer: it is the first that sees all tokens."""
    return Rotated(Gemma2DecoderLayer(_gemma2_config(size), layer_idx=1))


def _rotated(rotary: nn.Module, size: Size) -> tuple[Tensor, ...]:
    (x,) = sequences(size)
    cos, sin = rotary(x, torch.arange(size.tokens)[None])
    return x, cos, sin


def _llama_inputs(size: Size) -> tuple[Tensor, ...]:
    return _rotated(LlamaRotaryEmbedding(_llama_config(size)), size)


def _olmo2_inputs(size: Size) -> tuple[Tensor, ...]:
    return _rotated(Olmo2RotaryEmbedding(_olmo2_config(size)), size)


def _gemma2_inputs(size: Size) -> tuple[Tensor, ...]:
    return _rotated(Gemma2RotaryEmbedding(_gemma2_config(size)), size)


LANGUAGE = (
    Model(
        "bert_large", "BERT-large layer", _bert, sequences,
        small=Size(2, 24, 64, 128, heads=4),
        middle=Size(8, 256, 1024, 4096, heads=16),
        real=Size(32, 512, 1024, 4096, heads=16),
        dropout=True,
    ),
    Model(
        "olmo2_7b", "OLMo-2 7B block", _olmo2, _olmo2_inputs,
        small=Size(2, 24, 64, 96, heads=4, groups=4, head=16),
        middle=Size(2, 512, 1024, 2816, heads=8, groups=8, head=128),
        real=Size(2, 4096, 4096, 11008, heads=32, groups=32, head=128),
    ),
    Model(
        "gemma2_9b", "Gemma-2 9B block", _gemma2, _gemma2_inputs,
        small=Size(2, 24, 64, 96, heads=4, groups=2, head=32),
        middle=Size(2, 512, 896, 3584, heads=4, groups=2, head=256),
        real=Size(2, 4096, 3584, 14336, heads=16, groups=8, head=256),
    ),
    Model(
        "llama3_8b", "Llama-3 8B block", _llama, _llama_inputs,
        small=Size(2, 24, 64, 96, heads=4, groups=2, head=16),
        middle=Size(2, 512, 1024, 3584, heads=8, groups=2, head=128),
        real=Size(2, 4096, 4096, 14336, heads=32, groups=8, head=128),
    ),
    Model(
        "gpt2", "GPT-2 block", _gpt2, sequences,
        small=Size(2, 24, 64, 128, heads=4),
        middle=Size(4, 512, 768, 3072, heads=12),
        real=Size(16, 1024, 768, 3072, heads=12),
        dropout=True,
    ),
)  # fmt: skip
