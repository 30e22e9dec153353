# shellcheck shell=bash
# The guest suite's own small test harness: named tests, a log per test, one summary.

PASSED=0 FAILED=0 SKIPPED=0
LOG=/tmp/test.log

# begin STEP: tells the host what is done from now on, so that it can say where a guest hangs.
begin() { echo "$1" >"$STEP_PORT"; }

# check NAME FUNCTION [ARG...]: runs one test in a subshell. Any command that fails ends it, and then
# its log is shown.
#
# The subshell must not stand in a condition: bash would then ignore `set -e` inside.
check() {
    local name=$1 started=$EPOCHREALTIME status
    shift
    begin "$name"
    (
        set -euo pipefail
        "$@"
    ) >"$LOG" 2>&1
    status=$?
    local seconds
    seconds=$(awk -v a="$started" -v b="$EPOCHREALTIME" 'BEGIN { printf "%.1f", b - a }')
    if [ $status -eq 0 ]; then
        PASSED=$((PASSED + 1))
        echo "ok      $name ($seconds s)"
    else
        FAILED=$((FAILED + 1))
        echo "FAILED  $name ($seconds s, status $status)"
        sed 's/^/        | /' "$LOG" | tail -n 60
        echo "        | the kernel's last words:"
        dmesg | tail -n 6 | sed 's/^/        | /'
    fi
}

# check_if FEATURE NAME FUNCTION [ARG...]: the same, if the target has the feature.
check_if() {
    local feature=$1
    shift
    if backend_has "$feature"; then
        check "$@"
    else
        skip "$1: this target has no working $feature"
    fi
}

# skip WHAT: counts as skipped what cannot be tested, and says why.
skip() {
    SKIPPED=$((SKIPPED + 1))
    echo "skipped $1"
}

# section FILE FUNCTION: runs one file's tests, unless ONLY names other files.
section() {
    if [ -n "${ONLY:-}" ] && [[ " $ONLY " != *" $1 "* ]]; then return; fi
    begin "$1"
    . "/suite/$1.sh"
    "$2"
}

section_if_named() { [ -z "${ONLY:-}" ] || section "$@"; }

# expect WHAT ACTUAL WANTED
expect() {
    [ "$2" = "$3" ] || { echo "$1 is '$2', not '$3'"; return 1; }
}

# within SECONDS COMMAND...: polls until the command succeeds.
within() {
    local deadline=$((SECONDS + $1))
    shift
    until "$@"; do
        [ $SECONDS -lt $deadline ] || { echo "gave up waiting for: $*"; return 1; }
        sleep 0.1
    done
}

# errors_since MARK: I/O errors in the kernel's log behind a mark that `mark_log` wrote.
mark_log() {
    echo "suite: $1" >/dev/kmsg
}
# The kernel's log from the last such mark on. Without the mark, which the kernel may have forgotten,
# nothing can be said.
log_since() {
    dmesg | awk -v mark="suite: $1" '
        index($0, mark) { found = 1; text = "" }
        found { text = text $0 "\n" }
        END { printf "%s", text; exit !found }' || { echo "no mark \"$1\" in the kernel's log" >&2; return 1; }
}
no_io_errors_since() {
    local log
    log=$(log_since "$1") || return 1
    if grep -iE 'I/O error|Buffer I/O|critical .* error|EXT4-fs error|XFS .*(error|corrupt)' <<<"$log"; then
        echo "the kernel reported the errors above"
        return 1
    fi
}
