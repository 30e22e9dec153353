# shellcheck shell=bash
# The discovery service, and every connection made from its answers.

# The well-known name of a discovery service.
DISCOVERY=nqn.2014-08.org.nvmexpress.discovery

discovery_tests() {
    DISCOVERED=$(volume_create discovered 64MiB)
    check "discover lists the volume at an address that the guest can use" discover_lists_it
    check "connect-all attaches what discovery lists" connect_all_attaches
    check_if discovery "connect-all leaves out what is not for this host" connect_all_leaves_out
    check_if discovery "a persistent connection is told of a new volume" persistent_one_is_told
    check_if two-hosts "connect-all at one host attaches the volumes of both, each where it is" both_hosts_are_found
    volume_delete discovered
}

discover_lists_it() {
    nvme discover -t tcp -a "$ADDRESS" -s "$PORT" -o json | tee /tmp/discovery.json
    jq -e --arg nqn "$DISCOVERED" --arg address "$ADDRESS" --arg port "$PORT" \
        '.records[] | select(.subnqn == $nqn and .trtype == "tcp" and .traddr == $address and .trsvcid == $port)' /tmp/discovery.json
}

connect_all_attaches() {
    nvme connect-all -t tcp -a "$ADDRESS" -s "$PORT"
    within 20 drive_is_there "$DISCOVERED"
    disconnect "$DISCOVERED"
}

connect_all_leaves_out() {
    local forbidden other
    forbidden=$(volume_create forbidden 64MiB)
    other=$(volume_create other-one 64MiB)
    ask restrict forbidden --host nqn.2014-08.org.nvmexpress:uuid:99999999-2222-3333-4444-555555555555 >/dev/null
    # The usual port, for which nothing need be said.
    nvme connect-all -t tcp -a "$ADDRESS"
    within 20 drive_is_there "$DISCOVERED"
    within 20 drive_is_there "$other"
    if controller_of "$forbidden"; then
        echo "a volume of another host was attached"
        return 1
    fi
    disconnect "$DISCOVERED"
    disconnect "$other"
    volume_delete forbidden
    volume_delete other-one
}

# What the kernel tells those who listen, of asynchronous events.
events() {
    perl -MSocket -e '
        $| = 1;
        my $kernel;
        socket($kernel, 16, SOCK_DGRAM, 15) && bind($kernel, pack("SSLL", 16, 0, 0, 1)) || die "netlink: $!";
        print "listening\n";
        while (defined recv($kernel, my $event, 65536, 0)) {
            print "$_\n" for grep { /^NVME_AEN=/ } split /\0/, $event;
        }'
}

persistent_one_is_told() {
    local listener
    events >/tmp/events &
    listener=$!
    within 20 grep -q listening /tmp/events
    nvme discover --persistent -t tcp -a "$ADDRESS" >/dev/null
    volume_create late 64MiB >/dev/null
    # Discovery Log Page Change, log page 70h.
    within 30 grep -q "NVME_AEN=0x70f002" /tmp/events
    kill "$listener"
    disconnect "$DISCOVERY"
    volume_delete late
}

both_hosts_are_found() {
    local port volume nqns
    ask two-hosts >/tmp/two-hosts.json
    trap 'ask one-host' EXIT
    port=$(jq -re .port /tmp/two-hosts.json)
    nqns=$(jq -re '.volumes[].nqn' /tmp/two-hosts.json)
    expect "hosts" "$(jq '[.volumes[].address] | unique | length' /tmp/two-hosts.json)" 2
    nvme connect-all -t tcp -a "$ADDRESS" -s "$port"
    for volume in $nqns; do
        within 20 drive_is_there "$volume"
        says_where_it_is "$volume" "$(jq -e --arg nqn "$volume" '.volumes[] | select(.nqn == $nqn)' /tmp/two-hosts.json)"
    done
    # What must not fail together can be told apart by what is connected.
    expect "racks" "$(jq -r '[.volumes[].labels.rack] | sort | join(" ")' /tmp/two-hosts.json)" "of-one of-two"
    for volume in $nqns; do disconnect "$volume"; done
}
