"""Losses, each the mean in PyTorch's sense, and the sum of squares that gradient clipping takes."""

import numpy as np
import torch
import torch.nn.functional as F

from torch_cases import u32

SHAPES = [(7,), (3, 5), (2, 3, 3), (1, 1)]


def binary(c):
    for shape in SHAPES:
        label = f"{list(shape)}"
        probabilities = c.grid(*shape, low=0.03125, high=0.96875)
        targets = c.grid(*shape, low=0.0, high=1.0)
        c.add(label, "core.bce_loss", F.binary_cross_entropy, probabilities, targets, rounded=True)
        logits = c.grid(*shape, low=-6.0, high=6.0)
        with_logits = F.binary_cross_entropy_with_logits
        c.add(label, "core.bce_with_logits_loss", with_logits, logits, c.grid(*shape, low=0.0, high=1.0), rounded=True)
    ends = np.array([0.0, 1.0, 1.0, 0.0, 0.5])
    classes = np.array([0.0, 1.0, 0.0, 1.0, 1.0])
    c.add("certain, right and wrong", "core.bce_loss", F.binary_cross_entropy, ends, classes, rounded=True, fixed=(0, 1))
    far = np.array([-80.0, -30.0, 0.0, 30.0, 80.0])
    c.add("logits far apart", "core.bce_with_logits_loss", F.binary_cross_entropy_with_logits, far, classes, rounded=True)


def distances(c):
    for shape in SHAPES:
        label = f"{list(shape)}"
        c.add(label, "core.l1_loss", F.l1_loss, c.grid(*shape), c.grid(*shape), rounded=True)
        for delta in [1.0, 0.5]:
            huber = lambda x, y: F.huber_loss(x, y, delta=delta)
            c.add(f"{label}, delta {delta}", "core.huber_loss", huber, c.grid(*shape), c.grid(*shape), attrs={"delta": delta}, rounded=True)
    prediction, target = np.array([1.0, 2.0, -0.5, 0.25]), np.array([1.0, 1.0, 0.5, 0.0])
    c.add("equal numbers", "core.l1_loss", F.l1_loss, prediction, target, rounded=True)
    c.add("at delta", "core.huber_loss", F.huber_loss, prediction, target, attrs={"delta": 1.0}, rounded=True)


def distributions(c):
    for shape in [(5, 3), (2, 3, 7), (4,), (3, 1)]:
        classes = shape[-1]

        def divergence(log_p, target):
            return F.kl_div(log_p.reshape(-1, classes), target.reshape(-1, classes), reduction="batchmean")

        c.add(f"{list(shape)}", "core.kl_div_loss", divergence, c.grid(*shape, low=-6.0, high=0.0), c.grid(*shape, low=0.00390625, high=1.0), rounded=True)

        def likelihood(log_p, ids):
            return F.nll_loss(log_p.reshape(-1, classes), ids.reshape(-1))

        c.add(f"{list(shape)}", "core.nll_loss", likelihood, c.grid(*shape, low=-6.0, high=0.0), c.ids(classes, *shape[:-1]), rounded=True)
    never = np.array([[0.0, 1.0, 0.0], [0.5, 0.0, 0.5]])
    c.add("targets of zero", "core.kl_div_loss", divergence_of_rows, c.grid(2, 3, low=-6.0, high=0.0), never, rounded=True, fixed=(1,))

    def by_id(x, ids):
        return F.cross_entropy(x.reshape(-1, x.shape[-1]), ids.flatten()), torch.logsumexp(x, -1)

    c.add("three axes of ids", "core.cross_entropy_ids", by_id, c.grid(2, 3, 2, 5), c.ids(5, 2, 3, 2), rounded=True)
    c.add("one class", "core.cross_entropy_ids", by_id, c.grid(3, 1), u32([0, 0, 0]), rounded=True)

    def of_rows(x, ids):
        losses = F.cross_entropy(x.reshape(-1, x.shape[-1]), ids.flatten(), reduction="none")
        return losses.reshape(ids.shape), torch.logsumexp(x, -1)

    c.add("three axes of ids", "core.cross_entropy_rows", of_rows, c.grid(2, 3, 2, 5), c.ids(5, 2, 3, 2), rounded=True)
    c.add("one class", "core.cross_entropy_rows", of_rows, c.grid(3, 1), u32([0, 0, 0]), rounded=True)


def divergence_of_rows(log_p, target):
    return F.kl_div(log_p, target, reduction="batchmean")


def cases(c):
    binary(c)
    distances(c)
    distributions(c)
    for shape in [(3, 5), (67,), (2, 1, 3)]:
        c.add(f"{list(shape)}", "core.sum_squares", lambda x: (x * x).sum(), c.grid(*shape))
