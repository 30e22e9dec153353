# shellcheck shell=bash
# Shared by both boots of the machine that is tuned.
. /suite/lib.sh
export PATH=/usr/local/bin:$PATH
tune() { farflash tune "$@"; }
cores=1-7
tenants=7
wishes=(--cores $cores --tenants $tenants)

# contents FILE: the values of all files that the plan in FILE names, as they are now.
contents() {
    jq -r '.[].target | objects | .file.path // empty' "$1" | grep '^/' | sort -u | xargs grep -H -s '' || true
}
of() { jq -r "[.[] | select(.setting == \"$2\")] | $3" "$1"; }
# The card with a queue for each CPU.
queues_card() {
    local card
    for card in /sys/class/net/*; do
        [ "$(ls -d "$card"/queues/rx-* 2>/dev/null | wc -l)" != 8 ] || basename "$card"
    done
}
summary() {
    echo "$PASSED passed, $FAILED failed, $SKIPPED skipped"
    [ "$FAILED" -eq 0 ] && [ "$PASSED" -gt 0 ]
}
