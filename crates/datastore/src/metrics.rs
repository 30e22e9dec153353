//! Metrics in their two forms: sections of `INFO`, and the text format of Prometheus.

use std::fmt::Write;

/// A section of `INFO`.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub enum Section {
    /// Version, settings.
    Server,
    /// Connections.
    Clients,
    /// Caches, memtables, buffers.
    Memory,
    /// Requests.
    Stats,
    /// Reads and writes of Flash, by size and rate.
    Flash,
    /// Flushes, compactions and stalls.
    Rocksdb,
    /// Keys, as Redis has them.
    Keyspace,
}

impl Section {
    const ALL: [Self; 7] = [
        Self::Server,
        Self::Clients,
        Self::Memory,
        Self::Stats,
        Self::Flash,
        Self::Rocksdb,
        Self::Keyspace,
    ];

    /// The section's name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Server => "Server",
            Self::Clients => "Clients",
            Self::Memory => "Memory",
            Self::Stats => "Stats",
            Self::Flash => "Flash",
            Self::Rocksdb => "RocksDB",
            Self::Keyspace => "Keyspace",
        }
    }
}

/// The kind of a metric.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Kind {
    /// Only grows.
    Counter,
    /// Goes up and down.
    Gauge,
    /// Text, which only `INFO` has.
    Text,
}

/// A value with its name. Metrics of one name and different labels follow each other.
#[derive(Clone, Debug)]
pub struct Metric {
    /// The section of `INFO`.
    pub section: Section,
    /// The name, without the prefix that Prometheus gets.
    pub name: &'static str,
    /// A label's name and value.
    pub label: Option<(&'static str, String)>,
    /// The kind.
    pub kind: Kind,
    /// One sentence for Prometheus.
    pub help: &'static str,
    /// The value.
    pub value: String,
}

/// The text of `INFO` for the sections of these names; all of them if none is named.
#[must_use]
pub fn info_text(metrics: &[Metric], sections: &[&[u8]]) -> String {
    const WHOLE: [&str; 3] = ["all", "everything", "default"];
    let named =
        |name: &str| sections.iter().any(|asked| asked.eq_ignore_ascii_case(name.as_bytes()));
    let whole = sections.is_empty() || WHOLE.iter().any(|name| named(name));
    let mut text = String::new();
    for section in Section::ALL.into_iter().filter(|section| whole || named(section.name())) {
        // Writing to a string does not fail.
        let _ =
            write!(text, "{}# {}\r\n", if text.is_empty() { "" } else { "\r\n" }, section.name());
        for metric in metrics.iter().filter(|metric| metric.section == section) {
            let label =
                metric.label.as_ref().map(|(_, value)| format!("_{value}")).unwrap_or_default();
            let _ = write!(text, "{}{label}:{}\r\n", metric.name, metric.value);
        }
    }
    text
}

/// The text that Prometheus scrapes.
#[must_use]
pub fn prometheus_text(metrics: &[Metric]) -> String {
    let mut text = String::new();
    let mut last = "";
    for metric in metrics {
        let kind = match metric.kind {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
            Kind::Text => continue,
        };
        let Metric { name, help, value, .. } = metric;
        if *name != last {
            let _ = write!(
                text,
                "# HELP farflash_datastore_{name} {help}\n# TYPE farflash_datastore_{name} {kind}\n"
            );
        }
        last = name;
        let label = metric.label.as_ref().map(|(label, value)| {
            let value = value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
            format!("{{{label}=\"{value}\"}}")
        });
        let _ = writeln!(text, "farflash_datastore_{name}{} {value}", label.unwrap_or_default());
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn metrics() -> Vec<Metric> {
        let metric = |section, name, label: Option<&str>, kind, value: &str| {
            let label = label.map(|label| ("class", label.to_owned()));
            Metric { section, name, label, kind, help: "Help.", value: value.to_owned() }
        };
        vec![
            metric(Section::Server, "version", None, Kind::Text, "1"),
            metric(Section::Stats, "requests_total", Some("read"), Kind::Counter, "5"),
            metric(Section::Stats, "requests_total", Some("wri\"te"), Kind::Counter, "6"),
            metric(Section::Clients, "connected_clients", None, Kind::Gauge, "2"),
        ]
    }

    #[test]
    fn info_has_the_sections_that_were_asked_for() {
        let text = info_text(&metrics(), &[b"STATS", b"clients"]);
        assert_eq!(
            text,
            "# Clients\r\nconnected_clients:2\r\n\r\n# Stats\r\nrequests_total_read:5\r\nrequests_total_wri\"te:6\r\n"
        );
        assert!(info_text(&metrics(), &[]).starts_with("# Server\r\nversion:1\r\n"));
        assert_eq!(info_text(&metrics(), &[b"nonsense"]), "");
    }

    #[test]
    fn prometheus_gets_each_family_once() {
        let text = prometheus_text(&metrics()[..3]);
        let expected = "# HELP farflash_datastore_requests_total Help.\n# TYPE farflash_datastore_requests_total counter\n\
            farflash_datastore_requests_total{class=\"read\"} 5\nfarflash_datastore_requests_total{class=\"wri\\\"te\"} 6\n";
        assert_eq!(text, expected);
    }
}
