//! Admission of new connections. An open connection may be closed for a new one.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tokio::sync::Notify;

use super::{Activity, Limits};
use crate::lock::lock;

/// Number of slots in addition to the maximum number of connections, for the monitoring paths `/health` and `/metrics`.
pub(super) const RESERVED: usize = 16;

/// Age below which a connection is new. Its request may still be on its way.
const NEW: Duration = Duration::from_secs(2);

/// Number of waiting connections that an address may have before it loses one for a new connection of another address. A
/// browser has six.
const FAIR: usize = 8;

/// Returns the network of an address, which one client controls: an IPv4 address, or 64 bits of an IPv6 address.
fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V4(address) => address.into(),
        IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() >> 64 << 64).into(),
    }
}

/// An open connection.
pub(super) struct Entry {
    pub(super) address: IpAddr,
    pub(super) since: Instant,
    pub(super) activity: Activity,
    pub(super) close: Arc<Notify>,
}

/// Open connections.
#[derive(Default)]
pub(super) struct Registry {
    pub(super) next: u64,
    pub(super) open: HashMap<u64, Entry>,
}

/// Decision whether a new connection is accepted.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Admission {
    Admitted,
    /// Accepted into a reserved slot.
    Reserved,
    Refused,
}

impl Registry {
    /// Decides whether to accept a new connection. If a limit is reached, closes a connection that waits for data or is slow: of
    /// the same address if its own limit is reached, otherwise of the address with the most such connections.
    pub(super) fn admit(&mut self, address: IpAddr, limits: &Limits) -> Admission {
        // A limit that is not below the one of all connections must not keep an address out of the reserved slots.
        let has_own_limit = limits.connections_per_address < limits.connections;
        let is_same = |entry: &&Entry| network(entry.address) == network(address);
        let of_address = self.open.values().filter(is_same).count();
        if has_own_limit && of_address >= limits.connections_per_address && !self.close_one(Some(address), false) {
            return Admission::Refused;
        }
        let used = self.open.values().filter(|entry| !entry.activity.is_reserved).count();
        if used < limits.connections || self.close_one(None, false) {
            return Admission::Admitted;
        }
        if self.open.len() < limits.connections + RESERVED || self.close_one(None, true) {
            return Admission::Reserved;
        }
        Admission::Refused
    }

    /// Closes the connections in a phase that have no response left to send.
    pub(super) fn close_all(&mut self, phase: u8) {
        for entry in self.open.values() {
            let activity = &entry.activity;
            if activity.may_be_closed() && activity.phase.load(Ordering::Relaxed) == phase {
                entry.close.notify_one();
            }
        }
    }

    /// Closes a connection among the reserved or the ordinary slots: the oldest one that waits for data, unless it is new;
    /// otherwise the one whose client is the latest in reading its answers; otherwise the oldest new one that waits. If
    /// `address` is `None`, considers the network with the most such connections if it has more than [`FAIR`], otherwise
    /// all. Returns true if a connection was closed.
    pub(super) fn close_one(&mut self, address: Option<IpAddr>, is_reserved: bool) -> bool {
        let now = Instant::now();
        let waits = |entry: &Entry| entry.activity.may_be_closed();
        let is_old = |entry: &Entry| now - entry.since >= NEW;
        self.close_first(address, is_reserved, |e| waits(e) && is_old(e), |e| e.since)
            || self.close_first(
                address,
                is_reserved,
                |e| !e.activity.lateness(now).is_zero(),
                |e| Reverse(e.activity.lateness(now)),
            )
            || self.close_first(address, is_reserved, waits, |e| e.since)
    }

    /// Closes the connection with the smallest key, if any may be closed. Returns true if a connection was closed.
    fn close_first<K: Ord>(
        &mut self,
        address: Option<IpAddr>,
        is_reserved: bool,
        may_be_closed: impl Fn(&Entry) -> bool,
        key: impl Fn(&Entry) -> K,
    ) -> bool {
        let closable = |entry: &&Entry| entry.activity.is_reserved == is_reserved && may_be_closed(entry);
        let largest = || {
            let mut counts: HashMap<IpAddr, usize> = HashMap::new();
            for entry in self.open.values().filter(closable) {
                *counts.entry(network(entry.address)).or_default() += 1;
            }
            let most = counts.into_iter().max_by_key(|(_, count)| *count);
            most.filter(|(_, count)| *count > FAIR).map(|(network, _)| network)
        };
        let largest = if address.is_none() { largest() } else { None };
        let is_considered = |entry: &Entry| match address {
            Some(address) => network(entry.address) == network(address),
            None => largest.is_none_or(|largest| network(entry.address) == largest),
        };
        let of_address = self
            .open
            .iter()
            .filter(|(_, entry)| is_considered(entry) && closable(entry));
        let first = of_address.min_by_key(|(_, entry)| key(entry)).map(|(id, _)| *id);
        let Some(entry) = first.and_then(|id| self.open.remove(&id)) else {
            return false;
        };
        entry.close.notify_one();
        true
    }
}

/// Guard that removes a connection from the registry on drop.
pub(super) struct ConnectionEntry {
    pub(super) registry: Arc<Mutex<Registry>>,
    pub(super) id: u64,
}

impl Drop for ConnectionEntry {
    fn drop(&mut self) {
        lock(&self.registry).open.remove(&self.id);
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::watch;

    use super::super::{ANSWERING, IDLE, WORKING, answering};
    use super::*;

    const LIMITS: Limits = Limits {
        connections: 3,
        connections_per_address: 3,
        head_timeout: Duration::from_secs(1),
        write_timeout: Duration::from_secs(1),
        shutdown_timeout: Duration::from_secs(1),
    };

    fn add(registry: &mut Registry, address: [u8; 4], phase: u8, limits: &Limits) -> Admission {
        let admission = registry.admit(address.into(), limits);
        if admission != Admission::Refused {
            let activity = Activity::new(admission == Admission::Reserved, watch::channel(false).1);
            activity.phase.store(phase, Ordering::Relaxed);
            let entry = Entry {
                address: address.into(),
                since: Instant::now(),
                activity,
                close: Arc::default(),
            };
            registry.open.insert(registry.next, entry);
            registry.next += 1;
        }
        admission
    }

    #[test]
    fn connections_that_wait_give_their_places() {
        let mut registry = Registry::default();
        let limits = Limits {
            connections_per_address: 100,
            ..LIMITS
        };
        // The oldest is closed, although another address has more.
        for address in [[1; 4], [2; 4], [2; 4]] {
            assert_eq!(add(&mut registry, address, IDLE, &limits), Admission::Admitted);
        }
        assert_eq!(add(&mut registry, [3; 4], IDLE, &limits), Admission::Admitted);
        assert_eq!(ids(&registry), [1, 2, 3]);
        // Busy connections keep their slots, and the reserved slots fill up.
        registry.open.values().for_each(|entry| entry.activity.start_work());
        for _ in 0..RESERVED {
            assert_eq!(add(&mut registry, [4; 4], WORKING, &limits), Admission::Reserved);
        }
        assert_eq!(add(&mut registry, [4; 4], WORKING, &limits), Admission::Refused);
        assert_eq!(registry.open.len(), 3 + RESERVED);
        // A silent connection in a reserved slot gives it to a new one.
        let reserved = registry.open.values().find(|entry| entry.activity.is_reserved);
        let activity = &reserved.expect("one").activity;
        activity.phase.store(IDLE, Ordering::Relaxed);
        assert_eq!(add(&mut registry, [5; 4], WORKING, &limits), Admission::Reserved);
        assert_eq!(registry.open.len(), 3 + RESERVED);
    }

    fn ids(registry: &Registry) -> Vec<u64> {
        let mut open: Vec<u64> = registry.open.keys().copied().collect();
        open.sort_unstable();
        open
    }

    fn age(registry: &mut Registry, id: u64, age: Duration) {
        registry.open.get_mut(&id).expect("open").since = Instant::now() - age;
    }

    #[test]
    fn an_address_with_too_many_connections_loses_its_oldest() {
        let mut registry = Registry::default();
        let limits = Limits {
            connections: FAIR + 2,
            connections_per_address: 100,
            ..LIMITS
        };
        add(&mut registry, [1; 4], IDLE, &limits);
        (0..=FAIR).for_each(|_| _ = add(&mut registry, [2; 4], IDLE, &limits));
        for id in 0..limits.connections as u64 {
            age(&mut registry, id, Duration::from_secs(100 - id));
        }
        assert_eq!(add(&mut registry, [3; 4], IDLE, &limits), Admission::Admitted);
        assert!(registry.open.contains_key(&0) && !registry.open.contains_key(&1));
        // Now the address has at most the fair number.
        assert_eq!(add(&mut registry, [3; 4], IDLE, &limits), Admission::Admitted);
        assert!(!registry.open.contains_key(&0));
    }

    #[test]
    fn new_connections_keep_their_places_while_clients_are_late() {
        let mut registry = Registry::default();
        for phase in [ANSWERING, IDLE, ANSWERING] {
            assert_eq!(add(&mut registry, [1; 4], phase, &LIMITS), Admission::Admitted);
        }
        // A client of public pages is late at once, the other one is within its tolerance.
        let since = Instant::now() - Duration::from_millis(500);
        for id in [0, 2] {
            registry.open[&id].activity.pace().wait(since);
        }
        registry.open[&2].activity.is_trusted.store(true, Ordering::Relaxed);
        assert_eq!(add(&mut registry, [2; 4], WORKING, &LIMITS), Admission::Admitted);
        assert_eq!(ids(&registry), [1, 2, 3]);
        // Nobody is late now, so that the new one has to go.
        assert_eq!(add(&mut registry, [2; 4], WORKING, &LIMITS), Admission::Admitted);
        assert_eq!(ids(&registry), [2, 3, 4]);
    }

    #[test]
    fn a_network_of_addresses_is_one_client() {
        let v6 = |last: u16| IpAddr::from([0x2001, 0xdb8, 0, 1, 0, 0, 0, last]);
        assert_eq!(network(v6(1)), network(v6(2)));
        assert_ne!(network(v6(1)), network([0x2001, 0xdb8, 0, 2, 0, 0, 0, 1].into()));
        assert_eq!(network([1, 2, 3, 4].into()), IpAddr::from([1, 2, 3, 4]));
        let mapped = IpAddr::from([0, 0, 0, 0, 0, 0xffff, 0x0102, 0x0304]);
        assert_eq!(network(mapped), IpAddr::from([1, 2, 3, 4]));
    }

    #[test]
    fn busy_connections_of_one_address_leave_the_reserved_slots() {
        let mut registry = Registry::default();
        for _ in 0..LIMITS.connections {
            assert_eq!(add(&mut registry, [1; 4], WORKING, &LIMITS), Admission::Admitted);
        }
        assert_eq!(add(&mut registry, [1; 4], IDLE, &LIMITS), Admission::Reserved);
    }

    #[test]
    fn connections_with_unsent_bytes_keep_their_places() {
        let mut registry = Registry::default();
        for _ in 0..3 {
            assert_eq!(add(&mut registry, [1; 4], IDLE, &LIMITS), Admission::Admitted);
        }
        let activity = registry.open[&0].activity.clone();
        drop(answering(axum::response::Response::default(), activity.clone()));
        assert_eq!(add(&mut registry, [1; 4], IDLE, &LIMITS), Admission::Admitted);
        let mut open: Vec<u64> = registry.open.keys().copied().collect();
        open.sort_unstable();
        assert_eq!(open, [0, 2, 3]);
        activity.flushed();
        assert_eq!(add(&mut registry, [1; 4], IDLE, &LIMITS), Admission::Admitted);
        assert!(!registry.open.contains_key(&0));
    }

    #[test]
    fn clients_that_read_slowly_lose_their_places() {
        let mut registry = Registry::default();
        for _ in 0..LIMITS.connections {
            assert_eq!(add(&mut registry, [1; 4], ANSWERING, &LIMITS), Admission::Admitted);
        }
        let long_ago = Instant::now() - Duration::from_secs(20);
        registry
            .open
            .values()
            .for_each(|entry| entry.activity.is_trusted.store(true, Ordering::Relaxed));
        for (id, seconds) in [(0, 5), (1, 10), (2, 0)] {
            let since = long_ago + Duration::from_secs(20 - seconds);
            registry.open[&id].activity.pace().wait(since);
        }
        for left in [vec![0, 2, 3], vec![2, 3, 4]] {
            assert_eq!(add(&mut registry, [2; 4], ANSWERING, &LIMITS), Admission::Admitted);
            let mut open: Vec<u64> = registry.open.keys().copied().collect();
            open.sort_unstable();
            assert_eq!(open, left);
        }
        // The client with the index 2 is late by less than the tolerance.
        assert_eq!(add(&mut registry, [2; 4], ANSWERING, &LIMITS), Admission::Reserved);
    }

    #[test]
    fn one_address_has_its_own_limit() {
        let mut registry = Registry::default();
        let limits = Limits {
            connections: 10,
            connections_per_address: 2,
            ..LIMITS
        };
        assert_eq!(add(&mut registry, [1; 4], WORKING, &limits), Admission::Admitted);
        assert_eq!(add(&mut registry, [1; 4], IDLE, &limits), Admission::Admitted);
        // The one that waits is closed.
        assert_eq!(add(&mut registry, [1; 4], WORKING, &limits), Admission::Admitted);
        assert_eq!(registry.open.len(), 2);
        assert_eq!(add(&mut registry, [1; 4], IDLE, &limits), Admission::Refused);
        assert_eq!(add(&mut registry, [2; 4], IDLE, &limits), Admission::Admitted);
    }
}
