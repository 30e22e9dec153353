# shellcheck shell=bash
# The server under test: farflash on the host. The host's driver does what the guest asks of it
# through two files in a shared directory; each file appears whole, by rename.

ADDRESS=10.0.2.2
PORT=${TARGET_PORT:?}

# ask COMMAND [ARG...]: has the host run one command; prints its output, returns its status. Each of the host's answers has
# a bound, and this is behind all of them.
ask() {
    printf '%s\n' "$*" >/host/request.new
    mv /host/request.new /host/request
    local tries
    for ((tries = 0; tries < 3600; tries++)); do
        if [ -e /host/reply ]; then
            local status
            status=$(head -n 1 /host/reply)
            tail -n +2 /host/reply
            rm /host/reply
            return "$status"
        fi
        sleep 0.05
    done
    echo "the host did not answer: $*" >&2
    return 1
}

# volume_create NAME SIZE [BYTES of a sector]
volume_create() { ask create "$@" | jq -re .nqn; }
volume_resize() { ask resize "$1" "$2" >/dev/null; }
volume_delete() { ask delete "$1" >/dev/null; }
volume_allocated_bytes() { ask show "$1" | jq -re .allocated_bytes; }
server_restart() { ask restart "$1" "$2"; }
backend_has() { true; }
backend_start() { true; }
