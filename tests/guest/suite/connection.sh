# shellcheck shell=bash
# Connecting and finding drives with nvme-cli.

# connect NQN [OPTION...]: connects with one I/O queue per processor and prints the controller's name.
#
# The kernel retries for five minutes when the server goes away, so an I/O across a restart waits.
connect() {
    local nqn=$1 before after
    shift
    # A test that failed half-way may have left its connection behind.
    [ -z "$(controller_of "$nqn")" ] || disconnect "$nqn"
    before=$(ls /sys/class/nvme 2>/dev/null | sort)
    nvme connect -t tcp -a "$ADDRESS" -s "$PORT" -n "$nqn" --ctrl-loss-tmo=300 --reconnect-delay=1 "$@" >/dev/null || return 1
    after=$(ls /sys/class/nvme | sort)
    comm -13 <(echo "$before") <(echo "$after") | head -n 1
}

disconnect() {
    nvme disconnect -n "$1" >/dev/null
}

controller_state() {
    cat "/sys/class/nvme/$1/state"
}

# The NQN that a controller serves.
controller_of() {
    local entry
    for entry in /sys/class/nvme/nvme*; do
        [ "$(cat "$entry/subsysnqn" 2>/dev/null)" != "$1" ] || { echo "${entry##*/}"; return 0; }
    done
    return 1
}

# The block device of a volume's one namespace, /dev/nvmeXnY.
#
# Under native multipath it hangs off the subsystem, without it off the controller.
drive_of() {
    local subsystem entry
    for subsystem in /sys/class/nvme-subsystem/nvme-subsys*; do
        [ "$(cat "$subsystem/subsysnqn" 2>/dev/null)" = "$1" ] || continue
        for entry in "$subsystem"/nvme*n* "$subsystem"/nvme*/nvme*n*; do
            [[ ${entry##*/} =~ ^nvme[0-9]+n[0-9]+$ ]] && [ -b "/dev/${entry##*/}" ] && { echo "/dev/${entry##*/}"; return 0; }
        done
    done
    return 1
}

drive_is_there() { drive_of "$1" >/dev/null; }

# attach NQN [OPTION...]: connects, waits for the drive, prints its path.
attach() {
    connect "$@" >/dev/null
    within 20 drive_is_there "$1"
    drive_of "$1"
}

# says_where_it_is NQN SHOWN: each field of the log page Failure Domain (0xe0) of a volume that is connected is what the API shows.
says_where_it_is() {
    local shown=$2 labels id
    shown() { jq -r "$1" <<<"$shown"; }
    nvme get-log "/dev/$(controller_of "$1")" --log-id=0xe0 --log-len=4096 --raw-binary >/tmp/domain
    expect "length" "$(stat -c %s /tmp/domain)" 4096
    expect "how it begins" "$(head -c 8 /tmp/domain)" farflash
    expect "version" "$(domain_number 8 2)" 1
    expect "health" "$(domain_number 10 1)" "$(shown '{good: 1, degraded: 2, failed: 3}[.drive.health // ""] // 0')"
    expect "core" "$(domain_number 12 4)" "$(shown .portal.core)"
    id=$(shown .drive.id)
    expect "id of the device" "$(domain_hex 32 16)" "${id//-/}"
    expect "name of the host" "$(domain_text 48 256)" "$(shown .host)"
    expect "name of the device" "$(domain_text 304 256)" "$(shown .device)"
    expect "model" "$(domain_text 560 80)" "$(shown '.drive.model // ""')"
    expect "serial number" "$(domain_text 640 80)" "$(shown '.drive.serial // ""')"
    labels=$(domain_number 720 2)
    expect "number of labels" "$labels" "$(shown '.labels | length')"
    expect "labels left out" "$(domain_number 722 2)" 0
    expect "labels" "$(tail -c +769 /tmp/domain | tr '\0' '\n' | head -n "$labels" | sort)" \
        "$(shown '.labels | to_entries[] | "\(.key)=\(.value)"' | sort)"
    expect "reserved bytes" "$({ domain_hex 11 1; domain_hex 724 44; } | tr -d '0\n')" ""
}
# What lies in that page from OFFSET on, of LENGTH bytes.
domain_number() { od -An -v -tu"$2" --endian=little -j"$1" -N"$2" /tmp/domain | tr -d ' '; }
domain_hex() { od -An -v -tx1 -j"$1" -N"$2" /tmp/domain | tr -d ' \n'; }
domain_text() { tail -c +$(($1 + 1)) /tmp/domain | head -c "$2" | tr -d '\0'; }

# waits_for_device WORDS [SECRET-OPTION]: the server restarts without the volume's device, which comes seconds later. The
# host is refused meanwhile, says WORDS to that, and comes again: it sees a pause, not an error. With SECRET-OPTION it
# authenticates with the volume's token.
waits_for_device() {
    local words=$1 drive log made nqn secret=() mark="absence $EPOCHREALTIME"
    shift
    made=$(ask create-far far 64MiB)
    nqn=$(jq -re .nqn <<<"$made")
    [ $# -eq 0 ] || secret=("$1" "$(jq -re .token <<<"$made")")
    mark_log "$mark"
    drive=$(attach "$nqn" "${secret[@]}")
    dd if=/dev/urandom of=/tmp/random bs=1M count=4 status=none
    dd if=/tmp/random of="$drive" bs=1M oflag=direct status=none
    ask absent 4
    timeout 60 dd if="$drive" bs=1M count=4 iflag=direct status=none | cmp - /tmp/random
    expect state "$(controller_state "$(controller_of "$nqn")")" live
    disconnect "$nqn"
    log=$(log_since "$mark")
    grep -q "$words" <<<"$log" || { echo "the host was not refused: $log"; return 1; }
    no_io_errors_since "$mark"
    volume_delete far
}
