//! Options of a client's connections.

use auth::Secret;
use nvme_initiator::DEPTH_MAX;
use nvme_wire::{ControllerInstance, HostId, Nqn};
use units::Duration;

/// Most I/O queues of a client.
pub const QUEUES_MAX: u16 = 256;

/// Options of [`crate::Client::connect`]. `Options::new` has defaults for all but the host's identity.
#[derive(Clone, Debug)]
pub struct Options {
    /// NQN of the host that connects.
    pub host_nqn: Nqn,
    /// The same, as 128 bits; not all zeroes.
    pub host_id: HostId,
    /// I/O queues, each a TCP connection: 1 to [`QUEUES_MAX`]. The target may grant fewer.
    pub queues: u16,
    /// Commands outstanding on each, 1 to 1024; further ones wait in line.
    pub depth: u16,
    /// CRC-32C of headers.
    pub header_digest: bool,
    /// CRC-32C of data, computed on this side and checked by the target, and the other way round.
    pub data_digest: bool,
    /// Limit for a command. When it is over, the connection counts as dead and is made again.
    pub command_timeout: Duration,
    /// Limit for connecting, all steps together. The end of the controller that was lost, and the start of the new
    /// one, are not included: each of these may take as long as a command.
    pub connect_timeout: Duration,
    /// Limit for [`crate::discover`], all steps together, however long the log is, and however often it changes
    /// meanwhile.
    pub discovery_timeout: Duration,
    /// The target drops a host that it has not heard of for this long; zero for never. The client
    /// says something twice as often.
    pub keep_alive: Duration,
    /// Policy after a lost connection.
    pub reconnect: Reconnect,
    /// A controller of this host and subsystem to which requests were sent that this client will send
    /// again, by [`crate::Client::controller`]: it is ended before the first of them.
    pub predecessor: Option<ControllerInstance>,
    /// Credentials for the volume, unless it is open to every host.
    pub credentials: Option<Credentials>,
}

/// Credentials that open a volume (DH-HMAC-CHAP).
#[derive(Clone, Debug)]
pub struct Credentials {
    /// The volume's token.
    pub secret: Secret,
    /// If given, the controller has to prove that it knows this, on every queue. One that does not
    /// authenticate is refused: [`crate::ConnectError::Unproven`].
    pub controller_secret: Option<Secret>,
}

/// Policy after a lost connection.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Reconnect {
    /// Nothing: all requests fail.
    Never,
    /// Try again, and then repeat the requests that were outstanding.
    Backoff(Backoff),
}

/// Delays between attempts: they double from the shortest to the longest, and each is cut by up to a half at
/// random, so that clients of a restarted target do not come all at once. They start again from the shortest once a
/// connection held for as long as the longest delay.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Backoff {
    /// Shortest delay.
    pub delay_min: Duration,
    /// Longest delay.
    pub delay_max: Duration,
    /// When to give up, from the loss of the last connection that held for as long as the longest delay.
    pub give_up_after: Duration,
    /// When to give up on a target that refuses and says that it is of no use to try again, from the first
    /// of such answers in a row. One that starts up may not know its volumes yet.
    pub refused_for: Duration,
    /// Seed of the random cuts: equal seeds give equal delays.
    pub seed: u64,
}

impl Options {
    /// One queue of depth 128, both digests, 15 s keep alive, 30 s for a command and for a discovery,
    /// reconnecting for ten minutes, or for one to a target that refuses.
    #[must_use]
    pub fn new(host_nqn: Nqn, host_id: HostId) -> Self {
        Self {
            host_nqn,
            host_id,
            queues: 1,
            depth: 128,
            header_digest: true,
            data_digest: true,
            command_timeout: Duration::from_secs(30),
            connect_timeout: Duration::from_secs(10),
            discovery_timeout: Duration::from_secs(30),
            keep_alive: Duration::from_secs(15),
            reconnect: Reconnect::Backoff(Backoff::default()),
            predecessor: None,
            credentials: None,
        }
    }

    /// A host that is known by this UUID alone.
    #[must_use]
    pub fn for_host(uuid: [u8; 16]) -> Self {
        Self::new(Nqn::from_uuid(&uuid), HostId(uuid))
    }

    pub(crate) fn depth(&self) -> u16 {
        self.depth.clamp(1, DEPTH_MAX)
    }

    pub(crate) fn queues(&self) -> u16 {
        self.queues.clamp(1, QUEUES_MAX)
    }
}

impl Default for Backoff {
    fn default() -> Self {
        Self {
            delay_min: Duration::from_millis(20),
            delay_max: Duration::from_secs(2),
            give_up_after: Duration::from_secs(600),
            // Our servers look at a failed drive each 30 s, and do not know its volumes meanwhile.
            refused_for: Duration::from_secs(60),
            seed: 1,
        }
    }
}

impl Backoff {
    /// Returns the delays after attempts at which authentication failed ([`ConnectError::is_unproven`]): six
    /// attempts come in ten seconds. Servers count those per source address and volume, and rate-limit them in the
    /// end, and with them other clients at that address whose token is right.
    ///
    /// [`ConnectError::is_unproven`]: crate::ConnectError::is_unproven
    #[must_use]
    pub fn while_unproven(self) -> Self {
        let (delay_min, delay_max) = (Duration::from_millis(500), Duration::from_secs(8));
        Self { delay_min, delay_max, ..self }
    }

    /// The delay before attempt `attempt`, counted from 0.
    #[must_use]
    pub fn delay(&self, attempt: u32) -> Duration {
        let doubled = self.delay_min.saturating_mul(1u32.checked_shl(attempt).unwrap_or(u32::MAX));
        let delay = doubled.min(self.delay_max);
        // SplitMix64: one multiplication chain spreads the seed over all bits.
        let mut random =
            self.seed.wrapping_add(u64::from(attempt + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15));
        random = (random ^ random >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        random = (random ^ random >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        random ^= random >> 31;
        let cut_per_mille = u32::try_from(random % 501).expect("at most 500");
        delay - delay / 1000 * cut_per_mille
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_double_up_to_their_bound_and_follow_the_seed() {
        let backoff = Backoff::default();
        let delays: Vec<Duration> = (0..40).map(|attempt| backoff.delay(attempt)).collect();
        for (attempt, delay) in (0u32..).zip(&delays) {
            let whole =
                backoff.delay_min.saturating_mul(1 << attempt.min(20)).min(backoff.delay_max);
            assert!(*delay <= whole && *delay >= whole / 2, "attempt {attempt}: {delay:?}");
        }
        let again: Vec<Duration> = (0..40).map(|attempt| backoff.delay(attempt)).collect();
        assert_eq!(delays, again);
        let other = Backoff { seed: 2, ..backoff };
        assert_ne!(delays, (0..40).map(|attempt| other.delay(attempt)).collect::<Vec<_>>());
    }
}
