//! `terrace top`: live statistics of a mount in the terminal.
//!
//! ```text
//!   stat over the control socket ─► feed (a thread) ─► model: rates between two answers ─► screen (ratatui) · a line an interval
//! ```

mod feed;
mod model;
mod screen;
mod web;

use std::io::{self, IsTerminal};
use std::process::ExitCode;
use std::sync::mpsc::{Receiver, TryRecvError};
use std::time::{Duration, Instant};

use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use terrace_output::signals::{self, interrupted};

use crate::cli;
use crate::commands;
use crate::error::{Failure, Result};
use feed::{SILENCE_MAX, TICK};
use model::{Snapshot, View};

/// Shows a mount until the user quits, or the mount is gone.
pub(crate) fn top(args: &cli::Top) -> Result<ExitCode> {
    let every = interval(args.interval)?;
    let mnt = feed::choose(args.mnt.as_deref())?;
    // So that the terminal is restored before the end.
    signals::catch();
    if args.http.is_some() {
        return web::serve(mnt, args, every);
    }
    let snapshots = feed::follow(mnt, every);
    let mut watch = Watch { view: View::default(), began: Instant::now(), silence: 0 };
    if io::stdout().is_terminal() && io::stdin().is_terminal() {
        on_screen(&mut watch, &snapshots)?;
    } else {
        in_lines(&mut watch, &snapshots)?;
    }
    Ok(ExitCode::SUCCESS)
}

fn interval(seconds: f64) -> Result<Duration> {
    let sane = (0.05..=3600.0).contains(&seconds);
    sane.then(|| Duration::from_secs_f64(seconds)).ok_or_else(|| {
        Failure::new("--interval", format!("{seconds} is no interval"), "write 0.05 to 3600 seconds")
    })
}

type Snapshots = Receiver<(Instant, Result<Snapshot>)>;

struct Watch {
    view: View,
    began: Instant,
    silence: u32,
}

impl Watch {
    /// Takes new data; true if there are any. Fails when the daemon no longer answers.
    fn update(&mut self, snapshots: &Snapshots) -> Result<bool> {
        match snapshots.try_recv() {
            Ok((at, Ok(snapshot))) => {
                self.silence = 0;
                self.view.take(snapshot, (at - self.began).as_secs_f64());
                Ok(true)
            }
            Ok((_, Err(why))) => {
                self.silence += 1;
                if self.silence >= SILENCE_MAX { Err(why) } else { Ok(false) }
            }
            Err(TryRecvError::Empty) => Ok(false),
            Err(TryRecvError::Disconnected) => {
                Err(Failure::new("top", "its request thread has ended", "please report this"))
            }
        }
    }
}

/// The terminal is restored in any case: at the end, after an error, and by ratatui's panic hook.
fn on_screen(watch: &mut Watch, snapshots: &Snapshots) -> Result<()> {
    let terminal = ratatui::try_init().inspect_err(|_| ratatui::restore());
    let ended = terminal.map_err(unshown).and_then(|mut terminal| show(&mut terminal, watch, snapshots));
    ratatui::restore();
    ended
}

fn unshown(err: io::Error) -> Failure {
    Failure::new("top", err, "`terrace top | cat` needs no terminal: it prints a line each interval")
}

fn show(terminal: &mut DefaultTerminal, watch: &mut Watch, snapshots: &Snapshots) -> Result<()> {
    while !interrupted() {
        watch.update(snapshots)?;
        terminal.draw(|frame| screen::draw(frame, &watch.view)).map_err(unshown)?;
        let key = match event::poll(TICK) {
            Ok(true) => event::read().map(Some),
            Ok(false) => Ok(None),
            Err(err) => Err(err),
        };
        match key {
            Ok(Some(key)) if leaves(&key) => return Ok(()),
            Err(err) if err.kind() != io::ErrorKind::Interrupted => return Err(unshown(err)),
            _ => {}
        }
    }
    Ok(())
}

/// Does this key quit?
fn leaves(event: &Event) -> bool {
    match event {
        Event::Key(KeyEvent { code, modifiers, kind: KeyEventKind::Press, .. }) => match code {
            KeyCode::Char('c') => modifiers.contains(KeyModifiers::CONTROL),
            KeyCode::Char('q') | KeyCode::Esc => true,
            _ => false,
        },
        _ => false,
    }
}

fn in_lines(watch: &mut Watch, snapshots: &Snapshots) -> Result<()> {
    while !interrupted() {
        if watch.update(snapshots)? && !commands::print(&format!("{}\n", screen::line(&watch.view)))? {
            return Ok(());
        }
        std::thread::sleep(TICK);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_that_leave() {
        let key = |code, modifiers| Event::Key(KeyEvent::new(code, modifiers));
        assert!(leaves(&key(KeyCode::Char('q'), KeyModifiers::NONE)));
        assert!(leaves(&key(KeyCode::Char('c'), KeyModifiers::CONTROL)));
        assert!(!leaves(&key(KeyCode::Char('c'), KeyModifiers::NONE)));
        assert!(!leaves(&Event::Resize(3, 4)));
    }

    #[test]
    fn intervals_have_bounds() {
        assert_eq!(interval(0.5).ok(), Some(Duration::from_millis(500)));
        for wrong in [0.0, -1.0, f64::NAN, 1e9] {
            assert!(interval(wrong).is_err(), "{wrong}");
        }
    }
}
