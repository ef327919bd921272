/*
 * Loaded into workerd by LD_PRELOAD: makes V8's sampling thread rest from SIGTERM on.
 *
 * Why: workerd 1.20261117 frees its isolates at SIGTERM while a CPU profile may still run, and V8's
 * sampling thread then touches freed memory at its next tick: SIGSEGV, exit status 1, in about 7 ms
 * ÷ interval of all stops (measured: 15 % at 50 ms; with this library none). It can go when workerd
 * stops its profiler before it frees the isolate.
 *
 * How: the sampling thread is the one that sends SIGPROF by pthread_kill; between ticks it waits
 * for a futex, by syscall(2). From SIGTERM on this wait has no time limit any more. Nothing is held
 * meanwhile, and stopping the profile (a wake, then a join) works as ever.
 *
 * Guest rule: no allocation, output, exit, lock or thread of its own; one flag, one mark per
 * thread, three wrapped calls that end in the real ones. Must not know anything else of workerd or
 * V8.
 */
#include <dlfcn.h>
#include <errno.h>
#include <linux/futex.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <sys/syscall.h>
#include <unistd.h>

#define GUARD_PUBLIC __attribute__((visibility("default")))

typedef long (*syscall_fn)(long, ...);
typedef int (*kill_fn)(pthread_t, int);
typedef int (*sigaction_fn)(int, const struct sigaction *, struct sigaction *);

static _Atomic int leaving; /* 1 from the first SIGTERM on */
static __thread int is_sampling_thread __attribute__((tls_model("initial-exec")));
static syscall_fn real_syscall;
static kill_fn real_kill;
static sigaction_fn real_sigaction;
/* The program's own reaction to SIGTERM; written before the wrapper is installed. */
static struct sigaction program_action;

GUARD_PUBLIC int pthread_kill(pthread_t thread, int number);
GUARD_PUBLIC long syscall(long number, ...);
GUARD_PUBLIC int sigaction(int number, const struct sigaction *action, struct sigaction *old);

/* Before main and before any thread; the wrappers ask again, in case a constructor of the program
 * came first. */
__attribute__((constructor)) static void
find_real_functions(void)
{
    real_syscall = (syscall_fn)dlsym(RTLD_NEXT, "syscall");
    real_kill = (kill_fn)dlsym(RTLD_NEXT, "pthread_kill");
    real_sigaction = (sigaction_fn)dlsym(RTLD_NEXT, "sigaction");
}

int
pthread_kill(pthread_t thread, int number)
{
    if (real_kill == NULL)
        find_real_functions();
    if (number == SIGPROF)
        is_sampling_thread = 1;
    return real_kill(thread, number);
}

static int
must_rest(long number, long operation)
{
    return is_sampling_thread && number == SYS_futex &&
           (operation & FUTEX_CMD_MASK) == FUTEX_WAIT &&
           atomic_load_explicit(&leaving, memory_order_acquire);
}

long
syscall(long number, ...)
{
    long a[6], rc;
    va_list args;

    if (real_syscall == NULL)
        find_real_functions();
    /* As the C library's own: six registers are passed on, whatever the call takes. */
    va_start(args, number);
    for (int i = 0; i < 6; i++)
        a[i] = va_arg(args, long);
    va_end(args);
    if (must_rest(number, a[1]))
        a[3] = 0; /* no time limit */
    rc = real_syscall(number, a[0], a[1], a[2], a[3], a[4], a[5]);
    if (rc == -1 && errno == ETIMEDOUT && must_rest(number, a[1]))
        rc = real_syscall(number, a[0], a[1], a[2], 0L, a[4], a[5]);
    return rc;
}

static void
on_sigterm(int number, siginfo_t *info, void *context)
{
    atomic_store_explicit(&leaving, 1, memory_order_release);
    if (program_action.sa_flags & SA_SIGINFO)
        program_action.sa_sigaction(number, info, context);
    else
        program_action.sa_handler(number);
}

int
sigaction(int number, const struct sigaction *action, struct sigaction *old)
{
    struct sigaction wrapped;
    int rc;

    if (real_sigaction == NULL)
        find_real_functions();
    if (number != SIGTERM || action == NULL || action->sa_handler == SIG_DFL ||
        action->sa_handler == SIG_IGN)
        return real_sigaction(number, action, old);
    program_action = *action;
    wrapped = *action;
    wrapped.sa_sigaction = on_sigterm;
    wrapped.sa_flags |= SA_SIGINFO;
    rc = real_sigaction(number, &wrapped, old);
    return rc;
}
