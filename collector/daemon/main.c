/*
 * The program everflamed: reads options, starts the daemon, waits for a signal. Main thread.
 */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "collector/daemon/daemon.h"
#include "proto/base/log.h"

static int
fail(const struct ef_err *err)
{
    EF_LOG(PROGRAM_FAILED, "%s", err->msg);
    return ef_rc_exit(err->rc);
}

static int
print_help(void)
{
    puts("everflamed: keeps profiles of a fleet and answers questions about any past range.\n\n"
         "usage: everflamed [--option=value …]\n");
    ef_option_help(ef_daemon_option_table, ef_daemon_option_count, stdout);
    puts("\nSignals: SIGTERM and SIGINT flush and end. Exit: 0 good, 1 failed, 2 wrong usage.");
    return fflush(stdout) == 0 ? 0 : 1;
}

static int
print_reference(const char *name)
{
    struct ef_err err = {0};
    struct ef_buf out;
    ef_rc rc;
    int code = 0;

    ef_buf_init(&out, 16u << 20);
    rc = ef_daemon_print(name, &out, &err);
    if (rc != EF_OK)
        code = fail(&err);
    else if (fwrite(out.data, 1, out.len, stdout) != out.len || fflush(stdout) != 0)
        code = 1;
    ef_buf_fini(&out);
    return code;
}

static ef_rc
set_log_level(const char *name, struct ef_err *err)
{
    static const char *const names[] = {"error", "warn", "info", "debug"};

    for (size_t i = 0; i < EF_COUNT_OF(names); i++) {
        if (strcmp(names[i], name) == 0) {
            ef_log_set_level((enum ef_log_level)i);
            return EF_OK;
        }
    }
    return ef_err_set(err, EF_EUSAGE, "option 'log_level': '%s' is not error, warn, info or debug",
                      name);
}

static int
run(const struct ef_daemon_options *options, const sigset_t *signals)
{
    struct ef_daemon *daemon = NULL;
    struct ef_err err = {0};
    int signal_number = 0;
    ef_rc rc = set_log_level(options->log_level, &err);

    if (rc == EF_OK)
        rc = ef_daemon_open(options, &daemon, &err);
    if (rc != EF_OK) {
        err.rc = rc;
        return fail(&err);
    }
    EF_LOG(PROGRAM_STARTED,
           "everflamed " EF_VERSION " is ready: http %s (port %d), ingest %s, sync %s, data '%s', "
           "memory_max %llu MiB",
           options->http, ef_daemon_http_port(daemon), options->ingest, options->sync,
           options->data, (unsigned long long)(options->memory_max >> 20));
    while (sigwait(signals, &signal_number) != 0)
        ;
    EF_LOG(PROGRAM_STOPPING, "%s: flushing, then ending", strsignal(signal_number));
    rc = ef_daemon_stop(daemon, &err);
    return rc == EF_OK ? 0 : ef_rc_exit(rc);
}

int
main(int argc, char **argv)
{
    struct ef_daemon_options options;
    bool help = false, version = false;
    struct ef_err err = {0};
    sigset_t signals;

    /* Blocked before any thread exists, so that only sigwait sees them. */
    sigemptyset(&signals);
    sigaddset(&signals, SIGTERM);
    sigaddset(&signals, SIGINT);
    pthread_sigmask(SIG_BLOCK, &signals, NULL);
    signal(SIGPIPE, SIG_IGN);
    if (ef_daemon_configure(&argc, argv, &options, &help, &version, &err) != EF_OK)
        return fail(&err);
    if (help)
        return print_help();
    if (version) {
        puts("everflamed " EF_VERSION);
        return fflush(stdout) == 0 ? 0 : 1;
    }
    if (options.print[0] != '\0')
        return print_reference(options.print);
    return run(&options, &signals);
}
