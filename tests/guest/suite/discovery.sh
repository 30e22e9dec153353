# shellcheck shell=bash
# The discovery service, and every connection made from its answers.

discovery_tests() {
    DISCOVERED=$(volume_create discovered 64MiB)
    check "discover lists the volume at an address that the guest can use" discover_lists_it
    check "connect-all attaches what discovery lists" connect_all_attaches
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
