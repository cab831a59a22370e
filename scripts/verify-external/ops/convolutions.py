"""Convolutions in one dimension, transposed, and with a kernel for each channel."""

import torch.nn.functional as F


def lines(c):
    rows = [
        ("plain", (2, 3, 7), (2, 3, 3), {}),
        ("kernel of one", (1, 2, 5), (3, 2, 1), {}),
        ("stride and padding", (2, 2, 11), (3, 2, 4), {"stride": 3, "padding": 2}),
        ("dilation", (1, 2, 13), (2, 2, 3), {"dilation": 4, "padding": 1}),
        ("groups", (1, 4, 7), (6, 2, 3), {"groups": 2, "padding": 1}),
        ("one group a channel", (3, 5, 8), (5, 1, 3), {"groups": 5, "stride": 2}),
    ]
    for label, x, w, changed in rows:
        attrs = {"stride": 1, "padding": 0, "dilation": 1, "groups": 1} | changed
        c.add(label, "core.conv1d", lambda x, w: F.conv1d(x, w, **attrs), c.grid(*x), c.grid(*w), attrs=attrs)


def transposed(c):
    rows = [
        ("plain", (2, 3, 3, 4), (3, 2, 3, 2), {}),
        ("stride", (1, 2, 3, 5), (2, 3, 2, 2), {"stride": [2, 2]}),
        ("padding and more output", (2, 2, 4, 3), (2, 1, 3, 3), {"stride": [2, 3], "padding": [1, 1], "output_padding": [1, 2]}),
        ("dilation", (1, 2, 3, 3), (2, 2, 2, 3), {"dilation": [3, 2], "padding": [1, 0]}),
        ("groups", (1, 4, 3, 2), (4, 3, 2, 3), {"groups": 2, "stride": [1, 2]}),
        ("one group a channel", (2, 3, 3, 3), (3, 1, 4, 4), {"groups": 3, "stride": [2, 2], "padding": [1, 1]}),
    ]
    for label, x, w, changed in rows:
        plain = {"stride": [1, 1], "padding": [0, 0], "dilation": [1, 1], "groups": 1, "output_padding": [0, 0]}
        attrs = plain | changed
        convolve = lambda x, w: F.conv_transpose2d(x, w, **attrs)
        c.add(label, "core.conv_transpose2d", convolve, c.grid(*x), c.grid(*w), attrs=attrs)


def depthwise(c):
    rows = [
        ("a kernel a channel, padded", (2, 5, 5, 4), (5, 1, 3, 3), {"groups": 5, "padding": [1, 1]}),
        ("two kernels a channel", (1, 3, 6, 5), (6, 1, 3, 2), {"groups": 3, "stride": [2, 1]}),
        ("a kernel a channel, dilated", (1, 2, 7, 7), (2, 1, 3, 3), {"groups": 2, "dilation": [2, 3]}),
    ]
    for label, x, w, changed in rows:
        attrs = {"stride": [1, 1], "padding": [0, 0], "dilation": [1, 1], "groups": 1} | changed
        c.add(label, "core.conv2d", lambda x, w: F.conv2d(x, w, **attrs), c.grid(*x), c.grid(*w), attrs=attrs)


def cases(c):
    lines(c)
    transposed(c)
    depthwise(c)
