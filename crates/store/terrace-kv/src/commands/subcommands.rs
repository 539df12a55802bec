//! The table of subcommands, such as CLIENT LIST: replies to HELP, and errors for unknown subcommands.

use super::args::is;
use super::context::Context;
use crate::error::{Outcome, Refusal};

/// Commands with their subcommands, arguments and descriptions.
const SUBCOMMANDS: &[(&str, &[(&str, &str)])] = &[
    (
        "CLIENT",
        &[
            ("GETNAME", "The name of this client."),
            ("ID", "The number of this client."),
            ("INFO", "A line about this client."),
            ("KILL address | <ID | ADDR | LADDR | TYPE | SKIPME> value ...", "Ends connections."),
            ("LIST [ID number ... | TYPE type]", "A line about each client."),
            ("NO-EVICT ON | OFF", "Changes nothing."),
            ("NO-TOUCH ON | OFF", "Changes nothing."),
            ("REPLY ON | OFF | SKIP", "Which replies this client wants."),
            ("SETINFO LIB-NAME | LIB-VER text", "Names the library of this client."),
            ("SETNAME name", "Names this client."),
        ],
    ),
    (
        "CLUSTER",
        &[
            ("COUNTKEYSINSLOT slot", "The number of keys in a slot."),
            ("GETKEYSINSLOT slot count", "Keys in a slot."),
            ("INFO", "The state of the cluster."),
            ("KEYSLOT key", "The slot of a key."),
            ("LINKS", "Connections between servers: none."),
            ("MYID", "The name of this server."),
            ("NODES", "A line about each server."),
            ("SHARDS", "The servers and their slots."),
            ("SLOTS", "The slots and their servers."),
        ],
    ),
    (
        "COMMAND",
        &[
            ("(none)", "All commands."),
            ("COUNT", "The number of commands."),
            ("DOCS [name ...]", "Documentation: none."),
            ("GETKEYS command", "The keys of a command."),
            ("INFO [name ...]", "Commands by name."),
            ("LIST", "The names of all commands."),
        ],
    ),
    (
        "CONFIG",
        &[
            ("GET pattern ...", "Settings and their values."),
            ("RESETSTAT", "Sets counters of INFO to 0."),
            ("SET name value ...", "Settings of encodings are taken, and change nothing."),
        ],
    ),
    ("DEBUG", &[("SET-ACTIVE-EXPIRE 0 | 1", "Whether expired keys leave without being asked for.")]),
    ("FUNCTION", &[("FLUSH", "Changes nothing."), ("LIST", "Functions: none.")]),
    ("MEMORY", &[("USAGE key", "Bytes of a key and its value.")]),
    (
        "OBJECT",
        &[
            ("ENCODING key", "How Redis would keep the value."),
            ("FREQ key", "0."),
            ("IDLETIME key", "0."),
            ("REFCOUNT key", "1."),
        ],
    ),
];

/// Replies to HELP. Refuses any other subcommand like Redis: unknown, or with a wrong number of arguments.
pub(super) fn help_or_refuse(context: &mut Context<'_>) -> Outcome {
    let (name, what) = (context.args.at(0), context.args.at(1));
    let (command, all) = SUBCOMMANDS.iter().find(|(command, _)| is(name, command)).unwrap_or(&("", &[]));
    let is_help = is(what, "HELP");
    if is_help && context.args.len() == 2 {
        let reply = &mut context.reply;
        reply.array(2 * all.len() + 3);
        reply.status(&format!("{command} <subcommand> [<arg> [value] [opt] ...]. Subcommands are:"));
        for (usage, text) in all.iter().chain(&[("HELP", "Prints this help.")]) {
            reply.status(usage);
            reply.status(&format!("    {text}"));
        }
        return Ok(());
    }
    let text = String::from_utf8_lossy(what);
    let is_there = |(usage, _): &(&str, &str)| usage.split(' ').next().is_some_and(|word| is(what, word));
    match is_help || all.iter().any(is_there) {
        true => Err(Refusal::Arity(format!("{command}|{text}").to_ascii_lowercase())),
        false => Err(Refusal::err(format_args!("unknown subcommand '{text}'. Try {command} HELP."))),
    }
}
