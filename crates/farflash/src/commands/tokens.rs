//! Tokens on their way in and out: by files and the environment, never by arguments, which every user
//! of a machine can read.

use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use auth::Secret;
use clap::Args;
use client::Credentials;
use control::Tokens;
use serde::Serialize;
use serde_json::Value;

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

/// A new file for a token, which nobody else can read. It goes again unless a token was kept in it.
pub(super) struct TokenFile {
    path: PathBuf,
    file: File,
    is_kept: bool,
}

impl TokenFile {
    /// Makes the file, before anything is changed that would need it.
    pub(super) fn make(path: Option<PathBuf>) -> Result<Option<Self>, Failure> {
        let Some(path) = path else { return Ok(None) };
        let made = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path);
        match made {
            Ok(file) => Ok(Some(Self { path, file, is_kept: false })),
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {
                let what = format!("{} exists, and could be of use to somebody", path.display());
                let remedy = "name another file with --token-file, or remove this one";
                Err(Failure::usage(what, remedy))
            }
            Err(error) => {
                let what = format!("{} cannot be made: {error}", path.display());
                Err(Failure::runtime(what, "name a file that can be made with --token-file"))
            }
        }
    }

    /// Keeps the token of `tokens`.
    pub(super) fn keep(&mut self, tokens: &Tokens) -> Result<(), Failure> {
        let written = writeln!(self.file, "{}", tokens.token).and_then(|()| self.file.sync_all());
        self.is_kept = written.is_ok();
        written.map_err(|error| {
            let what = format!("the token cannot be written to {}: {error}", self.path.display());
            let remedy = "make new ones with `farflash volume change-auth`, to a file with space";
            Failure::runtime(what, remedy)
        })
    }
}

impl Drop for TokenFile {
    fn drop(&mut self) {
        if !self.is_kept {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// Says tokens; of one that is in `file`, where it is.
pub(super) fn print(
    out: &mut dyn Write,
    tokens: &Tokens,
    file: Option<&TokenFile>,
) -> std::io::Result<()> {
    writeln!(out, "what opens it, shown this once:")?;
    match file {
        Some(file) => writeln!(out, "  token             in {}", file.path.display())?,
        None => writeln!(out, "  token             {}", tokens.token)?,
    }
    writeln!(out, "  controller token  {}", tokens.controller_token)
}

/// `document` without the token, if that is in `file`.
pub(super) fn shown(document: &impl Serialize, file: Option<&TokenFile>) -> Value {
    let mut shown = serde_json::to_value(document).unwrap_or_default();
    if let (Some(_), Some(fields)) = (file, shown.as_object_mut()) {
        fields.remove("token");
    }
    shown
}
