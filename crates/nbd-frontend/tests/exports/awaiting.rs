//! NBD-ADMISSION-1: clients while volumes may come that are not here.

use access::Access;
use nbd_wire::{OptionCode, OptionReplyKind};

use super::client::{Client, place};
use super::{SIZE, VOLUME, announce, open_to, serve, simulate};

const LATER: Result<u64, OptionReplyKind> = Err(OptionReplyKind::ERR_SHUTDOWN);
const UNKNOWN: Result<u64, OptionReplyKind> = Err(OptionReplyKind::ERR_UNKNOWN);

/// Method: exports that are missing, by name, by identity and by none, and one that is here and not open to the client.
#[test]
fn a_client_whose_export_may_come_is_told_that_it_is_not_served_now() {
    simulate(async |world| {
        let (core, frontend) = serve(&world, &Access::default()).await;
        let missing = uuid::Uuid::from_u128(9).to_string();
        for (may_come, told) in [(true, LATER), (false, UNKNOWN)] {
            core.await_volumes(may_come);
            for name in ["missing", &missing, "", "db", &VOLUME.to_string()] {
                let mut client = Client::connect(&world, place()).await;
                assert_eq!(client.go(name).await, told, "{name}");
                assert_eq!(client.option(OptionCode::LIST, b"").await, [], "{name}");
            }
        }
        core.set_access(VOLUME, open_to(&["0.0.0.0/0"]), false).await.expect("room");
        announce(&core, &frontend);
        core.set_access(VOLUME, Access::default(), false).await.expect("room");
        core.await_volumes(true);
        let mut client = Client::connect(&world, place()).await;
        assert_eq!(client.go("db").await, LATER, "what was announced is older");
        core.set_access(VOLUME, open_to(&["0.0.0.0/0"]), false).await.expect("room");
        assert_eq!(client.go("db").await, Ok(SIZE), "what is here can be opened");
    });
}

/// Method: the core serves nothing for a while.
#[test]
fn a_core_that_is_suspended_tells_all_clients_the_same() {
    simulate(async |world| {
        let (core, _) = serve(&world, &open_to(&["0.0.0.0/0"])).await;
        core.suspend();
        for name in ["db", "missing"] {
            let mut client = Client::connect(&world, place()).await;
            assert_eq!(client.go(name).await, LATER, "{name}");
        }
        core.resume();
        let mut client = Client::connect(&world, place()).await;
        assert_eq!(client.go("db").await, Ok(SIZE));
        let mut client = Client::connect(&world, place()).await;
        assert_eq!(client.go("missing").await, UNKNOWN);
    });
}
