#!/usr/bin/env bash
# Compares two builds of `meganeura` on the CPU, for changes that must not change behaviour:
#
#     scripts/compare-programs.sh OLD NEW
#
# OLD and NEW are programs. Trains models, and computes logits of small checkpoints of all families in all storage types. Prints
# the files that differ in any bit, and exits with 1 if there are any. Then prints the times of model steps, measured alternately.
set -euo pipefail
cd "$(dirname "$0")/.."
[ $# = 2 ] || { sed -n '2,8s/^# \{0,1\}//p' "$0"; exit 2; }
programs=("$(realpath "$1")" "$(realpath "$2")")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
fixtures=tests/fixtures/transformers

same=0
different=0
# Compares the files NAME of both programs.
compare() {
    if cmp -s "$work/0/$1" "$work/1/$1"; then
        same=$((same + 1))
    else
        different=$((different + 1))
        echo "$1: differs"
    fi
}

for i in 0 1; do
    mkdir -p "$work/$i"
    "${programs[i]}" train digits --device cpu --epochs 3 --out "$work/$i/digits" >/dev/null 2>&1
    "${programs[i]}" train text --data data/alice/alice.txt --model tiny --steps 40 --device cpu --out "$work/$i/text" >/dev/null 2>&1
done
compare digits/model.safetensors
compare text/model.safetensors

for folder in "$fixtures"/*/; do
    model=$(basename "$folder")
    [ -f "$folder/model.safetensors" ] || continue
    for weights in f32 f16 q8 q6 q5_0 q4_1 q4; do
        for i in 0 1; do
            timeout 120 "${programs[i]}" generate --no-plan-cache --device cpu --model "$folder" --weights $weights --temperature 0 \
                --prompt-ids "$(seq -s, 3 40)" --max-tokens 30 --logits "$work/$i/$model-$weights.npy" >/dev/null 2>&1 || true
        done
        # OLD may not know the model.
        if [ ! -f "$work/0/$model-$weights.npy" ]; then
            echo "$model in $weights: OLD cannot compute it, so that the model is skipped"
            break
        fi
        compare "$model-$weights.npy"
    done
done
echo "$same results are equal bit for bit, $different differ"

# The shortest of several alternating runs: other programs only make runs longer.
while read -r workload options; do
    best=(inf inf)
    counts=("" "")
    for _ in 1 2 3 4 5; do
        for i in 0 1; do
            # shellcheck disable=SC2086 # several options
            line=$("${programs[i]}" bench "$workload" $options --device cpu --json 2>/dev/null | head -n 1)
            found=$(sed -nE 's/.*"synchronized_step_ms":([0-9.]+).*/\1/p' <<<"$line")
            counts[i]=$(sed -nE 's/.*"dispatches":([0-9]+).*/\1/p' <<<"$line")
            best[i]=$(awk -v a="${best[i]}" -v b="${found:-inf}" 'BEGIN { print a == "inf" || b + 0 < a + 0 ? b : a }')
        done
    done
    ratio=$(awk -v a="${best[0]}" -v b="${best[1]}" 'BEGIN { printf "%.3f", b / a }')
    echo "$workload $options: ${counts[0]} and ${counts[1]} dispatches, ${best[0]} and ${best[1]} ms, ratio $ratio"
done <<'WORKLOADS'
mlp
mlp --train
cnn
cnn --train
resnet18
smollm2-135m
WORKLOADS
[ "$different" = 0 ]
