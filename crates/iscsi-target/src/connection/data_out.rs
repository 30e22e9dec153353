//! Data of commands on its way in: unsolicited, and asked for by R2Ts.

use iscsi_wire::pdu::{self, Bhs, FINAL, NO_TAG, opcode};

use super::receive::{Begun, Sink};
use super::task::{TaskId, Transfer};
use super::{CloseReason, Connection, Step};
use crate::outbox::Outbox;

/// Bits of a transfer tag that name the task.
const TASK_BITS: u32 = 8;

impl Connection {
    /// Says how many bytes a command takes. Data beyond is dropped.
    pub fn expect(&mut self, id: TaskId, wanted: u32) {
        if let Some(task) = self.tasks.get_mut(id) {
            task.wanted = wanted.min(task.writable());
        }
    }

    /// Bytes that a command takes.
    #[must_use]
    pub fn wanted(&self, id: TaskId) -> u32 {
        self.tasks.get(id).map_or(0, |task| task.wanted)
    }

    /// There is memory for all that the command wants: asks for it.
    pub fn grant(&mut self, id: TaskId, out: &mut impl Outbox) {
        if let Some(task) = self.tasks.get_mut(id) {
            task.is_granted = true;
        }
        self.ask(id, out);
    }

    /// Sends the R2Ts that may be outstanding.
    fn ask(&mut self, id: TaskId, out: &mut impl Outbox) {
        loop {
            let (burst_max, r2t_max) = (self.parameters.burst_max, self.parameters.r2t_max);
            let tag = self.next_transfer() << TASK_BITS | u32::from(id.0);
            let Some(task) = self.tasks.get_mut(id) else { return };
            let from = task.asked.max(task.unsolicited);
            if !task.is_granted
                || from >= task.wanted
                || task.transfers.len() >= usize::from(r2t_max)
            {
                return;
            }
            let len = (task.wanted - from).min(burst_max);
            task.transfers.push_back(Transfer {
                ttt: tag,
                next: from,
                end: from + len,
                data_sn: 0,
            });
            task.asked = from + len;
            let mut r2t: pdu::R2t = pdu::blank(opcode::R2T);
            (r2t.lun, r2t.itt, r2t.ttt) = (task.lun, task.itt.into(), tag.into());
            (r2t.r2t_sn, r2t.buffer_offset) = (task.r2t_sn.into(), from.into());
            r2t.desired_len = len.into();
            task.r2t_sn += 1;
            r2t.sequence = self.sequence(false);
            self.put(&r2t.encode(), &[], out);
        }
    }

    /// Acts on the header of a Data-Out.
    pub(super) fn begin_data_out(&mut self, bhs: &Bhs) -> Begun {
        const WRONG: CloseReason =
            CloseReason::ProtocolError("data that is not the next of its command");
        let data = pdu::DataOut::decode(&bhs.encode());
        let len = u32::try_from(bhs.lengths.data_len()).expect("24 bits");
        let (sn, offset, is_last) =
            (data.data_sn.get(), data.buffer_offset.get(), data.flags & FINAL != 0);
        // ISCSI-CONNECTION-2.
        let Some(id) = self.tasks.by_itt(data.itt.get()) else { return Ok((Sink::Dropped, None)) };
        let first_burst = self.parameters.first_burst_max;
        let Some(task) = self.tasks.get_mut(id) else { return Ok((Sink::Dropped, None)) };
        let expected_sn = match (data.ttt.get(), task.transfers.front()) {
            (NO_TAG, _) => task.unsolicited_sn,
            (_, Some(transfer)) => transfer.data_sn,
            (_, None) => return Err(WRONG),
        };
        if task.is_ready {
            return Err(WRONG);
        }
        if sn != expected_sn {
            return Ok((Sink::Dropped, Some(Step::Disordered(id))));
        }
        if data.ttt.get() == NO_TAG {
            let end = offset.saturating_add(len);
            let is_next = task.has_unsolicited && offset == task.unsolicited;
            if !is_next || end > first_burst.min(task.writable()) {
                return Err(WRONG);
            }
            task.unsolicited_sn += 1;
            return Ok((Sink::Task { id, offset }, None));
        }
        let Some(transfer) = task.transfers.front() else { return Err(WRONG) };
        let end = offset.saturating_add(len);
        let is_next = data.ttt.get() == transfer.ttt && offset == transfer.next;
        if !is_next || end > transfer.end || is_last != (end == transfer.end) {
            return Err(WRONG);
        }
        Ok((Sink::Task { id, offset }, None))
    }

    /// The data of one PDU for a command is whole; it reaches up to byte `end`.
    pub(super) fn end_data(
        &mut self,
        id: TaskId,
        bhs: &Bhs,
        end: u32,
        out: &mut impl Outbox,
    ) -> Option<Step<'static>> {
        let is_last = bhs.flags & FINAL != 0;
        let is_solicited = bhs.operation() == opcode::DATA_OUT && bhs.rest[0].get() != NO_TAG;
        let task = self.tasks.get_mut(id)?;
        if is_solicited {
            let transfer = task.transfers.front_mut()?;
            (transfer.next, transfer.data_sn) = (end, transfer.data_sn + 1);
            if is_last {
                task.transfers.pop_front();
            }
        } else {
            task.unsolicited = end;
            task.has_unsolicited = !is_last;
        }
        if task.has_all() && !task.is_ready {
            task.is_ready = true;
            return Some(Step::Ready(id));
        }
        let is_to_be_asked = !task.has_unsolicited && !task.is_granted && !task.is_ready;
        if is_to_be_asked {
            return Some(Step::Solicit(id));
        }
        self.ask(id, out);
        None
    }
}
