#!/bin/bash
# The second boot: what lasts is in force, and is taken back.
. /tests/lib.sh

begin "wait for the drives"
within 240 [ -b /dev/nvme63n1 ] || exit 1
udevadm settle --timeout 60
card=$(queues_card)

the_kernel_isolates() {
    cat /proc/cmdline
    expect "isolated CPUs" "$(cat /sys/devices/system/cpu/isolated)" $cores
    expect "CPUs without a tick" "$(cat /sys/devices/system/cpu/nohz_full)" $cores
    # By the service, before this script began.
    expect "the unit" "$(systemctl is-active farflash-tune)" active
    expect "statistics" "$(cat /proc/sys/vm/stat_interval)" 10
    expect "workers" "$(cat /sys/devices/virtual/workqueue/cpumask)" 01
    tune verify
    tune plan "${wishes[@]}" --persist --json >/root/plan.json
    expect "settings that are not met" "$(jq -r '[.[] | select((.target | objects | .file) and .now != .then and .setting != "irq-drives"
        and .risk != "network") | "\(.setting) \(.subject): \(.now), not \(.then)"] | join("\n")' /root/plan.json)" ""
    tune apply "${wishes[@]}" --persist | tail -n 1 >/root/again
    grep 'Changed: 0 values' /root/again
}

all_is_taken_back() {
    tune undo | tail -n 3
    expect "statistics" "$(cat /proc/sys/vm/stat_interval)" 1
    [ ! -e /etc/systemd/system/farflash-tune.service ]
    [ ! -e /etc/default/grub.d/farflash.cfg ]
    [ ! -e /var/lib/farflash/tune.jsonl ]
    if systemctl cat farflash-tune; then return 1; fi
    diff /boot/grub/grub.before /boot/grub/grub.cfg
    tune apply "${wishes[@]}" >/dev/null
    tune undo >/dev/null
    expect "statistics" "$(cat /proc/sys/vm/stat_interval)" 1
}

check "after a reboot the CPUs are isolated and the settings are set again" the_kernel_isolates
check "undo takes back what lasts, in systemd and in GRUB" all_is_taken_back
summary
