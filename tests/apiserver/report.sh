# Reports each check in a line, and counts them.
# shellcheck shell=sh disable=SC2154

passed=0 failed=0

ok() { passed=$((passed + 1)); echo "ok       $1"; }

bad() {
    failed=$((failed + 1))
    echo "FAILED   $1"
    sed 's/^/         | /' "$folder/output"
}

# The command succeeds, without a warning.
passes() {
    what=$1; shift
    if "$@" >"$folder/output" 2>&1 && ! grep --quiet '^Warning' "$folder/output"; then ok "$what"; else bad "$what"; fi
}

# The command prints this text, with any exit code.
prints() {
    what=$1 words=$2; shift 2
    "$@" >"$folder/output" 2>&1 || true
    if grep --quiet --fixed-strings -- "$words" "$folder/output"; then ok "$what"; else bad "$what"; fi
}

# Repeats the command until it succeeds, for at most $1 seconds.
until_true() {
    ends=$(($(date +%s) + $1)); shift
    until "$@" >/dev/null 2>&1; do
        [ "$(date +%s)" -lt "$ends" ] || return 1
        sleep 0.2
    done
}

follows() {
    what=$1; shift
    echo "did not succeed in time: $*" >"$folder/output"
    if until_true 60 "$@"; then ok "$what"; else bad "$what"; fi
}
