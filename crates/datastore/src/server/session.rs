//! Requests about the connection or the server.

use std::time::Duration;

use datastore::{
    Class, Serve, Session, classify, command_count, config_get, info_text, parse_session,
};
use resp::{Protocol, Reply, Request, RequestLimits};
use subtle::ConstantTimeEq;

use super::listen::Server;
use super::observe;

/// The version of Redis whose commands are offered, by which clients decide what to use.
const REDIS_VERSION: &str = "7.0.0";
/// A connection waits this long after a wrong password.
const PENALTY: Duration = Duration::from_millis(500);
/// Arguments of a request at most.
const ARGUMENTS_MAX: usize = 64 << 10;
/// Bounds before the password: enough for HELLO and AUTH.
const BEFORE_PASSWORD: RequestLimits =
    RequestLimits { arguments: 10, argument_len: 1 << 10, request_len: 4 << 10 };

/// Bounds of a connection's requests.
pub(crate) fn limits(serve: &Serve, authenticated: bool) -> RequestLimits {
    if !authenticated {
        return BEFORE_PASSWORD;
    }
    let size = |bytes: u64| usize::try_from(bytes).unwrap_or(usize::MAX);
    let argument_len = size(serve.value_max.0.max(datastore::KEY_LEN_MAX as u64));
    // One request takes at most half of the memory that all share.
    RequestLimits {
        arguments: ARGUMENTS_MAX,
        argument_len,
        request_len: size(serve.request_memory.0 / 2),
    }
}

/// The version of the protocol, user and password, and name, as far as a HELLO gives them.
type HelloOptions<'a> = (Option<Protocol>, Option<(&'a [u8], &'a [u8])>, Option<&'a [u8]>);

/// The state that a connection's own commands change.
#[derive(Debug)]
pub(crate) struct Identity {
    id: u64,
    pub(super) protocol: Protocol,
    pub(super) authenticated: bool,
    pub(super) quits: bool,
    /// Empty: it has none.
    name: Vec<u8>,
    /// The time to wait after a wrong password.
    pub(super) penalty: Option<Duration>,
}

impl Identity {
    pub(super) fn new(id: u64, authenticated: bool) -> Self {
        Self {
            id,
            protocol: Protocol::default(),
            authenticated,
            quits: false,
            name: Vec::new(),
            penalty: None,
        }
    }

    /// Appends the reply to a request. Before the password, all but a few are refused.
    pub(super) fn serve(&mut self, server: &Server, request: &Request, out: &mut Vec<u8>) {
        let parsed = match classify(request) {
            Ok(Class::Session) => parse_session(request).map_err(|error| error.to_string()),
            Ok(_) => Err("NOAUTH Authentication required.".to_owned()),
            Err(error) => Err(error.to_string()),
        };
        let done = parsed.and_then(|session| self.answer(server, &session, out));
        if let Err(error) = done {
            server.stats.errors.add(1);
            Reply::new(out, self.protocol).error(&error);
        }
    }

    fn answer(
        &mut self,
        server: &Server,
        session: &Session<'_>,
        out: &mut Vec<u8>,
    ) -> Result<(), String> {
        let is_open = matches!(session, Session::Hello { .. } | Session::Auth(..) | Session::Quit);
        if !self.authenticated && !is_open {
            return Err("NOAUTH Authentication required.".to_owned());
        }
        match session {
            Session::Hello { protocol, auth, name } => {
                return self.hello(server, (*protocol, *auth, *name), out);
            }
            Session::Auth(user, password) => self.authenticate(server, user, password)?,
            Session::Quit => self.quits = true,
            Session::ClientSetName(name) => self.name = name.to_vec(),
            _ => {}
        }
        let mut reply = Reply::new(out, self.protocol);
        match session {
            Session::Ping(None) => reply.status("PONG"),
            Session::Ping(Some(message)) | Session::Echo(message) => reply.bulk(message),
            Session::ClientId => reply.integer(self.id as i64),
            Session::ClientName if self.name.is_empty() => reply.null(),
            Session::ClientName => reply.bulk(&self.name),
            Session::CommandList => reply.array(0),
            Session::CommandCount => reply.integer(command_count() as i64),
            Session::ConfigGet(patterns) => {
                let found = config_get(&server.settings, patterns);
                reply.map(found.len());
                for (name, value) in found {
                    reply.bulk(name.as_bytes());
                    reply.bulk(value.as_bytes());
                }
            }
            Session::Info(sections) => reply.text(&info_text(&observe::metrics(server), sections)),
            _ => reply.status("OK"),
        }
        Ok(())
    }

    fn hello(
        &mut self,
        server: &Server,
        (protocol, auth, name): HelloOptions<'_>,
        out: &mut Vec<u8>,
    ) -> Result<(), String> {
        if let Some((user, password)) = auth {
            self.authenticate(server, user, password)?;
        }
        if !self.authenticated {
            return Err(
                "NOAUTH HELLO must be called with the client already authenticated, or with AUTH"
                    .to_owned(),
            );
        }
        self.protocol = protocol.unwrap_or(self.protocol);
        if let Some(name) = name {
            self.name = name.to_vec();
        }
        let version = if self.protocol == Protocol::Resp3 { 3 } else { 2 };
        let mut reply = Reply::new(out, self.protocol);
        let texts = [
            ("server", "redis"),
            ("version", REDIS_VERSION),
            ("mode", "standalone"),
            ("role", "master"),
        ];
        reply.map(texts.len() + 3);
        for (name, value) in texts {
            reply.bulk(name.as_bytes());
            reply.bulk(value.as_bytes());
        }
        for (name, value) in [("proto", version), ("id", self.id as i64)] {
            reply.bulk(name.as_bytes());
            reply.integer(value);
        }
        reply.bulk(b"modules");
        reply.array(0);
        Ok(())
    }

    fn authenticate(
        &mut self,
        server: &Server,
        user: &[u8],
        password: &[u8],
    ) -> Result<(), String> {
        let Some(expected) = &server.password else {
            return Err(
                "ERR AUTH called, but the server has no password (--password-file)".to_owned()
            );
        };
        // Takes the same time for any wrong password of the right length.
        if user == b"default" && bool::from(expected.as_slice().ct_eq(password)) {
            self.authenticated = true;
            return Ok(());
        }
        self.penalty = Some(PENALTY);
        Err("WRONGPASS invalid username-password pair or user is disabled.".to_owned())
    }
}

/// Settings by the names that Redis has for them, and by ours.
pub(crate) fn settings(serve: &Serve) -> Vec<(&'static str, String)> {
    let text = |value: &dyn std::fmt::Display| value.to_string();
    vec![
        ("maxmemory", text(&serve.memory.0)),
        ("maxclients", text(&serve.connections)),
        ("proto-max-bulk-len", text(&serve.value_max.0)),
        ("save", String::new()),
        (
            "appendonly",
            if serve.writes == datastore::Durability::Memtable { "no" } else { "yes" }.to_owned(),
        ),
        (
            "appendfsync",
            if serve.writes == datastore::Durability::Synced { "always" } else { "no" }.to_owned(),
        ),
        ("databases", "1".to_owned()),
        ("dir", serve.data.display().to_string()),
        ("port", text(&serve.listen.port())),
        ("timeout", "0".to_owned()),
        ("readers", text(&serve.readers)),
        ("writers", text(&serve.writers)),
        ("append-max", text(&serve.append_max.0)),
        ("busy-loop", text(&serve.busy_loop)),
    ]
}

/// The version for clients that ask `INFO`.
pub(crate) const fn redis_version() -> &'static str {
    REDIS_VERSION
}
