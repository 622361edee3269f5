//! Metrics of a connection.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Instant;

use metrics::{Counter, Histogram, Unit, counter, describe_counter, describe_histogram, histogram};
use rustix::event::PollFlags;

use super::{Acknowledged, Link, Wish};

const SENT: &str = "disco_tcp_sent_bytes_total";
const RECEIVED: &str = "disco_tcp_received_bytes_total";
const WAIT: &str = "disco_tcp_wait_seconds";

/// A connection whose bytes and waits are counted, for the machine at its other end.
pub(crate) struct Counted {
    link: Box<dyn Link>,
    sent: Counter,
    received: Counter,
    waits: Histogram,
    /// When the rank began to wait for bytes.
    waiting: Option<Instant>,
}

impl Counted {
    /// Counts the bytes that `link` sends to a machine and receives from it.
    pub(crate) fn new(link: Box<dyn Link>, machine: &str) -> Self {
        describe_counter!(SENT, Unit::Bytes, "Bytes of messages that ranks of tcp have sent to ranks of a machine");
        describe_counter!(
            RECEIVED,
            Unit::Bytes,
            "Bytes of messages that ranks of tcp have received from ranks of a machine"
        );
        describe_histogram!(WAIT, Unit::Seconds, "Waits of ranks of tcp for the next bytes from a rank of a machine");
        let [sent, received] = [SENT, RECEIVED].map(|name| counter!(name, "machine" => machine.to_owned()));
        Self { link, sent, received, waits: histogram!(WAIT, "machine" => machine.to_owned()), waiting: None }
    }
}

impl AsFd for Counted {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.link.as_fd()
    }
}

impl Link for Counted {
    fn send(&mut self, pieces: [&[u8]; 2]) -> io::Result<usize> {
        self.link.send(pieces).inspect(|count| self.sent.increment(*count as u64))
    }

    fn flush(&mut self) -> io::Result<bool> {
        self.link.flush()
    }

    fn receive(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let count = self.link.receive(into)?;
        if count == 0 {
            self.waiting.get_or_insert_with(Instant::now);
        } else {
            self.received.increment(count as u64);
            if let Some(start) = self.waiting.take() {
                self.waits.record(start.elapsed());
            }
        }
        Ok(count)
    }

    fn events(&mut self, wish: Wish) -> io::Result<Option<PollFlags>> {
        self.link.events(wish)
    }

    fn acknowledged(&self) -> Acknowledged {
        self.link.acknowledged()
    }

    fn close(&self) {
        self.link.close();
    }
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use metrics_exporter_prometheus::PrometheusBuilder;

    use super::*;
    use crate::link::Plain;

    #[test]
    fn bytes_and_waits_are_counted_for_the_machine_at_the_other_end() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let ends = [TcpStream::connect(listener.local_addr().unwrap()).unwrap(), listener.accept().unwrap().0];
        let recorder = PrometheusBuilder::new().build_recorder();
        let link = |(stream, machine): (TcpStream, &str)| {
            stream.set_nonblocking(true).unwrap();
            metrics::with_local_recorder(&recorder, || Counted::new(Box::new(Plain::new(stream)), machine))
        };
        let [here, there] = ends;
        let (mut here, mut there) = (link((here, "b")), link((there, "a")));
        let mut bytes = [0; 12];
        assert_eq!(there.receive(&mut bytes).unwrap(), 0);
        assert_eq!(here.send([b"a head", b"content"]).unwrap(), 13);
        while there.receive(&mut bytes).unwrap() == 0 {}
        let said = recorder.handle().render();
        for line in [
            "disco_tcp_sent_bytes_total{machine=\"b\"} 13",
            "disco_tcp_received_bytes_total{machine=\"a\"} 12",
            "disco_tcp_wait_seconds_count{machine=\"a\"} 1",
        ] {
            assert!(said.lines().any(|it| it == line), "no `{line}` in {said}");
        }
    }
}
