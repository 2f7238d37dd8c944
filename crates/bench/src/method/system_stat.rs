//! Counters of the complete machine: `/proc/stat`, `/proc/diskstats`, `/proc/net/dev`.

use std::fs;

/// Times of all processors in ticks (proc_stat(5)); a tick is 1/100 s on all relevant Linux systems.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct SystemStat {
    /// User mode, including processes with lowered priority.
    pub(crate) user: u64,
    /// Kernel mode: system calls, interrupts and softirqs.
    pub(crate) system: u64,
    /// Idle, in ticks of all processors.
    pub(crate) idle: u64,
    /// Idle with a read or write in flight (iowait).
    pub(crate) wait: u64,
    /// Time that the hypervisor gave to other virtual machines.
    pub(crate) steal: u64,
    pub(crate) interrupts: u64,
    /// Number of context switches of all processors since boot.
    pub(crate) context_switches: u64,
}

/// Byte counters since boot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Traffic {
    /// Bytes read from a disk, or received from a network.
    pub(crate) inward: u64,
    /// Bytes written to a disk, or sent to a network.
    pub(crate) outward: u64,
}

impl SystemStat {
    pub(crate) fn read() -> SystemStat {
        SystemStat::parse(&fs::read_to_string("/proc/stat").unwrap_or_default())
    }

    /// Parses /proc/stat; fields that the kernel omits count as 0.
    fn parse(text: &str) -> SystemStat {
        let mut stat = SystemStat::default();
        for line in text.lines() {
            let mut words = line.split_ascii_whitespace();
            let name = words.next().unwrap_or_default();
            let mut number = || words.next().and_then(|word| word.parse().ok()).unwrap_or(0);
            match name {
                // user nice system idle iowait irq softirq steal; guests are part of user.
                "cpu" => {
                    let fields: [u64; 8] = std::array::from_fn(|_| number());
                    stat.user = fields[0] + fields[1];
                    stat.system = fields[2] + fields[5] + fields[6];
                    (stat.idle, stat.wait, stat.steal) = (fields[3], fields[4], fields[7]);
                }
                "intr" => stat.interrupts = number(),
                "ctxt" => stat.context_switches = number(),
                _ => {}
            }
        }
        stat
    }

    pub(crate) fn busy(&self) -> u64 {
        self.user + self.system
    }

    pub(crate) fn total(&self) -> u64 {
        self.busy() + self.idle + self.wait + self.steal
    }
}

/// Returns the bytes that a disk (major, minor) has read and written.
pub(crate) fn disk_traffic(device: (u32, u32)) -> Traffic {
    parse_disk(&fs::read_to_string("/proc/diskstats").unwrap_or_default(), device)
}

/// Documentation/admin-guide/iostats.rst: sectors, of 512 bytes whatever the device, are the 6th and 10th words.
fn parse_disk(text: &str, device: (u32, u32)) -> Traffic {
    let wanted = [device.0.to_string(), device.1.to_string()];
    for line in text.lines() {
        let words: Vec<&str> = line.split_ascii_whitespace().collect();
        if words.len() > 9 && words[0] == wanted[0] && words[1] == wanted[1] {
            let bytes = |word: &str| word.parse::<u64>().unwrap_or(0) * 512;
            return Traffic { inward: bytes(words[5]), outward: bytes(words[9]) };
        }
    }
    Traffic::default()
}

/// Returns the traffic over all interfaces, including loopback.
pub(crate) fn network_traffic() -> Traffic {
    parse_network(&fs::read_to_string("/proc/net/dev").unwrap_or_default())
}

/// proc_pid_net(5): two heading lines; then per interface a name, eight receive counters and eight transmit counters.
fn parse_network(text: &str) -> Traffic {
    let mut sum = Traffic::default();
    for line in text.lines().skip(2) {
        let Some((_, figures)) = line.split_once(':') else { continue };
        let figures: Vec<u64> =
            figures.split_ascii_whitespace().filter_map(|word| word.parse().ok()).collect();
        sum.inward += figures.first().unwrap_or(&0);
        sum.outward += figures.get(8).unwrap_or(&0);
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_assigned_to_the_reported_categories() {
        let text = "cpu  10 1 20 300 5 2 3 7 4 0\ncpu0 1 1 1 1\nintr 900 1 2\nctxt 4000\nbtime 1\n";
        let wanted = SystemStat {
            user: 11,
            system: 25,
            idle: 300,
            wait: 5,
            steal: 7,
            interrupts: 900,
            context_switches: 4000,
        };
        assert_eq!(SystemStat::parse(text), wanted);
        assert_eq!(wanted.total(), 348);
    }

    #[test]
    fn a_disk_is_found_by_its_device_numbers() {
        let text = "   7  0 loop0 1 0 8 0 0 0 0 0 0 0 0\n 254  0 vda 5 1 16 9 7 2 24 3 0 5 6 0\n 254  1 vda1 1 1 1 1 1 1 1 1\n";
        assert_eq!(parse_disk(text, (254, 0)), Traffic { inward: 16 * 512, outward: 24 * 512 });
        assert_eq!(parse_disk(text, (8, 0)), Traffic::default());
    }

    #[test]
    fn all_interfaces_are_summed() {
        let text = "Inter-| Receive | Transmit\n face |bytes packets\n    lo: 100 1 0 0 0 0 0 0 200 1 0 0 0 0 0 0\n  eth0:7 1 0 0 0 0 0 0 8 1 0 0 0 0 0 0\n";
        assert_eq!(parse_network(text), Traffic { inward: 107, outward: 208 });
    }
}
