/*
 * Decides which process belongs to an inspector port, and whether a Node may be signalled. Must not
 * know of the schedule. Any thread.
 */
#include "sampler/agent/discovery.h"

#include <arpa/inet.h>
#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "proto/base/text.h"
#include "proto/base/time.h"

#define PATH_BYTES 4352
#define PROC_FILE_BYTES_MAX 65536 /* command lines and environments longer than this are cut */
#define NODE_PORT_DEFAULT 9229

/* Reads up to len - 1 bytes, adds a NUL. -1 = not there. */
static ssize_t
read_file(const char *path, char *buf, size_t len)
{
    FILE *file = fopen(path, "rb");
    size_t got;

    if (file == NULL)
        return -1;
    got = fread(buf, 1, len - 1, file);
    buf[got] = '\0';
    fclose(file);
    return (ssize_t)got;
}

static ssize_t
read_proc(const char *root, int pid, const char *name, char *buf, size_t len)
{
    char path[PATH_BYTES];

    snprintf(path, sizeof(path), "%s/proc/%d/%s", root, pid, name);
    return read_file(path, buf, len);
}

/* --- listeners ------------------------------------------------------------------------------- */

static bool
is_loopback(const char *host)
{
    return strncmp(host, "127.", 4) == 0 || strcmp(host, "localhost") == 0 ||
           strcmp(host, "[::1]") == 0;
}

/* Whether a local address of /proc/net/tcp ("0100007F") or tcp6 (32 digits) serves this host. */
static bool
address_serves(const char *hex, const char *host)
{
    struct in_addr address;
    char want[16];
    bool wildcard = strspn(hex, "0") == strlen(hex);

    if (wildcard || strcmp(host, "localhost") == 0)
        return is_loopback(host) || strcmp(host, "0.0.0.0") == 0;
    if (strcmp(host, "[::1]") == 0)
        return strcmp(hex, "00000000000000000000000001000000") == 0;
    if (inet_pton(AF_INET, host, &address) != 1)
        return false;
    snprintf(want, sizeof(want), "%08X", (unsigned)address.s_addr);
    return strcasecmp(hex, want) == 0;
}

/* Whether a line of /proc/net/tcp is a listener on host:port. Words: number, local address, remote
 * address, state (0A = listening), …; the tenth is the inode. */
static bool
line_listens(const char *line, const char *host, uint16_t port)
{
    const char *local = ef_word_at(line, 1);
    char hex[40];
    size_t len = strspn(local, "0123456789ABCDEFabcdef");

    if (len >= sizeof(hex) || local[len] != ':' || strncmp(ef_word_at(line, 3), "0A ", 3) != 0 ||
        strtoul(local + len + 1, NULL, 16) != port)
        return false;
    memcpy(hex, local, len);
    hex[len] = '\0';
    return address_serves(hex, host);
}

/* Inode of the socket that listens; 0 = none. */
static uint64_t
inode_in(const char *root, const char *table, const char *host, uint16_t port)
{
    char path[PATH_BYTES], line[512];
    uint64_t found = 0;
    FILE *file;

    snprintf(path, sizeof(path), "%s/proc/net/%s", root, table);
    file = fopen(path, "r");
    if (file == NULL)
        return 0;
    while (found == 0 && fgets(line, sizeof(line), file) != NULL) {
        if (line_listens(line, host, port))
            found = strtoull(ef_word_at(line, 9), NULL, 10);
    }
    fclose(file);
    return found;
}

static uint64_t
listening_inode(const char *root, const char *host, uint16_t port)
{
    uint64_t inode = inode_in(root, "tcp", host, port);

    return inode != 0 ? inode : inode_in(root, "tcp6", host, port);
}

static bool
owns_inode(const char *root, int pid, uint64_t inode)
{
    char path[PATH_BYTES], link[PATH_BYTES + 300], want[64], target[64];
    struct dirent *entry;
    bool found = false;
    DIR *folder;

    snprintf(want, sizeof(want), "socket:[%" PRIu64 "]", inode);
    snprintf(path, sizeof(path), "%s/proc/%d/fd", root, pid);
    folder = opendir(path);
    if (folder == NULL)
        return false;
    while (!found && (entry = readdir(folder)) != NULL) {
        ssize_t len;
        snprintf(link, sizeof(link), "%s/%s", path, entry->d_name);
        len = readlink(link, target, sizeof(target) - 1);
        if (len > 0) {
            target[len] = '\0';
            found = strcmp(target, want) == 0;
        }
    }
    closedir(folder);
    return found;
}

int
ef_discovery_pid_of(const char *root, const char *host, uint16_t port, int hint_pid)
{
    uint64_t inode = listening_inode(root, host, port);
    char path[PATH_BYTES];
    struct dirent *entry;
    int pid = 0;
    DIR *folder;

    if (inode == 0)
        return 0;
    if (hint_pid > 0 && owns_inode(root, hint_pid, inode))
        return hint_pid;
    snprintf(path, sizeof(path), "%s/proc", root);
    folder = opendir(path);
    if (folder == NULL)
        return 0;
    while (pid == 0 && (entry = readdir(folder)) != NULL) {
        int candidate = (int)strtol(entry->d_name, NULL, 10); /* 0: no process */
        if (candidate > 0 && owns_inode(root, candidate, inode))
            pid = candidate;
    }
    closedir(folder);
    return pid;
}

bool
ef_discovery_listens(const char *root, const char *host, uint16_t port)
{
    return !is_loopback(host) || listening_inode(root, host, port) != 0;
}

/* --- Node ------------------------------------------------------------------------------------ */

/* Port of "--inspect-port=9300", "--inspect=127.0.0.1:9300", "--inspect 9300"? (not that form in
 * Node). 0 = the word says nothing about it. */
static uint16_t
port_of_word(const char *word)
{
    static const char *const flags[] = {
        "--inspect-port=", "--inspect=", "--inspect-brk=", "--debug-port=", "--inspect-wait="};
    const char *value = NULL, *colon;
    unsigned long port;
    char *end;

    for (size_t i = 0; i < EF_COUNT_OF(flags) && value == NULL; i++) {
        if (strncmp(word, flags[i], strlen(flags[i])) == 0)
            value = word + strlen(flags[i]);
    }
    if (value == NULL)
        return 0;
    colon = strrchr(value, ':');
    port = strtoul(colon != NULL ? colon + 1 : value, &end, 10);
    return *end == '\0' && port > 0 && port <= 65535 ? (uint16_t)port : 0;
}

static uint16_t
port_of_words(char *text)
{
    uint16_t port = 0;
    char *save = NULL;

    for (char *word = strtok_r(text, " \t\n", &save); word != NULL;
         word = strtok_r(NULL, " \t\n", &save)) {
        uint16_t said = port_of_word(word);
        if (said != 0)
            port = said; /* The last one counts, as in Node. */
    }
    return port;
}

uint16_t
ef_discovery_inspect_port(const char *root, int pid)
{
    char *buf = malloc(PROC_FILE_BYTES_MAX);
    uint16_t port = 0;
    ssize_t len;

    if (buf == NULL)
        return NODE_PORT_DEFAULT;
    len = read_proc(root, pid, "environ", buf, PROC_FILE_BYTES_MAX);
    for (ssize_t at = 0; at < len; at += (ssize_t)strlen(buf + at) + 1) {
        if (strncmp(buf + at, "NODE_OPTIONS=", 13) == 0) {
            port = port_of_words(buf + at + 13);
            break; /* strtok_r cut the text up; there is only one such variable. */
        }
    }
    len = read_proc(root, pid, "cmdline", buf, PROC_FILE_BYTES_MAX);
    for (ssize_t at = (ssize_t)strlen(buf) + 1; at < len; at += (ssize_t)strlen(buf + at) + 1) {
        uint16_t said = port_of_word(buf + at);
        if (buf[at] != '-')
            break; /* The script; what follows are its own arguments. */
        if (said != 0)
            port = said;
    }
    free(buf);
    return port != 0 ? port : NODE_PORT_DEFAULT;
}

bool
ef_discovery_is_node(const char *root, int pid)
{
    char path[PATH_BYTES], target[PATH_BYTES];
    const char *name;
    ssize_t len;

    snprintf(path, sizeof(path), "%s/proc/%d/exe", root, pid);
    len = readlink(path, target, sizeof(target) - 1);
    if (len <= 0)
        return false;
    target[len] = '\0';
    name = strrchr(target, '/');
    name = name != NULL ? name + 1 : target;
    return strcmp(name, "node") == 0 || strcmp(name, "nodejs") == 0 ||
           strcmp(name, "node (deleted)") == 0; /* replaced by an update while running */
}

/* SigCgt of /proc/<pid>/status: a set of signals, bit n - 1 for signal n. */
static bool
catches(const char *root, int pid, int number)
{
    char *buf = malloc(PROC_FILE_BYTES_MAX);
    bool result = false;
    const char *at;

    if (buf != NULL && read_proc(root, pid, "status", buf, PROC_FILE_BYTES_MAX) > 0 &&
        (at = strstr(buf, "\nSigCgt:")) != NULL)
        result = (strtoull(at + strlen("\nSigCgt:"), NULL, 16) >> (number - 1)) & 1;
    free(buf);
    return result;
}

static bool
exists(const char *root, int pid)
{
    char path[PATH_BYTES];

    snprintf(path, sizeof(path), "%s/proc/%d", root, pid);
    return access(path, F_OK) == 0;
}

int
ef_discovery_send_signal(void *arg, int pid, int number)
{
    int fd = (int)syscall(SYS_pidfd_open, pid, 0), rc;

    (void)arg;
    if (fd < 0)
        return -1;
    if (!ef_discovery_is_node("", pid) || !catches("", pid, number)) {
        close(fd);
        errno = ESRCH;
        return -1;
    }
    rc = (int)syscall(SYS_pidfd_send_signal, fd, number, NULL, 0);
    close(fd);
    return rc;
}

ef_rc
ef_discovery_wake_node(const char *root, int pid, ef_discovery_signal_fn send, void *arg,
                       uint16_t *ret_port, struct ef_err *err)
{
    uint16_t port;
    int owner;

    if (!exists(root, pid))
        return ef_err_set(err, EF_ENOTFOUND, "there is no process %d", pid);
    if (!ef_discovery_is_node(root, pid))
        return ef_err_set(err, EF_EUNSUP, "process %d is not node; it is not signalled", pid);
    port = ef_discovery_inspect_port(root, pid);
    if (listening_inode(root, "127.0.0.1", port) != 0) {
        owner = ef_discovery_pid_of(root, "127.0.0.1", port, pid);
        if (owner != pid)
            return ef_err_set(err, EF_ECONFLICT,
                              "inspector port %u of process %d is taken by process %d; start it "
                              "with NODE_OPTIONS=--inspect-port=<free port>",
                              port, pid, owner);
        *ret_port = port;
        return EF_OK;
    }
    if (!catches(root, pid, SIGUSR1))
        return ef_err_set(err, EF_EUNSUP,
                          "process %d does not catch SIGUSR1 (yet); it would die of it", pid);
    if (send(arg, pid, SIGUSR1) != 0)
        return ef_err_errno(err, "SIGUSR1 to process %d", pid);
    *ret_port = port;
    return EF_OK;
}

/* --- CPUs ------------------------------------------------------------------------------------ */

/* Number of CPUs in a list like "0-3,8". */
static unsigned
count_cpus(const char *list)
{
    unsigned count = 0;

    while (isdigit((unsigned char)*list)) {
        char *end;
        unsigned long first = strtoul(list, &end, 10), last = first;
        if (*end == '-')
            last = strtoul(end + 1, &end, 10);
        if (last >= first && last - first < 65536)
            count += (unsigned)(last - first + 1);
        list = *end == ',' ? end + 1 : end;
    }
    return count;
}

static bool
affinity_is_one(const char *root, int pid)
{
    char *buf = malloc(PROC_FILE_BYTES_MAX);
    bool one = false;
    const char *at;

    if (buf != NULL && read_proc(root, pid, "status", buf, PROC_FILE_BYTES_MAX) > 0 &&
        (at = strstr(buf, "\nCpus_allowed_list:")) != NULL) {
        at += strlen("\nCpus_allowed_list:");
        at += strspn(at, " \t");
        one = count_cpus(at) == 1;
    }
    free(buf);
    return one;
}

static bool
cgroup_is_one(const char *folder)
{
    char path[PATH_BYTES + 64], buf[4096];
    char *quota_end, *period_end;
    double quota, period;

    snprintf(path, sizeof(path), "%s/cpuset.cpus.effective", folder);
    if (read_file(path, buf, sizeof(buf)) > 0 && count_cpus(buf) == 1)
        return true;
    snprintf(path, sizeof(path), "%s/cpu.max", folder);
    if (read_file(path, buf, sizeof(buf)) <= 0)
        return false;
    quota = strtod(buf, &quota_end); /* "max 100000" has no number first: no quota */
    period = strtod(quota_end, &period_end);
    return quota_end != buf && period_end != quota_end && period > 0 && quota / period <= 1.0;
}

bool
ef_discovery_confined(const char *root, int pid)
{
    char buf[4096], folder[PATH_BYTES];
    const char *line;
    size_t base;

    if (affinity_is_one(root, pid))
        return true;
    if (read_proc(root, pid, "cgroup", buf, sizeof(buf)) <= 0)
        return false;
    line = strncmp(buf, "0::", 3) == 0 ? buf : strstr(buf, "\n0::");
    if (line == NULL)
        return false;
    line = strstr(line, "0::") + 3;
    base = (size_t)snprintf(folder, sizeof(folder), "%s/sys/fs/cgroup", root);
    snprintf(folder + base, sizeof(folder) - base, "%.*s", (int)strcspn(line, "\n"), line);
    /* A quota of any ancestor confines as well. */
    while (strlen(folder) > base) {
        if (cgroup_is_one(folder))
            return true;
        *strrchr(folder, '/') = '\0';
    }
    return false;
}

bool
ef_discovery_cpu(const char *root, int pid, int64_t *ret_ns)
{
    char buf[1024];
    clockid_t clock;
    struct timespec at;
    unsigned long user, kernel;
    const char *after;

    if (root[0] == '\0' && clock_getcpuclockid(pid, &clock) == 0 &&
        clock_gettime(clock, &at) == 0) {
        *ret_ns = (int64_t)at.tv_sec * EF_NS_PER_S + at.tv_nsec;
        return true;
    }
    if (read_proc(root, pid, "stat", buf, sizeof(buf)) <= 0 || (after = strrchr(buf, ')')) == NULL)
        return false;
    /* After the name: the state, ten fields, then utime and stime in clock ticks. */
    if (*ef_word_at(after + 1, 12) == '\0')
        return false;
    user = strtoul(ef_word_at(after + 1, 11), NULL, 10);
    kernel = strtoul(ef_word_at(after + 1, 12), NULL, 10);
    *ret_ns =
        (int64_t)((double)(user + kernel) / (double)sysconf(_SC_CLK_TCK) * (double)EF_NS_PER_S);
    return true;
}

bool
ef_discovery_maps(const char *root, int pid, const char *library)
{
    char path[PATH_BYTES], *line = NULL;
    size_t room = 0;
    bool found = false;
    FILE *file;

    snprintf(path, sizeof(path), "%s/proc/%d/maps", root, pid);
    file = fopen(path, "r");
    if (file == NULL)
        return false;
    while (!found && getline(&line, &room, file) > 0) {
        const char *name = strrchr(line, '/'); /* names of mappings without a file have none */
        found = name != NULL && strstr(name, library) != NULL;
    }
    free(line);
    fclose(file);
    return found;
}

/* "<ns on a CPU> <ns runnable, waiting> <slices>", by the scheduler. */
static bool
read_schedstat(const char *root, int pid, const char *tid, struct ef_thread_time *ret)
{
    char path[PATH_BYTES], buf[128], *end;

    snprintf(path, sizeof(path), "%s/proc/%d/task/%.16s/schedstat", root, pid, tid);
    if (read_file(path, buf, sizeof(buf)) <= 0)
        return false;
    ret->tid = (int)strtol(tid, NULL, 10);
    ret->run_ns = strtoll(buf, &end, 10);
    ret->wait_ns = strtoll(end, NULL, 10);
    return ret->tid > 0;
}

size_t
ef_discovery_threads(const char *root, int pid, struct ef_thread_time *threads, size_t threads_max)
{
    char path[PATH_BYTES];
    struct dirent *entry;
    size_t count = 0;
    DIR *folder;

    snprintf(path, sizeof(path), "%s/proc/%d/task", root, pid);
    folder = opendir(path);
    if (folder == NULL)
        return 0;
    while (count < threads_max && (entry = readdir(folder)) != NULL) {
        if (isdigit((unsigned char)entry->d_name[0]) &&
            read_schedstat(root, pid, entry->d_name, &threads[count]))
            count++;
    }
    closedir(folder);
    return count;
}
