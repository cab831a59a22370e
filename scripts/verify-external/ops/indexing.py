"""Elements chosen by index or by mask, and their way back."""

import numpy as np
import torch
import torch.nn.functional as F

from torch_cases import DType, u32


def ordered(c):
    for k, axis, shape in [(3, -1, (4, 7)), (2, 0, (5, 3)), (1, 1, (2, 4, 3)), (5, 1, (2, 5))]:
        largest = lambda x: tuple(torch.topk(x, k, dim=axis))
        c.add(f"{k} along {axis} of {list(shape)}", "core.top_k", largest, c.grid(*shape), attrs={"k": k, "axis": axis})


def along_axis(c):
    for axis, shape, count in [(1, (3, 5), 4), (0, (5, 3), 7), (-2, (2, 4, 3), 1)]:
        picked = list(shape)
        size = shape[axis]
        picked[axis] = count
        label = f"{count} along {axis} of {list(shape)}"
        take = lambda x, i: torch.gather(x, axis, i)
        c.add(label, "core.take_along_axis", take, c.grid(*shape), c.ids(size, *picked), attrs={"axis": axis})

        def put(i, updates):
            return torch.zeros(shape, dtype=updates.dtype).scatter_add(axis, i, updates)

        attrs = {"size": size, "axis": axis}
        c.add(label, "core.put_along_axis", put, c.ids(size, *picked), c.grid(*picked), attrs=attrs)


def other_axes(c):
    """Parts along an axis other than the first, also by a matrix of indices."""
    for axis, shape, ids in [(1, (3, 5), (4,)), (-1, (2, 3, 5), (2, 3)), (1, (2, 4, 3), (2, 2)), (0, (4, 3), ())]:
        at = axis % len(shape)
        around = (shape[:at], shape[at + 1 :])
        label = f"indices {list(ids)} along {axis} of {list(shape)}"

        def gather(i, table):
            return table.index_select(at, i.flatten()).reshape(*around[0], *ids, *around[1])

        def scatter_add(i, updates):
            zeros = torch.zeros(shape, dtype=updates.dtype)
            return zeros.index_add(at, i.flatten(), updates.reshape(*around[0], -1, *around[1]))

        c.add(label, "core.gather", gather, c.ids(shape[at], *ids), c.grid(*shape), attrs={"axis": axis})
        attrs = {"rows": shape[at], "axis": axis}
        parts = c.grid(*around[0], *ids, *around[1])
        c.add(label, "core.scatter_add", scatter_add, c.ids(shape[at], *ids), parts, attrs=attrs)


def one_hot(c):
    for dtype, to in [("f32", torch.float64), ("u32", torch.int64), ("i32", torch.int32)]:
        attrs = {"classes": 5, "dtype": DType(dtype)}
        c.add(f"{dtype}", "core.one_hot", lambda i: F.one_hot(i, 5).to(to), c.ids(5, 2, 3), attrs=attrs)
    attrs = {"classes": 1, "dtype": DType("f32")}
    c.add("one class", "core.one_hot", lambda i: F.one_hot(i, 1).to(torch.float64), u32([0, 0]), attrs=attrs)


def replaced(c):
    for axis, shape, at in [(0, (5, 3), [4, 0, 2]), (1, (2, 7), [3, 6, 0, 1]), (-1, (3, 1, 4), [2])]:
        part = list(shape)
        part[axis] = len(at)
        put = lambda x, i, updates: x.index_copy(axis, i, updates)
        c.add(f"{len(at)} along {axis} of {list(shape)}", "core.scatter", put, c.grid(*shape), u32(at), c.grid(*part), attrs={"axis": axis})


def masked(c):
    for shape, mask in [((3, 5), (3, 5)), ((2, 3, 5), (3, 1)), ((4, 3), (3,)), ((7,), (1,))]:
        label = f"mask {list(mask)} of {list(shape)}"
        fill = lambda x, m: x.masked_fill(m != 0, -1.5)
        c.add(label, "core.masked_fill", fill, c.grid(*shape), c.mask(*mask), attrs={"value": -1.5})
        put = lambda x, m, source: x.masked_scatter(m != 0, source)
        c.add(label, "core.masked_scatter", put, c.grid(*shape), c.mask(*mask), c.grid(int(np.prod(shape)) + 2))
    c.add("a matrix of sources", "core.masked_scatter", put, c.grid(3, 5), c.mask(3, 5), c.grid(5, 4))


def cases(c):
    ordered(c)
    along_axis(c)
    other_axes(c)
    one_hot(c)
    replaced(c)
    masked(c)
