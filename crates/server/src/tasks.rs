//! Tasks that have to live as long as the server.
//!
//! - TASK-1: one that panics is told in the log, in the status of the server and by a metric, and begun again if it can
//!   be.
//! - TASK-2: the condition holds for [`TOLD_FOR`] after a task was begun again, and for good if it was not.

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use control::{ServerNotice, ServerNoticeKind};
use tokio::task::JoinHandle;

/// Pause before a task is begun again.
const PAUSE: Duration = Duration::from_secs(1);
/// Time for which a task that was begun again is told of.
const TOLD_FOR: Duration = Duration::from_secs(600);

/// The tasks of a server that have panicked, by name.
#[derive(Clone, Default)]
pub(super) struct Tasks(Arc<Mutex<BTreeMap<String, Panics>>>);

#[derive(Clone, Copy)]
struct Panics {
    count: u64,
    last: Instant,
    /// The task is not begun again.
    is_over: bool,
}

impl Tasks {
    /// Runs the task that `make` makes to its end, and another after each panic. Returns the whole of it.
    pub(super) fn keep<F>(
        &self,
        name: &str,
        mut make: impl FnMut() -> F + Send + 'static,
    ) -> JoinHandle<()>
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let (tasks, name) = (self.clone(), name.to_owned());
        tokio::spawn(async move {
            while tasks.run(&name, false, make()).await.is_none() {
                tokio::time::sleep(PAUSE).await;
            }
        })
    }

    /// Runs a task that cannot be begun again.
    pub(super) fn keep_once(&self, name: &str, task: impl Future<Output = ()> + Send + 'static) {
        let (tasks, name) = (self.clone(), name.to_owned());
        tokio::spawn(async move { tasks.run(&name, true, task).await });
    }

    /// The output of a task; `None` if it has panicked, which is told (TASK-1).
    pub(super) async fn run<T: Send + 'static>(
        &self,
        name: &str,
        is_over: bool,
        task: impl Future<Output = T> + Send + 'static,
    ) -> Option<T> {
        match tokio::spawn(task).await {
            Ok(output) => Some(output),
            Err(error) => {
                let text = error.try_into_panic().map(|panic| text_of(&*panic).to_owned());
                self.note(name, is_over, &text.unwrap_or_default());
                None
            }
        }
    }

    fn note(&self, name: &str, is_over: bool, panic: &str) {
        match is_over {
            true => tracing::error!(task = name, panic, "has ended: restart the server"),
            false => tracing::error!(task = name, panic, "has failed, and is begun again"),
        }
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let last = Instant::now();
        let panics = all.entry(name.to_owned()).or_insert(Panics { count: 0, last, is_over });
        *panics = Panics { count: panics.count + 1, last, is_over };
    }

    /// Counts the panics.
    pub(super) fn panics(&self) -> u64 {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.values().map(|panics| panics.count).sum()
    }

    /// Returns the conditions that hold now (TASK-2).
    pub(super) fn notices(&self) -> Vec<ServerNotice> {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let told = all.iter().filter(|(_, it)| it.is_over || it.last.elapsed() < TOLD_FOR);
        let text = |(name, panics): (&String, &Panics)| match panics.is_over {
            true => format!("`{name}` has ended by a fault of this program: restart the server"),
            false => format!(
                "`{name}` failed {} by a fault of this program, and was begun again: see the server's log",
                user_messages::output::counted(panics.count, "time")
            ),
        };
        told.map(|it| ServerNotice { kind: ServerNoticeKind::TaskEnded, text: text(it) }).collect()
    }
}

/// Returns the text of a panic.
fn text_of(panic: &(dyn std::any::Any + Send)) -> &str {
    let owned = panic.downcast_ref::<String>().map(String::as_str);
    owned.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no text")
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;

    #[tokio::test]
    async fn a_task_that_panics_is_begun_again_and_told_of() {
        let tasks = Tasks::default();
        let (begun, (done, ended)) = (AtomicU64::new(0), tokio::sync::oneshot::channel());
        let mut done = Some(done);
        tasks.keep("the task", move || {
            let number = begun.fetch_add(1, Ordering::Relaxed);
            let done = done.take_if(|_| number == 2);
            async move {
                let done = done.expect("the first two panic");
                let _ = done.send(());
            }
        });
        ended.await.expect("the third ends in good order");
        assert_eq!(tasks.panics(), 2);
        let [notice] = &tasks.notices()[..] else { panic!("one task") };
        assert!(notice.text.contains("`the task` failed 2 times"), "{}", notice.text);
    }

    /// A writer whose clones write to one place.
    #[derive(Clone, Default)]
    struct Written(Arc<Mutex<Vec<u8>>>);

    impl std::io::Write for Written {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().expect("no panic").extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    /// The API that has failed shows no status: the log has the task, the panic, and what to do.
    #[tokio::test]
    async fn the_log_tells_of_a_panic() {
        let (tasks, written) = (Tasks::default(), Written::default());
        let writer = written.clone();
        let log = tracing_subscriber::fmt().with_ansi(false).with_writer(move || writer.clone());
        let _log = tracing::subscriber::set_default(log.finish());
        let run = async |is_over, cause: &'static str| {
            tasks.run("API", is_over, async move { panic!("{cause}") }).await
        };
        assert_eq!(run(true, "for good").await, None::<()>);
        assert_eq!(run(false, "for now").await, None::<()>);
        assert_eq!(tasks.run("API", true, async { 7 }).await, Some(7));
        let lines = written.0.lock().expect("no panic").clone();
        let lines = String::from_utf8(lines).expect("text");
        let [first, second] = lines.lines().collect::<Vec<_>>()[..] else { panic!("{lines}") };
        for (line, told, panic) in [
            (first, "has ended: restart the server", "for good"),
            (second, "has failed, and is begun again", "for now"),
        ] {
            let is_whole = ["ERROR", told, "task=\"API\"", &format!("panic=\"{panic}\"")];
            assert!(is_whole.iter().all(|part| line.contains(part)), "{line}");
        }
    }

    #[tokio::test]
    async fn a_task_that_cannot_be_begun_again_is_told_of_for_good() {
        let tasks = Tasks::default();
        tasks.keep_once("drive", async { panic!("on purpose") });
        while tasks.panics() == 0 {
            tokio::task::yield_now().await;
        }
        let [notice] = &tasks.notices()[..] else { panic!("one task") };
        assert!(notice.text.contains("`drive` has ended"), "{}", notice.text);
        tasks.keep_once("drive", async {});
        assert_eq!(tasks.panics(), 1);
    }
}
