//! What tells whether a server is well: what it refuses, why connections end, and what it uses of its limits.

use serde_json::{Map, Value, json};

use super::history::Figures;
use crate::protocol::{Cause, Time};
use crate::server::context::Context;
use crate::server::service::{Report, Service};
use crate::sys;

/// The maximum number of programs whose use of the processor and of memory one answer tells.
const MOST_PROGRAMS: usize = 256;

/// Whether a connection that ended for this reason has failed, and was not ended by one of its sides on purpose.
fn is_failure(cause: Cause) -> bool {
    match cause {
        Cause::ReadError
        | Cause::WriteError
        | Cause::ProtocolError
        | Cause::PingTimeout
        | Cause::SlowConsumer
        | Cause::Memory
        | Cause::RateLimit
        | Cause::Unreachable => true,
        Cause::PeerClose
        | Cause::Eof
        | Cause::IdleTimeout
        | Cause::NotResumed
        | Cause::Revoked
        | Cause::Operator
        | Cause::Service
        | Cause::Shutdown => false,
    }
}

/// The counts of a map or of an array, without those that are 0.
fn counts<K: ToString>(counts: impl IntoIterator<Item = (K, u64)>) -> Value {
    let counts = counts.into_iter().filter(|(_, count)| *count > 0);
    let counts = counts.map(|(name, count)| (name.to_string(), count.into()));
    counts.collect::<Map<String, Value>>().into()
}

/// The health of the server as JSON.
pub(crate) fn to_value(ctx: &Context, held: usize) -> Value {
    let core = &ctx.core;
    let counters = &core.env.counters;
    let (cpu, memory) = sys::usage(std::process::id()).unwrap_or_default();
    let (descriptors, descriptor_limit) = sys::descriptor_use();
    let closes = || Cause::ALL.into_iter().zip(counters.disconnects.0);
    let mut health = json!({
        "refused": counts(counters.rejections.iter().map(|(reason, count)| (&**reason, *count))),
        "wrong_tokens": counters.wrong_tokens,
        "closes": counts(closes()),
        "failed": counts(closes().filter(|(cause, _)| is_failure(*cause))),
        "limits": counts([
            ("messages too long", counters.long_json),
            ("subscriptions", counters.refused_subscriptions),
            ("closing handshake", counters.close_timeouts),
        ]),
        "cpu_s": cpu.as_secs_f64(),
        "memory_bytes": memory,
        "held_bytes": core.held_memory() + held,
        "held_limit": core.env.config.memory,
        "descriptors": descriptors,
        "descriptor_limit": descriptor_limit,
        "max_clients": core.env.config.max_clients,
    });
    if let (Some(add), Value::Object(health)) = (core.env.config.extra_health, &mut health) {
        health.extend(add().0);
    }
    health
}

/// Adds `cpu_s` and `mem_bytes` to each object with a `pid`: the programs that services list.
pub(crate) fn add_usage(fields: &mut Value) {
    let mut left = MOST_PROGRAMS;
    add_usage_within(fields, &mut left);
}

fn add_usage_within(value: &mut Value, left: &mut usize) {
    match value {
        Value::Array(list) => list.iter_mut().for_each(|one| add_usage_within(one, left)),
        Value::Object(fields) => {
            let pid = fields.get("pid").and_then(Value::as_u64);
            if let Some(pid) = pid
                .and_then(|pid| u32::try_from(pid).ok())
                .filter(|_| *left > 0)
            {
                *left -= 1;
                if let Some((cpu, memory)) = sys::usage(pid) {
                    fields.insert("cpu_s".to_owned(), cpu.as_secs_f64().into());
                    fields.insert("mem_bytes".to_owned(), memory.into());
                }
            }
            for value in fields.values_mut() {
                add_usage_within(value, left);
            }
        }
        _ => {}
    }
}

/// Takes a sample of the figures if it is time for one. The last turn of the loop has ended at `worked_until`.
#[cold]
pub(crate) fn sample<S: Service>(ctx: &mut Context, service: &S, worked_until: Time) {
    let core = &mut ctx.core;
    let counters = &core.env.counters;
    let mut traffic = counters.ended_clients;
    let clients = core
        .registry
        .iter()
        .filter(|client| client.wire.protocol.was_open());
    clients.for_each(|client| traffic.add(client.traffic));
    let (cpu, memory) = sys::usage(std::process::id()).unwrap_or_default();
    let failed = Cause::ALL.into_iter().zip(counters.disconnects.0);
    let failed = failed.filter(|(cause, _)| is_failure(*cause));
    let figures = Figures {
        traffic,
        turns: counters.turns.turns(),
        answers: service
            .report()
            .and_then(Report::answer_times)
            .unwrap_or_default(),
        cpu,
        memory,
        clients: core.registry.client_count(),
        refused: counters.rejections.values().sum(),
        wrong_tokens: counters.wrong_tokens,
        failed: failed.map(|(_, count)| count).sum(),
    };
    let now = core.env.real_now();
    core.history.add(now, worked_until, figures);
    core.sample_at = core.env.now + core.history.due_in(now);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_programs_of_services_get_their_use_and_no_others() {
        let own = std::process::id();
        let mut fields = json!({"a": {"programs": [{"pid": own}, {"pid": 0}]}, "b": 3});
        add_usage(&mut fields);
        assert!(fields["a"]["programs"][0]["mem_bytes"].as_u64() > Some(0));
        assert_eq!(fields["a"]["programs"][1], json!({"pid": 0}));
        let mut many = Value::from(vec![json!({"pid": own}); MOST_PROGRAMS + 1]);
        add_usage(&mut many);
        assert_eq!(many[MOST_PROGRAMS], json!({"pid": own}));
    }
}
