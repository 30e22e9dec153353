# shellcheck shell=bash
# The reference: the guest kernel's own target over loopback, on sparse files. It shows that the
# tests themselves are right: what fails against this target as well is a fault of the test.

ADDRESS=127.0.0.1
PORT=4420
CONFIG=/sys/kernel/config/nvmet
FILES=/tmp/volumes

backend_start() {
    modprobe -a nvmet nvmet-tcp
    mkdir -p $FILES
    mkdir $CONFIG/ports/1
    echo tcp >$CONFIG/ports/1/addr_trtype
    echo ipv4 >$CONFIG/ports/1/addr_adrfam
    echo $ADDRESS >$CONFIG/ports/1/addr_traddr
    echo $PORT >$CONFIG/ports/1/addr_trsvcid
}

nqn_of() { echo "nqn.2014-08.org.example:$1"; }

volume_create() {
    local subsystem
    subsystem=$CONFIG/subsystems/$(nqn_of "$1")
    truncate -s "${2/iB/}" "$FILES/$1"
    mkdir "$subsystem"
    echo 1 >"$subsystem/attr_allow_any_host"
    mkdir "$subsystem/namespaces/1"
    echo "$FILES/$1" >"$subsystem/namespaces/1/device_path"
    echo 1 >"$subsystem/namespaces/1/buffered_io"
    echo 1 >"$subsystem/namespaces/1/enable"
    ln -s "$subsystem" $CONFIG/ports/1/subsystems/
    nqn_of "$1"
}
volume_resize() {
    truncate -s "${2/iB/}" "$FILES/$1"
    echo 1 >"$CONFIG/subsystems/$(nqn_of "$1")/namespaces/1/revalidate_size"
}
volume_delete() {
    local nqn
    nqn=$(nqn_of "$1")
    rm "$CONFIG/ports/1/subsystems/$nqn"
    rmdir "$CONFIG/subsystems/$nqn/namespaces/1" "$CONFIG/subsystems/$nqn"
    rm "$FILES/$1"
}
volume_allocated_bytes() { echo $(($(stat -c %b "$FILES/$1") * 512)); }
# Taking a subsystem off its port cuts every connection to it. That is all there is to an end, whatever the signal.
server_restart() {
    local path nqns=()
    for path in $CONFIG/ports/1/subsystems/*; do
        nqns+=("${path##*/}")
        rm "$path"
    done
    sleep "$2"
    for path in "${nqns[@]}"; do ln -s "$CONFIG/subsystems/$path" $CONFIG/ports/1/subsystems/; done
}
# It has neither Compare nor Verify nor sectors of 512 bytes in blocks of 4096, over tmpfs its Write Zeroes fails (the kernel then writes zeroes itself), and it is
# run without authentication.
backend_has() { [[ " compare verify write-zeroes authentication failure-domain discovery two-hosts absence sectors " != *" $1 "* ]]; }
