//! Files that apply the settings at each boot: systemd units, and a fragment for GRUB.

use super::boot::arguments;
use super::priority::REALTIME;
use super::{Context, Role, Setting};
use crate::proposal::{Form, Proposal, Risk, Target};
use crate::root::Root;

pub(crate) const UNIT: &str = "/etc/systemd/system/farflash-tune.service";
const WANTED: &str = "/etc/systemd/system/multi-user.target.wants/farflash-tune.service";
const DROP_IN: &str = "/etc/systemd/system/farflash.service.d/tune.conf";
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

pub(super) const AT_START: Setting = Setting {
    name: "start-priority",
    about: "drop-in of farflash.service that gives the threads of its cores their priority at each start",
    why: "a server that starts, at a boot or later, has new threads, which have none",
    gain: "keeps realtime-priority over a restart; no figure of its own",
    risk: Risk::Low,
    propose: drop_in,
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

/// A drop-in, if the priority is to last.
fn drop_in(setting: &Setting, context: &Context<'_>) -> Vec<Proposal> {
    let Some(command) = &context.intent.at_boot else { return Vec::new() };
    if context.intent.role != Role::FlashServer || !(context.chosen)(REALTIME.name) {
        return Vec::new();
    }
    let text = format!(
        "# Written by `farflash tune apply --persist`; `farflash tune undo` removes it.\n\
         [Service]\n\
         # With all privileges, outside the sandbox of the service, which starts even if this fails.\n\
         ExecStartPost=-+{}\n",
        priority_alone(command).join(" ")
    );
    vec![setting.new_file(context, "farflash.service", DROP_IN, (Form::Document, text))]
}

/// The words of `command` for the priority alone. What they say of drives and cards, which may be gone at a start, is left out.
fn priority_alone(command: &[String]) -> Vec<String> {
    let (program, options) = command.split_at(command.len().min(3));
    let kept = ["--cores", "--record"];
    let pairs = options.windows(2).filter(|pair| kept.contains(&&*pair[0]));
    let only = ["--only".to_owned(), REALTIME.name.to_owned()];
    let words = program.iter().chain(pairs.flatten()).chain(&only);
    words.map(|word| quoted(word)).collect()
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
    let commands: [(&str, &[&str], &[&str]); 2] = [
        ("systemctl", &["daemon-reload"], &[UNIT, WANTED, DROP_IN]),
        ("update-grub", &[], &[FRAGMENT]),
    ];
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
    fn the_priority_takes_neither_drives_nor_cards() {
        let words = |text: &str| -> Vec<String> { text.split(' ').map(str::to_owned).collect() };
        let all = "/bin/farflash tune apply --role flash-server --cores 1-3 --drives sda --skip x --record /r --network";
        let alone = "/bin/farflash tune apply --cores 1-3 --record /r --only realtime-priority";
        assert_eq!(priority_alone(&words(all)), words(alone));
    }

    #[test]
    fn words_are_quoted_as_systemd_reads_them() {
        assert_eq!(quoted("--cores=2-7,9"), "--cores=2-7,9");
        assert_eq!(quoted("/a b/\"c\""), "\"/a b/\\\"c\\\"\"");
        assert_eq!(quoted("100%$x"), "100%%$$x");
        assert_eq!(quoted(""), "\"\"");
    }
}
