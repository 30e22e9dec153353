//! Checks of the PDUs that a host receives.

use crate::command::{
    Asked, COMPARE_FAILURE, Command, FAILED_FUSED, Kind, SUCCESS, Status, TRANSIENT_TRANSPORT_ERROR,
};
use crate::host::{Host, Phase};
use crate::pdu::{self, Digests, LAST_PDU, Pdu};
use crate::{Finding, Queue};

/// SQHD in the answer to a Connect without flow control.
const SQHD_NO_FLOW_CONTROL: u16 = 0xFFFF;

/// Fails with what is wrong unless `condition` holds.
fn must(condition: bool, what: &str, pdu: &Pdu) -> Result<(), Finding> {
    if condition { Ok(()) } else { Err(format!("{what}: {:02x?}", pdu.header)) }
}

impl Host {
    /// Takes in bytes from the controller.
    pub fn on_bytes(&mut self, bytes: &[u8]) -> Result<(), Finding> {
        self.incoming.extend_from_slice(bytes);
        let alignment = 4 * (usize::from(self.setup.hpda) + 1);
        while let Some(pdu) = pdu::take(&mut self.incoming, self.digests, alignment)? {
            if self.phase == Phase::Ended {
                return Err(format!("a PDU behind the C2HTermReq: {:02x?}", pdu.header));
            }
            match pdu.kind {
                pdu::IC_RESP => self.on_ic_resp(&pdu)?,
                pdu::CAPSULE_RESP => self.on_response(&pdu)?,
                pdu::C2H_DATA => self.on_data(&pdu)?,
                pdu::R2T => self.on_r2t(&pdu)?,
                pdu::C2H_TERM_REQ => self.on_term_req(&pdu)?,
                _ => return Err(format!("a PDU that hosts send: {:02x?}", pdu.header)),
            }
        }
        Ok(())
    }

    fn on_ic_resp(&mut self, pdu: &Pdu) -> Result<(), Finding> {
        must(self.phase == Phase::Greeted, "ICResp out of sequence", pdu)?;
        let header = &pdu.header;
        must(pdu.u16_at(8) == 0, "PFV", pdu)?;
        must(header[10] <= 31, "CPDA", pdu)?;
        must(header[16..].iter().all(|byte| *byte == 0), "reserved bytes", pdu)?;
        let agreed = Digests { header: header[11] & 1 != 0, data: header[11] & 2 != 0 };
        // The product takes what is offered.
        must(header[11] < 4 && agreed == self.setup.digests, "DGST", pdu)?;
        let maxh2cdata = pdu.u32_at(12);
        must(maxh2cdata >= 4096 && maxh2cdata.is_multiple_of(4), "MAXH2CDATA", pdu)?;
        self.digests = agreed;
        self.alignment = 4 * (usize::from(header[10]) + 1);
        self.maxh2cdata = maxh2cdata as usize;
        self.phase = Phase::Agreed;
        Ok(())
    }

    fn find(&mut self, cid: u16, pdu: &Pdu) -> Result<&mut Command, Finding> {
        let mut found = self.flying.iter_mut();
        let found = found.find(|command| command.cid == cid && command.ended.is_none());
        found.ok_or_else(|| format!("command {cid:#06x} is not outstanding: {:02x?}", pdu.header))
    }

    fn on_r2t(&mut self, pdu: &Pdu) -> Result<(), Finding> {
        let outstanding_max = self.setup.maxr2t as usize;
        let command = self.find(pdu.u16_at(8), pdu)?;
        let (start, len) = (pdu.u32_at(12) as usize, pdu.u32_at(16) as usize);
        let is_wanted = !command.is_in_capsule && len > 0 && start == command.solicited;
        must(is_wanted && start + len <= command.data.len(), "R2T for other data", pdu)?;
        must(pdu.u32_at(20) == 0, "reserved bytes", pdu)?;
        must(command.asked.len() <= outstanding_max, "more R2Ts than MAXR2T", pdu)?;
        let ttag = pdu.u16_at(10);
        command.solicited += len;
        command.asked.push_back(Asked { ttag, start, end: start + len, at: start });
        Ok(())
    }

    fn on_data(&mut self, pdu: &Pdu) -> Result<(), Finding> {
        let flow_control = self.setup.flow_control;
        let is_last = pdu.flags & LAST_PDU != 0;
        let is_success = pdu.flags & pdu::SUCCESS != 0;
        let cid = pdu.u16_at(8);
        let command = self.find(cid, pdu)?;
        let (offset, len) = (pdu.u32_at(12) as usize, pdu.u32_at(16) as usize);
        must(len == pdu.data.len(), "DATAL", pdu)?;
        must(offset == command.received.len() && !command.has_last, "DATAO", pdu)?;
        command.received.extend_from_slice(&pdu.data);
        let (received, wanted) = (command.received.len(), command.wanted);
        must(received <= wanted && is_last == (received == wanted), "LAST_PDU", pdu)?;
        command.has_last = is_last;
        must(pdu.u16_at(10) == 0 && pdu.u32_at(20) == 0, "reserved bytes", pdu)?;
        // It replaces a capsule that would say how far the submission queue was taken.
        must(!is_success || is_last && !flow_control, "SUCCESS", pdu)?;
        if is_success { self.complete(cid, SUCCESS) } else { Ok(()) }
    }

    fn on_response(&mut self, pdu: &Pdu) -> Result<(), Finding> {
        let cid = pdu.u16_at(20);
        let status = pdu.u16_at(22);
        must(status & 1 == 0, "phase tag", pdu)?;
        self.check_sqhd(pdu)?;
        let dw0 = pdu.u32_at(8);
        let code = status >> 1 & 0x7FF;
        let command = self.find(cid, pdu)?;
        must(command.asked.is_empty(), "completion with an R2T outstanding", pdu)?;
        let is_whole = command.received.len() == command.wanted && command.has_last
            || command.wanted == 0
            || code != SUCCESS;
        must(is_whole, "completion without all data", pdu)?;
        let may_repeat = status >> 15 == 0;
        must(code != TRANSIENT_TRANSPORT_ERROR || may_repeat, "Do Not Retry", pdu)?;
        if command.kind == Kind::Connect {
            must(code == SUCCESS && dw0 >> 16 == 0, "Connect refused", pdu)?;
            self.cntlid = dw0 as u16;
            if let Queue::Io { cntlid, .. } = self.setup.queue {
                must(cntlid == self.cntlid, "another controller", pdu)?;
            }
            self.phase = Phase::Live;
        }
        self.complete(cid, code)
    }

    /// With flow control, SQHD says how many capsules were taken, modulo the size of the queue.
    fn check_sqhd(&mut self, pdu: &Pdu) -> Result<(), Finding> {
        let sqhd = pdu.u16_at(16);
        if !self.setup.flow_control {
            let is_connect = self.phase == Phase::Connecting;
            return must(!is_connect || sqhd == SQHD_NO_FLOW_CONTROL, "SQHD", pdu);
        }
        let entries = u64::from(self.setup.sqsize) + 1;
        must(u64::from(sqhd) < entries, "SQHD", pdu)?;
        let more = (u64::from(sqhd) + entries - self.taken % entries) % entries;
        self.taken += more;
        must(self.taken <= self.capsules, "SQHD", pdu)
    }

    fn on_term_req(&mut self, pdu: &Pdu) -> Result<(), Finding> {
        let (fes, fei) =
            (pdu.u16_at(8), u32::from_le_bytes([10, 11, 12, 13].map(|at| pdu.header[at])));
        let Some(refusal) = self.refusal else {
            return Err(format!("C2HTermReq with FES {fes:#x}, FEI {fei:#x} without a reason"));
        };
        if !refusal.fes.contains(&fes) || refusal.fei.is_some_and(|expected| expected != fei) {
            return Err(format!("C2HTermReq with FES {fes:#x}, FEI {fei:#x}, not {refusal:x?}"));
        }
        let fault = self.setup.fault;
        self.mark("a fault that was refused", fault.is_some());
        self.end(refusal.cid);
        Ok(())
    }

    /// A command ended.
    fn complete(&mut self, cid: u16, status: Status) -> Result<(), Finding> {
        let index = self.flying.iter().position(|command| command.cid == cid);
        let index = index.expect("it was found before");
        self.flying[index].ended = Some(status);
        let command = &self.flying[index];
        let Some(partner) = command.partner else {
            let command = self.flying.swap_remove(index);
            return self.judge(&command, status);
        };
        let partner = self.flying.iter().position(|command| command.cid == partner);
        // The second half may not have been sent yet.
        let Some(ended) = partner.filter(|partner| self.flying[*partner].ended.is_some()) else {
            return Ok(());
        };
        let mut pair = [index, ended];
        pair.sort_unstable();
        let later = self.flying.swap_remove(pair[1]);
        let earlier = self.flying.swap_remove(pair[0]);
        let is_in_order = earlier.kind == Kind::FusedCompare;
        let (first, second) = if is_in_order { (earlier, later) } else { (later, earlier) };
        self.judge_pair(&first, &second)
    }

    fn judge(&mut self, command: &Command, status: Status) -> Result<(), Finding> {
        let expected = if command.is_damaged {
            TRANSIENT_TRANSPORT_ERROR
        } else if command.must_differ {
            COMPARE_FAILURE
        } else {
            SUCCESS
        };
        if status != expected {
            return Err(format!("status {status:#x}, not {expected:#x}, of {}", named(command)));
        }
        if status != SUCCESS {
            return Ok(());
        }
        match command.kind {
            Kind::Identify { cns } => {
                self.identified.insert(cns, command.received.clone());
            }
            Kind::Read => {
                let wrong = self.image.first_wrong(command.blocks.start, &command.received);
                if let Some(block) = wrong {
                    return Err(format!("block {block} is wrong in {}", named(command)));
                }
            }
            _ => self.take_effect(command),
        }
        Ok(())
    }

    fn judge_pair(&mut self, first: &Command, second: &Command) -> Result<(), Finding> {
        let statuses = [first, second].map(|half| half.ended.expect("both have ended"));
        let damaged = TRANSIENT_TRANSPORT_ERROR;
        let allowed: &[[Status; 2]] = match (first.is_damaged, second.is_damaged) {
            (false, false) if first.must_differ => &[[COMPARE_FAILURE, FAILED_FUSED]],
            (false, false) => &[[SUCCESS, SUCCESS]],
            (true, false) => &[[TRANSIENT_TRANSPORT_ERROR, FAILED_FUSED]],
            (false, true) => &[[FAILED_FUSED, TRANSIENT_TRANSPORT_ERROR]],
            (true, true) => &[[damaged, damaged], [damaged, FAILED_FUSED], [FAILED_FUSED, damaged]],
        };
        if !allowed.contains(&statuses) {
            let pair = [named(first), named(second)];
            return Err(format!("statuses {statuses:x?}, not {allowed:x?}, of {pair:?}"));
        }
        if statuses == [SUCCESS; 2] {
            self.take_effect(second);
        }
        Ok(())
    }

    fn take_effect(&mut self, command: &Command) {
        for (start, bytes) in command.writes(self.setup.namespace.each()) {
            self.image.write(start, &bytes);
        }
    }
}

fn named(command: &Command) -> String {
    let Command { kind, cid, blocks, is_in_capsule, is_damaged, .. } = command;
    format!("{kind:?} {cid:#06x} of {blocks:?} (in capsule {is_in_capsule}, damaged {is_damaged})")
}
