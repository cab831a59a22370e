"""Networks over whatever computes them: `ops` has the calls, so that every framework computes the same."""

DEPTHS = [3, 4, 6, 3]


def resnet50(ops, x):
    """Logits. Batch norms are folded into the biases of the convolutions; names are torchvision's."""

    def conv(x, name, kernel, stride=1):
        return ops.conv(x, name, stride, kernel // 2)

    x = ops.max_pool(ops.relu(conv(x, "conv1", 7, 2)))
    for stage, depth in enumerate(DEPTHS, 1):
        for block in range(depth):
            name = f"layer{stage}.{block}"
            stride = 2 if stage > 1 and block == 0 else 1
            y = ops.relu(conv(x, f"{name}.conv1", 1))
            y = ops.relu(conv(y, f"{name}.conv2", 3, stride))
            y = conv(y, f"{name}.conv3", 1)
            if block == 0:
                x = conv(x, f"{name}.downsample.0", 1, stride)
            x = ops.relu(ops.add(y, x))
    return ops.linear(ops.mean(x), "fc")
