//! `terrace generate`: prints the man page and shell completions, made from the definition of the command
//! line.

use std::io::{self, Write};
use std::process::ExitCode;

use clap::{Command, CommandFactory};
use clap_complete::Shell;
use clap_mangen::Man;

use crate::cli::{Cli, What};
use crate::commands;
use crate::error::{Failure, Result, reason};

/// Prints the requested text.
pub(crate) fn generate(what: What) -> Result<ExitCode> {
    let mut text = Vec::new();
    match what {
        What::Man => {
            man(&mut text).map_err(|err| Failure::new("man page", reason(err), "free some memory"))?
        }
        What::CompleteBash => completion(Shell::Bash, &mut text),
        What::CompleteZsh => completion(Shell::Zsh, &mut text),
        What::CompleteFish => completion(Shell::Fish, &mut text),
    }
    commands::print(&String::from_utf8_lossy(&text))?;
    Ok(ExitCode::SUCCESS)
}

fn completion(shell: Shell, out: &mut dyn Write) {
    let mut text = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "terrace", &mut text);
    let _ = out.write_all(&text);
}

/// One page for the program and all its commands.
fn man(out: &mut dyn Write) -> io::Result<()> {
    let mut command = Cli::command();
    command.build();
    let page = Man::new(command.clone()).section("1");
    page.render_title(out)?;
    page.render_name_section(out)?;
    page.render_synopsis_section(out)?;
    page.render_description_section(out)?;
    let with_parts = |sub: &Command| [vec![sub.clone()], sub.get_subcommands().cloned().collect()].concat();
    for sub in command.get_subcommands().flat_map(with_parts) {
        let name = sub.get_bin_name().unwrap_or_default().to_uppercase();
        writeln!(out, ".SH {name}")?;
        let mut text = Vec::new();
        let man = Man::new(sub.clone());
        man.render_synopsis_section(&mut text)?;
        man.render_description_section(&mut text)?;
        man.render_options_section(&mut text)?;
        // A command's sections become subsections of the page.
        out.write_all(
            String::from_utf8_lossy(&text).replace("\n.SH ", "\n.SS ").replacen(".SH ", ".SS ", 1).as_bytes(),
        )?;
    }
    out.write_all(FILES.as_bytes())?;
    page.render_version_section(out)
}

const FILES: &str = r#"
.SH FILES
.TP
.I /etc/terrace/terrace.toml, $XDG_CONFIG_HOME/terrace/terrace.toml
Configuration; the file named by \-\-config or TERRACE_CONFIG goes before both.
.TP
.I /run/terrace, $XDG_RUNTIME_DIR/terrace, /tmp/terrace\-UID
Sockets and logs of running instances.
.SH ENVIRONMENT
.TP
.B TERRACE_MEMORY, TERRACE_POLICY, TERRACE_TIER, TERRACE_METRICS, TERRACE_CONFIG
As the flags of these names, which go before them.
.TP
.B TERRACE_PRELOAD
The preload library, where it is not beside the program or in ../lib/terrace.
.TP
.B TERRACE_LARGE_FILE
Size in bytes from which a file that a program opens makes it a client of the preload path; default 1048576, 0: any file.
.SH EXIT STATUS
0 done, 1 negative answer, 2 usage or error. \fBterrace run\fR ends as its command does: with its status, or by its
signal; 127 if there is no such command, 126 if it cannot be run.
"#;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_man_page_tells_every_command() {
        let mut text = Vec::new();
        man(&mut text).unwrap();
        let text = String::from_utf8(text).unwrap();
        for sub in Cli::command().get_subcommands() {
            assert!(text.contains(&format!(".SH TERRACE {}", sub.get_name().to_uppercase())));
        }
        assert!(text.contains("no\\-preload") && text.contains("format\\-tier"));
        assert!(text.contains(".SH TERRACE TIER SHOW") && text.contains(".SH TERRACE DROP-CACHES"));
    }

    #[test]
    fn completions_know_the_flags() {
        for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
            let mut text = Vec::new();
            completion(shell, &mut text);
            assert!(String::from_utf8(text).unwrap().contains("no-preload"), "{shell}");
        }
    }
}
