#!/usr/bin/env bash
# Where no image registry can be reached: a stand-in for the base image of the Dockerfile, made of
# Debian's packages with Debian's Python, its headers, as the base image has them, and this
# machine's certificates. For tests of the image only; does nothing if the engine has that image.
# Needs mmdebstrap, and root.
set -euo pipefail
engine=${CONTAINER_ENGINE:-podman}
dockerfile=$(dirname "$0")/../Dockerfile
base=$(sed -nE 's#^FROM ([^ ]+/[^ ]+) .*#\1#p' "$dockerfile" | sort -u)
if "$engine" image inspect "$base" >/dev/null 2>&1; then
    exit 0
fi
directory=$(mktemp -d)
trap 'rm -rf "$directory"' EXIT
certificates=etc/ssl/certs/ca-certificates.crt
# In hooks $1 is the new root.
# shellcheck disable=SC2016
mmdebstrap --quiet --variant=minbase --include=ca-certificates,python3,python3-pip,python3-venv,libpython3-dev \
    --dpkgopt='path-exclude=/usr/share/doc/*' --dpkgopt='path-exclude=/usr/share/man/*' \
    --customize-hook="cp -L /$certificates \"\$1\"/$certificates" \
    --customize-hook="printf '[global]\ncert = /$certificates\n' >\"\$1\"/etc/pip.conf" \
    --customize-hook='rm -f "$1"/usr/lib/python3*/EXTERNALLY-MANAGED' \
    --customize-hook='ln -s python3 "$1"/usr/bin/python' \
    bookworm "$directory/base.tar"
"$engine" import --change 'ENV LANG=C.UTF-8' --change 'CMD ["python3"]' "$directory/base.tar" "$base" >/dev/null
printf 'made a stand-in for %s\n' "$base"
