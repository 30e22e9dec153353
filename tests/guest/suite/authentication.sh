# shellcheck shell=bash
# Volumes that want a token, and volumes that are not for everybody: the kernel's own DH-HMAC-CHAP
# against the server's. Comes last: the server runs without authentication before it.

authentication_tests() {
    if ! backend_has authentication; then
        check_if authentication "a volume is opened with its token" false
        return
    fi
    if ! kernel_authenticates; then
        kernel_cannot_authenticate
        return
    fi
    ask auth on >/dev/null
    local made
    made=$(ask create locked 64MiB)
    LOCKED=$(jq -re .nqn <<<"$made")
    TOKEN=$(jq -re .token <<<"$made")
    CONTROLLER_TOKEN=$(jq -re .controller_token <<<"$made")
    made=$(ask create other 64MiB)
    OTHER=$(jq -re .nqn <<<"$made")
    OTHER_TOKEN=$(jq -re .token <<<"$made")
    check "a volume is opened with its token" token_opens
    check "a host has the server prove itself" server_proves_itself
    check "connect-all and connect find tokens in a file" tokens_are_in_a_file
    check "no token, a false one, or a false server: refused" others_are_refused
    check "a restricted volume is not there for other hosts" restricted_is_hidden
    check "a host that authenticates once more goes on, or ends" host_authenticates_again
    check "new tokens cut off who has the old" new_tokens_cut_off
    check "a host waits for a device that comes later than the server, and authenticates" \
        waits_for_device "authentication failed" --dhchap-secret
    volume_delete locked
    volume_delete other
    agree_on "$EXCHANGES"
    ask auth off >/dev/null
}

# agree_on EXCHANGES
agree_on() {
    local hash group
    while read -r hash group; do
        check "kernel and server agree on $hash and $group" both_agree "$hash" "$group"
    done <<<"$1"
}

# Debian's kernel of bookworm, 6.1, cannot. It takes the options for it all the same.
kernel_authenticates() { grep -q ' nvme_auth_negotiate' /proc/kallsyms; }

kernel_cannot_authenticate() {
    skip "all but refusals: this kernel is built without NVMe authentication (CONFIG_NVME_AUTH)"
    ask auth on >/dev/null
    local made
    made=$(ask create locked 64MiB)
    LOCKED=$(jq -re .nqn <<<"$made")
    TOKEN=$(jq -re .token <<<"$made")
    check "a kernel that cannot authenticate is refused, and says why" says_that_it_cannot
    volume_delete locked
    ask auth off >/dev/null
}

says_that_it_cannot() {
    mark_log cannot
    refuses
    refuses --dhchap-secret "$TOKEN"
    said_since cannot "authentication setup failed" || { log_since cannot; return 1; }
}

writes_and_reads() {
    dd if=/dev/urandom of=/tmp/random bs=1M count=4 status=none
    dd if=/tmp/random of="$1" bs=1M oflag=direct status=none
    dd if="$1" bs=1M count=4 iflag=direct status=none | cmp - /tmp/random
}

token_opens() {
    local drive
    drive=$(attach "$LOCKED" --dhchap-secret "$TOKEN")
    writes_and_reads "$drive"
    disconnect "$LOCKED"
}

server_proves_itself() {
    local drive
    drive=$(attach "$LOCKED" --dhchap-secret "$TOKEN" --dhchap-ctrl-secret "$CONTROLLER_TOKEN")
    writes_and_reads "$drive"
    disconnect "$LOCKED"
}

# As docs/operations/access.md shows it. Of `other` there is no token in the file, which is so left alone.
write_config() {
    cat >"$1" <<JSON
[ { "hostnqn": "$(cat /etc/nvme/hostnqn)", "hostid": "$(cat /etc/nvme/hostid)",
    "subsystems": [ { "nqn": "$LOCKED", "ports": [
        { "transport": "tcp", "traddr": "$ADDRESS", "trsvcid": "$PORT",
          "dhchap_key": "$TOKEN", "dhchap_ctrl_key": "$CONTROLLER_TOKEN" } ] } ] } ]
JSON
}

is_opened_by_file() {
    local sysfs
    within 20 drive_is_there "$LOCKED"
    sysfs=/sys/class/nvme/$(controller_of "$LOCKED")
    expect "the secret" "$(cat "$sysfs/dhchap_secret")" "$TOKEN"
    expect "the controller's" "$(cat "$sysfs/dhchap_ctrl_secret")" "$CONTROLLER_TOKEN"
}

tokens_are_in_a_file() {
    # What is in it would be taken for what later tests say.
    trap 'rm -f /etc/nvme/config.json' EXIT
    write_config /etc/nvme/config.json
    nvme connect-all -t tcp -a "$ADDRESS" -s "$PORT"
    is_opened_by_file
    writes_and_reads "$(drive_of "$LOCKED")"
    if controller_of "$OTHER"; then
        echo "a volume was opened whose token is nowhere"
        return 1
    fi
    disconnect "$LOCKED"
    nvme connect -t tcp -a "$ADDRESS" -s "$PORT" -n "$LOCKED" --config /etc/nvme/config.json
    is_opened_by_file
    disconnect "$LOCKED"
}

refuses() {
    if connect "$LOCKED" "$@"; then
        echo "it let in: $*"
        return 1
    fi
}

others_are_refused() {
    refuses
    refuses --dhchap-secret "$OTHER_TOKEN"
    refuses --dhchap-secret "$TOKEN" --dhchap-ctrl-secret "$OTHER_TOKEN"
    # No other host is put off.
    sleep 11
    token_opens
}

discovered() { nvme discover -t tcp -a "$ADDRESS" -s "$PORT" --hostnqn "$1" -o json | grep -c "$LOCKED"; }

restricted_is_hidden() {
    local us=nqn.2014-08.org.nvmexpress:uuid:11111111-2222-3333-4444-555555555555
    local them=nqn.2014-08.org.nvmexpress:uuid:99999999-2222-3333-4444-555555555555
    ask restrict locked --host $us >/dev/null
    expect "what we discover" "$(discovered $us)" 1
    expect "what they discover" "$(discovered $them)" 0
    attach "$LOCKED" --hostnqn $us --dhchap-secret "$TOKEN"
    disconnect "$LOCKED"
    refuses --hostnqn $them --dhchap-secret "$TOKEN"
    ask restrict locked --any-host >/dev/null
}

new_tokens_cut_off() {
    local drive new
    drive=$(attach "$LOCKED" --dhchap-secret "$TOKEN" --ctrl-loss-tmo=3)
    new=$(ask change-auth locked --cut | jq -re .token)
    if timeout 30 dd if="$drive" bs=4096 count=1 iflag=direct of=/dev/null; then
        echo "the old token still reads"
        return 1
    fi
    within 20 not_there "$LOCKED"
    sleep 11
    drive=$(attach "$LOCKED" --dhchap-secret "$new")
    writes_and_reads "$drive"
    disconnect "$LOCKED"
}

# The kernel authenticates again on all its open queues when a secret is written to it.
host_authenticates_again() {
    local drive sysfs
    drive=$(attach "$LOCKED" --dhchap-secret "$TOKEN" --ctrl-loss-tmo=3)
    sysfs=/sys/class/nvme/$(controller_of "$LOCKED")
    mark_log again
    printf '%s' "$TOKEN" >"$sysfs/dhchap_secret"
    within 30 said_since again "re-authenticating"
    # It says so of the admin queue only. Of the others one hears if they fail.
    within 30 said_since again "qid 0: authenticated"
    sleep 2
    writes_and_reads "$drive"
    if said_since again -E "error recovery|authentication failed|error .* setting up"; then
        log_since again
        return 1
    fi
    no_io_errors_since again
    mark_log false
    printf '%s' "$OTHER_TOKEN" >"$sysfs/dhchap_secret"
    within 30 said_since false "authentication failed"
    within 30 not_there "$LOCKED"
    # No other host is put off.
    sleep 11
}

said_since() { log_since "$1" | grep -q "${@:2}"; }

# Each hash function, with and without a group, and both sides prove themselves. What is left is in groups.sh.
EXCHANGES="sha384 null
sha256 ffdhe2048
sha384 ffdhe3072
sha512 ffdhe4096"

both_agree() {
    ask auth on "$1" "$2" >/dev/null
    local made nqn drive
    made=$(ask create agreed 64MiB)
    nqn=$(jq -re .nqn <<<"$made")
    # One I/O queue: the emulated processor takes seconds for each in the largest group.
    drive=$(attach "$nqn" --nr-io-queues=1 --dhchap-secret "$(jq -re .token <<<"$made")" \
        --dhchap-ctrl-secret "$(jq -re .controller_token <<<"$made")")
    writes_and_reads "$drive"
    disconnect "$nqn"
    if connect "$nqn" --dhchap-secret "$(jq -re .token <<<"$made")" --dhchap-ctrl-secret "$OTHER_TOKEN"; then
        echo "it believed a server that does not know its secret"
        return 1
    fi
    volume_delete agreed
}

not_there() { ! controller_of "$1" >/dev/null; }
