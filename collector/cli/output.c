/*
 * Decides how bytes reach standard output and files so that nothing half-written is left and
 * nothing is lost in silence. Main thread; the signal handler only removes the unfinished file.
 */
#include "collector/cli/cli.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#define WRITE_BYTES_MAX                                                                            \
    ((size_t)16 << 20) /* of one write(2), so that SIGINT is seen in between                       \
                        */

/* The unfinished file; set before it exists, empty when there is none. Read by the handler. */
static char unfinished[PATH_MAX];
static volatile sig_atomic_t unfinished_set;

void
ef_cli_guard_descriptors(void)
{
    for (int fd = 0; fd <= 2; fd++) {
        /* The wrong direction on purpose: using a closed descriptor shall be an error. */
        if (fcntl(fd, F_GETFD) < 0 && errno == EBADF)
            EF_IGNORE(open("/dev/null", fd == 0 ? O_WRONLY : O_RDONLY) < 0, "nothing to do then");
    }
}

static void
on_signal(int number)
{
    if (unfinished_set)
        unlink(unfinished);
    _exit(128 + number);
}

void
ef_cli_catch_signals(void)
{
    struct sigaction action = {.sa_handler = on_signal}, before;

    sigemptyset(&action.sa_mask);
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
    /* nohup has a meaning. */
    if (sigaction(SIGHUP, NULL, &before) == 0 && before.sa_handler != SIG_IGN)
        sigaction(SIGHUP, &action, NULL);
    /* A file above the limit of the shell (ulimit -f) and a socket that the server closed must give
     * an error, not end us; ef_cli_flush puts the default of SIGPIPE back for standard output. */
    action.sa_handler = SIG_IGN;
    sigaction(SIGXFSZ, &action, NULL);
    sigaction(SIGPIPE, &action, NULL);
}

/* By the variables, not setlocale: a UTF-8 terminal often meets a system without that locale. */
static bool
locale_is_utf8(void)
{
    static const char *const names[] = {"LC_ALL", "LC_CTYPE", "LANG"};

    for (size_t i = 0; i < EF_COUNT_OF(names); i++) {
        const char *value = getenv(names[i]);
        if (value != NULL && *value != '\0')
            return strcasestr(value, "utf-8") != NULL || strcasestr(value, "utf8") != NULL;
    }
    return false;
}

static bool
is_set(const char *name)
{
    const char *value = getenv(name);

    return value != NULL && *value != '\0';
}

void
ef_cli_style_detect(struct ef_cli_style *style)
{
    const char *term = getenv("TERM");
    bool dumb = term == NULL || strcmp(term, "dumb") == 0;
    struct winsize size = {0};

    *style = (struct ef_cli_style){.tty = isatty(STDOUT_FILENO) == 1, .utf8 = locale_is_utf8()};
    style->colour = style->tty && !dumb && !is_set("NO_COLOR");
    style->progress = isatty(STDERR_FILENO) == 1 && !dumb && !is_set("CI");
    if (style->tty) {
        style->width = 80; /* what a terminal that does not say its width has */
        if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col >= 20)
            style->width = size.ws_col;
    }
}

/* 0, or errno. */
static int
write_all(int fd, const uint8_t *data, size_t len)
{
    while (len > 0) {
        ssize_t count = write(fd, data, len < WRITE_BYTES_MAX ? len : WRITE_BYTES_MAX);
        if (count < 0 && errno == EINTR)
            continue;
        if (count < 0)
            return errno;
        data += count;
        len -= (size_t)count;
    }
    return 0;
}

int
ef_cli_flush(const struct ef_buf *out)
{
    struct ef_err err = {0};
    int error;

    if (ef_buf_check(out, "the output", &err) != EF_OK)
        return ef_cli_say_err(&err);
    if (out->len == 0)
        return EF_CLI_OK;
    error = write_all(STDOUT_FILENO, out->data, out->len);
    if (error == EPIPE) {
        signal(SIGPIPE, SIG_DFL);
        raise(SIGPIPE);
    }
    /* Some file systems report a full disk only at close. */
    if (error == 0 && close(STDOUT_FILENO) != 0)
        error = errno;
    if (error == 0)
        return EF_CLI_OK;
    ef_cli_say("cannot write to standard output: %s", strerror(error));
    return EF_CLI_FAILED;
}

static bool
is_standard(const char *path)
{
    return path[0] == '\0' || strcmp(path, "-") == 0;
}

/* Only a character device is opened to find out: opening a pipe would disturb its reader. */
static bool
is_terminal(const char *path)
{
    struct stat st;
    bool terminal;
    int fd;

    if (stat(path, &st) != 0 || !S_ISCHR(st.st_mode))
        return false;
    fd = open(path, O_WRONLY | O_NOCTTY | O_NONBLOCK | O_CLOEXEC);
    terminal = fd >= 0 && isatty(fd) == 1;
    if (fd >= 0)
        close(fd);
    return terminal;
}

int
ef_cli_refuse_binary(const struct ef_cli *cli, const struct ef_format_ops *format, const char *path,
                     const char *way_out)
{
    bool terminal = is_standard(path) ? cli->style.tty : is_terminal(path);

    if (!format->binary || !terminal || cli->values.force)
        return EF_CLI_OK;
    ef_cli_say("%s is binary and would garble the terminal: redirect with > x%s%s, or give --force",
               format->name, format->suffix, way_out);
    return EF_CLI_USAGE;
}

/* Writes into what is already there and is no regular file. */
static ef_rc
write_direct(const char *path, const void *data, size_t len, struct ef_err *err)
{
    int fd = open(path, O_WRONLY | O_CLOEXEC | O_NOCTTY);
    int error;

    if (fd < 0)
        return ef_err_errno(err, "cannot open '%s'", path);
    error = write_all(fd, data, len);
    if (close(fd) != 0 && error == 0)
        error = errno;
    if (error == 0)
        return EF_OK;
    errno = error;
    return ef_err_errno(err, "cannot write '%s'", path);
}

/* Makes the temporary file beside `target`. Signals wait, so that the handler knows its name as
 * soon as it exists. */
static int
open_unfinished(const char *target)
{
    const char *slash = strrchr(target, '/');
    int folder_len = slash != NULL ? (int)(slash - target) + 1 : 0;
    sigset_t all, before;
    int fd, len;

    len = snprintf(unfinished, sizeof(unfinished), "%.*s.everflame-XXXXXX", folder_len, target);
    if (len < 0 || (size_t)len >= sizeof(unfinished)) {
        errno = ENAMETOOLONG;
        return -1;
    }
    sigfillset(&all);
    sigprocmask(SIG_BLOCK, &all, &before);
    fd = mkostemp(unfinished, O_CLOEXEC);
    unfinished_set = fd >= 0;
    sigprocmask(SIG_SETMASK, &before, NULL);
    return fd;
}

static mode_t
mode_for_new_files(void)
{
    mode_t mask = umask(0);

    umask(mask);
    return 0666 & ~mask;
}

static ef_rc
write_and_rename(const char *target, mode_t mode, const void *data, size_t len, struct ef_err *err)
{
    int fd = open_unfinished(target);
    int error = fd < 0 ? errno : 0;

    if (fd >= 0) {
        error = write_all(fd, data, len);
        if (error == 0 && fchmod(fd, mode) != 0)
            error = errno;
        if (close(fd) != 0 && error == 0)
            error = errno;
        if (error == 0 && rename(unfinished, target) != 0)
            error = errno;
        if (error != 0)
            unlink(unfinished);
        unfinished_set = 0;
    }
    if (error == 0)
        return EF_OK;
    errno = error;
    return ef_err_errno(err, "cannot write '%s'", target);
}

ef_rc
ef_cli_write_file(const char *path, const void *data, size_t len, struct ef_err *err)
{
    struct stat st;
    char *target;
    ef_rc rc;

    if (stat(path, &st) != 0)
        return write_and_rename(path, mode_for_new_files(), data, len, err);
    if (S_ISDIR(st.st_mode))
        return ef_err_set(err, EF_EIO, "cannot write '%s': it is a directory", path);
    if (!S_ISREG(st.st_mode))
        return write_direct(path, data, len, err);
    target = realpath(path, NULL);
    if (target == NULL)
        return ef_err_errno(err, "cannot write '%s'", path);
    rc = write_and_rename(target, st.st_mode & 0777, data, len, err);
    free(target);
    return rc;
}

static ef_rc
read_all(int fd, const char *name, struct ef_buf *buf, struct ef_err *err)
{
    for (;;) {
        ssize_t count;
        size_t room = buf->bytes_max - buf->len < 65536 ? buf->bytes_max - buf->len : 65536;
        if (room == 0)
            return ef_err_set(err, EF_ELIMIT, "%s has more than %zu MiB, the most that is read",
                              name, (buf->bytes_max - 1) >> 20);
        if (!ef_buf_reserve(buf, room))
            return ef_err_set(err, EF_ENOMEM, "out of memory for %s", name);
        count = read(fd, buf->data + buf->len, room);
        if (count < 0 && errno == EINTR)
            continue;
        if (count < 0)
            return ef_err_errno(err, "cannot read %s", name);
        if (count == 0)
            return EF_OK;
        buf->len += (size_t)count;
    }
}

ef_rc
ef_cli_read_file(const char *path, size_t bytes_max, struct ef_buf *ret, struct ef_err *err)
{
    bool standard = strcmp(path, "-") == 0;
    char name[300];
    struct stat st;
    struct ef_buf buf;
    int fd = standard ? STDIN_FILENO : open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY);
    ef_rc rc;

    snprintf(name, sizeof(name), standard ? "standard input" : "'%.280s'", path);
    if (fd < 0)
        return ef_err_errno(err, "cannot open %s", name);
    ef_buf_init(&buf, bytes_max + 1); /* One more byte tells "exactly the most" from "more". */
    if (fstat(fd, &st) != 0)
        rc = ef_err_errno(err, "cannot read %s", name);
    else if (S_ISDIR(st.st_mode))
        rc = ef_err_set(err, EF_EINVAL, "%s is a directory; give the files in it", name);
    else if (S_ISREG(st.st_mode) && (uint64_t)st.st_size > bytes_max)
        rc = ef_err_set(err, EF_ELIMIT, "%s has %llu MiB; at most %zu MiB are read", name,
                        (unsigned long long)st.st_size >> 20, bytes_max >> 20);
    else
        rc = read_all(fd, name, &buf, err);
    if (!standard)
        close(fd);
    if (rc == EF_OK && buf.len == 0)
        rc = ef_err_set(err, EF_EINVAL, "%s is empty", name);
    if (rc != EF_OK) {
        ef_buf_fini(&buf);
        return rc;
    }
    *ret = buf;
    return EF_OK;
}
