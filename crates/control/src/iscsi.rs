//! The commands with which a Linux host connects a volume by iSCSI.
//!
//! ```text
//! CHAP_SECRET=…                      the secrets, or the commands that make them of the tokens
//! CHAP_TARGET_SECRET=…
//! iscsiadm -m discoverydb …          discovery, which needs the same secrets
//! iscsiadm -m node …                 the node record that this made, and the login
//! ```
//! A shell takes them as a script, which ends at a variable that is not set.

use std::net::SocketAddr;

use super::shell_word;

/// The variable with the secret by which the initiator proves itself.
const SECRET: &str = "CHAP_SECRET";
/// The variable with the secret by which the target does.
const TARGET_SECRET: &str = "CHAP_TARGET_SECRET";

/// The origin of the CHAP secrets in the commands of [`iscsi_connect`]. Without a form for debugging, which would show them.
#[derive(Clone, Copy)]
pub enum ChapSource<'a> {
    /// The secrets themselves.
    Secrets {
        /// The initiator's.
        initiator: &'a str,
        /// The target's.
        target: &'a str,
    },
    /// Files with tokens, which variables of the shell name: `TOKEN_FILE`, and `CONTROLLER_TOKEN_FILE` for a volume with a
    /// controller token.
    TokenFiles {
        /// The volume has a controller token.
        has_controller: bool,
    },
}

/// Returns the commands, a line each, with which a Linux host connects the target `name` of the volume `user` at `address`.
#[must_use]
pub fn iscsi_connect(
    name: &str,
    user: &str,
    address: SocketAddr,
    chap: Option<ChapSource<'_>>,
) -> String {
    let address = shell_word(&address.to_string());
    let node = format!("iscsiadm -m node -T {} -p {address}", shell_word(name));
    let Some(chap) = chap else {
        return [format!("{node} -o new"), format!("{node} --login")].join("\n");
    };
    let (secret, target_secret) = match chap {
        ChapSource::Secrets { initiator, target } => (shell_word(initiator), shell_word(target)),
        ChapSource::TokenFiles { has_controller } => {
            let token = "\"${TOKEN_FILE:?set it to the file with the token of the volume}\"";
            let controller =
                "\"${CONTROLLER_TOKEN_FILE:?set it to the file with the controller token}\"";
            let of_target = if has_controller { controller } else { token };
            (derived("initiator", token), derived("target", of_target))
        }
    };
    let discovery = format!("iscsiadm -m discoverydb -t sendtargets -p {address}");
    let credentials = |record: &str, auth: &str| {
        let set = |key: &str, value: &str| format!("{record} -o update -n {auth}.{key} -v {value}");
        [
            set("authmethod", "CHAP"),
            set("username", &shell_word(user)),
            set("password", &format!("\"${{{SECRET}:?not set}}\"")),
            set("username_in", &shell_word(name)),
            set("password_in", &format!("\"${{{TARGET_SECRET}:?not set}}\"")),
        ]
    };
    let mut lines = vec![format!("{SECRET}={secret}"), format!("{TARGET_SECRET}={target_secret}")];
    lines.push(format!("{discovery} -o new"));
    lines.extend(credentials(&discovery, "discovery.sendtargets.auth"));
    // `-o new` leaves the records of other volumes at this portal alone, which these credentials do not show.
    lines.push(format!("{discovery} --discover -o new"));
    lines.extend(credentials(&node, "node.session.auth"));
    lines.push(format!("{node} --login"));
    lines.join("\n")
}

/// Returns `commands` of [`iscsi_connect`] with secrets that are made of the tokens in these files instead of the secrets
/// themselves. What is in no file stays.
#[must_use]
pub fn iscsi_connect_by_files(
    commands: &str,
    token_file: Option<&str>,
    controller_token_file: Option<&str>,
) -> String {
    let files =
        [(SECRET, "initiator", token_file), (TARGET_SECRET, "target", controller_token_file)];
    let line_of = |line: &str| {
        let is_set = |variable: &str| line.split_once('=').is_some_and(|(set, _)| set == variable);
        files.into_iter().find_map(|(variable, side, file)| {
            let file = file.filter(|_| is_set(variable))?;
            Some(format!("{variable}={}", derived(side, &shell_word(file))))
        })
    };
    let lines: Vec<_> =
        commands.lines().map(|line| line_of(line).unwrap_or_else(|| line.to_owned())).collect();
    lines.join("\n")
}

/// The command that makes the secret of a side of the token in `file`, a word of a shell. Without a token it makes none.
fn derived(side: &str, file: &str) -> String {
    format!(
        "$(token=$(grep -om1 'DHHC-1:[!-~]*' -- {file}) && printf 'farflash iSCSI CHAP {side} 1' | \
         openssl dgst -sha256 -hmac \"$token\" -binary | head -c 12 | basenc --base64url)"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A shell stands for the host: `iscsiadm` is a function that prints its arguments, one in brackets after another.
    fn run(commands: &str, variables: &[(&str, &str)]) -> Vec<String> {
        let script = format!("iscsiadm() {{ printf '[%s]' \"$@\"; echo; }}\n{commands}\n");
        let mut shell = std::process::Command::new("sh");
        shell.args(["-c", &script]).env_remove("TOKEN_FILE").env_remove("CONTROLLER_TOKEN_FILE");
        let output = shell.envs(variables.iter().copied()).output().expect("a shell");
        let mut said: Vec<_> =
            String::from_utf8_lossy(&output.stdout).lines().map(str::to_owned).collect();
        if !output.status.success() {
            said.push(String::from_utf8_lossy(&output.stderr).into_owned());
        }
        said
    }

    const NAME: &str = "iqn.2026-01.io.farflash:6";
    const TOKEN: &str = "DHHC-1:01:BwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBweaWqZQ:";

    fn connect(chap: Option<ChapSource<'_>>) -> String {
        let address = "[2001:db8::7]:3260".parse().expect("an address");
        iscsi_connect(NAME, "6", address, chap)
    }

    /// Method: odd secrets, and an address with brackets, which a shell takes for a pattern.
    #[test]
    fn a_shell_hands_iscsiadm_the_secrets_as_they_are() {
        let chap = ChapSource::Secrets { initiator: "a b'$c", target: "-`d`" };
        let said = run(&connect(Some(chap)), &[]);
        let node = format!("[-m][node][-T][{NAME}][-p][[2001:db8::7]:3260]");
        for (key, value) in [
            ("authmethod", "CHAP"),
            ("username", "6"),
            ("password", "a b'$c"),
            ("username_in", NAME),
            ("password_in", "-`d`"),
        ] {
            let set = format!("[-o][update][-n][node.session.auth.{key}][-v][{value}]");
            assert!(said.contains(&format!("{node}{set}")), "{key}: {said:?}");
            let set = format!("[-o][update][-n][discovery.sendtargets.auth.{key}][-v][{value}]");
            let discovery = "[-m][discoverydb][-t][sendtargets][-p][[2001:db8::7]:3260]";
            assert!(said.contains(&format!("{discovery}{set}")), "{key}: {said:?}");
        }
        assert_eq!(said.last(), Some(&format!("{node}[--login]")));
        assert_eq!(said.len(), 13);
        let open = run(&connect(None), &[]);
        assert_eq!(open, [format!("{node}[-o][new]"), format!("{node}[--login]")]);
    }

    /// Method: the file has a comment and an odd name; the secrets were computed with another implementation.
    #[test]
    fn the_commands_make_the_secrets_of_files_with_tokens() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("it's db-1.token");
        std::fs::write(&file, format!("# of db-1\n{TOKEN}\r\n")).expect("a file");
        let file = file.to_str().expect("text");
        let secrets = ChapSource::Secrets { initiator: INITIATOR, target: TARGET };
        let expected = run(&connect(Some(secrets)), &[]);
        assert_eq!(expected.len(), 13, "{expected:?}");
        let of_one = connect(Some(ChapSource::TokenFiles { has_controller: false }));
        assert_eq!(run(&of_one, &[("TOKEN_FILE", file)]), expected);
        let of_two = connect(Some(ChapSource::TokenFiles { has_controller: true }));
        let both = [("TOKEN_FILE", file), ("CONTROLLER_TOKEN_FILE", file)];
        assert_eq!(run(&of_two, &both), expected);
        let kept = iscsi_connect_by_files(&connect(Some(secrets)), Some(file), Some(file));
        assert!(!kept.contains(INITIATOR) && !kept.contains(TARGET), "{kept}");
        assert_eq!(run(&kept, &[]), expected);
        let half = iscsi_connect_by_files(&connect(Some(secrets)), None, Some(file));
        assert!(half.contains(INITIATOR) && !half.contains(TARGET), "{half}");
        assert_eq!(run(&half, &[]), expected);
    }

    /// Method: no variable, a file that is not there, and one without a token.
    #[test]
    fn without_a_token_no_secret_is_set_and_nothing_is_asked() {
        let commands = connect(Some(ChapSource::TokenFiles { has_controller: true }));
        let files = |file| vec![("TOKEN_FILE", file), ("CONTROLLER_TOKEN_FILE", file)];
        for variables in [vec![], files("/absent"), files("/dev/null")] {
            let said = run(&commands, &variables);
            let (why, lines) = said.split_last().expect("a reason");
            assert!(why.contains("CHAP_SECRET"), "{said:?}");
            assert_eq!(variables.is_empty(), why.contains("TOKEN_FILE: set it to"), "{said:?}");
            let is_too_much = |line: &String| line.contains("password") || line.contains("--");
            assert!(!lines.iter().any(is_too_much), "{said:?}");
        }
    }

    const INITIATOR: &str = "h_OpG9udEUlBwS6f";
    const TARGET: &str = "s8jIjhF6cQu2Pzz7";
}
