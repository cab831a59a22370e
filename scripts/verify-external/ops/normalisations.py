"""Normalisations with all their results: the saved statistics follow the values."""

import torch
import torch.nn.functional as F

from torch_cases import f32


def rows(c):
    for shape, eps in [((4, 7), f32(1e-6)), ((2, 3, 5), 0.0625), ((1, 1), 0.25), ((3, 1, 67), f32(1e-5))]:
        width = shape[-1:]

        def rms(x, w):
            return F.rms_norm(x, width, w, eps), torch.rsqrt((x * x).mean(-1, keepdim=True) + eps)

        c.add(f"{list(shape)}", "core.rms_norm", rms, c.grid(*shape), c.grid(*width), attrs={"eps": eps}, rounded=True)


def groups(c):
    cases = [
        ("two groups", (2, 4, 3, 5), 2),
        ("one group", (2, 3, 5), 1),
        ("a group a channel", (3, 3, 2, 2), 3),
        ("two groups without axes behind", (4, 8), 2),
        ("volumes", (1, 4, 2, 3, 2), 2),
    ]
    for label, shape, count in cases:
        for eps in [f32(1e-5), 0.0625]:
            n, channels = shape[:2]
            inner = torch.Size(shape[2:]).numel()
            group = lambda x, w, b: torch.native_group_norm(x, w, b, n, channels, inner, count, eps)
            attrs = {"eps": eps, "groups": count}
            c.add(f"{label}, eps {eps:.2g}", "core.group_norm", group, c.grid(*shape), c.grid(channels), c.grid(channels), attrs=attrs, rounded=True)

    def instance(x, w, b):
        return F.instance_norm(x, weight=w, bias=b, eps=0.0625)

    c.add("as PyTorch's instance norm", "core.group_norm", instance, c.grid(2, 3, 4, 5), c.grid(3), c.grid(3), attrs={"eps": 0.0625, "groups": 3}, rounded=True)


def cases(c):
    rows(c)
    groups(c)
