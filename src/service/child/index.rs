//! The children of a service, found by the sources and timers of their events.

use std::hash::Hash;

use crate::service::id_map::IdMap;
use crate::{Metrics, SourceId, TimerId};

/// An event of a child process.
#[derive(Clone, Copy, Debug)]
pub(crate) enum ChildInput {
    /// A stream is ready, or the process has exited.
    Ready(SourceId),
    /// The timer of the child has expired.
    Timer(TimerId),
}

/// The children of a service by the sources and timers of their events. Every method takes constant time.
#[derive(Debug)]
pub(crate) struct ChildIndex<K> {
    sources: IdMap<SourceId, K>,
    timers: IdMap<TimerId, K>,
    children: IdMap<K, Handles>,
}

/// What a child is found by.
#[derive(Debug)]
struct Handles {
    sources: Vec<SourceId>,
    timer: Option<TimerId>,
}

impl<K> Default for ChildIndex<K> {
    fn default() -> Self {
        Self {
            sources: IdMap::default(),
            timers: IdMap::default(),
            children: IdMap::default(),
        }
    }
}

impl<K: Copy + Eq + Hash> ChildIndex<K> {
    /// Adds a child, with all sources that it has. A child that had the key before is removed.
    pub(crate) fn add(
        &mut self,
        key: K,
        sources: impl IntoIterator<Item = SourceId>,
        timer: Option<TimerId>,
    ) {
        self.remove(key);
        let sources: Vec<SourceId> = sources.into_iter().collect();
        let found = sources.iter().map(|source| (*source, key));
        self.sources.extend(found);
        let handles = Handles {
            sources,
            timer: None,
        };
        self.children.insert(key, handles);
        self.set_timer(key, timer);
    }

    /// The child that an event belongs to. `None` if it belongs to none, or to one that was removed.
    pub(crate) fn find(&self, input: ChildInput) -> Option<K> {
        match input {
            ChildInput::Ready(source) => self.sources.get(&source).copied(),
            ChildInput::Timer(timer) => self.timers.get(&timer).copied(),
        }
    }

    /// Notes the timer of a child, which changes when it handles an event and when it is stopped.
    pub(crate) fn set_timer(&mut self, key: K, timer: Option<TimerId>) {
        let Some(handles) = self.children.get_mut(&key) else {
            return;
        };
        let before = std::mem::replace(&mut handles.timer, timer);
        if before != timer {
            before.map(|before| self.timers.remove(&before));
            timer.map(|timer| self.timers.insert(timer, key));
        }
    }

    /// Gives a child another key, if it has not been removed.
    #[cfg(feature = "mcp")]
    pub(crate) fn rename(&mut self, key: K, new: K) {
        if let Some(handles) = self.children.get(&key) {
            let (sources, timer) = (handles.sources.clone(), handles.timer);
            self.remove(key);
            self.add(new, sources, timer);
        }
    }

    /// Removes a child that has exited.
    pub(crate) fn remove(&mut self, key: K) {
        if let Some(handles) = self.children.remove(&key) {
            for source in handles.sources {
                self.sources.remove(&source);
            }
            handles.timer.map(|timer| self.timers.remove(&timer));
        }
    }
}

/// The metrics of every service with programs.
pub(crate) fn process_metrics(out: &mut Metrics, running: usize, started: u64) {
    out.gauge(
        "outrigger_processes_running",
        "Running programs, including those that are being stopped.",
        running,
    );
    out.counter(
        "outrigger_processes_started_total",
        "Programs started.",
        started,
    );
}
