//! Refusals of the API in the words of the command line that asked: names of fields are those of options, and
//! paths of the API are left out.

use control::{Problem, ProblemCode};

/// Fields of requests, and the options that fill them.
const OPTIONS: [(&str, &str); 28] = [
    ("hosts", "--host"),
    ("networks", "--network"),
    ("interfaces", "--interface"),
    ("nbd.networks", "--nbd-network"),
    ("nbd.certificates", "--nbd-certificate"),
    ("nbd.unix", "--nbd-unix"),
    ("grace_seconds", "--grace"),
    ("size_bytes", "--size"),
    ("if_size_bytes", "--if-size"),
    ("lose_data", "--lose-data"),
    ("metadata_bytes", "--metadata"),
    ("sector_bytes", "--sector"),
    ("name", "NAME"),
    ("core", "--core"),
    ("device", "--device"),
    ("on", "--on"),
    ("owner", "--owner"),
    ("cut", "--cut"),
    ("policy", "--policy"),
    ("share", "--share"),
    ("reads_per_second", "--reads-per-second"),
    ("writes_per_second", "--writes-per-second"),
    ("latency_target_us", "--latency-target (in microseconds)"),
    ("write_cost_per_mille", "--write-cost (in thousandths)"),
    ("no_ceiling", "--no-ceiling"),
    ("bytes_per_second", "--rate"),
    ("seconds", "--for"),
    ("buffer_requests", "--buffer"),
];

/// Returns what is wrong and what to do.
pub(crate) fn in_options(problem: &Problem) -> (String, String) {
    let hint = match problem.code {
        ProblemCode::InvalidField if problem.hint.contains("openapi.json") => {
            "write it as the command's --help says".to_owned()
        }
        ProblemCode::UnknownPath | ProblemCode::MethodNotAllowed | ProblemCode::UnknownParameter => {
            "ask a server of the same release as this command; `farflash --version` has its release, and `farflash \
             status` the server's"
                .to_owned()
        }
        _ => without_paths(&named(&problem.hint)),
    };
    (without_paths(&named(&problem.detail)), hint)
}

/// Names of fields between backticks become those of options.
fn named(text: &str) -> String {
    let mut parts = text.split('`');
    let mut out = parts.next().unwrap_or_default().to_owned();
    let rest: Vec<&str> = parts.collect();
    for (index, part) in rest.iter().enumerate() {
        // Every second part stands between two.
        let is_quoted = index % 2 == 0 && index + 1 < rest.len();
        match option(part).filter(|_| is_quoted) {
            Some(option) => {
                out.push_str(option);
                continue;
            }
            None if index % 2 == 0 => out.push('`'),
            None => {}
        }
        out.push_str(part);
        if is_quoted {
            out.push('`');
        }
    }
    out
}

/// The option for a field, which may be one of a list or lie within others: `slo.rate.reads_per_second`, `hosts[0]`.
fn option(field: &str) -> Option<&'static str> {
    let find = |name: &str| OPTIONS.iter().find(|(field, _)| *field == name);
    let without_index = |part: &str| part.split('[').next().and_then(find);
    let last = field.rsplit('.').find(|part| part.parse::<usize>().is_err())?;
    without_index(field).or_else(|| without_index(last)).map(|(_, option)| *option)
}

/// Leaves out what is in parentheses for users of the API: ` (GET /v1/volumes)`.
fn without_paths(text: &str) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some(at) = rest.find(" (") {
        let (before, inside) = rest.split_at(at);
        out.push_str(before);
        let is_path = ["GET /", "DELETE /", "PATCH /", "POST /"]
            .iter()
            .any(|method| inside[2..].starts_with(method));
        match inside.find(')').filter(|_| is_path) {
            Some(end) => rest = &inside[end + 1..],
            None => {
                out.push_str(" (");
                rest = &inside[2..];
            }
        }
    }
    out + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_named_as_options_and_nothing_else_is() {
        for (told, shown) in [
            ("`hosts[0]`: `x`: no NQN", "--host: `x`: no NQN"),
            ("`nbd.networks[1]`: `x`: no network", "--nbd-network: `x`: no network"),
            ("`restrictions.networks[0]`: `x`", "--network: `x`"),
            ("`slo.rate.reads_per_second`: too large", "--reads-per-second: too large"),
            (
                "give both `reads_per_second` and `writes_per_second`",
                "give both --reads-per-second and --writes-per-second",
            ),
            ("leave `core` out, or choose one of 0", "leave --core out, or choose one of 0"),
            ("there is no volume `a`", "there is no volume `a`"),
            ("list with `farflash volume list`", "list with `farflash volume list`"),
            ("a lone ` is kept", "a lone ` is kept"),
            ("", ""),
        ] {
            assert_eq!(named(told), shown);
        }
        assert_eq!(
            without_paths("see `farflash quota` (GET /v1/quota) for it (all)"),
            "see `farflash quota` for it (all)"
        );
    }

    #[test]
    fn advice_is_about_the_command() {
        let problem = |code, hint: &str| Problem::new(code, "no", hint);
        let field =
            problem(ProblemCode::InvalidField, "the fields are described by GET /v1/openapi.json");
        assert!(in_options(&field).1.contains("--help"));
        let path =
            problem(ProblemCode::UnknownPath, "the paths are listed by GET /v1/openapi.json");
        assert!(in_options(&path).1.contains("same release"));
    }
}
