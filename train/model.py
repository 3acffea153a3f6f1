"""Mimir: a plain Llama. RoPE rotates adjacent pairs, like the llama architecture of GGUF."""

import dataclasses

import torch
import torch.nn.functional as F
from torch import nn


@dataclasses.dataclass
class Config:
    layers: int = 8
    width: int = 256
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 64
    ffn: int = 704
    vocab: int = 4096
    context: int = 8192
    rope_base: float = 200_000.0
    eps: float = 1e-5


class Linear(nn.Module):
    """Weights are stored in float32 and cast to the input's type."""

    def __init__(self, inputs, outputs, scale=1.0):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(outputs, inputs) * scale * 0.5 * inputs**-0.5)

    def forward(self, x):
        return F.linear(x, self.weight.to(x.dtype))


class Norm(nn.Module):
    def __init__(self, width, eps):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x):
        y = x.float()
        return (y * torch.rsqrt(y.square().mean(-1, keepdim=True) + self.eps) * self.weight).to(x.dtype)


def apply_rope(x, cos, sin):
    a, b = x.float().unflatten(-1, (-1, 2)).unbind(-1)
    return torch.stack((a * cos - b * sin, a * sin + b * cos), -1).flatten(-2).to(x.dtype)


class Block(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.c = c
        self.attn_norm = Norm(c.width, c.eps)
        self.attn_q = Linear(c.width, c.heads * c.head_dim)
        self.attn_k = Linear(c.width, c.kv_heads * c.head_dim)
        self.attn_v = Linear(c.width, c.kv_heads * c.head_dim)
        # Zero initialization: every layer starts as the identity.
        self.attn_output = Linear(c.heads * c.head_dim, c.width, scale=0)
        self.ffn_norm = Norm(c.width, c.eps)
        self.ffn_gate = Linear(c.width, c.ffn)
        self.ffn_up = Linear(c.width, c.ffn)
        self.ffn_down = Linear(c.ffn, c.width, scale=0)

    def forward(self, x, cos, sin):
        c = self.c
        h = self.attn_norm(x)
        q, k, v = (
            part(h).unflatten(-1, (heads, c.head_dim)).transpose(1, 2)
            for part, heads in ((self.attn_q, c.heads), (self.attn_k, c.kv_heads), (self.attn_v, c.kv_heads))
        )
        y = F.scaled_dot_product_attention(
            apply_rope(q, cos, sin), apply_rope(k, cos, sin), v, is_causal=True, enable_gqa=True
        )
        x = x + self.attn_output(y.transpose(1, 2).flatten(2))
        h = self.ffn_norm(x)
        return x + self.ffn_down(F.silu(self.ffn_gate(h)) * self.ffn_up(h))


class Model(nn.Module):
    def __init__(self, config=None):
        super().__init__()
        self.config = c = config or Config()
        self.token_embd = nn.Parameter(torch.randn(c.vocab, c.width) * 0.02)
        self.blk = nn.ModuleList(Block(c) for _ in range(c.layers))
        self.output_norm = Norm(c.width, c.eps)
        frequencies = c.rope_base ** (-torch.arange(0, c.head_dim, 2, dtype=torch.float64) / c.head_dim)
        angles = torch.outer(torch.arange(c.context + 1, dtype=torch.float64), frequencies)
        self.register_buffer("cos", angles.cos().float(), persistent=False)
        self.register_buffer("sin", angles.sin().float(), persistent=False)

    def forward(self, ids):
        """The final hidden states, in bfloat16 on a GPU. `logits` maps them to the vocabulary."""
        x = F.embedding(ids, self.token_embd).to(torch.bfloat16 if ids.is_cuda else torch.float32)
        cos, sin = self.cos[: ids.shape[1]], self.sin[: ids.shape[1]]
        for block in self.blk:
            x = block(x, cos, sin)
        return self.output_norm(x)

    def logits(self, x):
        return F.linear(x, self.token_embd.to(x.dtype))


def weighted_loss(x, embedding, targets, weights):
    logits = F.linear(x, embedding.to(x.dtype)).flatten(0, 1).float()
    losses = F.cross_entropy(logits, targets.flatten(), reduction="none")
    weights = weights.flatten().float()
    return (losses * weights).sum() / weights.sum()
