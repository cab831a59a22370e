#!/usr/bin/env python3
"""Write or check nn/data/digits/digits.csv.gz.

The source is the file `digits.csv.gz` (or the same text uncompressed) that
scikit-learn distributes as `sklearn/datasets/data/digits.csv.gz`: the test
subset of the UCI "Optical Recognition of Handwritten Digits" data set.

    make_digits.py                   take it from the installed scikit-learn
    make_digits.py --source FILE     take it from FILE
    make_digits.py --check           only check the committed file

Only the gzip container is rewritten: no file name, time stamp 0, so that the
same source gives the same bytes on every run. The CSV text inside is the
source's, byte for byte, and is pinned by its SHA-256 below. (Compressed bytes
may still differ between zlib releases; the text may not.)
"""

import argparse
import gzip
import hashlib
import importlib.util
import io
import sys
from collections import Counter
from pathlib import Path

TARGET = Path(__file__).resolve().parents[2] / "nn" / "data" / "digits" / "digits.csv.gz"

CSV_SHA256 = "6ebb3d2fee246a4e99363262ddf8a00a3c41bee6014c373ed9d9216ba7f651b8"
ROWS = 1797
PIXELS = 64
MAX_PIXEL = 16
CLASS_COUNTS = [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]


def installed_source():
    """The digits file of the installed scikit-learn, found without importing it."""
    spec = importlib.util.find_spec("sklearn")
    if spec is None or not spec.submodule_search_locations:
        sys.exit("scikit-learn is not installed: install it or give --source FILE")
    return Path(spec.submodule_search_locations[0]) / "datasets" / "data" / "digits.csv.gz"


def read_text(path):
    """The CSV bytes of `path`, which may be gzip-compressed or not."""
    raw = path.read_bytes()
    return gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw


def check_text(text, path):
    """Exit with a message unless `text` is exactly the expected data set."""
    rows = [[int(v) for v in line.split(",")] for line in text.decode("ascii").splitlines()]
    if len(rows) != ROWS:
        sys.exit(f"{path}: {len(rows)} rows, expected {ROWS}")
    for number, row in enumerate(rows, start=1):
        if len(row) != PIXELS + 1:
            sys.exit(f"{path}:{number}: {len(row)} fields, expected {PIXELS + 1}")
        if not all(0 <= value <= MAX_PIXEL for value in row[:-1]):
            sys.exit(f"{path}:{number}: a pixel is outside 0..{MAX_PIXEL}")
    counts = Counter(row[-1] for row in rows)
    if counts != Counter(dict(enumerate(CLASS_COUNTS))):
        sys.exit(f"{path}: class counts {dict(sorted(counts.items()))} are not the expected ones")
    digest = hashlib.sha256(text).hexdigest()
    if digest != CSV_SHA256:
        sys.exit(f"{path}: SHA-256 of the CSV text is {digest}, expected {CSV_SHA256}")


def compress(text):
    """`text` as gzip with nothing in the header that depends on where or when."""
    buffer = io.BytesIO()
    with gzip.GzipFile(filename="", mode="wb", compresslevel=9, fileobj=buffer, mtime=0) as out:
        out.write(text)
    return buffer.getvalue()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--source", type=Path, help="digits.csv.gz or digits.csv to convert")
    parser.add_argument("--check", action="store_true", help="check the committed file, write nothing")
    args = parser.parse_args()

    if args.check:
        check_text(read_text(TARGET), TARGET)
        packed = TARGET.read_bytes()
    else:
        source = args.source or installed_source()
        text = read_text(source)
        check_text(text, source)
        packed = compress(text)
        TARGET.parent.mkdir(parents=True, exist_ok=True)
        TARGET.write_bytes(packed)
    print(f"{TARGET}: {len(packed)} bytes, SHA-256 {hashlib.sha256(packed).hexdigest()}")


if __name__ == "__main__":
    main()
