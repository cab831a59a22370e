"""How the files in `ops/` state their cases.

Such a file has a function `cases(c)` that calls `c.add` for every case:

    c.add("rows", "core.huber_loss", F.huber_loss, c.grid(3, 5), c.grid(3, 5), attrs={"delta": 0.5})

Operands are multiples of 1/256: exact in binary32 and short in decimal. A tensor
holds no number twice, so ties appear only in the cases that are about ties.
"""

import numpy as np
import torch

GRID = 256


def f32(value):
    """The float64 that equals `value` rounded to binary32, as attributes are."""
    return float(np.float32(value))


class Int:
    """An integer operand of dtype `u32` or `i32`."""

    def __init__(self, dtype, data):
        self.dtype = dtype
        self.data = np.asarray(data, dtype=np.int64)


class DType:
    """An attribute that is an element type."""

    def __init__(self, name):
        self.name = name


def u32(data):
    return Int("u32", data)


def i32(data):
    return Int("i32", data)


class Cases:
    """Collects cases; random numbers depend on the seed and the order of calls alone."""

    def __init__(self, seed):
        self.rng = np.random.default_rng(seed)
        self.found = []

    def grid(self, *shape, low=-3.0, high=3.0):
        """Distinct random multiples of 1/256 in [low, high)."""
        points = np.arange(round(low * GRID), round(high * GRID)) / GRID
        return self.rng.choice(points, size=shape, replace=False)

    def ids(self, bound, *shape):
        return u32(self.rng.integers(bound, size=shape))

    def mask(self, *shape):
        return self.ids(2, *shape)

    def add(
        self,
        label,
        op,
        function,
        *operands,
        attrs=None,
        fixed=(),
        states=(),
        rounded=False,
        mode="training",
    ):
        """Evaluates `function` and its derivatives.

        op       registered name (`core.huber_loss`), or that of a method of `Graph` which
                 `tests/it/external/builders.rs` calls
        attrs    attributes by name, in the types of `Attrs`: an axis is `1`, a factor `1.0`
        fixed    float operands whose gradient is not compared
        states   operands that the operator writes: states of the graph, without gradient
        rounded  the definition or derivative holds constants that are not exact in binary32,
                 which allows for their rounding error
        mode     "inference" for the form without gradients of operators that have one
        """
        constant = {*fixed, *states}
        tensors = [self._tensor(x, i not in constant) for i, x in enumerate(operands)]
        results = function(*tensors)
        results = results if isinstance(results, (tuple, list)) else (results,)
        leaves = [t for t in tensors if t.requires_grad]
        first = results[0]
        if leaves and first.dtype == torch.float64 and mode == "training":
            (first * weights(first.shape)).sum().backward()
        typed = op.startswith("core.")
        self.found.append(
            {
                "name": f"{op}: {label}",
                "op": op,
                "mode": mode,
                "rounded": rounded,
                "states": list(states),
                "attrs": [[name, attribute(v)] for name, v in (attrs or {}).items()] if typed else attrs or {},
                "inputs": [self._describe(x) for x in operands],
                "outputs": [describe_result(t) for t in results],
                "grads": [None if t.grad is None else t.grad.flatten().tolist() for t in tensors],
            }
        )

    @staticmethod
    def _tensor(operand, wants_gradient):
        if isinstance(operand, Int):
            return torch.tensor(operand.data, dtype=torch.int32 if operand.dtype == "i32" else torch.int64)
        return torch.tensor(operand, dtype=torch.float64, requires_grad=wants_gradient)

    @staticmethod
    def _describe(operand):
        integer = isinstance(operand, Int)
        data = operand.data if integer else np.asarray(operand, dtype=np.float64)
        dtype = operand.dtype if integer else "f32"
        return {"dtype": dtype, "shape": list(data.shape), "data": data.flatten().tolist()}


def attribute(value):
    """An attribute as `Attrs` are stored; the type in Python decides."""
    if isinstance(value, DType):
        return {"DType": value.name.upper()}
    kinds = [(bool, "Bool"), (int, "Int"), (float, "Float"), (str, "Str")]
    for kind, name in kinds:
        if isinstance(value, kind):
            return {name: value}
    return {"Ints": [int(v) for v in value]}


def weights(shape):
    """Weights of the sum whose gradient is taken: odd multiples of 1/64 below 1, by position. The test
    computes the same."""
    position = torch.arange(int(np.prod(shape, dtype=np.int64)))
    return ((2 * ((37 * position + 11) % 64) - 63).to(torch.float64) / 64).reshape(shape)


def describe_result(tensor):
    """Masks and indices are `u32` in Meganeura, 32-bit integers keep their dtype."""
    dtype = {torch.float64: "f32", torch.int32: "i32"}.get(tensor.dtype, "u32")
    data = tensor.detach().flatten()
    return {"dtype": dtype, "shape": list(tensor.shape), "data": (data if dtype == "f32" else data.long()).tolist()}
