//! A strict initiator: it refuses wrong numbers, flags, offsets, residuals, digests and lengths of sense data.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use checksum::crc32c;
use io_traits::{Network, SendBatch, Stream};
use iscsi_frontend::target_name_of;
use iscsi_wire::pdu::{
    self, BHS_LEN, Bhs, CONTINUE, FINAL, HAS_STATUS, IMMEDIATE, Lengths, NO_TAG, OVERFLOW, READ,
    Sequence, UNDERFLOW, WRITE, opcode,
};
use iscsi_wire::sense::SENSE_LEN;
use iscsi_wire::{Cdb, text};
use sim::{SimStream, SimWorld};

/// Data of one PDU that it takes.
const RECEIVE_MAX: usize = 8192;
/// Data of one burst that it agrees to.
const BURST_MAX: u32 = 65_536;

/// A PDU that came.
#[derive(Debug)]
pub(crate) struct Received {
    pub(crate) bhs: Bhs,
    pub(crate) data: Vec<u8>,
}

/// The end of a command.
#[derive(Debug, Eq, PartialEq)]
pub(crate) struct Ended {
    pub(crate) status: u8,
    /// Key, code and qualifier.
    pub(crate) sense: Option<(u8, u8, u8)>,
    pub(crate) data: Vec<u8>,
    /// Negative: fewer bytes than were expected.
    pub(crate) residual: i64,
}

/// A session of one connection.
pub(crate) struct Initiator {
    stream: SimStream,
    received: Vec<u8>,
    digests: bool,
    /// The status that comes next, once it is known.
    stat_sn: Option<u32>,
    cmd_sn: u32,
    max_cmd_sn: u32,
    next_itt: u32,
    isid: [u8; 6],
    /// R2Ts are not answered.
    pub(crate) withholds: bool,
    /// Commands are sent before the target has taken in those before.
    pub(crate) begins_many: bool,
    /// Each byte is sent by itself.
    pub(crate) drips: bool,
}

/// A target's challenge.
pub(crate) struct Challenge {
    id: u8,
    bytes: Vec<u8>,
}

/// Credentials for CHAP: user name and secret.
pub(crate) type Credentials<'a> = Option<(&'a str, &'a str)>;

impl Initiator {
    pub(crate) async fn connect(world: &SimWorld, portal: SocketAddr) -> Self {
        let stream = world.connect(portal).await.expect("a core listens");
        Self {
            stream,
            received: Vec::new(),
            digests: false,
            stat_sn: None,
            cmd_sn: 0x8000_0000,
            max_cmd_sn: 0,
            next_itt: 1,
            isid: [0x80, 0, 0, 1, 0, 0],
            withholds: false,
            begins_many: false,
            drips: false,
        }
    }

    /// A session to `target`.
    pub(crate) async fn open(
        world: &SimWorld,
        portal: SocketAddr,
        target: &str,
        credentials: Credentials<'_>,
    ) -> Result<Self, [u8; 2]> {
        let mut initiator = Self::connect(world, portal).await;
        let names = [("InitiatorName", "iqn.2026-01.com.example:host"), ("TargetName", target)];
        initiator.log_in(&names, credentials).await?;
        Ok(initiator)
    }

    /// A session to `target` of another port of the initiator, which is in its ISID.
    pub(crate) async fn open_from_port(
        world: &SimWorld,
        portal: SocketAddr,
        target: &str,
        port: u8,
    ) -> Self {
        let mut initiator = Self::connect(world, portal).await;
        initiator.isid[5] = port;
        let names = [("InitiatorName", "iqn.2026-01.com.example:host"), ("TargetName", target)];
        initiator.log_in(&names, None).await.expect("it may open it");
        initiator
    }

    /// A discovery session.
    pub(crate) async fn discover(
        world: &SimWorld,
        portal: SocketAddr,
        credentials: Credentials<'_>,
    ) -> Result<Self, [u8; 2]> {
        let mut initiator = Self::connect(world, portal).await;
        let names =
            [("InitiatorName", "iqn.2026-01.com.example:host"), ("SessionType", "Discovery")];
        initiator.log_in(&names, credentials).await?;
        Ok(initiator)
    }

    async fn log_in(
        &mut self,
        names: &[(&str, &str)],
        credentials: Credentials<'_>,
    ) -> Result<(), [u8; 2]> {
        if let Some((user, secret)) = credentials {
            let challenge = self.ask_for_challenge(names).await?;
            self.prove((user, secret), &challenge).await?;
        }
        let keys = [
            ("HeaderDigest", "CRC32C"),
            ("DataDigest", "CRC32C"),
            ("InitialR2T", "No"),
            ("ImmediateData", "Yes"),
            ("MaxRecvDataSegmentLength", "8192"),
            ("MaxBurstLength", "65536"),
            ("FirstBurstLength", "16384"),
            ("MaxOutstandingR2T", "2"),
        ];
        let names = if credentials.is_some() { &[] } else { names };
        let (flags, answer) = self.login(0x87, &[names, &keys].concat()).await?;
        assert_eq!(flags, 0x87, "transit");
        for (key, value) in keys.iter().filter(|(key, _)| *key != "MaxRecvDataSegmentLength") {
            assert!(answer.contains(&((*key).into(), (*value).into())), "{key}: {answer:?}");
        }
        self.digests = true;
        Ok(())
    }

    /// Begins a login to `target` up to the challenge.
    pub(crate) async fn challenged(
        world: &SimWorld,
        portal: SocketAddr,
        target: &str,
    ) -> (Self, Challenge) {
        let mut initiator = Self::connect(world, portal).await;
        let names = [("InitiatorName", "iqn.2026-01.com.example:host"), ("TargetName", target)];
        let challenge = initiator.ask_for_challenge(&names).await.expect("a challenge");
        (initiator, challenge)
    }

    async fn ask_for_challenge(&mut self, names: &[(&str, &str)]) -> Result<Challenge, [u8; 2]> {
        let begin = [names, &[("AuthMethod", "CHAP")]].concat();
        let (_, answer) = self.login(0x00, &begin).await?;
        assert!(answer.contains(&("AuthMethod".into(), "CHAP".into())), "{answer:?}");
        let (_, told) = self.login(0x00, &[("CHAP_A", "5")]).await?;
        let value = |key: &str| told.iter().find(|pair| pair.0 == key).expect("told").1.clone();
        let id = value("CHAP_I").parse().expect("a number");
        let bytes = text::binary(&value("CHAP_C"), 1024).expect("a challenge");
        Ok(Challenge { id, bytes })
    }

    /// Proves to know the secret, and that the target does: in discovery the one of the volume that the user names.
    pub(crate) async fn prove(
        &mut self,
        (user, secret): (&str, &str),
        challenge: &Challenge,
    ) -> Result<(), [u8; 2]> {
        let algorithm = iscsi_target::chap::Algorithm::Md5;
        let response = algorithm.response(challenge.id, secret.as_bytes(), &challenge.bytes);
        let response = text::to_hex(&response);
        let proof =
            [("CHAP_N", user), ("CHAP_R", &response), ("CHAP_I", "4"), ("CHAP_C", "0x5a5a5a5a")];
        let (flags, proven) = self.login(0x81, &proof).await?;
        assert_eq!(flags, 0x81, "transit");
        let name = target_name_of(user.parse().expect("an identity"));
        assert_eq!(proven[0], ("CHAP_N".into(), name));
        Ok(())
    }

    /// One exchange of a login. Returns the flags and the pairs of the answer, or the status that refuses it.
    async fn login(
        &mut self,
        flags: u8,
        pairs: &[(&str, &str)],
    ) -> Result<(u8, Vec<(String, String)>), [u8; 2]> {
        let mut request: pdu::LoginRequest = pdu::blank(opcode::LOGIN_REQUEST | IMMEDIATE);
        (request.flags, request.isid, request.itt) = (flags, self.isid, 0x77.into());
        request.cmd_sn = self.cmd_sn.into();
        request.exp_stat_sn = self.stat_sn.unwrap_or(0).into();
        let mut data = Vec::new();
        pairs.iter().for_each(|(key, value)| text::put(&mut data, key, value));
        self.send(request.encode(), &data).await;
        let received = self.receive().await.expect("an answer");
        let response = pdu::LoginResponse::decode(&received.bhs.encode());
        assert_eq!((response.opcode, response.itt.get()), (opcode::LOGIN_RESPONSE, 0x77));
        assert_eq!(response.isid, self.isid);
        if response.status != [0, 0] {
            return Err(response.status);
        }
        if self.stat_sn.is_none() {
            self.stat_sn = Some(response.sequence.stat_sn.get());
        }
        self.check_sequence(&response.sequence, true);
        assert_eq!(response.tsih.get() != 0, flags & 3 == 3 && flags & 0x80 != 0, "TSIH");
        let pairs = text::pairs(&received.data).expect("text");
        Ok((response.flags, pairs.into_iter().map(|(k, v)| (k.into(), v.into())).collect()))
    }

    /// Checks the numbers of a PDU, which carries a status or not.
    fn check_sequence(&mut self, sequence: &Sequence, has_status: bool) {
        let expected = self.stat_sn.expect("logged in");
        assert_eq!(sequence.stat_sn.get(), expected, "StatSN");
        self.stat_sn = Some(expected.wrapping_add(u32::from(has_status)));
        self.check_window(sequence);
    }

    fn check_window(&mut self, sequence: &Sequence) {
        let under_way = self.cmd_sn.wrapping_sub(sequence.exp_cmd_sn.get());
        assert!(under_way <= if self.begins_many { 128 } else { 0 }, "ExpCmdSN");
        let max = sequence.max_cmd_sn.get();
        let is_first = self.max_cmd_sn == 0;
        assert!(is_first || max.wrapping_sub(self.max_cmd_sn) < 1 << 31, "MaxCmdSN went back");
        self.max_cmd_sn = max;
    }

    pub(crate) async fn send(&self, mut header: [u8; BHS_LEN], data: &[u8]) {
        header[5..8].copy_from_slice(&Lengths::of_data(data.len()).data);
        let mut batch = SendBatch::default();
        batch.push_bytes(&header);
        if self.digests {
            batch.push_bytes(&crc32c(&header).to_le_bytes());
        }
        let mut padded = data.to_vec();
        padded.resize(data.len().next_multiple_of(4), 0);
        batch.push_bytes(&padded);
        if self.digests && !data.is_empty() {
            batch.push_bytes(&crc32c(&padded).to_le_bytes());
        }
        self.send_batch(batch).await;
    }

    async fn send_batch(&self, batch: SendBatch) {
        if self.drips {
            for byte in batch.slices().collect::<Vec<_>>().concat() {
                self.send_bytes(&[byte]).await;
            }
            return;
        }
        // The target may have ended the connection.
        let _ = self.stream.send(batch).await;
    }

    /// Sends bytes as they are.
    pub(crate) async fn send_bytes(&self, bytes: &[u8]) {
        let mut batch = SendBatch::default();
        batch.push_bytes(bytes);
        // The target may have ended the connection.
        let _ = self.stream.send(batch).await;
    }

    /// Sends a header as it is, with its digest.
    pub(crate) async fn send_header(&self, header: [u8; BHS_LEN]) {
        self.send_long_header(&header).await;
    }

    /// The same with additional headers.
    pub(crate) async fn send_long_header(&self, header: &[u8]) {
        self.send_bytes(header).await;
        self.send_bytes(&crc32c(header).to_le_bytes()).await;
    }

    /// Returns whether the target closes the connection, whatever it says before.
    pub(crate) async fn is_closed(&mut self) -> bool {
        while self.stream.recv().await.is_ok() {}
        true
    }

    /// Returns whether the target closes the connection without a word.
    pub(crate) async fn is_closed_unanswered(&mut self) -> bool {
        self.stream.recv().await.is_err()
    }

    /// The number of the next command.
    pub(crate) fn cmd_sn(&self) -> u32 {
        self.cmd_sn
    }

    /// Takes part in a command that was sent as it is, under the next number.
    pub(crate) async fn finish_raw(&mut self, itt: u32) -> Ended {
        self.cmd_sn = self.cmd_sn.wrapping_add(1);
        self.finish(itt, &[], 0).await
    }

    /// The reason for which the target rejects a PDU.
    pub(crate) async fn refused(&mut self) -> u8 {
        let Received { bhs, .. } = self.receive().await.expect("an answer");
        let rejected = pdu::Reject::decode(&bhs.encode());
        assert_eq!(rejected.opcode, opcode::REJECT);
        self.check_sequence(&rejected.sequence, true);
        rejected.reason
    }

    /// Takes the data of so many reads, in whatever order it comes. Returns its length.
    pub(crate) async fn bytes_of_reads(&mut self, reads: usize) -> usize {
        let (mut ended, mut len) = (0, 0);
        while ended < reads {
            let Received { bhs, data } = self.receive().await.expect("an answer");
            if bhs.opcode == opcode::NOP_IN {
                self.answer_ping(&bhs).await;
                continue;
            }
            let part = pdu::DataIn::decode(&bhs.encode());
            assert_eq!(part.opcode, opcode::DATA_IN);
            len += data.len();
            ended += usize::from(part.flags & HAS_STATUS != 0);
        }
        len
    }

    /// Sends a part of a login, which goes on. Returns whether the target wants more of it.
    pub(crate) async fn go_on_with_login(&mut self, text: &[u8]) -> bool {
        let mut request: pdu::LoginRequest = pdu::blank(opcode::LOGIN_REQUEST | IMMEDIATE);
        (request.flags, request.isid, request.itt) = (CONTINUE, self.isid, 0x77.into());
        request.cmd_sn = self.cmd_sn.into();
        self.send(request.encode(), text).await;
        let Some(received) = self.receive().await else { return false };
        pdu::LoginResponse::decode(&received.bhs.encode()).status == [0, 0]
    }

    /// Logs in to `target`.
    pub(crate) async fn log_in_to(&mut self, target: &str) -> Result<(), [u8; 2]> {
        let names = [("InitiatorName", "iqn.2026-01.com.example:host"), ("TargetName", target)];
        self.log_in(&names, None).await
    }

    async fn bytes(&mut self, len: usize) -> Option<Vec<u8>> {
        while self.received.len() < len {
            self.received.extend_from_slice(&self.stream.recv().await.ok()?);
        }
        Some(self.received.drain(..len).collect())
    }

    /// The next PDU, its digests and padding checked; `None` at the end of the connection.
    pub(crate) async fn receive(&mut self) -> Option<Received> {
        let header = self.bytes(BHS_LEN).await?;
        if self.digests {
            assert_eq!(self.bytes(4).await?, crc32c(&header).to_le_bytes(), "header digest");
        }
        let bhs = Bhs::decode(header.first_chunk().expect("a header"));
        assert_eq!(bhs.lengths.ahs_words, 0);
        let len = bhs.lengths.data_len();
        assert!(len <= RECEIVE_MAX, "more data than was agreed on");
        let mut data = self.bytes(len.next_multiple_of(4)).await?;
        if self.digests && len > 0 {
            assert_eq!(self.bytes(4).await?, crc32c(&data).to_le_bytes(), "data digest");
        }
        assert!(data[len..].iter().all(|byte| *byte == 0), "padding");
        data.truncate(len);
        Some(Received { bhs, data })
    }

    /// Carries out a command that writes `data`, or reads at most `read` bytes.
    pub(crate) async fn command(&mut self, cdb: Cdb, data: &[u8], read: u32) -> Ended {
        let itt = self.begin(cdb, data, read).await;
        self.finish(itt, data, read).await
    }

    /// Carries out a command that reads, and fails. Returns its end, and INFORMATION if the sense data has any.
    pub(crate) async fn failed_at(&mut self, cdb: Cdb, read: u32) -> (Ended, Option<u32>) {
        let itt = self.begin(cdb, &[], read).await;
        let Received { bhs, data } = self.receive().await.expect("an answer");
        let response = pdu::ScsiResponse::decode(&bhs.encode());
        assert_eq!((response.opcode, response.itt.get()), (opcode::SCSI_RESPONSE, itt));
        self.check_sequence(&response.sequence, true);
        let residual = residual(response.flags, response.residual.get());
        let (status, sense) = (response.status, Some(sense_of(&data)));
        let information = data[5..9].try_into().expect("four bytes");
        let information = (data[2] & 0x80 != 0).then(|| u32::from_be_bytes(information));
        (Ended { status, sense, data: Vec::new(), residual }, information)
    }

    /// Begins a command, which is to be finished before another one ends. Returns its tag.
    pub(crate) async fn begin(&mut self, cdb: Cdb, data: &[u8], read: u32) -> u32 {
        let mut command: pdu::ScsiCommand = pdu::blank(opcode::SCSI_COMMAND);
        let itt = self.next_itt;
        self.next_itt += 1;
        (command.itt, command.cdb, command.cmd_sn) = (itt.into(), cdb.0, self.cmd_sn.into());
        command.exp_stat_sn = self.stat_sn.expect("logged in").into();
        assert!(data.is_empty() || read == 0);
        let edtl = u32::try_from(data.len()).expect("short") + read;
        command.edtl = edtl.into();
        command.flags |= if data.is_empty() { 0 } else { WRITE } | if read > 0 { READ } else { 0 };
        self.cmd_sn = self.cmd_sn.wrapping_add(1);
        // A part with the command, a part behind it by itself, the rest as it is asked for.
        let (now, soon) = (data.len().min(4096), data.len().min(16_384));
        if soon > now {
            command.flags &= !FINAL;
        }
        self.send(command.encode(), &data[..now]).await;
        if soon > now {
            self.data_out(itt, NO_TAG, &data[..soon], now).await;
        }
        itt
    }

    /// Takes part in a command until it has ended.
    pub(crate) async fn finish(&mut self, itt: u32, data: &[u8], read: u32) -> Ended {
        let edtl = u32::try_from(data.len()).expect("short") + read;
        self.exchange(itt, data, edtl, read > 0).await
    }

    /// Takes part in commands that write `data` each, in whatever order they end. Returns the status and the residual of each.
    pub(crate) async fn finish_all(
        &mut self,
        itts: &[u32],
        data: &[u8],
    ) -> BTreeMap<u32, (u8, i64)> {
        let (mut ended, mut r2ts) = (BTreeMap::new(), BTreeMap::<u32, u32>::new());
        while ended.len() < itts.len() {
            let Received { bhs, data: came } = self.receive().await.expect("an answer");
            let itt = bhs.itt.get();
            assert!(itts.contains(&itt) && !ended.contains_key(&itt));
            let asked = r2ts.entry(itt).or_default();
            if bhs.opcode == opcode::R2T {
                let r2t = pdu::R2t::decode(&bhs.encode());
                assert_eq!(r2t.r2t_sn.get(), *asked);
                self.check_sequence(&r2t.sequence, false);
                *asked += 1;
                if !self.withholds {
                    let from = r2t.buffer_offset.get() as usize;
                    let end = from + r2t.desired_len.get() as usize;
                    self.data_out(itt, r2t.ttt.get(), &data[..end], from).await;
                }
                continue;
            }
            let response = pdu::ScsiResponse::decode(&bhs.encode());
            assert_eq!((response.opcode, came.len()), (opcode::SCSI_RESPONSE, 0));
            self.check_sequence(&response.sequence, true);
            assert_eq!((response.response, response.exp_data_sn.get()), (0, *asked));
            let residual = residual(response.flags, response.residual.get());
            ended.insert(itt, (response.status, residual));
        }
        ended
    }

    /// Ends the connection without a word.
    pub(crate) fn hang_up(self) {
        self.stream.shutdown();
    }

    /// The transfer tag of the next R2T that comes.
    pub(crate) async fn asked(&mut self) -> u32 {
        let Received { bhs, .. } = self.receive().await.expect("an R2T");
        assert_eq!(bhs.opcode, opcode::R2T);
        pdu::R2t::decode(&bhs.encode()).ttt.get()
    }

    /// Answers a NOP-In.
    pub(crate) async fn answer_ping(&self, ping: &Bhs) {
        let ping = pdu::NopIn::decode(&ping.encode());
        let mut nop: pdu::NopOut = pdu::blank(opcode::NOP_OUT | IMMEDIATE);
        (nop.itt, nop.ttt) = (NO_TAG.into(), ping.ttt);
        nop.cmd_sn = self.cmd_sn.into();
        self.send(nop.encode(), &[]).await;
    }

    /// Sends a drop of what was asked for: the one with the number `sn`, from `offset` on.
    pub(crate) async fn drop_of(&self, (itt, ttt): (u32, u32), sn: u32, offset: u32, data: &[u8]) {
        let mut out: pdu::DataOut = pdu::blank(opcode::DATA_OUT);
        // More follows.
        out.flags = 0;
        (out.itt, out.ttt) = (itt.into(), ttt.into());
        (out.data_sn, out.buffer_offset) = (sn.into(), offset.into());
        self.send(out.encode(), data).await;
    }

    /// Sends `data` from `from` on, as one sequence.
    async fn data_out(&self, itt: u32, ttt: u32, data: &[u8], from: usize) {
        let parts: Vec<usize> = (from..data.len()).step_by(RECEIVE_MAX).collect();
        for (sn, at) in parts.iter().enumerate() {
            let end = (at + RECEIVE_MAX).min(data.len());
            let mut out: pdu::DataOut = pdu::blank(opcode::DATA_OUT);
            (out.itt, out.ttt) = (itt.into(), ttt.into());
            out.flags = if end == data.len() { FINAL } else { 0 };
            out.data_sn = u32::try_from(sn).expect("few").into();
            out.buffer_offset = u32::try_from(*at).expect("short").into();
            self.send(out.encode(), &data[*at..end]).await;
        }
    }

    /// Answers R2Ts and takes data until the command has ended.
    async fn exchange(&mut self, itt: u32, data: &[u8], edtl: u32, reads: bool) -> Ended {
        let (mut read, mut data_ins, mut r2ts, mut burst) = (Vec::new(), 0, 0, 0_u32);
        loop {
            let Received { bhs, data: came } = self.receive().await.expect("an answer");
            assert_eq!(bhs.itt.get(), itt);
            match bhs.opcode {
                opcode::R2T => {
                    let r2t = pdu::R2t::decode(&bhs.encode());
                    assert_eq!((r2t.flags, r2t.r2t_sn.get()), (FINAL, r2ts));
                    self.check_sequence(&r2t.sequence, false);
                    let (from, len) = (r2t.buffer_offset.get() as usize, r2t.desired_len.get());
                    assert!((1..=BURST_MAX).contains(&len) && from + len as usize <= data.len());
                    r2ts += 1;
                    if self.withholds {
                        continue;
                    }
                    self.data_out(itt, r2t.ttt.get(), &data[..from + len as usize], from).await;
                }
                opcode::DATA_IN => {
                    let part = pdu::DataIn::decode(&bhs.encode());
                    assert!(reads && !came.is_empty());
                    assert_eq!(part.data_sn.get(), data_ins, "DataSN");
                    assert_eq!(part.buffer_offset.get() as usize, read.len(), "offset");
                    (data_ins, burst) = (data_ins + 1, burst + came.len() as u32);
                    read.extend_from_slice(&came);
                    assert!(burst <= BURST_MAX && read.len() <= edtl as usize);
                    let is_last = part.flags & HAS_STATUS != 0;
                    assert_eq!(part.flags & FINAL != 0, is_last || burst == BURST_MAX, "FINAL");
                    burst %= BURST_MAX;
                    if !is_last {
                        self.check_window(&part.sequence);
                        continue;
                    }
                    self.check_sequence(&part.sequence, true);
                    let residual = residual(part.flags, part.residual.get());
                    assert_eq!(read.len() as i64, i64::from(edtl) + residual.min(0), "residual");
                    return Ended { status: part.status, sense: None, data: read, residual };
                }
                opcode::SCSI_RESPONSE => {
                    let response = pdu::ScsiResponse::decode(&bhs.encode());
                    self.check_sequence(&response.sequence, true);
                    assert_eq!(
                        (response.response, response.exp_data_sn.get()),
                        (0, data_ins + r2ts)
                    );
                    let residual = residual(response.flags, response.residual.get());
                    let sense = (response.status == 2).then(|| sense_of(&came));
                    assert!(sense.is_some() || came.is_empty(), "sense without a condition");
                    return Ended { status: response.status, sense, data: read, residual };
                }
                other => panic!("opcode {other:#x}"),
            }
        }
    }

    /// Reads all of a text answer.
    pub(crate) async fn send_targets(&mut self, which: &str) -> Vec<(String, String)> {
        let (mut ttt, mut all) = (NO_TAG, Vec::new());
        loop {
            let mut request: pdu::TextRequest = pdu::blank(opcode::TEXT_REQUEST);
            (request.itt, request.ttt) = (9.into(), ttt.into());
            request.cmd_sn = self.cmd_sn.into();
            self.cmd_sn = self.cmd_sn.wrapping_add(1);
            let mut data = Vec::new();
            if ttt == NO_TAG {
                text::put(&mut data, "SendTargets", which);
            }
            self.send(request.encode(), &data).await;
            let received = self.receive().await.expect("an answer");
            let response = pdu::TextResponse::decode(&received.bhs.encode());
            self.check_sequence(&response.sequence, true);
            all.extend_from_slice(&received.data);
            ttt = response.ttt.get();
            if response.flags & CONTINUE == 0 {
                assert_eq!((response.flags, ttt), (FINAL, NO_TAG));
                let pairs = text::pairs(&all).expect("text");
                return pairs.into_iter().map(|(k, v)| (k.into(), v.into())).collect();
            }
        }
    }

    /// Asks for a task management function. Returns the response.
    pub(crate) async fn manage(&mut self, function: u8) -> u8 {
        let mut request: pdu::TaskRequest = pdu::blank(opcode::TASK_REQUEST | IMMEDIATE);
        (request.flags, request.itt) = (FINAL | function, 0x55.into());
        (request.referenced_itt, request.cmd_sn) = (NO_TAG.into(), self.cmd_sn.into());
        self.send(request.encode(), &[]).await;
        let received = self.receive().await.expect("an answer");
        let response = pdu::TaskResponse::decode(&received.bhs.encode());
        assert_eq!((response.opcode, response.itt.get()), (opcode::TASK_RESPONSE, 0x55));
        self.check_sequence(&response.sequence, true);
        response.response
    }

    /// Takes in an event. Returns its kind and the code of its sense data.
    pub(crate) async fn event(&mut self) -> (u8, Option<(u8, u8, u8)>) {
        let Received { bhs, data } = self.receive().await.expect("an event");
        let event = pdu::AsyncMessage::decode(&bhs.encode());
        assert_eq!((event.opcode, event.itt.get()), (opcode::ASYNC_MESSAGE, NO_TAG));
        self.check_sequence(&event.sequence, true);
        (event.event, (!data.is_empty()).then(|| sense_of(&data)))
    }

    /// Logs out, and waits for the end of the connection.
    pub(crate) async fn log_out(mut self) {
        let mut request: pdu::LogoutRequest = pdu::blank(opcode::LOGOUT_REQUEST);
        (request.itt, request.cmd_sn) = (8.into(), self.cmd_sn.into());
        self.cmd_sn = self.cmd_sn.wrapping_add(1);
        self.send(request.encode(), &[]).await;
        let received = self.receive().await.expect("an answer");
        let response = pdu::LogoutResponse::decode(&received.bhs.encode());
        assert_eq!((response.opcode, response.response), (opcode::LOGOUT_RESPONSE, 0));
        self.check_sequence(&response.sequence, true);
        assert!(self.receive().await.is_none(), "the connection ends");
    }
}

/// The residual of a status. An overflow is positive.
fn residual(flags: u8, count: u32) -> i64 {
    match flags & (OVERFLOW | UNDERFLOW) {
        0 => {
            assert_eq!(count, 0, "a residual without a flag");
            0
        }
        OVERFLOW => i64::from(count),
        UNDERFLOW => -i64::from(count),
        _ => panic!("both flags"),
    }
}

/// Key, code and qualifier of sense data, which has its length in front.
fn sense_of(data: &[u8]) -> (u8, u8, u8) {
    assert_eq!(data.len(), 2 + SENSE_LEN, "length of sense data");
    assert_eq!(data[..2], (SENSE_LEN as u16).to_be_bytes());
    assert_eq!((data[2] & 0x7F, usize::from(data[9])), (0x70, SENSE_LEN - 8));
    (data[4], data[14], data[15])
}
