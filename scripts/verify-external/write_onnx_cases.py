#!/usr/bin/env python3
"""Writes the backend test cases of the installed `onnx` package to a folder.

    python scripts/verify-external/write_onnx_cases.py FOLDER

Makes FOLDER/{node,simple,pytorch-converted,pytorch-operator}/NAME/ with `model.onnx` and, for each data set,
`test_data_set_N/{input,output}_M.pb`, the layout of ONNX's own files, and `tolerance.json` with `rtol` and `atol`.
The node cases are computed by the package; the others are files of it. The tests of `meganeura-onnx` read the folder
that MEGANEURA_ONNX_CASES names. Needs the packages `onnx` and `numpy`.
"""

import json
import pathlib
import shutil
import sys
import warnings

import numpy
import onnx
from onnx import numpy_helper
from onnx.backend.test.case.node import collect_testcases


def to_proto(value, type_proto, name):
    """One value of a data set as the message that its declared type asks for."""
    kind = type_proto.WhichOneof("value")
    if kind == "sequence_type":
        return numpy_helper.from_list(value, name)
    if kind == "optional_type":
        return numpy_helper.from_optional(value, name)
    if isinstance(value, (onnx.TensorProto, onnx.SequenceProto, onnx.OptionalProto)):
        return value
    return numpy_helper.from_array(numpy.asarray(value), name)


def write_case(case, folder):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "model.onnx").write_bytes(case.model.SerializeToString())
    (folder / "tolerance.json").write_text(json.dumps({"rtol": case.rtol, "atol": case.atol}))
    graph = case.model.graph
    for number, (inputs, outputs) in enumerate(case.data_sets):
        data = folder / f"test_data_set_{number}"
        data.mkdir(exist_ok=True)
        for kind, values, infos in (("input", inputs, graph.input), ("output", outputs, graph.output)):
            for index, (value, info) in enumerate(zip(values, infos)):
                (data / f"{kind}_{index}.pb").write_bytes(to_proto(value, info.type, info.name).SerializeToString())


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    root = pathlib.Path(sys.argv[1])
    warnings.simplefilter("ignore")
    numpy.seterr(all="ignore")

    written = 0
    for case in collect_testcases(None):
        if case.model is not None and case.data_sets:
            write_case(case, root / "node" / case.name)
            written += 1
    shipped = pathlib.Path(onnx.__file__).parent / "backend" / "test" / "data"
    for kind in ("simple", "pytorch-converted", "pytorch-operator"):
        for folder in sorted((shipped / kind).iterdir()):
            if (folder / "model.onnx").exists():
                shutil.copytree(folder, root / kind / folder.name, dirs_exist_ok=True)
                written += 1
    print(f"{written} cases of onnx {onnx.__version__} in {root}")


if __name__ == "__main__":
    main()
