#!/bin/sh
# get.sh FOLDER: put jemalloc and tcmalloc into FOLDER, for the tests that preload them.
#
# They are the packages of this system's own Debian or Ubuntu, fetched from the mirror that apt uses here, and unpacked
# beside the system: nothing is installed, and no root is needed. It takes some seconds.
#
# Exit codes: 0: both are there; 2: wrong arguments; 3: they cannot be had here (the reason is on stderr).
set -eu
[ $# -eq 1 ] || { sed -n '2s/^# //p' "$0" >&2; exit 2; }
mkdir -p "$1"
folder=$(cd "$1" && pwd)
[ ! -e "$folder/all" ] || exit 0

fail() { echo "get.sh: $*; the tests with other allocators are left out unless the system has them" >&2; exit 3; }

for tool in apt-get dpkg-deb; do
    command -v $tool > /dev/null || fail "there is no $tool"
done
# An apt of its own: the sources that are configured, and nothing of the system's state.
apt=$folder/.apt
mkdir -p "$apt/lists/partial" "$apt/cache/archives/partial"
: > "$apt/status"
own_apt() {
    apt-get -q -o Dir::State::lists="$apt/lists" -o Dir::State::status="$apt/status" -o Dir::Cache="$apt/cache" \
        -o Acquire::Languages=none -o Acquire::Retries=0 -o Acquire::http::Timeout=20 \
        -o APT::Sandbox::User="$(id -un)" "$@"
}
own_apt update > "$apt/log" 2>&1 || true # some source may be out of reach that is not needed
cd "$folder"
own_apt download libjemalloc2 >> "$apt/log" 2>&1 || fail "jemalloc cannot be fetched: $(grep '^E:' "$apt/log" | tail -n 1)"
# Since 2024 it has another name.
own_apt download libtcmalloc-minimal4 >> "$apt/log" 2>&1 || own_apt download libtcmalloc-minimal4t64 >> "$apt/log" 2>&1 ||
    fail "tcmalloc cannot be fetched: $(grep '^E:' "$apt/log" | tail -n 1)"
for package in "$folder"/*.deb; do
    dpkg-deb -x "$package" "$folder/root"
done
for library in libjemalloc.so.2 libtcmalloc_minimal.so.4; do
    found=$(find "$folder/root" -name "$library" | head -n 1)
    [ -n "$found" ] || fail "the packages lack $library"
    ln -sf "${found#"$folder"/}" "$folder/$library"
done
rm -rf "$apt" "$folder"/*.deb
: > "$folder/all"
