"""Elementwise functions of one operand."""

import numpy as np
import torch
import torch.nn.functional as F


def smooth(c):
    small = np.array([2.0**-20, -(2.0**-20), 2.0**-9, -(2.0**-9), 0.0])
    c.add("random", "core.cos", torch.cos, c.grid(3, 7, low=-20.0, high=20.0))
    c.add("one element", "core.cos", torch.cos, c.grid(1))
    for op, function, low in [("core.expm1", torch.expm1, -6.0), ("core.log1p", torch.log1p, -0.875)]:
        c.add("random", op, function, c.grid(5, 3, low=low, high=6.0))
        c.add("near zero", op, function, small)
    c.add("four axes", "core.log1p", torch.log1p, c.grid(2, 1, 3, 5, low=0.0, high=90.0))


def activations(c):
    for alpha in [1.0, 0.75]:
        elu = lambda x: F.elu(x, alpha)
        c.add(f"alpha {alpha}", "core.elu", elu, c.grid(3, 5, low=-6.0), attrs={"alpha": alpha})
    edges = np.array([-1.0, -0.00390625, 0.00390625, 1.0])
    c.add("around zero", "core.elu", lambda x: F.elu(x, 0.5), edges, attrs={"alpha": 0.5})
    # At -3 and 3 themselves the derivative is a choice; beside them it is not.
    kinks = np.array([-3.5, -3.00390625, -2.99609375, 0.0, 2.99609375, 3.00390625, 3.5])
    # The derivatives hold 1/6 and 1/3.
    for op, function in [("core.hard_sigmoid", F.hardsigmoid), ("core.hard_swish", F.hardswish)]:
        c.add("random", op, function, c.grid(5, 7, low=-6.0, high=6.0), rounded=True)
        c.add("beside the kinks", op, function, kinks, rounded=True)
        c.add("at the kinks", op, function, np.array([-3.0, 3.0]), fixed=(0,))


def steps(c):
    """The derivative is zero, which is compared too."""
    halves = np.array([-2.5, -1.5, -0.5, 0.0, 0.5, 1.5, 2.5, 3.0, -1.0, 2.0**22 + 0.5])
    rows = [
        ("core.sign", torch.sign),
        ("core.floor", torch.floor),
        ("core.ceil", torch.ceil),
        ("core.round", torch.round),
    ]
    for op, function in rows:
        c.add("random", op, function, c.grid(3, 7, low=-9.0, high=9.0))
        c.add("halves and integers", op, function, halves)


def cases(c):
    smooth(c)
    activations(c)
    steps(c)
