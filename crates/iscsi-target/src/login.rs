//! Login: security and operational negotiation, up to full feature phase (RFC 7143, clauses 6.3 and 11.12).
//!
//! - NEGOTIATION-1: where authentication is demanded, nothing is negotiated and no stage is left before the initiator has
//!   proven that it knows a secret; an initiator that offers `None`, or skips the stage, is refused.
//! - NEGOTIATION-2: a key is negotiated once.
//! - NEGOTIATION-3: a target that does not exist meets the answers of one whose secret the initiator does not know.

use alloc::boxed::Box;
use alloc::collections::BTreeSet;
use alloc::string::{String, ToString};
use alloc::vec::Vec;

use iscsi_wire::pdu::{CONTINUE, LoginRequest, TRANSIT, login_status};
use iscsi_wire::text;
use iscsi_wire::{IscsiName, pdu};
use zeroize::Zeroizing;

use crate::chap::{Algorithm, CHALLENGE_LEN_MAX};
use crate::limits::Limits;
use crate::negotiate::{Answer, Parameters};

/// Stage: security negotiation.
const SECURITY: u8 = 0;
/// Stage: operational negotiation.
const OPERATIONAL: u8 = 1;
/// Stage: full feature phase.
const FULL_FEATURE: u8 = 3;
/// Requests of one login: each key in one of its own would be fewer.
const REQUESTS_MAX: u32 = 64;
/// The target portal group of all portals of a core.
pub const PORTAL_GROUP: &str = "1";

/// Kinds of sessions.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum SessionType {
    /// To a target.
    Normal,
    /// To learn which targets there are.
    Discovery,
}

/// The first request of an initiator: its name and its wishes.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct LoginQuestion {
    /// Its name.
    pub initiator: IscsiName,
    /// The kind of session.
    pub session: SessionType,
    /// The target that it names.
    pub target: Option<IscsiName>,
    /// Its part of the session's identifier.
    pub isid: [u8; 6],
    /// The target's part; 0 for a new session.
    pub tsih: u16,
}

/// Looks up the secrets of a user name, when its proof is judged.
pub type SecretsOf = Box<dyn Fn(&str) -> Secrets>;

/// The secrets by which a proof is judged. With none, every proof fails (NEGOTIATION-3).
pub struct Secrets {
    /// The secrets, each of which may be used.
    pub known: Vec<ChapSecret>,
    /// The status that refuses a proof by none of them.
    pub refusal: [u8; 2],
}

/// The authentication that a login must pass.
pub struct Authentication {
    /// The identifier of the target's challenge.
    pub id: u8,
    /// The target's challenge.
    pub challenge: Vec<u8>,
    /// The secrets of a user name.
    pub secrets_of: SecretsOf,
}

/// A secret, and the one by which the target proves itself in return.
pub struct ChapSecret {
    /// The secret.
    pub secret: Zeroizing<Vec<u8>>,
    /// The secret of the other direction.
    pub mutual: Option<Zeroizing<Vec<u8>>>,
    /// The name that the target proves itself under.
    pub target_name: String,
}

/// A decision that a login goes on.
pub struct Admission {
    /// The target's part of the session's identifier; not 0.
    pub tsih: u16,
    /// The authentication that is demanded.
    pub authentication: Option<Authentication>,
}

/// Progress of the exchange of CHAP.
enum Exchange {
    None,
    Chosen,
    Challenged(Algorithm),
    /// Under this user name.
    Passed(String),
}

/// A login that is under way.
pub(crate) struct Login {
    question: Option<LoginQuestion>,
    admission: Option<Admission>,
    exchange: Exchange,
    stage: Option<u8>,
    text: Vec<u8>,
    keys: BTreeSet<String>,
    requests: u32,
    has_declared: bool,
    pub(crate) parameters: Parameters,
    /// The last request.
    pub(crate) request: LoginRequest,
}

/// The target's answer to a request.
pub(crate) enum Reply {
    /// More of the text is to come: an empty answer.
    More,
    /// The caller is asked first.
    Ask(LoginQuestion),
    /// These pairs, in this stage, with a transit to the next one.
    Answer { pairs: Vec<u8>, flags: u8 },
    /// A refusal.
    Refuse([u8; 2]),
}

type Refusal = [u8; 2];

impl Login {
    pub(crate) fn new() -> Self {
        Self {
            question: None,
            admission: None,
            exchange: Exchange::None,
            stage: None,
            text: Vec::new(),
            keys: BTreeSet::new(),
            requests: 0,
            has_declared: false,
            parameters: Parameters::default(),
            request: pdu::blank(pdu::opcode::LOGIN_REQUEST),
        }
    }

    /// The initiator, its session and its target.
    pub(crate) fn into_question(self) -> (Option<LoginQuestion>, Option<Admission>) {
        (self.question, self.admission)
    }

    /// The user name whose secret the initiator has proven to know.
    pub(crate) fn proven(&self) -> Option<&str> {
        match &self.exchange {
            Exchange::Passed(user) => Some(user),
            _ => None,
        }
    }

    pub(crate) fn tsih(&self) -> u16 {
        self.admission.as_ref().map_or(0, |admission| admission.tsih)
    }

    /// Takes in a request and the text that came with it.
    pub(crate) fn on_request(
        &mut self,
        request: LoginRequest,
        text: &[u8],
        limits: &Limits,
    ) -> Reply {
        self.take_request(request, text, limits).unwrap_or_else(Reply::Refuse)
    }

    fn take_request(
        &mut self,
        request: LoginRequest,
        text: &[u8],
        limits: &Limits,
    ) -> Result<Reply, Refusal> {
        let is_first = self.requests == 0;
        // Some initiators give each request of a login a tag of its own.
        let is_same = request.isid == self.request.isid && request.cid == self.request.cid;
        self.requests += 1;
        self.request = request;
        if request.version_min > 0 {
            return Err(login_status::UNSUPPORTED_VERSION);
        }
        let (current, next) = (request.flags >> 2 & 3, request.flags & 3);
        let transits = request.flags & TRANSIT != 0;
        let is_known = matches!(current, SECURITY | OPERATIONAL)
            && self.stage.is_none_or(|stage| stage == current);
        let is_forward = next > current && next != 2;
        if !is_known
            || (!is_first && !is_same)
            || (transits && !is_forward)
            || self.requests > REQUESTS_MAX
        {
            return Err(login_status::INITIATOR_ERROR);
        }
        self.stage = Some(current);
        if self.text.len() + text.len() > limits.text_max {
            return Err(login_status::INITIATOR_ERROR);
        }
        self.text.extend_from_slice(text);
        if request.flags & CONTINUE != 0 {
            return if transits { Err(login_status::INITIATOR_ERROR) } else { Ok(Reply::More) };
        }
        if self.question.is_some() {
            return self.answer(limits);
        }
        let question = self.read_question()?;
        self.question = Some(question.clone());
        Ok(Reply::Ask(question))
    }

    /// Reads the names and the kind of session.
    fn read_question(&self) -> Result<LoginQuestion, Refusal> {
        let pairs = text::pairs(&self.text).map_err(|_| login_status::INITIATOR_ERROR)?;
        let value = |key| pairs.iter().find(|pair| pair.0 == key).map(|pair| pair.1);
        let name = |value| IscsiName::new(value).map_err(|_| login_status::INITIATOR_ERROR);
        let session = match value("SessionType") {
            None | Some("Normal") => SessionType::Normal,
            Some("Discovery") => SessionType::Discovery,
            Some(_) => return Err(login_status::SESSION_TYPE),
        };
        let initiator = name(value("InitiatorName").ok_or(login_status::MISSING_PARAMETER)?)?;
        let target = value("TargetName");
        if target.is_none() && session == SessionType::Normal {
            return Err(login_status::MISSING_PARAMETER);
        }
        // A name that is none is that of no target.
        let target =
            target.map(|target| IscsiName::new(target).map_err(|_| login_status::NOT_FOUND));
        let LoginRequest { isid, tsih, .. } = self.request;
        Ok(LoginQuestion {
            initiator,
            session,
            target: target.transpose()?,
            isid,
            tsih: tsih.get(),
        })
    }

    /// Goes on as the caller has decided.
    pub(crate) fn admit(&mut self, admission: Admission, limits: &Limits) -> Reply {
        self.admission = Some(admission);
        self.answer(limits).unwrap_or_else(Reply::Refuse)
    }

    /// Answers the pairs that have come.
    fn answer(&mut self, limits: &Limits) -> Result<Reply, Refusal> {
        let text = core::mem::take(&mut self.text);
        let pairs = text::pairs(&text).map_err(|_| login_status::INITIATOR_ERROR)?;
        let (stage, mut out) = (self.stage.unwrap_or(SECURITY), Vec::new());
        if stage == OPERATIONAL && !self.may_leave_security() {
            return Err(login_status::AUTHENTICATION_FAILURE);
        }
        let is_normal = self.question.as_ref().is_some_and(|it| it.session == SessionType::Normal);
        if is_normal && self.keys.is_empty() {
            text::put(&mut out, "TargetPortalGroupTag", PORTAL_GROUP);
        }
        for (key, _) in pairs.iter().filter(|(key, _)| !is_declared_at_first(key)) {
            // NEGOTIATION-2. Some initiators name themselves in each stage.
            if !self.keys.insert((*key).to_string()) && !key.starts_with("X-") {
                return Err(login_status::INITIATOR_ERROR);
            }
        }
        match stage {
            SECURITY => self.authenticate(&pairs, &mut out)?,
            _ => self.negotiate(&pairs, &mut out, limits),
        }
        let next = self.request.flags & 3;
        let mut flags = stage << 2;
        if self.request.flags & TRANSIT != 0 && self.may_leave_security() {
            flags |= TRANSIT | next;
            self.stage = Some(next);
        }
        Ok(Reply::Answer { pairs: out, flags })
    }

    /// Returns whether full feature phase has begun.
    pub(crate) fn has_ended(&self) -> bool {
        self.stage == Some(FULL_FEATURE)
    }

    /// NEGOTIATION-1.
    fn may_leave_security(&self) -> bool {
        let demanded = self.admission.as_ref().is_some_and(|it| it.authentication.is_some());
        !demanded || matches!(self.exchange, Exchange::Passed(_))
    }

    fn negotiate(&mut self, pairs: &[(&str, &str)], out: &mut Vec<u8>, limits: &Limits) {
        if !self.has_declared {
            self.has_declared = true;
            text::put(out, "MaxRecvDataSegmentLength", &limits.receive_max.to_string());
        }
        for (key, value) in pairs.iter().filter(|(key, _)| !is_declared_at_first(key)) {
            if let Answer::Value(value) = self.parameters.negotiate(key, value, limits) {
                text::put(out, key, &value);
            }
        }
    }

    fn authenticate(&mut self, pairs: &[(&str, &str)], out: &mut Vec<u8>) -> Result<(), Refusal> {
        for (key, value) in pairs.iter().filter(|(key, _)| !is_declared_at_first(key)) {
            match *key {
                "AuthMethod" => self.choose_method(value, out)?,
                "CHAP_A" => self.challenge(value, out)?,
                "CHAP_N" => self.prove(pairs, value, out)?,
                "CHAP_R" | "CHAP_I" | "CHAP_C" => {}
                _ => text::put(out, key, "NotUnderstood"),
            }
        }
        Ok(())
    }

    fn choose_method(&mut self, offered: &str, out: &mut Vec<u8>) -> Result<(), Refusal> {
        let demanded = self.admission.as_ref().is_some_and(|it| it.authentication.is_some());
        let method = if demanded { "CHAP" } else { "None" };
        if !offered.split(',').any(|it| it == method) {
            return Err(login_status::AUTHENTICATION_FAILURE);
        }
        if demanded {
            self.exchange = Exchange::Chosen;
        }
        text::put(out, "AuthMethod", method);
        Ok(())
    }

    fn demanded(&self) -> Result<&Authentication, Refusal> {
        let admission = self.admission.as_ref();
        admission.and_then(|it| it.authentication.as_ref()).ok_or(login_status::INITIATOR_ERROR)
    }

    fn challenge(&mut self, offered: &str, out: &mut Vec<u8>) -> Result<(), Refusal> {
        let algorithms = || offered.split(',').filter_map(text::number);
        let algorithm = algorithms().find_map(Algorithm::from_number);
        let (Exchange::Chosen, Some(algorithm)) = (&self.exchange, algorithm) else {
            return Err(login_status::AUTHENTICATION_FAILURE);
        };
        let demanded = self.demanded()?;
        text::put(out, "CHAP_A", &algorithm.number().to_string());
        text::put(out, "CHAP_I", &demanded.id.to_string());
        text::put(out, "CHAP_C", &text::to_hex(&demanded.challenge));
        self.exchange = Exchange::Challenged(algorithm);
        Ok(())
    }

    /// Looks at the initiator's proof, and proves the target if that is asked for.
    fn prove(
        &mut self,
        pairs: &[(&str, &str)],
        user: &str,
        out: &mut Vec<u8>,
    ) -> Result<(), Refusal> {
        const FAILURE: Refusal = login_status::AUTHENTICATION_FAILURE;
        let Exchange::Challenged(algorithm) = self.exchange else { return Err(FAILURE) };
        let value = |key| pairs.iter().find(|pair| pair.0 == key).map(|pair| pair.1);
        let demanded = self.demanded()?;
        let response = value("CHAP_R").and_then(|value| text::binary(value, 64)).ok_or(FAILURE)?;
        let is_it = |secret: &ChapSecret| {
            let Authentication { id, challenge, .. } = demanded;
            algorithm.is_response(*id, &secret.secret, challenge, &response)
        };
        let Secrets { known, refusal } = (demanded.secrets_of)(user);
        let known = known.into_iter().find(is_it).ok_or(refusal)?;
        if let (Some(id), Some(challenge)) = (value("CHAP_I"), value("CHAP_C")) {
            let id = text::number(id).and_then(|id| u8::try_from(id).ok()).ok_or(FAILURE)?;
            let challenge = text::binary(challenge, CHALLENGE_LEN_MAX).ok_or(FAILURE)?;
            let mutual = known.mutual.as_ref().ok_or(FAILURE)?;
            // CHAP-2.
            if challenge == demanded.challenge {
                return Err(FAILURE);
            }
            text::put(out, "CHAP_N", &known.target_name);
            text::put(out, "CHAP_R", &text::to_hex(&algorithm.response(id, mutual, &challenge)));
        }
        self.exchange = Exchange::Passed(user.to_string());
        Ok(())
    }
}

/// Keys that the first request declares, in whatever stage it is.
fn is_declared_at_first(key: &str) -> bool {
    matches!(key, "InitiatorName" | "SessionType" | "TargetName" | "InitiatorAlias")
}
