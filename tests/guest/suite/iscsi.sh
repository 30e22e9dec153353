# shellcheck shell=bash
# open-iscsi and sg3-utils: CHAP, digests, a file system, a server that is killed, SCSI commands that the kernel does not send.

iscsi_tests() {
    . /suite/verify.sh
    . /suite/filesystems.sh
    TREE=(etc usr/lib/x86_64-linux-gnu/perl-base)
    iscsi_start
    ask auth on >/dev/null
    VOLUME=scsi
    iscsi_volume $VOLUME 512MiB
    ask create hidden 64MiB >/dev/null
    check "iscsi: discovery with CHAP names the one target" iscsi_discovers
    check "iscsi: the printed commands connect a volume, twice, and leave other records alone" iscsi_connects_as_printed
    check "iscsi: a false secret, or a false target, is refused" iscsi_refuses
    DRIVE=$(iscsi_attach "${MUTUAL[@]}" "${DIGESTS[@]}") || { check "iscsi: login with mutual CHAP" false; return; }
    mark_log iscsi
    check "iscsi: login with mutual CHAP, both digests" iscsi_negotiated
    check "iscsi: fio verify" iscsi_verify
    check "iscsi: ext4: mkfs, copy a tree, read it back after remount" tree_survives ext4
    check "iscsi: ext4: fstrim returns the space of deleted files" fstrim_returns_space
    check "iscsi: a new size is seen at a rescan, after a unit attention" iscsi_resizes
    check "iscsi: sg_vpd reads the pages that hosts read" sg_pages
    check "iscsi: sg_unmap clears its blocks and no others" sg_unmaps
    check "iscsi: sg_compare_and_write writes where it compares equal" sg_compares
    check "iscsi: sg_persist reserves, and another initiator is kept out" sg_reserves
    check "iscsi: sg_persist: a reservation with APTPL outlives kill -9, and one without does not" sg_persists
    check "iscsi: sg_opcodes, sg_luns, sg_readcap, sg_verify, sg_sync" sg_asks
    if [ "$(tpgs)" = 0 ]; then
        skip "iscsi: sg_rtpg: the target has no ALUA"
    else
        check "iscsi: sg_rtpg tells the state of the port" sg_port_groups
    fi
    check "iscsi: no I/O error in the kernel's log" no_io_errors_since iscsi
    check "iscsi: kill -9 and restart under load: no I/O error, every byte verified" iscsi_survives KILL
    check "iscsi: SIGTERM and restart under load: the same" iscsi_survives TERM
    iscsi_detach
    volume_delete $VOLUME
    check "iscsi: sectors of 512 bytes: the kernel sees them, ext4 and fio's verify in pieces of a block" iscsi_sectors_of_512
    volume_delete hidden
    ask auth off >/dev/null
}

# iscsi_start: loads the initiator and runs its daemon.
iscsi_start() {
    modprobe -a iscsi_tcp sd_mod sg
    mkdir -p /run/lock/iscsi
    echo "InitiatorName=iqn.1993-08.org.debian:01:guest" >/etc/iscsi/initiatorname.iscsi
    pidof iscsid >/dev/null || iscsid
}

# iscsi_volume NAME SIZE [BYTES of a sector]: makes one, and says by what it is reached: CONNECT (the printed commands), TARGET, CHAP, MUTUAL, DIGESTS.
iscsi_volume() {
    local made id CHAP_SECRET CHAP_TARGET_SECRET
    made=$(ask create "$@")
    id=$(jq -re .id <<<"$made")
    CONNECT=$(jq -re .iscsi_connect <<<"$made")
    NQN=$(jq -re .nqn <<<"$made")
    TARGET=iqn.2026-01.io.farflash:$id
    eval "$(grep '^CHAP_' <<<"$CONNECT")"
    local auth=node.session.auth conn='node.conn[0].iscsi'
    CHAP=("$auth.authmethod=CHAP" "$auth.username=$id" "$auth.password=$CHAP_SECRET")
    MUTUAL=("${CHAP[@]}" "$auth.username_in=$TARGET" "$auth.password_in=$CHAP_TARGET_SECRET")
    DIGESTS=("$conn.HeaderDigest=CRC32C" "$conn.DataDigest=CRC32C")
}

# iscsi_node ARG...: iscsiadm on the record of this target, at PORTAL if that is set.
iscsi_node() { iscsiadm -m node -T "$TARGET" -p "${PORTAL:-$ADDRESS:$ISCSI_PORT}" "$@"; }

# iscsi_login SETTING=VALUE...
iscsi_login() {
    local setting
    iscsi_node -o delete >/dev/null 2>&1 || true
    iscsi_node -o new >/dev/null
    for setting; do iscsi_node -o update -n "${setting%%=*}" -v "${setting#*=}"; done
    iscsi_node --login >/dev/null
}

# The drives of this target's sessions, one a line.
iscsi_drives() {
    local session entry
    for session in /sys/class/iscsi_session/session*; do
        [ "$(cat "$session/targetname" 2>/dev/null)" = "$TARGET" ] || continue
        for entry in "$session"/device/target*/*/block/sd*; do
            [ ! -b "/dev/${entry##*/}" ] || echo "/dev/${entry##*/}"
        done
    done
}
iscsi_has_drives() { [ "$(iscsi_drives | wc -l)" = "$1" ] && [ "$(blockdev --getsize64 "$(iscsi_drives | head -n 1)")" != 0 ]; }
iscsi_attach() {
    iscsi_login "$@" >&2 && within 20 iscsi_has_drives 1 >&2 || return
    iscsi_drives
}
# iscsi_detach: ends all sessions with this target and forgets its records.
iscsi_detach() {
    local session
    for session in /sys/class/iscsi_session/session*; do
        [ "$(cat "$session/targetname" 2>/dev/null)" != "$TARGET" ] || iscsiadm -m session -r "${session##*/session}" --logout >/dev/null
    done
    iscsiadm -m node -T "$TARGET" -o delete >/dev/null 2>&1 || true
}

iscsi_sectors_of_512() {
    iscsi_volume scsi-sectors 256MiB 512
    DRIVE=$(iscsi_attach "${MUTUAL[@]}" "${DIGESTS[@]}")
    mark_log "iscsi sectors"
    holds_512
    no_io_errors_since "iscsi sectors"
    iscsi_detach
    volume_delete scsi-sectors
}

iscsi_discovers() {
    local setting found portal=$ADDRESS:$ISCSI_PORT
    iscsiadm -m discoverydb -t sendtargets -p "$portal" -o new >/dev/null
    for setting in "${MUTUAL[@]}"; do
        setting=${setting/node.session/discovery.sendtargets}
        iscsiadm -m discoverydb -t sendtargets -p "$portal" -o update -n "${setting%%=*}" -v "${setting#*=}"
    done
    found=$(iscsiadm -m discoverydb -t sendtargets -p "$portal" --discover)
    echo "$found"
    expect "what is found" "$(sed 's/,[0-9]* / /' <<<"$found")" "$portal $TARGET"
    iscsi_node -o delete
}

# The second time all records are there. A host may have those of other volumes at the same portal.
iscsi_connects_as_printed() {
    local other=iqn.2026-01.io.farflash:00000000-0000-4000-8000-000000000000
    iscsiadm -m node -T $other -p "$ADDRESS:$ISCSI_PORT" -o new
    for _ in 1 2; do
        sh -e <<<"$CONNECT"
        within 20 iscsi_has_drives 1
        iscsiadm -m session -P 3 | grep -q "username_in: $TARGET"
        iscsi_node --logout
    done
    iscsi_node -o delete
    iscsiadm -m node -T $other -o delete
}

iscsi_refuses() {
    ! iscsi_login "${CHAP[@]}" node.session.auth.password=0123456789abcdef
    ! iscsi_login "${MUTUAL[@]}" node.session.auth.password_in=0123456789abcdef
    ! iscsi_login
    expect "number of drives" "$(iscsi_drives | wc -l)" 0
}

# What the session has, and iscsiadm shows.
iscsi_negotiated() {
    local shown key
    shown=$(iscsiadm -m session -P 3)
    for key in HeaderDigest DataDigest; do grep -q "$key: CRC32C" <<<"$shown"; done
    grep -q "username_in: $TARGET" <<<"$shown"
    grep -q 'State: running' <<<"$shown"
}

iscsi_verify() {
    local size
    for size in 4k 68k 1m; do
        fio --name=verify --filename="$DRIVE" --direct=1 --ioengine=io_uring --verify=crc32c --verify_fatal=1 --rw=randwrite \
            --bs=$size --iodepth=32 --size=4M --output-format=json --output=/tmp/fio.json
        jq -e '.jobs[0].error == 0 and .jobs[0].read.io_bytes > 0' /tmp/fio.json
    done
}

# Linux logs that the target says so, and looks at the size when it is told to.
iscsi_resizes() {
    mark_log resize
    volume_resize $VOLUME 640MiB
    dd if="$DRIVE" of=/dev/null bs=4k count=1 iflag=direct status=none
    within 10 capacity_changed
    iscsi_node -R >/dev/null
    within 10 iscsi_size_is $((640 << 20))
    dd if=/dev/urandom of=/tmp/tail bs=1M count=1 status=none
    dd if=/tmp/tail of="$DRIVE" bs=1M seek=639 oflag=direct status=none
    cmp /tmp/tail <(dd if="$DRIVE" bs=1M skip=639 count=1 iflag=direct status=none)
}
capacity_changed() { log_since resize | grep -qi 'capacity data has changed'; }
iscsi_size_is() { [ "$(blockdev --getsize64 "$DRIVE")" = "$1" ]; }

sg_pages() {
    local page
    for page in 0x00 0x80 0x83 0xb0 0xb1 0xb2; do
        sg_vpd --page=$page "$DRIVE" >/tmp/page
        cat /tmp/page
    done
    sg_vpd --page=lbpv "$DRIVE" | tee /tmp/page
    grep -q 'LBPU.*1' /tmp/page
    grep -qi 'provisioning type: \(2\|thin\)' /tmp/page
    sg_vpd --page=di "$DRIVE" | grep -qi 'NAA\|EUI-64\|T10 vendor'
    sg_readcap --long "$DRIVE" | tee /tmp/page
    grep -q 'lbpme=1' /tmp/page
}

sg_block() { dd if="$DRIVE" bs=4096 skip="$1" count="${2:-1}" iflag=direct status=none; }

sg_unmaps() {
    dd if=/dev/urandom of=/tmp/blocks bs=4096 count=48 status=none
    dd if=/tmp/blocks of="$DRIVE" bs=4096 oflag=direct status=none
    sg_unmap --lba=0,32 --num=16,16 "$DRIVE"
    cmp <(sg_block 0 16) <(head -c 65536 /dev/zero)
    cmp <(sg_block 16 16) <(dd if=/tmp/blocks bs=4096 skip=16 count=16 status=none)
    cmp <(sg_block 32 16) <(head -c 65536 /dev/zero)
}

sg_compares() {
    dd if=/dev/urandom of=/tmp/old bs=4096 count=1 status=none
    dd if=/dev/urandom of=/tmp/new bs=4096 count=1 status=none
    cat /tmp/old /tmp/new >/tmp/both
    dd if=/tmp/old of="$DRIVE" bs=4096 seek=7 oflag=direct status=none
    sg_compare_and_write --in=/tmp/both --lba=7 --num=1 --xferlen=8192 "$DRIVE"
    cmp <(sg_block 7) /tmp/new
    # What is there is not what it compares with any more: a miscompare (14), and nothing is written.
    local status=0
    sg_compare_and_write --in=/tmp/both --lba=7 --num=1 --xferlen=8192 "$DRIVE" || status=$?
    expect "status of a miscompare" $status 14
    cmp <(sg_block 7) /tmp/new
}

# A second session, by another name, is another nexus: it reads and cannot write.
sg_reserves() {
    sg_persist --out --register --param-sark=0xa1 "$DRIVE"
    sg_persist --out --reserve --param-rk=0xa1 --prout-type=5 "$DRIVE"
    sg_persist --in --read-keys "$DRIVE" | grep -q '0xa1'
    sg_persist --in --read-reservation "$DRIVE" | tee /tmp/reservation
    grep -q 'Write Exclusive, registrants only' /tmp/reservation
    sg_persist --in --report-capabilities "$DRIVE" | grep -q 'Persist Through Power Loss Capable.*1'
    iscsiadm -m iface -I other -o new
    iscsiadm -m iface -I other -o update -n iface.initiatorname -v iqn.1993-08.org.debian:01:other
    local first=$DRIVE second setting
    iscsiadm -m node -T "$TARGET" -p "$ADDRESS:$ISCSI_PORT" -I other -o new
    for setting in "${CHAP[@]}"; do
        iscsiadm -m node -T "$TARGET" -I other -o update -n "${setting%%=*}" -v "${setting#*=}"
    done
    iscsiadm -m node -T "$TARGET" -I other --login
    within 20 iscsi_has_drives 2
    second=$(iscsi_drives | grep -vx "$first")
    dd if="$second" of=/dev/null bs=4096 count=1 iflag=direct status=none
    ! dd if=/tmp/new of="$second" bs=4096 seek=9 oflag=direct status=none
    dd if=/tmp/new of="$first" bs=4096 seek=9 oflag=direct status=none
    # It registers, takes over what the first has, and is the only one that is left.
    sg_persist --out --register --param-sark=0xb2 "$second"
    sg_persist --out --preempt --param-rk=0xb2 --param-sark=0xa1 --prout-type=5 "$second"
    dd if=/tmp/old of="$second" bs=4096 seek=9 oflag=direct status=none
    sg_persist --out --clear --param-rk=0xb2 "$second"
    iscsiadm -m node -T "$TARGET" -I other --logout
    iscsiadm -m node -T "$TARGET" -I other -o delete
    # The first is told that its registration is gone; after that all is as it was.
    dd if=/tmp/new of="$first" bs=4096 seek=9 oflag=direct status=none || dd if=/tmp/new of="$first" bs=4096 seek=9 oflag=direct status=none
}

# The initiator is known by its name and ISID, so its next session has the key.
sg_persists() {
    local aptpl expected
    for aptpl in --param-aptpl ''; do
        # shellcheck disable=SC2086  # one, or none
        sg_persist --out --register --param-sark=0xc3 $aptpl "$DRIVE"
        sg_persist --out --reserve --param-rk=0xc3 --prout-type=1 "$DRIVE"
        server_restart KILL 1
        # The new session is told of the restart before anything else.
        dd if="$DRIVE" of=/dev/null bs=4096 count=1 iflag=direct status=none
        sg_persist --in --read-full-status "$DRIVE" | tee /tmp/registrants
        expected=0
        [ -z "$aptpl" ] || expected=1
        expect "registrants after the restart" "$(grep -c 'Key=0xc3' /tmp/registrants)" $expected
        [ -z "$aptpl" ] || sg_persist --out --clear --param-rk=0xc3 "$DRIVE"
    done
    sg_persist --in --read-reservation "$DRIVE" | grep -q 'NO reservation'
}

sg_asks() {
    sg_opcodes "$DRIVE" | grep -qi 'compare and write'
    sg_luns "$DRIVE"
    sg_readcap "$DRIVE"
    sg_verify --lba=0 --count=64 "$DRIVE"
    sg_sync "$DRIVE"
    sg_turs "$DRIVE"
    sg_modes --all "$DRIVE" >/dev/null
    sg_get_lba_status --lba=0 "$DRIVE"
}

tpgs() { sg_inq "$DRIVE" | sed -n 's/.*TPGS=\([0-9]\).*/\1/p'; }
sg_port_groups() {
    sg_rtpg --decode "$DRIVE" | tee /tmp/groups
    grep -q 'asymmetric access state : 0x00\|active/optimized' /tmp/groups
}

# iscsi_survives SIGNAL
iscsi_survives() {
    local fio status=0 mark="iscsi restart $EPOCHREALTIME"
    mark_log "$mark"
    fio --name=restart --filename="$DRIVE" --direct=1 --ioengine=libaio --rw=randwrite --bs=4k --iodepth=16 --size=96M \
        --io_size=8M --rate=1500k --verify=crc32c --verify_fatal=1 --verify_backlog=256 --output-format=json --output=/tmp/fio.json &
    fio=$!
    sleep 2
    server_restart "$1" 1
    wait $fio || status=$?
    expect "fio's exit status" $status 0
    jq -e '.jobs[0].error == 0 and .jobs[0].write.io_bytes > 0 and .jobs[0].read.io_bytes > 0' /tmp/fio.json
    log_since "$mark" | grep -qi 'detected conn error' || { echo "the initiator did not notice"; return 1; }
    no_io_errors_since "$mark"
}
