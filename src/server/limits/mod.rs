//! What clients may take: the number of clients and calls, and the memory that they make the server hold.

pub(super) mod capacity;
pub(super) mod memory;
pub(super) mod relief;
