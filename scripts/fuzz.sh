#!/bin/sh
# Gives the readers of plans, of checkpoints and of language models' files a million changed files each, in a release
# build and in an address space of 4 GB: none may crash, or allocate more than a file could be worth.
#
#   scripts/fuzz.sh [RUNS]
set -eu
cd "$(dirname "$0")/.."
MEGANEURA_FUZZ_RUNS=${1:-1000000}
RUST_TEST_THREADS=1
MEGANEURA_THREADS=1
export MEGANEURA_FUZZ_RUNS RUST_TEST_THREADS MEGANEURA_THREADS
cargo test --release --workspace --no-run --test plan_fuzz --test checkpoint_fuzz --test language_fuzz
# Millions of small files: a disk would take longer than the readers.
[ ! -d /dev/shm ] || export TMPDIR=/dev/shm
# The compiler needs more than the readers may.
ulimit -v 4194304
for reader in plan_fuzz checkpoint_fuzz language_fuzz; do
    echo "$reader: $MEGANEURA_FUZZ_RUNS files"
    cargo test --release --workspace --test "$reader" -- --nocapture
done
