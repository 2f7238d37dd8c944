//! Lists of system calls. Calls with conditions are in `calls`.

/// Numbers and names of system calls. A name begins with `SYS_`.
pub(crate) type Named = &'static [(i64, &'static str)];

macro_rules! calls {
    ($($name:ident)*) => { &[$((libc::$name, stringify!($name))),*] };
}

/// Memory, threads, time, and input and output on open descriptors.
#[rustfmt::skip]
pub(crate) const COMMON: Named = calls![
    SYS_brk SYS_capget SYS_clock_getres SYS_clock_gettime SYS_clock_nanosleep SYS_clone3 SYS_close SYS_close_range
    SYS_dup SYS_dup3 SYS_epoll_create1 SYS_epoll_ctl SYS_epoll_pwait SYS_epoll_pwait2 SYS_eventfd2
    SYS_exit SYS_exit_group SYS_fcntl SYS_fstat SYS_futex SYS_get_robust_list SYS_getcpu SYS_getegid
    SYS_geteuid SYS_getgid SYS_getpid SYS_getppid SYS_getpriority SYS_getrandom SYS_getrusage SYS_gettid
    SYS_gettimeofday SYS_getuid SYS_lseek SYS_madvise SYS_membarrier SYS_mincore SYS_mremap SYS_msync
    SYS_munmap SYS_nanosleep SYS_newfstatat SYS_pipe2 SYS_ppoll SYS_pread64 SYS_preadv SYS_preadv2
    SYS_pselect6 SYS_pwrite64 SYS_pwritev SYS_pwritev2 SYS_read SYS_readv SYS_recvfrom SYS_recvmsg
    SYS_restart_syscall SYS_rseq SYS_rt_sigaction SYS_rt_sigpending SYS_rt_sigprocmask SYS_rt_sigreturn
    SYS_rt_sigsuspend SYS_rt_sigtimedwait SYS_sched_getaffinity SYS_sched_getparam
    SYS_sched_getscheduler SYS_sched_yield SYS_sendmsg SYS_sendto SYS_set_robust_list
    SYS_set_tid_address SYS_shutdown SYS_sigaltstack SYS_signalfd4 SYS_statx SYS_sysinfo
    SYS_timerfd_create SYS_timerfd_gettime SYS_timerfd_settime SYS_times SYS_uname SYS_write SYS_writev
];

/// Calls for the same purpose that only x86-64 has.
#[rustfmt::skip]
#[cfg(target_arch = "x86_64")]
pub(crate) const COMMON_OF_X86_64: Named = calls![
    SYS_arch_prctl SYS_dup2 SYS_epoll_create SYS_epoll_wait SYS_eventfd SYS_getpgrp SYS_lstat SYS_pause
    SYS_pipe SYS_poll SYS_select SYS_stat SYS_time
];
#[cfg(not(target_arch = "x86_64"))]
pub(crate) const COMMON_OF_X86_64: Named = &[];

/// Files and folders, whose paths Landlock restricts.
#[rustfmt::skip]
pub(crate) const FILES: Named = calls![
    SYS_chdir SYS_copy_file_range SYS_faccessat SYS_faccessat2 SYS_fadvise64 SYS_fallocate SYS_fchmod
    SYS_fchmodat SYS_fdatasync SYS_fgetxattr SYS_flock SYS_fstatfs SYS_fsync SYS_ftruncate
    SYS_getcwd SYS_getdents64 SYS_linkat SYS_memfd_create SYS_mkdirat SYS_openat SYS_openat2
    SYS_readahead SYS_readlinkat SYS_renameat SYS_renameat2 SYS_sendfile SYS_splice SYS_statfs
    SYS_symlinkat SYS_sync_file_range SYS_tee SYS_truncate SYS_umask SYS_unlinkat SYS_utimensat
];

/// fchmodat2(2) of Linux 6.6, for the same purpose. It has one number on all architectures, which libc does not have for each.
pub(crate) const FCHMODAT2: Named = &[(452, "SYS_fchmodat2")];

/// Calls for the same purpose that only x86-64 has.
#[rustfmt::skip]
#[cfg(target_arch = "x86_64")]
pub(crate) const FILES_OF_X86_64: Named = calls![
    SYS_access SYS_chmod SYS_creat SYS_getdents SYS_link SYS_mkdir SYS_open SYS_readlink SYS_rename
    SYS_rmdir SYS_symlink SYS_unlink SYS_utime SYS_utimes
];
#[cfg(not(target_arch = "x86_64"))]
pub(crate) const FILES_OF_X86_64: Named = &[];

/// Sockets; socket(2) has conditions.
#[rustfmt::skip]
pub(crate) const SOCKETS: Named = calls![
    SYS_accept SYS_accept4 SYS_bind SYS_connect SYS_getpeername SYS_getsockname SYS_getsockopt
    SYS_recvmmsg SYS_sendmmsg SYS_setsockopt
];

/// Operations of rings and contexts of libaio that exist already. New ones cannot be created.
#[rustfmt::skip]
pub(crate) const WORKER: Named = calls![
    SYS_io_cancel SYS_io_destroy SYS_io_getevents SYS_io_submit SYS_io_uring_enter
];

/// Some calls that no process may use, so that a message about one has its name.
#[rustfmt::skip]
pub(crate) const REFUSED: Named = calls![
    SYS_acct SYS_add_key SYS_bpf SYS_capset SYS_chroot SYS_clock_settime SYS_delete_module SYS_execve
    SYS_execveat SYS_fanotify_init SYS_finit_module SYS_fsconfig SYS_fsmount SYS_fsopen SYS_init_module
    SYS_inotify_init1 SYS_io_setup SYS_io_uring_setup SYS_kcmp SYS_kexec_load SYS_keyctl
    SYS_landlock_create_ruleset SYS_mknodat SYS_mlock SYS_mlock2 SYS_mount SYS_mount_setattr
    SYS_move_mount SYS_name_to_handle_at SYS_open_by_handle_at SYS_open_tree SYS_perf_event_open
    SYS_personality SYS_pidfd_getfd SYS_pivot_root SYS_pkey_mprotect SYS_process_madvise
    SYS_process_vm_readv SYS_process_vm_writev SYS_ptrace SYS_quotactl SYS_reboot SYS_request_key
    SYS_rt_sigqueueinfo SYS_rt_tgsigqueueinfo SYS_sched_setaffinity SYS_sched_setattr SYS_sched_setparam
    SYS_sched_setscheduler SYS_seccomp SYS_setdomainname SYS_setgid SYS_setgroups SYS_sethostname
    SYS_setns SYS_setpriority SYS_setregid SYS_setresgid SYS_setresuid SYS_setreuid SYS_setsid
    SYS_setuid SYS_shmat SYS_shmget SYS_swapoff SYS_swapon SYS_sync SYS_tkill SYS_umount2 SYS_unshare
    SYS_userfaultfd SYS_vmsplice SYS_wait4 SYS_waitid
];
