"""Works in PyTorch."""

import json
from pathlib import Path

import numpy
import torch
import torch.nn.functional as F


def work(kind, arrays, settings, how, threads):
    torch.set_num_threads(threads)
    tensors = {name: torch.from_numpy(a.copy()) for name, a in arrays.items()}
    match kind:
        case "MlpStep" | "CnnStep":
            labels = torch.tensor(settings["labels"])
            x = tensors.pop("x")
            parameters = transposed(tensors)
            network = mlp if kind == "MlpStep" else cnn
            return training(lambda: F.cross_entropy(network(x, parameters), labels), parameters, settings, how)
        case "LlamaStep":
            parameters = checkpoint(settings)
            tokens, targets = torch.tensor(settings["tokens"]), torch.tensor(settings["targets"])
            model = Llama(parameters, settings)
            return training(lambda: F.cross_entropy(model(tokens), targets), parameters, settings, how)
        case "LlamaRead":
            return reading(Llama(checkpoint(settings), settings), settings, how)
        case "Resnet50":
            x = tensors.pop("x")
            parameters = transposed(tensors)
            return inference(lambda: resnet50(x, parameters), how)
    x = tensors.pop("x")
    return inference(lambda: call(kind, x, *tensors.values()), how)


def compiled(function, how):
    if how == "eager":
        return function
    return torch.compile(function, mode=None if how == "compile" else how)


def inference(function, how):
    function = compiled(function, how)

    def run():
        with torch.inference_mode():
            return function()

    return run, lambda: run().numpy()


def call(kind, x, *weights):
    match kind:
        case "Matmul":
            return x @ weights[0]
        case "Mlp":
            return F.relu(x @ weights[0]) @ weights[1]
        case "Softmax":
            return torch.softmax(x, -1)
        case "LayerNorm":
            return F.layer_norm(x, x.shape[-1:], weights[0], weights[1], 1e-5)
        case "Gelu":
            return F.gelu(x)
        case "Conv":
            return F.conv2d(x, weights[0], padding=1)
    raise ValueError(kind)


def training(loss, parameters, settings, how):
    """Steps of Adam. The result are the losses of the first steps and, in learning rates, how far a parameter has come."""
    loss = compiled(loss, how)
    for parameter in parameters.values():
        parameter.requires_grad_()
    rate, watched = settings["rate"], parameters[settings["watched"]]
    optimizer = torch.optim.Adam(parameters.values(), lr=rate, fused=True)

    def step():
        optimizer.zero_grad()
        value = loss()
        value.backward()
        optimizer.step()
        return value

    def result():
        before = watched.detach().clone()
        losses = [step().item() for _ in range(settings["steps"])]
        way = (watched.detach() - before) / rate
        return numpy.concatenate([numpy.array(losses), way.numpy()])

    return step, result


def transposed(tensors):
    """Weights of linear layers as PyTorch has them, [outputs, inputs]."""
    return {name: t.t().contiguous() if t.ndim == 2 else t for name, t in tensors.items()}


def mlp(x, p):
    x = F.relu(F.linear(x, p["fc1.weight"], p["fc1.bias"]))
    return F.linear(x, p["fc2.weight"], p["fc2.bias"])


def cnn(x, p):
    for name in ["conv1", "conv2"]:
        x = F.relu(F.conv2d(x, p[f"{name}.weight"], p[f"{name}.bias"]))
    return mlp(F.max_pool2d(x, 2).flatten(1), p)


def resnet50(x, p):
    """Logits. Batch norms are folded into the biases of the convolutions; names are torchvision's."""

    def conv(x, name, kernel, stride=1):
        return F.conv2d(x, p[f"{name}.weight"], p[f"{name}.bias"], stride, kernel // 2)

    x = F.max_pool2d(F.relu(conv(x, "conv1", 7, 2)), 3, 2, 1)
    for stage, depth in enumerate([3, 4, 6, 3], 1):
        for block in range(depth):
            name = f"layer{stage}.{block}"
            stride = 2 if stage > 1 and block == 0 else 1
            y = F.relu(conv(x, f"{name}.conv1", 1))
            y = F.relu(conv(y, f"{name}.conv2", 3, stride))
            y = conv(y, f"{name}.conv3", 1)
            if block == 0:
                x = conv(x, f"{name}.downsample.0", 1, stride)
            x = F.relu(y + x)
    return F.linear(x.mean((2, 3)), p["fc.weight"], p["fc.bias"])


def checkpoint(settings):
    """The tensors of a checkpoint. The format is a length, JSON, and the numbers."""
    data = numpy.memmap(Path(settings["checkpoint"]) / "model.safetensors", dtype=numpy.uint8, mode="r")
    length = int(data[:8].view("<u8")[0])
    header = json.loads(data[8 : 8 + length].tobytes())
    tensors = {}
    for name, about in header.items():
        if name == "__metadata__":
            continue
        start, end = about["data_offsets"]
        numbers = numpy.frombuffer(data[8 + length + start : 8 + length + end].tobytes(), dtype="<f4")
        tensors[name] = torch.from_numpy(numbers.reshape(about["shape"]).copy())
    return tensors


class Llama:
    """A language model of that family with tied embeddings, without batches."""

    def __init__(self, parameters, settings):
        self.parameters = parameters
        self.config = json.loads((Path(settings["checkpoint"]) / "config.json").read_text())
        width = self.config["head_dim"]
        speeds = self.config["rope_theta"] ** (-torch.arange(0, width, 2) / width)
        angles = torch.outer(torch.arange(self.config["max_position_embeddings"]), speeds).repeat(1, 2)
        self.cos, self.sin = angles.cos(), angles.sin()

    def __call__(self, tokens, cache=None, position=0, last=False):
        """Logits of all tokens, or of the last; keys and values go to a cache behind `position` that are there."""
        p, eps, rows = self.parameters, self.config["rms_norm_eps"], len(tokens)
        x = F.embedding(tokens, p["model.embed_tokens.weight"])
        cos, sin = self.cos[position : position + rows], self.sin[position : position + rows]

        def norm(x, name):
            return F.rms_norm(x, x.shape[-1:], p[f"{name}.weight"], eps)

        for layer in range(self.config["num_hidden_layers"]):
            name = f"model.layers.{layer}"
            x = x + self.attention(norm(x, f"{name}.input_layernorm"), f"{name}.self_attn", cos, sin, cache, layer, position)
            h = norm(x, f"{name}.post_attention_layernorm")
            gate = F.silu(F.linear(h, p[f"{name}.mlp.gate_proj.weight"]))
            h = gate * F.linear(h, p[f"{name}.mlp.up_proj.weight"])
            x = x + F.linear(h, p[f"{name}.mlp.down_proj.weight"])
        if last:
            x = x[-1:]
        return F.linear(norm(x, "model.norm"), p["model.embed_tokens.weight"])

    def attention(self, x, name, cos, sin, cache, layer, position):
        p, rows = self.parameters, len(x)
        heads, kv_heads = self.config["num_attention_heads"], self.config["num_key_value_heads"]

        def project(what, heads):
            return F.linear(x, p[f"{name}.{what}_proj.weight"]).view(rows, heads, -1).transpose(0, 1)

        def turned(x):
            a, b = x.chunk(2, -1)
            return x * cos + torch.cat([-b, a], -1) * sin

        q, k, v = turned(project("q", heads)), turned(project("k", kv_heads)), project("v", kv_heads)
        if cache is not None:
            keys, values = cache[layer]
            keys[:, position : position + rows] = k
            values[:, position : position + rows] = v
            k, v = keys[:, : position + rows], values[:, : position + rows]
        # With a batch of one, as kernels ask for it.
        y = F.scaled_dot_product_attention(q[None], k[None], v[None], is_causal=rows > 1, enable_gqa=heads != kv_heads)[0]
        return F.linear(y.transpose(0, 1).reshape(rows, -1), p[f"{name}.o_proj.weight"])


def reading(model, settings, how):
    """Tokens behind others that are in the cache; logits of the last."""
    config, tokens, position = model.config, torch.tensor(settings["tokens"]), settings["position"]
    shape = [config["num_key_value_heads"], settings["capacity"], config["head_dim"]]
    cache = [(torch.zeros(shape), torch.zeros(shape)) for _ in range(config["num_hidden_layers"])]
    if position > 0:
        with torch.inference_mode():
            model(torch.tensor(settings["prompt"]), cache)
    return inference(lambda: model(tokens, cache, position, last=True)[0], how)
