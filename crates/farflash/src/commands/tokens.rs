//! Tokens on their way in and out: by files and the environment, never by arguments, which every user
//! of a machine can read.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use auth::Secret;
use clap::Args;
use client::Credentials;
use control::{CreatedVolume, Tokens, iscsi_connect_by_files};
use serde::Serialize;
use serde_json::Value;
use user_messages::Failure;

use super::token_file;
use super::volume::DONE;

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
    /// The credentials of the host, if it has any.
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
            let text = token_file::read(path).map_err(|error| {
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

/// Files for new tokens.
#[derive(Debug, Args)]
pub(super) struct NewTokenArgs {
    /// Write the token to this new file, which only its owner can read, instead of showing it; and the controller token
    /// to FILE.controller
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// Write the controller token to this new file, which only its owner can read, instead of showing it
    #[arg(long, value_name = "FILE")]
    controller_token_file: Option<PathBuf>,
}

impl NewTokenArgs {
    /// Makes the files, before anything is changed that would need them.
    pub(super) fn make(self) -> Result<NewTokens, Failure> {
        let Self { token_file, controller_token_file } = self;
        // If one token is not to be shown, neither is the other.
        let beside = token_file.as_ref().map(|path| {
            let mut beside = path.clone().into_os_string();
            beside.push(".controller");
            PathBuf::from(beside)
        });
        let controller = controller_token_file.or(beside);
        Ok(NewTokens {
            token: token_file.map(|path| TokenFile::make(path, "--token-file")).transpose()?,
            controller: controller
                .map(|path| TokenFile::make(path, "--controller-token-file"))
                .transpose()?,
        })
    }
}

/// The files for new tokens; of one that has none it is shown.
pub(super) struct NewTokens {
    token: Option<TokenFile>,
    controller: Option<TokenFile>,
}

impl NewTokens {
    /// Keeps what is to be in files.
    pub(super) fn keep(&mut self, tokens: &Tokens) -> Result<(), Failure> {
        let parts =
            [(&mut self.token, &tokens.token), (&mut self.controller, &tokens.controller_token)];
        for (file, token) in parts {
            if let Some(file) = file {
                file.keep(token)?;
            }
        }
        Ok(())
    }

    /// Has the commands that connect a new volume by iSCSI make their secrets of the tokens in files, where there are such.
    pub(super) fn keep_from(&self, made: &mut CreatedVolume) {
        let path = |file: &Option<TokenFile>| Some(file.as_ref()?.path.display().to_string());
        let (token, controller) = (path(&self.token), path(&self.controller));
        let commands = &mut made.volume.iscsi_connect;
        *commands = commands.take().map(|commands| {
            iscsi_connect_by_files(&commands, token.as_deref(), controller.as_deref())
        });
    }

    /// The message about tokens if they could not be printed.
    pub(super) fn unseen(&self) -> &'static str {
        match (&self.token, &self.controller) {
            (Some(_), Some(_)) => DONE,
            _ => {
                "the change was made, but the secrets that open the volume were not shown: make new tokens with \
                 `farflash volume change-auth`"
            }
        }
    }

    /// Says tokens; of those that are in files, where they are.
    pub(super) fn print(&self, out: &mut dyn Write, tokens: &Tokens) -> std::io::Result<()> {
        let shown = |file: &Option<TokenFile>, token: &str| match file {
            Some(file) => format!("in {}", file.path.display()),
            None => token.to_owned(),
        };
        writeln!(out, "what opens it, shown this once:")?;
        writeln!(out, "  token             {}", shown(&self.token, &tokens.token))?;
        let controller = shown(&self.controller, &tokens.controller_token);
        writeln!(out, "  controller token  {controller}")?;
        let made = [
            ("CHAP secret", &self.token, &tokens.chap_secret),
            ("of the target", &self.controller, &tokens.chap_target_secret),
        ];
        for (name, file, secret) in made {
            if let (None, Some(secret)) = (file, secret) {
                writeln!(out, "  {name:<18}{secret}")?;
            }
        }
        Ok(())
    }

    /// `document` without the tokens that are in files.
    pub(super) fn shown(&self, document: &impl Serialize) -> Value {
        let mut shown = serde_json::to_value(document).unwrap_or_default();
        if let Some(fields) = shown.as_object_mut() {
            fields.retain(|name, _| match name.as_str() {
                "token" | "chap_secret" => self.token.is_none(),
                "controller_token" | "chap_target_secret" => self.controller.is_none(),
                _ => true,
            });
        }
        shown
    }
}

/// A new file for a token, which no other user can read. It is removed again unless a token was kept in it.
struct TokenFile {
    path: PathBuf,
    file: File,
    is_kept: bool,
}

impl TokenFile {
    fn make(path: PathBuf, flag: &str) -> Result<Self, Failure> {
        let made = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path);
        match made {
            Ok(file) => Ok(Self { path, file, is_kept: false }),
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {
                let what = format!("{} exists, and may still be in use", path.display());
                let remedy = format!("name another file with {flag}, or remove this one");
                Err(Failure::usage(what, remedy))
            }
            Err(error) => {
                let what = format!("{} cannot be made: {error}", path.display());
                Err(Failure::runtime(what, format!("name a file that can be made with {flag}")))
            }
        }
    }

    fn keep(&mut self, token: &str) -> Result<(), Failure> {
        let written = writeln!(self.file, "{token}").and_then(|()| self.file.sync_all());
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
