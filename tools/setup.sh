#!/usr/bin/env bash
# Makes .venv and installs one of requirements/*.txt into it, by hash.
# Needs Python >= 3.11 and nothing else; takes uv when it is there.
#   usage: tools/setup.sh base|dev|docs   PYTHON=/path/to/python to choose one
set -euo pipefail
cd "$(dirname "$0")/.."
requirements="requirements/${1:?base, dev or docs}.txt"

say() { printf 'setup: %s\n' "$*" >&2; }

find_python() {
    local name
    for name in ${PYTHON:-python3.13 python3.12 python3.11 python3 python}; do
        if "$name" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
            command -v "$name"
            return
        fi
    done
    say "no Python >= 3.11 found: apt-get install python3, or set PYTHON=/path/to/python"
    return 1
}

# Debian keeps ensurepip, which venv needs, in a package of its own.
make_venv() {
    local python=$1
    if command -v uv >/dev/null && uv venv -q --clear --seed --python "$python" .venv 2>/dev/null; then
        return
    fi
    rm -rf .venv
    if "$python" -c 'import ensurepip' 2>/dev/null && "$python" -m venv .venv; then
        return
    fi
    rm -rf .venv
    if "$python" -m virtualenv -q .venv 2>/dev/null; then
        return
    fi
    rm -rf .venv
    say "$python cannot make a virtual environment: apt-get install python3-venv"
    return 1
}

# Spark, which the tests of the data pipeline run on, needs Java 17 or newer.
has_java() {
    local java=java version
    [ -z "${JAVA_HOME:-}" ] || java=$JAVA_HOME/bin/java
    version=$("$java" -version 2>&1 | sed -n 's/.*version "\([0-9]*\).*/\1/p' | head -n 1)
    [ "${version:-0}" -ge 17 ]
}

install() {
    local requirements=$1
    say "installing $requirements"
    # uv may be configured for another index than pip; whichever works is good, the hashes decide.
    # The files name every package, so nothing is resolved: some releases of pip take a newer
    # version for a dependency with an extra than the file pins, and then refuse it.
    if command -v uv >/dev/null &&
        uv pip install -q --no-deps --python .venv/bin/python --require-hashes -r "$requirements"; then
        return
    fi
    .venv/bin/python -m pip install -q --disable-pip-version-check --no-input --no-deps \
        --require-hashes -r "$requirements"
}

if ! .venv/bin/python -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null ||
    ! .venv/bin/python -m pip --version >/dev/null 2>&1; then
    python=$(find_python)
    say "making .venv with $("$python" --version)"
    make_venv "$python"
fi
install "$requirements"
if [ "$1" = dev ] && ! has_java; then
    install requirements/java.txt
fi
