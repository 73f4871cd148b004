//! What operators see of a server: status, metrics, health, and the figures of the console's charts.

pub(super) mod client_query;
pub(super) mod counters;
pub(super) mod exposition;
pub(super) mod health;
pub(super) mod history;
pub(super) mod server_metrics;
pub(super) mod status;
