//! Connections of the first rank to all others, by TCP: ranks find each other through them, compare what they call, exchange a few
//! bytes, and tell that they end. Tensors do not go this way.

use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Shutdown, TcpListener, TcpStream, ToSocketAddrs};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use super::group::Group;

/// What a rank says first: of another program, or another version of this one, it is something else.
const GREETING: &[u8; 16] = b"meganeura-nccl 1";
/// How long the other side may take for its first words.
const FIRST_WORDS: Duration = Duration::from_secs(10);
/// How often a connection is tried again.
const AGAIN: Duration = Duration::from_millis(50);
/// The longest reason that is passed on.
const MAX_REASON: usize = 4096;

/// The most bytes of a message: what all of many ranks bring.
const MAX_MESSAGE: usize = 64 << 20;

/// Kinds of messages: a rank ends with an error, or after its work; what one brings to an exchange, and what all brought.
const ENDED: u8 = 1;
const LEFT: u8 = 2;
const BROUGHT: u8 = 3;
const ALL: u8 = 4;

/// A rank that ended, and what it said.
pub(super) type Lost = (usize, String);

/// The connections of one rank.
pub(super) struct Links {
    rank: usize,
    size: usize,
    shared: Arc<Shared>,
}

/// What the threads that listen share with whoever asks.
#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
    /// Connections by the rank at the other end.
    peers: Mutex<Vec<(usize, TcpStream)>>,
}

#[derive(Default)]
struct State {
    /// The first rank that was lost.
    lost: Option<Lost>,
    /// Ranks that ended after their work.
    left: Vec<usize>,
    /// What ranks brought that nobody has taken yet.
    brought: Vec<(usize, VecDeque<Vec<u8>>)>,
}

impl State {
    fn queue(&mut self, rank: usize) -> &mut VecDeque<Vec<u8>> {
        let at = self.brought.iter().position(|(known, _)| *known == rank);
        let at = at.unwrap_or_else(|| {
            self.brought.push((rank, VecDeque::new()));
            self.brought.len() - 1
        });
        &mut self.brought[at].1
    }
}

/// Why ranks did not exchange something.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Unexchanged {
    Lost(Lost),
    /// These did not come in time, as far as this rank knows.
    Missing(Vec<usize>),
}

/// Why ranks did not find each other.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Unmet {
    /// These did not come in time.
    Missing(Vec<usize>),
    Other(String),
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn peers(&self) -> MutexGuard<'_, Vec<(usize, TcpStream)>> {
        self.peers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Tells all others but one. Those that cannot be told have ended themselves.
    fn tell(&self, except: usize, message: &[u8]) {
        for (_, stream) in self.peers().iter_mut().filter(|(peer, _)| *peer != except) {
            let _ = stream.write_all(message);
        }
    }

    /// Listens to a rank until it ends.
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
        // Others know the first rank alone.
        if own == 0 && is_first {
            self.tell(peer, &ending(rank, &reason));
        }
    }

    /// What a rank brings next.
    fn take(&self, rank: usize, end: Instant) -> Result<Vec<u8>, Option<Lost>> {
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
                return Err(Some((rank, "it left before the others were done".into())));
            }
            let waited = self.changed.wait_timeout(state, time);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

/// The message of a rank that ends with an error.
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
    /// Connects all ranks of a group with the first one, which gives each of them `id`.
    ///
    /// # Errors
    /// Ranks that do not come within the limit, or that belong to another group; no network.
    pub(super) fn connect<const N: usize>(
        group: &Group,
        limit: Duration,
        id: impl FnOnce() -> Result<[u8; N], String>,
    ) -> Result<([u8; N], Self), Unmet> {
        let end = Instant::now() + limit;
        let (id, peers) = match group.rank {
            0 => {
                let id = id().map_err(Unmet::Other)?;
                (id, accept(group, end, &id)?)
            }
            _ => {
                let (id, stream) = call(group, end)?;
                (id, vec![(0, stream)])
            }
        };
        let shared = Arc::new(Shared::default());
        for (peer, stream) in &peers {
            let (own, peer, shared) = (group.rank, *peer, shared.clone());
            let stream = stream.try_clone().map_err(|error| Unmet::Other(error.to_string()))?;
            let listener = thread::Builder::new().name(format!("rank {peer}"));
            let started = listener.spawn(move || shared.listen(own, peer, stream));
            started.map_err(|error| Unmet::Other(error.to_string()))?;
        }
        *shared.peers() = peers;
        let links = Links {
            rank: group.rank,
            size: group.size,
            shared,
        };
        Ok((id, links))
    }

    /// Tells the first rank that is known to have ended before its work was done, also to other threads.
    pub(super) fn watcher(&self) -> impl Fn() -> Option<Lost> + Send + Sync + 'static {
        let shared = self.shared.clone();
        move || shared.state().lost.clone()
    }

    /// Tells the other ranks that this one ends with an error.
    pub(super) fn end(&self, reason: &str) {
        self.shared.tell(self.rank, &ending(self.rank, reason));
    }

    /// What each rank brings to an exchange, in the order of ranks, on every rank.
    ///
    /// # Errors
    /// A rank that is lost, or that does not come in time.
    pub(super) fn exchange(&self, own: &[u8], limit: Duration) -> Result<Vec<Vec<u8>>, Unexchanged> {
        let end = Instant::now() + limit;
        if self.rank > 0 {
            self.shared.tell(self.rank, &message(BROUGHT, self.rank, own));
            let all = self.shared.take(0, end).map_err(|lost| match lost {
                Some(lost) => Unexchanged::Lost(lost),
                None => Unexchanged::Missing(Vec::new()),
            })?;
            return split(&all, self.size).ok_or_else(|| Unexchanged::Lost((0, "it sent what makes no sense".into())));
        }
        let (mut all, mut missing) = (vec![own.to_vec()], Vec::new());
        for rank in 1..self.size {
            match self.shared.take(rank, end) {
                Ok(bytes) => all.push(bytes),
                Err(Some(lost)) => return Err(Unexchanged::Lost(lost)),
                Err(None) => missing.push(rank),
            }
        }
        if !missing.is_empty() {
            return Err(Unexchanged::Missing(missing));
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

/// What was joined, one after the other with its length in front.
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
        // Ends the threads that listen.
        for (_, stream) in self.shared.peers().drain(..) {
            let _ = stream.shutdown(Shutdown::Write);
        }
    }
}

/// The first rank waits for the others.
fn accept(group: &Group, end: Instant, id: &[u8]) -> Result<Vec<(usize, TcpStream)>, Unmet> {
    let failed = |what: &str, error: io::Error| Unmet::Other(format!("{what} port {}: {error}", group.port));
    let is_local = matches!(group.address.as_str(), "127.0.0.1" | "localhost");
    let own = match is_local {
        true => Ipv4Addr::LOCALHOST,
        false => Ipv4Addr::UNSPECIFIED,
    };
    let mut peers: Vec<(usize, TcpStream)> = Vec::with_capacity(group.size - 1);
    if group.size == 1 {
        return Ok(peers);
    }
    let listener = TcpListener::bind((IpAddr::from(own), group.port))
        .map_err(|e| failed("ranks cannot be waited for (MASTER_PORT chooses another port) at", e))?;
    listener.set_nonblocking(true).map_err(|e| failed("waiting at", e))?;
    while peers.len() + 1 < group.size {
        let stream = match listener.accept() {
            Ok((stream, _)) => stream,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock && Instant::now() < end => {
                thread::sleep(AGAIN / 5);
                continue;
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                let is_missing = |rank: &usize| !peers.iter().any(|(peer, _)| peer == rank);
                return Err(Unmet::Missing((1..group.size).filter(is_missing).collect()));
            }
            Err(error) => return Err(failed("waiting at", error)),
        };
        // Whoever says something else is nobody that is waited for.
        let Ok((rank, size, mut stream)) = greeting(stream) else {
            continue;
        };
        let refusal = match rank {
            _ if size != group.size => Some(format!("the first rank waits for {} ranks, not {size}", group.size)),
            rank if rank == 0 || rank >= size => Some(format!("there is no rank {rank}")),
            rank if peers.iter().any(|(peer, _)| *peer == rank) => Some(format!("there is a rank {rank} already")),
            _ => None,
        };
        match refusal {
            Some(why) => {
                let _ = stream.write_all(&ending(0, &why));
                return Err(Unmet::Other(format!("rank {rank} of {size} came: {why}")));
            }
            None => peers.push((rank, stream)),
        }
    }
    for (rank, stream) in &mut peers {
        let sent = stream
            .write_all(&message(LEFT, *rank, &[]))
            .and_then(|()| stream.write_all(id));
        sent.map_err(|error| Unmet::Other(format!("rank {rank} is gone: {error}")))?;
    }
    Ok(peers)
}

/// What a rank says first.
fn greeting(mut stream: TcpStream) -> io::Result<(usize, usize, TcpStream)> {
    stream.set_nonblocking(false)?;
    stream.set_read_timeout(Some(FIRST_WORDS))?;
    stream.set_nodelay(true)?;
    let mut words = [0; 24];
    stream.read_exact(&mut words)?;
    if words[..16] != GREETING[..] {
        return Err(io::ErrorKind::InvalidData.into());
    }
    stream.set_read_timeout(None)?;
    Ok((word(&words, 16), word(&words, 20), stream))
}

/// Another rank connects with the first one, which answers once all are there.
fn call<const N: usize>(group: &Group, end: Instant) -> Result<([u8; N], TcpStream), Unmet> {
    let place = (group.address.as_str(), group.port);
    let left = || end.saturating_duration_since(Instant::now());
    let mut stream = loop {
        let places = place.to_socket_addrs().map_err(|error| {
            Unmet::Other(format!(
                "the first rank's address '{}' is not known: {error}",
                group.address
            ))
        })?;
        let connected = places.into_iter().find_map(|place| {
            let wait = left().clamp(Duration::from_millis(1), FIRST_WORDS);
            TcpStream::connect_timeout(&place, wait).ok()
        });
        match connected {
            Some(stream) => break stream,
            None if left().is_zero() => return Err(Unmet::Missing(vec![0])),
            None => thread::sleep(AGAIN),
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
        Ok((_, why)) => Err(Unmet::Other(String::from_utf8_lossy(&why).into_owned())),
        Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {
            // The first rank is there, and waits for others.
            Err(Unmet::Missing(Vec::new()))
        }
        Err(error) => Err(Unmet::Other(format!("the first rank is gone: {error}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_secs(20);

    /// A group at a port that nobody uses.
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

    fn connect(group: Group) -> thread::JoinHandle<Result<([u8; 4], Links), Unmet>> {
        thread::spawn(move || Links::connect(&group, LIMIT, || Ok(*b"id 7")))
    }

    fn all(size: usize) -> Vec<Links> {
        // The first one last: the others try again.
        let threads: Vec<_> = groups(size).into_iter().rev().map(connect).collect();
        let links = threads.into_iter().rev().map(|thread| {
            let (id, links) = thread.join().expect("no panic").expect("a group");
            assert_eq!(&id, b"id 7");
            links
        });
        links.collect()
    }

    fn wait_for_loss(links: &Links) -> Lost {
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
        // As when the process is killed: the connection ends without a word.
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
        // One that does not come is named by the first; one that left is not waited for.
        let limit = Duration::from_millis(100);
        assert_eq!(links[0].exchange(b"", limit), Err(Unexchanged::Missing(vec![1, 2, 3])));
        assert_eq!(links[1].exchange(b"", limit), Err(Unexchanged::Missing(Vec::new())));
        drop(links.remove(2));
        let found = links[0].exchange(b"", LIMIT);
        assert!(
            matches!(&found, Err(Unexchanged::Lost((2, reason))) if reason.contains("left")),
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
        assert!(matches!(found, Some(Unmet::Missing(ranks)) if ranks == [2] || ranks == [1, 2]));
        assert!(thread.join().expect("no panic").is_some());
        let alone = groups(2).remove(1);
        assert_eq!(
            Links::connect(&alone, limit, || Ok([0; 4])).err(),
            Some(Unmet::Missing(vec![0]))
        );
    }

    #[test]
    fn other_groups_are_refused_and_strangers_are_ignored() {
        let mut groups = groups(2);
        let mut other = groups[1].clone();
        other.size = 3;
        let (first, second) = (connect(groups[0].clone()), connect(other));
        let words = |thread: thread::JoinHandle<Result<([u8; 4], Links), Unmet>>| {
            let Err(Unmet::Other(why)) = thread.join().expect("no panic") else {
                panic!("refused")
            };
            why
        };
        assert!(words(first).contains("waits for 2 ranks, not 3"));
        assert!(words(second).contains("waits for 2 ranks, not 3"));
        // A browser comes first.
        let first = connect(groups[0].clone());
        let mut stranger = loop {
            match TcpStream::connect(("127.0.0.1", groups[0].port)) {
                Ok(stream) => break stream,
                Err(_) => thread::sleep(AGAIN),
            }
        };
        stranger.write_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n").expect("sent");
        let second = connect(groups.remove(1));
        assert!(first.join().expect("no panic").is_ok() && second.join().expect("no panic").is_ok());
    }
}
