#!/usr/bin/env bash
# Writes which packages are in the command `meganeura`, with versions, licences and who needs whom, as a CycloneDX document.
#
#   scripts/sbom.sh [FEATURES] >meganeura.cdx.json
#
# FEATURES are those of `meganeura-cli` beside its default ones, such as `hub`. It needs `jq`.
set -euo pipefail
cd "$(dirname "$0")/.."
command -v jq >/dev/null || {
    echo "sbom.sh: this needs jq: apt-get install jq (or your system's way)" >&2
    exit 2
}
host=$(rustc -vV | sed -n 's/^host: //p')
# Only what Cargo.lock says: a list of other versions would be one of another program.
cargo metadata --format-version 1 --locked --filter-platform "$host" --manifest-path cli/Cargo.toml \
    ${1:+--features "$1"} | jq '
    def purl: "pkg:cargo/\(.name)@\(.version)";
    def licences: if .license then [{ expression: (.license | gsub("/"; " OR ")) }] else [] end;
    (.packages | map({ key: .id, value: . }) | from_entries) as $packages
    | (.resolve.nodes | map({ key: .id, value: [.deps[] | select(any(.dep_kinds[]; .kind == null)) | .pkg] })
        | from_entries) as $needs
    | (.packages[] | select(.name == "meganeura-cli") | .id) as $root
    # All that is needed at run time, from the command on; tests and build scripts are not in it.
    | def reach($found; $new): if $new == [] then $found else
        ($found + $new | unique) as $all | reach($all; ([$new[] | $needs[.][]] | unique) - $all) end;
    reach([]; [$root]) as $used
    | {
        bomFormat: "CycloneDX", specVersion: "1.5", version: 1,
        metadata: { component: ($packages[$root]
            | { type: "application", "bom-ref": purl, name: .name, version: .version, purl: purl, licenses: licences }) },
        components: [$used[] | select(. != $root) | $packages[.]
            | { type: "library", "bom-ref": purl, name: .name, version: .version, purl: purl, licenses: licences }],
        dependencies: [$used[] | { ref: ($packages[.] | purl), dependsOn: [$needs[.][] | $packages[.] | purl] | unique }]
    }'
