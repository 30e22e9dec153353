//! Pages of the last seconds, kept as they were read, of which only windows are decoded.

use std::collections::VecDeque;

use super::decode::Decoder;
use super::page::Page;
use crate::cause::Event;

/// Pages of a CPU at most: 8 MiB.
const PAGES_MAX: usize = 2048;

/// The events of a span of time.
#[derive(Clone, Debug, PartialEq)]
pub struct Window {
    /// The events of all CPUs, in order of time.
    pub events: Vec<Event>,
    /// Events of that time are missing.
    pub is_lossy: bool,
}

/// The pages of all CPUs.
#[derive(Debug, Default)]
pub struct Kept {
    cpus: Vec<Cpu>,
}

#[derive(Debug)]
struct Cpu {
    cpu: u32,
    pages: VecDeque<Page>,
    /// Pages that began before this are gone.
    gone_ns: u64,
}

impl Kept {
    /// Keeps a page of `cpu`, and forgets the oldest one if there are too many.
    pub fn push(&mut self, cpu: u32, page: Page) {
        let index = self.cpus.iter().position(|kept| kept.cpu == cpu).unwrap_or_else(|| {
            self.cpus.push(Cpu { cpu, pages: VecDeque::new(), gone_ns: 0 });
            self.cpus.len() - 1
        });
        let kept = &mut self.cpus[index];
        kept.pages.push_back(page);
        if kept.pages.len() > PAGES_MAX {
            kept.forget_first();
        }
    }

    /// Forgets pages whose events are all older than `before_ns`.
    pub fn forget(&mut self, before_ns: u64) {
        for cpu in &mut self.cpus {
            while cpu.pages.get(1).is_some_and(|second| second.begin_ns() < before_ns) {
                cpu.forget_first();
            }
        }
    }

    /// Decodes the events from `begin_ns` to `end_ns`.
    pub fn window(&self, decoder: &mut Decoder, begin_ns: u64, end_ns: u64) -> Window {
        let mut window = Window { events: Vec::new(), is_lossy: false };
        for cpu in &self.cpus {
            cpu.add_to(&mut window, decoder, begin_ns, end_ns);
        }
        window.events.sort_by_key(|event| event.at_ns);
        window
    }
}

impl Cpu {
    fn forget_first(&mut self) {
        self.pages.pop_front();
        self.gone_ns = self.pages.front().map_or(u64::MAX, Page::begin_ns);
    }

    fn add_to(&self, window: &mut Window, decoder: &mut Decoder, begin_ns: u64, end_ns: u64) {
        window.is_lossy |= self.gone_ns > begin_ns;
        let (mut end_of_previous_ns, mut is_first) = (0, true);
        for (index, page) in self.pages.iter().enumerate() {
            let next_ns = self.pages.get(index + 1).map_or(u64::MAX, Page::begin_ns);
            if page.begin_ns() > end_ns {
                // The lost events lie between the last page of the window and this one.
                window.is_lossy |= page.lost_before() && end_of_previous_ns < end_ns && !is_first;
                break;
            }
            if next_ns < begin_ns {
                continue;
            }
            window.is_lossy |= page.lost_before() && page.begin_ns() > begin_ns;
            for event in page.events() {
                end_of_previous_ns = event.at_ns;
                if (begin_ns..=end_ns).contains(&event.at_ns)
                    && let Some(event) = decoder.decode(self.cpu, event.at_ns, event.record)
                {
                    window.events.push(event);
                }
            }
            is_first = false;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::decode::EVENTS;
    use super::super::format::Format;
    use super::super::page::tests::page;
    use super::*;
    use crate::cause::Kind;

    fn decoder() -> Decoder {
        let spec = *EVENTS.iter().find(|spec| spec.path == "sched/sched_waking").unwrap();
        let format = Format::parse("ID: 1\nfield:pid_t pid; offset:4; size:4;\n").unwrap();
        Decoder::new(&[(spec, format)]).0
    }

    /// A page with an event at each 10 ns, of which the thread is the time.
    fn numbered(begin_ns: u64, count: u64) -> Vec<u8> {
        let record = |n: u64| {
            let tid = (begin_ns + n * 10) as u32;
            (if n == 0 { 0 } else { 10 }, [&[1u8, 0, 0, 0], &tid.to_le_bytes()[..]].concat())
        };
        page(begin_ns, &(0..count).map(record).collect::<Vec<_>>())
    }

    #[test]
    fn a_window_holds_the_events_of_all_cpus_in_order() {
        let (mut kept, mut decoder) = (Kept::default(), decoder());
        for begin_ns in [1000, 1100, 1200] {
            kept.push(0, Page::new(&numbered(begin_ns, 10)).unwrap());
            kept.push(3, Page::new(&numbered(begin_ns + 5, 10)).unwrap());
        }
        let window = kept.window(&mut decoder, 1085, 1205);
        let times: Vec<u64> = window.events.iter().map(|event| event.at_ns).collect();
        assert_eq!(times, (217..=241).map(|n| n * 5).collect::<Vec<u64>>());
        assert!(!window.is_lossy);
        assert_eq!(window.events[0].cpu, 3);
        assert_eq!(window.events[0].kind, Kind::Waking { tid: 1085 });
    }

    #[test]
    fn lost_and_forgotten_events_are_noticed() {
        let (mut kept, mut decoder) = (Kept::default(), decoder());
        kept.push(0, Page::new(&numbered(1000, 10)).unwrap());
        let mut lossy = numbered(2000, 10);
        lossy[11] |= 0x80;
        kept.push(0, Page::new(&lossy).unwrap());
        kept.push(0, Page::new(&numbered(3000, 10)).unwrap());
        assert!(kept.window(&mut decoder, 1500, 2050).is_lossy);
        assert!(kept.window(&mut decoder, 1050, 1800).is_lossy);
        assert!(!kept.window(&mut decoder, 2001, 3050).is_lossy);
        assert!(!kept.window(&mut decoder, 1000, 1080).is_lossy);
        kept.forget(2500);
        assert!(kept.window(&mut decoder, 1000, 1080).is_lossy);
        assert!(!kept.window(&mut decoder, 2001, 3050).is_lossy);
    }
}
