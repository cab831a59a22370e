#!/usr/bin/env bash
# Opens, trains, saves and closes sessions for half of MINUTES (10 by default) on the CPU and a Vulkan device, and answers thousands of
# requests of clients of which some leave. Fails where memory, open files or threads grow, or an answer is not that of the request alone.
# Usage: scripts/soak.sh [MINUTES]
set -euo pipefail
cd "$(dirname "$0")/.."
minutes=${1:-10}
run() { cargo test --quiet --release --workspace --test it "$1" -- --ignored --nocapture --test-threads 1; }
SOAK_SECONDS=$((minutes * 30)) run soak::sessions
SOAK_REQUESTS=$((minutes * 5000)) run soak::thousands
