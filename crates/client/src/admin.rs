//! Commands of the admin queue, and Connect.

use io_traits::Buffer;
use nvme_wire::auth::{Authentication, MESSAGE_LEN_MAX};
use nvme_wire::fabrics::{Connect, ConnectData, Property, PropertySize};
use nvme_wire::feature::{Fid, NumberOfQueues, SetFeatures};
use nvme_wire::identify::{Cns, Identify};
use nvme_wire::log::GetLogPage;
use nvme_wire::{
    AdminOpcode, ControllerInstance, CrossControllerReset, FabricsType, SglDescriptor, Sqe,
};
use units::Duration;
use zerocopy::IntoBytes;

use crate::requests::{Body, Command};

fn command(name: &'static str, sqe: Sqe, body: Body) -> Command {
    Command { sqe, name, body, namespace: None, replay: false, sends: 0, timeout: None }
}

pub(crate) fn connect(connect: Connect, data: &ConnectData) -> Command {
    command(FabricsType::CONNECT.name(), connect.into(), Body::from_bytes(data.as_bytes()))
}

pub(crate) fn authentication_send(message: &[u8]) -> Command {
    let len = u32::try_from(message.len()).expect("a message is short");
    let sqe = Authentication::send(len).into();
    command(FabricsType::AUTHENTICATION_SEND.name(), sqe, Body::from_bytes(message))
}

pub(crate) fn authentication_receive() -> Command {
    let len = MESSAGE_LEN_MAX as u32;
    let sqe = Authentication::receive(len, SglDescriptor::NONE).into();
    command(FabricsType::AUTHENTICATION_RECEIVE.name(), sqe, Body::to_host(len))
}

pub(crate) fn property_get(offset: u32, size: PropertySize) -> Command {
    let sqe = Property::get(offset, size).into();
    command(FabricsType::PROPERTY_GET.name(), sqe, Body::None)
}

pub(crate) fn property_set(offset: u32, value: u32) -> Command {
    let sqe = Property::set(offset, PropertySize::Four, u64::from(value)).into();
    command(FabricsType::PROPERTY_SET.name(), sqe, Body::None)
}

pub(crate) fn identify(cns: Cns, nsid: u32) -> Command {
    let sqe = Identify::new(cns, nsid).encode();
    command(AdminOpcode::IDENTIFY.name(), sqe, Body::to_host(4096))
}

/// `page.len_bytes` is below 4 GiB.
pub(crate) fn get_log_page(page: &GetLogPage) -> Command {
    let len = u32::try_from(page.len_bytes).expect("a log page is read in pieces");
    command(AdminOpcode::GET_LOG_PAGE.name(), page.encode(), Body::to_host(len))
}

pub(crate) fn set_features(fid: Fid, value: u32) -> Command {
    let set = SetFeatures { fid, save: false, value, nsid: 0 };
    command(AdminOpcode::SET_FEATURES.name(), set.encode(), Body::None)
}

pub(crate) fn number_of_queues(count: u16) -> Command {
    let queues = NumberOfQueues { submission: count.into(), completion: count.into() };
    set_features(Fid::NUMBER_OF_QUEUES, queues.encode())
}

pub(crate) fn keep_alive() -> Command {
    command(AdminOpcode::KEEP_ALIVE.name(), Sqe::new(AdminOpcode::KEEP_ALIVE.0, 0), Body::None)
}

pub(crate) fn cross_controller_reset(impacted: ControllerInstance) -> Command {
    let sqe = CrossControllerReset(impacted).encode();
    command(AdminOpcode::CROSS_CONTROLLER_RESET.name(), sqe, Body::None)
}

/// Waits until the controller has something to tell, however long.
pub(crate) fn async_event_request() -> Command {
    let sqe = Sqe::new(AdminOpcode::ASYNC_EVENT_REQUEST.0, 0);
    let name = AdminOpcode::ASYNC_EVENT_REQUEST.name();
    Command { timeout: Some(Duration::MAX), ..command(name, sqe, Body::None) }
}

/// The structure of type `T` at the start of what a command returned.
pub(crate) fn structure<T>(buffer: Option<&Buffer>) -> &T
where
    T: zerocopy::FromBytes + zerocopy::KnownLayout + zerocopy::Immutable + zerocopy::Unaligned,
{
    let bytes = buffer.expect("the command returns data").as_bytes();
    nvme_wire::pdu::header_from_bytes(bytes).expect("a block holds every structure asked for")
}
