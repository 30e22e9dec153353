//! An iSCSI initiator: sessions of one connection, CHAP both ways, reads and writes of a few blocks.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};

use iscsi_target::chap::Algorithm;
use iscsi_wire::cdb::opcode as scsi;
use iscsi_wire::pdu::{
    self, BHS_LEN, Bhs, HAS_STATUS, IMMEDIATE, Lengths, NO_TAG, READ, WRITE, opcode,
};
use iscsi_wire::{Cdb, text};

use super::PATIENCE;

/// Bytes of a logical block.
pub const BLOCK: usize = 4096;
const FIRST_CMD_SN: u32 = 1;
/// The challenge to the target.
const CHALLENGE: &[u8] = &[0x5A; 16];

/// Proofs of both sides by CHAP.
#[derive(Clone, Copy, Debug)]
pub struct Chap<'a> {
    pub user: &'a str,
    pub secret: &'a str,
    /// The target has to prove that it knows this one.
    pub target_secret: &'a str,
}

/// An initiator that asks for a session: of discovery, if it names no target.
#[derive(Clone, Copy, Debug)]
pub struct Names<'a> {
    pub initiator: &'a str,
    pub target: Option<&'a str>,
}

pub struct Initiator {
    stream: TcpStream,
    cmd_sn: u32,
    stat_sn: u32,
}

/// The header of a PDU with its data, padded.
pub fn pdu(mut header: [u8; BHS_LEN], data: &[u8]) -> Vec<u8> {
    header[5..8].copy_from_slice(&Lengths::of_data(data.len()).data);
    let mut bytes = [&header[..], data].concat();
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes
}

/// A login request. The flags say the stages.
pub fn login(flags: u8, exp_stat_sn: u32, pairs: &[(&str, &str)]) -> Vec<u8> {
    let mut request: pdu::LoginRequest = pdu::blank(opcode::LOGIN_REQUEST | IMMEDIATE);
    (request.flags, request.isid, request.itt) = (flags, [0x80, 0, 0, 1, 0, 0], 0x77.into());
    (request.cmd_sn, request.exp_stat_sn) = (FIRST_CMD_SN.into(), exp_stat_sn.into());
    let mut data = Vec::new();
    pairs.iter().for_each(|(key, value)| text::put(&mut data, key, value));
    pdu(request.encode(), &data)
}

/// A command that expects `edtl` bytes, or brings them; those of `data` come with it.
pub fn command(number: u32, cdb: Cdb, flags: u8, edtl: u32, data: &[u8]) -> Vec<u8> {
    let mut command: pdu::ScsiCommand = pdu::blank(opcode::SCSI_COMMAND);
    command.flags |= flags;
    (command.itt, command.cmd_sn) = (number.into(), number.into());
    (command.edtl, command.cdb) = (edtl.into(), cdb.0);
    pdu(command.encode(), data)
}

impl Initiator {
    /// Logs in. Returns status class and detail if that is refused.
    pub fn log_in(
        portal: SocketAddr,
        names: Names<'_>,
        chap: Option<Chap<'_>>,
    ) -> Result<Self, [u8; 2]> {
        let stream = TcpStream::connect(portal).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_nodelay(true).unwrap();
        let mut initiator = Self { stream, cmd_sn: FIRST_CMD_SN, stat_sn: 0 };
        let of_session = match names.target {
            Some(target) => ("TargetName", target),
            None => ("SessionType", "Discovery"),
        };
        let names = [("InitiatorName", names.initiator), of_session];
        match chap {
            None => drop(initiator.say(0x87, &[&names[..], &[("AuthMethod", "None")]].concat())?),
            Some(chap) => {
                initiator.say(0x00, &[&names[..], &[("AuthMethod", "CHAP")]].concat())?;
                initiator.prove(chap)?;
                initiator.say(0x87, &[])?;
            }
        }
        Ok(initiator)
    }

    fn prove(&mut self, Chap { user, secret, target_secret }: Chap<'_>) -> Result<(), [u8; 2]> {
        let told = self.say(0x00, &[("CHAP_A", "5")])?;
        let value = |pairs: &[(String, String)], key: &str| {
            pairs.iter().find(|(name, _)| name == key).unwrap_or_else(|| panic!("{key}")).1.clone()
        };
        let (id, challenge) = (value(&told, "CHAP_I").parse().unwrap(), value(&told, "CHAP_C"));
        let challenge = text::binary(&challenge, 1024).unwrap();
        let response = text::to_hex(&Algorithm::Md5.response(id, secret.as_bytes(), &challenge));
        let own = text::to_hex(CHALLENGE);
        let proof = [("CHAP_N", user), ("CHAP_R", &response), ("CHAP_I", "4"), ("CHAP_C", &own)];
        let proven = self.say(0x81, &proof)?;
        let proof = text::binary(&value(&proven, "CHAP_R"), 64).unwrap();
        let expected = Algorithm::Md5.response(4, target_secret.as_bytes(), CHALLENGE);
        assert_eq!(proof, expected, "the target proves itself");
        Ok(())
    }

    fn say(&mut self, flags: u8, pairs: &[(&str, &str)]) -> Result<Vec<(String, String)>, [u8; 2]> {
        self.stream.write_all(&login(flags, self.stat_sn, pairs)).unwrap();
        let (bhs, data) = self.hear().unwrap();
        let response = pdu::LoginResponse::decode(&bhs.encode());
        assert_eq!(response.opcode, opcode::LOGIN_RESPONSE);
        if response.status != [0, 0] {
            return Err(response.status);
        }
        self.stat_sn = response.sequence.stat_sn.get() + 1;
        let pairs = text::pairs(&data).unwrap();
        Ok(pairs.into_iter().map(|(key, value)| (key.into(), value.into())).collect())
    }

    /// The targets that the session shows, with their addresses.
    pub fn targets(&mut self) -> Vec<(String, String)> {
        let mut request: pdu::TextRequest = pdu::blank(opcode::TEXT_REQUEST | IMMEDIATE);
        (request.itt, request.ttt) = (9.into(), NO_TAG.into());
        request.cmd_sn = self.cmd_sn.into();
        self.stream.write_all(&pdu(request.encode(), b"SendTargets=All\0")).unwrap();
        let (bhs, data) = self.hear().unwrap();
        assert_eq!(bhs.opcode, opcode::TEXT_RESPONSE);
        let pairs = text::pairs(&data).unwrap();
        let value = |(_, value): &(&str, &str)| (*value).to_owned();
        pairs.chunks(2).map(|pair| (value(&pair[0]), value(&pair[1]))).collect()
    }

    /// Sends a command. Its data comes by itself.
    pub fn begin(&mut self, cdb: Cdb, flags: u8, edtl: u32, data: &[u8]) -> io::Result<()> {
        let bytes = command(self.cmd_sn, cdb, flags, edtl, data);
        self.cmd_sn += 1;
        self.stream.write_all(&bytes)
    }

    /// Reads one PDU. Pings are answered.
    pub fn hear(&mut self) -> io::Result<(Bhs, Vec<u8>)> {
        loop {
            let mut header = [0; BHS_LEN];
            self.stream.read_exact(&mut header)?;
            let bhs = Bhs::decode(&header);
            let mut data = vec![0; bhs.lengths.data_len().next_multiple_of(4)];
            self.stream.read_exact(&mut data)?;
            data.truncate(bhs.lengths.data_len());
            // 20..24 is the Target Transfer Tag.
            if bhs.opcode != opcode::NOP_IN || header[20..24] == [0xFF; 4] {
                return Ok((bhs, data));
            }
            let mut answer: Bhs = pdu::blank(opcode::NOP_OUT | IMMEDIATE);
            answer.itt = NO_TAG.into();
            let mut answer = answer.encode();
            answer[20..24].copy_from_slice(&header[20..24]);
            answer[24..28].copy_from_slice(&self.cmd_sn.to_be_bytes());
            self.stream.write_all(&answer)?;
        }
    }

    /// Takes the data of a command until its status, which is to be GOOD.
    fn finish(&mut self) -> Vec<u8> {
        let mut all = Vec::new();
        loop {
            let (bhs, data) = self.hear().unwrap();
            all.extend(data);
            match bhs.opcode {
                opcode::DATA_IN if bhs.flags & HAS_STATUS == 0 => {}
                opcode::DATA_IN | opcode::SCSI_RESPONSE => {
                    assert_eq!(bhs.specific, [0, 0], "response and status");
                    return all;
                }
                other => panic!("a PDU of type {other:#x}"),
            }
        }
    }

    /// Takes the unit attention that a new session has.
    pub fn become_ready(&mut self) {
        self.begin(Cdb([0; 16]), 0, 0, &[]).unwrap();
        let (bhs, _) = self.hear().unwrap();
        assert_eq!((bhs.opcode, bhs.specific[1]), (opcode::SCSI_RESPONSE, 2), "CHECK CONDITION");
    }

    pub fn read(&mut self, lba: u64, blocks: u32) -> Vec<u8> {
        let cdb = Cdb::with_blocks(scsi::READ_10, lba, blocks);
        self.begin(cdb, READ, blocks * BLOCK as u32, &[]).unwrap();
        self.finish()
    }

    /// Writes one block, which comes with the command.
    pub fn write(&mut self, lba: u64, block: &[u8]) {
        let cdb = Cdb::with_blocks(scsi::WRITE_10, lba, 1);
        self.begin(cdb, WRITE, BLOCK as u32, block).unwrap();
        self.finish();
    }

    /// Sends a command with the data that it brings.
    pub fn send(&mut self, cdb: Cdb, data: &[u8]) {
        self.begin(cdb, WRITE, data.len() as u32, data).unwrap();
        self.finish();
    }

    /// Sends a command that returns up to `len` bytes.
    pub fn receive(&mut self, cdb: Cdb, len: u32) -> Vec<u8> {
        self.begin(cdb, READ, len, &[]).unwrap();
        self.finish()
    }

    pub fn stream(&mut self) -> &mut TcpStream {
        &mut self.stream
    }
}
