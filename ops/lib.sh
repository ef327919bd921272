# Shared by the scripts of ops/. Sourced by bash; must not know what a script is for.
set -euo pipefail
export LC_ALL=C.UTF-8
EF_ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
export EF_ROOT

say() { printf '%s\n' "everflame: $*" >&2; }
die() { say "$*"; exit 1; }

# Runs a command as root: directly, or by sudo. Says what is missing when neither works.
as_root() {
    if [ "$(id -u)" = 0 ]; then
        "$@"
    elif command -v sudo >/dev/null 2>&1; then
        sudo -n "$@" 2>/dev/null || sudo "$@"
    else
        die "this needs root or sudo: $*"
    fi
}
