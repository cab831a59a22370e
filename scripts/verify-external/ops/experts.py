"""Products with a matrix for each expert, chosen row by row."""

import torch


def cases(c):
    for rows, experts, n, k in [((5,), 3, 4, 6), ((2, 3), 4, 3, 5), ((7,), 1, 2, 3), ((2,), 5, 3, 4)]:
        for transpose_b in (True, False):
            equation = "...k,...nk->...n" if transpose_b else "...k,...kn->...n"
            product = lambda x, i, w: torch.einsum(equation, x, w[i])
            weight = (experts, n, k) if transpose_b else (experts, k, n)
            label = f"{list(rows)} rows of {k} by {list(weight)}, transposed: {transpose_b}"
            operands = (c.grid(*rows, k), c.ids(experts, *rows), c.grid(*weight))
            c.add(label, "core.expert_matmul", product, *operands, attrs={"transpose_b": transpose_b})
