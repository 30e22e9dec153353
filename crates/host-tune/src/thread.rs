//! The priority of a thread that runs, which has no file that can be written: the program `chrt` sets it.
//!
//! A key stands for a thread where others have a path: `thread:812:815:4711` is thread 815 of process 812, which began
//! 4711 ticks after the boot. Numbers of threads are used again; with the tick they are not.

use std::io;

use crate::root::Root;

/// A thread.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct Thread<'a> {
    process: &'a str,
    thread: &'a str,
    started: &'a str,
}

/// Places in `/proc/PID/task/TID/stat` behind the name, as proc(5) numbers them less 3.
const STARTED: usize = 19;
const PRIORITY: usize = 37;
const POLICY: usize = 38;

/// The kernel's policies by number, as `chrt` names them.
const POLICIES: [(&str, &str); 5] =
    [("0", "other"), ("1", "fifo"), ("2", "rr"), ("3", "batch"), ("5", "idle")];

/// The key of thread `thread` of process `process`, if it is there.
pub(crate) fn key(root: &Root, process: &str, thread: &str) -> Option<String> {
    let started = fields(root, process, thread)?.get(STARTED)?.clone();
    Some(format!("thread:{process}:{thread}:{started}"))
}

fn fields(root: &Root, process: &str, thread: &str) -> Option<Vec<String>> {
    let text = root.text(&format!("/proc/{process}/task/{thread}/stat"))?;
    // The name is in parentheses and may hold anything.
    let (_, fields) = text.rsplit_once(')')?;
    Some(fields.split_whitespace().map(str::to_owned).collect())
}

impl<'a> Thread<'a> {
    /// The thread that `key` stands for.
    pub(crate) fn parse(key: &'a str) -> Option<Self> {
        let mut parts = key.strip_prefix("thread:")?.split(':');
        Some(Self { process: parts.next()?, thread: parts.next()?, started: parts.next()? })
    }

    /// Its policy and priority, such as `fifo 10`.
    ///
    /// # Errors
    /// `NotFound`: the thread has ended.
    pub(crate) fn read(&self, root: &Root) -> io::Result<String> {
        let fields = fields(root, self.process, self.thread);
        let fields = fields.filter(|all| all.get(STARTED).is_some_and(|at| at == self.started));
        let fields = fields.ok_or(io::ErrorKind::NotFound)?;
        let field = |at: usize| fields.get(at).map_or("", String::as_str);
        let known = POLICIES.iter().find(|(number, _)| *number == field(POLICY));
        let (_, policy) = known.ok_or_else(|| {
            io::Error::other(format!("the thread has a policy of its own ({})", field(POLICY)))
        })?;
        Ok(format!("{policy} {}", field(PRIORITY)))
    }

    /// Gives it a policy and a priority.
    pub(crate) fn write(&self, root: &Root, value: &str) -> io::Result<()> {
        self.read(root)?;
        let known = value.trim_end().split_once(' ');
        let (policy, priority) = known.ok_or(io::ErrorKind::InvalidInput)?;
        root.limit().take(|| ())?;
        let policy = format!("--{policy}");
        root.run("chrt", &[&policy, "--pid", priority, self.thread]).map(drop)
    }
}
