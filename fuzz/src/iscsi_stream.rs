//! Bytes of an iSCSI initiator: login, commands, their data and text, in pieces of any size.

use iscsi_target::scsi::{self, AccessState, Operation, Unit};
use iscsi_target::{
    Admission, Authentication, ChapSecret, Completion, Connection, Limits, Secrets, Step, TaskId,
};
use iscsi_wire::cdb::opcode as scsi_opcode;
use iscsi_wire::pdu::{self, BHS_LEN, Bhs, FINAL, IMMEDIATE, Lengths, READ, WRITE, opcode};
use iscsi_wire::{Cdb, text};
use units::Instant;

use crate::input::Input;

const NOW: Instant = Instant(1_000_000_000);
const BLOCK_BYTES: u32 = 4096;
const BLOCKS_MAX: u32 = 4;
const TARGET: &str = "iqn.2026-01.io.farflash:a";

/// All that a connection says and does; payload is only counted.
#[derive(Debug, Default, Eq, PartialEq)]
struct Seen {
    sent: Vec<u8>,
    commands: Vec<(u32, Option<Operation>)>,
    payload_bytes: u64,
    end: Option<String>,
}

/// The bytes do the same in one piece and in many, a command that passes stays within its unit, and PDUs that are sent are whole.
pub fn run(bytes: &[u8]) {
    let mut input = Input(bytes);
    let (piece, authenticates) = (usize::from(input.u8()).max(1), input.u8() % 2 == 1);
    let stream = input.0;
    let whole = serve(stream, stream.len().max(1), authenticates);
    assert_eq!(whole, serve(stream, piece, authenticates), "pieces of {piece}");
}

fn unit() -> Unit<'static> {
    Unit {
        uuid: [7; 16],
        target: TARGET,
        blocks: 100,
        block_bytes: BLOCK_BYTES,
        per_physical: 1,
        transfer_blocks_max: BLOCKS_MAX,
        access: AccessState::ActiveOptimized,
        pool_blocks: 200,
        threshold_percent: 10,
        revision: "0.1",
    }
}

fn authentication() -> Authentication {
    let secrets_of = |user: &str| {
        let (secret, mutual) = (vec![9; 32].into(), Some(vec![8; 32].into()));
        let secret = ChapSecret { secret, mutual, target_name: TARGET.into() };
        let known = if user == "a" { vec![secret] } else { Vec::new() };
        Secrets { known, refusal: pdu::login_status::AUTHENTICATION_FAILURE }
    };
    Authentication { id: 3, challenge: vec![0x5A; 32], secrets_of: Box::new(secrets_of) }
}

fn serve(stream: &[u8], piece: usize, authenticates: bool) -> Seen {
    let limits = Limits { text_max: 2048, receive_max: 16 << 10, ..Limits::default() };
    let (mut seen, mut connection) = (Seen::default(), Connection::new(NOW, &limits));
    for mut piece in stream.chunks(piece) {
        loop {
            let mut step = connection.poll(NOW, &mut piece, &mut seen.sent);
            if let Step::Login(_) = step {
                let authentication = authenticates.then(authentication);
                let admission = Admission { tsih: 7, authentication };
                match connection.admit(admission, &mut seen.sent) {
                    Some(next) => step = next,
                    None => continue,
                }
            }
            match step {
                Step::NeedMore => break,
                Step::Login(_) => panic!("a login asks once"),
                Step::LoggedIn => assert!(connection.is_logged_in()),
                Step::Command(task) => begin(&mut connection, task, &mut seen),
                Step::Data { task, offset, bytes } => {
                    let end = u64::from(offset) + bytes.len() as u64;
                    assert!(end <= connection.wanted(task).into(), "data beyond what is wanted");
                    seen.payload_bytes += bytes.len() as u64;
                }
                Step::Solicit(task) => connection.grant(task, &mut seen.sent),
                Step::Ready(task) | Step::Disordered(task) => {
                    let done = Completion::good(connection.wanted(task).into());
                    connection.complete(task, &done, &mut seen.sent);
                }
                Step::Manage(request) => {
                    connection.abort_all();
                    connection.answer_task_request(&request, 0, &mut seen.sent);
                }
                Step::SendTargets(_) => {
                    let mut pairs = Vec::new();
                    text::put(&mut pairs, "TargetName", TARGET);
                    connection.answer_text(pairs, &mut seen.sent);
                }
                Step::Closed(reason) => {
                    seen.end = Some(reason.to_string());
                    return seen;
                }
            }
        }
        assert!(piece.is_empty(), "a connection that waits has taken all");
    }
    seen
}

fn begin(connection: &mut Connection, task: TaskId, seen: &mut Seen) {
    let (cdb, _) = connection.command(task).expect("it has just come");
    let (writable, readable) = connection.expected(task);
    let operation = scsi::decode(&cdb, Some(&unit())).ok();
    if let Some(Operation::Read(extent) | Operation::Write(extent)) = operation {
        assert!(extent.lba + u64::from(extent.blocks) <= unit().blocks);
        assert!(extent.blocks <= BLOCKS_MAX);
    }
    seen.commands.push((task.0.into(), operation.clone()));
    match operation {
        Some(Operation::Answer(bytes)) => {
            connection.data_in_bytes(task, &bytes, &mut seen.sent);
        }
        Some(Operation::Read(extent)) => {
            let data = vec![1; extent.blocks as usize * BLOCK_BYTES as usize];
            connection.data_in_bytes(task, &data, &mut seen.sent);
        }
        Some(other) => connection.expect(task, other.data_out_len(BLOCK_BYTES) as u32),
        None => connection.expect(task, if readable > 0 { 0 } else { writable }),
    }
}

/// A PDU without digests.
fn framed(mut header: [u8; BHS_LEN], data: &[u8]) -> Vec<u8> {
    header[5..8].copy_from_slice(&Lengths::of_data(data.len()).data);
    let mut bytes = [&header[..], data].concat();
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes
}

fn login(flags: u8, pairs: &[(&str, &str)]) -> Vec<u8> {
    let mut request: pdu::LoginRequest = pdu::blank(opcode::LOGIN_REQUEST | IMMEDIATE);
    (request.flags, request.isid, request.cmd_sn) = (flags, [1; 6], 1.into());
    let mut data = Vec::new();
    pairs.iter().for_each(|(key, value)| text::put(&mut data, key, value));
    framed(request.encode(), &data)
}

fn command(number: u32, flags: u8, cdb: Cdb, data: (u32, &[u8])) -> Vec<u8> {
    let mut command: pdu::ScsiCommand = pdu::blank(opcode::SCSI_COMMAND);
    (command.flags, command.cdb, command.edtl) = (FINAL | flags, cdb.0, data.0.into());
    (command.itt, command.cmd_sn) = (number.into(), number.into());
    framed(command.encode(), data.1)
}

/// Logins with and without an exchange of CHAP, and commands that read, write, ask and manage.
pub fn seeds() -> Vec<Vec<u8>> {
    let names = [("InitiatorName", "iqn.2026-01.a:b"), ("TargetName", TARGET)];
    let keys = [("InitialR2T", "No"), ("MaxBurstLength", "8192"), ("FirstBurstLength", "4096")];
    let (read, write) = (
        Cdb::with_blocks(scsi_opcode::READ_10, 3, 2),
        Cdb::with_blocks(scsi_opcode::WRITE_10, 3, 2),
    );
    let mut inquiry = [0; 16];
    (inquiry[0], inquiry[4]) = (scsi_opcode::INQUIRY, 96);
    let mut manage: pdu::TaskRequest = pdu::blank(opcode::TASK_REQUEST | IMMEDIATE);
    (manage.flags, manage.cmd_sn) = (FINAL | 1, 5.into());
    let mut ask: Bhs = Bhs::decode(&[0; BHS_LEN]);
    ask.opcode = opcode::TEXT_REQUEST;
    let mut ask = ask.encode();
    ask[1] = FINAL;
    let commands = [
        command(1, READ, read, (8192, &[])),
        command(2, WRITE, write, (8192, &[5; 4096])),
        command(3, READ, Cdb(inquiry), (96, &[])),
        framed(manage.encode(), &[]),
        framed(ask, b"SendTargets=All\0"),
    ]
    .concat();
    let plain = [&[200, 0][..], &login(0x87, &[&names[..], &keys].concat()), &commands].concat();
    let offer = [("AuthMethod", "CHAP")];
    let answer = [("CHAP_N", "a"), ("CHAP_R", "0x00"), ("CHAP_I", "1"), ("CHAP_C", "0x0011")];
    let proven = [
        &[5, 1][..],
        &login(0x81, &[&names[..], &offer].concat()),
        &login(0x00, &[("CHAP_A", "7,5")]),
        &login(0x81, &answer),
    ]
    .concat();
    vec![plain, proven]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Else mutations of them would look at little.
    #[test]
    fn seeds_get_far() {
        let [plain, proven] = &seeds()[..] else { panic!("two") };
        let seen = serve(&plain[2..], 1000, false);
        assert_eq!((seen.commands.len(), seen.payload_bytes, seen.end), (3, 4096, None));
        let seen = serve(&proven[2..], 1000, true);
        let refused = seen.end.expect("its proof is wrong");
        assert!(refused.contains("0201h"), "{refused}");
    }
}
