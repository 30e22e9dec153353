//! The meaning of requests: commands, their arguments, and errors for those that make no sense.
//!
//! Commands are rows of [`COMMANDS`]. A row's class says which threads serve it: readers, writers, or the
//! connection itself.

use resp::{Protocol, Request};

use crate::glob::matches;

/// The longest key. RocksDB reads whole keys at every step of a search, so they are to be short.
pub const KEY_LEN_MAX: usize = 32 << 10;
/// The longest name of a connection.
const CLIENT_NAME_LEN_MAX: usize = 256;

/// Keys that `SCAN` looks at if the client does not say, and at most.
const SCAN_COUNT: usize = 10;
const SCAN_COUNT_MAX: usize = 10_000;

/// The threads that serve a command.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Class {
    /// Reader threads.
    Read,
    /// Writer threads.
    Write,
    /// The connection's task.
    Session,
}

/// A command: its name, the least and the largest number of arguments with the name, its class.
type Row = (&'static str, usize, usize, Class);

const MANY: usize = usize::MAX;

const COMMANDS: &[Row] = &[
    ("append", 3, 3, Class::Write),
    ("auth", 2, 3, Class::Session),
    ("client", 2, MANY, Class::Session),
    ("command", 1, MANY, Class::Session),
    ("config", 2, MANY, Class::Session),
    ("dbsize", 1, 1, Class::Read),
    ("del", 2, MANY, Class::Write),
    ("echo", 2, 2, Class::Session),
    ("exists", 2, MANY, Class::Read),
    ("get", 2, 2, Class::Read),
    ("hello", 1, MANY, Class::Session),
    ("info", 1, MANY, Class::Session),
    ("mget", 2, MANY, Class::Read),
    ("mset", 3, MANY, Class::Write),
    ("ping", 1, 2, Class::Session),
    ("quit", 1, 1, Class::Session),
    ("scan", 2, MANY, Class::Read),
    ("select", 2, 2, Class::Session),
    ("set", 3, MANY, Class::Write),
    ("strlen", 2, 2, Class::Read),
    ("type", 2, 2, Class::Read),
    ("unlink", 2, MANY, Class::Write),
];

/// A request that cannot be served. Its text is the reply.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum CommandError {
    /// The server has no such command.
    #[error("ERR unknown command '{0}'")]
    Unknown(String),
    /// Too few or too many arguments.
    #[error("ERR wrong number of arguments for '{0}' command")]
    WrongNumber(String),
    /// An option that the command does not have, or two that exclude each other.
    #[error("ERR syntax error")]
    Syntax,
    /// An option of Redis that this server does not have.
    #[error("ERR option {0} of SET is not supported: keys do not expire")]
    NoExpiry(String),
    /// A number was expected.
    #[error("ERR value is not an integer or out of range")]
    NoInteger,
    /// A cursor that is none.
    #[error("ERR invalid cursor")]
    BadCursor,
    /// A key of more bytes than the server takes.
    #[error("ERR a key has {0} bytes, the limit is {KEY_LEN_MAX}")]
    KeyTooLong(usize),
    /// A value of more bytes than the server takes.
    #[error("ERR a value has {len} bytes, the limit is {limit} (--value-max)")]
    ValueTooLong {
        /// Bytes of the value.
        len: usize,
        /// Bytes allowed.
        limit: usize,
    },
    /// A version of the protocol that the server does not speak.
    #[error("NOPROTO unsupported protocol version")]
    NoProtocol,
    /// A connection's name with a blank or a special character, or too long.
    #[error(
        "ERR Client names cannot contain spaces, newlines or special characters, and have at most {CLIENT_NAME_LEN_MAX}"
    )]
    BadClientName,
    /// There is one database, with number 0.
    #[error("ERR DB index is out of range")]
    NoDatabase,
    /// A subcommand that the server does not have.
    #[error("ERR unknown subcommand '{subcommand}' of '{command}'")]
    UnknownSubcommand {
        /// The command.
        command: &'static str,
        /// Its first argument.
        subcommand: String,
    },
}

/// A request that reads.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Read<'a> {
    /// A value.
    Get(&'a [u8]),
    /// Values.
    MGet(Vec<&'a [u8]>),
    /// The number of keys that exist.
    Exists(Vec<&'a [u8]>),
    /// The length of a value.
    StrLen(&'a [u8]),
    /// The type of a value: all are strings.
    Type(&'a [u8]),
    /// The next keys.
    Scan(Scan<'a>),
    /// The number of keys.
    DbSize,
}

/// The arguments of `SCAN`.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Scan<'a> {
    /// 0, or a cursor from the reply before.
    pub cursor: u64,
    /// Only keys that match.
    pub pattern: Option<&'a [u8]>,
    /// Keys to look at.
    pub count: usize,
    /// False if the client asked for values of a type that no value has.
    pub strings: bool,
}

/// The condition of a `SET`.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Condition {
    /// Only if the key does not exist.
    Absent,
    /// Only if the key exists.
    Present,
}

/// A request that writes.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Write<'a> {
    /// Sets a value, or appends to it if the server's `SET` appends.
    Set {
        /// The key.
        key: &'a [u8],
        /// The value.
        value: &'a [u8],
        /// The condition.
        condition: Option<Condition>,
        /// The reply is the value before.
        returns_old: bool,
    },
    /// Sets values, all or none.
    MSet(Vec<(&'a [u8], &'a [u8])>),
    /// Deletes keys; the reply is the number of those that existed.
    Del(Vec<&'a [u8]>),
    /// Appends to a value; the reply is the new length.
    Append {
        /// The key.
        key: &'a [u8],
        /// The bytes to append.
        value: &'a [u8],
    },
}

/// A request about the connection or the server.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Session<'a> {
    /// Is the server there?
    Ping(Option<&'a [u8]>),
    /// The same bytes as the reply.
    Echo(&'a [u8]),
    /// Chooses the protocol's version.
    Hello {
        /// The version, if the client names one.
        protocol: Option<Protocol>,
        /// User and password.
        auth: Option<(&'a [u8], &'a [u8])>,
        /// The connection's new name.
        name: Option<&'a [u8]>,
    },
    /// User and password.
    Auth(&'a [u8], &'a [u8]),
    /// The connection's number.
    ClientId,
    /// A setting of the connection that is taken and has no effect, such as the version of its library.
    ClientSet,
    /// The connection's name.
    ClientName,
    /// Gives the connection a name; an empty one takes it away.
    ClientSetName(&'a [u8]),
    /// A list of commands, or of their documentation, which is empty: clients then do without.
    CommandList,
    /// The number of commands.
    CommandCount,
    /// Settings whose names match one of these patterns.
    ConfigGet(Vec<&'a [u8]>),
    /// Sections of the server's state.
    Info(Vec<&'a [u8]>),
    /// Chooses database 0.
    Select,
    /// Ends the connection.
    Quit,
}

fn text(bytes: &[u8]) -> String {
    // Names that a person mistyped are shown, and no more than that.
    String::from_utf8_lossy(&bytes[..bytes.len().min(64)]).into_owned()
}

/// The class of a request, and an error if the server has no such command.
///
/// # Errors
///
/// The command is unknown, or has another number of arguments.
pub fn classify(request: &Request) -> Result<Class, CommandError> {
    let (_, _, _, class) = row(request)?;
    Ok(*class)
}

fn row(request: &Request) -> Result<&'static Row, CommandError> {
    let name = request.get(0).unwrap_or_default();
    let row = COMMANDS.iter().find(|(known, ..)| name.eq_ignore_ascii_case(known.as_bytes()));
    let row = row.ok_or_else(|| CommandError::Unknown(text(name)))?;
    let wrong = !(row.1..=row.2).contains(&request.len());
    if wrong { Err(CommandError::WrongNumber(row.0.to_owned())) } else { Ok(row) }
}

/// The arguments behind the name, and the name as in the table.
fn parts(request: &Request) -> Result<(&'static str, Vec<&[u8]>), CommandError> {
    Ok((row(request)?.0, request.arguments().skip(1).collect()))
}

fn is(argument: &[u8], word: &str) -> bool {
    argument.eq_ignore_ascii_case(word.as_bytes())
}

fn number<T: std::str::FromStr>(argument: &[u8]) -> Result<T, CommandError> {
    let text = std::str::from_utf8(argument).ok();
    text.and_then(|text| text.parse().ok()).ok_or(CommandError::NoInteger)
}

fn checked_key(key: &[u8]) -> Result<&[u8], CommandError> {
    if key.len() > KEY_LEN_MAX { Err(CommandError::KeyTooLong(key.len())) } else { Ok(key) }
}

fn checked_keys<'a>(keys: &[&'a [u8]]) -> Result<Vec<&'a [u8]>, CommandError> {
    keys.iter().map(|key| checked_key(key)).collect()
}

fn checked_value(value: &[u8], limit: usize) -> Result<&[u8], CommandError> {
    if value.len() > limit {
        Err(CommandError::ValueTooLong { len: value.len(), limit })
    } else {
        Ok(value)
    }
}

/// Reads a request of class [`Class::Read`].
///
/// # Errors
///
/// The arguments make no sense, or the request is of another class.
pub fn parse_read(request: &Request) -> Result<Read<'_>, CommandError> {
    let (name, arguments) = parts(request)?;
    match (name, arguments.as_slice()) {
        ("get", [key]) => Ok(Read::Get(checked_key(key)?)),
        ("strlen", [key]) => Ok(Read::StrLen(checked_key(key)?)),
        ("type", [key]) => Ok(Read::Type(checked_key(key)?)),
        ("mget", keys) => Ok(Read::MGet(checked_keys(keys)?)),
        ("exists", keys) => Ok(Read::Exists(checked_keys(keys)?)),
        ("dbsize", _) => Ok(Read::DbSize),
        ("scan", [cursor, options @ ..]) => parse_scan(cursor, options),
        _ => Err(CommandError::Unknown(name.to_owned())),
    }
}

fn parse_scan<'a>(cursor: &[u8], options: &[&'a [u8]]) -> Result<Read<'a>, CommandError> {
    let cursor = number(cursor).map_err(|_| CommandError::BadCursor)?;
    let mut scan = Scan { cursor, pattern: None, count: SCAN_COUNT, strings: true };
    for option in options.chunks(2) {
        match option {
            [name, pattern] if is(name, "match") => scan.pattern = Some(checked_key(pattern)?),
            [name, count] if is(name, "count") => {
                scan.count = number::<usize>(count)?.min(SCAN_COUNT_MAX);
                if scan.count == 0 {
                    return Err(CommandError::Syntax);
                }
            }
            [name, kind] if is(name, "type") => scan.strings = is(kind, "string"),
            _ => return Err(CommandError::Syntax),
        }
    }
    Ok(Read::Scan(scan))
}

/// Reads a request of class [`Class::Write`], whose values have at most `value_max` bytes.
///
/// # Errors
///
/// The arguments make no sense, or the request is of another class.
pub fn parse_write(request: &Request, value_max: usize) -> Result<Write<'_>, CommandError> {
    let (name, arguments) = parts(request)?;
    match (name, arguments.as_slice()) {
        ("set", [key, value, options @ ..]) => {
            parse_set(checked_key(key)?, checked_value(value, value_max)?, options)
        }
        ("append", [key, value]) => {
            Ok(Write::Append { key: checked_key(key)?, value: checked_value(value, value_max)? })
        }
        ("del" | "unlink", keys) => Ok(Write::Del(checked_keys(keys)?)),
        ("mset", pairs) if pairs.len() % 2 == 0 => parse_mset(pairs, value_max),
        ("mset", _) => Err(CommandError::WrongNumber(name.to_owned())),
        _ => Err(CommandError::Unknown(name.to_owned())),
    }
}

fn parse_mset<'a>(pairs: &[&'a [u8]], value_max: usize) -> Result<Write<'a>, CommandError> {
    let pairs = pairs
        .chunks_exact(2)
        .map(|pair| Ok((checked_key(pair[0])?, checked_value(pair[1], value_max)?)));
    Ok(Write::MSet(pairs.collect::<Result<_, CommandError>>()?))
}

fn parse_set<'a>(
    key: &'a [u8],
    value: &'a [u8],
    options: &[&[u8]],
) -> Result<Write<'a>, CommandError> {
    const EXPIRY: [&str; 5] = ["ex", "px", "exat", "pxat", "keepttl"];
    let (mut condition, mut returns_old) = (None, false);
    for option in options {
        let given = match option {
            option if is(option, "nx") => Condition::Absent,
            option if is(option, "xx") => Condition::Present,
            option if is(option, "get") => {
                returns_old = true;
                continue;
            }
            option if EXPIRY.iter().any(|name| is(option, name)) => {
                return Err(CommandError::NoExpiry(text(option).to_uppercase()));
            }
            _ => return Err(CommandError::Syntax),
        };
        if condition.replace(given).is_some_and(|before| before != given) {
            return Err(CommandError::Syntax);
        }
    }
    Ok(Write::Set { key, value, condition, returns_old })
}

/// Reads a request of class [`Class::Session`].
///
/// # Errors
///
/// The arguments make no sense, or the request is of another class.
pub fn parse_session(request: &Request) -> Result<Session<'_>, CommandError> {
    let (name, arguments) = parts(request)?;
    match (name, arguments.as_slice()) {
        ("ping", []) => Ok(Session::Ping(None)),
        ("ping", [message]) => Ok(Session::Ping(Some(message))),
        ("echo", [message]) => Ok(Session::Echo(message)),
        ("hello", options) => parse_hello(options),
        ("auth", [password]) => Ok(Session::Auth(b"default", password)),
        ("auth", [user, password]) => Ok(Session::Auth(user, password)),
        ("client", [subcommand, options @ ..]) => parse_client(subcommand, options),
        ("command", [subcommand, ..]) if is(subcommand, "count") => Ok(Session::CommandCount),
        ("command", _) => Ok(Session::CommandList),
        ("config", [subcommand, patterns @ ..])
            if is(subcommand, "get") && !patterns.is_empty() =>
        {
            Ok(Session::ConfigGet(patterns.to_vec()))
        }
        ("config", [subcommand, ..]) => {
            Err(CommandError::UnknownSubcommand { command: "config", subcommand: text(subcommand) })
        }
        ("info", sections) => Ok(Session::Info(sections.to_vec())),
        ("select", [index]) => match number::<i64>(index)? {
            0 => Ok(Session::Select),
            _ => Err(CommandError::NoDatabase),
        },
        ("quit", _) => Ok(Session::Quit),
        _ => Err(CommandError::Unknown(name.to_owned())),
    }
}

fn parse_hello<'a>(options: &[&'a [u8]]) -> Result<Session<'a>, CommandError> {
    let (protocol, mut rest) = match options {
        [] => (None, options),
        [version, rest @ ..] => match number::<i64>(version) {
            Ok(2) => (Some(Protocol::Resp2), rest),
            Ok(3) => (Some(Protocol::Resp3), rest),
            _ => return Err(CommandError::NoProtocol),
        },
    };
    let (mut auth, mut name) = (None, None);
    while !rest.is_empty() {
        rest = match rest {
            [option, user, password, rest @ ..] if is(option, "auth") => {
                auth = Some((*user, *password));
                rest
            }
            [option, given, rest @ ..] if is(option, "setname") => {
                name = Some(client_name(given)?);
                rest
            }
            _ => return Err(CommandError::Syntax),
        };
    }
    Ok(Session::Hello { protocol, auth, name })
}

/// Checks a name: it stands in lists, where a blank ends it.
fn client_name(name: &[u8]) -> Result<&[u8], CommandError> {
    let fits = name.len() <= CLIENT_NAME_LEN_MAX && name.iter().all(u8::is_ascii_graphic);
    if fits { Ok(name) } else { Err(CommandError::BadClientName) }
}

fn parse_client<'a>(subcommand: &[u8], options: &[&'a [u8]]) -> Result<Session<'a>, CommandError> {
    const SET: [&str; 3] = ["setinfo", "no-evict", "no-touch"];
    match subcommand {
        subcommand if is(subcommand, "setname") => match options {
            [name] => Ok(Session::ClientSetName(client_name(name)?)),
            _ => Err(CommandError::WrongNumber("client|setname".to_owned())),
        },
        subcommand if is(subcommand, "id") => Ok(Session::ClientId),
        subcommand if is(subcommand, "getname") => Ok(Session::ClientName),
        subcommand if SET.iter().any(|name| is(subcommand, name)) => Ok(Session::ClientSet),
        _ => {
            Err(CommandError::UnknownSubcommand { command: "client", subcommand: text(subcommand) })
        }
    }
}

/// The settings whose names match one of `patterns`.
#[must_use]
pub fn config_get<'a>(
    settings: &'a [(&'static str, String)],
    patterns: &[&[u8]],
) -> Vec<&'a (&'static str, String)> {
    let asked = |name: &str| {
        patterns.iter().any(|pattern| matches(&pattern.to_ascii_lowercase(), name.as_bytes()))
    };
    settings.iter().filter(|(name, _)| asked(name)).collect()
}

/// The number of commands.
#[must_use]
pub fn command_count() -> usize {
    COMMANDS.len()
}

#[cfg(test)]
mod tests {
    use resp::{RequestDecoder, RequestLimits};

    use super::*;

    fn request(line: &str) -> Request {
        let limits = RequestLimits { arguments: 100, argument_len: 1 << 20, request_len: 1 << 20 };
        let bytes = format!("{line}\r\n");
        let decoded = RequestDecoder::new(limits).decode(&mut bytes.as_bytes());
        decoded.expect("a request").expect("a whole request")
    }

    /// The reply to a request that makes no sense.
    fn mistake(line: &str) -> String {
        let request = request(line);
        let error = match classify(&request) {
            Err(error) => Some(error),
            Ok(Class::Read) => parse_read(&request).err(),
            Ok(Class::Write) => parse_write(&request, 10).err(),
            Ok(Class::Session) => parse_session(&request).err(),
        };
        error.map_or_else(|| "none".to_owned(), |error| error.to_string())
    }

    #[test]
    fn requests_are_understood() {
        let set = request("set k v GET nx");
        let expected = Write::Set {
            key: b"k",
            value: b"v",
            condition: Some(Condition::Absent),
            returns_old: true,
        };
        assert_eq!(parse_write(&set, 10), Ok(expected));
        let mset = request("MSET a 1 b 2");
        assert_eq!(parse_write(&mset, 10), Ok(Write::MSet(vec![(b"a", b"1"), (b"b", b"2")])));
        let scan = request("SCAN 7 MATCH a* COUNT 99999999");
        let expected =
            Scan { cursor: 7, pattern: Some(b"a*"), count: SCAN_COUNT_MAX, strings: true };
        assert_eq!(parse_read(&scan), Ok(Read::Scan(expected)));
        let hello = request("hello 3 AUTH default pw SETNAME x");
        let expected = Session::Hello {
            protocol: Some(Protocol::Resp3),
            auth: Some((b"default", b"pw")),
            name: Some(b"x"),
        };
        assert_eq!(parse_session(&hello), Ok(expected));
    }

    #[test]
    fn each_mistake_has_its_reply() {
        let cases = [
            (
                "client setname a\u{e4}",
                "ERR Client names cannot contain spaces, newlines or special characters, and have at most 256",
            ),
            ("client setname", "ERR wrong number of arguments for 'client|setname' command"),
            ("nonsense", "ERR unknown command 'nonsense'"),
            ("get", "ERR wrong number of arguments for 'get' command"),
            ("GET a b", "ERR wrong number of arguments for 'get' command"),
            ("mset a", "ERR wrong number of arguments for 'mset' command"),
            ("mset a b c", "ERR wrong number of arguments for 'mset' command"),
            ("set k v nonsense", "ERR syntax error"),
            ("set k v nx xx", "ERR syntax error"),
            ("set k v ex 10", "ERR option EX of SET is not supported: keys do not expire"),
            ("set k 12345678901", "ERR a value has 11 bytes, the limit is 10 (--value-max)"),
            ("scan x", "ERR invalid cursor"),
            ("scan 0 count 0", "ERR syntax error"),
            ("scan 0 count", "ERR syntax error"),
            ("scan 0 count x", "ERR value is not an integer or out of range"),
            ("hello 4", "NOPROTO unsupported protocol version"),
            ("select 1", "ERR DB index is out of range"),
            ("config set a b", "ERR unknown subcommand 'set' of 'config'"),
            ("client kill", "ERR unknown subcommand 'kill' of 'client'"),
        ];
        for (line, reply) in cases {
            assert_eq!(mistake(line), reply, "{line}");
        }
        assert_eq!(
            mistake(&format!("get {}", "k".repeat(32769))),
            "ERR a key has 32769 bytes, the limit is 32768"
        );
    }

    /// A command of the table that no parser knows would be answered as unknown.
    #[test]
    fn every_command_of_the_table_is_parsed_by_its_class() {
        for (name, least, _, _) in COMMANDS {
            let options = [("scan", "0"), ("select", "0"), ("config", "get a"), ("client", "id")];
            let own = options
                .iter()
                .find(|(command, _)| command == name)
                .map(|(_, own)| (*own).to_owned());
            let line = format!("{name} {}", own.unwrap_or_else(|| "a ".repeat(least - 1)));
            let line = if *name == "mset" { "mset a b".to_owned() } else { line };
            assert_eq!(mistake(&line), "none", "{line}");
        }
    }

    #[test]
    fn settings_are_found_by_patterns() {
        let settings = [("save", String::new()), ("maxmemory", "1".to_owned())];
        assert_eq!(config_get(&settings, &[b"SAVE"]), [&settings[0]]);
        assert_eq!(config_get(&settings, &[b"max*", b"save"]).len(), 2);
        assert!(config_get(&settings, &[b"nonsense"]).is_empty());
    }
}
