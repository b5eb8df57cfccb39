#!/usr/bin/env bash
# Builds the CPU image of deploy/Dockerfile, unchanged, where there is no container engine, and talks to it: a minimal
# Debian by debootstrap stands under the names of the Dockerfile's base images; buildah builds, umoci unpacks, chroot runs
# --version, a chat, and a server with the image's health check, as the image's user. Minutes, and needs root: by hand.
#   scripts/image_check.sh
# Passed on Debian 12 with buildah 1.28 and umoci 0.4: 247 MB, 20 minutes of CPU time.
# FACET_ROOTS: where the root and the image are kept (default: a temporary folder, removed at the end); FACET_MIRROR:
# where packages come from. Exit code 77: the tools cannot be had, or the kernel does not let them work.
set -euo pipefail
cd "$(dirname "$0")/.."
skip() { echo "skipped: $*"; exit 77; }
[ "$(id -u)" -eq 0 ] || skip "run as root: debootstrap and chroot need it"
source scripts/setup.sh
facet_install buildah umoci debootstrap crun || skip "buildah, umoci, debootstrap and crun are not to be had (Debian 12)"
roots=${FACET_ROOTS:-$(mktemp -d)} mirror=${FACET_MIRROR:-http://deb.debian.org/debian}
[ -n "${FACET_ROOTS:-}" ] || trap 'rm -rf "$roots"' EXIT
work=$roots/image
mkdir -p "$work"
b() {
  local command=$1
  shift
  buildah --root "$work/storage" --runroot "$work/run" --storage-driver vfs "$command" "$@"
}

base=$roots/bookworm-image
[ -e "$base/bin/sh" ] || debootstrap --variant=minbase bookworm "$base" "$mirror" >"$work/base.log" 2>&1 ||
  { tail -n 3 "$work/base.log"; skip "debootstrap made no Debian 12"; }
for name in debian:12 debian:12-slim; do
  b images --format '{{.Name}}:{{.Tag}}' 2>/dev/null | grep -qx "docker.io/library/$name" && continue
  from=$(b from scratch) || skip "buildah cannot work here"
  b add -q "$from" "$base" / >/dev/null
  b commit -q "$from" "docker.io/library/$name" >/dev/null
  b rm "$from" >/dev/null
done

echo "building the image"
b build --isolation chroot --pull-never --network host -f deploy/Dockerfile -t facet:cpu . >"$work/build.log" 2>&1 ||
  { tail -n 20 "$work/build.log"; exit 1; }
rm -rf "$work/oci" "$work/bundle"
b push -q facet:cpu "oci:$work/oci:cpu"
umoci unpack --image "$work/oci:cpu" "$work/bundle" >/dev/null 2>&1
root=$work/bundle/rootfs config=$work/bundle/config.json
user=$(python3 -c 'import json, sys; print(json.load(open(sys.argv[1]))["process"]["user"]["uid"])' "$config")
words=$(python3 -c 'import json, sys; print(*json.load(open(sys.argv[1]))["process"]["args"])' "$config")
[ "$user" = 10001 ] && [ "$words" = "facet doctor" ] || { echo "expected user 10001 and facet doctor, found $user, $words"; exit 1; }

in_image() { chroot --userspec="$user:$user" "$root" env -i PATH=/usr/local/bin:/usr/bin:/bin "$@"; }
in_image facet --version
said=$(printf '%s\n' 'Remember that my name is Mira.' 'What is my name?' | in_image facet chat --temp 0 -c 2048 --no-history 2>&1) || true
grep -qF 'Your name is Mira.' <<<"$said" || { echo "the chat did not say: Your name is Mira."; echo "$said"; exit 1; }

# As `docker run facet:cpu serve`, and its health check.
check=$(sed -n 's/^HEALTHCHECK .*CMD \(\[.*\]\)$/\1/p' deploy/Dockerfile)
mapfile -t words < <(python3 -c 'import json, sys; print(*json.loads(sys.argv[1]), sep="\n")' "$check")
healthy() { in_image "${words[@]}" 2>/dev/null; }
healthy && { echo "something listens on port 8080 already: the health check cannot be tried"; exit 1; }
# Not through in_image: what is killed is the server, not a shell around it.
chroot --userspec="$user:$user" "$root" env -i PATH=/usr/local/bin:/usr/bin:/bin facet serve -c 2048 >"$work/serve.log" 2>&1 &
server=$!
for _ in $(seq 50); do healthy && break || sleep 0.2; done
rc=0
healthy || rc=1
kill "$server" && wait "$server" || true
[ $rc -eq 0 ] || { echo "the health check failed"; cat "$work/serve.log"; exit 1; }
healthy && { echo "the health check passes without a server"; exit 1; }
echo "image: facet:cpu as user $user, $(du -sm "$root" | cut -f 1) MB: it answers, and its health check tells"
