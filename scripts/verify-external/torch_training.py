"""Training runs of two small networks with every optimizer: losses and final parameters."""

import numpy as np
import torch
import torch.nn.functional as F

from torch_cases import f32

STEPS = 20
GRID = 1024


def optimizers():
    """Hyper-parameters as they are in binary32; both sides use PyTorch's defaults for the others."""
    decay = f32(0.01)
    sgd = {"kind": "sgd", "lr": f32(0.05), "momentum": 0.0, "nesterov": False, "weight_decay": 0.0}
    momentum = sgd | {"momentum": f32(0.9), "weight_decay": decay}
    adam = {"kind": "adam", "lr": decay, "beta1": f32(0.9), "beta2": f32(0.999), "eps": f32(1e-8), "weight_decay": 0.0}
    return {
        "sgd": sgd,
        "momentum": momentum,
        "nesterov": momentum | {"nesterov": True},
        "adam": adam | {"decoupled": False},
        "adamw": adam | {"decoupled": True, "weight_decay": f32(0.1)},
    }


def make_optimizer(settings, parameters):
    if settings["kind"] == "sgd":
        keys = ["lr", "momentum", "nesterov", "weight_decay"]
        return torch.optim.SGD(parameters, **{k: settings[k] for k in keys})
    rule = torch.optim.AdamW if settings["decoupled"] else torch.optim.Adam
    betas = (settings["beta1"], settings["beta2"])
    return rule(parameters, lr=settings["lr"], betas=betas, eps=settings["eps"], weight_decay=settings["weight_decay"])


def grid(rng, shape, scale):
    """Random multiples of 1/1024 in [-scale, scale]: exact in binary32."""
    return rng.integers(-round(scale * GRID), round(scale * GRID), size=shape, endpoint=True) / GRID


def mlp(rng):
    """8-16-4 with class probabilities. Weights are stored [in, out], the transpose of PyTorch's."""
    labels = rng.multinomial(8, [0.25] * 4, size=8) / 8
    parameters = {
        "fc1.weight": grid(rng, (8, 16), 0.4),
        "fc1.bias": grid(rng, (16,), 0.1),
        "fc2.weight": grid(rng, (16, 4), 0.3),
        "fc2.bias": grid(rng, (4,), 0.1),
    }

    def loss(x, labels, p, _):
        h = F.relu(F.linear(x, p["fc1.weight"].t(), p["fc1.bias"]))
        return F.cross_entropy(F.linear(h, p["fc2.weight"].t(), p["fc2.bias"]), labels)

    return "mlp", grid(rng, (8, 8), 2.0), labels, parameters, {}, loss


def cnn(rng):
    """conv 3x3, batch norm, ReLU, max pool 2, linear on 1x8x8 with class ids. The convolution has no
    bias: the batch norm would subtract it, and Adam would blow up the rounding errors of its gradient."""
    labels = np.array([2, 0, 1, 2])
    parameters = {
        "conv.weight": grid(rng, (3, 1, 3, 3), 0.4),
        "bn.weight": 1.0 + grid(rng, (3,), 0.2),
        "bn.bias": grid(rng, (3,), 0.2),
        "fc.weight": grid(rng, (48, 3), 0.2),
        "fc.bias": grid(rng, (3,), 0.1),
    }
    states = {"bn.running_mean": np.zeros(3), "bn.running_var": np.ones(3)}

    def loss(x, labels, p, s):
        y = F.conv2d(x, p["conv.weight"], padding=1)
        running = (s["bn.running_mean"], s["bn.running_var"])
        y = F.batch_norm(y, *running, p["bn.weight"], p["bn.bias"], training=True, momentum=f32(0.1), eps=f32(1e-5))
        y = F.max_pool2d(F.relu(y), 2).flatten(1)
        return F.cross_entropy(F.linear(y, p["fc.weight"].t(), p["fc.bias"]), labels)

    return "cnn", grid(rng, (4, 1, 8, 8), 2.0), labels, parameters, states, loss


def run(settings, x, labels, parameters, states, loss):
    p = {name: torch.tensor(v, dtype=torch.float64, requires_grad=True) for name, v in parameters.items()}
    s = {name: torch.tensor(v, dtype=torch.float64) for name, v in states.items()}
    optimizer = make_optimizer(settings, list(p.values()))
    losses = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        value = loss(torch.tensor(x), torch.tensor(labels), p, s)
        value.backward()
        optimizer.step()
        losses.append(value.item())
    return losses, flat(p), flat(s)


def flat(tensors):
    return {name: np.array(t.detach() if torch.is_tensor(t) else t).flatten().tolist() for name, t in tensors.items()}


def models():
    """Both networks, each with a run for every optimizer."""
    entries = []
    for make in [mlp, cnn]:
        name, x, labels, parameters, states, loss = make(np.random.default_rng(7))
        runs = []
        for label, settings in optimizers().items():
            losses, final, after = run(settings, x, labels, parameters, states, loss)
            runs.append({"name": label, "optimizer": settings, "losses": losses, "parameters": final, "states": after})
        entry = {"name": name, "x": x.flatten().tolist(), "labels": labels.flatten().tolist()}
        entries.append(entry | {"parameters": flat(parameters), "states": flat(states), "runs": runs})
    return entries
