//! Settings of network cards that have no file: the program `ethtool` reads and writes them.
//!
//! A key stands for one of them where others have a path: `ethtool:eth0:feature:tso`,
//! `ethtool:eth0:spread:4` (with the number of queues) and `ethtool:eth0:rule:1000` (with its place).

use std::io;

use crate::root::Root;

/// A setting of a card.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct Card<'a> {
    nic: &'a str,
    part: &'a str,
    name: &'a str,
}

/// The offloads that are used here: the name that `ethtool -K` takes, and that `ethtool -k` prints.
const FEATURES: [(&str, &str); 3] = [
    ("tso", "tcp-segmentation-offload"),
    ("gro", "generic-receive-offload"),
    ("ntuple", "ntuple-filters"),
];

/// The key of an offload.
pub(crate) fn feature_key(nic: &str, feature: &str) -> String {
    format!("ethtool:{nic}:feature:{feature}")
}

/// The key of the spreading over `queues` receive queues.
pub(crate) fn spread_key(nic: &str, queues: u32) -> String {
    format!("ethtool:{nic}:spread:{queues}")
}

/// The key of the rule at `place` of the card's table.
pub(crate) fn rule_key(nic: &str, place: u32) -> String {
    format!("ethtool:{nic}:rule:{place}")
}

impl<'a> Card<'a> {
    /// The setting that `key` stands for. The name of an interface has no colon.
    pub(crate) fn parse(key: &'a str) -> Option<Self> {
        let mut parts = key.strip_prefix("ethtool:")?.splitn(3, ':');
        Some(Self { nic: parts.next()?, part: parts.next()?, name: parts.next()? })
    }

    /// The value now; `None` if the card does not have or does not tell it.
    pub(crate) fn read(&self, root: &Root) -> io::Result<Option<String>> {
        match self.part {
            "feature" => Ok(self.feature(&root.run("ethtool", &["-k", self.nic])?)),
            "spread" => Ok(spread(&root.run("ethtool", &["-x", self.nic])?)),
            _ => match root.run("ethtool", &["-n", self.nic, "rule", self.name]) {
                Ok(text) => Ok(rule(&text)),
                Err(error) if error.kind() == io::ErrorKind::NotFound => Err(error),
                // A place without a rule is an error of the driver, in words of its own.
                Err(_) => Ok(None),
            },
        }
    }

    /// Sets `value`; without one, removes a rule.
    pub(crate) fn write(&self, root: &Root, value: Option<&str>) -> io::Result<()> {
        let words: Vec<&str> = value.unwrap_or_default().split_whitespace().collect();
        let nic = self.nic;
        let arguments = match (self.part, words.as_slice()) {
            ("feature", [state]) => vec!["-K", nic, self.name, state],
            ("spread", [queues]) => vec!["-X", nic, "equal", queues],
            ("rule", []) => vec!["-N", nic, "delete", self.name],
            ("rule", rule) => [&["-N", nic, "flow-type"], rule, &["loc", self.name]].concat(),
            _ => return Err(io::ErrorKind::InvalidInput.into()),
        };
        root.limit().take(|| ())?;
        root.run("ethtool", &arguments).map(drop)
    }

    fn feature(&self, text: &str) -> Option<String> {
        let (_, shown) = FEATURES.iter().find(|(name, _)| *name == self.name)?;
        let value =
            text.lines().find_map(|line| line.trim().strip_prefix(shown)?.strip_prefix(':'))?;
        // One that is fixed cannot be changed.
        (!value.contains("[fixed]")).then(|| value.split_whitespace().next().map(str::to_owned))?
    }
}

/// The number of queues of an indirection table, if it spreads evenly: entry `n` names queue `n` modulo that
/// number, as `ethtool -X … equal` sets it. Another table could not be given back.
fn spread(text: &str) -> Option<String> {
    let rows = text.lines().filter_map(|line| {
        let (at, queues) = line.trim().split_once(':')?;
        at.parse::<u32>().ok()?;
        Some(queues.split_whitespace().filter_map(|queue| queue.parse::<u32>().ok()))
    });
    let entries: Vec<u32> = rows.flatten().collect();
    let queues = entries.iter().max()?.checked_add(1)?;
    let is_even = (0..).zip(&entries).all(|(at, queue): (u32, &u32)| at % queues == *queue);
    is_even.then(|| queues.to_string())
}

/// A rule in the words in which it is written, if it is one of a TCP port to a queue.
fn rule(text: &str) -> Option<String> {
    let of = |label: &str| {
        let line = text.lines().find_map(|line| line.trim().strip_prefix(label))?;
        line.trim_start_matches(':').split_whitespace().next().map(str::to_owned)
    };
    let kind = text.lines().find_map(|line| line.trim().strip_prefix("Rule Type:"))?.trim();
    let kind = if kind == "TCP over IPv4" { "tcp4" } else { "other" };
    let queue =
        text.lines().find_map(|line| line.trim().strip_prefix("Action: Direct to queue"))?;
    Some(format!("{kind} dst-port {} action {}", of("Dest port")?, queue.trim()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_name_the_card_the_part_and_the_name() {
        let key = feature_key("eth0.7", "tso");
        let card = Card::parse(&key).expect("a key");
        assert_eq!(card, Card { nic: "eth0.7", part: "feature", name: "tso" });
        assert_eq!(Card::parse("/sys/class/net/eth0/mtu"), None);
    }

    #[test]
    fn a_fixed_offload_is_none_that_can_be_set() {
        let text = "Features for eth0:\nrx-checksumming: on\ntcp-segmentation-offload: off\n\
                    \ttx-tcp-segmentation: off\ngeneric-receive-offload: on [fixed]\n";
        let of = |name| Card { nic: "eth0", part: "feature", name }.feature(text);
        assert_eq!(of("tso").as_deref(), Some("off"));
        assert_eq!((of("gro"), of("ntuple")), (None, None));
    }

    #[test]
    fn only_an_even_table_can_be_given_back() {
        let even = "RX flow hash indirection table for eth0 with 4 RX ring(s):\n    0:      0     1     2     3\n    \
                    4:      0     1     2     3\nRSS hash key:\n3f:1c:d4\nRSS hash function:\n    toeplitz: on\n";
        assert_eq!(spread(even).as_deref(), Some("4"));
        assert_eq!(
            spread(&even.replace("0     1     2     3\nRSS", "0     0     2     3\nRSS")),
            None
        );
        assert_eq!(spread("RX flow hash indirection table for eth0 with 1 RX ring(s):\n"), None);
        assert_eq!(spread("    0:      0     4294967295\n"), None);
    }

    #[test]
    fn a_rule_is_read_in_the_words_that_set_it() {
        let text = "Filter: 1000\n\tRule Type: TCP over IPv4\n\tSrc IP addr: 0.0.0.0 mask: 255.255.255.255\n\
                    \tSrc port: 0 mask: 0xffff\n\tDest port: 4421 mask: 0x0\n\tAction: Direct to queue 1\n";
        assert_eq!(rule(text).as_deref(), Some("tcp4 dst-port 4421 action 1"));
        assert_eq!(rule("rxclass: Cannot get RX class rule"), None);
    }
}
