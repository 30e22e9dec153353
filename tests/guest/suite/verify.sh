# shellcheck shell=bash
# fio writes random blocks and verifies them, with every combination of digests.

verify_tests() {
    NQN=$(volume_create verify 256MiB)
    check "fio verify, no digest" fio_verify
    check "fio verify, header digest" fio_verify --hdr-digest
    check "fio verify, data digest" fio_verify --data-digest
    check "fio verify, header and data digest" fio_verify --hdr-digest --data-digest
    check "fio verify, no SQ flow control, data digest" fio_verify --disable-sqflow --data-digest
    check "fio verify, large and unequal sizes, both digests" fio_verify_sizes --hdr-digest --data-digest
    check_if write-zeroes "write-zeroes clears its blocks and no others" write_zeroes_clears
    check_if compare "compare tells equal data from unequal" compare_compares
    check_if verify "verify and flush are answered" verify_and_flush
    check "dsm deallocates its ranges and no others" dsm_deallocates
    volume_delete verify
}

# fio_run DRIVE OPTION...
fio_run() {
    local drive=$1
    shift
    fio --name=verify --filename="$drive" --direct=1 --ioengine=io_uring --verify=crc32c \
        --verify_fatal=1 --output-format=json --output=/tmp/fio.json "$@"
    jq -e '.jobs[0].error == 0 and .jobs[0].read.io_bytes > 0' /tmp/fio.json
}

fio_verify() {
    local drive pattern=(--rw=randwrite --bs=4k --iodepth=32 --size=4M)
    mark_log "verify $*"
    drive=$(attach "$NQN" "$@")
    fio_run "$drive" "${pattern[@]}"
    # The same blocks once more over a new connection, without writing.
    disconnect "$NQN"
    drive=$(attach "$NQN" "$@")
    fio_run "$drive" "${pattern[@]}" --verify_only
    disconnect "$NQN"
    no_io_errors_since "verify $*"
}

# One size after the other: with a range of sizes fio 3.33 verifies for ever.
fio_verify_sizes() {
    local drive size
    mark_log "sizes"
    drive=$(attach "$NQN" "$@")
    for size in 4k 12k 132k 1m; do
        fio_run "$drive" --rw=randwrite --bs="$size" --iodepth=8 --size=4M
    done
    disconnect "$NQN"
    no_io_errors_since "sizes"
}

# The piece of a drive that has this number, of 64 KiB each.
piece() {
    dd if="$1" bs=64k skip="$2" count=1 iflag=direct status=none
}

# Whether nothing but zeroes is in that piece.
is_clear() {
    cmp <(piece "$1" "$2") <(head -c 65536 /dev/zero)
}

write_zeroes_clears() {
    local drive blocks
    drive=$(attach "$NQN")
    blocks=$((65536 / $(blockdev --getss "$drive")))
    dd if=/dev/urandom of="$drive" bs=64k count=2 oflag=direct status=none
    piece "$drive" 1 >/tmp/neighbour
    nvme write-zeroes "$drive" --start-block=0 --block-count=$((blocks - 1))
    is_clear "$drive" 0
    cmp <(piece "$drive" 1) /tmp/neighbour
    disconnect "$NQN"
}

verify_and_flush() {
    local drive
    drive=$(attach "$NQN")
    nvme verify "$drive" --start-block=0 --block-count=255
    nvme flush "$drive" --namespace-id=1
    if nvme verify "$drive" --start-block="$(blockdev --getsz "$drive")" --block-count=0; then
        echo "blocks beyond the end are verified"
        return 1
    fi
    disconnect "$NQN"
}

# Two ranges in one command, with a block between them that stays.
dsm_deallocates() {
    local drive blocks
    drive=$(attach "$NQN")
    blocks=$((65536 / $(blockdev --getss "$drive")))
    dd if=/dev/urandom of="$drive" bs=64k count=3 oflag=direct status=none
    piece "$drive" 1 >/tmp/kept
    nvme dsm "$drive" --namespace-id=1 --ad --slbs="0,$((2 * blocks))" --blocks="$blocks,$blocks"
    is_clear "$drive" 0
    cmp <(piece "$drive" 1) /tmp/kept
    is_clear "$drive" 2
    disconnect "$NQN"
}

compare_compares() {
    local drive blocks
    drive=$(attach "$NQN")
    blocks=$((65536 / $(blockdev --getss "$drive")))
    dd if=/dev/urandom of=/tmp/random bs=64k count=1 status=none
    dd if=/tmp/random of="$drive" bs=64k count=1 oflag=direct status=none
    compare() { nvme compare "$drive" --start-block=0 --block-count=$((blocks - 1)) --data-size=65536 --data="$1"; }
    compare /tmp/random
    printf x | dd of=/tmp/random bs=1 seek=65535 conv=notrunc status=none
    if compare /tmp/random; then
        echo "a comparison with unequal data succeeded"
        return 1
    fi
    disconnect "$NQN"
}
