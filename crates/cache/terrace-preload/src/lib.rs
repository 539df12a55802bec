//! The preload path: an LD_PRELOAD library that serves reads from the shared segment. The files are those of
//! a mount, or of a directory served by leases.
//!
//! | module | what |
//! |---|---|
//! | [`hooks`] | the exported functions |
//! | [`table`] | state of each descriptor |
//! | [`read`], [`miss`], [`buffer`] | hits; misses read by the library; invalid buffers |
//! | [`device`], [`run`] | targets of the device tiers; the pages of one direct read |
//! | [`leased`], [`directory`] | reads without a mount |
//! | [`guarded`], [`writers`], [`lasting`] | announced writes; their descriptors; writes that the library does not see |
//! | [`uring`] | reads by rings of liburing |
//! | [`file`], [`fill`] | an open file during a read; page fills and requests for the daemon |
//! | [`closing`] | the end of the preload path in a process |
//! | [`connection`], [`exchange`], [`rings`], [`source`], [`helper`] | the daemon, and memory and descriptors from it |
//! | [`next`], [`symbols`], [`sys`], [`local`] | real functions, system calls, thread-local state |
//! | [`quiet`] | filters of system calls |
//! | [`unwind`] | the unwinder, loaded on demand |
//!
//! It may only be faster than the mount path, never different. So the real call serves unusual cases: unusual
//! flags, arguments that the kernel refuses, a position shared with other processes, a silent daemon. The
//! library allocates nothing after its start and waits for no lock on any read. So it may run inside signal
//! handlers and allocators. Only a panic allocates, on its way to the guard that closes the preload path.

#[cfg(not(all(target_os = "linux", target_arch = "x86_64")))]
compile_error!("the preload path knows the system calls and the calling convention of Linux on x86-64 only");

mod buffer;
mod closing;
mod connection;
mod device;
mod directory;
mod exchange;
mod file;
mod fill;
mod guarded;
mod helper;
mod hooks;
mod lasting;
mod leased;
mod liburing;
mod local;
mod miss;
mod next;
mod quiet;
mod read;
mod ring_writes;
mod rings;
mod run;
mod source;
mod symbols;
mod sys;
mod table;
mod unwind;
mod uring;
mod writers;

/// Until this has run, every hook is the kernel's call and nothing else.
extern "C" fn start() {
    // The library's start must not change the program's errno.
    // SAFETY: errno is this thread's.
    unsafe {
        let errno = libc::__errno_location();
        let before = *errno;
        // A panic closes the preload path and does not end the program: it prints nothing on the program's
        // stderr.
        std::panic::set_hook(Box::new(|_| ()));
        next::start();
        connection::configure(writers::begin_announcing);
        directory::configure();
        if connection::mount_dev().is_some() {
            hooks::watch_forks();
            writers::find_all();
        }
        *errno = before;
    }
}

#[used]
#[unsafe(link_section = ".init_array")]
static START: extern "C" fn() = start;
