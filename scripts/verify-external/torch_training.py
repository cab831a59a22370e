"""Training runs of small networks: losses and final parameters.

Every network is trained with every optimizer, and with each of the things that may be around one: limits on the
gradients, several batches for one update, and groups of parameters with numbers of their own.
"""

from fnmatch import fnmatchcase

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


def variations(groups):
    """What may be around an optimizer, each with the rule that it is tried with."""
    rules = optimizers()
    plain = {"clip": None, "accumulate": 1, "groups": []}
    runs = {name: {"optimizer": settings} | plain for name, settings in rules.items()}
    around = {
        "clip by norm": ("momentum", {"clip": {"norm": 0.0625}}),
        "clip by value": ("adamw", {"clip": {"value": 0.0078125}}),
        "accumulate": ("adam", {"accumulate": 2}),
        "groups": ("adamw", {"groups": groups}),
        "everything": ("nesterov", {"clip": {"norm": 0.0625}, "accumulate": 2, "groups": groups}),
    }
    for name, (rule, changed) in around.items():
        runs[name] = {"optimizer": rules[rule]} | plain | changed
    return runs


def group(patterns, scale=1.0, weight_decay=None):
    """Parameters whose learning rate is a multiple of the others', and whose weight decay may be another."""
    return {"patterns": patterns, "learning_rate_scale": scale, "weight_decay": weight_decay}


def grouped(settings, groups, parameters):
    """The parameters as PyTorch takes them. Each belongs to the first group that names it."""
    rest = {"params": []}
    found = [{"params": []} for _ in groups]
    for name, parameter in parameters.items():
        names = lambda g: any(fnmatchcase(name, pattern) for pattern in g["patterns"])
        index = next((i for i, g in enumerate(groups) if names(g)), None)
        (rest if index is None else found[index])["params"].append(parameter)
    for theirs, ours in zip(found, groups):
        theirs["lr"] = settings["lr"] * ours["learning_rate_scale"]
        if ours["weight_decay"] is not None:
            theirs["weight_decay"] = ours["weight_decay"]
        assert theirs["params"], "a group without parameters"
    return [g for g in [rest, *found] if g["params"]]


def make_optimizer(settings, parameters):
    if settings["kind"] == "sgd":
        keys = ["lr", "momentum", "nesterov", "weight_decay"]
        return torch.optim.SGD(parameters, **{k: settings[k] for k in keys})
    rule = torch.optim.AdamW if settings["decoupled"] else torch.optim.Adam
    betas = (settings["beta1"], settings["beta2"])
    return rule(parameters, lr=settings["lr"], betas=betas, eps=settings["eps"], weight_decay=settings["weight_decay"])


def clip(limit, parameters):
    """Limits the gradients and tells whether that changed them."""
    if limit is None:
        return False
    before = [p.grad.clone() for p in parameters]
    if "norm" in limit:
        torch.nn.utils.clip_grad_norm_(parameters, limit["norm"])
    else:
        torch.nn.utils.clip_grad_value_(parameters, limit["value"])
    return any(not torch.equal(p.grad, b) for p, b in zip(parameters, before))


def grid(rng, shape, scale):
    """Random multiples of 1/1024 in [-scale, scale]: exact in binary32."""
    return rng.integers(-round(scale * GRID), round(scale * GRID), size=shape, endpoint=True) / GRID


def rng_of_more():
    """For the second batch, which only runs with accumulation have."""
    return np.random.default_rng(11)


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

    more = rng_of_more()
    batches = [(grid(rng, (8, 8), 2.0), labels), (grid(more, (8, 8), 2.0), more.multinomial(8, [0.25] * 4, size=8) / 8)]
    groups = [group(["*.bias"], weight_decay=0.0), group(["fc2.weight"], scale=0.5)]
    return "mlp", batches, parameters, {}, loss, groups


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

    more = rng_of_more()
    batches = [(grid(rng, (4, 1, 8, 8), 2.0), labels), (grid(more, (4, 1, 8, 8), 2.0), np.array([0, 0, 2, 1]))]
    groups = [group(["*.bias", "bn.*"], weight_decay=0.0), group(["fc.weight"], scale=2.0, weight_decay=0.03125)]
    return "cnn", batches, parameters, states, loss, groups


def transformer(rng):
    """Two layers in the manner of Llama on rows of 5 tokens, without a bias but for the last layer: RMS norm,
    two heads of attention that share one head of keys and values, rotary positions, SwiGLU."""
    vocabulary, dim, heads, head_dim, hidden, rows = 13, 16, 2, 8, 20, 5
    shapes = {"embedding": (vocabulary, dim)}
    for layer in ["layer0", "layer1"]:
        shapes |= {
            f"{layer}.norm1": (dim,),
            f"{layer}.q": (dim, dim),
            f"{layer}.k": (dim, head_dim),
            f"{layer}.v": (dim, head_dim),
            f"{layer}.o": (dim, dim),
            f"{layer}.norm2": (dim,),
            f"{layer}.gate": (dim, hidden),
            f"{layer}.up": (dim, hidden),
            f"{layer}.down": (hidden, dim),
        }
    shapes |= {"norm": (dim,), "head.weight": (dim, vocabulary), "head.bias": (vocabulary,)}
    parameters = {name: grid(rng, shape, 1.0 if name == "embedding" else 0.3) for name, shape in shapes.items()}
    for name in parameters:
        if "norm" in name:
            parameters[name] += 1.0
    # The angles' cosines and sines are constants of the graph, in binary32.
    angles = np.outer(np.arange(rows), 10000.0 ** (-2.0 * np.arange(head_dim // 2) / head_dim))
    cos, sin = (torch.tensor(f(angles).astype(np.float32).astype(np.float64)) for f in (np.cos, np.sin))
    norm = lambda x, weight: F.rms_norm(x, (dim,), weight, f32(1e-5))

    def rope(x):
        a, b = x.chunk(2, dim=-1)
        return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)

    def loss(ids, labels, p, _):
        split = lambda x: x.reshape(*x.shape[:2], -1, head_dim).transpose(1, 2)
        x = F.embedding(ids, p["embedding"])
        for layer in ["layer0", "layer1"]:
            w = lambda name: p[f"{layer}.{name}"]
            h = norm(x, w("norm1"))
            q, k, v = (split(h @ w(name)) for name in "qkv")
            k, v = rope(k).expand(-1, heads, -1, -1), v.expand(-1, heads, -1, -1)
            # The scale, like 1 / sqrt(head_dim) but exact.
            a = F.scaled_dot_product_attention(rope(q), k, v, is_causal=True, scale=0.375)
            x = x + a.transpose(1, 2).flatten(2) @ w("o")
            h = norm(x, w("norm2"))
            x = x + (F.silu(h @ w("gate")) * (h @ w("up"))) @ w("down")
        logits = norm(x, p["norm"]) @ p["head.weight"] + p["head.bias"]
        # The mean over 15 rows, whose factor is a constant of the graph, too.
        return F.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="sum") * f32(1.0 / labels.numel())

    batches = [tuple(rng.integers(vocabulary, size=(3, rows)) for _ in range(2)) for _ in range(2)]
    groups = [group(["*norm*", "*.bias"], weight_decay=0.0), group(["layer1.*"], scale=0.25)]
    return "transformer", batches, parameters, {}, loss, groups


def run(settings, batches, parameters, states, loss):
    p = {name: torch.tensor(v, dtype=torch.float64, requires_grad=True) for name, v in parameters.items()}
    s = {name: torch.tensor(v, dtype=torch.float64) for name, v in states.items()}
    optimizer = make_optimizer(settings["optimizer"], grouped(settings["optimizer"], settings["groups"], p))
    accumulate = settings["accumulate"]
    losses, clipped = [], 0
    for step in range(STEPS):
        x, labels = batches[step % accumulate]
        value = loss(torch.tensor(x), torch.tensor(labels), p, s)
        (value / accumulate).backward()
        losses.append(value.item())
        if (step + 1) % accumulate == 0:
            clipped += clip(settings["clip"], list(p.values()))
            optimizer.step()
            optimizer.zero_grad()
    if settings["clip"] and 2 * clipped < STEPS // accumulate:
        raise SystemExit(f"only {clipped} updates were clipped: choose a smaller limit")
    return losses, flat(p), flat(s)


def flat(tensors):
    return {name: np.array(t.detach() if torch.is_tensor(t) else t).flatten().tolist() for name, t in tensors.items()}


def models():
    """All networks, each with all runs."""
    entries = []
    for make in [mlp, cnn, transformer]:
        name, batches, parameters, states, loss, groups = make(np.random.default_rng(7))
        runs = []
        for label, settings in variations(groups).items():
            losses, final, after = run(settings, batches, parameters, states, loss)
            runs.append({"name": label} | settings | {"losses": losses, "parameters": final, "states": after})
        pairs = [{"x": x.flatten().tolist(), "labels": labels.flatten().tolist()} for x, labels in batches]
        entries.append({"name": name, "batches": pairs, "parameters": flat(parameters), "states": flat(states), "runs": runs})
    return entries
