//! Dword 0 of the completion of an Asynchronous Event Request (Base, clause 5.1.2.1).

use crate::log::Lid;

/// An asynchronous event.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct AsyncEvent {
    /// Asynchronous Event Type, bits 2:0.
    pub event_type: u8,
    /// Asynchronous Event Information, bits 15:8.
    pub information: u8,
    /// Log Page Identifier, bits 23:16: what to read, and so clear the event.
    pub lid: Lid,
}

impl AsyncEvent {
    /// Type: error status.
    pub const TYPE_ERROR: u8 = 0;
    /// Type: SMART / Health status.
    pub const TYPE_HEALTH: u8 = 1;
    /// Type: notice.
    pub const TYPE_NOTICE: u8 = 2;
    /// Type: immediate.
    pub const TYPE_IMMEDIATE: u8 = 3;
    /// Type: specific to the I/O command set.
    pub const TYPE_COMMAND_SET: u8 = 6;

    /// Notice: attributes of an attached namespace changed, such as its size.
    pub const NAMESPACE_ATTRIBUTE_CHANGED: Self =
        Self { event_type: Self::TYPE_NOTICE, information: 0x00, lid: Lid::CHANGED_NAMESPACES };
    /// Notice: the state of an ANA group changed.
    pub const ANA_CHANGE: Self =
        Self { event_type: Self::TYPE_NOTICE, information: 0x03, lid: Lid::ANA };
    /// Notice: the discovery log page changed.
    pub const DISCOVERY_CHANGED: Self =
        Self { event_type: Self::TYPE_NOTICE, information: 0xF0, lid: Lid::DISCOVERY };
    /// The I/O command set's: a reservation notification can be read.
    pub const RESERVATION_NOTIFICATION: Self = Self {
        event_type: Self::TYPE_COMMAND_SET,
        information: 0x00,
        lid: Lid::RESERVATION_NOTIFICATION,
    };
    /// Health: the subsystem's reliability is degraded.
    pub const RELIABILITY: Self =
        Self { event_type: Self::TYPE_HEALTH, information: 0x00, lid: Lid::HEALTH };
    /// Health: a temperature crossed its threshold.
    pub const TEMPERATURE: Self =
        Self { event_type: Self::TYPE_HEALTH, information: 0x01, lid: Lid::HEALTH };
    /// Health: available spare fell below its threshold.
    pub const SPARE_BELOW_THRESHOLD: Self =
        Self { event_type: Self::TYPE_HEALTH, information: 0x02, lid: Lid::HEALTH };

    /// From dword 0 of the completion.
    #[must_use]
    pub const fn decode(dw0: u32) -> Self {
        let [event_type, information, lid, _] = dw0.to_le_bytes();
        Self { event_type: event_type & 0x7, information, lid: Lid(lid) }
    }

    /// As dword 0.
    #[must_use]
    pub const fn encode(self) -> u32 {
        u32::from_le_bytes([self.event_type & 0x7, self.information, self.lid.0, 0])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_what_the_linux_host_expects() {
        assert_eq!(AsyncEvent::NAMESPACE_ATTRIBUTE_CHANGED.encode(), 0x0004_0002);
        assert_eq!(AsyncEvent::ANA_CHANGE.encode(), 0x000C_0302);
        assert_eq!(AsyncEvent::DISCOVERY_CHANGED.encode(), 0x0070_F002);
        assert_eq!(AsyncEvent::RELIABILITY.encode(), 0x0002_0001);
        assert_eq!(AsyncEvent::SPARE_BELOW_THRESHOLD.encode(), 0x0002_0201);
        assert_eq!(AsyncEvent::RESERVATION_NOTIFICATION.encode(), 0x0080_0006);
        assert_eq!(AsyncEvent::decode(0x0004_0002), AsyncEvent::NAMESPACE_ATTRIBUTE_CHANGED);
    }
}
