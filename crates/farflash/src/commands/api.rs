//! The connection to a server's API, and the tokens that authenticate its callers.

use std::ffi::OsString;
use std::io::Write;
use std::path::PathBuf;

use clap::Args;
use clap::builder::{OsStringValueParser, TypedValueParser};
use control::{ANSWER_LIMIT, ApiClient, ApiError, ApiToken, ApiUrl, VolumeName};
use farflash_client::ClusterOptions;
use user_messages::Failure;
use user_messages::output;

use super::token_file;

/// Ending the command does not stop the server.
const CHANGE_GOES_ON: &str = "; the change may be made also if you do not wait";

pub(super) const EXAMPLES: &str = "\
The token is shown once, with the entry for the list of users that `farflash serve --api-users` reads.
The list holds only what suffices to recognise the token. A tenant's entry takes a quota:

    [[tenant]]
    name = \"acme\"
    token_sha256 = \"...\"
    volumes = 10                # volumes at most
    provisioned = \"10TiB\"       # their sizes together
    allocated = \"4TiB\"          # what they hold of devices together
    share = 400                 # their shares together
    reads_per_second = 20000    # what they are promised together; none without
    writes_per_second = 5000

Examples:
  farflash api-token ops
  farflash api-token acme --tenant
  farflash api-token prometheus --reader";

/// The API of a server, and the means to reach it.
#[derive(Clone, Debug, Args)]
pub(super) struct ApiArgs {
    /// Address of the server's API; of several, separated by commas, the first that answers is asked
    #[arg(long, env = "FARFLASH_API", default_value = "http://127.0.0.1:7420", value_name = "URL")]
    api: String,
    /// The certificates that the API's is to be believed for, in PEM: its own, if it made that itself
    /// [default: those that this machine trusts]
    #[arg(long, env = "FARFLASH_API_CA", value_name = "FILE")]
    #[arg(value_parser = OsStringValueParser::new().try_map(certificates_file))]
    api_ca: Option<PathBuf>,
    /// A file with the token by which the API knows you
    /// [default: the token in $FARFLASH_API_TOKEN, if there is one]
    #[arg(long, value_name = "FILE")]
    api_token_file: Option<PathBuf>,
}

fn certificates_file(name: OsString) -> Result<PathBuf, &'static str> {
    match name.is_empty() {
        true => {
            Err("it is empty: name a file with --api-ca or FARFLASH_API_CA, or unset that variable")
        }
        false => Ok(name.into()),
    }
}

impl ApiArgs {
    /// A client of the first server that answers; of the only one without asking.
    pub(super) fn client(&self) -> Result<ApiClient, Failure> {
        let token = self.token()?;
        let urls = ApiUrl::parse_list(&self.api).map_err(ApiError::from)?;
        let (last, others) = urls.split_last().expect("a list that was parsed has an address");
        for url in others {
            let client = self.client_of(url, &token)?;
            match client.server_within(ANSWER_LIMIT) {
                Err(error) if error.is_no_answer() => {
                    output::note(&format!("{error}; asking another server"))
                }
                _ => return Ok(client),
            }
        }
        self.client_of(last, &token)
    }

    fn client_of(&self, url: &ApiUrl, token: &str) -> Result<ApiClient, Failure> {
        let client = ApiClient::waiting(url, self.api_ca.as_deref(), |awaiting| {
            let change = if awaiting.is_change { CHANGE_GOES_ON } else { "" };
            let limit = awaiting.limit.as_secs();
            output::note(&format!(
                "waiting for the answer of {}, {limit} s at most{change}",
                awaiting.url
            ));
        })?;
        Ok(if token.is_empty() { client } else { client.with_token(token) })
    }

    /// The servers of these addresses, for the libraries.
    pub(super) fn cluster(&self) -> Result<ClusterOptions, Failure> {
        let token = self.token()?;
        Ok(ClusterOptions {
            urls: self.api.split(',').map(|url| url.trim().to_owned()).collect(),
            api_token: (!token.is_empty()).then_some(token),
            api_ca: self.api_ca.clone(),
        })
    }

    fn token(&self) -> Result<String, Failure> {
        let Some(path) = &self.api_token_file else {
            let text = std::env::var("FARFLASH_API_TOKEN").unwrap_or_default();
            if text.trim().is_empty() {
                return Ok(String::new());
            }
            return auth::token_in(&text).map(str::to_owned).map_err(|error| {
                let what = format!("FARFLASH_API_TOKEN cannot be used: {error}");
                Failure::usage(
                    what,
                    "set it to the token alone, as `farflash api-token` printed it",
                )
            });
        };
        token_file::read(path).map_err(|error| {
            let what = format!("{} cannot be read: {error}", path.display());
            let remedy = "name a readable file that holds a token with --api-token-file";
            Failure::runtime(what, remedy)
        })
    }
}

/// Asks for a change. The caller is told if the audit log does not have all of it, and the command to `look`
/// with, if the change may have been made without an answer that says so.
pub(super) fn change<T>(
    client: &ApiClient,
    look: &str,
    ask: impl FnOnce(&ApiClient) -> Result<T, ApiError>,
) -> Result<T, Failure> {
    let before = client.incomplete_records();
    let answer = ask(client);
    if client.incomplete_records() > before {
        output::note(
            "warning: the audit log has what was asked, and not what came of it; see the server's log for why, and \
             give the audit log space",
        );
    }
    answer.map_err(|error| {
        let may_be_done = error.may_have_been_done();
        let failure = Failure::from(error);
        if !may_be_done {
            return failure;
        }
        failure.advising(format!("the change may have been made all the same: {look}"))
    })
}

/// Makes a token for a user of the API.
#[derive(Debug, Args)]
pub(crate) struct MakeToken {
    /// Name of the user: 1 to 63 of a-z, 0-9, `.`, `_` and `-`
    #[arg(value_parser = user_name)]
    name: VolumeName,
    /// A tenant, which manages volumes of its own; otherwise an operator, which may do everything
    #[arg(long)]
    tenant: bool,
    /// A reader, which may see metrics and figures, record requests of volumes, and nothing else, such as Prometheus
    #[arg(long, conflicts_with = "tenant")]
    reader: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Users are called as volumes may be.
fn user_name(text: &str) -> Result<VolumeName, &'static str> {
    text.parse().map_err(|_| {
        "a user's name has 1 to 63 of a-z, 0-9, `.`, `_` and `-`, and begins with one of the former"
    })
}

impl MakeToken {
    pub(crate) fn run(self) -> Result<(), Failure> {
        let mut random = [0; 32];
        let drawn = rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty());
        if drawn != Ok(random.len()) {
            let what = "the system has no random numbers";
            return Err(Failure::runtime(what, "try again when it has started up"));
        }
        let ApiToken { token, token_sha256 } = ApiToken::new(&random);
        let role = match (self.tenant, self.reader) {
            (true, _) => "tenant",
            (false, true) => "reader",
            (false, false) => "operator",
        };
        output::print("give the token somewhere to go", |out: &mut dyn Write| {
            if self.json {
                let name = self.name.as_str();
                let document = serde_json::json!({
                    "token": token, "role": role, "name": name, "token_sha256": token_sha256,
                });
                return writeln!(out, "{}", serde_json::to_string_pretty(&document)?);
            }
            writeln!(out, "for {}, shown this once:\n  {token}", self.name)?;
            writeln!(out, "for the list of users:")?;
            writeln!(out, "  [[{role}]]\n  name = \"{}\"", self.name)?;
            writeln!(out, "  token_sha256 = \"{token_sha256}\"")
        })
    }
}
