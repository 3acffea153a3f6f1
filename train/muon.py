"""Muon: momentum with orthogonalized steps, for the hidden matrices of a network (Jordan et al., 2024)."""

import torch


def orthogonalize(g, steps=5):
    """Newton-Schulz iteration that brings all singular values near one, for a stack of matrices."""
    a, b, c = 3.4445, -4.7750, 2.0315
    x = g.bfloat16()
    tall = x.shape[-2] > x.shape[-1]
    if tall:
        x = x.mT
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(steps):
        s = x @ x.mT
        x = a * x + (b * s + c * (s @ s)) @ x
    return x.mT if tall else x


class Muon:
    def __init__(self, matrices, lr, momentum=0.95, decay=0.01):
        self.lr, self.momentum, self.decay = lr, momentum, decay
        shapes = {}
        for matrix in matrices:
            shapes.setdefault(matrix.shape, []).append(matrix)
        # Matrices of one shape are stacked: few large products instead of many small ones.
        self.groups = [(group, torch.zeros_like(torch.stack([m.data for m in group]))) for group in shapes.values()]

    @torch.no_grad()
    def step(self, factor):
        lr = self.lr * factor
        for group, average in self.groups:
            g = torch.stack([matrix.grad for matrix in group])
            average.lerp_(g, 1 - self.momentum)
            step = orthogonalize(g.lerp(average, self.momentum)).to(g.dtype)
            step *= -lr * max(1, g.shape[-2] / g.shape[-1]) ** 0.5
            torch._foreach_mul_(group, 1 - lr * self.decay)
            torch._foreach_add_(group, list(step.unbind(0)))
