//! `terrace lru`: the policy's lists, and the commands to them.

mod table;

use std::path::Path;
use std::process::ExitCode;

use serde_json::{Value, json};

use crate::cli;
use crate::control::{Refusal, Request};
use crate::error::{Failure, Result};
use crate::instance::Instance;
use crate::running;

/// Shows the lists, after aging or evicting if that is asked for.
pub fn lru(args: &cli::Lru) -> Result<ExitCode> {
    let (instance, info) = running::find(&args.mnt)?;
    let done = act(args, &instance)?;
    let mut lru = ask(&args.mnt, &instance, &Request::Lru)?["lru"].take();
    lru["mnt"] = json!(info.mnt);
    let text = match args.json {
        true => {
            merge(&mut lru, &done);
            format!("{lru}\n")
        }
        false => told(&done) + &table::of(&lru),
    };
    running::print(&text);
    Ok(ExitCode::SUCCESS)
}

/// The result of `--age` or `--evict`; null without either.
fn act(args: &cli::Lru, instance: &Instance) -> Result<Value> {
    if args.age {
        let answer = ask(&args.mnt, instance, &Request::Age)?;
        return Ok(json!({"opened": answer["seq"]}));
    }
    let Some(seq) = args.evict else { return Ok(Value::Null) };
    let answer = ask(&args.mnt, instance, &Request::Evict { seq, pages: args.pages })?;
    Ok(json!({"evicted": answer["evicted"], "kept": answer["kept"]}))
}

fn merge(lru: &mut Value, done: &Value) {
    for (name, value) in done.as_object().into_iter().flatten() {
        lru[name] = value.clone();
    }
}

fn told(done: &Value) -> String {
    match done {
        Value::Null => String::new(),
        done if !done["opened"].is_null() => format!("generation {} opened\n", done["opened"]),
        done => format!(
            "{} pages evicted; {} kept, because they are unwritten or were in use\n",
            done["evicted"], done["kept"]
        ),
    }
}

fn ask(mnt: &Path, instance: &Instance, request: &Request) -> Result<Value> {
    running::ask(instance, request).map_err(|no| Failure::new(mnt.display(), &no.why, cure(&no)))
}

fn cure(no: &Refusal) -> &'static str {
    match no.code.as_str() {
        "refused" if no.why.contains("has no generations") => {
            "mount with a policy that has them: strata or mglru-fg"
        }
        "refused" => "`terrace lru MNT` lists the generations; name an older one, or open more with --age",
        _ => "see `terrace stat` and the log",
    }
}
