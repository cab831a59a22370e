"""Reductions and running sums."""

import numpy as np
import torch

from torch_cases import i32

REDUCED = [((3, 7), [1], False), ((3, 7), [0], True), ((2, 3, 5), [0, -1], False), ((5, 1), [], False)]


def all_axes(x, axes):
    return axes or list(range(x.dim()))


def smallest(c):
    for shape, axes, keep in REDUCED:
        reduce = lambda x: torch.amin(x, dim=all_axes(x, axes), keepdim=keep)
        label = f"axes {axes} of {list(shape)}" + (", kept" if keep else "")
        c.add(label, "core.min_reduce", reduce, c.grid(*shape), attrs={"axes": axes, "keep_dims": keep})
    tied = np.array([[2.0, -2.0, -2.0, -2.0], [0.5, -1.0, 0.5, -1.0], [3.0, 1.0, 2.0, 0.0]])
    attrs = {"axes": [1], "keep_dims": False}
    c.add("ties", "core.min_reduce", lambda x: torch.amin(x, dim=1), tied, attrs=attrs)
    for axis in [-1, 0, 1]:
        argmin = lambda x: torch.argmin(x, dim=axis)
        c.add(f"axis {axis}", "core.argmin", argmin, c.grid(3, 5, 2), attrs={"axis": axis}, fixed=(0,))


def product(x, axes, keep):
    for axis in sorted((a % x.dim() for a in all_axes(x, axes)), reverse=True):
        x = torch.prod(x, dim=axis, keepdim=keep)
    return x


def products(c):
    for shape, axes, keep in REDUCED:
        reduce = lambda x: product(x, axes, keep)
        label = f"axes {axes} of {list(shape)}" + (", kept" if keep else "")
        c.add(label, "core.prod", reduce, c.grid(*shape), attrs={"axes": axes, "keep_dims": keep})
    zeros = c.grid(4, 5)
    zeros[1, 2] = zeros[2, 0] = zeros[2, 4] = zeros[3, 1] = zeros[3, 2] = zeros[3, 3] = 0.0
    for axes in [[1], [0], [0, 1]]:
        reduce = lambda x: product(x, axes, False)
        c.add(f"none, one, two and three zeros, axes {axes}", "core.prod", reduce, zeros, attrs={"axes": axes, "keep_dims": False})
    one = zeros.copy()
    one[zeros == 0.0] = 1.5
    one[1, 1] = 0.0
    c.add("one zero in all", "core.prod", torch.prod, one, attrs={"axes": [], "keep_dims": False})


def variances(c):
    for correction in [0, 1, 2]:
        for shape, axes, keep in REDUCED:
            reduce = lambda x: torch.var(x, dim=all_axes(x, axes), correction=correction, keepdim=keep)
            label = f"axes {axes} of {list(shape)}, correction {correction}" + (", kept" if keep else "")
            attrs = {"axes": axes, "correction": correction, "keep_dims": keep}
            if np.prod([shape[a] for a in axes or range(len(shape))]) > correction:
                c.add(label, "core.variance", reduce, c.grid(*shape), attrs=attrs, rounded=True)
    # The derivative subtracts the mean, whose factor 1 / n is rounded: it cannot be as close here.
    far = 1000.0 + c.grid(2, 7)
    attrs = {"axes": [1], "correction": 1, "keep_dims": False}
    c.add("far from zero", "core.variance", lambda x: torch.var(x, dim=1), far, attrs=attrs, fixed=(0,), rounded=True)


def running(x, axis, exclusive, reverse):
    y = torch.cumsum(x.flip(axis) if reverse else x, dim=axis, dtype=x.dtype)
    y = y.flip(axis) if reverse else y
    return y - x if exclusive else y


def running_sums(c):
    for exclusive in [False, True]:
        for reverse in [False, True]:
            for axis, shape in [(0, (5,)), (1, (3, 7, 2)), (-1, (2, 1, 11))]:
                attrs = {"axis": axis, "exclusive": exclusive, "reverse": reverse}
                label = f"axis {axis} of {list(shape)}" + " exclusive" * exclusive + " reverse" * reverse
                c.add(label, "core.cumsum", lambda x: running(x, **attrs), c.grid(*shape), attrs=attrs)
    attrs = {"axis": 0, "exclusive": False, "reverse": False}
    wraps = i32([2**31 - 1, 1, -5, 7, -(2**31)])
    c.add("signed", "core.cumsum", lambda x: running(x, **attrs), wraps, attrs=attrs)


def cases(c):
    smallest(c)
    products(c)
    variances(c)
    running_sums(c)
