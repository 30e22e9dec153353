//! From the kernel's records to events.

use std::collections::HashSet;
use std::sync::Arc;

use super::format::{Field, Format};
use crate::cause::{Event, Kind, Task};

/// An event of the kernel that is switched on.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct EventSpec {
    /// Its folder and name below `events`.
    pub path: &'static str,
    /// Without it, no cause can be named.
    pub is_needed: bool,
    what: What,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum What {
    Switch,
    Waking,
    IrqBegin,
    SoftirqBegin,
    /// A vector of the interrupt controller by its name.
    VectorBegin(&'static str),
    End,
    Idle,
    Issue,
    Complete,
}

const fn needed(path: &'static str, what: What) -> EventSpec {
    EventSpec { path, is_needed: true, what }
}

const fn wanted(path: &'static str, what: What) -> EventSpec {
    EventSpec { path, is_needed: false, what }
}

/// All events that are switched on where the kernel has them.
pub const EVENTS: &[EventSpec] = &[
    needed("sched/sched_switch", What::Switch),
    needed("sched/sched_waking", What::Waking),
    needed("irq/irq_handler_entry", What::IrqBegin),
    needed("irq/irq_handler_exit", What::End),
    needed("irq/softirq_entry", What::SoftirqBegin),
    needed("irq/softirq_exit", What::End),
    needed("block/block_rq_issue", What::Issue),
    needed("block/block_rq_complete", What::Complete),
    wanted("power/cpu_idle", What::Idle),
    wanted("irq_vectors/local_timer_entry", What::VectorBegin("local timer")),
    wanted("irq_vectors/local_timer_exit", What::End),
    wanted("irq_vectors/reschedule_entry", What::VectorBegin("reschedule")),
    wanted("irq_vectors/reschedule_exit", What::End),
    wanted("irq_vectors/call_function_entry", What::VectorBegin("function call")),
    wanted("irq_vectors/call_function_exit", What::End),
    wanted("irq_vectors/call_function_single_entry", What::VectorBegin("function call")),
    wanted("irq_vectors/call_function_single_exit", What::End),
    wanted("irq_vectors/irq_work_entry", What::VectorBegin("irq work")),
    wanted("irq_vectors/irq_work_exit", What::End),
    wanted("irq_vectors/thermal_apic_entry", What::VectorBegin("thermal")),
    wanted("irq_vectors/thermal_apic_exit", What::End),
];

/// The number by which `cpu_idle` says that a CPU leaves its state.
const NOT_IDLE: u64 = u32::MAX as u64;
/// Softirqs by their number, which is part of the kernel's interface.
const SOFTIRQS: [&str; 10] =
    ["HI", "TIMER", "NET_TX", "NET_RX", "BLOCK", "IRQ_POLL", "TASKLET", "SCHED", "HRTIMER", "RCU"];

/// Decodes the records of one machine.
#[derive(Debug)]
pub struct Decoder {
    /// Index: the number of an event.
    rows: Vec<Option<Row>>,
    names: HashSet<Arc<str>>,
}

/// An event with its fields in the order in which `fields` names them.
#[derive(Debug)]
struct Row {
    what: What,
    fields: Vec<Field>,
}

impl What {
    fn fields(self) -> &'static [&'static str] {
        match self {
            Self::Switch => &["prev_pid", "prev_state", "next_pid", "next_prio", "next_comm"],
            Self::Waking => &["pid"],
            Self::IrqBegin => &["name"],
            Self::SoftirqBegin => &["vec"],
            Self::VectorBegin(_) | Self::End => &[],
            Self::Idle => &["state", "cpu_id"],
            Self::Issue => &["common_pid", "dev", "sector"],
            Self::Complete => &["dev", "sector"],
        }
    }
}

impl Decoder {
    /// Prepares for events with these descriptions. A description without a field that is needed is left out;
    /// its path is returned.
    #[must_use]
    pub fn new(formats: &[(EventSpec, Format)]) -> (Self, Vec<&'static str>) {
        let mut decoder = Self { rows: Vec::new(), names: HashSet::new() };
        let mut left_out = Vec::new();
        for (spec, format) in formats {
            let fields = spec.what.fields().iter().map(|name| format.field(name).cloned());
            let Some(fields) = fields.collect::<Option<Vec<Field>>>() else {
                left_out.push(spec.path);
                continue;
            };
            let index = usize::from(format.id);
            if decoder.rows.len() <= index {
                decoder.rows.resize_with(index + 1, || None);
            }
            decoder.rows[index] = Some(Row { what: spec.what, fields });
        }
        (decoder, left_out)
    }

    /// Decodes a record of a CPU. Returns nothing for one that is of no interest, or makes no sense.
    pub fn decode(&mut self, cpu: u32, at_ns: u64, record: &[u8]) -> Option<Event> {
        let id = u16::from_le_bytes(record.get(..2)?.try_into().ok()?);
        let row = self.rows.get(usize::from(id))?.as_ref()?;
        let number = |index: usize| row.fields[index].number(record);
        let kind = match row.what {
            What::Switch => {
                let name = row.fields[4].text(record)?;
                let task = Task {
                    tid: number(2)? as u32,
                    name: intern(&mut self.names, &name),
                    priority: number(3)? as u32 as i32,
                };
                Kind::Switch {
                    previous: number(0)? as u32,
                    still_ready: is_ready(number(1)?),
                    next: task,
                }
            }
            What::Waking => Kind::Waking { tid: number(0)? as u32 },
            What::IrqBegin => {
                let name = row.fields[0].text(record)?;
                Kind::InterruptBegin { name: intern(&mut self.names, &name) }
            }
            What::SoftirqBegin => {
                let name = SOFTIRQS.get(number(0)? as usize).copied().unwrap_or("softirq");
                Kind::InterruptBegin { name: intern(&mut self.names, name) }
            }
            What::VectorBegin(name) => Kind::InterruptBegin { name: intern(&mut self.names, name) },
            What::End => Kind::InterruptEnd,
            What::Idle => {
                let (state, cpu) = (number(0)?, number(1)? as u32);
                let kind = match state {
                    NOT_IDLE => Kind::IdleEnd,
                    state => Kind::IdleBegin { state: state as u32 },
                };
                return Some(Event { at_ns, cpu, kind });
            }
            What::Issue => Kind::Issue {
                tid: number(0)? as u32,
                device: number(1)? as u32,
                sector: number(2)?,
            },
            What::Complete => Kind::Complete { device: number(0)? as u32, sector: number(1)? },
        };
        Some(Event { at_ns, cpu, kind })
    }
}

/// A task that goes away ready to run has no bit of a state, or only the one for having been pre-empted.
fn is_ready(state: u64) -> bool {
    /// Bits that say for what a task waits.
    const WAITS: u64 = 0xff;
    state & WAITS == 0
}

fn intern(names: &mut HashSet<Arc<str>>, name: &str) -> Arc<str> {
    if let Some(known) = names.get(name) {
        return known.clone();
    }
    let name: Arc<str> = Arc::from(name);
    names.insert(name.clone());
    name
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(path: &str) -> EventSpec {
        *EVENTS.iter().find(|spec| spec.path == path).unwrap()
    }

    fn format(id: u16, fields: &[(&str, usize, usize)]) -> Format {
        let fields: String = fields
            .iter()
            .map(|(name, offset, size)| {
                format!("field:int {name}; offset:{offset}; size:{size};\n")
            })
            .collect();
        Format::parse(&format!("ID: {id}\n{fields}")).unwrap()
    }

    #[test]
    fn a_switch_and_an_idle_state_are_decoded() {
        let switch = format(
            3,
            &[
                ("prev_pid", 4, 4),
                ("prev_state", 8, 8),
                ("next_comm", 16, 16),
                ("next_pid", 32, 4),
                ("next_prio", 36, 4),
            ],
        );
        let idle = format(4, &[("state", 4, 4), ("cpu_id", 8, 4)]);
        let formats = [(spec("sched/sched_switch"), switch), (spec("power/cpu_idle"), idle)];
        let (mut decoder, left_out) = Decoder::new(&formats);
        assert!(left_out.is_empty());
        let mut record = vec![0u8; 40];
        record[0] = 3;
        record[4] = 9;
        record[9] = 1;
        record[16..19].copy_from_slice(b"hog");
        record[32] = 77;
        record[36] = 49;
        let event = decoder.decode(5, 1000, &record).unwrap();
        let next = Task { tid: 77, name: Arc::from("hog"), priority: 49 };
        assert!(next.is_realtime());
        let kind = Kind::Switch { previous: 9, still_ready: true, next };
        assert_eq!(event, Event { at_ns: 1000, cpu: 5, kind });
        let leaves = [4u8, 0, 0, 0, 255, 255, 255, 255, 2, 0, 0, 0];
        let event = decoder.decode(5, 7, &leaves).unwrap();
        assert_eq!(event, Event { at_ns: 7, cpu: 2, kind: Kind::IdleEnd });
        assert_eq!(decoder.decode(5, 7, &leaves[..6]), None);
        assert_eq!(decoder.decode(5, 7, &[9, 9]), None);
    }

    #[test]
    fn a_description_without_a_field_is_named() {
        let (_, left_out) = Decoder::new(&[(spec("sched/sched_waking"), format(1, &[]))]);
        assert_eq!(left_out, ["sched/sched_waking"]);
    }
}
