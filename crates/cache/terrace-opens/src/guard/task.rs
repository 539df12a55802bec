//! A thread of any process, by the number that fanotify reports.

use terrace_system::proc;

/// A thread. It may have ended: the number of a waiting opener is valid, that of a closer need not be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Task(pub(crate) i32);

impl Task {
    /// Number of the thread in this process's PID namespace. 0: the thread lies outside of it.
    pub fn tid(self) -> i32 {
        self.0
    }

    /// Does the thread belong to the process `pid`? One system call.
    pub fn is_of(self, pid: i32) -> bool {
        // SAFETY: plain numbers. Signal 0 is a check alone.
        self.0 > 0 && unsafe { libc::syscall(libc::SYS_tgkill, pid, self.0, 0) } == 0
    }

    /// True if the thread waits in an open for reading that empties no file, or in an execve. Both leave the
    /// content. The kernel shows the call and its flags.
    pub fn opens_for_reading(self) -> bool {
        let read = |flags: i64| flags as libc::c_int & (libc::O_ACCMODE | libc::O_TRUNC) == libc::O_RDONLY;
        // The event comes before the opener sleeps: the kernel shows no call of a thread that runs.
        let call = (0..10).find_map(|_| {
            let call = proc::system_call(self.0);
            call.is_none().then(std::thread::yield_now);
            call
        });
        match call {
            Some((libc::SYS_open, args)) => read(args[1]),
            Some((libc::SYS_openat | libc::SYS_open_by_handle_at, args)) => read(args[2]),
            Some((libc::SYS_execve | libc::SYS_execveat, _)) => true,
            _ => false,
        }
    }

    /// The process of the thread, from /proc. None: the thread has ended.
    pub fn process(self) -> Option<i32> {
        proc::process_of(self.0)?.try_into().ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_belong_to_their_process() {
        let own = i32::try_from(std::process::id()).unwrap();
        let thread = std::thread::spawn(|| Task(rustix::thread::gettid().as_raw_nonzero().get()));
        let ended = thread.join().unwrap();
        let task = Task(rustix::thread::gettid().as_raw_nonzero().get());
        assert!(task.tid() != own && task.is_of(own) && !task.is_of(1));
        assert_eq!((task.process(), Task(1).process()), (Some(own), Some(1)));
        terrace_testkit::wait::wait_until("the end of the thread", || !ended.is_of(own));
        assert!(!Task(0).is_of(own));
    }
}
