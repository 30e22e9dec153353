//! Negotiation of operational keys (RFC 7143, clauses 6 and 13).

use alloc::borrow::ToOwned;
use alloc::string::{String, ToString};

use iscsi_wire::text::number;

use crate::limits::Limits;

/// Least value of a length that is negotiated.
const LENGTH_MIN: u64 = 512;
/// Largest value of a length that is negotiated.
const LENGTH_MAX: u64 = (1 << 24) - 1;
/// Seconds that an initiator waits before it comes again.
const TIME2WAIT: u64 = 2;

/// The parameters that a connection has agreed on. The defaults hold for what is not negotiated.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Parameters {
    /// Headers have a digest.
    pub header_digest: bool,
    /// Data has a digest.
    pub data_digest: bool,
    /// Data comes only when an R2T asks for it.
    pub initial_r2t: bool,
    /// Data may come with its command.
    pub immediate_data: bool,
    /// Data of one PDU that the initiator takes.
    pub send_max: u32,
    /// Data of one R2T, or of one sequence of Data-Ins.
    pub burst_max: u32,
    /// Data that comes without an R2T.
    pub first_burst_max: u32,
    /// R2Ts of one command that are outstanding.
    pub r2t_max: u16,
}

impl Default for Parameters {
    fn default() -> Self {
        Self {
            header_digest: false,
            data_digest: false,
            initial_r2t: true,
            immediate_data: true,
            send_max: 8192,
            burst_max: 256 << 10,
            first_burst_max: 64 << 10,
            r2t_max: 1,
        }
    }
}

/// The answer to a key.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) enum Answer {
    /// None is expected: the key only declares.
    Silence,
    /// This value.
    Value(String),
}

impl Answer {
    pub(crate) fn text(text: &str) -> Self {
        Self::Value(text.to_owned())
    }
}

/// The answer to a value that the key cannot have.
const REJECT: &str = "Reject";
/// The answer to a key that is not known.
const NOT_UNDERSTOOD: &str = "NotUnderstood";

impl Parameters {
    /// Takes in a key that the initiator offers.
    pub(crate) fn negotiate(&mut self, key: &str, value: &str, limits: &Limits) -> Answer {
        let answer = match key {
            "HeaderDigest" => self.digest(value, |own| &mut own.header_digest),
            "DataDigest" => self.digest(value, |own| &mut own.data_digest),
            "InitialR2T" => boolean(value).map(|theirs| {
                self.initial_r2t = theirs;
                yes_or_no(theirs)
            }),
            "ImmediateData" => boolean(value).map(|theirs| {
                self.immediate_data = theirs;
                yes_or_no(theirs)
            }),
            "MaxRecvDataSegmentLength" => {
                let Some(value) = length(value) else { return Answer::text(REJECT) };
                self.send_max = value;
                return Answer::Silence;
            }
            "MaxBurstLength" => length(value).map(|theirs| {
                self.burst_max = theirs.min(limits.burst_max);
                self.first_burst_max = self.first_burst_max.min(self.burst_max);
                self.burst_max.to_string()
            }),
            "FirstBurstLength" => length(value).map(|theirs| {
                self.first_burst_max = theirs.min(limits.first_burst_max).min(self.burst_max);
                self.first_burst_max.to_string()
            }),
            "MaxOutstandingR2T" => in_range(value, 1, 65_535).map(|theirs| {
                let theirs = u16::try_from(theirs).unwrap_or(u16::MAX);
                self.r2t_max = theirs.min(limits.r2t_max);
                self.r2t_max.to_string()
            }),
            "InitiatorAlias" => return Answer::Silence,
            _ => constant(key, value),
        };
        Answer::Value(answer.unwrap_or_else(|| REJECT.to_owned()))
    }

    fn digest(&mut self, offered: &str, field: fn(&mut Self) -> &mut bool) -> Option<String> {
        let choice = offered.split(',').find(|choice| matches!(*choice, "CRC32C" | "None"))?;
        *field(self) = choice == "CRC32C";
        Some(choice.to_owned())
    }
}

/// The answer to a key whose outcome is the same for all initiators.
fn constant(key: &str, value: &str) -> Option<String> {
    match key {
        "MaxConnections" => in_range(value, 1, 65_535).map(|_| "1".to_owned()),
        // Data comes in order, whatever the initiator offers.
        "DataPDUInOrder" | "DataSequenceInOrder" => boolean(value).map(|_| yes_or_no(true)),
        "ErrorRecoveryLevel" => in_range(value, 0, 2).map(|_| "0".to_owned()),
        "DefaultTime2Wait" => {
            in_range(value, 0, 3600).map(|theirs| theirs.max(TIME2WAIT).to_string())
        }
        "DefaultTime2Retain" => in_range(value, 0, 3600).map(|_| "0".to_owned()),
        "iSCSIProtocolLevel" => in_range(value, 0, 31).map(|theirs| theirs.min(1).to_string()),
        "TaskReporting" => value.split(',').find(|it| *it == "RFC3720").map(ToOwned::to_owned),
        "IFMarker" | "OFMarker" => boolean(value).map(|_| yes_or_no(false)),
        "IFMarkInt" | "OFMarkInt" => None,
        _ => Some(NOT_UNDERSTOOD.to_owned()),
    }
}

fn boolean(value: &str) -> Option<bool> {
    match value {
        "Yes" => Some(true),
        "No" => Some(false),
        _ => None,
    }
}

fn yes_or_no(value: bool) -> String {
    if value { "Yes" } else { "No" }.to_owned()
}

fn in_range(value: &str, min: u64, max: u64) -> Option<u64> {
    number(value).filter(|number| (min..=max).contains(number))
}

fn length(value: &str) -> Option<u32> {
    in_range(value, LENGTH_MIN, LENGTH_MAX).and_then(|length| u32::try_from(length).ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answers(offers: &[(&str, &str)]) -> (Parameters, alloc::vec::Vec<String>) {
        let (mut parameters, limits) = (Parameters::default(), Limits::default());
        let answer = |(key, value): &(&str, &str)| match parameters.negotiate(key, value, &limits) {
            Answer::Silence => "-".to_owned(),
            Answer::Value(value) => value,
        };
        let answers = offers.iter().map(answer).collect();
        (parameters, answers)
    }

    #[test]
    fn keys_of_open_iscsi_are_agreed_on() {
        let (parameters, answers) = answers(&[
            ("HeaderDigest", "None,CRC32C"),
            ("DataDigest", "CRC32C,None"),
            ("InitialR2T", "No"),
            ("ImmediateData", "Yes"),
            ("MaxRecvDataSegmentLength", "262144"),
            ("MaxBurstLength", "16776192"),
            ("FirstBurstLength", "262144"),
            ("MaxOutstandingR2T", "1"),
            ("MaxConnections", "1"),
            ("DefaultTime2Wait", "0"),
            ("DefaultTime2Retain", "20"),
            ("ErrorRecoveryLevel", "2"),
            ("DataPDUInOrder", "No"),
            ("IFMarker", "No"),
            ("TaskReporting", "FastAbort,RFC3720"),
            ("iSCSIProtocolLevel", "2"),
            ("X-com.example.a", "1"),
        ]);
        let expected = [
            "None",
            "CRC32C",
            "No",
            "Yes",
            "-",
            "1048576",
            "65536",
            "1",
            "1",
            "2",
            "0",
            "0",
            "Yes",
            "No",
            "RFC3720",
            "1",
            "NotUnderstood",
        ];
        assert_eq!(answers, expected);
        let agreed = Parameters {
            header_digest: false,
            data_digest: true,
            initial_r2t: false,
            immediate_data: true,
            send_max: 262_144,
            burst_max: 1 << 20,
            first_burst_max: 65_536,
            r2t_max: 1,
        };
        assert_eq!(parameters, agreed);
    }

    #[test]
    fn values_that_keys_cannot_have_are_rejected() {
        let (parameters, answers) = answers(&[
            ("HeaderDigest", "MD5"),
            ("InitialR2T", "yes"),
            ("MaxRecvDataSegmentLength", "511"),
            ("MaxBurstLength", "16777216"),
            ("MaxOutstandingR2T", "0"),
            ("ErrorRecoveryLevel", "3"),
            ("OFMarkInt", "2048~8192"),
        ]);
        assert!(answers.iter().all(|answer| answer == REJECT), "{answers:?}");
        assert_eq!(parameters, Parameters::default());
    }

    #[test]
    fn the_first_burst_is_no_longer_than_a_burst() {
        let (parameters, _) = answers(&[("FirstBurstLength", "65536"), ("MaxBurstLength", "8192")]);
        assert_eq!((parameters.first_burst_max, parameters.burst_max), (8192, 8192));
    }
}
