//! Sockets that are asked directly whether bytes have come.
//!
//! A report by the ring costs a wake-up from the sender's CPU and a trip into the kernel beside the receive: some 2 µs
//! for a lone request. A core that is polling for work anyway can as well poll a few sockets. That lasts while bytes keep coming; a socket
//! that stays silent goes back to the ring, and all do before the core sleeps.
//!
//! A socket has to earn it: polling connections of unauthenticated peers that exchange a few messages and end would
//! take more time than the ring does, at the expense of the hosts that do I/O here.

use std::cell::{Cell, RefCell};
use std::rc::{Rc, Weak};

use crate::net::Socket;

/// Sockets that are asked directly. Each costs a system call of 260 ns a turn.
const HOT_MAX: usize = 4;
/// Polls that find nothing before a socket goes back to the ring.
const MISSES_MAX: u32 = 256;
/// Receives reported by the ring after which a socket is polled, as it seems to have lasting work.
pub(crate) const RECEIVES_MIN: u32 = 32;
/// Weight of such a poll in a turn that had other work to do, which it delays. After eight of them it has cost as
/// much as the ring does.
const MISS_WEIGHT_BUSY: u32 = 32;

#[derive(Default)]
pub(crate) struct HotSockets {
    sockets: RefCell<Vec<Weak<Socket>>>,
    enabled: Cell<bool>,
}

/// Result of asking a socket.
pub(crate) enum Asked {
    Nothing,
    /// Its receive is done, or was done already.
    Done,
}

impl HotSockets {
    /// Sets whether the core polls for work at all.
    pub(crate) fn enable(&self, enabled: bool) {
        self.enabled.set(enabled);
    }

    /// Returns the number of sockets that are asked.
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.sockets.borrow().len()
    }

    /// Takes `socket` in if it has earned it and there is room; its receive is then asked for here.
    pub(crate) fn admit(&self, socket: &Rc<Socket>) -> bool {
        let mut sockets = self.sockets.borrow_mut();
        let earned = socket.receives() >= RECEIVES_MIN;
        let admitted = self.enabled.get() && earned && sockets.len() < HOT_MAX;
        if admitted {
            sockets.push(Rc::downgrade(socket));
        }
        admitted
    }

    /// Asks all; `busy` says that the core had other work in this turn. Returns how many receives
    /// are done.
    pub(crate) fn ask(&self, busy: bool) -> usize {
        if self.sockets.borrow().is_empty() {
            return 0;
        }
        let weight = if busy { MISS_WEIGHT_BUSY } else { 1 };
        let mut done = 0;
        self.retain(|socket| match socket.ask() {
            Asked::Done => {
                done += 1;
                false
            }
            Asked::Nothing => {
                let silent = socket.count_misses(weight) > MISSES_MAX;
                if silent {
                    if busy {
                        socket.forget_receives();
                    }
                    socket.wait_by_ring();
                }
                !silent
            }
        });
        done
    }

    /// Hands all over to the ring, so that the core can sleep.
    pub(crate) fn cool_down(&self) {
        self.retain(|socket| {
            socket.wait_by_ring();
            false
        });
    }

    fn retain(&self, mut keep: impl FnMut(&Rc<Socket>) -> bool) {
        // Taken out, so that nothing is borrowed while sockets are used.
        let mut sockets = self.sockets.take();
        sockets.retain(|socket| socket.upgrade().is_some_and(|socket| keep(&socket)));
        // Its memory serves again.
        let admitted = self.sockets.replace(sockets);
        self.sockets.borrow_mut().extend(admitted);
    }
}
