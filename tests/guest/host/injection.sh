#!/bin/bash
# The interrupt of a card with bursts of packets is on the CPU that reads a drive, or on the other one. The profiler is told
# nothing of that, and the order is random.
. /suite/lib.sh

read_cpu=0 other_cpu=1
seconds=${SECONDS_EACH:-4}
# Longer than the reads that nothing holds up, and shorter than the handling of a burst.
slower_than_ms=3
slow_min=30
# Time between two bursts, in seconds.
pause=0.03
tracing=/sys/kernel/tracing
truth=$tracing/instances/truth

begin "make the drive and wait for the card"
card=$(basename "$(dirname "$(grep -l 52:54:00:00:09:15 /sys/class/net/*/address)")")
# Its timers send packets from the CPU that reads.
echo 1 >/proc/sys/net/ipv6/conf/all/disable_ipv6
ip address add 10.0.9.15/24 dev "$card"
ip link set "$card" up
queue=$(basename "$(readlink "/sys/class/net/$card/device")")-input.0
number_of() { awk -v name="$1" '$NF == name { sub(":", "", $1); print $1 }' /proc/interrupts; }
interrupt=$(number_of "$queue")
# What is sent has an interrupt of its own, with the same softirq behind it, and is never to disturb the CPU that reads.
echo $other_cpu >"/proc/irq/$(number_of "${queue/input/output}")/smp_affinity_list" || exit 1
# A timer of the CPU that reads completes each request. A drive that QEMU emulates is late whenever its host is busy.
modprobe null_blk queue_mode=2 irqmode=2 completion_nsec=100000 submit_queues=2 nr_devices=1 gb=1 || exit 1
drive=/dev/nullb0
within 60 [ -b $drive ] || exit 1
cp /program/farflash /tmp/farflash

# Asks the sender outside of the guest for a burst, again and again.
mkfifo /tmp/never
taskset -c $other_cpu bash -c 'exec 3<>/tmp/never 4>"/dev/udp/10.0.9.2/$0"
    while :; do echo >&4; read -r -t "$1" -u 3; done' "$BEGIN_PORT" "$pause" &
received() { cat "/sys/class/net/$card/statistics/rx_packets"; }
grows() { local before; before=$(received); sleep 1; [ $(($(received) - before)) -gt 500 ]; }
within 60 grows || exit 1

# A trace of the script's own, by which it finds out itself what held up a request.
mountpoint -q $tracing || mount -t tracefs tracefs $tracing
mkdir $truth
echo 0 >$truth/tracing_on
echo mono >$truth/trace_clock
echo 24576 >$truth/buffer_size_kb
echo 'count == 4096' >$truth/events/syscalls/sys_enter_pread64/filter
for event in syscalls/sys_enter_pread64 syscalls/sys_exit_pread64 irq/irq_handler_entry irq/irq_handler_exit irq/softirq_entry \
    irq/softirq_exit; do
    echo 1 >$truth/events/$event/enable || exit 1
done

# held_up NS: counts the reads of the last seconds that took longer: within the system call; and with the program's own time on
# both sides, to which the profiler's readings of the clock belong. The third number is that of those which the card did not hold
# up: for less than half of their excess the CPU handled its interrupt or the softirq behind it. The last is that of those during
# which the CPU handled either at all.
held_up() {
    grep -qx 'overrun: 0' $truth/per_cpu/cpu$read_cpu/stats || { echo "the script's own trace is not whole" >&2; return 1; }
    perl -e '
        my ($queue, $seconds, $slow_ns) = @ARGV;
        # Begin and end of each read in turn, each with the time that the card took until then.
        my (%marks, @open, $card, $last);
        while (<STDIN>) {
            my ($pid, $at, $event) = /-(\d+)\s+\[\d+\]\s+\S+\s+([\d.]+): (.*)/ or next;
            $card += $at - $last if grep { $_ } @open;
            $last = $at;
            if ($event =~ /^irq_handler_entry: .*name=(\S+)/) { push @open, $1 eq $queue }
            elsif ($event =~ /^softirq_entry: .*action=(\w+)/) { push @open, $1 eq "NET_RX" }
            elsif ($event =~ /^(?:irq_handler|softirq)_exit/) { pop @open }
            elsif ($event =~ /^sys_pread64\(/) { push @{$marks{$pid}}, [$at, $card] if @{$marks{$pid} // []} % 2 == 0 }
            elsif ($event =~ /^sys_pread64 ->/) { push @{$marks{$pid}}, [$at, $card] if @{$marks{$pid} // []} % 2 == 1 }
        }
        my ($marks) = sort { @$b <=> @$a } values %marks;
        my $measured = $marks->[-1][0] - $seconds;
        my (@within, @around);
        for (my $end = 3; $end + 1 < @$marks; $end += 2) {
            my ($previous, $begin, $end, $next) = @$marks[$end - 2 .. $end + 1];
            push @around, [$next->[0] - $previous->[0], $next->[1] - $previous->[1], $begin->[0] >= $measured];
            push @within, $end->[0] - $begin->[0] if $begin->[0] >= $measured;
        }
        my $usual = (sort { $a <=> $b } map { $_->[0] } @around)[@around / 2];
        my @slow = grep { $_->[2] && $_->[0] * 1e9 > $slow_ns } @around;
        my $others = grep { 2 * $_->[1] < $_->[0] - $usual } @slow;
        my $touched = grep { $_->[1] > 0 } @slow;
        printf "%d %d %d %d\n", scalar(grep { $_ * 1e9 > $slow_ns } @within), scalar @slow, $others, $touched;
    ' "$queue" "$seconds" "$1" <$truth/per_cpu/cpu$read_cpu/trace
}

# Interrupts of the card that came to the CPU that reads.
came_to_reader() { awk -v name="$queue" -v column=$((read_cpu + 2)) '$NF == name { print $column }' /proc/interrupts; }

# attributed CPU: the interrupt is moved there, and the drive is read.
attributed() {
    local at=$1 all named known least most others touched before slower_than=()
    # Where nothing holds up a read so long, the slowest thousandth of them is looked at.
    [ "$at" != $read_cpu ] || slower_than=(--slower-than ${slower_than_ms}ms)
    echo "$at" >"/proc/irq/$interrupt/smp_affinity_list"
    sleep 1
    before=$(came_to_reader)
    echo >$truth/trace
    echo 1 >$truth/tracing_on
    /tmp/farflash profile $drive --cpus $read_cpu --seconds "$seconds" "${slower_than[@]}" --json >/tmp/profile.json
    echo 0 >$truth/tracing_on
    read -r least most others touched < <(held_up "$(jq '.drives[0].slow.threshold_ns' /tmp/profile.json)")
    jq -c '.causes[:8][] | [.count, .cause]' /tmp/profile.json
    all=$(jq '[.causes[].count] | add // 0' /tmp/profile.json)
    # What an interrupt starts is finished by a softirq on its CPU, also within the kernel's thread for them. That thread's own
    # time is no sign of the card: it handles all softirqs.
    named=$(jq --arg queue "$queue" '[.causes[] | select(.cause | .kind == "interrupt" and (.name == $queue or .name == "NET_RX")) |
        .count] | add // 0' /tmp/profile.json)
    known=$(jq '[.causes[] | select(.cause.kind != "unknown") | .count] | add // 0' /tmp/profile.json)
    echo "$(jq '.drives[0].requests' /tmp/profile.json) requests; $least to $most slow, $others of them not by the card"
    echo "the profiler: $all slow, $named by the card, $((all - known)) unknown"
    if [ "$at" = $read_cpu ]; then
        [ $((most - others)) -ge $slow_min ] || { echo "the card held up fewer than $slow_min: the injection did nothing"; return 1; }
        # The measured time begins and ends in the midst of a read.
        [ "$all" -ge $((least - 2)) ] && [ "$all" -le $((most + 2)) ] || { echo "the profiler saw other slow requests"; return 1; }
        # Each request that the card did not hold up counts as one for which the profiler named it.
        [ $(((named - others) * 100)) -ge $((all * 90)) ] || { echo "not 90 % of $all have the right cause"; return 1; }
        [ $(((known - named + others) * 100)) -lt $((all * 2)) ] || { echo "2 % of $all or more have a wrong cause"; return 1; }
    else
        [ "$all" -gt 0 ] || { echo "no request was slow"; return 1; }
        expect "interrupts of the card on the CPU that reads" $(($(came_to_reader) - before)) 0
        # Other cards and timers start the same softirq.
        [ "$named" -le "$touched" ] || { echo "$named are attributed to it, and it ran during $touched"; return 1; }
    fi
}

# What cannot be brought about here, so that the day is noticed on which it can.
this_machine_has_neither_idle_states_nor_frequencies() {
    expect "driver of idle states" "$(cat /sys/devices/system/cpu/cpuidle/current_driver 2>/dev/null || echo none)" none
    expect "idle states" "$(ls -d /sys/devices/system/cpu/cpu0/cpuidle/state* 2>/dev/null | wc -l)" 0
    expect "frequencies" "$(ls -d /sys/devices/system/cpu/cpu0/cpufreq /sys/devices/system/cpu/cpufreq/policy* 2>/dev/null | wc -l)" 0
}

check "the machine has neither idle states nor frequencies to change" this_machine_has_neither_idle_states_nor_frequencies
for at in $(shuf -e $read_cpu $other_cpu); do
    case $at in
    "$read_cpu") check "the moved interrupt is named as the cause" attributed "$at" ;;
    *) check "the interrupt is not named while another CPU has it" attributed "$at" ;;
    esac
    sed 's/^/        /' "$LOG"
done
echo "$PASSED passed, $FAILED failed, $SKIPPED skipped"
[ "$FAILED" -eq 0 ] && [ "$PASSED" -gt 0 ]
