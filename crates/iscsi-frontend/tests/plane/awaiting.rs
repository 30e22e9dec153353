//! ISCSI-LOGIN-4: initiators while volumes may come that are not here, and what else tells them to come again.

use iscsi_frontend::{chap_secrets, target_name_of};
use sim::SimWorld;
use uuid::Uuid;

use super::strict::{Challenge, Initiator};
use super::{Access, OTHER, Restrictions, VOLUME, admit, portal, serve, simulate, token};

/// A volume that is not here.
const MISSING: Uuid = Uuid::from_u128(9);
const LATER: Result<(), [u8; 2]> = Err([3, 1]);
const FAILED: Result<(), [u8; 2]> = Err([2, 1]);
const NOT_FOUND: Result<(), [u8; 2]> = Err([2, 3]);
/// Failures after which a source is told to come later (ISCSI-LOGIN-3).
const LIMIT: usize = 32;
/// More than that.
const GUESSES: usize = LIMIT + 8;

/// A login that has been challenged, and will be of the volume `uuid` by the token of this number.
struct Begun {
    initiator: Initiator,
    challenge: Challenge,
    uuid: Uuid,
    byte: u8,
}

impl Begun {
    async fn new(world: &SimWorld, uuid: Uuid, byte: u8) -> Self {
        let target = target_name_of(uuid);
        let (initiator, challenge) = Initiator::challenged(world, portal(), &target).await;
        Self { initiator, challenge, uuid, byte }
    }

    async fn finish(mut self) -> Result<(), [u8; 2]> {
        let secret = chap_secrets(&token(self.byte).secret, None).initiator;
        let user = self.uuid.to_string();
        self.initiator.prove((&user, &secret), &self.challenge).await
    }
}

async fn open(world: &SimWorld, uuid: Uuid, byte: u8) -> Result<(), [u8; 2]> {
    Begun::new(world, uuid, byte).await.finish().await
}

async fn discover(world: &SimWorld, uuid: Uuid, byte: u8) -> Result<(), [u8; 2]> {
    let (secret, user) = (chap_secrets(&token(byte).secret, None).initiator, uuid.to_string());
    Initiator::discover(world, portal(), Some((&user, &secret))).await.map(drop)
}

/// Method: a volume that is missing, and one that is here by a wrong secret, more often than a source may guess. Then nothing is
/// awaited any more, and the right secret opens the volume at once.
#[test]
fn an_initiator_whose_volume_may_come_is_told_to_come_again() {
    simulate(async |world| {
        let core = serve(&world, true).await;
        core.await_volumes(true);
        for attempt in 0..GUESSES {
            assert_eq!(open(&world, MISSING, 1).await, LATER, "attempt {attempt}");
            assert_eq!(open(&world, VOLUME, 9).await, LATER, "attempt {attempt}");
            assert_eq!(discover(&world, MISSING, 1).await, LATER, "attempt {attempt}");
        }
        assert_eq!(open(&world, VOLUME, 1).await, Ok(()), "what is here can be opened");
        core.await_volumes(false);
        assert_eq!(open(&world, MISSING, 1).await, FAILED);
        assert_eq!(discover(&world, MISSING, 1).await, FAILED);
        assert_eq!(open(&world, VOLUME, 9).await, FAILED);
        assert_eq!(open(&world, VOLUME, 1).await, Ok(()), "it has not guessed");
    });
}

/// Method: volumes are awaited, or the core serves none, for a part of the time between the challenge and the response.
#[test]
fn an_initiator_whose_volume_comes_during_its_login_is_told_to_come_again() {
    simulate(async |world| {
        let core = serve(&world, true).await;
        for (uuid, byte) in [(MISSING, 1), (VOLUME, 9)] {
            core.await_volumes(true);
            let early = Begun::new(&world, uuid, byte).await;
            core.await_volumes(false);
            assert_eq!(early.finish().await, LATER, "awaited at the beginning");
            let early = Begun::new(&world, uuid, byte).await;
            core.await_volumes(true);
            assert_eq!(early.finish().await, LATER, "awaited at the end");
            core.await_volumes(false);
            let early = Begun::new(&world, uuid, byte).await;
            core.await_volumes(true);
            core.await_volumes(false);
            assert_eq!(early.finish().await, LATER, "awaited between");
            let early = Begun::new(&world, uuid, byte).await;
            core.suspend();
            core.resume();
            assert_eq!(early.finish().await, LATER, "suspended between");
            assert_eq!(open(&world, uuid, byte).await, FAILED);
        }
    });
}

/// ISCSI-LOGIN-3. Method: logins with the right secret and with a wrong one have begun when the source reaches the limit.
#[test]
fn a_login_that_is_overtaken_by_the_limit_is_told_to_come_again() {
    simulate(async |world| {
        let _core = serve(&world, true).await;
        let right = Begun::new(&world, VOLUME, 1).await;
        let wrong = Begun::new(&world, VOLUME, 9).await;
        for attempt in 0..LIMIT {
            assert_eq!(open(&world, VOLUME, 9).await, FAILED, "attempt {attempt}");
        }
        assert_eq!((right.finish().await, wrong.finish().await), (LATER, LATER));
    });
}

/// Method: a volume that is restricted to others meets the answer of one that is missing, where initiators need not authenticate.
#[test]
fn strangers_are_told_the_same_of_all_volumes_while_some_may_come() {
    simulate(async |world| {
        let core = serve(&world, false).await;
        let networks = vec!["192.0.2.0/24".parse().expect("a network")];
        let restrictions = Restrictions { networks, ..Restrictions::default() };
        admit(&core, OTHER, Access { restrictions, ..Access::default() }).await;
        for (may_come, told) in [(true, LATER), (false, NOT_FOUND)] {
            core.await_volumes(may_come);
            for uuid in [OTHER, MISSING] {
                let name = target_name_of(uuid);
                let opened = Initiator::open(&world, portal(), &name, None).await;
                assert_eq!(opened.map(drop), told, "{uuid}");
            }
        }
    });
}
