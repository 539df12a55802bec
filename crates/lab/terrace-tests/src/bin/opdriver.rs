//! The executor of operation scripts as a program: runs a script in a directory, and prints each operation's
//! result. `opdriver DIR SCRIPT [--break read:N|write:N]`. `opdriver --tree DIR` prints the tree of a
//! directory. `opdriver --inherited FD LEN AT` is the program of the operations `exec` and `spawn`.

use std::io::Write as _;
use terrace_tests::exec::{Break, Executor, inherited, tree};

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = args.iter().map(String::as_str).collect();
    match words[..] {
        ["--inherited", fd, len, at] => {
            let number = |text: &str| text.parse::<i64>().expect("a number");
            say(&inherited(number(fd) as i32, number(len) as usize, number(at)));
        }
        ["--tree", dir] => {
            std::env::set_current_dir(dir).expect("the directory exists");
            let mut out = String::new();
            tree(".", &mut out, "");
            say(&out);
        }
        [dir, script] => run(dir, script, Break::None),
        [dir, script, "--break", fault] => {
            let (kind, n) = fault.split_once(':').expect("read:N or write:N");
            let n = n.parse().expect("a number");
            run(dir, script, if kind == "read" { Break::Read(n) } else { Break::Write(n) });
        }
        _ => {
            eprintln!("opdriver DIR SCRIPT [--break read:N|write:N] | --tree DIR");
            std::process::exit(2);
        }
    }
}

fn run(dir: &str, script: &str, fault: Break) {
    let script = std::fs::read_to_string(script).expect("the script can be read");
    Executor::new(dir, fault).run(&script, say);
}

fn say(text: &str) {
    std::io::stdout().write_all(text.as_bytes()).expect("the log can be written");
    std::io::stdout().flush().expect("the log can be written");
}
