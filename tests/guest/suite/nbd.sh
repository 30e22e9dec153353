# shellcheck shell=bash
# nbd-client and the kernel's NBD, with and without TLS.

nbd_tests() {
    . /suite/filesystems.sh
    TREE=(etc usr/lib/x86_64-linux-gnu/perl-base)
    modprobe nbd nbds_max=2
    VOLUME=blocks
    volume_create $VOLUME 256MiB >/dev/null
    DRIVE=/dev/nbd0
    check "nbd: a volume that is not opened to NBD is not there" nbd_is_refused
    # The server sees the guest come from its own loopback.
    ask restrict $VOLUME --nbd-network 127.0.0.0/8 >/dev/null
    check "nbd: fio verify over four connections" nbd_verify -connections 4
    check "nbd: ext4: mkfs, copy a tree, read it back after remount" tree_survives ext4
    check "nbd: ext4: fstrim returns the space of deleted files" fstrim_returns_space
    check "nbd: detached, and no I/O error before" nbd_detach
    ask restrict $VOLUME --nbd-certificate guest.example.com >/dev/null
    check "nbd: TLS is asked for" nbd_is_refused
    check "nbd: fio verify in TLS" nbd_verify "${NBD_TLS[@]}"
    check "nbd: what was written in TLS is read in TLS" nbd_reads_again "${NBD_TLS[@]}"
    check "nbd: detached in TLS, and no I/O error before" nbd_detach
    volume_delete $VOLUME
}

NBD_TLS=(-certfile /host/tls/cert.pem -keyfile /host/tls/key.pem -cacertfile /host/tls/ca.pem -tlshostname server.example.com)

# nbd_attach OPTION...
nbd_attach() {
    nbd-client "$ADDRESS" "$NBD_PORT" $DRIVE -name $VOLUME -block-size 4096 "$@"
    within 10 nbd_has_size
    # The kernel looks for partitions as soon as nbd-client opens the drive, which then is none yet: those errors do not count.
    echo "nbd $EPOCHREALTIME" >/tmp/nbd-mark
    mark_log "$(cat /tmp/nbd-mark)"
}
# Without opening it: that would have the kernel read partitions while the connection is being made.
nbd_has_size() { [ -e /sys/block/nbd0/pid ] && [ "$(cat /sys/block/nbd0/size)" = $((256 << 20 >> 9)) ]; }
nbd_detach() {
    no_io_errors_since "$(cat /tmp/nbd-mark)"
    nbd-client -d $DRIVE >/dev/null
    within 10 nbd_is_gone
}
nbd_is_gone() { [ ! -e /sys/block/nbd0/pid ]; }

nbd_is_refused() { ! nbd-client "$ADDRESS" "$NBD_PORT" $DRIVE -name $VOLUME; }

nbd_verify() {
    local size
    nbd_attach "$@"
    for size in 4k 68k 1m; do
        fio --name=verify --filename=$DRIVE --direct=1 --ioengine=io_uring --verify=crc32c --verify_fatal=1 --rw=randwrite \
            --bs=$size --iodepth=32 --size=4M --output-format=json --output=/tmp/fio.json
        jq -e '.jobs[0].error == 0 and .jobs[0].read.io_bytes > 0' /tmp/fio.json
    done
}

nbd_reads_again() {
    dd if=/dev/urandom of=/tmp/random bs=1M count=8 status=none
    dd if=/tmp/random of=$DRIVE bs=1M oflag=direct status=none
    nbd_detach
    nbd_attach "$@"
    dd if=$DRIVE bs=1M count=8 iflag=direct status=none | cmp - /tmp/random
}
