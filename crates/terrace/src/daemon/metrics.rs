//! Metrics of terraced or of a server of keys over HTTP. The supervisor holds the listener, so a scrape waits
//! through a restart.

use std::net::TcpListener;
use std::sync::Arc;

use terrace_api::control::{Reply, Request, Stat};

use super::thread::thread;
use crate::control::Answer;
use crate::http::{self, Page};
use crate::instance::Instance;
use crate::metrics;

/// Serves metrics if the configuration has an address for them.
pub(crate) fn start<A: Answer + Send + 'static>(
    listener: Option<&TcpListener>,
    answers: &Arc<A>,
    instance: &Instance,
) -> std::io::Result<()> {
    let Some(listener) = listener else { return Ok(()) };
    let (listener, answers, instance) = (listener.try_clone()?, answers.clone(), instance.clone());
    thread("metrics", move || http::serve(&listener, move |path| answer(path, &*answers, &instance)))
}

fn answer(path: &str, answers: &dyn Answer, instance: &Instance) -> Page {
    match path {
        "/metrics" => match (instance.info(), answers.answer(Request::Stat(Stat {}))) {
            (Some(info), Ok(Reply::Stat(reply))) => {
                Page::ok(http::METRICS, metrics::page(&[metrics::report(&info, reply)]))
            }
            (_, Err(err)) => Page::error("503 Service Unavailable", err),
            _ => Page::error("503 Service Unavailable", "the daemon is starting"),
        },
        _ => Page::error("404 Not Found", "metrics are at /metrics"),
    }
}
