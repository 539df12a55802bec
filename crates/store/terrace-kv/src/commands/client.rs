//! Commands on connections: HELLO, AUTH, PING, ECHO, SELECT, RESET, QUIT, and CLIENT with its subcommands.

use std::sync::atomic::Ordering;

use super::args::{int, is};
use super::context::{Context, Replies};
use super::keys::database;
use super::subcommands::help_or_refuse;
use crate::blobs::Db;
use crate::error::{Outcome, Refusal};

/// The reported version, by which clients choose features: the commands are those of Redis 7.0.
pub(super) const VERSION: &str = "7.0.15";

/// PING [message]
pub(super) fn ping(context: &mut Context<'_>) -> Outcome {
    match (context.args.len(), context.args.get(1)) {
        (1, _) => context.reply.status("PONG"),
        (2, Some(message)) => context.reply.bulk(message),
        _ => return Err(Refusal::Arity("ping".to_owned())),
    }
    Ok(())
}

pub(super) fn echo(context: &mut Context<'_>) -> Outcome {
    context.reply.bulk(context.args.at(1));
    Ok(())
}

pub(super) fn quit(context: &mut Context<'_>) -> Outcome {
    context.session.closes = true;
    context.reply.ok();
    Ok(())
}

pub(super) fn reset(context: &mut Context<'_>) -> Outcome {
    let session = &mut *context.session;
    session.is_known = context.server.config.password.is_none();
    session.replies = Replies::On;
    session.refuses_transaction = false;
    session.client.names.lock().name.clear();
    set_database(context, 0);
    set_resp3(context, false);
    context.reply.status("RESET");
    Ok(())
}

fn set_database(context: &mut Context<'_>, db: Db) {
    context.session.db = db;
    context.session.client.db.store(db, Ordering::Relaxed);
}

fn set_resp3(context: &mut Context<'_>, resp3: bool) {
    context.session.resp3 = resp3;
    context.reply.resp3 = resp3;
    context.session.client.resp3.store(resp3, Ordering::Relaxed);
}

pub(super) fn select(context: &mut Context<'_>) -> Outcome {
    let db = database(context.args.at(1))?;
    if db != 0 && context.server.config.cluster.is_some() {
        return Err(Refusal::err("SELECT is not allowed in cluster mode"));
    }
    set_database(context, db);
    context.reply.ok();
    Ok(())
}

const USER: &[u8] = b"default";

/// Compares two texts in constant time: the duration does not reveal where they differ.
fn is_same(given: &[u8], right: &[u8]) -> bool {
    let differing = given.iter().zip(right).fold(0, |all, (a, b)| all | (a ^ b));
    given.len() == right.len() && std::hint::black_box(differing) == 0
}

fn check_password(context: &mut Context<'_>, user: &[u8], password: &[u8]) -> Outcome {
    let right = context.server.config.password.as_deref();
    let knows = user == USER && right.is_none_or(|right| is_same(password, right.as_bytes()));
    if !knows {
        context.server.counters.wrong_passwords.fetch_add(1, Ordering::Relaxed);
        let line = "WRONGPASS invalid username-password pair or user is disabled.";
        return Err(Refusal::Other(line.to_owned()));
    }
    context.session.is_known = true;
    Ok(())
}

/// AUTH [username] password
pub(super) fn auth(context: &mut Context<'_>) -> Outcome {
    let args = context.args;
    match args.len() {
        2 if context.server.config.password.is_none() => {
            return Err(Refusal::err(
                "AUTH <password> called without any password configured for the default user. Are you sure your configuration is correct?",
            ));
        }
        2 => check_password(context, USER, args.at(1))?,
        3 => check_password(context, args.at(1), args.at(2))?,
        _ => return Err(Refusal::Syntax),
    }
    context.reply.ok();
    Ok(())
}

/// HELLO [protocol [AUTH username password] [SETNAME name]]
pub(super) fn hello(context: &mut Context<'_>) -> Outcome {
    let (mut words, mut resp3, mut name) = (context.args.from(1), None, None);
    if let Some(version) = words.next() {
        let version =
            int(version).map_err(|_| Refusal::err("Protocol version is not an integer or out of range"))?;
        resp3 = match version {
            2 => Some(false),
            3 => Some(true),
            _ => return Err(Refusal::Other("NOPROTO unsupported protocol version".to_owned())),
        };
    }
    while let Some(word) = words.next() {
        match (words.next(), is(word, "AUTH")) {
            (Some(user), true) => {
                let password = words.next().ok_or(Refusal::Syntax)?;
                check_password(context, user, password)?;
            }
            (Some(text), false) if is(word, "SETNAME") => name = Some(checked_name(text)?),
            _ => {
                return Err(Refusal::err(format_args!(
                    "Syntax error in HELLO option '{}'",
                    String::from_utf8_lossy(word)
                )));
            }
        }
    }
    if !context.session.is_known {
        let line = "NOAUTH HELLO must be called with the client already authenticated, otherwise the HELLO <proto> AUTH <user> <pass> option can be used to authenticate the client and select the RESP protocol version at the same time";
        return Err(Refusal::Other(line.to_owned()));
    }
    if let Some(name) = name {
        context.session.client.names.lock().name = name;
    }
    if let Some(resp3) = resp3 {
        set_resp3(context, resp3);
    }
    greet(context);
    Ok(())
}

fn greet(context: &mut Context<'_>) {
    let is_cluster = context.server.config.cluster.is_some();
    let (id, protocol) = (context.session.client.id, if context.session.resp3 { 3 } else { 2 });
    let reply = &mut context.reply;
    reply.map(7);
    for (key, value) in [("server", "redis"), ("version", VERSION)] {
        reply.text(key);
        reply.text(value);
    }
    reply.text("proto");
    reply.int(protocol);
    reply.text("id");
    reply.int(id);
    for (key, value) in [("mode", if is_cluster { "cluster" } else { "standalone" }), ("role", "master")] {
        reply.text(key);
        reply.text(value);
    }
    reply.text("modules");
    reply.array(0);
}

/// Maximum length of a name, bytes. Names live as long as their client, and do not count against the memory
/// limit.
const NAME_BYTES_MAX: usize = 128;

/// Checks a name: short, without spaces and control characters.
fn checked_name(text: &[u8]) -> Outcome<String> {
    if text.len() > NAME_BYTES_MAX {
        return Err(Refusal::err(format_args!("Client names cannot be longer than {NAME_BYTES_MAX} bytes.")));
    }
    let is_plain = text.iter().all(u8::is_ascii_graphic);
    let why = "Client names cannot contain spaces, newlines or special characters.";
    is_plain.then(|| String::from_utf8_lossy(text).into_owned()).ok_or_else(|| Refusal::err(why))
}

pub(super) fn client(context: &mut Context<'_>) -> Outcome {
    let (what, args) = (context.args.at(1), context.args);
    match (args.len(), args.get(2)) {
        (2, _) if is(what, "ID") => context.reply.int(context.session.client.id),
        (2, _) if is(what, "INFO") => context.reply.text(context.session.client.line() + "\n"),
        (_, _) if is(what, "LIST") => list(context)?,
        (2, _) if is(what, "GETNAME") => {
            let name = context.session.client.names.lock().name.clone();
            context.reply.optional(Some(name.as_bytes()).filter(|name| !name.is_empty()));
        }
        (3, Some(name)) if is(what, "SETNAME") => {
            let name = checked_name(name)?;
            context.session.client.names.lock().name = name;
            context.reply.ok();
        }
        (4, Some(which)) if is(what, "SETINFO") => {
            let text = checked_name(args.at(3))?;
            let mut names = context.session.client.names.lock();
            match () {
                () if is(which, "LIB-NAME") => names.library = text,
                () if is(which, "LIB-VER") => names.version = text,
                () => {
                    let which = String::from_utf8_lossy(which);
                    return Err(Refusal::err(format_args!("Unrecognized option '{which}'")));
                }
            }
            context.reply.ok();
        }
        (_, Some(_)) if is(what, "KILL") => return kill(context),
        (3, Some(mode)) if is(what, "REPLY") => return set_replies(context, mode),
        (3, Some(_)) if is(what, "NO-EVICT") || is(what, "NO-TOUCH") => context.reply.ok(),
        _ => return help_or_refuse(context),
    }
    Ok(())
}

/// Whether a client type includes all clients: there are no replicas and no subscribers.
fn is_normal(kind: &[u8]) -> Outcome<bool> {
    if is(kind, "normal") {
        return Ok(true);
    }
    let others = ["master", "replica", "slave", "pubsub"];
    let unknown = || Refusal::err(format_args!("Unknown client type '{}'", String::from_utf8_lossy(kind)));
    others.into_iter().any(|other| is(kind, other)).then_some(false).ok_or_else(unknown)
}

fn list(context: &mut Context<'_>) -> Outcome {
    let args = context.args;
    let ids = match (args.len(), args.get(2)) {
        (_, None) => None,
        (4.., Some(word)) if is(word, "ID") => Some(args.from(3).map(int).collect::<Outcome<Vec<i64>>>()?),
        (4, Some(word)) if is(word, "TYPE") => match is_normal(args.at(3))? {
            true => None,
            false => Some(Vec::new()),
        },
        _ => return Err(Refusal::Syntax),
    };
    let clients = context.server.clients.all();
    let wanted =
        clients.iter().filter(|client| ids.as_ref().is_none_or(|ids| ids.contains(&(client.id as i64))));
    let lines: String = wanted.map(|client| client.line() + "\n").collect();
    context.reply.verbatim(&lines);
    Ok(())
}

/// CLIENT KILL address, or filters ID, ADDR, LADDR, TYPE, SKIPME.
fn kill(context: &mut Context<'_>) -> Outcome {
    let args = context.args;
    let is_old_form = args.len() == 3;
    let (mut id, mut address, mut local, mut skips_me) = (None, None, None, !is_old_form);
    let mut is_of_type = true;
    if is_old_form {
        address = Some(args.at(2));
    } else {
        if args.len() % 2 == 1 {
            return Err(Refusal::Syntax);
        }
        for (filter, value) in args.from(2).step_by(2).zip(args.from(3).step_by(2)) {
            match () {
                () if is(filter, "ID") => id = Some(int(value)?),
                () if is(filter, "ADDR") => address = Some(value),
                () if is(filter, "LADDR") => local = Some(value),
                () if is(filter, "TYPE") => is_of_type = is_normal(value)?,
                () if is(filter, "SKIPME") => skips_me = is(value, "yes"),
                () => return Err(Refusal::Syntax),
            }
        }
    }
    let own = context.session.client.id;
    let matching = |client: &&std::sync::Arc<crate::clients::Client>| {
        is_of_type
            && id.is_none_or(|id| client.id as i64 == id)
            && address.is_none_or(|address| client.address.as_bytes() == address)
            && local.is_none_or(|local| client.local.as_bytes() == local)
            && !(skips_me && client.id == own)
    };
    let all = context.server.clients.all();
    let killed: Vec<_> = all.iter().filter(matching).collect();
    for client in &killed {
        match client.id == own {
            true => context.session.closes = true,
            false => client.kill(),
        }
    }
    match is_old_form {
        true if killed.is_empty() => return Err(Refusal::err("No such client")),
        true => context.reply.ok(),
        false => context.reply.int(killed.len()),
    }
    Ok(())
}

fn set_replies(context: &mut Context<'_>, mode: &[u8]) -> Outcome {
    match () {
        () if is(mode, "ON") => {
            context.session.replies = Replies::On;
            context.reply.ok();
        }
        () if is(mode, "OFF") => context.session.replies = Replies::Off,
        () if is(mode, "SKIP") => context.session.replies = Replies::SkipNext,
        () => return Err(Refusal::Syntax),
    }
    Ok(())
}
