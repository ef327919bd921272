/*
 * Decides the order in which stations start and stop, when to flush and expire, and when memory is
 * scarce. The only file that knows every station. Open and stop run in the main thread; one keeper
 * thread flushes, expires and watches memory.
 */
#include "collector/daemon/daemon.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <malloc.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "collector/aggregate/aggregate.h"
#include "collector/ingest/ingest.h"
#include "collector/query/query.h"
#include "collector/serve/serve.h"
#include "proto/base/log.h"
#include "proto/base/time.h"
#include "storage/store.h"

#define WATCH_MS 500           /* between two looks at memory; chosen */
#define EXPIRE_EVERY_MS 600000 /* a range delete each costs little, but not nothing; chosen */
/* Of memory_max: above the first, what malloc holds back is given back; if that does not help, new
 * work is refused until memory is below the second. Chosen. */
#define SCARCE_FROM 0.90
#define SCARCE_UNTIL 0.82

struct ef_daemon {
    struct ef_daemon_options options;
    struct ef_store *store;
    struct ef_aggregate *aggregate;
    struct ef_query *query;
    struct ef_wire_keys *keys;
    struct ef_ingest *ingest; /* NULL when no address is given */
    struct ef_serve *serve;
    atomic_bool scarce;
    pthread_t keeper;
    bool keeping;
    pthread_mutex_t lock; /* guards stop */
    pthread_cond_t wake;
    bool stop;
    /* Keeper thread only. */
    bool flush_failed, expire_failed;
    ef_mono_ns flushed, expired;
};

static bool
is_scarce(void *arg)
{
    return atomic_load(&((struct ef_daemon *)arg)->scarce);
}

/* Errors are told once, and once when they are over. */
static void
tell(bool *failed, ef_rc rc, const char *what, const struct ef_err *err)
{
    if (rc != EF_OK && !*failed)
        EF_LOG(STORE_WRITE_FAILED, "%s failed, retrying: %s", what, err->msg);
    if (rc == EF_OK && *failed)
        EF_LOG(STORE_WRITE_RECOVERED, "%s works again", what);
    *failed = rc != EF_OK;
}

static ef_rc
flush(struct ef_daemon *daemon, struct ef_err *err)
{
    ef_rc rc = ef_aggregate_flush(daemon->aggregate, ef_wall_now().ns, err);

    ef_query_invalidate(daemon->query);
    tell(&daemon->flush_failed, rc, "flush", err);
    return rc;
}

static void
expire(struct ef_daemon *daemon)
{
    int64_t now_ns = ef_wall_now().ns;
    struct ef_err err = {0};
    ef_rc rc = EF_OK;

    for (int tier = 0; tier < EF_TIER_COUNT && rc == EF_OK; tier++)
        rc = ef_store_expire(daemon->store, (enum ef_tier)tier,
                             now_ns - (int64_t)daemon->options.retention_ms * EF_NS_PER_MS, &err);
    if (rc == EF_OK)
        rc = ef_store_expire_acks(
            daemon->store, now_ns - (int64_t)daemon->options.ack_retention_ms * EF_NS_PER_MS, &err);
    tell(&daemon->expire_failed, rc, "expiry", &err);
}

static void
watch_memory(struct ef_daemon *daemon)
{
    double cap = (double)daemon->options.memory_max;
    double used = (double)ef_serve_resident_bytes();
    bool scarce = atomic_load(&daemon->scarce);

    if (used > cap * SCARCE_UNTIL && (scarce || used > cap * SCARCE_FROM)) {
        malloc_trim(0);
        used = (double)ef_serve_resident_bytes();
    }
    if (!scarce && used > cap * SCARCE_FROM) {
        EF_LOG(LIMIT_REACHED,
               "memory_max: %.0f of %.0f MiB are in use; new data and queries are refused until "
               "it is less, publishers send again",
               used / (1 << 20), cap / (1 << 20));
        atomic_store(&daemon->scarce, true);
    } else if (scarce && used < cap * SCARCE_UNTIL) {
        EF_LOG(LIMIT_REACHED, "memory_max: over, %.0f of %.0f MiB are in use", used / (1 << 20),
               cap / (1 << 20));
        atomic_store(&daemon->scarce, false);
    }
}

static void
keep(struct ef_daemon *daemon)
{
    ef_mono_ns now = ef_mono_now();
    struct ef_err err = {0};

    if (ef_mono_since(daemon->flushed, now).ns >=
        (int64_t)daemon->options.flush_interval_ms * EF_NS_PER_MS) {
        daemon->flushed = now;
        EF_IGNORE(flush(daemon, &err), "told in flush, and tried again");
    }
    if (ef_mono_since(daemon->expired, now).ns >= EXPIRE_EVERY_MS * EF_NS_PER_MS) {
        daemon->expired = now;
        expire(daemon);
    }
    watch_memory(daemon);
}

static void *
keeper(void *arg)
{
    struct ef_daemon *daemon = arg;
    int64_t pause_ms = WATCH_MS;

    if ((int64_t)daemon->options.flush_interval_ms < pause_ms)
        pause_ms = (int64_t)daemon->options.flush_interval_ms;
    expire(daemon);
    pthread_mutex_lock(&daemon->lock);
    while (!daemon->stop) {
        struct timespec until;
        clock_gettime(CLOCK_MONOTONIC, &until);
        until.tv_nsec += pause_ms * EF_NS_PER_MS;
        until.tv_sec += until.tv_nsec / EF_NS_PER_S;
        until.tv_nsec %= EF_NS_PER_S;
        pthread_cond_timedwait(&daemon->wake, &daemon->lock, &until);
        pthread_mutex_unlock(&daemon->lock);
        keep(daemon);
        pthread_mutex_lock(&daemon->lock);
    }
    pthread_mutex_unlock(&daemon->lock);
    return NULL;
}

/* Whoever holds the store's lock file, for the operator. */
static void
name_holder(const char *folder, struct ef_err *err)
{
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    char path[600], command[200] = "";
    FILE *file;
    int fd;

    snprintf(path, sizeof(path), "%s/LOCK", folder);
    fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0)
        return;
    if (fcntl(fd, F_GETLK, &lock) == 0 && lock.l_type != F_UNLCK && lock.l_pid > 0) {
        snprintf(path, sizeof(path), "/proc/%d/cmdline", (int)lock.l_pid);
        file = fopen(path, "r");
        if (file != NULL) {
            if (fgets(command, sizeof(command), file) == NULL)
                command[0] = '\0';
            fclose(file);
        }
        ef_err_set(
            err, EF_ECONFLICT,
            "the folder '%s' is in use by process %d ('%s'): stop it, or give another --data",
            folder, (int)lock.l_pid, command);
    }
    close(fd);
}

static ef_rc
open_store(struct ef_daemon *daemon, const struct ef_daemon_shares *shares, struct ef_err *err)
{
    const struct ef_daemon_options *options = &daemon->options;
    struct ef_store_options store = {.cache_bytes = shares->cache_bytes,
                                     .write_buffer_bytes = shares->write_buffer_bytes,
                                     .sync = options->disk_sync};
    ef_rc rc = ef_store_open(options->backend, options->data, &store, &daemon->store, err);

    if (rc == EF_ECONFLICT)
        name_holder(options->data, err);
    if (rc == EF_OK)
        EF_LOG(STORE_OPENED, "store '%s' (%s)", options->data, options->backend);
    return rc;
}

static ef_rc
open_aggregate(struct ef_daemon *daemon, const struct ef_daemon_shares *shares, struct ef_err *err)
{
    const struct ef_daemon_options *options = &daemon->options;
    const struct ef_aggregate_options aggregate = {
        .memory_bytes_max = shares->aggregate_bytes,
        .stacks_per_version_max = (uint32_t)options->stacks_per_version_max,
        .versions_per_worker_max = (uint32_t)options->versions_per_worker_max,
        .series_max = (uint32_t)options->series_max,
        .workers_max = (uint32_t)options->workers_max,
        .publishers_max = (uint32_t)options->publishers_max,
        .parked_bytes_max = options->parked_bytes_max < shares->aggregate_bytes / 2
                                ? options->parked_bytes_max
                                : shares->aggregate_bytes / 2,
        .parked_wait_ms = options->parked_wait_ms,
        .clock_error_ms_max = options->clock_error_ms_max,
        .late_ms = options->late_ms,
        .retention_ms = options->retention_ms};

    return ef_aggregate_open(daemon->store, &aggregate, &daemon->aggregate, err);
}

static void
tell_dead_listener(void *arg, const char *url, ef_rc rc)
{
    (void)arg;
    EF_LOG(INGEST_LISTENER_DEAD, "'%s' no longer accepted connections; %s", url,
           rc == EF_OK ? "opened anew" : "opening it anew failed, retrying");
}

static void
tell_refused(void *arg, const struct ef_err *reason, uint64_t count)
{
    (void)arg;
    EF_LOG(INGEST_REFUSED, "%" PRIu64 " refused since the last such line: %s", count, reason->msg);
}

/* "tcp://127.0.0.1:4681" or "127.0.0.1:4680": whether only this machine can reach it. */
static bool
url_is_loopback(const char *url)
{
    const char *host = strncmp(url, "tcp://", 6) == 0 ? url + 6 : url;
    const char *colon = strrchr(host, ':');

    return ef_serve_host_is_loopback(host, colon != NULL ? (size_t)(colon - host) : strlen(host));
}

static ef_rc
open_keys(struct ef_daemon *daemon, struct ef_err *err)
{
    const struct ef_daemon_options *options = &daemon->options;
    const char *path = options->key_file[0] != '\0' ? options->key_file : NULL;
    ef_rc rc = ef_wire_keys_open(path, &daemon->keys, err);

    if (rc != EF_OK || ef_wire_keys_authenticate(daemon->keys) || options->insecure)
        return rc;
    if ((options->ingest[0] != '\0' && !url_is_loopback(options->ingest)) ||
        (options->sync[0] != '\0' && !url_is_loopback(options->sync)))
        return ef_err_set(err, EF_EUSAGE,
                          "'%s' or '%s' can be reached from other hosts: give --key-file, or allow "
                          "anybody to send with --insecure",
                          options->ingest, options->sync);
    return EF_OK;
}

/* What can be refused before anything is opened or made. */
static ef_rc
check_options(const struct ef_daemon_options *options, struct ef_err *err)
{
    if ((options->ingest[0] == '\0') != (options->sync[0] == '\0'))
        return ef_err_set(err, EF_EUSAGE, "'ingest' and 'sync' are given both, or neither");
    if (!options->insecure && !url_is_loopback(options->http))
        return ef_err_set(err, EF_EUSAGE,
                          "'%s' can be reached from other hosts, and HTTP has no tokens yet: use a "
                          "loopback address, or allow it with --insecure",
                          options->http);
    return EF_OK;
}

static ef_rc
open_ingest(struct ef_daemon *daemon, const struct ef_daemon_shares *shares, struct ef_err *err)
{
    const struct ef_daemon_options *options = &daemon->options;
    struct ef_ingest_options ingest = {.ingest_url = options->ingest,
                                       .sync_url = options->sync,
                                       .queue_bytes_max = shares->queue_bytes,
                                       .listener_dead = tell_dead_listener,
                                       .refused = tell_refused,
                                       .is_scarce = is_scarce,
                                       .arg = daemon};

    if (options->ingest[0] == '\0')
        return EF_OK;
    ingest.keys = daemon->keys;
    return ef_ingest_open(&ingest, daemon->aggregate, &daemon->ingest, err);
}

static ef_rc
open_serve(struct ef_daemon *daemon, struct ef_err *err)
{
    const struct ef_daemon_options *options = &daemon->options;
    const struct ef_serve_parts parts = {.store = daemon->store,
                                         .query = daemon->query,
                                         .aggregate = daemon->aggregate,
                                         .is_scarce = is_scarce,
                                         .arg = daemon};
    const struct ef_serve_options serve = {.address = options->http,
                                           .hosts = options->http_hosts,
                                           .insecure = options->insecure,
                                           .threads = (uint32_t)options->http_threads,
                                           .connections_max =
                                               (uint32_t)options->http_connections_max,
                                           .queries_max = (uint32_t)options->queries_max,
                                           .request_ms_max = options->http_request_ms_max,
                                           .import_bytes_max = options->import_bytes_max,
                                           .memory_bytes_max = options->memory_max};

    return ef_serve_open(&parts, &serve, &daemon->serve, err);
}

static ef_rc
start_keeper(struct ef_daemon *daemon, struct ef_err *err)
{
    int code;

    daemon->flushed = daemon->expired = ef_mono_now();
    code = pthread_create(&daemon->keeper, NULL, keeper, daemon);
    if (code != 0)
        return ef_err_set(err, EF_ENOMEM, "no thread for flushes: %s", strerror(code));
    daemon->keeping = true;
    return EF_OK;
}

/* glibc: few arenas, and large pieces by mmap, so that freed memory goes back to the system. */
static void
tame_malloc(void)
{
    mallopt(M_ARENA_MAX, 2);
    mallopt(M_MMAP_THRESHOLD, 128 << 10);
    mallopt(M_TRIM_THRESHOLD, 1 << 20);
}

ef_rc
ef_daemon_open(const struct ef_daemon_options *options, struct ef_daemon **ret_daemon,
               struct ef_err *err)
{
    struct ef_daemon *daemon = calloc(1, sizeof(*daemon));
    struct ef_daemon_shares shares;
    struct ef_query_options query = {0};
    pthread_condattr_t attr;
    ef_rc rc;

    if (daemon == NULL)
        return ef_err_set(err, EF_ENOMEM, "no memory for the daemon");
    tame_malloc();
    daemon->options = *options;
    pthread_mutex_init(&daemon->lock, NULL);
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&daemon->wake, &attr);
    pthread_condattr_destroy(&attr);
    ef_daemon_divide(options, &shares);
    query.definitions_bytes_max = shares.definitions_bytes;
    query.request_bytes_max = shares.request_bytes;
    rc = check_options(options, err);
    if (rc == EF_OK)
        rc = open_keys(daemon, err);
    if (rc == EF_OK)
        rc = open_store(daemon, &shares, err);
    if (rc == EF_OK)
        rc = open_aggregate(daemon, &shares, err);
    if (rc == EF_OK)
        rc = ef_query_open(daemon->store, &query, &daemon->query, err);
    if (rc == EF_OK)
        rc = open_ingest(daemon, &shares, err);
    if (rc == EF_OK)
        rc = open_serve(daemon, err);
    if (rc == EF_OK)
        rc = start_keeper(daemon, err);
    if (rc != EF_OK) {
        EF_IGNORE(ef_daemon_stop(daemon, NULL), "the error that matters is already in err");
        return rc;
    }
    *ret_daemon = daemon;
    return EF_OK;
}

int
ef_daemon_http_port(const struct ef_daemon *daemon)
{
    return ef_serve_port(daemon->serve);
}

static void
stop_keeper(struct ef_daemon *daemon)
{
    if (!daemon->keeping)
        return;
    pthread_mutex_lock(&daemon->lock);
    daemon->stop = true;
    pthread_cond_signal(&daemon->wake);
    pthread_mutex_unlock(&daemon->lock);
    pthread_join(daemon->keeper, NULL);
}

ef_rc
ef_daemon_stop(struct ef_daemon *daemon, struct ef_err *err)
{
    struct ef_err flush_err = {0};
    ef_rc rc = EF_OK;

    if (daemon == NULL)
        return EF_OK;
    /* Close: nothing new. */
    if (daemon->ingest != NULL)
        ef_ingest_close(daemon->ingest);
    if (daemon->serve != NULL)
        ef_serve_close(daemon->serve);
    /* Stop: wait for what is under way, then write what was taken. */
    if (daemon->ingest != NULL)
        ef_ingest_stop(daemon->ingest);
    stop_keeper(daemon);
    ef_serve_free(daemon->serve);
    if (daemon->aggregate != NULL && daemon->query != NULL && daemon->keeping) {
        rc = flush(daemon, &flush_err);
        if (rc != EF_OK && err != NULL)
            *err = flush_err;
    }
    /* Free, from the top down. */
    ef_ingest_free(daemon->ingest);
    ef_wire_keys_free(daemon->keys);
    ef_query_free(daemon->query);
    ef_aggregate_free(daemon->aggregate);
    ef_store_close(daemon->store);
    pthread_cond_destroy(&daemon->wake);
    pthread_mutex_destroy(&daemon->lock);
    free(daemon);
    return rc;
}
