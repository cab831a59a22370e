"""Writes tests/fixtures/gguf/blocks.json: blocks of every type of GGUF that is read, and the numbers that they are.

    python3 -m venv venv
    venv/bin/pip install numpy gguf
    venv/bin/python scripts/verify-external/make_gguf_blocks.py

The package `gguf` rounds numbers to the types that it can round to; the other types have random bytes with scales of a usual
size. In any case it reads the blocks back. Numbers are hexadecimal, little-endian binary32.

types     for each type its number in files, `values` that were rounded (only where `gguf` rounds), `bytes`, and `numbers`
made_with versions of the libraries
"""

import json
from importlib.metadata import version
from pathlib import Path

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Type

TARGET = Path(__file__).resolve().parents[2] / "tests/fixtures/gguf/blocks.json"
ROUNDED = [Type.Q8_0, Type.Q5_1, Type.Q5_0, Type.Q4_1, Type.Q4_0]
RANDOM = [Type.Q6_K, Type.Q5_K, Type.Q4_K, Type.IQ4_NL, Type.MXFP4, Type.Q3_K, Type.Q2_K, Type.IQ4_XS]
# Numbers of a type: two rows of a super-block.
SHAPE = (2, 256)


def random_blocks(rng, kind):
    block, size = gguf.GGML_QUANT_SIZES[kind]
    count = SHAPE[0] * SHAPE[1] // block
    data = rng.integers(0, 256, (count, size), dtype=np.uint8)
    scale = lambda size: (rng.uniform(-1, 1, (count, 1)) * size).astype(np.float16).view(np.uint8)
    if kind in (Type.Q4_K, Type.Q5_K):
        data[:, 0:2], data[:, 2:4] = scale(6e-4), scale(4e-3)
    elif kind == Type.Q6_K:
        data[:, -2:] = scale(7e-5)
    elif kind == Type.Q3_K:
        data[:, -2:] = scale(8e-3)
    elif kind == Type.Q2_K:
        data[:, -4:-2], data[:, -2:] = scale(2e-2), scale(2e-2)
    elif kind == Type.IQ4_XS:
        data[:, 0:2] = scale(3e-4)
    elif kind == Type.IQ4_NL:
        data[:, 0:2] = scale(1e-3)
    else:
        # Exponents that binary16 has.
        data[:, 0] = rng.integers(112, 126, count)
    return data.reshape(SHAPE[0], -1)


def main():
    rng = np.random.default_rng(11)
    types = {}
    for kind in ROUNDED + RANDOM:
        entry = {"number": int(kind)}
        if kind in ROUNDED:
            values = (rng.standard_normal(SHAPE) * 0.3).astype(np.float32)
            # Zeros, and numbers of one sign.
            values[0, 32:64] = 0
            values[0, 64:96] = np.abs(values[0, 64:96]) + 1
            values[0, 96:128] = -values[0, 64:96]
            data = gguf.quantize(values, kind)
            entry["values"] = values.tobytes().hex()
        else:
            data = random_blocks(rng, kind)
        numbers = gguf.dequantize(data, kind).astype(np.float32).reshape(SHAPE)
        types[kind.name] = entry | {"bytes": data.tobytes().hex(), "numbers": numbers.tobytes().hex()}
    made_with = {name: version(name) for name in ("gguf", "numpy")}
    TARGET.write_text(json.dumps({"types": types, "made_with": made_with}, indent=1) + "\n")


if __name__ == "__main__":
    main()
