//! Users of a server's API, as an operator names them: tokens made by the program, and a list of their
//! owners.

use serde_json::Value;

use super::{Files, succeed};

/// A user of the API, and its entry in a list.
pub struct User {
    pub token: String,
    pub token_sha256: String,
    entry: String,
}

impl User {
    pub fn operator(name: &str) -> Self {
        Self::made(&[name])
    }

    pub fn reader(name: &str) -> Self {
        Self::made(&[name, "--reader"])
    }

    pub fn tenant(name: &str) -> Self {
        Self::made(&[name, "--tenant"])
    }

    fn made(words: &[&str]) -> Self {
        let made = succeed(&[&["api-token"], words, &["--json"]].concat());
        let made: Value = serde_json::from_str(&made).unwrap();
        let text = |field: &str| made[field].as_str().unwrap().to_owned();
        let (role, token_sha256) = (text("role"), text("token_sha256"));
        let entry =
            format!("[[{role}]]\nname = \"{}\"\ntoken_sha256 = \"{token_sha256}\"\n", words[0]);
        Self { token: text("token"), token_sha256, entry }
    }

    /// The user, in a list.
    pub fn entry(&self) -> String {
        self.entry.clone()
    }

    /// The same of a tenant with a quota: lines such as `volumes = 2`.
    pub fn bounded(&self, quota: &str) -> String {
        format!("{}{quota}\n", self.entry)
    }
}

/// Makes these entries the list of users, or the next one; where it is, as `--api-users` takes it.
pub fn list(files: &Files, entries: &[String]) -> String {
    let path = files.path("users.toml");
    std::fs::write(&path, entries.concat()).unwrap();
    path.to_str().unwrap().to_owned()
}
