//! What the server has counted, and how it is written for Prometheus and those who read what it reads.

use std::collections::BTreeMap;
use std::fmt::{Display, Write};

use super::client::{Outcome, Traffic};
use super::context::Context;
use super::histogram::Histogram;
use super::service::Service;
use crate::protocol::deflate::Compression;
use crate::protocol::{Cause, CloseReason, OpCode, Rejection, StatusCode, Time};
use crate::sys;

/// The type of the text exposition format.
pub(super) const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// The names of [`Outcome`]s, in their order.
const OUTCOMES: [&str; 4] = ["websocket", "http", "refused", "unused"];

/// Opcodes with the names that RFC 6455 section 11.8 gives them.
const OPCODES: [(OpCode, &str); 6] = [
    (OpCode::Continuation, "continuation"),
    (OpCode::Text, "text"),
    (OpCode::Binary, "binary"),
    (OpCode::Close, "close"),
    (OpCode::Ping, "ping"),
    (OpCode::Pong, "pong"),
];

/// What is counted from the start of the loop on.
#[derive(Clone, Debug, Default)]
pub(super) struct Counters {
    /// Connections that were taken.
    pub(super) accepted: u64,
    /// Responses by status, 101 included.
    responses: BTreeMap<u16, u64>,
    /// Requests that were refused, by reason.
    rejections: BTreeMap<&'static str, u64>,
    /// Connections that have ended, in the order of [`OUTCOMES`].
    outcomes: [u64; OUTCOMES.len()],
    /// Ends of clients, in the order of [`Cause::ALL`].
    disconnects: [u64; Cause::ALL.len()],
    /// Clients that broke the protocol, by the code they were closed with.
    violations: BTreeMap<u16, u64>,
    /// Clients that did not end their connection in time.
    pub(super) close_timeouts: u64,
    /// Turns in which a client had as much to read as was taken from it.
    pub(super) turn_reads: u64,
    /// Turns in which a listener had as many connections as were taken.
    pub(super) turn_accepts: u64,
    /// What went through connections that have ended.
    ended: Traffic,
    /// How long turns of the loop took, waiting not counted.
    pub(super) turns: Histogram,
}

impl Counters {
    pub(super) fn responded(&mut self, status: StatusCode) {
        *self.responses.entry(status.0).or_default() += 1;
    }

    /// Counts a request that was refused, and the response that said so.
    pub(super) fn refused(&mut self, rejection: &Rejection) {
        self.counted(rejection);
        self.responded(rejection.status);
    }

    /// Counts a request that was refused, by its reason alone.
    pub(super) fn counted(&mut self, rejection: &Rejection) {
        *self.rejections.entry(rejection.reason()).or_default() += 1;
    }

    pub(super) fn disconnected(&mut self, ending: &CloseReason) {
        let mut causes = Cause::ALL.iter();
        if let Some(at) = causes.position(|cause| *cause == ending.cause) {
            self.disconnects[at] += 1;
        }
        if ending.cause == Cause::ProtocolError {
            *self.violations.entry(ending.code.0).or_default() += 1;
        }
    }

    /// Counts the end of a connection of any kind.
    pub(super) fn ended(&mut self, traffic: Traffic, outcome: Outcome) {
        self.ended.add(traffic);
        self.outcomes[outcome as usize] += 1;
    }
}

/// Metrics in the text exposition format. Families of one name that several services write become one.
#[derive(Debug, Default)]
pub struct Metrics {
    families: Vec<Family>,
    /// A label for all that is added, as `name="value"`.
    label: String,
}

#[derive(Debug)]
struct Family {
    name: String,
    /// The lines that say what it is.
    head: String,
    samples: String,
}

impl Metrics {
    /// Gives all that is added from here on a label; an empty value is none.
    pub fn set_label(&mut self, name: &str, value: &str) {
        self.label = if value.is_empty() {
            String::new()
        } else {
            label(name, value)
        };
    }

    /// A number that only grows. Its name ends in `_total`.
    pub fn counter(&mut self, name: &str, help: &str, value: impl Display) {
        self.begin(name, help, "counter").sample("", "", value);
    }

    /// A number that only grows, for each value of a label.
    pub fn counters<V: Display>(
        &mut self,
        name: &str,
        help: &str,
        by: &str,
        values: impl IntoIterator<Item = (impl Display, V)>,
    ) {
        let mut family = self.begin(name, help, "counter");
        for (of, value) in values {
            family.sample("", &label(by, &of.to_string()), value);
        }
    }

    /// A number that comes and goes.
    pub fn gauge(&mut self, name: &str, help: &str, value: impl Display) {
        self.begin(name, help, "gauge").sample("", "", value);
    }

    /// Numbers that come and go, or are as they are, for each value of a label.
    pub fn gauges<V: Display>(
        &mut self,
        name: &str,
        help: &str,
        by: &str,
        values: impl IntoIterator<Item = (impl Display, V)>,
    ) {
        let mut family = self.begin(name, help, "gauge");
        for (of, value) in values {
            family.sample("", &label(by, &of.to_string()), value);
        }
    }

    /// Durations by buckets, in seconds. The name ends in `_seconds`.
    pub fn histogram(&mut self, name: &str, help: &str, histogram: &Histogram) {
        let mut family = self.begin(name, help, "histogram");
        for (bound, count) in histogram.buckets() {
            let bound = label("le", &bound.as_secs_f64().to_string());
            family.sample("_bucket", &bound, count);
        }
        family.sample("_bucket", &label("le", "+Inf"), histogram.count());
        family.sample("_sum", "", histogram.sum().as_secs_f64());
        family.sample("_count", "", histogram.count());
    }

    fn begin(&mut self, name: &str, help: &str, kind: &str) -> Samples<'_> {
        let known = self.families.iter().position(|family| family.name == name);
        let at = known.unwrap_or_else(|| {
            self.families.push(Family {
                name: name.to_owned(),
                head: format!("# HELP {name} {help}\n# TYPE {name} {kind}\n"),
                samples: String::new(),
            });
            self.families.len() - 1
        });
        Samples {
            family: &mut self.families[at],
            label: &self.label,
        }
    }

    /// All of it.
    fn into_text(self) -> String {
        let families = self.families.into_iter();
        families
            .flat_map(|family| [family.head, family.samples])
            .collect()
    }
}

/// A family that samples are added to.
struct Samples<'a> {
    family: &'a mut Family,
    label: &'a str,
}

impl Samples<'_> {
    fn sample(&mut self, suffix: &str, label: &str, value: impl Display) {
        let Family { name, samples, .. } = &mut *self.family;
        let comma = if label.is_empty() || self.label.is_empty() {
            ""
        } else {
            ","
        };
        let labels = [self.label, comma, label].concat();
        // Writing to a string cannot fail.
        let _ = if labels.is_empty() {
            writeln!(samples, "{name}{suffix} {value}")
        } else {
            writeln!(samples, "{name}{suffix}{{{labels}}} {value}")
        };
    }
}

/// A label with its value, escaped as the format asks for.
fn label(name: &str, value: &str) -> String {
    let value = value
        .replace('\\', r"\\")
        .replace('"', r#"\""#)
        .replace('\n', r"\n");
    format!("{name}=\"{value}\"")
}

/// All metrics of a server and its service.
pub(super) fn write<S: Service>(ctx: &Context, service: &S) -> String {
    let mut out = Metrics::default();
    let counters = &ctx.core.env.counters;
    let mut traffic = counters.ended;
    let mut queued = 0;
    for client in ctx.core.registry.iter() {
        traffic.add(client.traffic);
        queued += client.queued();
    }
    out.gauges(
        "outrigger_build_info",
        "The version that runs.",
        "version",
        [(env!("CARGO_PKG_VERSION"), 1)],
    );
    out.gauge(
        "outrigger_uptime_seconds",
        "Since the loop began to turn.",
        ctx.now().since(Time::default()).as_secs_f64(),
    );
    out.gauge(
        "outrigger_clients",
        "WebSocket clients.",
        ctx.core.registry.client_count(),
    );
    out.gauge(
        "outrigger_connections",
        "Connections of every kind, those in their handshake included.",
        ctx.core.registry.len(),
    );
    out.gauge(
        "outrigger_pending_calls",
        "HTTP calls that wait for their answer, and streams of events; not this one.",
        ctx.core.env.calls.saturating_sub(1),
    );
    out.counter(
        "outrigger_connections_accepted_total",
        "Connections that were taken.",
        counters.accepted,
    );
    out.counters(
        "outrigger_responses_total",
        "Responses to requests by status; 101 is a client that was let in.",
        "code",
        counters.responses.iter(),
    );
    out.counters(
        "outrigger_refusals_total",
        "Requests that were refused before a service was called, by reason.",
        "reason",
        counters.rejections.iter(),
    );
    out.counters(
        "outrigger_connections_ended_total",
        "Connections that have ended, by what they were used for.",
        "outcome",
        OUTCOMES.iter().zip(counters.outcomes),
    );
    out.counters(
        "outrigger_disconnects_total",
        "Ends of clients by cause.",
        "cause",
        Cause::ALL.iter().zip(counters.disconnects),
    );
    out.counters(
        "outrigger_protocol_errors_total",
        "Clients that broke the protocol, by the code they were closed with; 1009 is a message that is too long.",
        "code",
        counters.violations.iter(),
    );
    out.counter(
        "outrigger_close_timeouts_total",
        "Clients that did not answer CLOSE and leave in time.",
        counters.close_timeouts,
    );
    out.counters(
        "outrigger_received_frames_total",
        "Frames of clients.",
        "opcode",
        OPCODES.map(|(opcode, name)| (name, ctx.core.env.protocol.frames.of(opcode))),
    );
    for (name, help, value) in [
        (
            "outrigger_received_bytes_total",
            "Bytes read from sockets.",
            traffic.bytes_in,
        ),
        (
            "outrigger_sent_bytes_total",
            "Bytes written to sockets.",
            traffic.bytes_out,
        ),
        (
            "outrigger_received_messages_total",
            "Data messages of clients.",
            traffic.messages_in,
        ),
        (
            "outrigger_sent_messages_total",
            "Data messages to clients.",
            traffic.messages_out,
        ),
    ] {
        out.counter(name, help, value);
    }
    out.gauge(
        "outrigger_queued_bytes",
        "Output that clients have not taken yet.",
        queued,
    );
    out.counters(
        "outrigger_turn_limits_total",
        "Times that a turn of the loop took as much as it may: bytes of one client, connections of one listener.",
        "work",
        [
            ("bytes", counters.turn_reads),
            ("accepts", counters.turn_accepts),
        ],
    );
    if let Some(compression) = &ctx.core.env.protocol.compression {
        let counts = compression.counts();
        out.counters(
            "outrigger_compressed_messages_total",
            "Messages that went compressed; one to many clients is counted once.",
            "direction",
            [("in", counts.messages_in), ("out", counts.messages_out)],
        );
        out.counters(
            "outrigger_compressed_bytes_total",
            "Their bytes on the wire.",
            "direction",
            [("in", counts.compressed_in), ("out", counts.compressed_out)],
        );
        out.counters(
            "outrigger_uncompressed_bytes_total",
            "Their bytes as messages.",
            "direction",
            [("in", counts.plain_in), ("out", counts.plain_out)],
        );
        out.gauge(
            "outrigger_compression_reserved_bytes",
            "Memory that clients with context takeover may come to use.",
            compression.reserved(),
        );
    }
    let limits = ctx.config().limits;
    out.gauges(
        "outrigger_limit",
        "What the server is held to: counts and bytes.",
        "limit",
        [
            ("max_clients", ctx.config().max_clients),
            (
                "max_clients_per_address",
                ctx.config().max_clients_per_address.unwrap_or(0),
            ),
            ("max_head", limits.max_head),
            ("max_headers", limits.max_headers),
            ("max_message", limits.max_message),
            ("max_outbound", ctx.config().max_outbound),
            (
                "deflate_memory",
                ctx.core
                    .env
                    .protocol
                    .compression
                    .as_ref()
                    .map_or(0, Compression::memory),
            ),
            (
                "rate_limit",
                ctx.config()
                    .rate_limit
                    .map_or(0, |rate| rate.get() as usize),
            ),
            ("turn_bytes", ctx.config().turn_bytes),
            ("turn_accepts", ctx.config().turn_accepts),
        ],
    );
    out.histogram(
        "outrigger_loop_turn_seconds",
        "Turns of the event loop, waiting not counted.",
        &counters.turns,
    );
    if let Some((cpu, memory)) = sys::usage(std::process::id()) {
        out.counter(
            "process_cpu_seconds_total",
            "Processor time of this process.",
            cpu.as_secs_f64(),
        );
        out.gauge(
            "process_resident_memory_bytes",
            "Memory that this process holds.",
            memory,
        );
    }
    service.metrics(&mut out);
    out.into_text()
}
