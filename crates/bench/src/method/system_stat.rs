//! What the kernel counts for the whole machine: `/proc/stat`, `/proc/diskstats`, `/proc/net/dev`.

use std::fs;

/// Ticks of all processors (proc_stat(5)), 1/100 s each on every Linux that matters here.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct SystemStat {
    /// Programs, those with a lowered priority too.
    pub(crate) user: u64,
    /// System calls, interrupts and what they leave for later.
    pub(crate) system: u64,
    /// Without anything to run, in clock ticks of all processors.
    pub(crate) idle: u64,
    /// Idle with a read or write under way.
    pub(crate) wait: u64,
    /// Taken by the hypervisor for others.
    pub(crate) steal: u64,
    /// Events since boot.
    pub(crate) interrupts: u64,
    /// Of all processors since the machine started.
    pub(crate) context_switches: u64,
}

/// Bytes since boot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Traffic {
    /// Read from a disk, or received.
    pub(crate) inward: u64,
    /// Written to it, or sent.
    pub(crate) outward: u64,
}

impl SystemStat {
    /// Now.
    pub(crate) fn read() -> SystemStat {
        SystemStat::parse(&fs::read_to_string("/proc/stat").unwrap_or_default())
    }

    /// Out of /proc/stat; what a kernel leaves out counts as 0.
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

    /// Ticks in which a processor did something here.
    pub(crate) fn busy(&self) -> u64 {
        self.user + self.system
    }

    /// Ticks of all kinds.
    pub(crate) fn total(&self) -> u64 {
        self.busy() + self.idle + self.wait + self.steal
    }
}

/// What a disk (major, minor) has read and written.
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

/// What went over all interfaces, loopback among them.
pub(crate) fn network_traffic() -> Traffic {
    parse_network(&fs::read_to_string("/proc/net/dev").unwrap_or_default())
}

/// proc_pid_net(5): two lines of headings; then a name, eight figures of reception, eight of transmission.
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
    fn ticks_are_sorted_into_what_is_shown() {
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
    fn a_disk_is_found_by_its_numbers() {
        let text = "   7  0 loop0 1 0 8 0 0 0 0 0 0 0 0\n 254  0 vda 5 1 16 9 7 2 24 3 0 5 6 0\n 254  1 vda1 1 1 1 1 1 1 1 1\n";
        assert_eq!(parse_disk(text, (254, 0)), Traffic { inward: 16 * 512, outward: 24 * 512 });
        assert_eq!(parse_disk(text, (8, 0)), Traffic::default());
    }

    #[test]
    fn all_interfaces_are_added_up() {
        let text = "Inter-| Receive | Transmit\n face |bytes packets\n    lo: 100 1 0 0 0 0 0 0 200 1 0 0 0 0 0 0\n  eth0:7 1 0 0 0 0 0 0 8 1 0 0 0 0 0 0\n";
        assert_eq!(parse_network(text), Traffic { inward: 107, outward: 208 });
    }
}
