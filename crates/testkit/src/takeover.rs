//! Acts as an attacker who has taken over a process: executes system calls in one of its threads.
//!
//! [`Thread::take`] stops a thread by ptrace(2). [`Thread::call`] sets the registers of the thread to the arguments of a system call and
//! lets the thread execute one `syscall` instruction of its program. So the kernel applies all restrictions of this thread: its user, its
//! seccomp filter, its Landlock rules. [`Ring`] submits operations by an io_uring of the thread. Dropping a [`Thread`] restores its
//! registers, and the thread continues as if nothing had happened.
//!
//! The process is the unchanged program. Limits: x86_64 only; the tracer needs the right to trace the process, so it must be root if the
//! process is not dumpable.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;

use nix::errno::Errno;
use nix::sys::ptrace;
use nix::sys::signal::Signal;
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid as NixPid;

use crate::process::Pid;
use crate::wait::{self, Deadline};

/// Result of a system call: its value, or the error number.
pub type Outcome = Result<u64, i32>;

/// The code of the `syscall` instruction.
const SYSCALL: [u8; 2] = [0x0f, 0x05];

/// Size of the memory for arguments in bytes.
const SCRATCH: u64 = 64 * 1024;

/// The largest error number of a system call.
const ERRNO_MAX: u64 = 4095;

/// The error of a call that a seccomp filter refuses.
const EPERM: i32 = 1;

/// System calls that this module needs.
const MMAP: u64 = 9;
const IO_URING_SETUP: u64 = 425;
const IO_URING_ENTER: u64 = 426;

/// A stopped thread of another process.
#[derive(Debug)]
pub struct Thread {
    tid: NixPid,
    /// The registers at the stop.
    saved: nix::libc::user_regs_struct,
    memory: File,
    /// Address of a `syscall` instruction in the process.
    instruction: u64,
    /// Address of memory of the process for arguments.
    scratch: u64,
    /// Bytes of this memory that are in use.
    used: u64,
}

impl Thread {
    /// Stops a thread of process `pid`. The reason of a failure is returned.
    pub fn take(pid: Pid, tid: Pid) -> Result<Thread, String> {
        let failed = |what: &str, error: &dyn std::fmt::Display| format!("{what} of {pid}: {error}");
        let thread = NixPid::from_raw(tid);
        ptrace::seize(thread, ptrace::Options::empty()).map_err(|error| failed("PTRACE_SEIZE", &error))?;
        ptrace::interrupt(thread).map_err(|error| failed("PTRACE_INTERRUPT", &error))?;
        wait_for_stop(thread)?;
        let saved = ptrace::getregs(thread).map_err(|error| failed("registers", &error))?;
        let options = fs::OpenOptions::new().read(true).write(true).open(format!("/proc/{pid}/mem"));
        let memory = options.map_err(|error| failed("memory", &error))?;
        let instruction =
            find_instruction(pid, &memory).ok_or_else(|| failed("code", &"no syscall instruction"))?;
        let mut taken = Thread { tid: thread, saved, memory, instruction, scratch: 0, used: 0 };
        // Readable and writable, private and anonymous.
        let scratch = taken.call(MMAP, &[0, SCRATCH, 3, 0x22, u64::MAX, 0]);
        taken.scratch = scratch.map_err(|errno| failed("mmap", &errno))?;
        Ok(taken)
    }

    /// Executes a system call.
    ///
    /// # Panics
    ///
    /// Panics if the process ends instead.
    #[track_caller]
    pub fn call(&mut self, number: u64, arguments: &[u64]) -> Outcome {
        let argument = |index: usize| arguments.get(index).copied().unwrap_or(0);
        let registers = nix::libc::user_regs_struct {
            rip: self.instruction,
            rax: number,
            // No system call is restarted at this stop.
            orig_rax: u64::MAX,
            rdi: argument(0),
            rsi: argument(1),
            rdx: argument(2),
            r10: argument(3),
            r8: argument(4),
            r9: argument(5),
            ..self.saved
        };
        let run = || -> Result<u64, String> {
            ptrace::setregs(self.tid, registers).map_err(|error| error.to_string())?;
            if self.step()? == StopReason::Refused {
                // The trap of the step is still pending; it arrives before the next instruction.
                self.step()?;
                return Ok((i64::from(EPERM).wrapping_neg()) as u64);
            }
            Ok(ptrace::getregs(self.tid).map_err(|error| error.to_string())?.rax)
        };
        let value = run().unwrap_or_else(|failure| panic!("system call {number}: {failure}"));
        if value > u64::MAX - ERRNO_MAX { Err((value.wrapping_neg()) as i32) } else { Ok(value) }
    }

    fn step(&self) -> Result<StopReason, String> {
        ptrace::step(self.tid, None).map_err(|error| error.to_string())?;
        wait_for_stop(self.tid)
    }

    /// Copies bytes into the memory of the process, with a NUL at the end; returns their address there.
    #[track_caller]
    pub fn bytes(&mut self, bytes: &[u8]) -> u64 {
        let length = (bytes.len() as u64 + 1).next_multiple_of(16);
        // Earlier arguments are no longer needed when the memory is full.
        if self.used + length > SCRATCH {
            self.used = 0;
        }
        let address = self.scratch + self.used;
        self.used += length;
        self.write(address, bytes);
        self.write(address + bytes.len() as u64, &[0]);
        address
    }

    /// Writes to the memory of the process.
    #[track_caller]
    pub fn write(&self, address: u64, bytes: &[u8]) {
        self.memory.write_all_at(bytes, address).unwrap_or_else(|error| panic!("{address:#x}: {error}"));
    }

    /// Reads memory of the process.
    #[track_caller]
    pub fn read<const N: usize>(&self, address: u64) -> [u8; N] {
        let mut bytes = [0; N];
        self.memory
            .read_exact_at(&mut bytes, address)
            .unwrap_or_else(|error| panic!("{address:#x}: {error}"));
        bytes
    }

    fn u32_at(&self, address: u64) -> u32 {
        u32::from_ne_bytes(self.read(address))
    }
}

impl Drop for Thread {
    fn drop(&mut self) {
        // Fails only if the process has ended.
        let _ = ptrace::setregs(self.tid, self.saved);
        let _ = ptrace::detach(self.tid, None);
    }
}

/// The reason of a stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum StopReason {
    /// The tracer has stopped the thread, or an instruction was executed.
    Trap,
    /// A seccomp filter has refused a system call by SIGSYS. The handler of the server would make it fail with EPERM.
    Refused,
}

/// Waits until a traced thread is stopped.
fn wait_for_stop(thread: NixPid) -> Result<StopReason, String> {
    let stopped = || match waitpid(thread, Some(WaitPidFlag::__WALL | WaitPidFlag::WNOHANG)) {
        Ok(WaitStatus::StillAlive) | Err(Errno::EINTR) => None,
        Ok(WaitStatus::PtraceEvent(..) | WaitStatus::Stopped(_, Signal::SIGTRAP)) => {
            Some(Ok(StopReason::Trap))
        }
        Ok(WaitStatus::Stopped(_, Signal::SIGSYS)) => Some(Ok(StopReason::Refused)),
        Ok(other) => Some(Err(format!("{other:?}"))),
        Err(error) => Some(Err(error.to_string())),
    };
    wait::until("the stop of a thread", Deadline::default(), stopped)
        .unwrap_or_else(|late| Err(late.to_string()))
}

/// Returns the address of a `syscall` instruction in the program or its libraries.
fn find_instruction(pid: Pid, memory: &File) -> Option<u64> {
    maps(pid).into_iter().filter(|map| map.is_code && map.name.starts_with('/')).find_map(|map| {
        let mut code = vec![0; usize::try_from(map.end - map.start).ok()?];
        memory.read_exact_at(&mut code, map.start).ok()?;
        let at = code.windows(SYSCALL.len()).position(|two| two == SYSCALL)?;
        Some(map.start + at as u64)
    })
}

/// A line of `/proc/PID/maps`.
struct Map {
    start: u64,
    end: u64,
    offset: u64,
    is_code: bool,
    name: String,
}

fn maps(pid: Pid) -> Vec<Map> {
    let text = fs::read_to_string(format!("/proc/{pid}/maps")).unwrap_or_default();
    let parse = |line: &str| {
        let mut fields = line.split_whitespace();
        let (start, end) = fields.next()?.split_once('-')?;
        let is_code = fields.next()?.contains('x');
        let number = |text: &str| u64::from_str_radix(text, 16).ok();
        let offset = number(fields.next()?)?;
        let name = fields.nth(2).unwrap_or_default().to_owned();
        Some(Map { start: number(start)?, end: number(end)?, offset, is_code, name })
    };
    text.lines().filter_map(parse).collect()
}

/// Offset of the entries in the descriptor of a ring, for mmap(2).
const OFFSET_ENTRIES: u64 = 0x1000_0000;

/// Size of an entry of the submission queue in bytes.
const ENTRY: u64 = 64;

/// Size of an entry of the completion queue in bytes.
const COMPLETION: u64 = 16;

/// The number by which this module recognises its completion.
const USER_DATA: u64 = 0x7461_6b65_6e21;

/// An io_uring of a process, for operations that the process did not intend.
#[derive(Debug)]
pub struct Ring {
    fd: u64,
    queues: u64,
    entries: u64,
    layout: Layout,
}

/// Offsets of the queues' numbers, which depend on the kernel: `struct io_uring_params` of io_uring_setup(2).
#[derive(Clone, Copy, Debug)]
pub struct Layout {
    submission_head: u64,
    submission_tail: u64,
    submission_mask: u64,
    completion_head: u64,
    completion_tail: u64,
    completion_mask: u64,
    completions: u64,
}

impl Layout {
    /// Determines the offsets by creating a ring in a process without restrictions.
    pub fn determine(thread: &mut Thread) -> Result<Layout, String> {
        let parameters = thread.bytes(&[0; 120]);
        thread.call(IO_URING_SETUP, &[8, parameters]).map_err(|errno| format!("io_uring_setup: {errno}"))?;
        let at = |index: u64| u64::from(thread.u32_at(parameters + index));
        Ok(Layout {
            submission_head: at(40),
            submission_tail: at(44),
            submission_mask: at(48),
            completion_head: at(80),
            completion_tail: at(84),
            completion_mask: at(88),
            completions: at(100),
        })
    }
}

impl Ring {
    /// Finds the ring in which a stopped thread was waiting.
    pub fn of(thread: &Thread, pid: Pid, layout: Layout) -> Result<Ring, String> {
        if thread.saved.orig_rax != IO_URING_ENTER {
            return Err(format!("the thread was in system call {}", thread.saved.orig_rax));
        }
        let rings: Vec<Map> = maps(pid).into_iter().filter(|map| map.name.contains("[io_uring]")).collect();
        let mut found = Vec::new();
        for fd in ring_descriptors(pid) {
            // `SqMask` and `CqTail` are in fdinfo since Linux 5.10.
            let info = fs::read_to_string(format!("/proc/{pid}/fdinfo/{fd}")).unwrap_or_default();
            let field = |name: &str| {
                let line = info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?.trim();
                line.strip_prefix("0x")
                    .map_or_else(|| line.parse().ok(), |hex| u32::from_str_radix(hex, 16).ok())
            };
            let is_this = |map: &&Map| {
                let at = |offset: u64| Some(thread.u32_at(map.start + offset));
                map.offset == 0
                    && at(layout.submission_mask) == field("SqMask")
                    && at(layout.submission_tail) == field("SqTail")
                    && at(layout.completion_mask) == field("CqMask")
                    && at(layout.completion_tail) == field("CqTail")
            };
            found.extend(rings.iter().filter(is_this).map(|map| (fd, map)));
        }
        let [(fd, queues)] = found[..] else { return Err(format!("{} rings, not one", found.len())) };
        // The library maps the entries immediately after the queues, and the kernel assigns adjacent addresses from high to low.
        let entries = rings.iter().filter(|map| map.offset == OFFSET_ENTRIES);
        let entries = entries.min_by_key(|map| map.start.abs_diff(queues.start)).ok_or("no entries")?;
        Ok(Ring { fd, queues: queues.start, entries: entries.start, layout })
    }

    /// Returns the descriptor of the ring in its process.
    pub fn fd(&self) -> u64 {
        self.fd
    }

    /// Submits an operation and waits for its completion. Returns the result of the operation.
    #[track_caller]
    pub fn submit(&self, thread: &mut Thread, entry: &Entry) -> Outcome {
        let Layout { submission_tail, submission_mask, completion_head, completion_tail, .. } = self.layout;
        let at = |thread: &Thread, offset: u64| thread.u32_at(self.queues + offset);
        let tail = at(thread, submission_tail);
        assert_eq!(tail, at(thread, self.layout.submission_head), "no operation waits for its submission");
        let index = u64::from(tail & at(thread, submission_mask));
        thread.write(self.entries + index * ENTRY, &entry.encode());
        thread.write(self.queues + submission_tail, &tail.wrapping_add(1).to_ne_bytes());
        let entered = thread.call(IO_URING_ENTER, &[self.fd, 1, 0, 0, 0, 0]);
        assert_eq!(entered, Ok(1), "one operation is submitted");
        let mask = at(thread, self.layout.completion_mask);
        let slot =
            |number: u32| self.queues + self.layout.completions + u64::from(number & mask) * COMPLETION;
        let deadline = Deadline::default();
        let (head, own) = loop {
            let (head, tail) = (at(thread, completion_head), at(thread, completion_tail));
            let count = tail.wrapping_sub(head);
            let mut numbers = (0..count).map(|number| head.wrapping_add(number));
            let is_own = |number: &u32| u64::from_ne_bytes(thread.read(slot(*number))) == USER_DATA;
            if let Some(own) = numbers.find(is_own) {
                break (head, own);
            }
            assert!(deadline.left().is_some(), "operation {} has not completed", entry.opcode);
            // IORING_ENTER_GETEVENTS: waits for one completion more than there are, which can be those of the process.
            let waited = thread.call(IO_URING_ENTER, &[self.fd, 0, u64::from(count) + 1, 1, 0, 0]);
            assert_eq!(waited, Ok(0), "no operation is submitted");
        };
        let completion: [u8; COMPLETION as usize] = thread.read(slot(own));
        // The process must not see this completion: the first completion moves into its slot, and is then the next one.
        let first: [u8; COMPLETION as usize] = thread.read(slot(head));
        thread.write(slot(own), &first);
        thread.write(self.queues + completion_head, &head.wrapping_add(1).to_ne_bytes());
        let result = i32::from_ne_bytes([completion[8], completion[9], completion[10], completion[11]]);
        u64::try_from(result).map_err(|_| -result)
    }
}

/// Returns the descriptors of a process that are rings.
fn ring_descriptors(pid: Pid) -> Vec<u64> {
    let directory = format!("/proc/{pid}/fd");
    let listing = fs::read_dir(&directory).into_iter().flatten().flatten();
    let is_ring = |entry: &fs::DirEntry| {
        fs::read_link(entry.path()).is_ok_and(|target| target.as_os_str() == "anon_inode:[io_uring]")
    };
    listing.filter(is_ring).filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
}

/// An entry of the submission queue: fields of `struct io_uring_sqe`.
#[derive(Clone, Copy, Debug, Default)]
pub struct Entry {
    /// The operation, a value of `enum io_uring_op`.
    pub opcode: u8,
    /// A descriptor or directory.
    pub fd: i32,
    /// `off`, or the second address.
    pub offset: u64,
    /// `addr`, the address of the argument.
    pub address: u64,
    /// `len`.
    pub length: u32,
    /// The flags of the operation.
    pub flags: u32,
}

impl Entry {
    fn encode(&self) -> [u8; ENTRY as usize] {
        let mut bytes = [0; ENTRY as usize];
        bytes[0] = self.opcode;
        bytes[4..8].copy_from_slice(&self.fd.to_ne_bytes());
        bytes[8..16].copy_from_slice(&self.offset.to_ne_bytes());
        bytes[16..24].copy_from_slice(&self.address.to_ne_bytes());
        bytes[24..28].copy_from_slice(&self.length.to_ne_bytes());
        bytes[28..32].copy_from_slice(&self.flags.to_ne_bytes());
        bytes[32..40].copy_from_slice(&USER_DATA.to_ne_bytes());
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Program;

    /// getppid(2) and openat(2).
    const GETPPID: u64 = 110;
    const OPENAT: u64 = 257;

    #[test]
    fn a_taken_thread_executes_calls_and_then_continues() {
        let mut sleeping = Program::start("sleep", &["600"]);
        let pid = sleeping.pid();
        {
            let mut thread = match Thread::take(pid, pid) {
                Ok(thread) => thread,
                Err(reason) => return crate::skip(format_args!("no process can be traced: {reason}")),
            };
            assert_eq!(thread.call(GETPPID, &[]), Ok(u64::from(std::process::id())));
            let name = thread.bytes(b"/no/such/file");
            assert_eq!(thread.call(OPENAT, &[u64::MAX, name, 0]), Err(2));
            assert_eq!(thread.read(name), *b"/no/such/file\0");
        }
        assert_eq!(sleeping.exited(), None, "it continues");
    }
}
