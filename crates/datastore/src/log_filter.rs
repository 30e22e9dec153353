//! The choice of the log's lines that are written.

/// Names of levels, in the words of `FARFLASH_LOG`.
const LEVELS: [&str; 6] = ["off", "error", "warn", "info", "debug", "trace"];

/// A filter that asks for nothing that can be done.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[error(
    "FARFLASH_LOG is not used, since `{directive}` names no level; give one of off, error, warn, info, debug, trace"
)]
pub struct BadLogFilter {
    directive: String,
}

/// Returns the directives of a filter: a level, and levels of modules as `MODULE=LEVEL`, separated by commas. A word that is no
/// level is none of a module either: with one alone nothing would be logged.
///
/// # Errors
/// One of them names no level.
pub fn log_filter(wanted: &str) -> Result<String, BadLogFilter> {
    let directives = wanted.split(',').map(str::trim).filter(|directive| !directive.is_empty());
    let directives: Vec<&str> = directives.collect();
    let level = |directive: &str| {
        let (_, level) = directive.rsplit_once('=').unwrap_or(("", directive));
        LEVELS.iter().any(|name| name.eq_ignore_ascii_case(level))
    };
    match directives.iter().find(|directive| !level(directive)) {
        Some(directive) => Err(BadLogFilter { directive: (*directive).to_owned() }),
        None => Ok(directives.join(",")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_filter_is_levels_and_nothing_else() {
        let cases =
            [("", ""), (" error ", "error"), ("WARN", "WARN"), ("info, a=trace", "info,a=trace")];
        for (wanted, directives) in cases {
            assert_eq!(log_filter(wanted).as_deref(), Ok(directives));
        }
        for (wanted, wrong) in
            [("verbose", "verbose"), ("warning", "warning"), ("info,a=loud", "a=loud")]
        {
            let said = log_filter(wanted).expect_err("no level").to_string();
            assert!(said.contains(&format!("`{wrong}`")), "{said}");
        }
    }
}
