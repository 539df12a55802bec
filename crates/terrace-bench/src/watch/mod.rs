//! `terrace-bench watch`: a mount, or a command and the mount that it works on, live in the terminal.
//!
//! ```text
//!   terrace stat --json ─► feed (a thread) ─► model: rates between two answers ─► screen (ratatui) · a line an interval
//!   command ─► child: output kept ───────────────────────────────► printed when the screen is left, exit status handed on
//! ```

mod child;
mod feed;
mod model;
mod screen;

use crate::signals;
use child::Child;
use clap::Args;
use feed::{Terrace, Which};
use model::{Snapshot, View};
use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use std::io::{self, IsTerminal, Write};
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, TryRecvError};
use std::time::{Duration, Instant};

/// How long to wait for keys, answers and the command's end.
const TICK: Duration = Duration::from_millis(50);
/// Questions without an answer, one after the other, after which the mount counts as gone: its daemon may be restarting.
const SILENCE_MAX: u32 = 2;
/// After a command was told to end, how long it has before it is killed.
const END_WITHIN: Duration = Duration::from_secs(30);

/// What is watched, and how.
#[derive(Clone, Debug, Args)]
pub struct Options {
    /// A directory that terrace serves; with a command, also one that it is to serve for it, as `terrace run --on MNT` does. Without it,
    /// the only one that terrace serves, or that the command makes it serve.
    pub mnt: Option<PathBuf>,
    /// Seconds between two looks.
    #[arg(long, default_value = "1", value_parser = seconds)]
    pub interval: Duration,
    /// The terrace binary; by default the one beside this program, or in PATH.
    #[arg(long)]
    pub terrace: Option<PathBuf>,
    /// An argument for `terrace run`; may be given again.
    #[arg(long = "terrace-arg", allow_hyphen_values = true)]
    pub terrace_args: Vec<String>,
    /// A command to run and watch to its end. What it prints follows when the screen is left.
    #[arg(last = true, value_name = "CMD")]
    pub command: Vec<String>,
}

fn seconds(text: &str) -> Result<Duration, String> {
    let value = text.parse::<f64>().ok().filter(|s| (0.05..=3600.0).contains(s));
    value.map(Duration::from_secs_f64).ok_or_else(|| "write 0.05 to 3600 seconds".to_owned())
}

/// Watches; the exit code is the command's.
///
/// # Errors
/// There is nothing to watch, or no longer.
pub fn run(options: &Options) -> io::Result<i32> {
    signals::catch();
    let terrace = Terrace::find(options.terrace.as_deref());
    let (which, argv) = plan(options, &terrace)?;
    let mut watch = Watch {
        view: View::default(),
        began: Instant::now(),
        child: None,
        command: argv.join(" "),
        told_at: None,
        silence: 0,
    };
    if !argv.is_empty() {
        watch.child = Some(Child::start(&argv)?);
    }
    let news = terrace.follow(which, options.interval);
    let ended = match io::stdout().is_terminal() && io::stdin().is_terminal() {
        true => on_screen(&mut watch, &news),
        false => in_lines(&mut watch, &news),
    };
    if let Some(child) = &mut watch.child {
        child.print()?;
    }
    ended
}

/// Which instance, and the command that is really run.
fn plan(options: &Options, terrace: &Terrace) -> io::Result<(Which, Vec<String>)> {
    let served = |mnt: &PathBuf| terrace.stat(Some(mnt)).map(drop);
    let mut argv = options.command.clone();
    match (&options.mnt, argv.is_empty()) {
        (None, true) => {
            let all = terrace.stat(None).map_err(io::Error::other)?;
            feed::choose(&Which::Only, &all).map_err(io::Error::other)?;
            Ok((Which::Only, argv))
        }
        (None, false) => Ok((Which::New(terrace.keepers()), argv)),
        (Some(mnt), true) => {
            served(mnt).map_err(io::Error::other)?;
            Ok((Which::At(mnt.clone()), argv))
        }
        (Some(mnt), false) => {
            if served(mnt).is_err() {
                let run =
                    [terrace.0.display().to_string(), "run".into(), "--on".into(), mnt.display().to_string()];
                let more = options.terrace_args.iter().cloned().chain(["--".to_owned()]);
                argv = run.into_iter().chain(more).chain(argv).collect();
            }
            Ok((Which::At(mnt.clone()), argv))
        }
    }
}

type News = Receiver<(Instant, Result<Snapshot, String>)>;

struct Watch {
    view: View,
    began: Instant,
    child: Option<Child>,
    command: String,
    /// When the command was told to end.
    told_at: Option<Instant>,
    silence: u32,
}

impl Watch {
    /// Takes what is new. True: there is something to show.
    ///
    /// # Errors
    /// The mount is gone, and no command is left to wait for.
    fn hear(&mut self, news: &News) -> io::Result<bool> {
        match news.try_recv() {
            Ok((at, Ok(snapshot))) => {
                self.silence = 0;
                self.view.take(snapshot, (at - self.began).as_secs_f64());
                Ok(true)
            }
            Ok((_, Err(why))) => {
                self.silence += 1;
                match self.child.is_none() && self.silence >= SILENCE_MAX {
                    true => Err(io::Error::other(why)),
                    false => Ok(false),
                }
            }
            Err(TryRecvError::Empty) => Ok(false),
            Err(TryRecvError::Disconnected) => Err(io::Error::other("nobody asks terrace any more")),
        }
    }

    /// Whether it is over: the command ended (its exit code), or somebody wants to leave. A command is told to end, and waited for.
    fn over(&mut self, leave: Option<i32>) -> io::Result<Option<i32>> {
        let signal = leave.or(signals::interrupted().then_some(libc::SIGTERM));
        let Some(child) = &mut self.child else { return Ok(signal.map(|_| 0)) };
        if let Some(code) = child.ended()? {
            return Ok(Some(code));
        }
        match (signal, self.told_at) {
            (Some(signal), None) => {
                child.tell(signal);
                self.told_at = Some(Instant::now());
            }
            (_, Some(at)) if at.elapsed() > END_WITHIN => child.tell(libc::SIGKILL),
            _ => {}
        }
        Ok(None)
    }

    fn name_command(&mut self) {
        if self.child.is_some() {
            let state = if self.told_at.is_some() { "told to end" } else { "running" };
            self.view.command =
                Some(format!("{} for {:.0} s: {}", state, self.began.elapsed().as_secs_f64(), self.command));
        }
    }
}

/// The screen is given back in any case: at the end, after an error, and by ratatui's hook in a panic.
fn on_screen(watch: &mut Watch, news: &News) -> io::Result<i32> {
    let mut terminal = ratatui::try_init().inspect_err(|_| ratatui::restore())?;
    let ended = show(&mut terminal, watch, news);
    ratatui::restore();
    ended
}

fn show(terminal: &mut DefaultTerminal, watch: &mut Watch, news: &News) -> io::Result<i32> {
    loop {
        watch.hear(news)?;
        watch.name_command();
        terminal.draw(|frame| screen::draw(frame, &watch.view))?;
        let leave = if event::poll(TICK)? { wish(&event::read()?) } else { None };
        if let Some(code) = watch.over(leave)? {
            return Ok(code);
        }
    }
}

/// The signal that a key stands for.
fn wish(event: &Event) -> Option<i32> {
    match event {
        Event::Key(KeyEvent { code, modifiers, kind: KeyEventKind::Press, .. }) => match code {
            KeyCode::Char('c') if modifiers.contains(KeyModifiers::CONTROL) => Some(libc::SIGINT),
            KeyCode::Char('q') | KeyCode::Esc => Some(libc::SIGTERM),
            _ => None,
        },
        _ => None,
    }
}

fn in_lines(watch: &mut Watch, news: &News) -> io::Result<i32> {
    loop {
        if watch.hear(news)? && writeln!(io::stdout(), "{}", screen::line(&watch.view)).is_err() {
            // The reader went away.
            signals::interrupt();
        }
        if let Some(code) = watch.over(None)? {
            return Ok(code);
        }
        std::thread::sleep(TICK);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_that_leave() {
        let key = |code, modifiers| Event::Key(KeyEvent::new(code, modifiers));
        assert_eq!(wish(&key(KeyCode::Char('q'), KeyModifiers::NONE)), Some(libc::SIGTERM));
        assert_eq!(wish(&key(KeyCode::Char('c'), KeyModifiers::CONTROL)), Some(libc::SIGINT));
        assert_eq!(wish(&key(KeyCode::Char('c'), KeyModifiers::NONE)), None);
        assert_eq!(wish(&Event::Resize(3, 4)), None);
    }

    #[test]
    fn intervals_have_bounds() {
        assert_eq!(seconds("0.5"), Ok(Duration::from_millis(500)));
        for wrong in ["0", "-1", "nan", "much", "1e9"] {
            assert!(seconds(wrong).is_err(), "{wrong}");
        }
    }
}
