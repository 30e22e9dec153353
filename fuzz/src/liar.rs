//! A target that lies: it answers each command of a host as the next byte of its input says.

use std::cell::{Cell, RefCell};

use io_traits::{SendBatch, Stream};
use nvme_wire::pdu::{
    C2hData, CapsuleResp, CommonHeader, Digests, H2cData, IcResp, PduFlags, PduType, R2t,
};
use nvme_wire::{Cqe, Sqe, Status};
use sim::SimStream;
use zerocopy::{FromBytes, FromZeros, IntoBytes};

use crate::input::Input;

/// Commands that are answered on a connection before the target closes it.
const ANSWERS_MAX: usize = 64;
/// Most that a host has to say until then: its commands, and the data of each once.
const HEARD_MAX: usize = 4 << 20;

/// Kinds of answers to a command, by the next byte of the input.
pub(crate) mod answer {
    /// As it should be.
    pub(crate) const RIGHT: u8 = 0;
    /// That it is done, without data or anything.
    pub(crate) const BARE: u8 = 1;
    /// With less data, or data elsewhere: where, how much, and the flags.
    pub(crate) const ASKEW: u8 = 2;
    /// With a status.
    pub(crate) const STATUS: u8 = 3;
    /// With bytes as they are.
    pub(crate) const RAW: u8 = 4;
    /// The target closes.
    pub(crate) const CLOSE: u8 = 5;
    /// Not at all.
    pub(crate) const SILENCE: u8 = 6;
    /// As it should be, behind a change of what is told: where, and how.
    pub(crate) const CHANGE: u8 = 7;
    /// As it should be, twice.
    pub(crate) const TWICE: u8 = 8;
    /// As another one should be.
    pub(crate) const OTHER: u8 = 9;
    /// As it should be, behind an R2T: its tag, where, and how much.
    pub(crate) const ASKED: u8 = 10;
    /// Number of kinds.
    pub(crate) const COUNT: u8 = 11;
}

/// The answers of an honest target.
pub(crate) trait Truth {
    /// Takes note of a command and of the data in its capsule, before it is answered.
    fn on_command(&self, _sqe: &Sqe, _data: &[u8]) {}

    /// To a command; nothing if it is not answered yet.
    fn words(&self, sqe: &Sqe) -> Vec<u8>;

    /// Answers data of the host. `None`: it was not requested, and the target closes.
    fn words_to_data(&self, _header: &H2cData, _data: &[u8]) -> Option<Vec<u8>> {
        None
    }

    /// Takes note of what is said, right or wrong.
    fn on_said(&self, _bytes: &[u8]) {}

    /// From now on a byte of what is told differs by these bits.
    fn change(&self, at: u16, bits: u8);
}

/// One connection of the target.
pub(crate) struct Liar<T> {
    stream: SimStream,
    steps: RefCell<Vec<u8>>,
    answers_left: Cell<usize>,
    truth: T,
}

impl<T: Truth> Liar<T> {
    pub(crate) fn new(stream: SimStream, steps: &[u8], truth: T) -> Self {
        let (steps, answers_left) = (RefCell::new(steps.to_vec()), Cell::new(ANSWERS_MAX));
        Self { stream, steps, answers_left, truth }
    }

    pub(crate) async fn serve(self) {
        let (mut heard, mut total) = (Vec::new(), 0);
        while let Ok(chunk) = self.stream.recv().await {
            heard.extend_from_slice(&chunk);
            total += chunk.len();
            assert!(total <= HEARD_MAX, "the host sends more than it has");
            while let Some(common) = CommonHeader::from_prefix(&heard) {
                let length = common.plen.get() as usize;
                if heard.len() < length {
                    break;
                }
                let pdu: Vec<u8> = heard.drain(..length).collect();
                if self.answer(&common, &pdu).await.is_none() {
                    return self.stream.shutdown();
                }
            }
        }
    }

    /// `None` if the target is to close.
    async fn answer(&self, common: &CommonHeader, pdu: &[u8]) -> Option<()> {
        let layout = common.layout(Digests::default(), 4).ok()?;
        if layout.pdu_type == PduType::IcReq {
            return self.say(IcResp::new(Digests::default(), 4096).as_bytes()).await;
        }
        let bytes = match layout.pdu_type {
            PduType::CapsuleCmd => {
                let sqe = Sqe::read_from_bytes(&pdu[8..72]).expect("64 bytes");
                self.truth.on_command(&sqe, &pdu[layout.data_offset..]);
                self.next_words(|input| self.words(&sqe, input))
            }
            PduType::H2cData => {
                let header = H2cData::read_from_bytes(&pdu[..24]).expect("24 bytes");
                let right = self.truth.words_to_data(&header, &pdu[layout.data_offset..])?;
                // What the host has said is all that there is to lie about.
                if right.is_empty() {
                    return Some(());
                }
                let sqe = Sqe { cid: header.cccid, ..Sqe::new_zeroed() };
                self.next_words(|input| self.words_instead(&sqe, &|_| right.clone(), input))
            }
            _ => None,
        };
        self.say(&bytes?).await
    }

    /// Returns the next bytes to send, by the input. `None` if the target closes.
    fn next_words(&self, words: impl FnOnce(&mut Input<'_>) -> Option<Vec<u8>>) -> Option<Vec<u8>> {
        self.answers_left.set(self.answers_left.get().checked_sub(1)?);
        let steps = self.steps.take();
        let mut input = Input(&steps);
        let words = words(&mut input);
        self.steps.replace(input.0.to_vec());
        words
    }

    async fn say(&self, bytes: &[u8]) -> Option<()> {
        self.truth.on_said(bytes);
        let mut batch = SendBatch::new();
        batch.push_bytes(bytes);
        self.stream.send(batch).await.ok().map(drop)
    }

    /// Returns the answer to a command.
    fn words(&self, sqe: &Sqe, input: &mut Input<'_>) -> Option<Vec<u8>> {
        self.words_instead(sqe, &|sqe| self.truth.words(sqe), input)
    }

    /// Returns the answer to a command, right or wrong by the input.
    fn words_instead(
        &self,
        sqe: &Sqe,
        right: &dyn Fn(&Sqe) -> Vec<u8>,
        input: &mut Input<'_>,
    ) -> Option<Vec<u8>> {
        let cid = sqe.cid.get();
        Some(match input.u8() % answer::COUNT {
            answer::RIGHT => right(sqe),
            answer::BARE => completion(cid, Status::SUCCESS, 0),
            answer::ASKEW => {
                let (offset, len) = (input.u16().into(), input.u16().into());
                data(cid, (offset, len), PduFlags(input.u8()), &vec![0xA5; len as usize])
            }
            answer::STATUS => completion(cid, Status::from_field(input.u16()), input.u32().into()),
            answer::RAW => {
                let len = usize::from(input.u8());
                input.bytes(len).to_vec()
            }
            answer::CLOSE => return None,
            answer::SILENCE => Vec::new(),
            answer::CHANGE => {
                self.truth.change(input.u16(), input.u8());
                right(sqe)
            }
            answer::TWICE => right(sqe).repeat(2),
            answer::OTHER => right(&Sqe { cid: (cid ^ input.u16()).into(), ..*sqe }),
            answer::ASKED => {
                let (ttag, run) = (input.u16(), (input.u16().into(), input.u16().into()));
                let asked = R2t::new(cid, ttag, run, Digests::default());
                [asked.as_bytes(), &right(sqe)].concat()
            }
            _ => unreachable!("all are named"),
        })
    }
}

/// That command `cid` has ended.
pub(crate) fn completion(cid: u16, status: Status, result: u64) -> Vec<u8> {
    let cqe = Cqe::with_result(cid, status, result);
    CapsuleResp::new(cqe, Digests::default()).as_bytes().to_vec()
}

/// Data of command `cid`: where, how much, and what.
pub(crate) fn data(cid: u16, run: (u32, u32), flags: PduFlags, bytes: &[u8]) -> Vec<u8> {
    [C2hData::new(cid, run, flags, Digests::default(), 4).as_bytes(), bytes].concat()
}

/// All the data of command `cid`, which has succeeded.
pub(crate) fn whole(cid: u16, bytes: &[u8]) -> Vec<u8> {
    let len = u32::try_from(bytes.len()).expect("short");
    data(cid, (0, len), PduFlags::LAST_PDU.union(PduFlags::SUCCESS), bytes)
}

/// Behind `beginning`, each wrong answer to each of the first `commands` commands.
pub(crate) fn wrong_answers(beginning: &[u8], commands: usize) -> Vec<Vec<u8>> {
    let operands = [4, 0, 0, 2, 0x0C, 0, 0, 0];
    let behind =
        |wrong, right| [beginning, &vec![answer::RIGHT; right], &[wrong], &operands].concat();
    let each = answer::BARE..answer::COUNT;
    each.flat_map(|wrong| (0..commands).map(move |right| behind(wrong, right))).collect()
}
