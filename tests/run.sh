#!/usr/bin/env bash
# Make an environment if there is none, then check everything; the cheap checks come first.
#
#   tests/run.sh [--all] [pytest arguments]
#
#   --all             run the slow tests too
#   -k yarn, -x, ...  handed to pytest
#
#   ROPEPATCH_VENV    the environment's folder (default: .venv in the repository)
#   ROPEPATCH_PYTHON  the interpreter that makes it (default: python3)
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
venv=${ROPEPATCH_VENV:-$root/.venv}
python=${ROPEPATCH_PYTHON:-python3}
case $venv in /*) ;; *) venv=$PWD/$venv ;; esac
cd "$root"

marks='not network and not slow'
arguments=()
for argument in "$@"; do
    case $argument in
        --all) marks='not network' ;;
        -h | --help) sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "${BASH_SOURCE[0]}"; exit 0 ;;
        *) arguments+=("$argument") ;;
    esac
done

# --- the environment: kept while what it was made from stays the same ---

version=$("$python" -c 'import sys; print(sys.version)')
stamp=$({ cat pyproject.toml constraints.txt; echo "$root $version"; } |
    "$python" -c 'import hashlib, sys; print(hashlib.sha256(sys.stdin.buffer.read()).hexdigest())')

if [[ $(cat "$venv/ropepatch-stamp" 2>/dev/null) != "$stamp" ]]; then
    "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11) and "ropepatch needs Python 3.11 or later")'
    echo "Installing into $venv (the first time takes some minutes)"
    if [[ $("$venv/bin/python" -c 'import sys; print(sys.version)' 2>/dev/null) != "$version" ]]; then
        if [[ -n $(ls -A "$venv" 2>/dev/null) && ! -e $venv/pyvenv.cfg ]]; then
            echo "$venv holds other things; name another folder in ROPEPATCH_VENV" >&2
            exit 2
        fi
        "$python" -m venv --clear "$venv"
    fi
    rm -f "$venv/ropepatch-stamp"
    pip=("$venv/bin/python" -m pip install -qq --disable-pip-version-check --no-input -c constraints.txt)
    "${pip[@]}" torch # alone and first: a failure of the largest download is plain to see
    "${pip[@]}" -e '.[dev]'
    echo "$stamp" > "$venv/ropepatch-stamp"
fi
export PATH="$venv/bin:$PATH"
export VIRTUAL_ENV="$venv"

# --- the checks ---

export HF_HUB_OFFLINE="${HF_HUB_OFFLINE:-1}"
export TOKENIZERS_PARALLELISM=false
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}" # two processes of one thread each

ruff format --check
ruff check
mypy
lint-imports --no-logo
exec python -m pytest -n 2 --dist worksteal -m "$marks" ${arguments[@]+"${arguments[@]}"}
