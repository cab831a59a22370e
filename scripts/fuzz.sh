#!/usr/bin/env bash
# Gives readers of files changed files without end, guided by what the files reach of the code (libFuzzer).
#
#   scripts/fuzz.sh TARGET MINUTES   one reader; `scripts/fuzz.sh list` names them
#   scripts/fuzz.sh all MINUTES      one after the other, so many minutes each
#   scripts/fuzz.sh repeat           only the cases that were found before
#   scripts/fuzz.sh files [RUNS]     the readers' tests, a million changed files each: needs no nightly toolchain
#
# It ends with the number of executions. A case that crashes, takes longer than TIMEOUT seconds (20), or more memory than
# MEMORY MiB (2048) is made small and kept in fuzz/found/TARGET, and the script fails. What reaches new code is kept in
# fuzz/corpus, and is begun with the next time; `onnx` begins with the models in the folder MEGANEURA_ONNX_CASES
# (scripts/verify-external/write_onnx_cases.py) as well. SANITIZER=address also sees wrong accesses of memory, at half the speed.
set -euo pipefail
cd "$(dirname "$0")/.."

fail() {
    echo "fuzz.sh: $*" >&2
    exit 2
}
usage() {
    sed -n '4,7s/^# *//p' "$0" >&2
    exit 2
}

# Gives the readers of plans, of checkpoints and of language models' files so many changed files each, in a release build
# and in an address space of 4 GB: none may crash, or allocate more than a file could be worth.
files() {
    export MEGANEURA_FUZZ_RUNS=${1:-1000000} RUST_TEST_THREADS=1 MEGANEURA_THREADS=1
    local readers=(plan_fuzz checkpoint_fuzz language_fuzz onnx_fuzz) reader
    cargo test --release --workspace --no-run "${readers[@]/#/--test=}"
    # Millions of small files: a disk would take longer than the readers.
    [ ! -d /dev/shm ] || export TMPDIR=/dev/shm
    # The compiler needs more than the readers may.
    ulimit -v 4194304
    for reader in "${readers[@]}"; do
        echo "$reader: $MEGANEURA_FUZZ_RUNS files"
        cargo test --release --workspace --test "$reader" -- --nocapture
    done
}

names() { for file in fuzz/targets/*.rs; do basename "$file" .rs; done; }

# As `cargo fuzz` builds, which is not needed therefore.
build() {
    cargo +nightly --version >/dev/null 2>&1 ||
        fail "coverage needs a nightly toolchain: rustup toolchain install nightly --profile minimal"
    command -v c++ g++ clang++ >/dev/null ||
        fail "libFuzzer is built by a C++ compiler, and there is none: apt-get install g++ (or your system's way)"
    local host flags passes
    host=$(rustc +nightly -vV | sed -n 's/^host: //p')
    # Coverage, and a copy of what is compared: libFuzzer learns magic numbers and words from these.
    passes="-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4"
    passes+=" -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table"
    passes+=" -Cllvm-args=-sanitizer-coverage-trace-compares -Cllvm-args=-simplifycfg-branch-fold-threshold=0"
    flags="--cfg fuzzing $passes"
    local folder=${CARGO_TARGET_DIR:-fuzz/target}/fuzz
    if [ -n "${SANITIZER:-}" ]; then
        flags+=" -Zsanitizer=$SANITIZER"
        folder+="-$SANITIZER"
    fi
    # Flags are for what is fuzzed alone, not for build scripts, if a machine is named.
    RUSTFLAGS=$flags cargo +nightly build --manifest-path fuzz/Cargo.toml --release --target "$host" \
        --target-dir "$folder" "$@" ||
        fail "the targets do not build"
    programs=$folder/$host/release
}

# Runs one target; arguments are libFuzzer's.
run() {
    local name=$1
    shift
    ASAN_OPTIONS=${ASAN_OPTIONS:-detect_leaks=0:allocator_may_return_null=1} MEGANEURA_THREADS=1 \
        "$programs/$name" -rss_limit_mb="${MEMORY:-2048}" -timeout="${TIMEOUT:-20}" -max_len=32768 -len_control=0 \
        -detect_leaks=0 -print_final_stats=1 "$@"
}

# Makes what was found as small as a minute allows.
keep() {
    local name=$1 case=$2 small
    small=$case.small
    run "$name" -minimize_crash=1 -max_total_time=60 -exact_artifact_path="$small" "$case" >/dev/null 2>&1 || true
    [ -s "$small" ] && [ "$(wc -c <"$small")" -lt "$(wc -c <"$case")" ] || cp "$case" "$small"
    mkdir -p "fuzz/found/$name"
    local kept
    kept=fuzz/found/$name/$(sha256sum "$small" | cut -c -16)
    mv "$small" "$kept"
    echo "$name: found $kept, $(wc -c <"$kept") bytes; to see it: $programs/$name $kept"
}

# What was found before, once more.
repeat() {
    local name=$1 case
    for case in fuzz/found/"$name"/*; do
        [ -f "$case" ] || continue
        if ! run "$name" "$case" >"$work/log" 2>&1; then
            tail -n 30 "$work/log" >&2
            echo "$name: $case still fails"
            failed=1
        fi
    done
}

fuzz() {
    local name=$1 end=$((SECONDS + $2 * 60)) begin=$SECONDS executions=0 count
    mkdir -p "fuzz/corpus/$name" "$work/$name" "$work/more"
    # Small models of all operators, which the repository does not have.
    if [ "$name" = onnx ] && [ -d "${MEGANEURA_ONNX_CASES:-}" ]; then
        local model models=0
        while read -r model; do
            models=$((models + 1))
            cp "$model" "$work/more/$models"
        done < <(find "$MEGANEURA_ONNX_CASES" -name model.onnx -size -32k)
        echo "onnx: begins with $models models of MEGANEURA_ONNX_CASES as well"
    fi
    repeat "$name"
    while [ $((end - SECONDS)) -gt 0 ]; do
        # Anew from time to time: names and operators of plugins are never given back.
        local status=0
        run "$name" -max_total_time=$((end - SECONDS)) -runs=2000000 -artifact_prefix="$work/$name/" \
            "fuzz/corpus/$name" "$work/more" >"$work/log" 2>&1 || status=$?
        count=$(sed -n 's/^stat::number_of_executed_units: *//p' "$work/log" | tail -n 1)
        executions=$((executions + ${count:-0}))
        [ "$status" != 0 ] || continue
        failed=1
        # Of what ends it, not of all that libFuzzer says about its own state.
        grep -v '^#[0-9]*\s*\(NEW\|REDUCE\|pulse\|RELOAD\|INITED\)' "$work/log" | head -n 60 >&2
        local case
        for case in "$work/$name"/*; do
            [ ! -f "$case" ] || keep "$name" "$case"
        done
        break
    done
    local seconds=$((SECONDS - begin)) coverage
    coverage=$(grep -o ' cov: [0-9]*' "$work/log" | tail -n 1 || true)
    echo "$name: $executions executions in $seconds s,${coverage:- cov: ?} edges, $(find "fuzz/corpus/$name" -type f | wc -l) cases"
    total=$((total + executions))
}

case ${1:-} in
"" | -h | --help) usage ;;
list)
    names
    exit
    ;;
files)
    files "${2:-}"
    exit
    ;;
all | repeat) targets=$(names) ;;
*)
    [ -f "fuzz/targets/$1.rs" ] || fail "there is no target '$1'; there are: $(names | tr '\n' ' ')"
    targets=$1
    ;;
esac
if [ "$1" != repeat ]; then
    [[ ${2:-} =~ ^[0-9]+$ ]] && [ "$2" -gt 0 ] || fail "for how many minutes? scripts/fuzz.sh $1 MINUTES"
fi

total=0
failed=0
programs=
if [ "$1" = all ] || [ "$1" = repeat ]; then build --bins; else build --bin "$1"; fi
# Files are written for readers that take a path: not to a disk.
work=$(mktemp -d "$([ -d /dev/shm ] && echo /dev/shm || echo "${TMPDIR:-/tmp}")/meganeura-fuzz.XXXXXX")
trap 'rm -rf "$work"' EXIT
trap 'exit 130' INT TERM
export TMPDIR=$work
for target in $targets; do
    case $1 in
    repeat) repeat "$target" ;;
    *) fuzz "$target" "$2" ;;
    esac
done
[ "$1" = repeat ] || echo "in all: $total executions"
exit "$failed"
