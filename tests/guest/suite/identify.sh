# shellcheck shell=bash
# What the controller and the namespace say of themselves.

identify_tests() {
    NQN=$(volume_create identify 1GiB)
    check "connect brings up a controller and its drive" connect_brings_up
    CONTROLLER=$(controller_of "$NQN") DRIVE=$(drive_of "$NQN")
    check "id-ctrl: the fields that hosts rely on are sound" id_ctrl
    check "id-ns: size and block size are the volume's" id_ns
    check "ns-descs: the namespace has an identifier" ns_descs
    check "list shows the drive" list_shows
    check "smart-log counts what was read and written" smart_log_counts
    check "error, firmware, effects and changed namespaces logs are answered" other_logs
    check_if failure-domain "get-log 0xe0 says where the volume is" failure_domain_log
    check "get-feature: number of queues, keep alive" features
    check "disconnect takes the drive away" disconnect_removes
    volume_delete identify
}

connect_brings_up() {
    attach "$NQN"
    expect state "$(controller_state "$(controller_of "$NQN")")" live
}

id_ctrl() {
    nvme id-ctrl "/dev/$CONTROLLER" -o json | tee /tmp/id-ctrl.json
    expect subnqn "$(jq -r .subnqn /tmp/id-ctrl.json)" "$NQN"
    jq -e '.cntrltype == 1 and .ioccsz >= 4 and .maxcmd > 0 and .nn >= 1 and .ver >= 66304' /tmp/id-ctrl.json
    # MDTS counts in memory pages of 4 KiB: 8 is 1 MiB, 0 is no limit.
    jq -e '.mdts == 0 or .mdts >= 8' /tmp/id-ctrl.json
}

id_ns() {
    nvme id-ns "$DRIVE" -o json | tee /tmp/id-ns.json
    local block_size
    block_size=$(blockdev --getss "$DRIVE")
    expect "size in bytes" $(($(jq .nsze /tmp/id-ns.json) * block_size)) $((1 << 30))
    expect "size of the block device" "$(blockdev --getsize64 "$DRIVE")" $((1 << 30))
}

ns_descs() {
    nvme ns-descs "$DRIVE" | tee /tmp/ns-descs
    grep -qE '^(uuid|nguid) ' /tmp/ns-descs
}

list_shows() {
    nvme list | tee /tmp/list
    grep -q "^$DRIVE " /tmp/list
}

smart_log_counts() {
    local before after
    before=$(smart_field data_units_written)
    dd if=/dev/urandom of="$DRIVE" bs=1M count=16 oflag=direct status=none
    after=$(smart_field data_units_written)
    # A data unit is 1000 blocks of 512 bytes; 16 MiB are 33 of them.
    [ $((after - before)) -ge 31 ] && [ $((after - before)) -le 35 ]
    local reads
    before=$(smart_field data_units_read) reads=$(smart_field host_read_commands)
    dd if="$DRIVE" of=/dev/null bs=1M count=16 iflag=direct status=none
    after=$(smart_field data_units_read)
    [ $((after - before)) -ge 31 ] && [ $((after - before)) -le 35 ]
    # The host may cut what it is asked for, and join nothing.
    [ $(($(smart_field host_read_commands) - reads)) -ge 16 ]
    nvme smart-log "/dev/$CONTROLLER" -o json | jq -e '.critical_warning == 0 or .critical_warning.value == 0'
}
failure_domain_log() {
    local shown id
    shown=$(ask show identify)
    says_where_it_is "$NQN" "$shown"
    # What its server was started with, so that both do not leave it out.
    expect "labels" "$(jq -c .labels <<<"$shown")" '{"rack":"r1","row":"7"}'
    id=$(ask hosts | jq -re '.hosts[] | select(.is_this) | .id')
    expect "id of the host" "$(domain_hex 16 16)" "${id//-/}"
    nvme get-log "/dev/$CONTROLLER" --log-id=0 --log-len=1024 --raw-binary >/tmp/supported
    expect "support" "$(od -An -tu1 -j$((0xe0 * 4)) -N1 /tmp/supported | tr -d ' ')" 1
}
smart_field() { nvme smart-log "/dev/$CONTROLLER" -o json | jq -re ".$1"; }

other_logs() {
    nvme error-log "/dev/$CONTROLLER" -e 1
    nvme fw-log "/dev/$CONTROLLER"
    nvme effects-log "/dev/$CONTROLLER" | tee /tmp/effects
    local command commands=("Get Log Page" Identify Abort "Set Features" "Get Features" "Keep Alive" Flush Write Read
        "Write Zeroes" "Dataset Management")
    ! backend_has compare || commands+=(Compare)
    ! backend_has verify || commands+=(Verify)
    for command in "${commands[@]}"; do
        grep -qF "[$command " /tmp/effects || { echo "not in the effects log: $command"; return 1; }
    done
    nvme changed-ns-list-log "/dev/$CONTROLLER"
}

features() {
    nvme get-feature "/dev/$CONTROLLER" -f 0x07
    nvme get-feature "/dev/$CONTROLLER" -f 0x0f
}

disconnect_removes() {
    disconnect "$NQN"
    if drive_of "$NQN"; then return 1; fi
}
