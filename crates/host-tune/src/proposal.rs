//! A proposal: one setting, its value now and then, and why.

use serde::{Deserialize, Serialize};

/// The notation of a setting's file.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Form {
    /// The value alone.
    Plain,
    /// All choices, the active one in brackets: `none [mq-deadline]`. One choice is written.
    Choice,
    /// Numbers apart by blanks or tabs.
    Words,
    /// A whole file, which need not be there.
    Document,
    /// A symbolic link: its value is what it names.
    Link,
    /// A directory: its value is empty.
    Directory,
    /// An offload of a network card: `on` or `off`.
    Feature,
    /// The number of receive queues that a card spreads packets over evenly.
    Spread,
    /// A rule by which a card steers packets: `tcp4 dst-port 4420 action 0`.
    Rule,
    /// Policy and priority of a thread: `fifo 10`.
    Priority,
}

impl Form {
    /// True for what a network card's driver keeps.
    #[must_use]
    pub fn is_of_card(self) -> bool {
        matches!(self, Self::Feature | Self::Spread | Self::Rule)
    }

    /// True for what programs read and write, as it has no file.
    #[must_use]
    pub fn is_of_program(self) -> bool {
        self.is_of_card() || self == Self::Priority
    }

    /// True for what need not be there before, and is removed by undo then.
    #[must_use]
    pub fn may_be_absent(self) -> bool {
        matches!(self, Self::Document | Self::Link | Self::Directory | Self::Rule)
    }

    /// The value that `content` of a file stands for.
    #[must_use]
    pub fn value(self, content: &str) -> String {
        if self == Self::Document {
            return content.to_owned();
        }
        let content = content.trim_end_matches(['\n', '\0', ' ']);
        match self {
            Self::Choice => {
                let active = content.split_once('[').and_then(|(_, rest)| rest.split_once(']'));
                active.map_or(content, |(active, _)| active).to_owned()
            }
            Self::Words => content.split_whitespace().collect::<Vec<_>>().join(" "),
            _ => content.to_owned(),
        }
    }

    /// True if `content` offers `value`; always for forms that do not list their choices.
    #[must_use]
    pub fn offers(self, content: &str, value: &str) -> bool {
        let lists = self == Self::Choice && content.contains('[');
        !lists || content.split_whitespace().any(|word| word.trim_matches(['[', ']']) == value)
    }
}

/// The place of a setting.
#[derive(Clone, Debug, Eq, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Target {
    /// A file below the root.
    File {
        /// Its path, or the key of a card's setting or of a thread (see `Card` and `Thread`).
        path: String,
        /// Its notation.
        form: Form,
    },
    /// An argument of the kernel's command line, in force after a reboot.
    KernelArgument {
        /// The argument's name, such as `isolcpus`.
        name: String,
    },
    /// A program or service that is not changed, only named.
    Advice,
}

/// The worst that a setting can do.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Risk {
    /// Slower at worst.
    Low,
    /// More power, heat, or unfairness to other work on the machine.
    Medium,
    /// May cut the network off: applied only if asked for, and undone unless confirmed.
    Network,
}

impl Risk {
    /// The name for people.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Low => "low",
            Self::Medium => "medium",
            Self::Network => "network",
        }
    }
}

/// The lifetime of a setting.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Lasting {
    /// The next reboot takes it back, unless the unit of `--persist` applies it again.
    UntilReboot,
    /// It is in force from the next reboot on.
    FromReboot,
    /// It stays until it is undone.
    Lasts,
    /// It depends on how the operator sets it.
    ByHand,
}

/// One proposed setting.
#[derive(Clone, Debug, Eq, PartialEq, Serialize)]
pub struct Proposal {
    /// The setting's name for `--only` and `--skip`, such as `irq-affinity`.
    pub setting: &'static str,
    /// The part of the machine: a CPU, a drive, a card, or the whole host.
    pub subject: String,
    /// Its place.
    pub target: Target,
    /// The value now; `None` if the file cannot be read.
    pub now: Option<String>,
    /// The proposed value.
    pub then: String,
    /// Why.
    pub why: &'static str,
    /// The expected gain, and where that was found.
    pub gain: &'static str,
    /// The worst that it can do.
    pub risk: Risk,
    /// Other programs or files that own the setting and may change it back.
    pub owners: Vec<String>,
}

impl Proposal {
    /// True if the value is already as proposed.
    #[must_use]
    pub fn is_met(&self) -> bool {
        self.now.as_deref() == Some(self.then.as_str())
    }

    /// The path of its file, if it is one.
    #[must_use]
    pub fn path(&self) -> Option<&str> {
        match &self.target {
            Target::File { path, .. } => Some(path),
            Target::KernelArgument { .. } | Target::Advice => None,
        }
    }

    /// The proposal's outcome over a reboot.
    #[must_use]
    pub fn lasting(&self) -> Lasting {
        match &self.target {
            Target::KernelArgument { .. } => Lasting::FromReboot,
            Target::Advice => Lasting::ByHand,
            Target::File { form: Form::Document | Form::Link | Form::Directory, .. } => {
                Lasting::Lasts
            }
            Target::File { .. } => Lasting::UntilReboot,
        }
    }

    /// True if it takes a reboot.
    #[must_use]
    pub fn needs_reboot(&self) -> bool {
        matches!(self.target, Target::KernelArgument { .. })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_choice_is_the_word_in_brackets_or_the_only_one() {
        assert_eq!(Form::Choice.value("mq-deadline [none] kyber\n"), "none");
        assert_eq!(Form::Choice.value("none\n"), "none");
        assert!(Form::Choice.offers("mq-deadline [none]", "mq-deadline"));
        assert!(!Form::Choice.offers("mq-deadline [none]", "bfq"));
        assert_eq!(Form::Words.value("4096\t131072\t6291456\n"), "4096 131072 6291456");
    }
}
