#!/usr/bin/env python3
"""Makes the models of formats/onnx/tests/data with operators of exported language models, with results by ONNX Runtime.

    python scripts/verify-external/make_onnx_attention_fixtures.py formats/onnx/tests/data

Each folder has `model.onnx` with a node for each form of an operator, `input_0.npy`... and `output_0.npy`... Needs the
packages `numpy`, `onnx` and `onnxruntime`.
"""

import pathlib
import sys

import numpy
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

TYPES = {numpy.dtype(numpy.float32): TensorProto.FLOAT, numpy.dtype(numpy.int32): TensorProto.INT32, numpy.dtype(numpy.uint8): TensorProto.UINT8}


class Cases:
    """A model with one node for each case, and what ONNX Runtime is given instead where it lacks a form."""

    def __init__(self, operator):
        self.operator = operator
        self.random = numpy.random.default_rng(7)
        self.initializers, self.feeds, self.outputs = [], {}, []
        self.nodes, self.reference = [], []

    def numbers(self, *shape):
        return (0.5 * self.random.standard_normal(shape)).astype(numpy.float32)

    def known(self, value):
        """A tensor of the file."""
        name = f"known_{len(self.initializers)}"
        self.initializers.append(numpy_helper.from_array(numpy.asarray(value), name))
        return name

    def ints(self, value):
        return self.known(numpy.array(value, numpy.int32))

    def given(self, value):
        """An input of the model."""
        name = f"input_{len(self.feeds)}"
        self.feeds[name] = value
        return name

    def floats(self, *shape):
        return self.given(self.numbers(*shape))

    def lengths(self, value):
        """Integers that a graph only knows when it runs."""
        name = self.given(numpy.array(value, numpy.float32))
        node = helper.make_node("Cast", [name], [f"{name}_integer"], to=TensorProto.INT32)
        self.nodes.append(node)
        self.reference.append(node)
        return f"{name}_integer"

    def parts(self, packed, count):
        """Operands `[batch, rows, heads * width]` of `[batch, rows, heads, count, width]`, for ONNX Runtime."""
        shape = self.known(numpy.array([0, 0, -1]))
        names = [f"{packed}_{i}" for i in range(count)]
        for i, name in enumerate(names):
            self.reference.append(helper.make_node("Gather", [packed, self.known(numpy.array(i))], [f"{name}_heads"], axis=3))
            self.reference.append(helper.make_node("Reshape", [f"{name}_heads", shape], [name]))
        return names

    def add(self, inputs, results=1, instead=None, **attributes):
        """A case; `results` has the number of results, or which of them are wanted. `instead` are its operands for ONNX
        Runtime."""
        wanted = range(results) if isinstance(results, int) else results
        names = [f"{len(self.outputs)}_{i}" if i in wanted else "" for i in range(max(wanted) + 1)]
        self.outputs += [name for name in names if name]
        for nodes, operands in ((self.nodes, inputs), (self.reference, instead or inputs)):
            nodes.append(helper.make_node(self.operator, operands, names, f"case_{len(self.outputs)}", domain="com.microsoft", **attributes))

    def model(self, nodes):
        inputs = [helper.make_tensor_value_info(name, TYPES[value.dtype], value.shape) for name, value in self.feeds.items()]
        outputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in self.outputs]
        graph = helper.make_graph(nodes, self.operator, inputs, outputs, self.initializers)
        opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=8, producer_name="fixtures").SerializeToString()


def attention():
    """Batch 2, 3 rows, 2 heads of 4 values, 2 rows of the past."""
    cases = Cases("Attention")
    x, w, b = cases.floats(2, 3, 6), cases.known(cases.numbers(6, 24)), cases.known(cases.numbers(24))
    past = cases.floats(2, 2, 2, 2, 4)
    cases.add([x, w, b, cases.ints([3, 2])], num_heads=2)
    cases.add([x, w, b, cases.ints([3, 2, 0, 1])], num_heads=2, mask_filter_value=-3.0)
    cases.add([x, w, b, cases.ints([[1, 1, 1, 1, 0], [0, 1, 1, 1, 1]]), past], 2, num_heads=2, unidirectional=1)
    cases.add([x, w, b, cases.ints([[[1, 0, 0], [1, 1, 0], [1, 0, 1]], [[1, 1, 1], [1, 1, 0], [0, 1, 1]]])], num_heads=2, scale=0.3)
    cases.add([x, w, b, "", past], 2, num_heads=2, unidirectional=1)
    wide = cases.known(cases.numbers(6, 28))
    cases.add([x, wide, "", "", "", cases.floats(2, 1, 3, 3)], num_heads=2, qkv_hidden_sizes=[8, 8, 12])
    cases.add([x, w, b, cases.ints([[1], [1]])], num_heads=2)
    # Rows of padding see nothing else than padding.
    cases.add([x, w, b, cases.ints([[0, 0, 1], [0, 1, 1]])], num_heads=2, unidirectional=1)
    cases.add([x, w, b, cases.lengths([5, 4]), past], 2, num_heads=2)
    cases.add([x, w, b, cases.ints([5, 3, 1, 0]), past], 2, num_heads=2, unidirectional=1)
    return cases


def multi_head_attention():
    """Batch 2, 3 rows, 4 keys, 2 heads of 4 values, 2 rows of the past."""
    cases = Cases("MultiHeadAttention")
    q, k, v = cases.floats(2, 3, 8), cases.floats(2, 4, 8), cases.floats(2, 4, 12)
    bias = cases.known(cases.numbers(28))
    cases.add([q, k, v, bias, cases.ints([4, 3])], num_heads=2)
    cases.add([q, k, v, "", cases.ints([[1, 1, 1, 0], [0, 1, 1, 1]]), cases.floats(1, 2, 3, 4)], num_heads=2, scale=0.4)
    own_k, own_v, own_bias = cases.floats(2, 3, 8), cases.floats(2, 3, 8), cases.known(cases.numbers(24))
    past = [cases.floats(2, 2, 2, 4), cases.floats(2, 2, 2, 4)]
    mask = cases.ints([[1, 1, 1, 1, 0], [0, 1, 1, 1, 1]])
    cases.add([q, own_k, own_v, "", mask, "", *past], 3, num_heads=2, unidirectional=1)
    cases.add([q, own_k, own_v, own_bias, "", cases.floats(2, 2, 3, 5), *past], 3, num_heads=2)
    cases.add([q, cases.floats(2, 2, 4, 4), cases.floats(2, 2, 4, 4), "", "", cases.floats(2, 1, 3, 4)], num_heads=2)
    cases.add([q, cases.floats(2, 2, 4, 4), cases.floats(2, 2, 4, 4), own_bias], num_heads=2)
    rows = cases.ints(cases.random.integers(0, 2, (2, 3, 5)))
    cases.add([q, own_k, own_v, "", rows, "", *past], 4, num_heads=2)
    cases.add([q, own_k, own_v, "", "", cases.floats(1, 1, 3, 3)], num_heads=2, unidirectional=1)
    # The forms with everything in one operand are those of GPUs.
    packed = cases.floats(2, 3, 2, 3, 4)
    cases.add([packed, "", "", own_bias], num_heads=2, instead=[*cases.parts(packed, 3), own_bias])
    both = cases.floats(2, 4, 2, 2, 4)
    cases.add([q, both, "", "", "", cases.floats(2, 2, 3, 4)], num_heads=2, instead=[q, *cases.parts(both, 2), "", "", f"input_{len(cases.feeds) - 1}"])
    return cases


def quantized_attention():
    """As `attention`, with projections of integers."""
    cases = Cases("QAttention")
    x = cases.given(cases.random.integers(0, 256, (2, 3, 6)).astype(numpy.uint8))
    scales = lambda *values: cases.known(numpy.array(values, numpy.float32).squeeze())
    bias = cases.known(cases.numbers(24))
    unsigned = cases.known(cases.random.integers(0, 256, (6, 24)).astype(numpy.uint8))
    # On processors without VNNI, ONNX Runtime adds pairs of products in 16 bits, which larger weights overflow.
    signed = cases.known(cases.random.integers(-63, 64, (6, 24)).astype(numpy.int8))
    zero = cases.known(numpy.array(120, numpy.uint8))
    mask = cases.ints([[1, 1, 0], [0, 1, 1]])
    cases.add([x, unsigned, bias, scales(0.01), scales(0.02), mask, zero, zero], num_heads=2)
    columns = cases.known(cases.random.uniform(0.01, 0.02, 24).astype(numpy.float32))
    zeros = cases.known(numpy.zeros(24, numpy.int8))
    past = cases.floats(2, 2, 2, 2, 4)
    cases.add([x, signed, bias, scales(0.01), columns, "", zero, zeros, past], 2, num_heads=2, unidirectional=1)
    cases.add([x, signed, bias, scales(0.01), columns, cases.ints([3, 2]), zero], num_heads=2)
    return cases


def group_query_attention():
    cases = Cases("GroupQueryAttention")
    heads, kv_heads, width = 4, 2, 16
    how = dict(num_heads=heads, kv_num_heads=kv_heads)
    angles = numpy.arange(12)[:, None] / (100.0 ** (numpy.arange(width // 2)[None, :] / (width // 2)))
    tables = [cases.known(numpy.cos(angles).astype(numpy.float32)), cases.known(numpy.sin(angles).astype(numpy.float32))]

    def cache(valid, rows, batch):
        """Keys or values, 0 behind those that are there."""
        data = cases.numbers(batch, kv_heads, rows, width)
        for i, length in enumerate(valid):
            data[i, :, length:] = 0
        return cases.given(data)

    def own(batch, rows):
        return [cases.floats(batch, rows, heads * width), cases.floats(batch, rows, kv_heads * width), cases.floats(batch, rows, kv_heads * width)]

    def caches(valid, rows, batch=2):
        return [cache(valid, rows, batch), cache(valid, rows, batch)]

    number = lambda value: cases.ints(value)
    # A prompt, and rows behind a past, with everything packed in one operand.
    packed = cases.floats(2, 3, (heads + 2 * kv_heads) * width)
    cases.add([packed, "", "", "", "", cases.ints([2, 2]), number(3), *tables], 3, do_rotary=1, **how)
    # Caches that are longer than what they hold; lengths that a run knows.
    cases.add([*own(2, 1), *caches([5, 3], 8), cases.lengths([5, 3]), number(6), *tables], 3, do_rotary=1, **how)
    cases.add([*own(1, 3), *caches([4], 9, 1), cases.lengths([6]), number(7), *tables], 3, do_rotary=1, rotary_interleaved=1, **how)
    # Sequences of different lengths, in caches that grow.
    cases.add([*own(2, 1), *caches([5, 2], 5), cases.lengths([5, 2]), number(6), *tables], 3, do_rotary=1, local_window_size=3, **how)
    # A prompt in a cache of the greatest length.
    cases.add([*own(2, 4), *caches([0, 0], 8), cases.lengths([3, 3]), number(4), *tables], 3, do_rotary=1, **how)
    # Attention bias, positions, a sink, and a smooth softmax.
    cases.add([*own(1, 2), *caches([3], 3, 1), cases.ints([4]), number(5), "", "", "", cases.floats(1, heads, 2, 5)], 3, scale=0.2, **how)
    positions = cases.known(numpy.array([[3, 4]], numpy.int64))
    cases.add([*own(1, 2), *caches([3], 3, 1), cases.ints([4]), number(5), *tables, positions], 3, do_rotary=1, **how)
    sink = cases.known(cases.numbers(heads))
    cases.add([*own(1, 2), *caches([3], 3, 1), cases.ints([4]), number(5), "", "", "", "", sink], 3, local_window_size=2, **how)
    cases.add([*own(2, 3), "", "", cases.ints([2, 2]), number(3)], 3, smooth_softmax=1, softcap=1.5, **how)
    cases.add([*own(1, 2), *caches([3], 3, 1), cases.ints([4]), number(5), "", "", "", cases.floats(1, 1, 2, 5)], 3, softcap=0.7, **how)
    for kind in (1, 2):
        cases.add([*own(1, 3), "", "", cases.ints([2]), number(3)], (0, 1, 2, 3), qk_output=kind, **how)
    cases.add([*own(2, 3), "", "", cases.ints([2, 2]), number(3)], 3, causal=0, **how)
    return cases


def matmul_nbits():
    """Every width, with zero points of all forms, and rows that end within a block."""
    cases = Cases("MatMulNBits")
    x = cases.floats(2, 3, 40)
    for bits in (2, 4, 8):
        for block, zeros in ((16, "packed"), (16, "none"), (32, "floats")):
            # Which ONNX Runtime does not have.
            if bits == 8 and zeros == "floats":
                continue
            blocks = -(-40 // block)
            words = cases.known(cases.random.integers(0, 256, (5, blocks, block * bits // 8)).astype(numpy.uint8))
            scales = cases.known(cases.random.uniform(0.01, 0.1, (5, blocks)).astype(numpy.float32))
            operands = [x, words, scales]
            if zeros == "packed":
                operands.append(cases.known(cases.random.integers(0, 256, (5, -(-blocks * bits // 8))).astype(numpy.uint8)))
            if zeros == "floats":
                operands.append(cases.known(cases.random.uniform(0, 2**bits, (5, blocks)).astype(numpy.float32)))
            if zeros == "none":
                operands += ["", "", cases.known(cases.numbers(5))]
            cases.add(operands, K=40, N=5, bits=bits, block_size=block)
    return cases


def gather_block_quantized():
    """Tables of every width, with and without zero points."""
    cases = Cases("GatherBlockQuantized")
    at = cases.lengths([4, 0, -2])
    scales = cases.known(cases.random.uniform(0.01, 0.1, (5, 2)).astype(numpy.float32))
    for bits in (2, 4, 8):
        table = cases.known(cases.random.integers(0, 256, (5, 32 * bits // 8)).astype(numpy.uint8))
        zeros = cases.known(cases.random.integers(0, 256, (5, -(-2 * bits // 8))).astype(numpy.uint8))
        how = dict(bits=bits, block_size=16, quantize_axis=1, gather_axis=0)
        cases.add([table, at, scales], **how)
        cases.add([table, at, scales, zeros], **how)
    for kind in (TensorProto.INT4, TensorProto.UINT4):
        numbers = cases.random.integers(-8, 8, 160) + (8 if kind == TensorProto.UINT4 else 0)
        cases.initializers.append(helper.make_tensor(f"table_{kind}", kind, (5, 32), numbers))
        cases.add([f"table_{kind}", at, scales], block_size=16, quantize_axis=-1)
    return cases


def refused():
    """Forms that are not supported, which `tests/it/fixtures.rs` has the reasons for."""
    kinds = {"f": TensorProto.FLOAT, "i": TensorProto.INT32, "b": TensorProto.UINT8}
    nodes, inputs, outputs = [], [], []

    def add(name, operator, operands, **attributes):
        """A node; an operand is a shape behind a letter for its type, or empty."""
        names = [f"{name}_{i}" if operand else "" for i, operand in enumerate(operands)]
        for operand, given in zip(operands, names):
            if operand:
                inputs.append(helper.make_tensor_value_info(given, kinds[operand[0]], [int(n) for n in operand[1:].split(",") if n]))
        nodes.append(helper.make_node(operator, names, [f"{name}_y"], name, domain="com.microsoft", **attributes))
        outputs.append(helper.make_tensor_value_info(f"{name}_y", TensorProto.FLOAT, None))

    projected = ["f2,3,6", "f6,24", "f24"]
    add("megatron", "Attention", [*projected, "i2,1,8,8"], num_heads=2)
    add("cumulative", "Attention", [*projected, "i8"], num_heads=2)
    add("rotary", "Attention", projected, num_heads=2, do_rotary=1)
    add("shared", "Attention", [*projected, "", "f2,2,2,8,4", "", "i1"], num_heads=2, past_present_share_buffer=1)
    add("both", "Attention", [*projected, "", "f2,2,2,2,4", "f2,2,3,5"], num_heads=2)
    heads = ["f2,3,8", "f2,3,8", "f2,3,8", "", "", "", "f2,2,2,4", "f2,2,2,4"]
    add("buffer", "MultiHeadAttention", [*heads, "i1"], num_heads=2)
    add("beams", "MultiHeadAttention", [*heads, "", "i2,4,8"], num_heads=2)
    grouped, how = ["f1,1,64", "f1,1,32", "f1,1,32", "f1,2,4,16", "f1,2,4,16", "i1"], {"num_heads": 4, "kv_num_heads": 2}
    add("open", "GroupQueryAttention", [*grouped, "i"], **how)
    add("norms", "GroupQueryAttention", [*grouped, "i", *[""] * 7, "f16", "f16"], **how)
    add("chunks", "GroupQueryAttention", [*grouped, "i", *[""] * 9, "i1"], **how)
    add("quantized", "GroupQueryAttention", [*grouped, "i", *[""] * 5, "f1", "f1"], **how)
    add("window", "GroupQueryAttention", [*grouped, "i"], sliding_window_cache=1, local_window_size=4, **how)
    add("sharing", "GroupQueryAttention", ["f1,1,64", "f1,0,32", "f1,0,32", "f1,2,4,16", "f1,2,4,16", "i1", "i"], **how)
    bits = {"K": 32, "N": 4, "block_size": 16}
    add("three", "MatMulNBits", ["f1,32", "b4,2,6", "f4,2"], bits=3, **bits)
    add("order", "MatMulNBits", ["f1,32", "b4,2,8", "f4,2", "", "i32"], bits=4, **bits)
    add("prepacked", "MatMulNBits", ["f1,32", "b4,2,8", "f4,2"], bits=4, weight_prepacked=1, **bits)
    add("columns", "GatherBlockQuantized", ["b4,32", "i2", "f4,2"], bits=8, block_size=16, gather_axis=1)
    graph = helper.make_graph(nodes, "refused", inputs, outputs)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8, producer_name="fixtures").SerializeToString()


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    root = pathlib.Path(sys.argv[1])
    for make in (attention, multi_head_attention, quantized_attention, group_query_attention, matmul_nbits, gather_block_quantized):
        cases = make()
        folder = root / make.__name__
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "model.onnx").write_bytes(cases.model(cases.nodes))
        session = onnxruntime.InferenceSession(cases.model(cases.reference), providers=["CPUExecutionProvider"])
        for index, value in enumerate(cases.feeds.values()):
            numpy.save(folder / f"input_{index}.npy", value)
        for index, value in enumerate(session.run(None, cases.feeds)):
            numpy.save(folder / f"output_{index}.npy", value)
    (root / "refused.onnx").write_bytes(refused())


if __name__ == "__main__":
    main()
