#!/usr/bin/env bash
# Opens, trains, saves and closes sessions for a quarter of MINUTES (10 by default) on each of the CPU, a Vulkan device and a CUDA
# device, answers thousands of requests of clients of which some leave, and loads, uses and refuses plugins for a tenth of MINUTES.
# Fails where memory, open files or threads grow, or an answer is not that of the request alone.
# `hostile` sends a random mixture of attacks to a server for MINUTES (60 by default) instead.
# Usage: scripts/soak.sh [MINUTES]
#        scripts/soak.sh hostile [MINUTES]
set -euo pipefail
cd "$(dirname "$0")/.."
# A test by its binary and its name.
run() { cargo test --quiet --release --workspace --test "$1" "$2" -- --ignored --nocapture --test-threads 1; }
if [ "${1:-}" = hostile ]; then
    SOAK_SECONDS=$((${2:-60} * 60)) run it hostile_soak::
    exit
fi
minutes=${1:-10}
SOAK_SECONDS=$((minutes * 30)) run it soak::sessions
SOAK_REQUESTS=$((minutes * 5000)) run it soak::thousands
SOAK_SECONDS=$((minutes * 6)) run plugins soak::plugins
