//! TCP connections of the first rank to all other ranks. Over them, ranks find each other, compare their calls,
//! exchange a few bytes, and report that they end. Tensors are not sent over them.

use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Shutdown, TcpListener, TcpStream, ToSocketAddrs};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use super::group::Group;

/// First message of a rank. Connections whose first message differs come from another program or version.
const GREETING: &[u8; 16] = b"meganeura-nccl 1";
/// Maximum time to wait for the first message on a connection.
const GREETING_TIMEOUT: Duration = Duration::from_secs(10);
/// Interval between attempts to connect.
const RETRY_INTERVAL: Duration = Duration::from_millis(50);
/// Maximum length of a failure reason that is sent, in bytes.
const MAX_REASON: usize = 4096;

/// Maximum size of a message in bytes. It may contain the data of many ranks.
const MAX_MESSAGE: usize = 64 << 20;

/// Types of messages: a rank ends with an error (`ENDED`) or after its work, the data of one rank for an exchange,
/// and the data of all ranks.
const ENDED: u8 = 1;
const LEFT: u8 = 2;
const BROUGHT: u8 = 3;
const ALL: u8 = 4;

/// A rank that ended with an error, and the reason of the error.
pub(super) type LostRank = (usize, String);

/// The connections of one rank.
pub(super) struct Links {
    rank: usize,
    size: usize,
    shared: Arc<LinkState>,
}

/// State that callers share with the threads that receive messages.
#[derive(Default)]
struct LinkState {
    state: Mutex<State>,
    changed: Condvar,
    /// Connections, each with the rank at its other end.
    peers: Mutex<Vec<(usize, TcpStream)>>,
}

#[derive(Default)]
struct State {
    /// First rank that ended with an error.
    lost: Option<LostRank>,
    /// Ranks that ended after their work was complete.
    left: Vec<usize>,
    /// Data that was received from each rank, and that no exchange has used yet.
    received: Vec<(usize, VecDeque<Vec<u8>>)>,
}

impl State {
    fn queue(&mut self, rank: usize) -> &mut VecDeque<Vec<u8>> {
        let at = self.received.iter().position(|(known, _)| *known == rank);
        let at = at.unwrap_or_else(|| {
            self.received.push((rank, VecDeque::new()));
            self.received.len() - 1
        });
        &mut self.received[at].1
    }
}

/// The reason why an exchange failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ExchangeError {
    Lost(LostRank),
    /// Ranks that did not report in time to this rank.
    Missing(Vec<usize>),
}

/// The reason why the ranks could not connect.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum RendezvousError {
    /// The ranks that did not arrive in time.
    Missing(Vec<usize>),
    Other(String),
}

impl LinkState {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn peers(&self) -> MutexGuard<'_, Vec<(usize, TcpStream)>> {
        self.peers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends a message to all other ranks except one. Ignores errors: a rank that cannot receive has already ended.
    fn tell(&self, except: usize, message: &[u8]) {
        for (_, stream) in self.peers().iter_mut().filter(|(peer, _)| *peer != except) {
            let _ = stream.write_all(message);
        }
    }

    /// Receives messages of a rank until it ends.
    fn listen(&self, own: usize, peer: usize, mut stream: TcpStream) {
        let (rank, reason) = loop {
            match read_message(&mut stream) {
                Ok((LEFT, ..)) => {
                    self.state().left.push(peer);
                    self.changed.notify_all();
                    return;
                }
                Ok((BROUGHT | ALL, _, bytes)) => {
                    self.state().queue(peer).push_back(bytes);
                    self.changed.notify_all();
                }
                Ok((_, rank, reason)) => break (rank, String::from_utf8_lossy(&reason).into_owned()),
                Err(_) => break (peer, String::new()),
            }
        };
        let is_first = {
            let mut state = self.state();
            let is_first = state.lost.is_none();
            state.lost.get_or_insert_with(|| (rank, reason.clone()));
            is_first
        };
        self.changed.notify_all();
        // Other ranks are connected only to the first rank.
        if own == 0 && is_first {
            self.tell(peer, &ending(rank, &reason));
        }
    }

    /// Waits for the next data from a rank.
    fn take(&self, rank: usize, end: Instant) -> Result<Vec<u8>, Option<LostRank>> {
        let mut state = self.state();
        loop {
            if let Some(bytes) = state.queue(rank).pop_front() {
                return Ok(bytes);
            }
            let time = end.saturating_duration_since(Instant::now());
            if state.lost.is_some() || time.is_zero() {
                return Err(state.lost.clone());
            }
            if state.left.contains(&rank) {
                return Err(Some((rank, "it exited before the other ranks finished".into())));
            }
            let waited = self.changed.wait_timeout(state, time);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

/// Returns the message that reports that a rank ends with an error.
fn ending(rank: usize, reason: &str) -> Vec<u8> {
    let end = (0..=reason.len().min(MAX_REASON))
        .rev()
        .find(|&end| reason.is_char_boundary(end));
    message(ENDED, rank, &reason.as_bytes()[..end.unwrap_or(0)])
}

fn message(kind: u8, rank: usize, bytes: &[u8]) -> Vec<u8> {
    let mut message = vec![kind];
    message.extend((rank as u32).to_le_bytes());
    message.extend((bytes.len() as u32).to_le_bytes());
    message.extend(bytes);
    message
}

fn word(bytes: &[u8], at: usize) -> usize {
    bytes[at..at + 4]
        .iter()
        .rev()
        .fold(0, |word, byte| word << 8 | usize::from(*byte))
}

fn read_message(stream: &mut TcpStream) -> io::Result<(u8, usize, Vec<u8>)> {
    let mut head = [0; 9];
    stream.read_exact(&mut head)?;
    let len = word(&head, 5);
    if len > MAX_MESSAGE {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let mut bytes = vec![0; len];
    stream.read_exact(&mut bytes)?;
    Ok((head[0], word(&head, 1), bytes))
}

impl Links {
    /// Connects all ranks of a group to the first rank, which sends `id` to each of them.
    ///
    /// # Errors
    /// Ranks that do not arrive within the limit, or that belong to another group; no network.
    pub(super) fn connect<const N: usize>(
        group: &Group,
        limit: Duration,
        id: impl FnOnce() -> Result<[u8; N], String>,
    ) -> Result<([u8; N], Self), RendezvousError> {
        let end = Instant::now() + limit;
        let (id, peers) = match group.rank {
            0 => {
                let id = id().map_err(RendezvousError::Other)?;
                (id, accept(group, end, &id)?)
            }
            _ => {
                let (id, stream) = call(group, end)?;
                (id, vec![(0, stream)])
            }
        };
        let shared = Arc::new(LinkState::default());
        for (peer, stream) in &peers {
            let (own, peer, shared) = (group.rank, *peer, shared.clone());
            let stream = stream
                .try_clone()
                .map_err(|error| RendezvousError::Other(error.to_string()))?;
            let listener = thread::Builder::new().name(format!("rank {peer}"));
            let started = listener.spawn(move || shared.listen(own, peer, stream));
            started.map_err(|error| RendezvousError::Other(error.to_string()))?;
        }
        *shared.peers() = peers;
        let links = Links {
            rank: group.rank,
            size: group.size,
            shared,
        };
        Ok((id, links))
    }

    /// Returns a function that any thread may call. It returns the first rank that ended with an error, if any.
    pub(super) fn watcher(&self) -> impl Fn() -> Option<LostRank> + Send + Sync + 'static {
        let shared = self.shared.clone();
        move || shared.state().lost.clone()
    }

    /// Notifies the other ranks that this rank ends with an error.
    pub(super) fn end(&self, reason: &str) {
        self.shared.tell(self.rank, &ending(self.rank, reason));
    }

    /// Exchanges data between all ranks. Returns the data of all ranks in the order of ranks.
    ///
    /// # Errors
    /// A rank that is lost, or that does not arrive in time.
    pub(super) fn exchange(&self, own: &[u8], limit: Duration) -> Result<Vec<Vec<u8>>, ExchangeError> {
        let end = Instant::now() + limit;
        if self.rank > 0 {
            self.shared.tell(self.rank, &message(BROUGHT, self.rank, own));
            let all = self.shared.take(0, end).map_err(|lost| match lost {
                Some(lost) => ExchangeError::Lost(lost),
                None => ExchangeError::Missing(Vec::new()),
            })?;
            return split(&all, self.size)
                .ok_or_else(|| ExchangeError::Lost((0, "it sent a malformed message".into())));
        }
        let (mut all, mut missing) = (vec![own.to_vec()], Vec::new());
        for rank in 1..self.size {
            match self.shared.take(rank, end) {
                Ok(bytes) => all.push(bytes),
                Err(Some(lost)) => return Err(ExchangeError::Lost(lost)),
                Err(None) => missing.push(rank),
            }
        }
        if !missing.is_empty() {
            return Err(ExchangeError::Missing(missing));
        }
        let mut joined = Vec::new();
        for bytes in &all {
            joined.extend((bytes.len() as u32).to_le_bytes());
            joined.extend(bytes);
        }
        self.shared.tell(0, &message(ALL, 0, &joined));
        Ok(all)
    }
}

/// Splits concatenated data into `count` parts. The length of each part precedes it.
fn split(mut joined: &[u8], count: usize) -> Option<Vec<Vec<u8>>> {
    let mut all = Vec::with_capacity(count);
    for _ in 0..count {
        let len = word(joined.get(..4)?, 0);
        all.push(joined.get(4..4 + len)?.to_vec());
        joined = &joined[4 + len..];
    }
    joined.is_empty().then_some(all)
}

impl Drop for Links {
    fn drop(&mut self) {
        self.shared.tell(self.rank, &message(LEFT, self.rank, &[]));
        // This ends the listening threads.
        for (_, stream) in self.shared.peers().drain(..) {
            let _ = stream.shutdown(Shutdown::Write);
        }
    }
}

/// Accepts the connections of all other ranks. The first rank calls it.
fn accept(group: &Group, end: Instant, id: &[u8]) -> Result<Vec<(usize, TcpStream)>, RendezvousError> {
    let failed = |what: &str, error: io::Error| RendezvousError::Other(format!("{what} port {}: {error}", group.port));
    let is_local = matches!(group.address.as_str(), "127.0.0.1" | "localhost");
    let own = if is_local {
        Ipv4Addr::LOCALHOST
    } else {
        Ipv4Addr::UNSPECIFIED
    };
    let mut peers: Vec<(usize, TcpStream)> = Vec::with_capacity(group.size - 1);
    if group.size == 1 {
        return Ok(peers);
    }
    let listener = TcpListener::bind((IpAddr::from(own), group.port))
        .map_err(|e| failed("cannot listen for other ranks (MASTER_PORT selects another port) at", e))?;
    listener.set_nonblocking(true).map_err(|e| failed("waiting at", e))?;
    while peers.len() + 1 < group.size {
        let stream = match listener.accept() {
            Ok((stream, _)) => stream,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock && Instant::now() < end => {
                thread::sleep(RETRY_INTERVAL / 5);
                continue;
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                let is_missing = |rank: &usize| !peers.iter().any(|(peer, _)| peer == rank);
                return Err(RendezvousError::Missing((1..group.size).filter(is_missing).collect()));
            }
            Err(error) => return Err(failed("waiting at", error)),
        };
        // A connection with another first message is not from a rank: ignore it.
        let Ok((rank, size, mut stream)) = greeting(stream) else {
            continue;
        };
        let refusal = match rank {
            _ if size != group.size => Some(format!("rank 0 expects {} ranks, found {size}", group.size)),
            rank if rank == 0 || rank >= size => Some(format!("rank {rank} does not exist")),
            rank if peers.iter().any(|(peer, _)| *peer == rank) => Some(format!("rank {rank} is connected already")),
            _ => None,
        };
        match refusal {
            Some(why) => {
                let _ = stream.write_all(&ending(0, &why));
                return Err(RendezvousError::Other(format!(
                    "rank {rank} of {size} connected, but {why}"
                )));
            }
            None => peers.push((rank, stream)),
        }
    }
    for (rank, stream) in &mut peers {
        let sent = stream
            .write_all(&message(LEFT, *rank, &[]))
            .and_then(|()| stream.write_all(id));
        sent.map_err(|error| RendezvousError::Other(format!("rank {rank} disconnected: {error}")))?;
    }
    Ok(peers)
}

/// Receives the first message of a rank, and returns the rank and the size of its group.
fn greeting(mut stream: TcpStream) -> io::Result<(usize, usize, TcpStream)> {
    stream.set_nonblocking(false)?;
    stream.set_read_timeout(Some(GREETING_TIMEOUT))?;
    stream.set_nodelay(true)?;
    let mut words = [0; 24];
    stream.read_exact(&mut words)?;
    if words[..16] != GREETING[..] {
        return Err(io::ErrorKind::InvalidData.into());
    }
    stream.set_read_timeout(None)?;
    Ok((word(&words, 16), word(&words, 20), stream))
}

/// Connects a rank to the first rank. The first rank answers when all ranks are connected.
fn call<const N: usize>(group: &Group, end: Instant) -> Result<([u8; N], TcpStream), RendezvousError> {
    let place = (group.address.as_str(), group.port);
    let left = || end.saturating_duration_since(Instant::now());
    let mut stream = loop {
        let places = place.to_socket_addrs().map_err(|error| {
            RendezvousError::Other(format!(
                "cannot resolve the address '{}' of rank 0: {error}",
                group.address
            ))
        })?;
        let connected = places.into_iter().find_map(|place| {
            let wait = left().clamp(Duration::from_millis(1), GREETING_TIMEOUT);
            TcpStream::connect_timeout(&place, wait).ok()
        });
        match connected {
            Some(stream) => break stream,
            None if left().is_zero() => return Err(RendezvousError::Missing(vec![0])),
            None => thread::sleep(RETRY_INTERVAL),
        }
    };
    let mut words = GREETING.to_vec();
    words.extend((group.rank as u32).to_le_bytes());
    words.extend((group.size as u32).to_le_bytes());
    let mut id = [0; N];
    let mut talk = || {
        stream.set_nodelay(true)?;
        stream.write_all(&words)?;
        stream.set_read_timeout(Some(left().max(Duration::from_millis(1))))?;
        let (kind, _, why) = read_message(&mut stream)?;
        if kind == LEFT {
            stream.read_exact(&mut id)?;
        }
        stream.set_read_timeout(None)?;
        Ok::<_, io::Error>((kind, why))
    };
    match talk() {
        Ok((LEFT, _)) => Ok((id, stream)),
        Ok((_, why)) => Err(RendezvousError::Other(String::from_utf8_lossy(&why).into_owned())),
        Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {
            // The first rank is running, but still waits for other ranks.
            Err(RendezvousError::Missing(Vec::new()))
        }
        Err(error) => Err(RendezvousError::Other(format!("rank 0 disconnected: {error}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_secs(20);

    /// Returns the groups of all ranks, with an unused port.
    fn groups(size: usize) -> Vec<Group> {
        let port = TcpListener::bind("127.0.0.1:0")
            .and_then(|l| l.local_addr())
            .expect("a port")
            .port();
        let group = |rank| Group {
            rank,
            size,
            local_rank: rank,
            address: "127.0.0.1".into(),
            port,
        };
        (0..size).map(group).collect()
    }

    fn connect(group: Group) -> thread::JoinHandle<Result<([u8; 4], Links), RendezvousError>> {
        thread::spawn(move || Links::connect(&group, LIMIT, || Ok(*b"id 7")))
    }

    fn all(size: usize) -> Vec<Links> {
        // The first rank starts last, so the other ranks have to retry.
        let threads: Vec<_> = groups(size).into_iter().rev().map(connect).collect();
        let links = threads.into_iter().rev().map(|thread| {
            let (id, links) = thread.join().expect("no panic").expect("a group");
            assert_eq!(&id, b"id 7");
            links
        });
        links.collect()
    }

    fn wait_for_loss(links: &Links) -> LostRank {
        let (lost, begun) = (links.watcher(), Instant::now());
        while begun.elapsed() < LIMIT {
            if let Some(lost) = lost() {
                return lost;
            }
            thread::sleep(Duration::from_millis(2));
        }
        panic!("nobody was lost");
    }

    #[test]
    fn a_rank_that_ends_is_known_to_all() {
        let links = all(4);
        links[2].end("it is full");
        for rank in [0, 1, 3] {
            assert_eq!(wait_for_loss(&links[rank]), (2, "it is full".to_owned()), "rank {rank}");
        }
        let links = all(3);
        links[0].end("x");
        assert_eq!((wait_for_loss(&links[1]).0, wait_for_loss(&links[2]).0), (0, 0));
    }

    #[test]
    fn a_rank_that_dies_is_known_to_all() {
        let links = all(3);
        // The connection ends without a message, as if the process were killed.
        for (_, stream) in links[1].shared.peers().iter() {
            stream.shutdown(Shutdown::Both).expect("open");
        }
        assert_eq!(wait_for_loss(&links[0]), (1, String::new()));
        assert_eq!(wait_for_loss(&links[2]), (1, String::new()));
    }

    #[test]
    fn each_rank_gets_what_all_bring() {
        let threads: Vec<_> = all(4)
            .into_iter()
            .map(|links| {
                thread::spawn(move || {
                    for round in 0..50_u8 {
                        let own = vec![round; links.rank * 100];
                        let all = links.exchange(&own, LIMIT).expect("all are there");
                        assert_eq!(all, (0..4).map(|rank| vec![round; rank * 100]).collect::<Vec<_>>());
                    }
                    links
                })
            })
            .collect();
        let mut links: Vec<Links> = threads
            .into_iter()
            .map(|thread| thread.join().expect("no panic"))
            .collect();
        // The first rank names a rank that does not arrive. It does not wait for a rank that has left.
        let limit = Duration::from_millis(100);
        assert_eq!(
            links[0].exchange(b"", limit),
            Err(ExchangeError::Missing(vec![1, 2, 3]))
        );
        assert_eq!(links[1].exchange(b"", limit), Err(ExchangeError::Missing(Vec::new())));
        drop(links.remove(2));
        let found = links[0].exchange(b"", LIMIT);
        assert!(
            matches!(&found, Err(ExchangeError::Lost((2, reason))) if reason.contains("exited")),
            "{found:?}"
        );
    }

    #[test]
    fn what_was_joined_otherwise_is_refused() {
        assert_eq!(split(&[1, 0, 0, 0, 7, 0, 0, 0, 0], 2), Some(vec![vec![7], vec![]]));
        for wrong in [
            &[1, 0, 0, 0][..],
            &[9, 0, 0, 0, 7],
            &[0, 0, 0, 0, 0, 0, 0, 0, 1],
            &[0, 0],
        ] {
            assert_eq!(split(wrong, 2), None, "{wrong:?}");
        }
    }

    #[test]
    fn ranks_that_do_not_come_are_named() {
        let limit = Duration::from_millis(300);
        let [first, second, _] = &groups(3)[..] else {
            panic!("three")
        };
        let second = second.clone();
        let thread = thread::spawn(move || Links::connect(&second, Duration::from_secs(2), || Ok([0; 4])).err());
        let found = Links::connect(first, limit, || Ok([0; 4])).err();
        assert!(matches!(found, Some(RendezvousError::Missing(ranks)) if ranks == [2] || ranks == [1, 2]));
        assert!(thread.join().expect("no panic").is_some());
        let alone = groups(2).remove(1);
        assert_eq!(
            Links::connect(&alone, limit, || Ok([0; 4])).err(),
            Some(RendezvousError::Missing(vec![0]))
        );
    }

    #[test]
    fn other_groups_are_refused_and_strangers_are_ignored() {
        let mut groups = groups(2);
        let mut other = groups[1].clone();
        other.size = 3;
        let (first, second) = (connect(groups[0].clone()), connect(other));
        let words = |thread: thread::JoinHandle<Result<([u8; 4], Links), RendezvousError>>| {
            let Err(RendezvousError::Other(why)) = thread.join().expect("no panic") else {
                panic!("refused")
            };
            why
        };
        assert!(words(first).contains("expects 2 ranks, found 3"));
        assert!(words(second).contains("expects 2 ranks, found 3"));
        // A browser connects before the ranks.
        let first = connect(groups[0].clone());
        let mut stranger = loop {
            match TcpStream::connect(("127.0.0.1", groups[0].port)) {
                Ok(stream) => break stream,
                Err(_) => thread::sleep(RETRY_INTERVAL),
            }
        };
        stranger.write_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n").expect("sent");
        let second = connect(groups.remove(1));
        assert!(first.join().expect("no panic").is_ok() && second.join().expect("no panic").is_ok());
    }
}
