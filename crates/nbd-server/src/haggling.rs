//! Options and their answers.

use alloc::borrow::ToOwned;
use alloc::vec::Vec;

use nbd_wire::{
    BlockSizes, HeaderStyle, InfoKind, InfoRequest, MetaContextRequest, NAME_BYTES_MAX, OptionCode,
    OptionReplyHeader, OptionReplyKind, TransmissionFlags, encode_export_name_reply,
    encode_info_block_size, encode_info_export, encode_info_name, encode_meta_context,
    encode_server,
};

use crate::BASE_ALLOCATION;
use crate::connection::{CloseReason, Connection, Outbox, Step};

/// The number of `base:allocation` on every connection.
pub(crate) const CONTEXT_ID: u32 = 1;

/// A server's offer of TLS.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum TlsOffer {
    /// It has no certificate.
    None,
    /// A client may begin it.
    Optional,
}

/// The reason for which a client asks for an export.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Purpose {
    /// To learn of it.
    Look,
    /// To open it.
    Open,
}

/// An export, as a client is told of it.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Export<'a> {
    /// The name of record.
    pub name: &'a str,
    /// A description for people, if there is one.
    pub description: Option<&'a str>,
    /// Its size.
    pub size_bytes: u64,
    /// Flags.
    pub flags: TransmissionFlags,
    /// Sizes of requests.
    pub sizes: BlockSizes,
}

/// Why a client does not get an export.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Refusal<'a> {
    /// There is none for this client, whatever the reason (NBD-SERVER-4).
    Unknown,
    /// It is elsewhere, or has no room; the message says so. Only for clients that may open it.
    Policy(&'a str),
    /// The server is ending, or the export is not served now.
    Shutdown,
}

/// An option that waits for the driver's answer.
#[derive(Debug)]
pub(crate) enum Asked {
    List,
    Info { option: OptionCode, infos: Vec<InfoKind>, name: alloc::string::String },
    ExportName { name: alloc::string::String },
    Contexts { option: OptionCode, name: alloc::string::String, is_wanted: bool },
}

impl Connection {
    /// Acts on an option that has come as a whole.
    pub(crate) fn on_option<'a>(
        &mut self,
        option: OptionCode,
        data: &[u8],
        out: &mut impl Outbox,
    ) -> Option<Step<'a>> {
        match option {
            OptionCode::EXPORT_NAME => {
                let name = core::str::from_utf8(data).ok();
                let Some(name) = name.filter(|name| name.len() <= NAME_BYTES_MAX) else {
                    return Some(self.end(CloseReason::NoSuchExport));
                };
                self.asked = Some(Asked::ExportName { name: name.to_owned() });
                Some(Step::Find { name: name.to_owned(), purpose: Purpose::Open })
            }
            OptionCode::ABORT => {
                self.acknowledge(option, out);
                Some(self.end(CloseReason::Aborted))
            }
            OptionCode::LIST if data.is_empty() => {
                self.asked = Some(Asked::List);
                Some(Step::List)
            }
            OptionCode::STARTTLS if data.is_empty() => self.on_start_tls(out),
            OptionCode::INFO | OptionCode::GO => self.on_info(option, data, out),
            OptionCode::STRUCTURED_REPLY if data.is_empty() => {
                self.is_structured = true;
                self.acknowledge(option, out);
                None
            }
            OptionCode::EXTENDED_HEADERS if data.is_empty() => {
                self.is_structured = true;
                self.style = HeaderStyle::Extended;
                self.acknowledge(option, out);
                None
            }
            OptionCode::LIST_META_CONTEXT | OptionCode::SET_META_CONTEXT => {
                self.on_contexts(option, data, out)
            }
            OptionCode::LIST
            | OptionCode::STARTTLS
            | OptionCode::STRUCTURED_REPLY
            | OptionCode::EXTENDED_HEADERS => {
                self.refuse_data(option, "the option has no data", out);
                None
            }
            _ => {
                self.refuse_option(option, OptionReplyKind::ERR_UNSUP, "not known here", out);
                None
            }
        }
    }

    fn on_start_tls<'a>(&mut self, out: &mut impl Outbox) -> Option<Step<'a>> {
        let option = OptionCode::STARTTLS;
        match self.tls {
            TlsOffer::None => {
                let kind = OptionReplyKind::ERR_POLICY;
                self.refuse_option(option, kind, "the server has no certificate", out);
                None
            }
            TlsOffer::Optional if self.is_encrypted => {
                self.refuse_data(option, "TLS was started before", out);
                None
            }
            TlsOffer::Optional => {
                self.acknowledge(option, out);
                Some(Step::StartTls)
            }
        }
    }

    fn on_info<'a>(
        &mut self,
        option: OptionCode,
        data: &[u8],
        out: &mut impl Outbox,
    ) -> Option<Step<'a>> {
        match InfoRequest::decode(data) {
            Ok(InfoRequest { name, infos }) => {
                let purpose = if option == OptionCode::GO { Purpose::Open } else { Purpose::Look };
                let name = name.to_owned();
                self.asked = Some(Asked::Info { option, infos, name: name.clone() });
                Some(Step::Find { name, purpose })
            }
            Err(error) => {
                self.refuse_data(option, &alloc::format!("{error}"), out);
                None
            }
        }
    }

    fn on_contexts<'a>(
        &mut self,
        option: OptionCode,
        data: &[u8],
        out: &mut impl Outbox,
    ) -> Option<Step<'a>> {
        let is_set = option == OptionCode::SET_META_CONTEXT;
        if is_set {
            // An attempt that fails leaves none chosen.
            self.context_of = None;
        }
        if !self.is_structured {
            self.refuse_data(option, "structured replies are to be asked for first", out);
            return None;
        }
        let request = match MetaContextRequest::decode(data) {
            Ok(request) => request,
            Err(error) => {
                self.refuse_data(option, &alloc::format!("{error}"), out);
                return None;
            }
        };
        let is_wanted = match is_set {
            true => request.queries.contains(&BASE_ALLOCATION),
            false => {
                let matches = |query: &&str| [BASE_ALLOCATION, "base:"].contains(query);
                request.queries.is_empty() || request.queries.iter().any(matches)
            }
        };
        let name = request.name.to_owned();
        self.asked = Some(Asked::Contexts { option, name: name.clone(), is_wanted });
        Some(Step::Find { name, purpose: Purpose::Look })
    }

    /// Answers [`Step::List`] with the names of exports.
    pub fn listed<'n>(&mut self, names: impl IntoIterator<Item = &'n str>, out: &mut impl Outbox) {
        let asked = self.asked.take();
        assert!(matches!(asked, Some(Asked::List)), "only after `Step::List`");
        for name in names {
            let kind = OptionReplyKind::SERVER;
            self.reply_option(OptionCode::LIST, kind, &encode_server(name), out);
        }
        self.acknowledge(OptionCode::LIST, out);
        self.option_answered();
    }

    /// Answers [`Step::Find`] with the export. Returns whether it is open from now on.
    pub fn found(&mut self, export: &Export<'_>, out: &mut impl Outbox) -> bool {
        match self.asked.take() {
            Some(Asked::ExportName { name }) => {
                let (size, flags) = (export.size_bytes, self.flags_of(export));
                out.bytes(&encode_export_name_reply(size, flags, self.has_padding));
                self.open(&name);
                true
            }
            Some(Asked::Info { option, infos, name }) => {
                self.tell(option, &infos, export, out);
                let opens = option == OptionCode::GO;
                if opens {
                    self.open(&name);
                } else {
                    self.option_answered();
                }
                opens
            }
            Some(Asked::Contexts { option, name, is_wanted }) => {
                if is_wanted {
                    let is_set = option == OptionCode::SET_META_CONTEXT;
                    let id = if is_set { CONTEXT_ID } else { 0 };
                    let data = encode_meta_context(id, BASE_ALLOCATION);
                    self.reply_option(option, OptionReplyKind::META_CONTEXT, &data, out);
                    if is_set {
                        self.context_of = Some(name);
                    }
                }
                self.acknowledge(option, out);
                self.option_answered();
                false
            }
            Some(Asked::List) | None => panic!("only after `Step::Find`"),
        }
    }

    /// Answers [`Step::Find`] with a refusal.
    pub fn refuse(&mut self, refusal: Refusal<'_>, out: &mut impl Outbox) {
        let option = match self.asked.take() {
            Some(Asked::ExportName { .. }) => {
                self.end(CloseReason::NoSuchExport);
                return;
            }
            Some(Asked::Info { option, .. } | Asked::Contexts { option, .. }) => option,
            Some(Asked::List) | None => panic!("only after `Step::Find`"),
        };
        let (kind, message) = match refusal {
            // Perhaps it may have it in TLS: said of all names alike (NBD-SERVER-4).
            Refusal::Unknown if self.tls == TlsOffer::Optional && !self.is_encrypted => {
                (OptionReplyKind::ERR_TLS_REQD, "no such export without TLS")
            }
            Refusal::Unknown => (OptionReplyKind::ERR_UNKNOWN, "no such export"),
            Refusal::Policy(message) => (OptionReplyKind::ERR_POLICY, message),
            Refusal::Shutdown => (OptionReplyKind::ERR_SHUTDOWN, "not served now"),
        };
        self.refuse_option(option, kind, message, out);
        self.option_answered();
    }

    fn open(&mut self, name: &str) {
        // What was chosen for another export does not hold for this one.
        self.has_context = self.context_of.as_deref() == Some(name);
        self.export_opened();
    }

    /// The flags of `export` that this connection can use.
    fn flags_of(&self, export: &Export<'_>) -> TransmissionFlags {
        match self.is_structured {
            true => export.flags.with(TransmissionFlags::SEND_DF),
            false => export.flags,
        }
    }

    fn tell(
        &mut self,
        option: OptionCode,
        infos: &[InfoKind],
        export: &Export<'_>,
        out: &mut impl Outbox,
    ) {
        let info = OptionReplyKind::INFO;
        let told = encode_info_export(export.size_bytes, self.flags_of(export));
        self.reply_option(option, info, &told, out);
        let told = encode_info_block_size(export.sizes);
        self.reply_option(option, info, &told, out);
        if infos.contains(&InfoKind::NAME) {
            let told = encode_info_name(InfoKind::NAME, export.name);
            self.reply_option(option, info, &told, out);
        }
        if let Some(description) =
            export.description.filter(|_| infos.contains(&InfoKind::DESCRIPTION))
        {
            let told = encode_info_name(InfoKind::DESCRIPTION, description);
            self.reply_option(option, info, &told, out);
        }
        self.acknowledge(option, out);
    }

    fn acknowledge(&mut self, option: OptionCode, out: &mut impl Outbox) {
        self.reply_option(option, OptionReplyKind::ACK, &[], out);
    }

    fn refuse_data(&mut self, option: OptionCode, why: &str, out: &mut impl Outbox) {
        self.refuse_option(option, OptionReplyKind::ERR_INVALID, why, out);
    }

    /// Refuses an option, in words that a client prints: many say no more of the option than its number.
    pub(crate) fn refuse_option(
        &mut self,
        option: OptionCode,
        kind: OptionReplyKind,
        why: &str,
        out: &mut impl Outbox,
    ) {
        self.reply_option(option, kind, alloc::format!("{option}: {why}").as_bytes(), out);
    }

    pub(crate) fn reply_option(
        &mut self,
        option: OptionCode,
        kind: OptionReplyKind,
        data: &[u8],
        out: &mut impl Outbox,
    ) {
        let len_bytes = u32::try_from(data.len()).expect("replies are short");
        out.bytes(&OptionReplyHeader { option, kind, len_bytes }.encode());
        out.bytes(data);
    }
}
