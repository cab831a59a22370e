"""Time of a ResNet-50 step in PyTorch on a CUDA device, channels last, as a CUDA graph.

    python resnet_cuda.py [--train] [IMAGES ...]

Inference is in f16, eager and compiled. A training step is eager, with SGD and autocast to bf16. Prints the median
milliseconds of a step without waiting between steps, for comparison with `meganeura bench resnet50 [--train] --seq IMAGES`.
Weights are random: they do not change the time.
"""

import statistics
import sys

import torch
from torch import nn


def conv(inputs, outputs, kernel, stride=1):
    layers = [nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, bias=False), nn.BatchNorm2d(outputs)]
    return nn.Sequential(*layers)


class Block(nn.Module):
    def __init__(self, inputs, width, stride):
        super().__init__()
        self.path = nn.Sequential(
            conv(inputs, width, 1), nn.ReLU(), conv(width, width, 3, stride), nn.ReLU(), conv(width, 4 * width, 1)
        )
        same = inputs == 4 * width and stride == 1
        self.shortcut = nn.Identity() if same else conv(inputs, 4 * width, 1, stride)

    def forward(self, x):
        return torch.relu(self.path(x) + self.shortcut(x))


def resnet50():
    layers, inputs = [conv(3, 64, 7, 2), nn.ReLU(), nn.MaxPool2d(3, 2, 1)], 64
    for stage, (width, blocks) in enumerate([(64, 3), (128, 4), (256, 6), (512, 3)]):
        for block in range(blocks):
            layers.append(Block(inputs, width, 2 if block == 0 and stage > 0 else 1))
            inputs = 4 * width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, 1000))


def captured(step):
    """A function that replays a step as one CUDA graph."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(3):
            step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return graph.replay


def milliseconds(step, steps=50, samples=11):
    found = []
    for _ in range(samples):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        for _ in range(steps):
            step()
        end.record()
        torch.cuda.synchronize()
        found.append(begin.elapsed_time(end) / steps)
    return statistics.median(found)


def images_of(count, dtype):
    return torch.randn(count, 3, 224, 224, device="cuda", dtype=dtype).to(memory_format=torch.channels_last)


def training_step(images):
    model = resnet50().train().cuda().to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    x, labels = images_of(images, torch.float), torch.randint(0, 1000, (images,), device="cuda")

    def step():
        optimizer.zero_grad(set_to_none=False)
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = nn.functional.cross_entropy(model(x), labels)
        loss.backward()
        optimizer.step()

    return step


def main():
    torch.backends.cudnn.benchmark = True
    print(torch.cuda.get_device_name(), "PyTorch", torch.__version__)
    trains = "--train" in sys.argv
    sizes = [int(n) for n in sys.argv[1:] if n != "--train"]
    if trains:
        for images in sizes or [8, 64]:
            print(f"{images} images: training {milliseconds(captured(training_step(images)), 20):.2f} ms", flush=True)
        return
    model = resnet50().eval().cuda().half().to(memory_format=torch.channels_last)
    with torch.inference_mode():
        for images in sizes or [1, 8, 64]:
            x = images_of(images, torch.half)
            print(f"{images} images: eager graph {milliseconds(captured(lambda: model(x))):.3f} ms", flush=True)
            compiled = torch.compile(model)
            compiled(x)
            print(f"{images} images: compiled graph {milliseconds(captured(lambda: compiled(x))):.3f} ms", flush=True)


if __name__ == "__main__":
    main()
