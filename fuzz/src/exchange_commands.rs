//! Commands of an authentication, to a whole server in a simulated world: a host that sends and asks for messages in any
//! order, of any length, before the last was answered or behind.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use ::auth::{Group, Hash, Host, Policy, Secret};
use access::{Access, Token};
use io_traits::{Clock, Network, Spawn, Stream};
use nvme_frontend::{NvmeOptions, nqn_of};
use nvme_wire::auth::{Authentication, Body, Message};
use nvme_wire::{SglDescriptor, Sqe, Status};
use sim::{SimDevice, SimWorld};
use test_hosts::cores::{SimNvmeCore, only_shard};
use units::{Duration, ShardIndex};
use uuid::Uuid;
use volume::{FormatOptions, Terms, VolumeSpec};
use zerocopy::{FromBytes, IntoBytes};

use crate::input::Input;
use crate::portal;
use crate::raw_host::{self, C2H_DATA, CAPSULE_RESP, RawHost, capsule, connect_command, take_pdu};
use crate::session::{self, COMMANDS_MAX};

/// 64 MiB: room for a volume.
const DEVICE_BLOCKS: u64 = 16_384;
const VOLUME: Uuid = Uuid::from_bytes(*b"a volume of fuzz");
/// Room for a message.
const ROOM: u16 = 1024;
/// Longer than an exchange may take, or a connection that is ending.
const ALL_IS_OVER: Duration = Duration::from_secs(90);

/// Kinds of the host's next step, by its first byte.
mod step {
    /// Sends what the exchange has to say, unless there is nothing.
    pub(super) const SAY: u8 = 0;
    /// The same with one byte of it changed: where, and how.
    pub(super) const SAY_WRONGLY: u8 = 1;
    /// Asks for a message: how much room it says it has, and has.
    pub(super) const HEAR: u8 = 2;
    /// Sends bytes as a message: what length it says, how many there are, and these.
    pub(super) const SEND: u8 = 3;
    /// Sends a command as it is, with as many bytes behind it.
    pub(super) const COMMAND: u8 = 4;
    /// Lets so many milliseconds pass.
    pub(super) const WAIT: u8 = 5;
    /// Number of kinds.
    pub(super) const COUNT: u8 = 6;
}

/// The state of a host's exchange.
struct Exchange {
    host: Host,
    /// The message to send.
    message: Option<Vec<u8>>,
}

fn secret(number: u8) -> Secret {
    Secret::new(Hash::Sha256, &[number; 64])
}

async fn server(world: &SimWorld, group: Group) -> SimNvmeCore {
    let device = SimDevice::new(world, DEVICE_BLOCKS);
    volume::format(&device, &FormatOptions { uuid: VOLUME }).await.expect("a sound disk");
    let shard = only_shard(device).await;
    let policy = Policy { hashes: vec![Hash::Sha256], groups: vec![group] };
    let options = NvmeOptions { authentication: Some(policy), ..NvmeOptions::new(portal()) };
    let core = SimNvmeCore::new(world, options);
    core.attach(shard);
    let token = Token { secret: secret(1), controller: Some(secret(2)), until: None };
    let access = Access { tokens: vec![token], ..Access::default() };
    let terms = Terms { access: access.encode().expect("short"), ..Terms::default() };
    let spec = VolumeSpec { uuid: VOLUME, name: "fuzz".into(), blocks: 64 };
    core.create_volume(ShardIndex(0), spec, terms).await.expect("room");
    let (listener, serving) = (world.listen(portal()).expect("a free address"), core.clone());
    world.spawn(async move { serving.serve(listener).await });
    core
}

/// Runs an exchange: nothing panics, no command is answered twice, a host that does not know the token is not
/// admitted, and no state is left.
pub fn run(bytes: &[u8]) {
    session::play(|world| scenario(world, bytes.to_vec()));
}

async fn scenario(world: SimWorld, bytes: Vec<u8>) {
    let mut input = Input(&bytes);
    // Arithmetic is slow; most inputs do without.
    let group = if input.u8() >= 0xF0 { Group::Ffdhe2048 } else { Group::Null };
    let knows_token = input.u8() & 1 == 1;
    let core = server(&world, group).await;
    let volume = nqn_of(VOLUME);
    let (connect, data) = connect_command(0, 0xFFFF, &volume);
    let mut stranger = RawHost::greet(&world).await.expect("greeted");
    let answer = stranger.command(connect, &data).await.expect("an answer");
    assert_eq!(answer.status(), Status::SUCCESS);

    let own = secret(if knows_token { 1 } else { 3 });
    let (host, first) = Host::new(raw_host::parties(&volume), own, Some(secret(2)), 3);
    let exchange = Rc::new(RefCell::new(Exchange { host, message: Some(first) }));
    let (sent, heard) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(0)));
    let stream = stranger.stream.clone();
    let listening = listen(stream.clone(), exchange.clone(), heard.clone(), knows_token);
    world.spawn(listening);
    while sent.get() < COMMANDS_MAX && !input.is_empty() {
        let cid = 100 + sent.get();
        let Some(bytes) = next_command(&mut input, cid, &exchange, &world).await else { continue };
        sent.set(sent.get() + 1);
        if stranger.send(&bytes).await.is_err() {
            break;
        }
    }
    session::leave(&world, &core, &stream, (sent.get(), || heard.get()), ALL_IS_OVER).await;
}

/// The next command that the input has the host send.
async fn next_command(
    input: &mut Input<'_>,
    cid: u16,
    exchange: &RefCell<Exchange>,
    world: &SimWorld,
) -> Option<Vec<u8>> {
    match input.u8() % step::COUNT {
        step::SAY => {
            let message = exchange.borrow_mut().message.take()?;
            Some(raw_host::say_capsule(cid, &message))
        }
        step::SAY_WRONGLY => {
            let (at, change) = (usize::from(input.u16()), input.u8());
            let mut message = exchange.borrow_mut().message.take()?;
            let at = at % message.len();
            message[at] ^= change;
            Some(raw_host::say_capsule(cid, &message))
        }
        step::HEAR => {
            let (says, room) = (input.u16(), input.u16());
            let room = SglDescriptor::transport(room.into());
            Some(capsule(cid, Authentication::receive(says.into(), room).into(), &[]))
        }
        step::SEND => {
            let (says, len) = (input.u16(), usize::from(input.u16() & 0xFFF));
            let message = input.bytes(len);
            let mut command = Authentication::send(message.len() as u32);
            command.length = u32::from(says).into();
            Some(capsule(cid, command.into(), message))
        }
        step::COMMAND => {
            let mut bytes = [0; 64];
            let given = input.bytes(bytes.len());
            bytes[..given.len()].copy_from_slice(given);
            let len = usize::from(input.u16() & 0xFFF);
            let sqe = Sqe::read_from_bytes(&bytes).expect("64 bytes");
            Some(capsule(cid, sqe, input.bytes(len)))
        }
        _ => {
            let time = Duration::from_millis(u64::from(input.u8()));
            world.sleep_until(world.now() + time).await;
            None
        }
    }
}

/// Takes what the server says: the exchange goes on by it.
async fn listen(
    stream: sim::SimStream,
    exchange: Rc<RefCell<Exchange>>,
    answers: Rc<Cell<u16>>,
    knows_token: bool,
) {
    let mut heard = Vec::new();
    while let Ok(chunk) = stream.recv().await {
        heard.extend(chunk);
        while let Some((kind, data)) = take_pdu(&mut heard) {
            match kind {
                CAPSULE_RESP => answers.set(answers.get() + 1),
                C2H_DATA => {
                    let body = Message::decode(&data).map(|message| message.body);
                    let is_let_in = matches!(body, Ok(Body::Success1 { .. }));
                    assert!(knows_token || !is_let_in, "let in without the token");
                    let exchange = &mut *exchange.borrow_mut();
                    let job = exchange.host.receive(&data, &mut |bytes| bytes.fill(7));
                    if let Some(job) = job {
                        exchange.host.computed(&job.run());
                    }
                    exchange.message = exchange.host.message().or(exchange.message.take());
                }
                _ => {}
            }
        }
    }
}

/// Returns whole exchanges, by a host that knows the token and by one that does not, one command at a time or one
/// after the other.
pub fn seeds() -> Vec<Vec<u8>> {
    let room = ROOM.to_le_bytes();
    let hear = [vec![step::HEAR], room.to_vec(), room.to_vec()].concat();
    let (say, wait) = (vec![step::SAY], vec![step::WAIT, 50]);
    let bare = Body::Negotiate { secure_channel: 0, hashes: &[1], groups: &[0, 1] };
    let message = Message { transaction: 3, body: bare }.to_bytes();
    let len = (message.len() as u16).to_le_bytes();
    let send = [&[step::SEND][..], &len, &len, &message].concat();
    let command = |sqe: Sqe, len: [u8; 2], data: &[u8]| {
        [&[step::COMMAND], sqe.as_bytes(), &len, data].concat()
    };
    let flush = command(Sqe::new(0, 1), [0, 0], &[]);
    let bare_send = command(Authentication::send(message.len() as u32).into(), len, &message);
    let transport = SglDescriptor::transport(ROOM.into());
    let bare_hear = command(Authentication::receive(ROOM.into(), transport).into(), [0, 0], &[]);
    let turn = [say.clone(), hear.clone(), wait.clone()].concat();
    let slow_turn = [say.clone(), wait.clone(), hear.clone(), wait.clone()].concat();
    let wrong = [vec![step::SAY_WRONGLY, 16, 0, 1], hear.clone(), wait.clone()].concat();
    let whole = [&turn[..], &turn, &turn, &flush, &wait].concat();
    let scripts = [
        whole.clone(),
        [&slow_turn[..], &slow_turn, &slow_turn, &flush].concat(),
        [&turn[..], &wrong, &wait, &hear].concat(),
        [&say[..], &hear, &hear, &flush, &wait, &turn].concat(),
        [&send[..], &send, &hear, &wait, &send, &hear, &wait].concat(),
        [&bare_send[..], &bare_hear, &bare_hear, &wait, &bare_send, &wait].concat(),
        // Again, on a queue that is open.
        [&whole[..], &send, &hear, &wait, &turn].concat(),
    ];
    let settings = [[0, 0], [0, 1], [0xFF, 0], [0xFF, 1]];
    let all =
        settings.iter().flat_map(|settings| scripts.iter().map(move |script| (settings, script)));
    all.map(|(settings, script)| [&settings[..], script].concat()).collect()
}
