# shellcheck shell=bash
# Real file systems on a volume: a tree goes in, the same tree comes out, and freed space goes back.

filesystem_tests() {
    . /suite/verify.sh
    VOLUME=filesystem
    NQN=$(volume_create $VOLUME 1GiB)
    DRIVE=$(attach "$NQN")
    mark_log filesystems
    check "ext4: mkfs, copy a tree, read it back after remount" tree_survives ext4
    check "ext4: fsck finds nothing" e2fsck -fn "$DRIVE"
    check "ext4: fstrim returns the space of deleted files" fstrim_returns_space
    check "xfs: mkfs, copy a tree, read it back after remount" tree_survives xfs
    check "xfs: xfs_repair finds nothing" xfs_repair -n "$DRIVE"
    check "xfs: fstrim returns the space of deleted files" fstrim_returns_space
    check_if write-zeroes "no I/O error in the kernel's log" no_io_errors_since filesystems
    disconnect "$NQN"
    volume_delete $VOLUME
    check_if sectors "sectors of 512 bytes: the kernel sees them, ext4 and fio's verify in pieces of a block" sectors_of_512
}

make_ext4() { mkfs.ext4 -q -F "$DRIVE"; }
make_xfs() { mkfs.xfs -q -f "$DRIVE"; }

# The guest's own programs and libraries serve as the tree: links, modes and sizes as they come.
TREE=(etc usr/sbin usr/lib/x86_64-linux-gnu/perl-base usr/share/zoneinfo)

# digest_of DIRECTORY PART...
digest_of() { (cd "$1" && find "${@:2}" -type f -print0 | sort -z | xargs -0 sha256sum); }

tree_survives() {
    # A test before this one may have failed half-way.
    umount /mnt 2>/dev/null || true
    "make_$1"
    mount "$DRIVE" /mnt
    mkdir /mnt/tree
    local directory present=()
    for directory in "${TREE[@]}"; do
        [ ! -e "/$directory" ] || present+=("$directory")
    done
    # Of what is copied, not of the copy: what went wrong on its way would be in both.
    digest_of / "${present[@]}" >/tmp/before
    tar -C / -cf - "${present[@]}" | tar -C /mnt/tree -xf -
    umount /mnt
    echo 3 >/proc/sys/vm/drop_caches
    mount "$DRIVE" /mnt
    digest_of /mnt/tree "${present[@]}" >/tmp/after
    umount /mnt
    [ "$(wc -l </tmp/before)" -gt 100 ]
    cmp /tmp/before /tmp/after
}

fstrim_returns_space() {
    local before after
    mount "$DRIVE" /mnt
    dd if=/dev/urandom of=/mnt/filler bs=1M count=24 conv=fsync status=none
    before=$(volume_allocated_bytes "$VOLUME")
    rm /mnt/filler
    sync -f /mnt
    fstrim -v /mnt
    umount /mnt
    echo "allocated before the trim: $before"
    within 10 fell_by $((20 << 20)) "$before"
}

sectors_of_512() {
    NQN=$(volume_create sectors 256MiB 512)
    DRIVE=$(attach "$NQN")
    mark_log sectors
    holds_512
    no_io_errors_since sectors
    disconnect "$NQN"
    volume_delete sectors
}

# Of DRIVE, by whatever protocol.
holds_512() {
    expect "logical and physical blocks" "$(blockdev --getss --getpbsz "$DRIVE" | xargs)" "512 4096"
    local size TREE=(etc)
    for size in 512 1536 4608; do
        fio_run "$DRIVE" --rw=randwrite --bs=$size --iodepth=16 --size=576k
    done
    tree_survives ext4
    e2fsck -fn "$DRIVE"
}

fell_by() {
    local now
    now=$(volume_allocated_bytes "$VOLUME")
    [ $(($2 - now)) -ge "$1" ]
}
