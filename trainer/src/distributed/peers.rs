//! Detection of lost ranks. A GPU that waits in a collective for a dead process waits forever, and
//! so does the host. A rank that sees a closed Gloo connection cannot tell which end closed first.
//!
//! Every rank holds an idle connection to rank 0 while it trains. If one closes, its process has
//! ended, and rank 0 tells all others; if rank 0's end closes, rank 0 is lost. A machine that no
//! longer answers, as after a power cut, counts as lost too.

use std::io::{self, Read as _, Write as _};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd as _;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{setsockopt, sockopt};

/// An idle connection is probed after this time,
const KEEPALIVE_IDLE_SECONDS: u32 = 20;
/// again after each interval,
const KEEPALIVE_INTERVAL_SECONDS: u32 = 10;
/// and closed after so many probes without an answer: a minute of silence is not a network glitch.
const KEEPALIVE_PROBES: u32 = 4;
/// Time for a connecting peer to identify itself.
const INTRODUCTION: Duration = Duration::from_secs(5);

/// Sent instead of a lost rank by a rank that has finished.
const LEAVING: u32 = u32::MAX;

/// The first rank known to be lost, shared by all threads of this process.
#[derive(Clone, Debug, Default)]
pub(crate) struct LostPeer(Arc<(Mutex<Option<u32>>, Condvar)>);

impl LostPeer {
    pub(crate) fn get(&self) -> Option<u32> {
        self.within(Duration::ZERO)
    }

    /// Waits up to `time` for a lost rank.
    pub(crate) fn within(&self, time: Duration) -> Option<u32> {
        let (rank, changed) = &*self.0;
        let rank = rank.lock().unwrap_or_else(PoisonError::into_inner);
        let (rank, _) = changed
            .wait_timeout_while(rank, time, |rank| rank.is_none())
            .unwrap_or_else(PoisonError::into_inner);
        *rank
    }

    pub(super) fn set(&self, lost: u32) {
        let (rank, changed) = &*self.0;
        rank.lock()
            .unwrap_or_else(PoisonError::into_inner)
            .get_or_insert(lost);
        changed.notify_all();
    }
}

/// Connections to peers: from rank 0 to all others, and from each of them to rank 0.
#[derive(Debug)]
pub(super) struct Peers(Vec<TcpStream>);

/// Rank 0's listener for the other ranks.
#[derive(Debug)]
pub(super) struct PeerListener(TcpListener);

impl PeerListener {
    pub(super) fn open(address: IpAddr) -> io::Result<Self> {
        Ok(Self(TcpListener::bind((address, 0))?))
    }

    pub(super) fn address(&self) -> io::Result<SocketAddr> {
        self.0.local_addr()
    }

    /// Accepts all other ranks of `world_size` that know `secret`. From then on it reports the
    /// first lost rank to them and to `on_lost`.
    pub(super) fn admit(
        self,
        world_size: u32,
        secret: &str,
        deadline: Instant,
        on_lost: impl Fn(u32) + Send + 'static,
    ) -> io::Result<Peers> {
        self.0.set_nonblocking(true)?;
        let mut peers: Vec<(u32, TcpStream)> = Vec::new();
        while peers.len() + 1 < world_size as usize {
            let mut door = [PollFd::new(self.0.as_fd(), PollFlags::POLLIN)];
            let left = deadline.saturating_duration_since(Instant::now());
            let ready = poll(&mut door, PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX))?;
            if ready == 0 {
                let message = format!("{} of {world_size} ranks have connected", peers.len() + 1);
                return Err(io::Error::new(io::ErrorKind::TimedOut, message));
            }
            let (stream, from) = match self.0.accept() {
                Ok(accepted) => accepted,
                Err(gone)
                    if matches!(
                        gone.kind(),
                        io::ErrorKind::WouldBlock | io::ErrorKind::ConnectionAborted
                    ) =>
                {
                    continue;
                }
                Err(error) => return Err(error),
            };
            match introduction(&stream, secret) {
                Some(rank)
                    if (1..world_size).contains(&rank) && peers.iter().all(|(peer, _)| *peer != rank) =>
                {
                    keep_alive(&stream)?;
                    peers.push((rank, stream));
                }
                _ => tracing::warn!("{from} connected to rank 0 but is not another rank of this attempt"),
            }
        }
        let own = peers.iter().map(|(_, stream)| stream.try_clone());
        let own = Peers(own.collect::<io::Result<_>>()?);
        spawn(move || {
            if let Some(lost) = first_lost(&mut peers) {
                for (_, stream) in &mut peers {
                    // Some may be lost as well.
                    let _ = stream.write_all(&lost.to_be_bytes());
                }
                on_lost(lost);
            }
        })?;
        Ok(own)
    }
}

impl Peers {
    /// Connects to rank 0. `on_lost` is called with the first rank lost from then on.
    pub(super) fn connect(
        door: SocketAddr,
        rank: u32,
        secret: &str,
        deadline: Instant,
        on_lost: impl Fn(u32) + Send + 'static,
    ) -> io::Result<Self> {
        let left = deadline.saturating_duration_since(Instant::now());
        let mut stream = TcpStream::connect_timeout(&door, left.max(Duration::from_millis(1)))?;
        keep_alive(&stream)?;
        stream.write_all(&greeting(rank, secret))?;
        let own = Self(vec![stream.try_clone()?]);
        spawn(move || match receive(&mut stream) {
            Some(LEAVING) => {}
            Some(lost) => on_lost(lost),
            None => on_lost(0),
        })?;
        Ok(own)
    }

    /// This rank has finished; its end is not a loss.
    pub(super) fn leave(&mut self) {
        for stream in &mut self.0 {
            // A peer that has left needs no message.
            let _ = stream.write_all(&LEAVING.to_be_bytes());
        }
    }
}

fn spawn(watch: impl FnOnce() + Send + 'static) -> io::Result<()> {
    let thread = std::thread::Builder::new().name("peers".into());
    thread.spawn(watch).map(drop)
}

fn keep_alive(stream: &TcpStream) -> io::Result<()> {
    setsockopt(stream, sockopt::TcpKeepIdle, &KEEPALIVE_IDLE_SECONDS)?;
    setsockopt(stream, sockopt::TcpKeepInterval, &KEEPALIVE_INTERVAL_SECONDS)?;
    setsockopt(stream, sockopt::TcpKeepCount, &KEEPALIVE_PROBES)?;
    setsockopt(stream, sockopt::KeepAlive, &true)?;
    Ok(())
}

/// The first message of a rank.
fn greeting(rank: u32, secret: &str) -> Vec<u8> {
    [secret.as_bytes(), &rank.to_be_bytes()].concat()
}

/// The rank of a peer that knows the secret.
fn introduction(mut stream: &TcpStream, secret: &str) -> Option<u32> {
    stream.set_nonblocking(false).ok()?;
    stream.set_read_timeout(Some(INTRODUCTION)).ok()?;
    let mut said = vec![0; secret.len()];
    stream.read_exact(&mut said).ok()?;
    let rank = receive(&mut stream)?;
    stream.set_read_timeout(None).ok()?;
    (said == secret.as_bytes()).then_some(rank)
}

/// The next number from a peer; `None` if its connection ends.
fn receive(stream: &mut impl io::Read) -> Option<u32> {
    let mut bytes = [0; 4];
    stream.read_exact(&mut bytes).ok()?;
    Some(u32::from_be_bytes(bytes))
}

/// Waits until a peer is lost and removes peers that leave; `None` once all have left.
fn first_lost(peers: &mut Vec<(u32, TcpStream)>) -> Option<u32> {
    while !peers.is_empty() {
        let mut watched: Vec<PollFd<'_>> = peers
            .iter()
            .map(|(_, stream)| PollFd::new(stream.as_fd(), PollFlags::POLLIN))
            .collect();
        // Only a signal interrupts the wait without a result.
        let _ = poll(&mut watched, PollTimeout::NONE);
        let told = watched.iter().position(|watched| watched.any() == Some(true));
        drop(watched);
        let Some(told) = told else { continue };
        let (rank, mut stream) = peers.swap_remove(told);
        if receive(&mut stream) != Some(LEAVING) {
            return Some(rank);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;
    use std::sync::mpsc::{self, Receiver};

    use super::*;

    const SECRET: &str = "job-attempt-1";
    const LONG: Duration = Duration::from_secs(20);

    fn deadline() -> Instant {
        Instant::now() + LONG
    }

    fn door() -> (PeerListener, SocketAddr) {
        let door = PeerListener::open(Ipv4Addr::LOCALHOST.into()).expect("a door");
        let address = door.address().expect("an address");
        (door, address)
    }

    /// A peer, and the lost ranks reported to it.
    fn join(connect: impl FnOnce(Box<dyn Fn(u32) + Send>) -> io::Result<Peers>) -> (Peers, Receiver<u32>) {
        let (sender, told) = mpsc::channel();
        let peers = connect(Box::new(move |rank| sender.send(rank).expect("a listener")));
        (peers.expect("connects"), told)
    }

    /// A process with only this connection.
    fn process(address: SocketAddr, rank: u32, secret: &str) -> TcpStream {
        let mut stream = TcpStream::connect(address).expect("connects");
        stream.write_all(&greeting(rank, secret)).expect("sends");
        stream
    }

    #[test]
    fn the_rank_whose_process_has_ended_is_named_to_all_others() {
        let (door, address) = door();
        let victim = process(address, 2, SECRET);
        std::thread::scope(|scope| {
            let first = scope.spawn(|| join(|on_lost| door.admit(4, SECRET, deadline(), on_lost)));
            let others =
                [1, 3].map(|rank| join(|on_lost| Peers::connect(address, rank, SECRET, deadline(), on_lost)));
            let first = first.join().expect("rank 0");
            drop(victim);
            for (_, told) in [&first, &others[0], &others[1]] {
                assert_eq!(told.recv_timeout(LONG), Ok(2));
            }
        });
    }

    #[test]
    fn the_end_of_rank_0_is_seen_by_all() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a listener");
        let address = listener.local_addr().expect("an address");
        let (_peers, told) = join(|on_lost| Peers::connect(address, 1, SECRET, deadline(), on_lost));
        let (stream, _) = listener.accept().expect("rank 1");
        assert_eq!(introduction(&stream, SECRET), Some(1));
        drop(stream);
        assert_eq!(told.recv_timeout(LONG), Ok(0));
    }

    #[test]
    fn a_rank_that_leaves_is_not_lost() {
        let (door, address) = door();
        let (mut leaving, victim) = (process(address, 1, SECRET), process(address, 2, SECRET));
        let (_peers, told) = join(|on_lost| door.admit(3, SECRET, deadline(), on_lost));
        leaving.write_all(&LEAVING.to_be_bytes()).expect("sends");
        drop(leaving);
        drop(victim);
        assert_eq!(told.recv_timeout(LONG), Ok(2));
        assert_eq!(told.recv_timeout(LONG), Err(mpsc::RecvTimeoutError::Disconnected));
    }

    #[test]
    fn nobody_is_told_of_the_end_of_a_rank_0_that_has_left() {
        let (door, address) = door();
        std::thread::scope(|scope| {
            let first = scope.spawn(|| join(|on_lost| door.admit(2, SECRET, deadline(), on_lost)));
            let (_peers, told) = join(|on_lost| Peers::connect(address, 1, SECRET, deadline(), on_lost));
            let (mut first, _) = first.join().expect("rank 0");
            first.leave();
            assert_eq!(told.recv_timeout(LONG), Err(mpsc::RecvTimeoutError::Disconnected));
        });
    }

    #[test]
    fn only_other_ranks_of_this_attempt_are_let_in_once() {
        let (door, address) = door();
        let strangers = [
            process(address, 1, "job-attempt-2"),
            process(address, 0, SECRET),
            process(address, 3, SECRET),
        ];
        let peer = process(address, 1, SECRET);
        let twin = process(address, 1, SECRET);
        let soon = Instant::now() + Duration::from_millis(500);
        let error = door
            .admit(3, SECRET, soon, |_| ())
            .expect_err("rank 2 is missing");
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        assert_eq!(error.to_string(), "2 of 3 ranks have connected");
        drop((strangers, peer, twin));
    }

    #[test]
    fn the_first_loss_counts_and_wakes_those_who_wait_for_the_news() {
        let lost = LostPeer::default();
        assert_eq!(lost.get(), None);
        std::thread::scope(|scope| {
            let news = scope.spawn(|| lost.within(LONG));
            lost.set(3);
            lost.set(1);
            assert_eq!(news.join().expect("a thread that ends"), Some(3));
        });
        assert_eq!(lost.get(), Some(3));
    }
}
