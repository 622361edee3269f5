//! A connection between two ranks of a machine, whose bytes go through shared memory.
//!
//! Each direction is a [ring](crate::ring). The TCP connection, on which the handshake was made, has bytes without a meaning
//! only, which wake the other end, and its end tells of the end of the other rank.

use std::io::{self, Read as _};
use std::mem;
use std::net::{Shutdown, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};

use rustix::event::PollFlags;
use rustix::net::{SendFlags, send};

use super::{Acknowledged, Link, Wish, now, read};
use crate::ring::{Reader, Rings, Writer};

/// A connection through the memory of a machine.
pub(crate) struct Shared {
    stream: TcpStream,
    outgoing: Writer,
    incoming: Reader,
    /// Whether the other end sleeps until this one has written, and was not woken yet.
    wakes: bool,
}

impl Shared {
    /// A link over the rings, and a stream that does not block.
    pub(crate) fn new(stream: TcpStream, Rings { outgoing, incoming }: Rings) -> Self {
        Self { stream, outgoing, incoming, wakes: false }
    }

    fn wake_other_end(&self) -> io::Result<()> {
        let sent = send(&self.stream, &[0], SendFlags::NOSIGNAL | SendFlags::DONTWAIT);
        // Without room in the connection, there is a byte that wakes the other end already.
        now(sent.map_err(io::Error::from)).map(drop)
    }

    /// Reads the bytes that have woken this end.
    ///
    /// # Errors
    /// The other end is closed.
    fn take_wake_ups(&self) -> io::Result<()> {
        let mut bytes = [0; 64];
        while read((&self.stream).read(&mut bytes))? == bytes.len() {}
        Ok(())
    }
}

impl AsFd for Shared {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

impl Link for Shared {
    fn send(&mut self, pieces: [&[u8]; 2]) -> io::Result<usize> {
        let (count, wakes) = self.outgoing.write(pieces)?;
        self.wakes |= wakes;
        if count == 0 {
            self.flush()?;
            self.take_wake_ups()?;
        }
        Ok(count)
    }

    /// Wakes the other end: once for a whole message, since its rank may share the processor of this one.
    fn flush(&mut self) -> io::Result<bool> {
        if mem::take(&mut self.wakes) {
            self.wake_other_end()?;
        }
        Ok(true)
    }

    fn receive(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let (mut count, mut wakes) = self.incoming.read(into)?;
        if count == 0 {
            let ended = self.take_wake_ups();
            // The other end has written its last bytes before it closed the connection.
            (count, wakes) = self.incoming.read(into)?;
            if count == 0 {
                ended?;
            }
        }
        if wakes {
            // A rank that has ended needs no room.
            _ = self.wake_other_end();
        }
        Ok(count)
    }

    fn events(&mut self, Wish { sends, receives, sleeps }: Wish) -> io::Result<Option<PollFlags>> {
        let is_ready = (receives && self.incoming.may_go_on(sleeps)?) || (sends && self.outgoing.may_go_on(sleeps)?);
        let flags = if sleeps { PollFlags::IN } else { PollFlags::empty() };
        Ok((!is_ready).then_some(flags))
    }

    /// The other rank is on this machine, so the system tells of its end.
    fn acknowledged(&self) -> Acknowledged {
        if self.outgoing.is_empty() { Acknowledged::All } else { Acknowledged::Some }
    }

    fn close(&self) {
        // A connection that has failed is closed.
        _ = self.stream.shutdown(Shutdown::Write);
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::sync::Arc;
    use std::thread;

    use disco_core::shared_memory::Segment;
    use rustix::event::{PollFd, poll};

    use super::*;
    use crate::ring::Memory;

    /// Two ends of a connection, which map the memory apart.
    fn pair() -> [Shared; 2] {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let streams = [TcpStream::connect(listener.local_addr().unwrap()).unwrap(), listener.accept().unwrap().0];
        let segment = Segment::create(2 * Memory::BYTES).unwrap();
        let other = Segment::open(segment.as_fd().try_clone_to_owned().unwrap(), 2 * Memory::BYTES).unwrap();
        let ([one, two], segments) = (streams, [Arc::new(segment), Arc::new(other)]);
        [&one, &two].iter().for_each(|stream| stream.set_nonblocking(true).unwrap());
        let end = |stream, mine: usize| {
            let ring = |place: usize| Memory::new(segments[mine].clone(), place * Memory::BYTES);
            Shared::new(stream, Rings { outgoing: Writer::new(ring(mine)), incoming: Reader::new(ring(1 - mine)) })
        };
        [end(one, 0), end(two, 1)]
    }

    fn content(seed: usize, bytes: usize) -> Vec<u8> {
        (0..bytes).map(|index| (index * (seed + 7) / 3) as u8).collect()
    }

    /// Sends and receives at the same time, and sleeps whenever nothing moves.
    fn exchange(link: &mut Shared, sent: &[u8], bytes: usize) -> Vec<u8> {
        let (mut at, mut received, mut count) = (0, vec![0; bytes], 0);
        while at < sent.len() || count < bytes {
            let (head, rest) = sent[at..].split_at(24.min(sent.len() - at));
            let moved = if at < sent.len() { link.send([head, rest]).unwrap() } else { 0 };
            at += moved;
            assert!(link.flush().unwrap());
            let came = if count < bytes { link.receive(&mut received[count..]).unwrap() } else { 0 };
            count += came;
            let wish = Wish { sends: at < sent.len(), receives: count < bytes, sleeps: true };
            if moved + came == 0
                && let Some(flags) = link.events(wish).unwrap()
            {
                poll(&mut [PollFd::new(&*link, flags)], None).unwrap();
            }
        }
        received
    }

    #[test]
    fn streams_longer_than_the_rings_arrive_unchanged_while_both_ends_sleep_in_turn() {
        let [mut one, mut two] = pair();
        for bytes in [1, 100, 3 << 20, 70_001, 20 << 20] {
            let (to_two, to_one) = (content(1, bytes), content(2, bytes / 2));
            let other = thread::scope(|scope| {
                let other = scope.spawn(|| exchange(&mut two, &to_one, to_two.len()));
                assert!(exchange(&mut one, &to_two, to_one.len()) == to_one);
                other.join().unwrap()
            });
            assert!(other == to_two);
        }
    }

    #[test]
    fn bytes_that_were_sent_before_the_end_arrive_and_then_the_end() {
        let [mut one, mut two] = pair();
        let mut sent = 0;
        loop {
            match one.send([&[7; 1000], &[]]).unwrap() {
                0 => break,
                count => sent += count,
            }
        }
        one.close();
        drop(one);
        let (mut received, mut bytes) = (0, [0; 4096]);
        let end = loop {
            match two.receive(&mut bytes) {
                Ok(count) => received += count,
                Err(error) => break error.kind(),
            }
            thread::yield_now();
        };
        assert_eq!((received, end), (sent, io::ErrorKind::UnexpectedEof));
        while two.send([&bytes, &[]]).is_ok_and(|count| count > 0) {}
        assert!(two.send([&bytes, &[]]).is_err(), "a full ring without a reader");
    }

    #[test]
    fn a_wrong_count_of_the_other_end_is_an_error() {
        let segment = Arc::new(Segment::create(Memory::BYTES).unwrap());
        let mut reader = Reader::new(Memory::new(segment.clone(), 0));
        segment.words()[0].store(u64::MAX, std::sync::atomic::Ordering::Relaxed);
        let error = reader.read(&mut [0]).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidData);
    }
}
