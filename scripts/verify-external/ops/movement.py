"""Elements in another order, cut, repeated or cleared."""

import torch


def cases(c):
    for sizes, axis, shape in [([2, 1, 4], 1, (3, 7)), ([3, 2], 0, (5, 2)), ([1, 1, 1], -1, (2, 2, 3)), ([4], 0, (4,))]:
        parts = lambda x: torch.split(x, sizes, dim=axis)
        label = f"{sizes} along {axis} of {list(shape)}"
        c.add(label, "core.split", parts, c.grid(*shape), attrs={"sizes": sizes, "axis": axis})
    for repeats, shape in [([3], (5,)), ([2, 3], (3, 2)), ([1, 4, 1], (2, 1, 3)), ([2, 1, 2, 3], (1, 3, 2, 1))]:
        label = f"{repeats} of {list(shape)}"
        c.add(label, "core.tile", lambda x: torch.tile(x, repeats), c.grid(*shape), attrs={"repeats": repeats})
    for axes, shape in [([0], (5,)), ([1], (3, 7)), ([0, -1], (2, 3, 5)), ([2, 0, 1], (2, 3, 2))]:
        c.add(f"axes {axes} of {list(shape)}", "core.flip", lambda x: torch.flip(x, axes), c.grid(*shape), attrs={"axes": axes})
    for op, function in [("core.tril", torch.tril), ("core.triu", torch.triu)]:
        for diagonal, shape in [(0, (5, 5)), (1, (3, 7)), (-2, (7, 3)), (-1, (2, 3, 4)), (9, (3, 3)), (-9, (2, 2))]:
            part = lambda x: function(x, diagonal)
            c.add(f"{diagonal} of {list(shape)}", op, part, c.grid(*shape), attrs={"diagonal": diagonal})
