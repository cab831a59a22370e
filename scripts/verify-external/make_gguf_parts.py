"""Writes tests/fixtures/gguf_parts: tests/fixtures/gguf/llama3_q8_0.gguf in several files, as the package `gguf` splits them.

    python3 -m venv venv
    venv/bin/pip install gguf numpy
    venv/bin/python scripts/verify-external/make_gguf_parts.py

The tensors are in the opposite order, so that the factors of rotary positions are not in the first part.
"""

from pathlib import Path

import gguf

FIXTURES = Path(__file__).resolve().parents[2] / "tests/fixtures"
NAME = "llama3_q8_0"
TENSORS_OF_A_PART = 5


def main():
    target = FIXTURES / "gguf_parts"
    target.mkdir(exist_ok=True)
    reader = gguf.GGUFReader(FIXTURES / f"gguf/{NAME}.gguf")
    text = reader.fields["general.architecture"].contents()
    writer = gguf.GGUFWriter(target / f"{NAME}.gguf", text, split_max_tensors=TENSORS_OF_A_PART)
    for field in reader.fields.values():
        if field.name.startswith("GGUF.") or field.name == "general.architecture":
            continue
        kind, *of = field.types
        writer.add_key_value(field.name, field.contents(), kind, sub_type=of[-1] if of else None)
    for tensor in reversed(reader.tensors):
        writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    main()
