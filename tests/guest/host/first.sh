#!/bin/bash
# The first boot of the machine that is tuned: plan, apply, kill -9, undo, and what is to last over the second boot.
. /tests/lib.sh

begin "wait for the drives"
within 240 [ -b /dev/nvme63n1 ] || exit 1
udevadm settle --timeout 60
install -m 755 /program/farflash /usr/local/bin/farflash
card=$(queues_card)
echo "kernel $(uname -r), $(nproc) CPUs, $(ls -d /sys/devices/system/node/node* | wc -l) nodes, \
$(ls -d /sys/block/nvme* | wc -l) drives, card $card"

the_machine_is_seen() {
    [ -n "$card" ] && expect drives "$(ls -d /sys/block/nvme*n1 | wc -l)" 64
    expect "nodes of drives" "$(cat /sys/block/nvme*n1/device/numa_node | sort | uniq -c | xargs)" "32 0 32 1"
    tune plan "${wishes[@]}" --json >/root/plan.json
    contents /root/plan.json >/root/before
    expect "queues of drives" "$(of /root/plan.json irq-drives length)" $((64 * 8))
    # One each for what is received and what is sent; the other card has one queue.
    expect "queues of the card" "$(of /root/plan.json irq-network length)" $((2 * 8 + 2))
    expect schedulers "$(of /root/plan.json block-scheduler length)" 64
    expect "isolated CPUs" "$(of /root/plan.json boot-isolcpus .[0].then)" $cores
    tune plan "${wishes[@]}" --diff >/root/diff
    expect "files in the diff" "$(grep -c '^+++ ' /root/diff)" \
        "$(jq '[.[] | select((.target | objects | .file) and .now != .then)] | length' /root/plan.json)"
}

# What the kernel says by itself, without the program.
the_kernel_refuses_managed_interrupts() {
    local path
    path=$(of /root/plan.json irq-drives .[0].target.file.path)
    bash -c "echo 3 >$path" 2>/root/refused && return 1
    grep -E 'Input/output error|Operation not permitted' /root/refused
}

all_is_applied_and_refusals_are_explained() {
    tune apply "${wishes[@]}" --json >/root/applied.json
    expect "refused interrupts of drives" "$(of /root/applied.json irq-drives \
        'map(select(.outcome == "refused" and (.reason | contains("the kernel manages this interrupt itself")))) | length')" \
        "$(of /root/applied.json irq-drives 'map(select(.outcome != "unchanged")) | length')"
    jq -r '.[] | select(.outcome == "refused" and .setting != "irq-drives") | "\(.setting) \(.subject): \(.reason)"' \
        /root/applied.json
    expect "other refusals" "$(jq '[.[] | select(.outcome == "refused" and .setting != "irq-drives")] | length' \
        /root/applied.json)" 0
    # Seven tenants on seven cores: the n-th queue interrupts the n-th core, and the eighth begins again.
    local number cpu
    while read -r number cpu; do
        expect "CPU of interrupt $number" "$(cat "/proc/irq/$number/smp_affinity_list")" "$cpu"
    done < <(of /root/applied.json irq-network '.[] | "\(.target.file.path | split("/")[3]) \(.then)"')
    tune verify
    tune apply "${wishes[@]}" | tail -n 1 >/root/again
    grep 'Changed: 0 values' /root/again
}

undo_gives_all_back() {
    tune undo >/root/undone
    contents /root/plan.json >/root/after
    diff /root/before /root/after
    [ ! -e /var/lib/farflash/tune.jsonl ]
}

# The record of old values is written first, so that a kill behind it is one in the middle of the writes.
a_kill_in_the_middle_loses_nothing() {
    local record=/var/lib/farflash/tune.jsonl after killed=0 apply
    for after in 0 0.02 0.05 0.1 0.3; do
        setsid farflash tune apply "${wishes[@]}" >/dev/null &
        apply=$!
        while [ ! -e $record ] && kill -0 $apply 2>/dev/null; do :; done
        sleep $after
        ! kill -KILL $apply 2>/dev/null || [ ! -e $record ] || killed=$((killed + 1))
        wait $apply 2>/dev/null || true
        # Once it goes on to the end first.
        [ $after != 0.05 ] || tune apply "${wishes[@]}" >/dev/null
        tune undo >/dev/null
        contents /root/plan.json >/root/after
        diff /root/before /root/after
    done
    echo "killed with old values on disk: $killed of 5"
    [ $killed -ge 1 ]
}

mtu() { cat "/sys/class/net/$card/mtu"; }
has_mtu() { [ "$(mtu)" = "$1" ]; }

# The process that undoes is a transient service of systemd.
what_is_not_confirmed_is_undone_by_a_service() {
    local apply=(apply --nics "$card" --only jumbo-frames --path-mtu 9000 --network)
    tune "${apply[@]}" --confirm-within 20s
    has_mtu 9000
    systemctl list-units --no-pager --plain 'run-*.service' >/root/units
    grep 'Undo of farflash tune' /root/units
    within 60 has_mtu 1500
    tune "${apply[@]}" --confirm-within 60s
    tune confirm
    has_mtu 9000
    tune undo
    has_mtu 1500
}

what_lasts_is_taken_over_by_systemd_and_grub() {
    mkdir -p /boot/grub
    [ -e /etc/default/grub ] || printf 'GRUB_DEFAULT=0\nGRUB_TIMEOUT=0\nGRUB_CMDLINE_LINUX=""\n' >/etc/default/grub
    # GRUB's configuration has an entry for each kernel in /boot; this one is QEMU's.
    echo kernel >"/boot/vmlinuz-$(uname -r)"
    update-grub
    cp /boot/grub/grub.cfg /boot/grub/grub.before
    tune apply "${wishes[@]}" --persist
    expect "the unit" "$(systemctl is-enabled farflash-tune)" enabled
    systemctl cat farflash-tune
    systemd-analyze verify --man=no farflash-tune.service
    local line
    line=$(grep -m 1 -o 'isolcpus=.*' /boot/grub/grub.cfg)
    expect "arguments of the kernel" "$(echo $line)" "isolcpus=$cores nohz_full=$cores rcu_nocbs=$cores"
    echo "$line" >/host/arguments
    cp /root/plan.json /root/before /host/
}

check "the machine is seen as it is" the_machine_is_seen
check "the kernel itself refuses to move managed interrupts" the_kernel_refuses_managed_interrupts
check "all is applied, what the kernel refuses is explained, a second apply changes nothing" \
    all_is_applied_and_refusals_are_explained
check "undo gives all back, byte for byte" undo_gives_all_back
check "kill -9 in the middle of an apply loses no old value" a_kill_in_the_middle_loses_nothing
check "an unconfirmed network setting is undone by a service of systemd" what_is_not_confirmed_is_undone_by_a_service
check "systemd and GRUB take over what is to last" what_lasts_is_taken_over_by_systemd_and_grub
summary
