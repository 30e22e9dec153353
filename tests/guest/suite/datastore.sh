# shellcheck shell=bash
# A datastore whose RocksDB lies on ext4 on a volume that the kernel's initiator connected. The server below it is killed and
# comes back: clients see a pause, not an error. What was synced survives the datastore, and a file system that is mounted again.

STORE_PORT=6379

datastore_tests() {
    if [ ! -x /programs/farflash-datastore ]; then
        skip "the datastore: farflash-datastore is not built beside farflash (make datastore-test builds it)"
        return
    fi
    # The guest's memory is nearer than the shared directory.
    cp -r /programs /tmp/programs
    NQN=$(volume_create datastore 512MiB)
    DRIVE=$(attach "$NQN")
    mkdir -p /data
    mark_log datastore
    rm -f /tmp/written
    check "datastore: mkfs.ext4, mount, serve, write and read keys" keys_are_served
    check "datastore: kill -9 and restart of the Flash server under synced writes: no client sees an error" \
        writes_survive_restart KILL
    check "datastore: SIGTERM and restart of the Flash server: the same" writes_survive_restart TERM
    check "datastore: kill -9 of the datastore, and the file system mounted again: all keys are there" keys_survive_the_store
    check "datastore: ext4 is sound, and the kernel reported no I/O error" file_system_is_sound
    disconnect "$NQN"
    volume_delete datastore
}

store_start() {
    LD_LIBRARY_PATH=/tmp/programs/lib /tmp/programs/farflash-datastore serve --data /data/kv --listen "127.0.0.1:$STORE_PORT" \
        --writes synced --memory 16MiB --compression none --readers 2 --writers 2 </dev/null >>/tmp/store.log 2>&1 &
    echo $! >/tmp/store.pid
    within 120 store_answers || { tail -n 20 /tmp/store.log; return 1; }
}
store_answers() { [ "$(printf 'PING\r\nQUIT\r\n' | store_ask 2>/dev/null | head -n 1)" = $'+PONG\r' ]; }
store_ask() { socat -t 120 - "TCP:127.0.0.1:$STORE_PORT"; }
store_end() {
    kill -"$1" "$(cat /tmp/store.pid)"
    within 60 store_is_gone
}
store_is_gone() { ! kill -0 "$(cat /tmp/store.pid)" 2>/dev/null; }

# The value of key N is N with zeroes before it.
WIDTH=3000
written() { cat /tmp/written 2>/dev/null || echo 0; }

# Writes keys one after the other until /tmp/stop is there or one is not answered by OK; /tmp/written has the last that was.
write_keys() {
    local number reply
    number=$(written)
    exec 3<>"/dev/tcp/127.0.0.1/$STORE_PORT"
    until [ -e /tmp/stop ]; do
        number=$((number + 1))
        printf "SET key-%d %0${WIDTH}d\r\n" $number $number >&3
        read -r -t 120 reply <&3 || { echo "no reply to write $number"; return 1; }
        expect "the reply to write $number" "$reply" $'+OK\r'
        echo $number >/tmp/written.new
        mv /tmp/written.new /tmp/written
    done
}
has_written() { [ "$(written)" -ge "$1" ]; }

all_keys_are_there() {
    local last
    last=$(written)
    echo "$last keys"
    [ "$last" -gt 0 ]
    { seq -f 'GET key-%.0f' 1 "$last"; echo QUIT; } | sed 's/$/\r/' | store_ask >/tmp/found
    { seq 1 "$last" | awk -v width=$WIDTH '{ printf "$%d\r\n%0" width "d\r\n", width, $1 }'; printf '+OK\r\n'; } >/tmp/expected
    cmp /tmp/found /tmp/expected
}

keys_are_served() {
    mkfs.ext4 -q -F "$DRIVE"
    mount "$DRIVE" /data
    store_start
    write_some 50
    all_keys_are_there
}

# write_some COUNT: so many keys more.
write_some() {
    local goal=$(($(written) + $1)) writer status=0
    rm -f /tmp/stop
    write_keys &
    writer=$!
    within 120 has_written $goal || status=1
    touch /tmp/stop
    wait $writer || status=1
    return $status
}

# writes_survive_restart SIGNAL
writes_survive_restart() {
    local writer status=0 before log mark="datastore restart $EPOCHREALTIME"
    mark_log "$mark"
    rm -f /tmp/stop
    write_keys &
    writer=$!
    within 120 has_written $(($(written) + 30)) || status=1
    server_restart "$1" 1 || status=1
    before=$(written)
    within 120 has_written $((before + 30)) || status=1
    touch /tmp/stop
    wait $writer || status=1
    expect "status of the writer and its host" $status 0
    all_keys_are_there
    log=$(log_since "$mark")
    grep -q -iE 'reconnect|error recovery' <<<"$log" || { echo "the host did not notice the kill"; return 1; }
}

keys_survive_the_store() {
    local writer
    rm -f /tmp/stop
    # It ends when its connection does.
    write_keys &
    writer=$!
    within 120 has_written $(($(written) + 30))
    store_end KILL
    ! wait $writer
    umount /data
    echo 3 >/proc/sys/vm/drop_caches
    mount "$DRIVE" /data
    store_start
    all_keys_are_there
    write_some 10
    all_keys_are_there
    store_end TERM
    tail -n 1 /tmp/store.log | grep -q 'all writes are durable'
}

file_system_is_sound() {
    umount /data
    e2fsck -fn "$DRIVE"
    no_io_errors_since datastore
}
