//! Files of a machine, for tests on trees.

use std::collections::BTreeMap;

use host_tune::CpuSet;

/// Content of files by path.
pub(crate) type Files = BTreeMap<String, Vec<u8>>;

pub(crate) fn put(files: &mut Files, path: impl Into<String>, content: impl AsRef<[u8]>) {
    files.insert(path.into(), content.as_ref().to_vec());
}

fn of_cpus(files: &mut Files, cpus: &CpuSet) {
    for cpu in cpus.iter() {
        let path = format!("/sys/devices/system/cpu/cpu{cpu}");
        put(files, format!("{path}/cpufreq/scaling_governor"), "powersave\n");
        let offered = format!("{path}/cpufreq/scaling_available_governors");
        put(files, offered, "performance powersave\n");
        for (state, latency) in [(0, 0), (1, 2), (2, 85)] {
            let state = format!("{path}/cpuidle/state{state}");
            put(files, format!("{state}/latency"), format!("{latency}\n"));
            put(files, format!("{state}/disable"), "0\n");
        }
    }
}

fn of_devices(files: &mut Files, cpus: &CpuSet, queues: u32) {
    let queue = "/sys/block/nvme0n1/queue";
    let values = [
        ("rotational", "0\n"),
        ("scheduler", "[mq-deadline] kyber none\n"),
        ("nomerges", "0\n"),
        ("rq_affinity", "1\n"),
        ("wbt_lat_usec", "2000\n"),
        ("nr_requests", "64\n"),
        ("io_poll", "1\n"),
        ("write_cache", "write back\n"),
    ];
    values.iter().for_each(|(file, value)| put(files, format!("{queue}/{file}"), value));
    put(files, "/sys/block/sda/queue/rotational", "1\n");
    put(files, "/sys/block/sda/queue/scheduler", "[mq-deadline] none\n");
    put(files, "/sys/block/loop0/queue/scheduler", "[none]\n");
    let nic = "/sys/class/net/eth0";
    put(files, format!("{nic}/device/numa_node"), "1\n");
    put(files, format!("{nic}/mtu"), "1500\n");
    let width = cpus.iter().last().map_or(1, |cpu| cpu + 1);
    for queue in 0..queues {
        put(
            files,
            format!("{nic}/queues/rx-{queue}/rps_cpus"),
            format!("{}\n", cpus.to_mask(width)),
        );
        let none = CpuSet::default().to_mask(width);
        put(files, format!("{nic}/queues/tx-{queue}/xps_cpus"), format!("{none}\n"));
    }
    put(files, "/sys/class/net/lo/mtu", "65536\n");
    let line = |number: u32, name: String| format!(" {number}:  1  2  PCI-MSIX  0-edge  {name}\n");
    let of_drive = (0..=queues).map(|queue| line(30 + queue, format!("nvme0q{queue}")));
    let first = 31 + queues;
    let of_nic = (0..queues).map(|queue| line(first + queue, format!("eth0-TxRx-{queue}")));
    let lines: String = of_drive.chain(of_nic).collect();
    put(files, "/proc/interrupts", format!("            CPU0       CPU1\n{lines}"));
    for number in 30..first + queues {
        put(files, format!("/proc/irq/{number}/smp_affinity_list"), format!("{cpus}\n"));
    }
}

/// Settings of a machine with these CPUs, a drive and a network card with a number of queues each.
pub(crate) fn settings_of(cpus: &CpuSet, queues: u32) -> Files {
    let mut files = Files::new();
    of_cpus(&mut files, cpus);
    of_devices(&mut files, cpus, queues);
    let mask = format!("{}\n", cpus.to_mask(1));
    let host = [
        ("/proc/irq/default_smp_affinity", mask.as_str()),
        ("/sys/devices/virtual/workqueue/cpumask", &mask),
        ("/proc/sys/net/ipv4/tcp_wmem", "4096\t16384\t4194304\n"),
        ("/proc/sys/net/ipv4/tcp_rmem", "4096\t131072\t6291456\n"),
        ("/proc/sys/net/ipv4/tcp_congestion_control", "bbr\n"),
        ("/proc/sys/net/ipv4/tcp_slow_start_after_idle", "1\n"),
        ("/sys/kernel/mm/transparent_hugepage/enabled", "always madvise [never]\n"),
        ("/proc/sys/vm/stat_interval", "1\n"),
        ("/proc/cmdline", "BOOT_IMAGE=/vmlinuz root=/dev/sda1 quiet\n"),
        ("/proc/77/comm", "irqbalance\n"),
        ("/etc/default/grub", "GRUB_DEFAULT=0\n"),
        ("/usr/sbin/update-grub", "#!/bin/sh\n"),
    ];
    host.iter().for_each(|(path, content)| put(&mut files, *path, content));
    files
}
