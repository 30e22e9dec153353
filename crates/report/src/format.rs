//! Quantities as people read them: three significant digits and a unit.

/// Three significant digits, without a trailing point.
fn three_digits(value: f64) -> String {
    let decimals = match value.abs() {
        v if v >= 99.95 || v == 0.0 => 0,
        v if v >= 9.995 => 1,
        _ => 2,
    };
    format!("{value:.decimals$}")
}

fn scaled(value: f64, step: f64, units: &[&str]) -> String {
    let mut value = value;
    let mut index = 0;
    while value.abs() >= step && index + 1 < units.len() {
        value /= step;
        index += 1;
    }
    if units[index].is_empty() {
        return three_digits(value);
    }
    format!("{} {}", three_digits(value), units[index])
}

/// Events in a second: `1.04 M`, `93.6 k`, `12`.
#[must_use]
pub fn rate(per_second: f64) -> String {
    scaled(per_second, 1000.0, &["", "k", "M", "G"])
}

/// Bytes in a second: `2.31 GB/s`.
#[must_use]
pub fn rate_bytes(per_second: f64) -> String {
    scaled(per_second, 1000.0, &["B/s", "kB/s", "MB/s", "GB/s"])
}

/// A time given in nanoseconds: `850 ns`, `10.7 µs`, `1.20 ms`, `3.00 s`.
#[must_use]
pub fn duration_ns(ns: f64) -> String {
    scaled(ns, 1000.0, &["ns", "µs", "ms", "s"])
}

/// A share of one: `45.2 %`.
#[must_use]
pub fn percent(share: f64) -> String {
    format!("{:.1} %", share * 100.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantities_keep_three_digits() {
        assert_eq!(rate(1_043_135.0), "1.04 M");
        assert_eq!(rate(93_570.0), "93.6 k");
        assert_eq!(rate(12.0), "12.0");
        assert_eq!(rate(0.0), "0");
        assert_eq!(duration_ns(10_687.0), "10.7 µs");
        assert_eq!(duration_ns(850.0), "850 ns");
        assert_eq!(rate_bytes(2.374e9), "2.37 GB/s");
        assert_eq!(percent(0.4519), "45.2 %");
    }
}
