//! Requests that end if the hub falls silent: `hf-hub` itself would wait for ever.

use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread;
use std::time::{Duration, Instant};

use hf_hub::api::Progress;

/// How much of a file was downloaded.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Downloaded {
    /// The file in the repository.
    pub file: String,
    /// Bytes that are here.
    pub bytes: u64,
    /// All bytes of the file.
    pub total: u64,
}

/// Why a request has no outcome.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// Nothing came for this time.
    Silence(Duration),
    /// The client has panicked.
    Panic,
}

/// Messages of the thread of a request.
enum Message<T> {
    Downloaded(Downloaded),
    Done(T),
}

/// The shortest time between two reports.
const REPORT_EVERY: Duration = Duration::from_millis(100);

/// Reports the progress of a download to the caller.
pub(super) struct Reports {
    tell: Box<dyn FnMut(Downloaded) + Send>,
    downloaded: Downloaded,
    last: Instant,
}

impl Reports {
    fn report(&mut self) {
        self.last = Instant::now();
        (self.tell)(self.downloaded.clone());
    }
}

impl Progress for Reports {
    fn init(&mut self, size: usize, filename: &str) {
        self.downloaded = Downloaded { file: filename.to_owned(), bytes: 0, total: size as u64 };
        self.report();
    }

    fn update(&mut self, size: usize) {
        self.downloaded.bytes += size as u64;
        if self.last.elapsed() >= REPORT_EVERY {
            self.report();
        }
    }

    fn finish(&mut self) {
        self.report();
    }
}

/// Runs `request` on a thread, which is left behind if it reports nothing for `silence_limit`.
pub(super) fn watched<T: Send + 'static>(
    silence_limit: Duration,
    progress: &mut dyn FnMut(&Downloaded),
    request: impl FnOnce(Reports) -> T + Send + 'static,
) -> Result<T, End> {
    let (sender, receiver) = mpsc::channel();
    let progress_sender: Sender<Message<T>> = sender.clone();
    let reports = Reports {
        // The caller may have gone.
        tell: Box::new(move |downloaded| _ = progress_sender.send(Message::Downloaded(downloaded))),
        downloaded: Downloaded { file: String::new(), bytes: 0, total: 0 },
        last: Instant::now(),
    };
    thread::spawn(move || _ = sender.send(Message::Done(request(reports))));
    loop {
        match receiver.recv_timeout(silence_limit) {
            Ok(Message::Downloaded(downloaded)) => progress(&downloaded),
            Ok(Message::Done(outcome)) => return Ok(outcome),
            Err(RecvTimeoutError::Timeout) => return Err(End::Silence(silence_limit)),
            Err(RecvTimeoutError::Disconnected) => return Err(End::Panic),
        }
    }
}
