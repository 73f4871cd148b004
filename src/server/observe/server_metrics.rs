//! The metrics of the server and its services, for `/metrics`.

use super::counters::OUTCOMES;
#[cfg(feature = "tls")]
use super::counters::TLS_OUTCOMES;
use super::exposition::Metrics;
use crate::protocol::deflate::Compression;
use crate::protocol::{Cause, OpCode, Time};
use crate::server::context::Context;
use crate::server::service::{Service, held_by};
use crate::sys;

/// The media type of the text exposition format.
pub(crate) const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Opcodes with their names in RFC 6455 section 11.8.
const OPCODES: [(OpCode, &str); 6] = [
    (OpCode::Continuation, "continuation"),
    (OpCode::Text, "text"),
    (OpCode::Binary, "binary"),
    (OpCode::Close, "close"),
    (OpCode::Ping, "ping"),
    (OpCode::Pong, "pong"),
];

/// Writes the metrics of a server and its service. `is_ready` says whether GET /readyz answers 200.
pub(crate) fn write<S: Service>(ctx: &Context, service: &S, is_ready: bool) -> String {
    let mut out = Metrics::default();
    write_state(&mut out, ctx, service, is_ready);
    write_connections(&mut out, ctx);
    write_ends(&mut out, ctx);
    #[cfg(feature = "tls")]
    write_tls(&mut out, ctx);
    write_traffic(&mut out, ctx);
    write_topics(&mut out, ctx);
    write_held(&mut out, ctx, service);
    write_resumptions(&mut out, ctx);
    write_upgrades(&mut out, ctx);
    write_compression(&mut out, ctx);
    write_limits(&mut out, ctx);
    write_times(&mut out, ctx, service);
    if let Some(add) = ctx.config().extra_metrics {
        add(&mut out);
    }
    write_process(&mut out);
    if let Some(report) = service.report() {
        report.metrics(&mut out);
    }
    out.to_string()
}

fn write_state<S: Service>(out: &mut Metrics, ctx: &Context, service: &S, is_ready: bool) {
    out.gauges(
        "outrigger_build_info",
        "The version of the server.",
        "version",
        [(env!("CARGO_PKG_VERSION"), 1)],
    );
    out.gauge(
        "outrigger_uptime_seconds",
        "Time since the loop started.",
        ctx.now().since(Time::default()).as_secs_f64(),
    );
    out.gauge(
        "outrigger_ready",
        "Whether GET /readyz answers 200.",
        u8::from(is_ready),
    );
    let mut routes = Vec::new();
    if let Some(report) = service.report() {
        report.routes(&mut |path, is_ready| routes.push((path.to_owned(), u8::from(is_ready))));
    }
    out.gauges(
        "outrigger_route_ready",
        "Whether GET /readyz?route=PATH answers 200 while the server does not stop.",
        "route",
        routes,
    );
}

fn write_connections(out: &mut Metrics, ctx: &Context) {
    let counters = &ctx.core.env.counters;
    out.gauge(
        "outrigger_clients",
        "WebSocket clients.",
        ctx.core.registry.client_count(),
    );
    out.gauge(
        "outrigger_connections",
        "Connections of every kind, including those in their handshake.",
        ctx.core.registry.len(),
    );
    out.gauge(
        "outrigger_pending_calls",
        "Pending HTTP calls and open event streams, excluding this request.",
        ctx.core.env.calls.saturating_sub(1),
    );
    out.counter(
        "outrigger_connections_accepted_total",
        "Accepted connections.",
        counters.accepted,
    );
    out.counters(
        "outrigger_responses_total",
        "Responses by status; 101 is an accepted handshake.",
        "code",
        counters.responses.iter(),
    );
    out.counters(
        "outrigger_refusals_total",
        "Requests that were rejected before they reached a service, by reason.",
        "reason",
        counters.rejections.iter(),
    );
    out.counter(
        "outrigger_wrong_tokens_total",
        "Requests with a wrong token, excluding those without a token.",
        counters.wrong_tokens,
    );
    out.counter(
        "outrigger_registry_disagreements_total",
        "Clients that a service had lost, or kept after their end; always 0, unless there is a bug.",
        counters.disagreements,
    );
}

fn write_ends(out: &mut Metrics, ctx: &Context) {
    let counters = &ctx.core.env.counters;
    out.counters(
        "outrigger_connections_ended_total",
        "Ended connections by use.",
        "outcome",
        OUTCOMES.iter().zip(counters.outcomes),
    );
    out.counters(
        "outrigger_disconnects_total",
        "Disconnected clients by cause.",
        "cause",
        Cause::ALL.iter().zip(counters.disconnects.0),
    );
    let durations = Cause::ALL.iter().zip(&counters.durations.0);
    out.histograms(
        "outrigger_connection_duration_seconds",
        "How long clients were connected, by the cause of the end; a resumed connection continues. Causes that have not occurred are left out.",
        "cause",
        durations.filter(|(_, durations)| durations.count() > 0),
    );
    out.counters(
        "outrigger_protocol_errors_total",
        "Clients that violated the protocol, by close code; 1009 is a message that is too long.",
        "code",
        counters.violations.iter(),
    );
    out.counter(
        "outrigger_close_timeouts_total",
        "Clients that did not complete the closing handshake in time.",
        counters.close_timeouts,
    );
}

#[cfg(feature = "tls")]
fn write_tls(out: &mut Metrics, ctx: &Context) {
    let counters = &ctx.core.env.counters;
    if let Some(tls) = &ctx.config().tls {
        out.gauge(
            "outrigger_tls_certificate_expiry_seconds",
            "The time until the TLS certificate expires; negative afterwards.",
            tls.identity().expires_in(),
        );
        out.counters(
            "outrigger_tls_handshakes_total",
            "TLS handshakes by outcome: full, resumed (of an earlier TLS session), or failed (begun, but not completed).",
            "outcome",
            TLS_OUTCOMES.iter().zip(counters.tls_handshakes),
        );
    }
}

fn write_traffic(out: &mut Metrics, ctx: &Context) {
    let mut traffic = ctx.core.env.counters.ended;
    for client in ctx.core.registry.iter() {
        traffic.add(client.traffic);
    }
    out.counters(
        "outrigger_received_frames_total",
        "Frames from clients by opcode.",
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
            "Data messages from clients.",
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
}

fn write_topics(out: &mut Metrics, ctx: &Context) {
    out.gauge(
        "outrigger_topics",
        "Topics with members.",
        ctx.core.topics.len(),
    );
    out.gauge(
        "outrigger_topic_members",
        "Subscriptions of clients to topics.",
        ctx.core.topics.memberships(),
    );
    let counters = &ctx.core.env.counters;
    for (name, help, value) in [
        (
            "outrigger_refused_subscriptions_total",
            "Subscriptions to topics that failed because a limit was reached.",
            counters.refused_subscriptions,
        ),
        (
            "outrigger_published_messages_total",
            "Messages published to topics.",
            counters.published,
        ),
        (
            "outrigger_replaced_messages_total",
            "Messages of topics that a newer message has replaced before a client could take them.",
            counters.replaced,
        ),
    ] {
        out.counter(name, help, value);
    }
}

fn write_held<S: Service>(out: &mut Metrics, ctx: &Context, service: &S) {
    let registry = &ctx.core.registry;
    out.gauge(
        "outrigger_queued_bytes",
        "Bytes of output that wait for clients.",
        registry
            .iter()
            .map(|client| client.wire.queued())
            .sum::<usize>(),
    );
    out.gauge(
        "outrigger_detached_clients",
        "Clients whose connection was cut and that can still resume it; they count as clients.",
        registry
            .iter()
            .filter(|client| client.wire.protocol.is_detached())
            .count(),
    );
    out.gauge(
        "outrigger_kept_bytes",
        "Bytes of messages that resumable clients have not confirmed.",
        registry
            .iter()
            .map(|client| client.wire.kept())
            .sum::<usize>(),
    );
    out.gauge(
        "outrigger_held_memory_bytes",
        "Memory that clients make the server hold.",
        ctx.core.held_memory() + held_by(service),
    );
}

fn write_resumptions(out: &mut Metrics, ctx: &Context) {
    let counters = &ctx.core.env.counters;
    for (name, help, value) in [
        (
            "outrigger_detaches_total",
            "Connections of resumable clients that were cut.",
            counters.detaches,
        ),
        (
            "outrigger_long_json_total",
            "Messages from clients that were refused because they are over the limit of JSON messages.",
            counters.long_json,
        ),
        (
            "outrigger_resumes_total",
            "Connections that clients have resumed.",
            counters.resumes,
        ),
        (
            "outrigger_takeovers_total",
            "Resumed connections whose old connection had not ended.",
            counters.takeovers,
        ),
    ] {
        out.counter(name, help, value);
    }
}

fn write_upgrades(out: &mut Metrics, ctx: &Context) {
    let counters = &ctx.core.env.counters;
    out.counter(
        "outrigger_upgrades_total",
        "Upgrades of the program that have taken place.",
        counters.upgrades,
    );
    out.counter(
        "outrigger_failed_upgrades_total",
        "Upgrades of the program that have not taken place.",
        counters.failed_upgrades,
    );
    out.gauge(
        "outrigger_upgrade_pause_seconds",
        "How long the loop stood still for the last upgrade.",
        counters.upgrade_pause.as_secs_f64(),
    );
}

fn write_compression(out: &mut Metrics, ctx: &Context) {
    if let Some(compression) = &ctx.core.env.protocol.compression {
        let counts = compression.counts();
        out.counters(
            "outrigger_compressed_messages_total",
            "Compressed messages; a broadcast counts once.",
            "direction",
            [("in", counts.messages_in), ("out", counts.messages_out)],
        );
        out.counters(
            "outrigger_compressed_bytes_total",
            "Bytes of compressed messages on the wire.",
            "direction",
            [("in", counts.compressed_in), ("out", counts.compressed_out)],
        );
        out.counters(
            "outrigger_uncompressed_bytes_total",
            "Bytes of compressed messages before compression.",
            "direction",
            [("in", counts.plain_in), ("out", counts.plain_out)],
        );
        out.gauge(
            "outrigger_compression_reserved_bytes",
            "Memory that is reserved for clients with context takeover.",
            compression.reserved(),
        );
    }
}

fn write_limits(out: &mut Metrics, ctx: &Context) {
    let limits = ctx.config().limits;
    out.gauges(
        "outrigger_limit",
        "Limits of the server, as counts or bytes.",
        "limit",
        [
            ("max_clients", ctx.config().max_clients),
            (
                "max_clients_per_address",
                ctx.config().max_clients_per_address.unwrap_or(0),
            ),
            (
                "max_clients_per_principal",
                ctx.config().max_clients_per_principal.unwrap_or(0),
            ),
            ("max_topics", ctx.config().max_topics),
            ("max_topics_per_client", ctx.config().max_topics_per_client),
            ("max_head", limits.max_head),
            ("max_headers", limits.max_headers),
            ("max_message", limits.max_message),
            ("max_json", ctx.config().max_json),
            ("max_outbound", ctx.config().max_outbound),
            (
                "resume_buffer",
                ctx.config().resume.map_or(0, |resume| resume.buffer),
            ),
            ("memory", ctx.config().memory.unwrap_or(0)),
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
}

fn write_times<S: Service>(out: &mut Metrics, ctx: &Context, service: &S) {
    let counters = &ctx.core.env.counters;
    out.counters(
        "outrigger_turn_limits_total",
        "Turns of the loop that reached a limit: bytes of one client, or connections of one listener.",
        "work",
        [
            ("bytes", counters.turn_reads),
            ("accepts", counters.turn_accepts),
        ],
    );
    out.histogram(
        "outrigger_loop_turn_seconds",
        "Durations of turns of the event loop, without waiting.",
        &counters.turns.turns(),
    );
    let services = counters.turns.services();
    let report = service.report();
    let name = |id| {
        report
            .and_then(|report| report.name(id))
            .unwrap_or("server")
    };
    out.histograms(
        "outrigger_service_turn_seconds",
        "The part of each turn of the event loop that went to a service and its clients, of the turns that handled its events.",
        "route",
        services
            .iter()
            .map(|(id, times)| (name(*id), times)),
    );
}

fn write_process(out: &mut Metrics) {
    if let Some((cpu, memory)) = sys::usage(std::process::id()) {
        out.counter(
            "process_cpu_seconds_total",
            "Processor time of this process.",
            cpu.as_secs_f64(),
        );
        out.gauge(
            "process_resident_memory_bytes",
            "Resident memory of this process.",
            memory,
        );
    }
}
