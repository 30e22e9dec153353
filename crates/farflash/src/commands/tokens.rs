//! Tokens on their way in and out: by files and the environment, never by arguments, which every user
//! of a machine can read.

use std::fs::OpenOptions;
use std::io::{Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use auth::Secret;
use clap::Args;
use client::Credentials;
use control::Tokens;

use crate::failure::Failure;

/// More than any token has.
const TOKEN_BYTES_MAX: u64 = 256;

/// The tokens that open a volume.
#[derive(Clone, Debug, Args)]
pub(super) struct TokenArgs {
    /// A file with the volume's token [default: the token in $FARFLASH_TOKEN, if there is one]
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// A file with the token by which the server has to prove itself
    /// [default: that in $FARFLASH_CONTROLLER_TOKEN]
    #[arg(long, value_name = "FILE")]
    controller_token_file: Option<PathBuf>,
}

impl TokenArgs {
    /// What the host knows, if anything.
    pub(super) fn credentials(&self) -> Result<Option<Credentials>, Failure> {
        let secret = read(self.token_file.as_deref(), "--token-file", "FARFLASH_TOKEN")?;
        let controller_secret = read(
            self.controller_token_file.as_deref(),
            "--controller-token-file",
            "FARFLASH_CONTROLLER_TOKEN",
        )?;
        match (secret, controller_secret) {
            (Some(secret), controller_secret) => {
                Ok(Some(Credentials { secret, controller_secret }))
            }
            (None, None) => Ok(None),
            (None, Some(_)) => Err(Failure::usage(
                "the server is to prove itself, but there is no token by which the host does",
                "give --token-file or FARFLASH_TOKEN, too",
            )),
        }
    }
}

fn read(file: Option<&Path>, flag: &str, variable: &str) -> Result<Option<Secret>, Failure> {
    let (text, place) = match file {
        Some(path) => {
            let place = path.display().to_string();
            let read = OpenOptions::new().read(true).open(path).and_then(|file| {
                let mut text = String::new();
                file.take(TOKEN_BYTES_MAX).read_to_string(&mut text).map(|_| text)
            });
            let text = read.map_err(|error| {
                let what = format!("{place} cannot be read: {error}");
                Failure::runtime(
                    what,
                    format!("name a readable file that holds a token with {flag}"),
                )
            })?;
            (text, place)
        }
        None => match std::env::var(variable) {
            Ok(text) if !text.is_empty() => (text, format!("${variable}")),
            _ => return Ok(None),
        },
    };
    let secret = text.trim().parse().map_err(|error| {
        let what = format!("{place} holds no token: {error}");
        Failure::usage(what, "give it as `farflash volume create` has shown it")
    })?;
    Ok(Some(secret))
}

/// Says tokens, or writes the first of them to a file that nobody else can read.
pub(super) fn print(
    out: &mut dyn Write,
    tokens: &Tokens,
    token_file: Option<&Path>,
) -> std::io::Result<()> {
    match token_file {
        Some(path) => writeln!(out, "its token is in {}", path.display()),
        None => {
            writeln!(out, "what opens it, shown this once:")?;
            writeln!(out, "  token             {}", tokens.token)?;
            writeln!(out, "  controller token  {}", tokens.controller_token)
        }
    }
}

/// Writes a token to a new file that nobody else can read.
pub(super) fn keep(tokens: &Tokens, path: &Path) -> Result<(), Failure> {
    let written = open_new(path).and_then(|mut file| writeln!(file, "{}", tokens.token));
    written.map_err(|error| {
        let what = format!("the token cannot be written to {}: {error}", path.display());
        let remedy = "make new ones with `farflash volume change-auth`, to a file that can be made";
        Failure::runtime(what, remedy)
    })
}

/// Finds out before anything is changed whether [`keep`] can work.
pub(super) fn check(path: &Path) -> Result<(), Failure> {
    if path.exists() {
        let what = format!("{} exists, and could be of use to somebody", path.display());
        return Err(Failure::usage(
            what,
            "name another file with --token-file, or remove this one",
        ));
    }
    Ok(())
}

fn open_new(path: &Path) -> std::io::Result<std::fs::File> {
    OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)
}
