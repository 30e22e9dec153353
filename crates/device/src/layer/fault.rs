//! A device that fails, delays or holds up what is asked of it, as rules say: for tests of all that lies before a device.
//!
//! - FAULT-1: a request is subject to the first rule that covers it, as the rules were when it came; without one it goes to the
//!   device. Discards go there in any case.
//! - FAULT-2: a request that is held up goes to the device when no rule holds it up any more, or fails or is delayed if one says
//!   so then.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use io_traits::{Buffer, BufferSlice, Device, DeviceError, DeviceLimits, World};
use local_sync::Notify;
use units::{BLOCK_SIZE, Duration, Pba, PbaRange};

/// The kind of a request.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Verb {
    /// A read.
    Read,
    /// A write.
    Write,
    /// A flush, of all blocks.
    Flush,
}

/// The effect of a rule.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Effect {
    /// The request fails at once, with this error number, and nothing is done.
    Fail {
        /// The operating system's error number.
        errno: i32,
    },
    /// It goes to the device later.
    Delay(Duration),
    /// It goes nowhere until the rules change.
    Hang,
}

/// A rule: the requests that it covers, and its effect on them.
#[derive(Clone)]
pub struct Rule {
    covers: Rc<dyn Fn(Verb, PbaRange) -> bool>,
    effect: Effect,
}

impl Rule {
    /// A rule for these requests, by kind and blocks.
    pub fn new(effect: Effect, covers: impl Fn(Verb, PbaRange) -> bool + 'static) -> Self {
        Self { covers: Rc::new(covers), effect }
    }

    /// A rule for all requests of these kinds.
    pub fn of(effect: Effect, verbs: &'static [Verb]) -> Self {
        Self::new(effect, move |verb, _| verbs.contains(&verb))
    }
}

struct Faults {
    rules: RefCell<Vec<Rule>>,
    /// Told of each change of the rules.
    changed: Notify,
    begun: [Cell<u64>; 3],
    failed: [Cell<u64>; 3],
}

/// A device under rules. Cheap to clone; all clones are the same. It pins nothing, and completes nothing at once.
pub struct Faulty<D, W> {
    device: D,
    world: W,
    faults: Rc<Faults>,
}

impl<D: Clone, W: Clone> Clone for Faulty<D, W> {
    fn clone(&self) -> Self {
        let Self { device, world, faults } = self;
        Self { device: device.clone(), world: world.clone(), faults: faults.clone() }
    }
}

impl<D: Device, W: World> Faulty<D, W> {
    /// `device`, without a rule.
    #[must_use]
    pub fn new(device: D, world: &W) -> Self {
        let faults = Faults {
            rules: RefCell::default(),
            changed: Notify::new(),
            begun: Default::default(),
            failed: Default::default(),
        };
        Self { device, world: world.clone(), faults: Rc::new(faults) }
    }

    /// Replaces the rules, also for requests that are held up.
    pub fn set_rules(&self, rules: impl IntoIterator<Item = Rule>) {
        self.faults.rules.replace(rules.into_iter().collect());
        self.faults.changed.notify_all();
    }

    /// The device without rules.
    pub fn behind(&self) -> &D {
        &self.device
    }

    /// Number of requests of this kind so far.
    #[must_use]
    pub fn begun(&self, verb: Verb) -> u64 {
        self.faults.begun[verb as usize].get()
    }

    /// Number of those that a rule has failed.
    #[must_use]
    pub fn failed(&self, verb: Verb) -> u64 {
        self.faults.failed[verb as usize].get()
    }

    fn effect(&self, verb: Verb, range: PbaRange) -> Option<Effect> {
        let rules = self.faults.rules.borrow();
        rules.iter().find(|rule| (rule.covers)(verb, range)).map(|rule| rule.effect)
    }

    /// Ends when the request may go to the device, or with its error.
    fn pass(
        &self,
        verb: Verb,
        range: PbaRange,
    ) -> impl Future<Output = Result<(), DeviceError>> + 'static + use<D, W> {
        let add = move |counts: &[Cell<u64>; 3]| {
            let count = &counts[verb as usize];
            count.set(count.get() + 1);
        };
        add(&self.faults.begun);
        let this = self.clone();
        let (mut changed, mut effect) = (this.faults.changed.notified(), this.effect(verb, range));
        async move {
            while effect == Some(Effect::Hang) {
                changed.await;
                (changed, effect) = (this.faults.changed.notified(), this.effect(verb, range));
            }
            match effect {
                None => Ok(()),
                Some(Effect::Hang) => unreachable!("it waits above"),
                Some(Effect::Delay(time)) => {
                    this.world.sleep_until(this.world.now() + time).await;
                    Ok(())
                }
                Some(Effect::Fail { errno }) => {
                    add(&this.faults.failed);
                    Err(DeviceError::Io { range, errno })
                }
            }
        }
    }
}

impl<D: Device, W: World> Device for Faulty<D, W> {
    fn limits(&self) -> DeviceLimits {
        DeviceLimits { pins: false, ..self.device.limits() }
    }

    fn read(
        &self,
        pba: Pba,
        buffer: Buffer,
    ) -> impl Future<Output = Result<Buffer, DeviceError>> + 'static {
        let range = PbaRange::new(pba, buffer.len_blocks() as u64);
        let (pass, device) = (self.pass(Verb::Read, range), self.device.clone());
        async move {
            pass.await?;
            device.read(pba, buffer).await
        }
    }

    fn write(
        &self,
        pba: Pba,
        data: BufferSlice,
    ) -> impl Future<Output = Result<(), DeviceError>> + 'static {
        let range = PbaRange::new(pba, (data.len_bytes() / BLOCK_SIZE) as u64);
        let (pass, device) = (self.pass(Verb::Write, range), self.device.clone());
        async move {
            pass.await?;
            device.write(pba, data).await
        }
    }

    fn flush(&self) -> impl Future<Output = Result<(), DeviceError>> + 'static {
        let all = PbaRange::new(Pba(0), self.device.limits().blocks);
        let (pass, device) = (self.pass(Verb::Flush, all), self.device.clone());
        async move {
            pass.await?;
            device.flush().await
        }
    }

    fn discard(&self, range: PbaRange) -> impl Future<Output = Result<(), DeviceError>> + 'static {
        self.device.discard(range)
    }
}

#[cfg(test)]
mod tests {
    use io_traits::{Clock, Spawn};
    use sim::{SimDevice, SimWorld, Simulation};

    use super::*;

    fn block() -> BufferSlice {
        Buffer::new(1).into_slice()
    }

    fn simulate<F: Future<Output = ()> + 'static>(run: impl FnOnce(SimWorld) -> F) {
        let simulation = Simulation::new(1);
        let run = run(simulation.world());
        simulation.run(run).unwrap();
    }

    fn faulty(world: &SimWorld) -> Faulty<SimDevice, SimWorld> {
        Faulty::new(SimDevice::new(world, 64), world)
    }

    /// FAULT-1.
    #[test]
    fn the_first_rule_that_covers_a_request_decides() {
        simulate(async |world| {
            let device = faulty(&world);
            let fail = |errno| Effect::Fail { errno };
            let front = |verb, range: PbaRange| verb == Verb::Write && range.start.0 < 8;
            device.set_rules([Rule::new(fail(5), front), Rule::of(fail(6), &[Verb::Write])]);
            let error =
                |at, errno| Err(DeviceError::Io { range: PbaRange::new(Pba(at), 1), errno });
            assert_eq!(device.write(Pba(7), block()).await, error(7, 5));
            assert_eq!(device.write(Pba(8), block()).await, error(8, 6));
            assert!(device.read(Pba(7), Buffer::new(1)).await.is_ok());
            assert_eq!(device.flush().await, Ok(()));
            assert_eq!(device.discard(PbaRange::new(Pba(7), 1)).await, Ok(()));
            device.set_rules([]);
            assert_eq!(device.write(Pba(7), block()).await, Ok(()));
            let counts = [Verb::Read, Verb::Write, Verb::Flush]
                .map(|verb| (device.begun(verb), device.failed(verb)));
            assert_eq!(counts, [(1, 0), (3, 2), (1, 0)]);
        });
    }

    #[test]
    fn a_request_is_delayed_before_it_reaches_the_device() {
        simulate(async |world| {
            let (device, delay) = (faulty(&world), Duration::from_secs(1));
            let took = async |device: &Faulty<_, _>| {
                let begin = world.now();
                device.flush().await.expect("a sound disk");
                world.now().since(begin)
            };
            let most = Duration::from_millis(100);
            assert!(took(&device).await < most);
            device.set_rules([Rule::of(Effect::Delay(delay), &[Verb::Flush])]);
            assert!((delay..delay + most).contains(&took(&device).await));
        });
    }

    /// FAULT-2. Method: three requests are held up; the rules let one go on, then fail one, then are none.
    #[test]
    fn a_request_is_held_up_until_no_rule_does() {
        simulate(async |world| {
            let device = faulty(&world);
            let hang = |blocks: std::ops::Range<u64>| {
                Rule::new(Effect::Hang, move |_, range| blocks.contains(&range.start.0))
            };
            device.set_rules([hang(0..64)]);
            let outcomes: Rc<RefCell<Vec<(u64, bool)>>> = Rc::default();
            for at in 0..3 {
                let (write, outcomes) = (device.write(Pba(at), block()), outcomes.clone());
                world.spawn(async move {
                    let is_done = write.await.is_ok();
                    outcomes.borrow_mut().push((at, is_done));
                });
            }
            let pause = || world.sleep_until(world.now() + Duration::from_secs(1));
            let mut expected = Vec::new();
            let rules = [
                (vec![hang(0..64)], None),
                (vec![hang(1..64)], Some((0, true))),
                (
                    vec![
                        Rule::new(Effect::Fail { errno: 5 }, |_, range| range.start.0 == 1),
                        hang(2..64),
                    ],
                    Some((1, false)),
                ),
                (vec![], Some((2, true))),
            ];
            for (rules, outcome) in rules {
                device.set_rules(rules);
                pause().await;
                expected.extend(outcome);
                assert_eq!(*outcomes.borrow(), expected);
            }
        });
    }
}
