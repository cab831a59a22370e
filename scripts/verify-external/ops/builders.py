"""Cases of the methods of `Graph` that build calls of single operators."""

import numpy as np
import torch
import torch.nn.functional as F

from torch_cases import f32, i32, u32

# The operands were chosen when all cases were in one file.
SEED = 20240611

# Methods whose definition or derivative contains a constant that is not exact in binary32. Constants of a
# graph have the dtype of the operands, so `ln 2` or a mean's `1 / n` are rounded in the oracle too.
ROUNDED = {
    "log2",
    "exp2",
    "sin",
    "erf",
    "gelu_tanh",
    "gelu_erf",
    "mean",
    "mean_all",
    "mse_loss",
    "cross_entropy_loss",
    "layer_norm",
    "batch_norm",
}


def unary(c):
    wide = {"low": -6.0, "high": 6.0}
    # PyTorch's own form is linear from 20 on, an approximation.
    softplus = lambda x: F.softplus(x, threshold=1e9)
    positive = {"low": 0.0625, "high": 9.0}
    rows = [
        ("log2", torch.log2, positive),
        ("exp2", torch.exp2, wide),
        ("sin", torch.sin, {"low": -20.0, "high": 20.0}),
        ("reciprocal", torch.reciprocal, positive),
        ("sqrt", torch.sqrt, positive),
        ("neg", torch.neg, wide),
        ("abs", torch.abs, wide),
        ("exp", torch.exp, wide),
        ("log", torch.log, positive),
        ("rsqrt", torch.rsqrt, positive),
        ("square", torch.square, wide),
        ("tanh", torch.tanh, wide),
        ("sigmoid", torch.sigmoid, wide),
        ("relu", F.relu, wide),
        ("softplus", softplus, wide),
        ("silu", F.silu, wide),
        ("erf", torch.erf, wide),
        ("gelu_tanh", lambda x: F.gelu(x, approximate="tanh"), wide),
        ("gelu_erf", F.gelu, wide),
    ]
    for op, function, domain in rows:
        c.add("random", op, function, c.grid(3, 7, **domain))
    for op, function in [
        ("abs", torch.abs),
        ("relu", F.relu),
        ("gelu_erf", F.gelu),
        ("silu", F.silu),
        ("erf", torch.erf),
    ]:
        c.add("around zero", op, function, np.array([-0.00390625, 0.0, 0.00390625]))
    # With one number in the middle, so that the small tails are judged against its magnitude.
    far = np.array([-80.0, -30.0, -12.0, 0.5, 12.0, 30.0, 80.0])
    for op, function in [("sigmoid", torch.sigmoid), ("tanh", torch.tanh), ("softplus", softplus)]:
        c.add("saturated", op, function, far)
    slope = 0.125
    leaky = lambda x: F.leaky_relu(x, slope)
    c.add("random", "leaky_relu", leaky, c.grid(5, 3), attrs={"negative_slope": slope})
    c.add("at zero", "leaky_relu", leaky, np.array([-1.0, 0.0, 1.0]), attrs={"negative_slope": slope})
    clamp = lambda x: torch.clamp(x, -1.0, 1.5)
    c.add("random", "clamp", clamp, c.grid(5, 3), attrs={"low": -1.0, "high": 1.5})
    # Exactly at a limit PyTorch's derivative is 0 in release 2.15 and was 1, as in Meganeura, in 2.12.
    limits = np.array([-1.0, 1.5])
    c.add("at the limits", "clamp", clamp, limits, attrs={"low": -1.0, "high": 1.5}, fixed=(0,))
    near = np.array([-1.00390625, -0.99609375, 1.49609375, 1.50390625])
    c.add("near the limits", "clamp", clamp, near, attrs={"low": -1.0, "high": 1.5})
    c.add("signed", "neg", torch.neg, i32([3, -4, 0]))
    c.add("signed", "abs", torch.abs, i32([3, -4, 0]))


def binary(c):
    arithmetic = [
        ("add", torch.add),
        ("sub", torch.sub),
        ("mul", torch.mul),
        ("max", torch.maximum),
        ("min", torch.minimum),
    ]
    for op, function in arithmetic:
        c.add("same shape", op, function, c.grid(3, 5), c.grid(3, 5))
        c.add("broadcast both ways", op, function, c.grid(4, 1, 3), c.grid(2, 1))
        c.add("broadcast scalar", op, function, c.grid(5), c.grid())
    c.add("same shape", "div", torch.div, c.grid(3, 5), c.grid(3, 5, low=0.5))
    c.add("broadcast", "div", torch.div, c.grid(2, 1, 3), c.grid(5, 1, low=-3.0, high=-0.5))
    c.add("positive divisors", "modulo", torch.remainder, c.grid(3, 5), c.grid(3, 5, low=0.5))
    c.add("negative divisors", "modulo", torch.remainder, c.grid(2, 1, 3), c.grid(5, 1, low=-3.0, high=-0.5))
    c.add("positive bases", "pow", torch.pow, c.grid(3, 5, low=0.25), c.grid(3, 5, low=-2.0, high=2.0))
    c.add("broadcast", "pow", torch.pow, c.grid(3, 1, low=0.25), c.grid(4))
    c.add("base zero", "pow", torch.pow, np.array([0.0, 0.0, 0.0]), np.array([1.0, 2.5, 3.0]))
    # The derivative by the exponent is not defined here: NaN in PyTorch, 0 in Meganeura.
    c.add("negative bases", "pow", torch.pow, np.array([-1.5, -0.5, -2.0]), np.array([2.0, 3.0, -2.0]), fixed=(1,))
    tied = np.array([1.0, 2.0, -0.5, 0.0])
    c.add("ties", "max", torch.maximum, tied, np.array([1.0, 0.5, -0.5, 3.0]))
    c.add("ties", "min", torch.minimum, tied, np.array([1.0, 0.5, -0.5, 3.0]))
    integers(c)
    comparisons = [
        ("less_than", torch.lt),
        ("less_equal", torch.le),
        ("greater_than", torch.gt),
        ("greater_equal", torch.ge),
        ("equal", torch.eq),
        ("not_equal", torch.ne),
    ]
    for op, function in comparisons:
        c.add("broadcast with ties", op, function, np.array([[-1.0], [0.5], [2.0]]), np.array([-1.0, 0.5, 1.0, 2.0]))
        c.add("signed", op, function, i32([-3, -3, 4]), i32([2, -3, -4]))


def integers(c):
    """Signed arithmetic: wraps at 32 bits, the quotient truncates, the remainder has the divisor's sign."""
    a, b = i32([7, -7, 7, -7, 2**31 - 1]), i32([3, 3, -3, -3, 2])
    rows = [
        ("add", torch.add),
        ("sub", torch.sub),
        ("mul", torch.mul),
        ("div", lambda x, y: torch.div(x, y, rounding_mode="trunc")),
        ("modulo", torch.remainder),
        ("max", torch.maximum),
        ("min", torch.minimum),
    ]
    for op, function in rows:
        c.add("signed", op, function, a, b)


def selection(c):
    where = lambda m, a, b: torch.where(m != 0, a, b)
    c.add("same shape", "select", where, c.ids(2, 3, 5), c.grid(3, 5), c.grid(3, 5))
    c.add("broadcast", "select", where, c.ids(2, 4, 1), c.grid(3), c.grid(2, 1, 1))
    c.add(
        "to signed",
        "cast",
        lambda x: x.to(torch.int32),
        np.array([-2.75, -0.5, 0.5, 2.75]),
        attrs={"to": "i32"},
        fixed=(0,),
    )
    c.add(
        "to unsigned", "cast", lambda x: x.to(torch.int64), np.array([0.5, 2.75, 3.0]), attrs={"to": "u32"}, fixed=(0,)
    )
    c.add("from signed", "cast", lambda x: x.to(torch.float64), i32([-5, 0, 9]), attrs={"to": "f32"})
    c.add("one factor", "stop_gradient", lambda x: x * x.detach(), c.grid(5))


def reductions(c):
    for op, function in [("sum", torch.sum), ("mean", torch.mean), ("max_reduce", torch.amax)]:
        for shape, axes, keep in [((3, 7), [1], False), ((3, 7), [0], True), ((2, 3, 5), [0, -1], False)]:
            reduce = lambda x: function(x, dim=axes, keepdim=keep)
            label = f"axes {axes} of {list(shape)}" + (", kept" if keep else "")
            c.add(label, op, reduce, c.grid(*shape), attrs={"axes": axes, "keep_dims": keep})
    c.add("all", "sum_all", torch.sum, c.grid(3, 5))
    c.add("all", "mean_all", torch.mean, c.grid(3, 5))
    tied = np.array([[2.0, 2.0, 1.0, 2.0], [0.5, -1.0, 0.5, 0.25], [3.0, 1.0, 2.0, 0.0]])
    c.add("ties", "max_reduce", lambda x: torch.amax(x, dim=[1]), tied, attrs={"axes": [1], "keep_dims": False})
    c.add(
        "ties over all",
        "max_reduce",
        lambda x: torch.amax(x, dim=[0, 1]),
        tied[:1],
        attrs={"axes": [0, 1], "keep_dims": False},
    )
    for axis in [-1, 0, 1]:
        c.add(
            f"axis {axis}",
            "argmax",
            lambda x: torch.argmax(x, dim=axis),
            c.grid(3, 5, 2),
            attrs={"axis": axis},
            fixed=(0,),
        )
    c.add("ties", "argmax", lambda x: torch.argmax(x, dim=1), tied, attrs={"axis": 1}, fixed=(0,))
    for op, function in [("softmax", torch.softmax), ("log_softmax", torch.log_softmax)]:
        for axis in [-1, 0, 1]:
            c.add(f"axis {axis}", op, lambda x: function(x, axis), c.grid(3, 5, 2), attrs={"axis": axis})
        c.add(
            "far apart",
            op,
            lambda x: function(x, -1),
            np.array([[90.0, 89.0, -90.0], [-700.0, -701.0, -699.5]]),
            attrs={"axis": -1},
        )


def movement(c):
    c.add("three axes to two", "reshape", lambda x: x.reshape(6, 5), c.grid(2, 3, 5), attrs={"shape": [6, 5]})
    c.add("four axes", "flatten", lambda x: x.flatten(1), c.grid(3, 2, 1, 4))
    c.add("four axes", "permute", lambda x: x.permute(2, 0, 3, 1), c.grid(2, 3, 4, 1), attrs={"axes": [2, 0, 3, 1]})
    c.add("last two axes", "transpose", lambda x: x.transpose(-1, -2), c.grid(2, 3, 5))
    c.add(
        "ones and a new axis", "expand", lambda x: x.expand(4, 2, 3, 5), c.grid(2, 1, 5), attrs={"shape": [4, 2, 3, 5]}
    )
    attrs = {"starts": [1, 0, 2], "ends": [3, 5, 7], "steps": [1, 2, 3]}
    c.add("with steps", "slice_strided", lambda x: x[1:3, 0:5:2, 2:7:3], c.grid(3, 5, 7), attrs=attrs)
    c.add("contiguous", "slice", lambda x: x[1:4, 2:5], c.grid(5, 6), attrs={"starts": [1, 2], "ends": [4, 5]})
    join = lambda axis: lambda *parts: torch.cat(parts, dim=axis)
    c.add("three parts", "concat", join(1), c.grid(2, 3, 2), c.grid(2, 1, 2), c.grid(2, 4, 2), attrs={"axis": 1})
    c.add("last axis", "concat", join(-1), c.grid(3, 2), c.grid(3, 5), attrs={"axis": -1})
    attrs = {"low": [1, 0, 2], "high": [0, 3, 1], "value": -1.5}
    c.add("three axes", "pad", lambda x: F.pad(x, (2, 1, 0, 3, 1, 0), value=-1.5), c.grid(2, 3, 2), attrs=attrs)


def tables(c):
    lookup = lambda ids, table: F.embedding(ids, table)
    c.add("repeated ids", "embedding", lookup, u32([4, 0, 4, 2, 4]), c.grid(5, 3))
    c.add("matrix of ids", "embedding", lookup, c.ids(7, 2, 3), c.grid(7, 5))
    gather = lambda ids, table: table[ids]
    c.add("rows that are matrices", "gather", gather, u32([2, 1, 2]), c.grid(4, 2, 3))
    into = lambda rows: (
        lambda ids, x: torch.zeros(rows, *x.shape[ids.dim() :], dtype=x.dtype).index_add(
            0, ids.flatten(), x.reshape(-1, *x.shape[ids.dim() :])
        )
    )
    c.add("repeated ids", "scatter_add", into(4), u32([3, 0, 3, 3, 1]), c.grid(5, 3), attrs={"rows": 4})
    c.add("matrix of ids", "scatter_add", into(6), c.ids(6, 2, 3), c.grid(2, 3, 4), attrs={"rows": 6})


def products(c):
    t = lambda x: x.transpose(-1, -2)
    c.add("plain", "matmul", torch.matmul, c.grid(5, 7), c.grid(7, 3))
    c.add("one row", "matmul", torch.matmul, c.grid(1, 11), c.grid(11, 1))
    c.add("long sum", "matmul", torch.matmul, c.grid(2, 67), c.grid(67, 3))
    c.add("batch", "matmul", torch.matmul, c.grid(3, 2, 5), c.grid(3, 5, 4))
    c.add("broadcast batch", "matmul", torch.matmul, c.grid(2, 1, 3, 5), c.grid(3, 5, 2))
    c.add("matrix for every batch", "matmul", torch.matmul, c.grid(3, 2, 5), c.grid(5, 4))
    c.add("left transposed", "matmul_at", lambda a, b: t(a) @ b, c.grid(7, 5), c.grid(7, 3))
    c.add("left transposed batch", "matmul_at", lambda a, b: t(a) @ b, c.grid(2, 5, 3), c.grid(1, 5, 4))
    c.add("right transposed", "matmul_bt", lambda a, b: a @ t(b), c.grid(5, 7), c.grid(3, 7))
    c.add("right transposed batch", "matmul_bt", lambda a, b: a @ t(b), c.grid(4, 2, 3), c.grid(5, 3))
    c.add("rows", "bias_add", torch.add, c.grid(4, 5), c.grid(5))


def convolutions(c):
    rows = [
        ("plain", (2, 3, 5, 6), (2, 3, 3, 2), {}),
        ("padding", (1, 2, 4, 5), (3, 2, 3, 3), {"padding": [1, 1]}),
        ("stride and padding", (2, 2, 7, 5), (3, 2, 3, 3), {"stride": [2, 1], "padding": [0, 1]}),
        ("dilation", (1, 2, 7, 8), (2, 2, 2, 3), {"dilation": [3, 2], "padding": [1, 2]}),
        ("groups", (1, 4, 5, 4), (6, 2, 2, 3), {"groups": 2, "padding": [1, 0]}),
        ("one group a channel", (2, 3, 5, 5), (3, 1, 3, 3), {"groups": 3, "stride": [2, 2], "padding": [1, 1]}),
    ]
    for label, x, w, changed in rows:
        attrs = {"stride": [1, 1], "padding": [0, 0], "dilation": [1, 1], "groups": 1} | changed
        c.add(label, "conv2d", lambda x, w: F.conv2d(x, w, **attrs), c.grid(*x), c.grid(*w), attrs=attrs)
    # The transposed convolution, and the derivative by the kernel.
    attrs = {"stride": [2, 1], "padding": [1, 0], "dilation": [1, 2], "groups": 2}
    transposed = lambda y, w: F.conv_transpose2d(y, w, output_padding=[1, 0], **attrs)
    c.add(
        "transposed convolution",
        "conv2d_input_grad",
        transposed,
        c.grid(1, 4, 3, 2),
        c.grid(4, 1, 3, 2),
        attrs=attrs | {"input_size": [6, 4]},
    )
    by_kernel = lambda x, dy: torch.nn.grad.conv2d_weight(x, (4, 1, 3, 2), dy, **attrs)
    c.add(
        "kernel gradient",
        "conv2d_weight_grad",
        by_kernel,
        c.grid(1, 2, 6, 4),
        c.grid(1, 4, 3, 2),
        attrs=attrs | {"kernel_size": [3, 2]},
    )


def pools(c):
    def max_pool(kernel, stride, padding):
        def function(x):
            y, index = F.max_pool2d(x, kernel, stride, padding, return_indices=True)
            # PyTorch counts within a plane, Meganeura within the whole operand.
            n, channels, h, w = x.shape
            return y, index + (torch.arange(n * channels) * h * w).reshape(n, channels, 1, 1)

        return function

    rows = [
        ("side by side", (2, 2, 4, 6), [2, 2], [2, 2], [0, 0]),
        ("a rest", (1, 2, 5, 7), [2, 3], [2, 3], [0, 0]),
        ("overlap and padding", (1, 2, 5, 4), [3, 2], [2, 1], [1, 1]),
    ]
    for label, shape, kernel, stride, padding in rows:
        attrs = {"kernel": kernel, "stride": stride, "padding": padding}
        c.add(label, "max_pool2d", max_pool(kernel, stride, padding), c.grid(*shape), attrs=attrs)
        mean = lambda x: F.avg_pool2d(x, kernel, stride, padding, count_include_pad=True)
        c.add(label, "avg_pool2d", mean, c.grid(*shape), attrs=attrs)
    tied = np.array([[[[1.0, 1.0, 0.0], [1.0, 0.5, 2.0], [0.0, 2.0, 2.0]]]])
    attrs = {"kernel": [2, 2], "stride": [1, 1], "padding": [0, 0]}
    c.add("ties", "max_pool2d", max_pool([2, 2], [1, 1], [0, 0]), tied, attrs=attrs)
    below = -np.arange(1.0, 10.0).reshape(1, 1, 3, 3)
    attrs = {"kernel": [2, 2], "stride": [2, 2], "padding": [1, 1]}
    c.add("padding is never the largest", "max_pool2d", max_pool([2, 2], [2, 2], [1, 1]), below, attrs=attrs)


def normalisations(c):
    for label, shape, eps in [("rows", (4, 7), f32(1e-5)), ("three axes", (2, 3, 5), 0.0625)]:
        width = shape[-1:]
        function = lambda x, w, b: torch.native_layer_norm(x, list(width), w, b, eps)
        c.add(label, "layer_norm", function, c.grid(*shape), c.grid(*width), c.grid(*width), attrs={"eps": eps})
    for label, shape, momentum, eps in [("rows", (5, 3), 0.125, 0.0625), ("images", (2, 3, 2, 4), f32(0.1), f32(1e-5))]:
        attrs = {"momentum": momentum, "eps": eps}
        channel = lambda: c.grid(shape[1])

        def train(x, w, b, mean, var):
            y, batch_mean, rstd = torch.native_batch_norm(x, w, b, mean, var, True, momentum, eps)
            return y, mean.clone(), var.clone(), batch_mean, rstd

        def infer(x, w, b, mean, var):
            return F.batch_norm(x, mean, var, w, b, training=False, eps=eps)

        operands = [c.grid(*shape), channel(), channel(), channel(), c.grid(shape[1], low=0.25)]
        c.add(label, "batch_norm", train, *operands, attrs=attrs, states=(3, 4))
        c.add(label, "batch_norm", infer, *operands, attrs=attrs, states=(3, 4), mode="inference")
        c.add(label, "batch_norm_inference", infer, *operands, attrs={"eps": eps}, fixed=(3, 4))


def losses(c):
    def by_probability(x, labels):
        classes = x.shape[-1]
        loss = F.cross_entropy(x.reshape(-1, classes), labels.reshape(-1, classes))
        return loss, torch.logsumexp(x, -1)

    def by_id(x, ids):
        return F.cross_entropy(x.reshape(-1, x.shape[-1]), ids.flatten()), torch.logsumexp(x, -1)

    probabilities = np.array([[0.25, 0.5, 0.125, 0.125], [0.0, 0.0, 1.0, 0.0], [0.25, 0.25, 0.25, 0.25]])
    c.add("probabilities", "cross_entropy_loss", by_probability, c.grid(3, 4), probabilities)
    c.add("labels of any sum", "cross_entropy_loss", by_probability, c.grid(2, 3, 5), c.grid(2, 3, 5, low=0.0))
    c.add("ids", "cross_entropy_loss", by_id, c.grid(5, 3), u32([2, 0, 1, 2, 2]))
    c.add("matrix of ids", "cross_entropy_loss", by_id, c.grid(2, 3, 7), c.ids(7, 2, 3))
    c.add(
        "logits far apart", "cross_entropy_loss", by_id, np.array([[90.0, -90.0, 0.0], [1.0, 2.0, 95.0]]), u32([1, 2])
    )
    c.add("three axes", "mse_loss", F.mse_loss, c.grid(2, 3, 3), c.grid(2, 3, 3))


def cases(c):
    for group in [
        unary,
        binary,
        selection,
        reductions,
        movement,
        tables,
        products,
        convolutions,
        pools,
        normalisations,
        losses,
    ]:
        group(c)
    for case in c.found:
        case["rounded"] = case["op"] in ROUNDED
