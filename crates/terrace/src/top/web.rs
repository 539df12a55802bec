//! `terrace top --http ADDRESS`: the live page for a browser. One self-contained page, which requests
//! `stat.json` at the interval.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use serde::Serialize;
use terrace_output::signals::interrupted;

use super::feed::{SILENCE_MAX, TICK};
use crate::cli;
use crate::error::{Failure, Result};
use crate::http::{self, Page};
use crate::{commands, metrics, stat};

const PAGE: &str = include_str!("page.html");
/// Placeholder in the page for the interval in milliseconds.
const INTERVAL: &str = "@INTERVAL_MS@";
/// Ticks between two checks that the mount still exists.
const LOOK_EVERY: u32 = 20;

/// Serves the page until a signal arrives, or the mount is gone.
pub(super) fn serve(mnt: PathBuf, args: &cli::Top, every: Duration) -> Result<ExitCode> {
    let text = args.http.as_deref().unwrap_or_default();
    let address = http::parse(text, args.http_public).map_err(|(why, cure)| {
        Failure::new("--http", why, cure.replace("say that it may be public", "allow it with --http-public"))
    })?;
    let listener = http::bind(address)?;
    let address = listener.local_addr().unwrap_or(address);
    commands::print(&format!("{}: statistics are live at http://{address}/ until Ctrl-C\n", mnt.display()))?;
    let html = PAGE.replace(INTERVAL, &every.as_millis().to_string());
    let served = mnt.clone();
    std::thread::spawn(move || http::serve(&listener, move |path| answer(path, &served, &html)));
    watch(&mnt)
}

/// Waits for a signal, or for the end of the mount.
fn watch(mnt: &Path) -> Result<ExitCode> {
    let (mut ticks, mut silence) = (0, 0);
    while !interrupted() {
        std::thread::sleep(TICK);
        ticks += 1;
        if ticks % LOOK_EVERY == 0 {
            match commands::find(mnt) {
                Ok(_) => silence = 0,
                Err(why) => {
                    silence += 1;
                    if silence >= SILENCE_MAX {
                        return Err(why);
                    }
                }
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn answer(path: &str, mnt: &Path, html: &str) -> Page {
    let found = || commands::find(mnt);
    match path {
        "/" => Page::ok("text/html; charset=utf-8", html.to_owned()),
        "/stat.json" => json(found().and_then(|(instance, info)| stat::read(&instance, &info))),
        "/mrc.json" => json(found().and_then(|(instance, info)| stat::read_with_mrc(&instance, &info))),
        "/metrics" => match found().and_then(|(instance, info)| stat::read(&instance, &info)) {
            Ok(report) => Page::ok(http::METRICS, metrics::page(&[report])),
            Err(why) => Page::error("503 Service Unavailable", why),
        },
        _ => Page::error(
            "404 Not Found",
            "the page is at /, its numbers are at /stat.json, /mrc.json and /metrics",
        ),
    }
}

fn json(told: Result<impl Serialize>) -> Page {
    match told {
        Ok(value) => Page::ok("application/json", commands::json(&value)),
        Err(why) => Page::error("503 Service Unavailable", why),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn page_needs_nothing_from_elsewhere() {
        assert!(PAGE.contains(INTERVAL));
        for outside in ["http://", "https://", "src=", "@import", "url(", "innerHTML"] {
            // The SVG name space is only a name: nothing is fetched from it.
            let rest = PAGE.replace("http://www.w3.org/2000/svg", "");
            assert!(!rest.contains(outside), "{outside}");
        }
    }

    #[test]
    fn unknown_path_and_absent_mount_are_told() {
        let nothing = Path::new("/nonexistent");
        assert_eq!(answer("/x", nothing, "").status, "404 Not Found");
        assert_eq!(answer("/stat.json", nothing, "").status, "503 Service Unavailable");
        assert_eq!(answer("/", nothing, "<p>").body, "<p>");
    }
}
