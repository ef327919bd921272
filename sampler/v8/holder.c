/*
 * Decides whose connections are foreign: a row of the target's socket table that is connected to
 * the inspector port, whose other end is none of our own sockets. Across network namespaces with
 * address translation our own second connection looks foreign; then the answer is "leave it alone",
 * which is the safe mistake. Any thread.
 */
#include "sampler/v8/holder.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "proto/base/text.h"
#include "proto/base/time.h"

#define STATE_ESTABLISHED 1  /* net/tcp_states.h */
#define STATE_TIME_WAIT 6    /* both ends are closed */
#define CONNECTIONS_MAX 1024 /* to one inspector; more than that is not free either way */
#define FDS_MAX 65536
#define RECHECK_NS 50000000L /* a GET /json takes a few ms on a busy host */

struct row {
    uint32_t local_port, remote_port, state;
    uint64_t inode;
};

/* Port of "0100007F:1F90". */
static bool
read_port(const char *address, uint32_t *ret_port)
{
    const char *at = address + strspn(address, "0123456789ABCDEFabcdef");
    uint64_t port;

    if (at == address || *at++ != ':' || !ef_u64_read(&at, 16, &port) || port > UINT16_MAX)
        return false;
    *ret_port = (uint32_t)port;
    return true;
}

/* Words of a line of net/tcp: number, local and remote address, state, …; the tenth is the inode.
 */
static bool
read_row(const char *line, struct row *row)
{
    const char *state = ef_word_at(line, 3), *inode = ef_word_at(line, 9);
    uint64_t number;

    if (!read_port(ef_word_at(line, 1), &row->local_port) ||
        !read_port(ef_word_at(line, 2), &row->remote_port) || !ef_u64_read(&state, 16, &number))
        return false;
    row->state = (uint32_t)number;
    return ef_u64_read(&inode, 10, &row->inode);
}

static FILE *
open_table(int pid, const char *name)
{
    char path[64];

    if (pid > 0)
        snprintf(path, sizeof(path), "/proc/%d/net/%s", pid, name);
    else
        snprintf(path, sizeof(path), "/proc/self/net/%s", name);
    return fopen(path, "re");
}

/* Reads established rows with the port at one end. False when the table cannot be read. */
static bool
read_table(int pid, const char *name, uint16_t port, bool local, struct row *rows, size_t *count)
{
    FILE *file = open_table(pid, name);
    char line[512];

    if (file == NULL)
        return false;
    while (*count < CONNECTIONS_MAX && fgets(line, sizeof(line), file) != NULL) {
        struct row row;
        if (read_row(line, &row) && row.state == STATE_ESTABLISHED &&
            (local ? row.local_port : row.remote_port) == port)
            rows[(*count)++] = row;
    }
    fclose(file);
    return true;
}

static bool
read_tables(int pid, uint16_t port, bool local, struct row *rows, size_t *ret_count)
{
    bool v4, v6;

    *ret_count = 0;
    v4 = read_table(pid, "tcp", port, local, rows, ret_count);
    v6 = read_table(pid, "tcp6", port, local, rows, ret_count);
    return v4 || v6; /* one family may be switched off */
}

/* Keeps those rows whose socket is one of our descriptors. */
static size_t
keep_own(struct row *rows, size_t count)
{
    DIR *dir = count > 0 ? opendir("/proc/self/fd") : NULL;
    const struct dirent *entry;
    size_t kept = 0;

    for (int looked = 0; dir != NULL && looked < FDS_MAX && (entry = readdir(dir)) != NULL;
         looked++) {
        static const char kind[] = "socket:[";
        char path[300], target[64];
        const char *at = target + sizeof(kind) - 1;
        uint64_t inode;
        ssize_t len;
        snprintf(path, sizeof(path), "/proc/self/fd/%s", entry->d_name);
        len = readlink(path, target, sizeof(target) - 1);
        if (len <= 0)
            continue;
        target[len] = '\0';
        if (strncmp(target, kind, sizeof(kind) - 1) != 0 || !ef_u64_read(&at, 10, &inode))
            continue;
        for (size_t i = kept; i < count; i++) {
            if (rows[i].inode == inode) {
                struct row own = rows[i];
                rows[i] = rows[kept];
                rows[kept++] = own;
                break;
            }
        }
    }
    if (dir != NULL)
        closedir(dir);
    return kept;
}

static bool
is_own(const struct row *row, const struct row *own, size_t own_count)
{
    for (size_t i = 0; i < own_count; i++)
        if (own[i].local_port == row->remote_port)
            return true;
    return false;
}

static enum ef_holder
look_once(int pid, uint16_t port, struct row *rows, struct row *own)
{
    size_t count, own_count;

    if (!read_tables(pid, port, true, rows, &count))
        return EF_HOLDER_UNKNOWN;
    if (count == 0)
        return EF_HOLDER_NONE;
    if (!read_tables(0, port, false, own, &own_count))
        return EF_HOLDER_UNKNOWN;
    own_count = keep_own(own, own_count);
    for (size_t i = 0; i < count; i++)
        if (!is_own(&rows[i], own, own_count))
            return EF_HOLDER_OTHER;
    return EF_HOLDER_NONE;
}

enum ef_holder
ef_holder_look(int pid, uint16_t port)
{
    struct timespec pause = {0, RECHECK_NS};
    struct row *rows = calloc(2 * CONNECTIONS_MAX, sizeof(*rows));
    enum ef_holder holder = EF_HOLDER_UNKNOWN;

    if (rows != NULL)
        holder = look_once(pid, port, rows, rows + CONNECTIONS_MAX);
    if (holder == EF_HOLDER_OTHER) {
        nanosleep(&pause, NULL);
        holder = look_once(pid, port, rows, rows + CONNECTIONS_MAX);
    }
    free(rows);
    return holder;
}

/* Whether the other end still has to close, as far as our table tells. */
static bool
is_lingering(const char *name, uint16_t local_port, uint16_t remote_port)
{
    FILE *file = open_table(0, name);
    bool lingering = false;
    char line[512];

    while (file != NULL && !lingering && fgets(line, sizeof(line), file) != NULL) {
        struct row row;
        lingering = read_row(line, &row) && row.local_port == local_port &&
                    row.remote_port == remote_port && row.state != STATE_TIME_WAIT;
    }
    if (file != NULL)
        fclose(file);
    return lingering;
}

void
ef_holder_await_closed(uint16_t local_port, uint16_t remote_port, unsigned limit_ms)
{
    ef_mono_ns begun = ef_mono_now();
    long pause_ns = EF_NS_PER_MS;

    /* Each look reads the whole table (10 us a socket, measured), so looks get rarer. */
    while (is_lingering("tcp", local_port, remote_port) ||
           is_lingering("tcp6", local_port, remote_port)) {
        struct timespec pause = {0, pause_ns};
        if (ef_mono_since(begun, ef_mono_now()).ns > (int64_t)limit_ms * EF_NS_PER_MS)
            return;
        nanosleep(&pause, NULL);
        pause_ns *= 2;
    }
}
