#!/usr/bin/env bash
# Tries the packages of scripts/package.sh in bare systems: installs the .deb, or unpacks the .tar.zst, in a root that
# debootstrap makes, and talks to the program there. Minutes, and needs root: run by hand.
#   scripts/package_check.sh [SUITE...]       Debian suites; default: bookworm trixie
# FACET_ROOTS: where the roots are kept (default: a temporary folder); FACET_MIRROR: where packages come from.
set -euo pipefail
cd "$(dirname "$0")/.."
[ "$(id -u)" -eq 0 ] || { echo "run as root: debootstrap and chroot need it" >&2; exit 1; }
source scripts/setup.sh
facet_install debootstrap zstd
roots=${FACET_ROOTS:-$(mktemp -d)}
mirror=${FACET_MIRROR:-http://deb.debian.org/debian}
deb=$(echo build/package/facet*.deb) archive=$(echo build/package/facet-*.tar.zst)  # of either program
[ -f "$deb" ] && [ -f "$archive" ] || { echo "no packages in build/package: run scripts/package.sh" >&2; exit 1; }

# talk ROOT PROGRAM: a short chat, without the build's own files in reach.
talk() {
  local said
  said=$(printf '%s\n' 'Remember that my name is Mira.' 'What is my name?' 'What is 17 + 25?' |
    chroot "$1" env -i PATH=/usr/bin:/bin "$2" chat --temp 0 -c 2048 2>&1) || true
  for want in 'Your name is Mira.' '17 + 25 = 42'; do
    grep -qF "$want" <<<"$said" || { echo "$2 in $1 did not say: $want"; echo "$said"; return 1; }
  done
}

for suite in "${@:-bookworm trixie}"; do for s in $suite; do
  root=$roots/$s
  [ -e "$root/bin/sh" ] || debootstrap --variant=minbase "$s" "$root" "$mirror" >"$roots/$s.log" 2>&1 ||
    { tail -n 5 "$roots/$s.log"; exit 1; }
  cp "$deb" "$root/facet.deb"
  chroot "$root" dpkg -i /facet.deb >/dev/null
  talk "$root" facet
  chroot "$root" dpkg -P "$(dpkg-deb -f "$deb" Package)" >/dev/null
  [ ! -e "$root/usr/share/facet" ] || { echo "$s: files are left after removal"; exit 1; }
  rm -rf "$root/opt/facet" && mkdir -p "$root/opt/facet"
  tar --zstd -xf "$archive" -C "$root/opt/facet" --strip-components=1
  talk "$root" /opt/facet/bin/facet
  echo "$s, $(chroot "$root" /bin/sh -c '. /etc/os-release; echo "$PRETTY_NAME"'), $(chroot "$root" ldd --version | head -n 1): both packages talk"
done; done
