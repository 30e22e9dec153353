//! Load from many machines: the agent's command, and the coordinator's agents.

use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::Args;
use kv_load::{
    Agent, AgentAddress, AgentError, AgentEvent, Agents, Cause, Outcome, RunError, Setup,
};
use tls_files::{CERTIFICATE_FILE, Identity, TlsError, client_config, own_names, trusted_roots};
use user_messages::Failure;
use user_messages::output::note;

use crate::commands::token_file;

pub(super) const EXAMPLES: &str = "\
Examples:
  One secret for all, then an agent on each machine:
    (umask 077; openssl rand -hex 32 >agents-token)
    farflash kv-load agent --listen 0.0.0.0:7430 --tls /var/lib/kv-load --token-file agents-token

  The coordinator, which is given the certificates that the agents made:
    cat load-1.pem load-2.pem >agents.pem
    farflash kv-load --agent load-1:7430 --agent load-2:7430 --agent-ca agents.pem \\
      --agent-token-file agents-token --target 192.0.2.10:6379 --qps 200000

An agent does what a coordinator with the token says: it connects to any server, and puts load on it.
It serves one coordinator at a time, until it is ended.";

/// The least length of a token: one that can be guessed lets others aim the agents.
const TOKEN_LEN_MIN: usize = 16;

/// Arguments of `farflash kv-load agent`.
#[derive(Debug, Args)]
pub(crate) struct AgentArgs {
    /// Address for coordinators
    #[arg(long, value_name = "IP:PORT")]
    listen: SocketAddr,
    /// Directory of certificate.pem and key.pem; both are made if neither exists
    #[arg(long, value_name = "DIRECTORY")]
    tls: PathBuf,
    /// File with the token that coordinators have to show
    #[arg(long, value_name = "FILE")]
    token_file: PathBuf,
}

impl AgentArgs {
    pub(super) fn run(self) -> Result<(), Failure> {
        let token = token(&self.token_file)?;
        let no_tls = |error: TlsError| {
            let what = format!("the agent has no TLS: {error}");
            Failure::runtime(what, "name a directory of this agent's own with --tls")
        };
        let names = own_names(&[self.listen.ip()]);
        let identity =
            Identity::open_or_make(&self.tls, &names, "farflash kv-load agent").map_err(no_tls)?;
        let agent = Agent::new(&identity, token, tell).map_err(no_tls)?;
        let listener = TcpListener::bind(self.listen).map_err(|error| {
            let what = format!("{} cannot be listened on: {error}", self.listen);
            Failure::runtime(what, "choose another address with --listen")
        })?;
        let address = listener.local_addr().unwrap_or(self.listen);
        let certificate = self.tls.join(CERTIFICATE_FILE);
        note(&format!("agent on {address}, certificate {}", certificate.display()));
        agent.serve(&listener)
    }
}

fn tell(event: &AgentEvent) {
    note(&match event {
        AgentEvent::Begun { peer, target } => format!("{peer}: load on {target}"),
        AgentEvent::Done { peer } => format!("{peer}: done"),
        AgentEvent::Certificate(doubt) => doubt.text().to_owned(),
        AgentEvent::Deaf(error) => format!(
            "coordinators cannot be accepted, and wait: {error}; if files are lacking, raise their limit (ulimit -n)"
        ),
        AgentEvent::Ended { peer, cause } => format!("{peer}: ended: {cause}"),
    });
}

fn token(path: &Path) -> Result<String, Failure> {
    let token = token_file::read(path).map_err(|error| {
        let what = format!("{} cannot be read: {error}", path.display());
        Failure::usage(what, "name a readable file that holds a token")
    })?;
    if token.len() < TOKEN_LEN_MIN {
        let what = format!("the token in {} is too short", path.display());
        return Err(Failure::usage(
            what,
            "use one of 16 characters or more, such as `openssl rand -hex 32` makes",
        ));
    }
    Ok(token)
}

/// Arguments of a coordinator.
#[derive(Debug, Args)]
#[command(next_help_heading = "Agents")]
pub(super) struct CoordinatorArgs {
    /// Agent that makes the load, instead of this process; may be given several times
    #[arg(long, value_name = "HOST:PORT", requires_all = ["agent_ca", "agent_token_file"])]
    agent: Vec<AgentAddress>,
    /// Certificates by which agents are believed, in PEM: their own, or an authority's
    #[arg(long, value_name = "FILE", requires = "agent")]
    agent_ca: Option<PathBuf>,
    /// File with the agents' token
    #[arg(long, value_name = "FILE", requires = "agent")]
    agent_token_file: Option<PathBuf>,
}

/// The maker of the load.
pub(super) enum Maker {
    /// This process.
    Here,
    /// Agents.
    Agents(Agents),
}

impl CoordinatorArgs {
    pub(super) fn maker(&self) -> Result<Maker, Failure> {
        let (Some(authorities), Some(token_file)) = (&self.agent_ca, &self.agent_token_file) else {
            return Ok(Maker::Here);
        };
        let config = trusted_roots(Some(authorities))
            .and_then(|roots| client_config(roots, None))
            .map_err(|error| {
                Failure::usage(error.to_string(), "name the agents' certificates with --agent-ca")
            })?;
        let (token, tls) = (token(token_file)?, Arc::new(config));
        Ok(Maker::Agents(Agents { addresses: self.agent.clone(), token, tls }))
    }
}

impl Maker {
    pub(super) fn fill(&self, setup: &Setup) -> Result<Outcome, Failure> {
        match self {
            Self::Here => kv_load::fill(setup).map_err(|error| failed(&error)),
            Self::Agents(agents) => agents.fill(setup).map_err(|error| agent_failed(&error)),
        }
    }

    pub(super) fn run(&self, setup: &Setup) -> Result<Outcome, Failure> {
        match self {
            Self::Here => kv_load::run(setup).map_err(|error| failed(&error)),
            Self::Agents(agents) => agents.run(setup).map_err(|error| agent_failed(&error)),
        }
    }
}

fn failed(error: &RunError) -> Failure {
    let remedy = match error {
        RunError::Handshake { .. } | RunError::NoTls(_) => {
            "see that the server has TLS, and name its certificate, or that of its authority, with --tls-ca"
        }
        _ => "look at the server's log, and at --target",
    };
    Failure::runtime(error.to_string(), remedy)
}

fn agent_failed(error: &AgentError) -> Failure {
    let cause = match error {
        AgentError::Agent { cause, .. } => cause,
        AgentError::TooMany(_) => return Failure::usage(error.to_string(), "name fewer agents"),
        AgentError::Own(error) => return failed(error),
    };
    let remedy = match cause {
        Cause::Connect(_) => "see that `farflash kv-load agent` runs there",
        Cause::Channel(_) => {
            "name the certificate that the agent has in the directory of its --tls with --agent-ca; both sides have to be of \
             one version"
        }
        Cause::Refused(_) => {
            "see that both sides have one token, and that no other coordinator uses the agent"
        }
        Cause::Lost(_) => {
            "nothing of this run is used; see whether the agent's machine and the way to it are well, and run it again"
        }
        Cause::Failed(_) => "look at the server's log, and at --target as the agent sees it",
        Cause::Stopped => "see what the other agents say",
    };
    Failure::runtime(error.to_string(), remedy)
}
