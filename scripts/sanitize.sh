#!/usr/bin/env bash
# Tests under tools that see undefined behaviour, wrong accesses of memory, and data races. They need a nightly toolchain.
#
#   scripts/sanitize.sh abi      Miri: the C interface (plugins/abi)
#   scripts/sanitize.sh host     Miri: plans that are written for plugins and read by them, whole and damaged (plugins/host)
#   scripts/sanitize.sh pool     Miri: the CPU backend's thread pool, with SEEDS (4) orders of its threads
#   scripts/sanitize.sh address  AddressSanitizer: the CPU backend's kernels, in all their tests
#   scripts/sanitize.sh thread   ThreadSanitizer: the thread pool, with the standard library built for it
#   scripts/sanitize.sh all      one after the other
#
# A word behind the first selects tests by their names, as for `cargo test`.
set -euo pipefail
cd "$(dirname "$0")/.."

fail() {
    echo "sanitize.sh: $*" >&2
    exit 2
}

# An installed component of the nightly toolchain, or how to get it.
needs() {
    cargo +nightly --version >/dev/null 2>&1 ||
        fail "this needs a nightly toolchain: rustup toolchain install nightly --profile minimal"
    local component sysroot
    sysroot=$(rustc +nightly --print sysroot)
    for component; do
        case $component in
        miri) [ -x "$sysroot/bin/cargo-miri" ] ;;
        rust-src) [ -f "$sysroot/lib/rustlib/src/rust/library/Cargo.lock" ] ;;
        esac || fail "this needs $component: rustup component add --toolchain nightly $component"
    done
}

# The sanitizers' programs are of other flags, and so are others' than those of tests.
folder=${CARGO_TARGET_DIR:-target}
# Files, clocks and threads of the machine are used by the tests themselves.
miri() {
    needs miri rust-src
    MIRIFLAGS="-Zmiri-disable-isolation ${MIRIFLAGS:-}" CARGO_TARGET_DIR=$folder/miri cargo +nightly miri test "$@"
}

sanitized() {
    local kind=$1 host
    shift
    needs rust-src
    host=$(rustc +nightly -vV | sed -n 's/^host: //p')
    # The standard library is built as well: what it does with memory and locks would not be seen otherwise.
    # Some tests ask for more than any machine has, and look at what they get.
    ASAN_OPTIONS=${ASAN_OPTIONS:-allocator_may_return_null=1} RUSTFLAGS="-Zsanitizer=$kind" CARGO_TARGET_DIR=$folder/$kind cargo +nightly test -Zbuild-std --target "$host" "$@"
}

# What the pool's tests do not run need not be fast, but built soon.
fast=()
for package in '"*"' meganeura-core meganeura-compiler meganeura-conformance; do
    fast+=(--config "profile.dev.package.$package.opt-level=0")
done

check() {
    local what=$1
    shift
    echo "=== $what"
    case $what in
    abi) miri -p meganeura-plugin-abi --lib -- "$@" ;;
    # Those that do not start processes or load shared objects, which Miri cannot.
    host) miri -p meganeura-plugin-host --lib -- encode:: "$@" ;;
    pool)
        MIRIFLAGS="-Zmiri-many-seeds=0..${SEEDS:-4} ${MIRIFLAGS:-}" miri -p meganeura-cpu --lib -- pool:: "$@"
        ;;
    address) sanitized address -p meganeura-cpu --lib --test it -- "$@" ;;
    thread) sanitized thread "${fast[@]}" -p meganeura-cpu --lib -- pool:: "$@" ;;
    *) fail "there is no check '$what'; there are: abi host pool address thread all" ;;
    esac
}

case ${1:-} in
"" | -h | --help)
    sed -n '2,11s/^# *//p' "$0" >&2
    exit 2
    ;;
all) for what in abi host pool address thread; do check "$what"; done ;;
*) check "$@" ;;
esac
