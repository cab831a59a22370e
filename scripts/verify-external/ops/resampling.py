"""Pooling over windows that follow from the sizes, and resampling."""

import torch.nn.functional as F

# Sizes from and to: divisible, not divisible, everything, unchanged, more than there are.
POOLED = [
    ((2, 3, 4, 6), [2, 3]),
    ((1, 2, 7, 5), [3, 2]),
    ((2, 3, 5, 7), [1, 1]),
    ((1, 2, 3, 4), [3, 4]),
    ((1, 1, 2, 3), [3, 5]),
]
# Doubled, to odd ratios, one axis smaller, one pixel, to one pixel, unchanged.
RESAMPLED = [
    ((2, 2, 3, 4), [6, 8]),
    ((1, 2, 3, 5), [7, 6]),
    ((1, 1, 7, 4), [3, 9]),
    ((2, 1, 1, 1), [3, 2]),
    ((1, 2, 4, 3), [1, 1]),
    ((1, 1, 3, 2), [3, 2]),
]


def cases(c):
    for shape, to in POOLED:
        label, attrs = f"{list(shape)} to {to}", {"output_size": to}
        mean = lambda x: F.adaptive_avg_pool2d(x, to)
        c.add(label, "core.adaptive_avg_pool2d", mean, c.grid(*shape), attrs=attrs)
        largest = lambda x: F.adaptive_max_pool2d(x, to)
        c.add(label, "core.adaptive_max_pool2d", largest, c.grid(*shape), attrs=attrs)
    for shape, to in RESAMPLED:
        label, attrs = f"{list(shape)} to {to}", {"output_size": to}
        nearest = lambda x: F.interpolate(x, size=to, mode="nearest")
        c.add(label, "core.upsample_nearest2d", nearest, c.grid(*shape), attrs=attrs)
        for align in [False, True]:
            linear = lambda x: F.interpolate(x, size=to, mode="bilinear", align_corners=align)
            name = f"{label}, corners " + ("aligned" if align else "not aligned")
            c.add(name, "core.upsample_bilinear2d", linear, c.grid(*shape), attrs=attrs | {"align_corners": align}, rounded=True)
