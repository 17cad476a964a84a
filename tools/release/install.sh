#!/bin/sh
# Installs gradus @VERSION@ for the current user: sh install.sh
#
#   --from PLACE     a folder or an address with the archives and SHA256SUMS (default: the folder of this script)
#   --prefix DIR     where to install (default: $HOME/.local)
#   --uninstall      remove the installed files below the prefix
#
# It needs no root. It writes only below the prefix: bin/gradus, completions, manual pages and the documentation.
set -eu

version=@VERSION@
from=$(cd "$(dirname "$0")" && pwd)
prefix=${HOME:-}/.local
uninstall=no

fail() {
    echo "install.sh: $1" >&2
    exit 1
}

while [ $# -gt 0 ]; do
    case $1 in
        --from) [ $# -ge 2 ] || fail "--from needs a folder or an address"; from=$2; shift 2 ;;
        --prefix) [ $# -ge 2 ] || fail "--prefix needs a folder"; prefix=$2; shift 2 ;;
        --uninstall) uninstall=yes; shift ;;
        -h | --help) sed -n '2,9s/^# \{0,1\}//p' "$0"; exit 0 ;;
        *) fail "unknown argument \`$1\`; --help lists them" ;;
    esac
done

list=$prefix/share/doc/gradus/INSTALLED
if [ "$uninstall" = yes ]; then
    [ -f "$list" ] || fail "$list: no such file, so nothing is installed below $prefix"
    while IFS= read -r file; do
        rm -f "$prefix/$file"
    done <"$list"
    rm -f "$list"
    # Only empty folders of gradus.
    rmdir "$prefix/share/doc/gradus/docs" "$prefix/share/doc/gradus" 2>/dev/null || true
    echo "removed gradus from $prefix"
    exit 0
fi

[ "$(uname -s)" = Linux ] || fail "the archives are for Linux; build gradus from its sources on $(uname -s)"
case $(uname -m) in
    x86_64 | amd64) machine=x86_64 ;;
    aarch64 | arm64) machine=aarch64 ;;
    *) fail "there is no archive for $(uname -m); build gradus from its sources" ;;
esac

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT INT TERM

get() {
    case $from in
        http://* | https://*)
            if command -v curl >/dev/null; then
                curl -fsSL -o "$work/$1" "$from/$1"
            elif command -v wget >/dev/null; then
                wget -q -O "$work/$1" "$from/$1"
            else
                fail "the download needs curl or wget; install one of them"
            fi
            ;;
        *) cp "$from/$1" "$work/$1" ;;
    esac || fail "$from/$1: cannot read this file"
}

get SHA256SUMS
archive=
while read -r _ name; do
    case $name in
        gradus-"$version"-"$machine"-*.tar.gz) archive=$name ;;
    esac
done <"$work/SHA256SUMS"
[ -n "$archive" ] || fail "SHA256SUMS has no archive of gradus $version for $machine"
get "$archive"
(cd "$work" && grep -F "  $archive" SHA256SUMS | sha256sum -c - >/dev/null 2>&1) ||
    fail "$archive: its checksum is not the one in SHA256SUMS; download it again"

tar -xzf "$work/$archive" -C "$work"
folder=$work/${archive%.tar.gz}
# A binary that does not run here is not installed.
"$folder/bin/gradus" --version >/dev/null 2>"$work/why" ||
    fail "the binary does not run on this machine: $(cat "$work/why")"
mkdir -p "$prefix"
(cd "$folder" && find . -type f | sed 's|^\./||' | sort) >"$work/files"
while IFS= read -r file; do
    mkdir -p "$prefix/$(dirname "$file")"
    # A new file takes the old one's place at once, also while an old binary runs.
    cp "$folder/$file" "$prefix/$file.new"
    mv -f "$prefix/$file.new" "$prefix/$file"
done <"$work/files"
mv -f "$work/files" "$list"
echo "installed gradus $version below $prefix"
case :${PATH:-}: in
    *:"$prefix/bin":*) ;;
    *) echo "add it to your path: export PATH=\"$prefix/bin:\$PATH\"" ;;
esac
