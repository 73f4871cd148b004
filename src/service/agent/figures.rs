//! The status and metrics of a shared agent, for `/status` and `/metrics`.

use super::Approvals;
use super::processes::AgentProcesses;
use super::router::Router;
use crate::service::child::Child;
use crate::{Metrics, StatusFields};

/// The maximum number of sessions that the status lists.
const MAX_LISTED: usize = 200;

/// The fields of `/status`.
pub(super) fn status(router: &Router, processes: &AgentProcesses) -> StatusFields {
    let counters = router.counters();
    let list: Vec<_> = processes
        .iter()
        .map(|(index, process)| {
            let figures = router.process_figures(index);
            serde_json::json!({
                "version": figures.version,
                "running": process.program.is_running(),
                "pid": process.program.child().map(Child::pid),
                "restarts": process.program.restarts(),
                "clients": figures.clients,
                "sessions": figures.sessions,
            })
        })
        .collect();
    let sessions: Vec<_> = router
        .session_figures(MAX_LISTED)
        .iter()
        .map(|session| {
            let waits = session.waiting > 0;
            let state = match session.client {
                Some(_) if waits => "active",
                Some(_) => "idle",
                None => "gone",
            };
            serde_json::json!({
                "id": &*session.id,
                "owner": session.owner.to_string(),
                "state": state,
                "client": session.client.map(|client| client.to_string()),
                "waiting": session.waiting,
                "observers": session.observers,
            })
        })
        .collect();
    let status = serde_json::json!({
        "sessions": router.figures().sessions,
        "ended_sessions": router.figures().ended_sessions,
        "observers": router.figures().observers,
        "history_bytes": router.figures().history,
        "agent": {
            "running": processes.is_any_running(),
            "restarts": processes.restarts(),
            "processes": list,
            "session_list": sessions,
            "directory": directory(),
            "approvals": match router.approvals() {
                Approvals::Owner => "owner",
                Approvals::Any => "any",
            },
            "waiting": router.figures().client_requests,
            "asked": router.figures().agent_requests,
            "calls": {
                "initialize": counters.initializes,
                "session": counters.session_requests,
                "prompt": counters.prompts,
                "other": counters.other_requests,
            },
            "notifications": counters.notifications,
            "answers": counters.answers.to_value(),
            "denied": counters.denied,
            "dropped": counters.dropped,
            "crossing": counters.crossing,
            "timed_out": counters.timed_out,
        },
    });
    StatusFields::from_value(status)
}

/// The server's directory, in which agents start. A new session probably works there.
pub(super) fn directory() -> Option<String> {
    let directory = std::env::current_dir().ok()?;
    Some(directory.display().to_string())
}

/// Writes the metrics.
pub(super) fn metrics(out: &mut Metrics, router: &Router, processes: &AgentProcesses) {
    out.gauge(
        "outrigger_agent_running",
        "Whether an agent process is running.",
        u8::from(processes.is_any_running()),
    );
    out.gauge(
        "outrigger_agent_processes",
        "Agent processes, one for each kind of client.",
        processes.iter().count(),
    );
    out.counter(
        "outrigger_agent_restarts_total",
        "Restarts of agent processes.",
        processes.restarts(),
    );
    for (name, help, value) in [
        (
            "outrigger_agent_sessions",
            "Sessions that a client controls or can still resume.",
            router.figures().sessions,
        ),
        (
            "outrigger_agent_history_bytes",
            "Bytes of updates that are kept for clients that attach to a session.",
            router.figures().history,
        ),
        (
            "outrigger_agent_observers",
            "Observers of sessions.",
            router.figures().observers,
        ),
        (
            "outrigger_agent_ended_sessions",
            "Ended sessions whose owner is remembered.",
            router.figures().ended_sessions,
        ),
        (
            "outrigger_agent_waiting_requests",
            "Requests of clients that the agent has not answered.",
            router.figures().client_requests,
        ),
        (
            "outrigger_agent_asked_requests",
            "Requests of the agent that clients have not answered.",
            router.figures().agent_requests,
        ),
    ] {
        out.gauge(name, help, value);
    }
    count_messages(out, router);
}

/// The metrics of what has passed since the start.
fn count_messages(out: &mut Metrics, router: &Router) {
    let counters = router.counters();
    out.counters(
        "outrigger_agent_requests_total",
        "Requests of clients, by class.",
        "class",
        [
            ("initialize", counters.initializes),
            ("session", counters.session_requests),
            ("prompt", counters.prompts),
            ("other", counters.other_requests),
        ],
    );
    for (name, help, value) in [
        (
            "outrigger_agent_notifications_total",
            "Notifications of clients.",
            counters.notifications,
        ),
        (
            "outrigger_agent_denied_total",
            "Messages refused because their client does not control the session that they name.",
            counters.denied,
        ),
        (
            "outrigger_agent_crossing_total",
            "Messages of the agent dropped because they name a session that their receiver must not know of.",
            counters.crossing,
        ),
        (
            "outrigger_agent_timed_out_total",
            "Requests in either direction that were not answered in time.",
            counters.timed_out,
        ),
    ] {
        out.counter(name, help, value);
    }
    out.counter(
        "outrigger_agent_dropped_total",
        "Messages without a receiver, and binary messages, which are ignored.",
        counters.dropped,
    );
    out.histogram(
        "outrigger_agent_answer_seconds",
        "Time from a request to its response.",
        &counters.answers,
    );
}
