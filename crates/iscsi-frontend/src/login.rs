//! Logins: which initiator may open which volume.
//!
//! - ISCSI-LOGIN-1: where initiators authenticate, one that may not open a volume meets the answers of one that asks for a volume
//!   which does not exist: an authentication that fails.
//! - ISCSI-LOGIN-2: an initiator that logs in again, by the same name and identifier to the same target, ends its session of
//!   before (RFC 7143, clause 6.3.5).
//! - ISCSI-LOGIN-3: failed logins are rate-limited per source and volume (`strangers::Throttle`). A source beyond the limit is
//!   told to come later, and so is a login that began before: its proof is not looked at.
//! - ISCSI-LOGIN-4: while a volume that is absent may still appear, each initiator whose volume or whose secret is not known is
//!   told to come again (Service Unavailable), and has not guessed (ISCSI-LOGIN-3): an initiator never comes again that was told
//!   anything else. For the sake of ISCSI-LOGIN-1 all are told so. If the volume appears during a login, that login does not know
//!   it.

use std::rc::Rc;

use dataplane::{Export, Peer, Refused};
use io_traits::{Device, World};
use iscsi_target::{Admission, Authentication, ChapSecret, LoginQuestion, Secrets, SessionType};
use iscsi_wire::pdu::login_status;
use iscsi_wire::sense::Sense;
use units::{Instant, MetadataSize};
use uuid::Uuid;

use crate::connection::Connection;
use crate::frontend::{target_name_of, uuid_of};
use crate::secret::chap_secrets;

/// Bytes of a challenge.
const CHALLENGE_BYTES: usize = 32;
/// Bytes of a secret that is not known to anyone.
const NO_SECRET_BYTES: usize = 16;

impl<W: World, D: Device> Connection<W, D> {
    /// Decides how a login goes on.
    pub(crate) fn decide(&self, question: &LoginQuestion) -> Result<Admission, [u8; 2]> {
        if question.tsih != 0 {
            // A session has one connection.
            return Err(login_status::NO_SUCH_SESSION);
        }
        let mut admission = Admission { tsih: self.core.next_tsih(), authentication: None };
        let uuid = match question.session {
            SessionType::Discovery => None,
            SessionType::Normal => Some(self.decide_on_target(question)?),
        };
        self.asked.set(uuid.unwrap_or_default());
        if self.core.options().authenticates {
            let (address, now) = (self.peer().ip(), self.core.world().now());
            let mut throttle = self.core.state.throttle.borrow_mut();
            if throttle.is_rate_limited(address, self.asked.get(), now) {
                return Err(login_status::SERVICE_UNAVAILABLE);
            }
            drop(throttle);
            admission.authentication = Some(self.authentication(uuid));
        }
        Ok(admission)
    }

    /// Returns the volume that the initiator asks for, though it may not exist (ISCSI-LOGIN-1).
    fn decide_on_target(&self, question: &LoginQuestion) -> Result<Uuid, [u8; 2]> {
        let uuid = question.target.as_ref().and_then(uuid_of).unwrap_or_else(Uuid::nil);
        match self.open(uuid, question) {
            Ok(export) => *self.candidate.borrow_mut() = Some(export),
            Err(_) if self.core.options().authenticates => {}
            // ISCSI-LOGIN-4.
            Err(_) if self.core.awaits_volumes() => return Err(login_status::SERVICE_UNAVAILABLE),
            Err(_) => return Err(login_status::NOT_FOUND),
        }
        Ok(uuid)
    }

    fn open(&self, uuid: Uuid, question: &LoginQuestion) -> Result<Rc<Export<W, D>>, Refused> {
        let interface = || self.interface();
        let peer = Peer {
            host: question.initiator.as_str(),
            address: self.peer().ip(),
            interface: &interface,
        };
        let export = self.core.open(Some(uuid), &peer)?;
        // Blocks with metadata have no form in SCSI.
        let is_plain = export.with_volume(volume::Volume::metadata_size) == MetadataSize::None;
        if is_plain { Ok(export) } else { Err(Refused::Unknown) }
    }

    /// Returns whether the initiator may still open `export`, which may be gone since it asked for it.
    pub(crate) fn still_qualifies(&self, export: &Rc<Export<W, D>>) -> bool {
        let session = self.target().session().cloned();
        session.is_some_and(|question| {
            self.open(export.uuid(), &question).is_ok_and(|now| Rc::ptr_eq(&now, export))
        })
    }

    fn authentication(&self, target: Option<Uuid>) -> Authentication {
        let world = self.core.world();
        let mut random = [0; 1 + CHALLENGE_BYTES + NO_SECRET_BYTES];
        world.fill_random(&mut random);
        let (id, challenge) = (random[0], random[1..=CHALLENGE_BYTES].to_vec());
        let no_secret = random[1 + CHALLENGE_BYTES..].to_vec();
        let candidate = self.candidate.borrow().clone();
        let core = self.core.clone();
        let (address, since) = (self.peer().ip(), core.since_now());
        let secrets_of = move |user: &str| {
            let user = user.parse::<Uuid>().ok();
            let now = core.world().now();
            // ISCSI-LOGIN-3: of many logins that began together no more are heard than the limit lets pass.
            let is_closed =
                core.state.throttle.borrow().is_closed(address, target.unwrap_or_default(), now);
            let access = match (&candidate, target) {
                (Some(export), _) if user == Some(export.uuid()) => export.access(),
                (_, Some(_)) => None,
                (_, None) => {
                    let volumes = core.discovery().volumes.borrow();
                    let record = user.and_then(|user| volumes.get(&user));
                    record.map(|record| Rc::new(record.access.clone()))
                }
            };
            let access = access.filter(|_| !is_closed);
            let mut known = access.map_or_else(Vec::new, |access| {
                let tokens = core.valid_tokens(&access);
                // Discovery names no target: it is that of the volume whose identity is the user's name.
                let name = target_name_of(user.unwrap_or_default());
                tokens.into_iter().map(|token| chap_secret_of(token, name.clone())).collect()
            });
            if known.is_empty() {
                // ISCSI-LOGIN-1: a response is compared all the same.
                known.push(ChapSecret {
                    secret: no_secret.clone().into(),
                    mutual: None,
                    target_name: String::new(),
                });
            }
            // ISCSI-LOGIN-3, ISCSI-LOGIN-4.
            let refusal = match is_closed || core.awaited_volumes_since(since) {
                true => login_status::SERVICE_UNAVAILABLE,
                false => login_status::AUTHENTICATION_FAILURE,
            };
            Secrets { known, refusal }
        };
        Authentication { id, challenge, secrets_of: Box::new(secrets_of) }
    }

    /// Counts a login that failed to authenticate (ISCSI-LOGIN-3).
    pub(crate) fn note_failed_login(&self, now: Instant) {
        let mut throttle = self.core.state.throttle.borrow_mut();
        throttle.note(self.peer().ip(), self.asked.get(), now);
    }

    /// Full feature phase has begun. Returns the reason to end it, if there is one.
    pub(crate) fn on_logged_in(self: &Rc<Self>) -> Option<&'static str> {
        let export = self.candidate.take()?;
        if !self.still_qualifies(&export) {
            return Some("the initiator may no longer open the volume");
        }
        if !self.core.has_place_for(&export) {
            return Some("the volume has as many connections as it may have");
        }
        self.link.let_in(&export);
        self.end_former_session(&export);
        self.core.add_session(export.uuid(), self);
        *self.export.borrow_mut() = Some(export);
        self.raise(Sense::POWER_ON);
        None
    }

    /// ISCSI-LOGIN-2.
    fn end_former_session(&self, export: &Export<W, D>) {
        let own = self.target().session().cloned();
        for other in self.core.sessions_of(export.uuid()) {
            let theirs = other.target().session().cloned();
            let is_same = own.as_ref().zip(theirs.as_ref()).is_some_and(|(own, theirs)| {
                own.initiator == theirs.initiator && own.isid == theirs.isid
            });
            if is_same {
                other.note_end("the initiator logged in again");
                other.cut();
            }
        }
    }
}

fn chap_secret_of(token: &access::Token, target_name: String) -> ChapSecret {
    let secrets = chap_secrets(&token.secret, token.controller.as_ref());
    let bytes = |text: &str| text.as_bytes().to_vec().into();
    let (secret, mutual) = (bytes(&secrets.initiator), Some(bytes(&secrets.target)));
    ChapSecret { secret, mutual, target_name }
}
