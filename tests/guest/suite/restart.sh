# shellcheck shell=bash
# The server is killed without warning under load, or ends in good order, and comes back: the host sees a pause, not
# an error. Nor does it if the volume's device comes later than the server.

restart_tests() {
    NQN=$(volume_create restart 256MiB)
    check "kill -9 and restart under load: no I/O error, every byte verified" survives_restart KILL
    check "SIGTERM and restart under load: the same, in a second cycle" survives_restart TERM --data-digest
    volume_delete restart
    check_if absence "a host waits for a device that comes later than the server" \
        waits_for_device "busy or not available"
}

# survives_restart SIGNAL [OPTION...]
survives_restart() {
    local signal=$1
    shift
    # A mark of its own for each run: the one before has left its reconnects in the log as well.
    local drive fio status=0 log mark="restart $EPOCHREALTIME"
    mark_log "$mark"
    drive=$(attach "$NQN" "$@")
    # Not by io_uring: it asks the kernel not to wait. What multipath put aside when the path was lost, and
    # a worker of the kernel sends again while the namespace is looked at again, then fails with EAGAIN instead of waiting,
    # and io_uring tries only what fails in the submitter's own context again.
    fio --name=restart --filename="$drive" --direct=1 --ioengine=libaio --rw=randwrite --bs=4k --iodepth=16 \
        --size=192M --io_size=16M --rate=2M --verify=crc32c --verify_fatal=1 --verify_backlog=256 \
        --output-format=json --output=/tmp/fio.json &
    fio=$!
    sleep 3
    server_restart "$signal" 1
    wait $fio || status=$?
    expect "fio's exit status" $status 0
    jq -e '.jobs[0].error == 0 and .jobs[0].write.io_bytes > 0 and .jobs[0].read.io_bytes > 0' /tmp/fio.json
    expect state "$(controller_state "$(controller_of "$NQN")")" live
    disconnect "$NQN"
    log=$(log_since "$mark")
    grep -q -iE 'reconnect|error recovery' <<<"$log" || { echo "the host did not notice the kill"; return 1; }
    no_io_errors_since "$mark"
}
