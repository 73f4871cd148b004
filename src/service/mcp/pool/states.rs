//! Which process knows the state of a call with several rounds.
//!
//! A server may ask for input: it answers with a `requestState`, and the client repeats the request with it. Many servers seal this
//! state with a key of their process, so the request goes back to that process.

use std::collections::{HashMap, VecDeque};
use std::hash::{DefaultHasher, Hash, Hasher};

/// The maximum number of states that are remembered.
const MAX_STATES: usize = 4096;

/// The processes that have issued states. A state that is not known goes to any process.
#[derive(Debug, Default)]
pub(super) struct States {
    slots: HashMap<u64, usize>,
    /// The states, the oldest first.
    order: VecDeque<u64>,
}

impl States {
    /// Remembers that the process of a slot has issued a state.
    pub(super) fn learn(&mut self, state: &str, slot: usize) {
        let hash = hash(state);
        if self.slots.insert(hash, slot).is_some() {
            return;
        }
        self.order.push_back(hash);
        if self.order.len() > MAX_STATES
            && let Some(oldest) = self.order.pop_front()
        {
            self.slots.remove(&oldest);
        }
    }

    /// The slot of the process that has issued a state.
    pub(super) fn slot_of(&self, state: &str) -> Option<usize> {
        self.slots.get(&hash(state)).copied()
    }
}

fn hash(state: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    state.hash(&mut hasher);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_states_are_forgotten() {
        let mut states = States::default();
        for number in 0..MAX_STATES + 10 {
            states.learn(&number.to_string(), number % 3);
            states.learn(&number.to_string(), number % 3);
        }
        assert_eq!(states.slot_of("9"), None);
        assert_eq!(states.slot_of("10"), Some(1));
        assert_eq!(
            (states.slots.len(), states.order.len()),
            (MAX_STATES, MAX_STATES)
        );
    }
}
