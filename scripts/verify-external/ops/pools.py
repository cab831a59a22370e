"""Derivatives of pools."""

import torch
import torch.nn.functional as F


def gradients(c):
    """The derivative of a mean pool: an operator of its own, which is linear."""
    rows = [
        ("side by side", (2, 2, 4, 6), [2, 2], [2, 2], [0, 0]),
        ("a rest", (1, 2, 5, 7), [2, 3], [2, 3], [0, 0]),
        ("overlap and padding", (1, 2, 5, 4), [3, 2], [2, 1], [1, 1]),
    ]
    for label, shape, kernel, stride, padding in rows:
        pool = lambda x: F.avg_pool2d(x, kernel, stride, padding)
        x = torch.zeros(shape, dtype=torch.float64)
        back = lambda dy: torch.func.vjp(pool, x)[1](dy)[0]
        attrs = {"kernel": kernel, "stride": stride, "padding": padding, "input_size": shape[2:]}
        c.add(label, "core.avg_pool2d_grad", back, c.grid(*pool(x).shape), attrs=attrs)


def cases(c):
    gradients(c)
