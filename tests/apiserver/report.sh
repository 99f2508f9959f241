# What is checked is told line by line, and counted.
# shellcheck shell=sh disable=SC2154

passed=0 failed=0

ok() { passed=$((passed + 1)); echo "ok       $1"; }

bad() {
    failed=$((failed + 1))
    echo "FAILED   $1"
    sed 's/^/         | /' "$folder/said"
}

# The command succeeds, and warns of nothing.
passes() {
    what=$1; shift
    if "$@" >"$folder/said" 2>&1 && ! grep --quiet '^Warning' "$folder/said"; then ok "$what"; else bad "$what"; fi
}

# The command says this, however it ends.
says() {
    what=$1 words=$2; shift 2
    "$@" >"$folder/said" 2>&1 || true
    if grep --quiet --fixed-strings -- "$words" "$folder/said"; then ok "$what"; else bad "$what"; fi
}

# Within so many seconds.
until_true() {
    ends=$(($(date +%s) + $1)); shift
    until "$@" >/dev/null 2>&1; do
        [ "$(date +%s)" -lt "$ends" ] || return 1
        sleep 0.2
    done
}

comes() {
    what=$1; shift
    echo "never came: $*" >"$folder/said"
    if until_true 60 "$@"; then ok "$what"; else bad "$what"; fi
}
