//! Files that apply the settings at each boot: a systemd unit, and a fragment for GRUB.

use super::boot::arguments;
use super::{Context, Setting};
use crate::proposal::{Form, Proposal, Risk, Target};
use crate::root::Root;

pub(crate) const UNIT: &str = "/etc/systemd/system/farflash-tune.service";
const WANTED: &str = "/etc/systemd/system/multi-user.target.wants/farflash-tune.service";
pub(crate) const FRAGMENT: &str = "/etc/default/grub.d/farflash.cfg";
const UPDATE_GRUB: &str = "/usr/sbin/update-grub";

pub(super) const AT_BOOT: Setting = Setting {
    name: "boot-unit",
    about: "systemd unit that applies the settings at each boot, before the server starts",
    why: "a reboot takes back what was written to the running kernel",
    gain: "keeps the other settings over a reboot; no figure of its own",
    risk: Risk::Low,
    propose: unit,
};

pub(super) const ARGUMENTS: Setting = Setting {
    name: "boot-arguments",
    about: "GRUB's fragment with arguments of the kernel's command line",
    why: "isolation of CPUs is complete only if the kernel starts with it",
    gain: "see boot-isolcpus, boot-nohz-full and boot-rcu-nocbs",
    risk: Risk::Medium,
    propose: fragment,
};

fn unit(setting: &Setting, context: &Context<'_>) -> Vec<Proposal> {
    let Some(command) = &context.intent.at_boot else { return Vec::new() };
    let command: Vec<String> = command.iter().map(|word| quoted(word)).collect();
    let text = format!(
        "# Written by `farflash tune apply --persist`; `farflash tune undo` removes it.\n\
         [Unit]\n\
         Description=Settings of this host for low latency\n\
         Documentation=man:farflash-tune(1)\n\
         # Drives and cards that the kernel still looks for would be left out.\n\
         Wants=network-online.target systemd-udev-settle.service\n\
         # Services that set the same come first, so that they do not change it back.\n\
         After=network-online.target systemd-udev-settle.service systemd-sysctl.service tuned.service irqbalance.service\n\
         Before=farflash.service\n\
         \n\
         [Service]\n\
         Type=oneshot\n\
         RemainAfterExit=yes\n\
         ExecStart={}\n\
         \n\
         [Install]\n\
         WantedBy=multi-user.target\n",
        command.join(" ")
    );
    let file = setting.new_file(context, "unit", UNIT, (Form::Document, text));
    let link = setting.new_file(context, "enabled", WANTED, (Form::Link, UNIT.to_owned()));
    vec![file, link]
}

/// A word of a command in the notation of systemd's units.
fn quoted(word: &str) -> String {
    let escaped = word.replace('%', "%%").replace('$', "$$");
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_./:,=%$+@".contains(c);
    if !escaped.is_empty() && escaped.chars().all(is_plain) {
        return escaped;
    }
    format!("\"{}\"", escaped.replace('\\', "\\\\").replace('"', "\\\""))
}

/// True if arguments of the kernel can be kept in a fragment: Debian's GRUB reads it.
fn has_grub(root: &Root) -> bool {
    root.has("/etc/default/grub") && root.has(UPDATE_GRUB)
}

/// Those arguments are in the fragment that are not met, and those that the fragment is the reason for.
fn fragment(setting: &Setting, context: &Context<'_>) -> Vec<Proposal> {
    if context.intent.at_boot.is_none() {
        return Vec::new();
    }
    let before = context.root.text(FRAGMENT).unwrap_or_default();
    let is_ours = |name: &str| before.contains(&format!(" {name}="));
    let all = arguments(context).into_iter();
    let texts: Vec<String> =
        all.filter(|one| !one.is_met() || is_ours(one.name)).map(|one| one.text()).collect();
    if texts.is_empty() {
        return Vec::new();
    }
    let line = texts.join(" ");
    if !has_grub(context.root) {
        let then = format!("there is no GRUB of Debian; add to the kernel's command line: {line}");
        return vec![setting.proposal("host", Target::Advice, None, then)];
    }
    let text = format!(
        "# Written by `farflash tune apply --persist`; `farflash tune undo` removes it.\n\
         GRUB_CMDLINE_LINUX=\"$GRUB_CMDLINE_LINUX {line}\"\n"
    );
    vec![setting.new_file(context, "host", FRAGMENT, (Form::Document, text))]
}

/// A program that did not take a file over.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct NotRefreshed {
    /// The files.
    pub paths: Vec<String>,
    /// The error, with the program's name.
    pub reason: String,
}

/// Has the programs that read `paths` read them again: systemd its units, GRUB its fragments. A program that is
/// not there has nothing to read.
#[must_use]
pub fn refresh(root: &Root, paths: &[&str]) -> Vec<NotRefreshed> {
    let commands: [(&str, &[&str], &[&str]); 2] =
        [("systemctl", &["daemon-reload"], &[UNIT, WANTED]), ("update-grub", &[], &[FRAGMENT])];
    // Systemd is installed in many containers, and does not run.
    let runs_systemd = root.has("/run/systemd/system");
    let mut failed = Vec::new();
    for (program, arguments, files) in commands {
        let read: Vec<String> = files
            .iter()
            .filter(|file| paths.contains(file))
            .map(|file| (*file).to_owned())
            .collect();
        if read.is_empty() || program == "systemctl" && !runs_systemd {
            continue;
        }
        match root.run(program, arguments) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                failed.push(NotRefreshed { paths: read, reason: error.to_string() });
            }
            _ => {}
        }
    }
    failed
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_quoted_as_systemd_reads_them() {
        assert_eq!(quoted("--cores=2-7,9"), "--cores=2-7,9");
        assert_eq!(quoted("/a b/\"c\""), "\"/a b/\\\"c\\\"\"");
        assert_eq!(quoted("100%$x"), "100%%$$x");
        assert_eq!(quoted(""), "\"\"");
    }
}
