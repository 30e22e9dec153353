# shellcheck shell=bash
# A size change reaches a connected host by an asynchronous event, without a reconnect.

resize_tests() {
    NQN=$(volume_create resize 64MiB)
    DRIVE=$(attach "$NQN")
    dd if=/dev/urandom of="$DRIVE" bs=1M count=16 oflag=direct status=none
    dd if="$DRIVE" bs=1M count=16 iflag=direct status=none | sha256sum >/tmp/resize-digest
    check "growing a volume is seen without reconnecting" size_follows 128MiB $((128 << 20))
    check "the new space is usable" new_space_usable
    check "shrinking a volume is seen without reconnecting" size_follows 32MiB $((32 << 20))
    check "what lies below the new end is untouched" data_kept
    check "the space cut off reads as zeroes when it comes back" cut_space_is_zero
    disconnect "$NQN"
    volume_delete resize
}

size_is() { [ "$(blockdev --getsize64 "$DRIVE")" = "$1" ]; }

size_follows() {
    volume_resize resize "$1"
    within 20 size_is "$2"
    expect state "$(controller_state "$(controller_of "$NQN")")" live
}

new_space_usable() {
    dd if=/dev/urandom of=/tmp/tail bs=1M count=1 status=none
    dd if=/tmp/tail of="$DRIVE" bs=1M seek=127 oflag=direct status=none
    cmp /tmp/tail <(dd if="$DRIVE" bs=1M skip=127 count=1 iflag=direct status=none)
}

data_kept() {
    dd if="$DRIVE" bs=1M count=16 iflag=direct status=none | sha256sum | cmp - /tmp/resize-digest
}

cut_space_is_zero() {
    size_follows 128MiB $((128 << 20))
    cmp <(dd if="$DRIVE" bs=1M skip=127 count=1 iflag=direct status=none) <(head -c 1048576 /dev/zero)
}
