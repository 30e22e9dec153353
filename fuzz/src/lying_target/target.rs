//! The answers of an honest target of a volume, and its checks of the host.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use nvme_wire::fabrics::{self, ConnectResult, Property};
use nvme_wire::identify::{
    Cns, Identify, IdentifyController, IdentifyNamespace, NamespaceIdList,
    VENDOR_COMPARE_AND_WRITE, vendor_field,
};
use nvme_wire::io::BlockCommand;
use nvme_wire::log::GetLogPage;
use nvme_wire::pdu::{Digests, H2cData, PduFlags, R2t};
use nvme_wire::property::{Cap, Csts, offset};
use nvme_wire::sgl::SglForm;
use nvme_wire::{AdminOpcode, CrossControllerReset, FabricsType, IoOpcode, Sqe, Status};
use units::BLOCK_SIZE;
use zerocopy::{FromZeros, IntoBytes};

use super::witness::{Speech, Witness};
use crate::liar::{Truth, completion, whole};

/// Most bytes that a read is answered with.
const READ_MAX: u32 = 64 * BLOCK_SIZE as u32;

/// One connection of a target: what it says of itself, in the pages of Identify, and where it stands.
pub(super) struct Target {
    controller: RefCell<Vec<u8>>,
    namespace: RefCell<Vec<u8>>,
    is_enabled: Rc<Cell<bool>>,
    is_io_queue: Cell<bool>,
    /// Commands that send blocks, by their identifier: what each byte of them is.
    writes: RefCell<BTreeMap<u16, u8>>,
    /// Counts reads, so that no two are answered alike.
    reads: Cell<u8>,
    speech: RefCell<Speech>,
    witness: Rc<Witness>,
}

/// Returns the value of each byte that the host writes to block `lba`.
pub(super) fn written(lba: u64) -> u8 {
    lba.to_le_bytes()[0] | 0x80
}

impl Target {
    pub(super) fn new(is_enabled: Rc<Cell<bool>>, witness: Rc<Witness>) -> Self {
        let mut controller = IdentifyController::new_zeroed();
        controller.mdts = 5;
        controller.ioccsz = ((64 + 4 * BLOCK_SIZE as u32) / 16).into();
        (controller.cntlid, controller.ciu, controller.ccrl) = (1.into(), 1, 1);
        controller.vs = vendor_field(VENDOR_COMPARE_AND_WRITE);
        let mut namespace = IdentifyNamespace::new_zeroed();
        (namespace.nsze, namespace.ncap) = (1024.into(), 1024.into());
        namespace.lbaf[0].lbads = 12;
        let pages = [controller.as_bytes(), namespace.as_bytes()];
        let [controller, namespace] = pages.map(|page| RefCell::new(page.to_vec()));
        Self {
            controller,
            namespace,
            is_enabled,
            is_io_queue: Cell::new(false),
            writes: RefCell::default(),
            reads: Cell::new(0),
            speech: RefCell::default(),
            witness,
        }
    }

    fn fabrics(&self, sqe: &Sqe) -> u64 {
        match fabrics::fctype(sqe) {
            FabricsType::CONNECT => ConnectResult::new(1).0.into(),
            FabricsType::PROPERTY_GET => match Property::from(*sqe).ofst.get() {
                offset::CAP => Cap::new(128, 20, Cap::CQR | Cap::CSS_NVM).0,
                offset::CSTS => Csts::new(self.is_enabled.get(), false, 0).0.into(),
                _ => 0,
            },
            FabricsType::PROPERTY_SET => {
                self.is_enabled.set(true);
                0
            }
            _ => 0,
        }
    }

    fn admin(&self, sqe: &Sqe) -> Vec<u8> {
        let cid = sqe.cid.get();
        match AdminOpcode(sqe.opcode) {
            AdminOpcode::IDENTIFY => {
                let page = match Identify::decode(sqe).cns {
                    Cns::CONTROLLER => self.controller.borrow().clone(),
                    Cns::ACTIVE_NAMESPACES => NamespaceIdList::new([1]).as_bytes().to_vec(),
                    _ => self.namespace.borrow().clone(),
                };
                whole(cid, &page)
            }
            AdminOpcode::GET_LOG_PAGE => {
                whole(cid, &vec![0; GetLogPage::decode(sqe).len_bytes.min(4096) as usize])
            }
            AdminOpcode::ASYNC_EVENT_REQUEST => Vec::new(),
            AdminOpcode::CROSS_CONTROLLER_RESET => {
                completion(cid, Status::SUCCESS, CrossControllerReset::DONE.into())
            }
            _ => completion(cid, Status::SUCCESS, 0),
        }
    }

    fn io(&self, sqe: &Sqe) -> Vec<u8> {
        let (cid, len) = (sqe.cid.get(), sqe.dptr.length.get());
        if sqe.opcode == IoOpcode::READ.0 {
            self.reads.set(self.reads.get().wrapping_add(1));
            let first = BlockCommand::decode(sqe).slba.to_le_bytes()[0] ^ self.reads.get() << 4;
            let bytes = (0..len.min(READ_MAX)).map(|at| first.wrapping_add((at >> 9) as u8));
            return whole(cid, &bytes.collect::<Vec<_>>());
        }
        let is_in_capsule = matches!(sqe.dptr.form(), SglForm::InCapsule { .. });
        if len > 0 && !is_in_capsule {
            return R2t::new(cid, cid, (0, len), Digests::default()).as_bytes().to_vec();
        }
        completion(cid, Status::SUCCESS, 0)
    }

    /// Panics unless `data` is what the host writes by command `cid`.
    fn must_be_data_of(&self, cid: u16, data: &[u8]) {
        if let Some(expected) = self.writes.borrow().get(&cid) {
            assert!(data.iter().all(|byte| byte == expected), "command {cid} sends other data");
        }
    }
}

impl Truth for Target {
    fn on_command(&self, sqe: &Sqe, data: &[u8]) {
        if fabrics::is_connect(sqe) {
            self.is_io_queue.set(fabrics::Connect::from(*sqe).qid.get() > 0);
            return;
        }
        if !self.is_io_queue.get() {
            return;
        }
        self.speech.borrow_mut().on_command(sqe);
        let cid = sqe.cid.get();
        let opcode = IoOpcode(sqe.opcode);
        let sends_blocks =
            matches!(opcode, IoOpcode::WRITE | IoOpcode::COMPARE | IoOpcode::COMPARE_AND_WRITE);
        if sends_blocks {
            self.writes.borrow_mut().insert(cid, written(BlockCommand::decode(sqe).slba));
            self.must_be_data_of(cid, data);
        } else {
            self.writes.borrow_mut().remove(&cid);
        }
    }

    fn words(&self, sqe: &Sqe) -> Vec<u8> {
        if sqe.opcode == fabrics::OPCODE {
            return completion(sqe.cid.get(), Status::SUCCESS, self.fabrics(sqe));
        }
        if self.is_io_queue.get() { self.io(sqe) } else { self.admin(sqe) }
    }

    fn words_to_data(&self, header: &H2cData, data: &[u8]) -> Option<Vec<u8>> {
        let cid = header.cccid.get();
        self.must_be_data_of(cid, data);
        let is_last = PduFlags(header.ch.flags).contains(PduFlags::LAST_PDU);
        Some(if is_last { completion(cid, Status::SUCCESS, 0) } else { Vec::new() })
    }

    fn on_said(&self, bytes: &[u8]) {
        self.speech.borrow_mut().on_said(bytes, &self.witness);
    }

    fn change(&self, at: u16, bits: u8) {
        let at = usize::from(at);
        let page = if at < 4096 { &self.controller } else { &self.namespace };
        page.borrow_mut()[at % 4096] ^= bits;
    }
}
