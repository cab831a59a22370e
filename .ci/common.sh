# What .ci/run and .ci/long share. They source this file in the root of the repository.

# Tests select their devices themselves.
unset MEGANEURA_DEVICE_ID MEGANEURA_CONFIG MEGANEURA_PLUGINS MEGANEURA_THREADS
# Incremental builds keep gigabytes, and nothing is built twice.
export CARGO_INCREMENTAL=0
# Open MPI refuses to run as root without these.
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1

# A feature that is off by default, for clippy and all tests in the debug profile.
parquet=(--features meganeura-nn/parquet)

cache=${XDG_CACHE_HOME:-$HOME/.cache}/meganeura

# Prints the name of a step with the minutes and seconds since the start.
step() { printf '\n=== [%d:%02d] %s\n' $((SECONDS / 60)) $((SECONDS % 60)) "$*"; }

# Reports a skipped check with its reason; fails if MEGANEURA_REQUIRE_NAME=1: not_tested NAME REASON
not_tested() {
    echo "$1-NOT-TESTED: $2"
    local required=MEGANEURA_REQUIRE_$1
    [ "${!required:-0}" != 1 ] || exit 1
}

# Whether this user can install packages of Debian.
has_apt() { [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; }

# Returns true before a number of minutes has passed. All checks must end within 90 minutes, so slow machines skip some, and print
# their names: in_time NAME MINUTES
in_time() {
    [ "$SECONDS" -ge $(($2 * 60)) ] || return 0
    not_tested "$1" "more than $2 minutes have passed"
    return 1
}

# Prints the folder of the crate and the path of each test program, from the messages of `cargo test --no-run`: test_programs FILE
test_programs() {
    grep '"test":true},"features":' "$1" | sed -nE 's/.*"manifest_path":"([^"]+)\/Cargo.toml".*"executable":"([^"]+)".*/\1 \2/p'
}

# Runs a test program as cargo does, and remembers a failure in `failed`: run_test FOLDER PROGRAM
run_test() {
    printf '\n%s (%s)\n' "$2" "${1#"$PWD"}"
    local libraries
    libraries=$(rustc --print sysroot)/lib:$PWD/target/debug/deps:$PWD/target/debug
    (cd "$1" && CARGO_MANIFEST_DIR=$1 LD_LIBRARY_PATH=$libraries:${LD_LIBRARY_PATH:-} MEGANEURA_REQUIRE_COOP=0 "$2" </dev/null) ||
        failed+=("$2")
}

# Installs packages of Debian within five minutes: install_debian PACKAGE...
install_debian() {
    has_apt && apt-get update -qq && timeout 300 apt-get install -y -qq --no-install-recommends "$@" >/dev/null ||
        { echo "cannot be installed: $*" && return 1; }
}

# The packages of the ONNX checks. Casts of floats beyond the range of an integer of 2 or 4 bits are undefined in ONNX, and
# `ml_dtypes`, which computes the expected values, changed them in 0.7.
onnx_packages=('onnx==1.23.2' 'onnxruntime==1.32.0' 'numpy==2.4.6' 'ml_dtypes==0.6.0')

# Installs Python packages into the virtual environment NAME of the cache: install_python NAME PACKAGE...
install_python() {
    local venv=$cache/$1
    { [ -x "$venv/bin/python" ] || timeout 300 python3 -m venv "$venv"; } &&
        timeout 600 "$venv/bin/python" -m pip install --quiet "${@:2}"
}

# Prints the path of the description of Mesa's software Vulkan driver, or nothing if it is not installed.
software_vulkan() {
    { find /usr/share/vulkan/icd.d /usr/local/share/vulkan/icd.d -name 'lvp_icd*.json' 2>/dev/null || true; } | head -n 1
}

# Whether headers and programs of MPI are installed.
has_mpi() { command -v mpicc >/dev/null && command -v mpirun >/dev/null; }

# Trains, and fails if the test accuracy is too small: trains_to NAME MINIMUM COMMAND...
trains_to() {
    local found
    found=$("${@:3}" --json | tail -n 1 | sed -nE 's/.*"test_accuracy":([0-9.]+).*/\1/p')
    echo "$1: test accuracy $found"
    awk -v found="${found:-0}" -v minimum="$2" 'BEGIN { exit !(found >= minimum) }' ||
        { echo "$1 reached $found, expected at least $2" && exit 1; }
}

# Builds the example plugin in C: build_loops FILE
build_loops() {
    cc -std=c11 -O2 -Wall -Wextra -Werror -shared -fPIC -I plugins/abi/include plugins/examples/c-loops/loops.c -lm -o "$1"
}

# Builds or tests the example plugin ndarray, a workspace of its own. Its dependencies are those of the main workspace,
# and are not built again: of_ndarray COMMAND [ARGUMENT...]
of_ndarray() { cargo "$1" --release --target-dir target --manifest-path plugins/examples/ndarray/Cargo.toml "${@:2}"; }

# Debian's stable Vulkan driver has no cooperative matrices. This folder is the root of the next Debian release.
coop_root=$cache/trixie-root

# Installs the newer driver in that root.
make_coop_root() {
    has_apt && [ "$(uname -m)" = x86_64 ] || return 1
    [ ! -e "$coop_root/complete" ] || return 0
    command -v debootstrap >/dev/null || install_debian debootstrap || return 1
    rm -rf "$coop_root" && mkdir -p "$(dirname "$coop_root")" || return 1
    # The server of this system's packages.
    local mirror
    mirror=$(apt-get indextargets --format '$(SITE)' 2>/dev/null | grep -m 1 '/debian/\?$' || true)
    mirror=${mirror:-http://deb.debian.org/debian}
    timeout 150 debootstrap --variant=minbase --include=ca-certificates,libvulkan1 trixie "$coop_root" "$mirror" >/dev/null ||
        return 1
    echo "deb $mirror trixie-backports main" >"$coop_root/etc/apt/sources.list.d/backports.list"
    timeout 150 chroot "$coop_root" sh -c 'apt-get update -qq &&
        apt-get install -y -qq --no-install-recommends -t trixie-backports mesa-vulkan-drivers >/dev/null' || return 1
    touch "$coop_root/complete"
}

# Runs a program in that root: in_coop_root CONFIG PROGRAM [ARGUMENT...]
in_coop_root() {
    chroot "$coop_root" env -i MEGANEURA_REQUIRE_COOP=1 MEGANEURA_REQUIRE_VULKAN=1 \
        MEGANEURA_CONFIG="/meganeura/$1.toml" VK_DRIVER_FILES=/usr/share/vulkan/icd.d/lvp_icd.json "${@:2}"
}

# Runs conformance in that root, with all matmuls on the matrix units, although cases are small:
# coop_conformance [ARGUMENT...]
coop_conformance() {
    in_coop_root every-product /meganeura/meganeura conformance --device blade --seeds 1 "$@"
}

# Runs the tests of cooperative matrices, and conformance of semantics in mixed precision. Needs the release build of the
# command. The driver compiles the kernels of all matmuls for many minutes; .ci/long does that.
coop_tests() {
    make_coop_root || { not_tested COOP "the newer driver cannot be installed in $coop_root" && return; }
    local mpi=() built
    ! has_mpi || mpi=(--features meganeura-mpi/mpi)
    built=$(cargo test --workspace "${mpi[@]}" "${parquet[@]}" --test coop --no-run --message-format=json 2>/dev/null |
        sed -nE 's/.*"name":"coop".*"executable":"([^"]+)".*/\1/p' | tail -n 1)
    install -D "$built" "$coop_root/meganeura/coop"
    install -D target/release/meganeura "$coop_root/meganeura/meganeura"
    printf '[backend.blade]\ncoop_min_workgroups = 0\n' >"$coop_root/meganeura/every-product.toml"
    : >"$coop_root/meganeura/none.toml"
    in_coop_root none /meganeura/coop
    coop_conformance --precision mixed --filter semantics
}
