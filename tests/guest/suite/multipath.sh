# shellcheck shell=bash
# multipath-tools over two ways to one volume, each through a relay that can be cut.

multipath_tests() {
    . /suite/iscsi.sh
    iscsi_start
    ask auth on >/dev/null
    iscsi_volume paths 128MiB
    check "multipath: two ways make one drive" multipath_starts
    check "multipath: fio verifies while a way is cut and comes back" multipath_loses_a_way
    check "multipath: kill -9 of the server cuts both, and the host waits" multipath_loses_both
    multipath -F >/dev/null 2>&1
    pkill multipathd
    iscsi_detach
    relay_cut 3261
    relay_cut 3262
    volume_delete paths
    ask auth off >/dev/null
}

relay() { setsid socat "TCP-LISTEN:$1,bind=127.0.0.1,fork,reuseaddr" "TCP:$ADDRESS:$ISCSI_PORT" >/dev/null 2>&1 & }
# With all that it has forked.
relay_cut() { pkill -f "TCP-LISTEN:$1," || true; }

multipath_starts() {
    modprobe -a dm_multipath dm_service_time
    /usr/lib/systemd/systemd-udevd --daemon
    udevadm trigger --subsystem-match=block
    udevadm settle
    cat >/etc/multipath.conf <<'C'
defaults {
    find_multipaths no
    user_friendly_names yes
    polling_interval 1
    max_polling_interval 1
    no_path_retry 60
}
blacklist { devnode "^vd" }
C
    multipathd
    relay 3261
    relay 3262
    local portal
    for portal in 127.0.0.1:3261 127.0.0.1:3262; do
        PORTAL=$portal iscsi_login "${CHAP[@]}" node.session.timeo.replacement_timeout=2
    done
    within 20 iscsi_has_drives 2
    within 60 ways_are 2 || { multipathd show paths; multipathd show config local; multipath -v3 -ll; return 1; }
    multipath -ll
}

# ways_are NUMBER: so many ways carry requests.
ways_are() { [ "$(multipathd show paths raw format '%t %o' 2>/dev/null | grep -c '^active running')" = "$1" ]; }
multipath_drive() { ls /dev/mapper/mpath* | head -n 1; }

multipath_load() {
    mark_log ways
    fio --name=ways --filename="$(multipath_drive)" --direct=1 --ioengine=libaio --rw=randwrite --bs=4k --iodepth=16 --size=64M \
        --io_size=6M --rate=1M --verify=crc32c --verify_fatal=1 --verify_backlog=256 --output-format=json --output=/tmp/fio.json &
    FIO=$!
    sleep 1
}
multipath_load_ends() {
    local status=0
    wait $FIO || status=$?
    expect "fio's exit status" $status 0
    jq -e '.jobs[0].error == 0 and .jobs[0].write.io_bytes > 0 and .jobs[0].read.io_bytes > 0' /tmp/fio.json
}

multipath_loses_a_way() {
    multipath_load
    relay_cut 3261
    within 30 ways_are 1
    relay 3261
    within 30 ways_are 2
    multipath_load_ends
}

multipath_loses_both() {
    multipath_load
    server_restart KILL 4
    multipath_load_ends
    within 30 ways_are 2
    ! log_since ways | grep -iE 'Buffer I/O error on dev dm'
}
