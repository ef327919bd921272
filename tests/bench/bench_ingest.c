/*
 * What a fragment costs the collector, from the socket to the disk, against receiving the same
 * messages through nng and dropping them; and how much memory it takes.
 *
 * The load is 500 publishers as 500 identities on 16 PUB sockets in two processes; each message has
 * 20 fragments of 20 samples from 4 workers, stacks drawn from Zipf over 5,000. Collector, load and
 * bench are programs started with exec: nng must not be forked, and only the collector's CPU
 * counts.
 */
#include "collector/aggregate/aggregate.h"
#include "collector/ingest/ingest.h"
#include "proto/base/time.h"
#include "proto/model/hash.h"
#include "proto/wire/wire.h"
#include "tests/bench/ef_bench.h"
#include "tests/support/batch_maker.h"

#include <nng/nng.h>
#include <nng/protocol/pubsub0/pub.h>
#include <nng/protocol/pubsub0/sub.h>

#include <arpa/inet.h>
#include <fcntl.h>
#include <ftw.h>
#include <netinet/in.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define PUBLISHERS 500u
#define SERIES 200u
#define STACKS 5000u
#define FUNCTIONS 2000u
#define FRAGMENTS 20u
#define SAMPLES 20u
#define SOURCES 4u    /* of one message */
#define MESSAGES 60u  /* of each publisher */
#define LOADS 2u      /* processes */
#define SOCKETS 8u    /* of each */
#define RATE 6000u    /* messages a second, all together: below what the collector can take */
#define ROUNDS 3      /* the best one counts: the machine is shared */
#define FLUSH_MS 5000 /* three flushes in a run, as 45 s of a daemon would have */
#define LIMIT_BYTES (128.0 * 1024 * 1024)

static void
must(bool good, const char *what)
{
    if (!good) {
        fprintf(stderr, "bench_ingest: %s\n", what);
        exit(1);
    }
}

static void
pause_ms(int64_t ms)
{
    struct timespec span = {ms / 1000, ms % 1000 * 1000000};

    nanosleep(&span, NULL);
}

/* ---- the application that is profiled ---- */

struct application {
    uint64_t functions[FUNCTIONS];
    uint64_t stacks[STACKS + 1];
    double cumulative[STACKS];
    uint64_t random;
};

/* Four callees each: depth up to 7. */
static uint32_t
parent_of(uint32_t stack)
{
    return (stack + 2) / 4;
}

static void
function_name(char *text, size_t len, uint32_t function, uint32_t salt)
{
    snprintf(text, len, "processCheckoutRequest_%u_%u", function, salt);
}

/* `salt` makes other functions, and so other stacks, of the same shape. */
static void
make_application(struct application *app, uint32_t salt)
{
    char name[64];
    double sum = 0, all = 0;

    for (uint32_t i = 0; i < FUNCTIONS; i++) {
        function_name(name, sizeof(name), i, salt);
        app->functions[i] = ef_function_hash(name, strlen(name), "src/app.js", 10, 1);
    }
    app->stacks[0] = 0;
    for (uint32_t i = 1; i <= STACKS; i++)
        app->stacks[i] = ef_stack_hash(app->stacks[i == 1 ? 0 : parent_of(i - 1)],
                                       app->functions[i % FUNCTIONS], i);
    for (uint32_t i = 0; i < STACKS; i++)
        all += 1.0 / (i + 1);
    for (uint32_t i = 0; i < STACKS; i++) {
        sum += 1.0 / (i + 1) / all;
        app->cumulative[i] = sum;
    }
    app->random = 88172645463325252u + salt;
}

static double
uniform(struct application *app)
{
    app->random ^= app->random << 13;
    app->random ^= app->random >> 7;
    app->random ^= app->random << 17;
    return (double)(app->random >> 11) / 9007199254740992.0;
}

/* A stack's number, from 1. The hot ones are not the first: their ids are those of arrival. */
static uint32_t
draw(struct application *app)
{
    double wanted = uniform(app);
    uint32_t low = 0, high = STACKS - 1;

    while (low < high) {
        uint32_t middle = (low + high) / 2;
        if (app->cumulative[middle] < wanted)
            low = middle + 1;
        else
            high = middle;
    }
    return low * 7 % STACKS + 1;
}

static uint32_t
source_of(struct ef_batch_maker *maker, uint32_t series, uint32_t publisher)
{
    char worker[32], instance[32];

    snprintf(worker, sizeof(worker), "worker-%u", series);
    snprintf(instance, sizeof(instance), "isolate-%u", publisher);
    return ef_make_source(maker, worker, "2026-12-01-abcdef", instance, "fra");
}

static void
define(struct ef_batch_maker *maker, const struct application *app, uint32_t series, uint32_t salt)
{
    uint32_t source = source_of(maker, series, 0);
    char name[64];

    for (uint32_t i = 0; i < FUNCTIONS; i++) {
        function_name(name, sizeof(name), i, salt);
        ef_make_raw_function(maker, source, app->functions[i], name, "src/app.js", 1);
    }
    for (uint32_t i = 1; i <= STACKS; i++)
        ef_make_raw_stack(maker, source, app->stacks[i], app->stacks[i == 1 ? 0 : parent_of(i - 1)],
                          app->functions[i % FUNCTIONS], i);
}

/* One message of a publisher: fragments of the last ten seconds before `end_ns`. */
static void
fill_message(struct ef_batch_maker *maker, struct application *app, uint32_t publisher,
             int64_t end_ns)
{
    for (uint32_t i = 0; i < FRAGMENTS; i++) {
        uint32_t series = (publisher + i % SOURCES * (SERIES / SOURCES)) % SERIES;
        int64_t start_ns =
            ef_bucket_start(end_ns - (int64_t)(i / SOURCES) * 2 * EF_NS_PER_S, 10 * EF_NS_PER_S);
        uint32_t used[SAMPLES], count = 0;
        ef_make_fragment(maker, source_of(maker, series, publisher), start_ns,
                         (uint64_t)(10 * EF_NS_PER_S))
            ->weight_milli = 1000;
        while (count < SAMPLES) {
            uint32_t stack = draw(app), k = 0;
            while (k < count && used[k] != stack)
                k++;
            if (k < count)
                continue; /* each stack once */
            used[count++] = stack;
            ef_make_samples(maker, app->stacks[stack], 1 + (uint64_t)(uniform(app) * 3));
        }
    }
}

/* ---- load: --load publish URL first count ---- */

struct load {
    nng_socket sockets[SOCKETS];
    struct ef_buf *messages; /* by message, then publisher */
    uint32_t first, count;
};

static void
publisher_id(uint8_t id[EF_WIRE_PUBLISHER_BYTES], uint32_t publisher)
{
    memset(id, 0, EF_WIRE_PUBLISHER_BYTES);
    memcpy(id, &publisher, sizeof(publisher));
}

static void
make_messages(struct load *load)
{
    struct application *app = calloc(1, sizeof(*app));
    struct ef_batch_maker *maker = ef_batch_maker_open();
    struct ef_wire_keys *keys;
    int64_t now_ns = ef_wall_now().ns;

    must(app != NULL && ef_wire_keys_open(NULL, &keys, NULL) == EF_OK, "no memory");
    make_application(app, 0);
    app->random += load->first;
    load->messages = calloc((size_t)load->count * MESSAGES, sizeof(*load->messages));
    must(load->messages != NULL, "no memory");
    for (uint32_t m = 0; m < MESSAGES; m++) {
        for (uint32_t p = 0; p < load->count; p++) {
            struct ef_wire_header header = {.kind = EF_WIRE_BATCH, .epoch = 1, .sequence = m + 1};
            struct ef_buf *out = &load->messages[(size_t)m * load->count + p];
            publisher_id(header.publisher, load->first + p);
            ef_buf_init(out, EF_WIRE_BATCH_BYTES_MAX);
            fill_message(maker, app, load->first + p, now_ns);
            must(ef_wire_encode(keys, &header, &ef_make_batch(maker)->base, out, NULL) == EF_OK,
                 "encode");
            ef_batch_maker_clear(maker);
        }
    }
    ef_batch_maker_free(maker);
    ef_wire_keys_free(keys);
    free(app);
}

static int
publish(const char *url, uint32_t first, uint32_t count)
{
    struct load load = {.first = first, .count = count};
    int64_t begin_ns, sent = 0;

    make_messages(&load);
    for (uint32_t i = 0; i < SOCKETS; i++)
        must(nng_pub0_open(&load.sockets[i]) == 0 &&
                 nng_socket_set_int(load.sockets[i], NNG_OPT_SENDBUF, 4096) == 0 &&
                 nng_dial(load.sockets[i], url, NULL, 0) == 0,
             "dial");
    pause_ms(200);
    puts("ready");
    fflush(stdout);
    must(getchar() != EOF, "start");
    begin_ns = ef_mono_now().ns;
    for (uint32_t i = 0; i < MESSAGES * count; i++) {
        const struct ef_buf *message = &load.messages[i];
        int64_t due_ns = begin_ns + (int64_t)i * EF_NS_PER_S * LOADS / RATE;
        nng_send(load.sockets[i % SOCKETS], message->data, message->len, 0);
        sent++;
        if (i % 64 == 0 && due_ns > ef_mono_now().ns)
            pause_ms((due_ns - ef_mono_now().ns) / EF_NS_PER_MS + 1);
    }
    pause_ms(1000);
    printf("%lld\n", (long long)sent);
    fflush(stdout);
    _exit(0);
}

/* ---- collectors: --load collect|drop URL folder ---- */

static double
cpu_seconds(void)
{
    struct rusage usage;

    getrusage(RUSAGE_SELF, &usage);
    return (double)usage.ru_utime.tv_sec + (double)usage.ru_stime.tv_sec +
           ((double)usage.ru_utime.tv_usec + (double)usage.ru_stime.tv_usec) / 1e6;
}

static void
report(uint64_t messages, double cpu)
{
    printf("%llu %.6f\n", (unsigned long long)messages, cpu);
    fflush(stdout);
    _exit(0);
}

/* Waits until the parent closes our input; calls `tick` every FLUSH_MS. */
static void
wait_for_end(void (*tick)(void *arg), void *arg)
{
    fd_set set;
    int ready;

    do {
        struct timeval span = {FLUSH_MS / 1000, FLUSH_MS % 1000 * 1000};
        FD_ZERO(&set);
        FD_SET(0, &set);
        ready = select(1, &set, NULL, NULL, &span);
        if (ready == 0 && tick != NULL)
            tick(arg);
    } while (ready == 0);
}

static void
flush_tick(void *arg)
{
    must(ef_aggregate_flush(arg, ef_wall_now().ns, NULL) == EF_OK, "flush");
}

static void
define_all(struct ef_aggregate *aggregate, uint32_t salt, uint64_t *sequence)
{
    struct application *app = calloc(1, sizeof(*app));
    struct ef_batch_maker *maker = ef_batch_maker_open();
    uint8_t id[EF_WIRE_PUBLISHER_BYTES];

    must(app != NULL, "no memory");
    make_application(app, salt);
    publisher_id(id, UINT32_MAX);
    for (uint32_t series = 0; series < SERIES; series++) {
        ef_rc rc;
        define(maker, app, series, salt);
        rc = ef_aggregate_apply(aggregate, id, 1, *sequence + 1, ef_make_batch(maker),
                                ef_wall_now().ns, NULL);
        if (rc == EF_EBUSY) { /* as the daemon would */
            flush_tick(aggregate);
            rc = ef_aggregate_apply(aggregate, id, 1, *sequence + 1, ef_make_batch(maker),
                                    ef_wall_now().ns, NULL);
        }
        must(rc == EF_OK, "definitions");
        (*sequence)++;
        ef_batch_maker_clear(maker);
    }
    ef_batch_maker_free(maker);
    free(app);
    flush_tick(aggregate);
}

static int
collect(const char *url, const char *folder)
{
    struct ef_ingest_options options = {.ingest_url = url, .sync_url = "tcp://127.0.0.1:0"};
    struct ef_wire_keys *keys;
    struct ef_store *store;
    struct ef_aggregate *aggregate = NULL;
    struct ef_ingest *ingest;
    struct ef_ingest_stat stat;
    uint64_t sequence = 0;
    double begin;

    must(ef_wire_keys_open(NULL, &keys, NULL) == EF_OK &&
             ef_store_open("rocksdb", folder, NULL, &store, NULL) == EF_OK &&
             ef_aggregate_open(store, NULL, &aggregate, NULL) == EF_OK,
         "open");
    define_all(aggregate, 0, &sequence);
    options.keys = keys;
    must(ef_ingest_open(&options, aggregate, &ingest, NULL) == EF_OK, "listen");
    begin = cpu_seconds();
    puts("ready");
    fflush(stdout);
    wait_for_end(flush_tick, aggregate);
    do {
        pause_ms(20);
        ef_ingest_get_stat(ingest, &stat);
    } while (stat.queue_messages > 0);
    flush_tick(aggregate);
    if (stat.applied != stat.messages)
        fprintf(
            stderr,
            "bench_ingest: of %llu messages %llu applied, %llu parked, %llu busy, %llu dropped\n",
            (unsigned long long)stat.messages, (unsigned long long)stat.applied,
            (unsigned long long)stat.parked, (unsigned long long)stat.refused_busy,
            (unsigned long long)stat.dropped);
    report(stat.applied, cpu_seconds() - begin);
    return 0;
}

static _Atomic uint64_t dropped_messages;

static void *
drop_main(void *arg)
{
    nng_socket *socket = arg;
    nng_msg *message;

    while (nng_recvmsg(*socket, &message, 0) == 0) {
        nng_msg_free(message);
        dropped_messages++;
    }
    return NULL;
}

static int
drop(const char *url)
{
    nng_socket socket;
    pthread_t thread;
    double begin;

    must(nng_sub0_open(&socket) == 0 &&
             nng_socket_set_size(socket, NNG_OPT_RECVMAXSZ, EF_WIRE_BATCH_BYTES_MAX) == 0 &&
             nng_socket_set_int(socket, NNG_OPT_RECVBUF, 512) == 0 &&
             nng_socket_set(socket, NNG_OPT_SUB_SUBSCRIBE, "", 0) == 0 &&
             nng_listen(socket, url, NULL, 0) == 0 &&
             pthread_create(&thread, NULL, drop_main, &socket) == 0,
         "listen");
    begin = cpu_seconds();
    puts("ready");
    fflush(stdout);
    wait_for_end(NULL, NULL);
    report(dropped_messages, cpu_seconds() - begin);
    return 0;
}

int
ef_bench_load(int argc, char **argv)
{
    if (argc == 4 && strcmp(argv[1], "collect") == 0)
        return collect(argv[2], argv[3]);
    if (argc == 3 && strcmp(argv[1], "drop") == 0)
        return drop(argv[2]);
    if (argc == 5 && strcmp(argv[1], "publish") == 0)
        return publish(argv[2], (uint32_t)atoi(argv[3]), (uint32_t)atoi(argv[4]));
    return 2;
}

/* ---- the bench ---- */

struct child {
    pid_t pid;
    FILE *in, *out;
};

static struct child
spawn(char *const *argv)
{
    struct child child = {0};
    posix_spawn_file_actions_t actions;
    int to[2], from[2];

    must(pipe(to) == 0 && pipe(from) == 0, "pipe");
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, to[0], 0);
    posix_spawn_file_actions_adddup2(&actions, from[1], 1);
    for (int i = 0; i < 2; i++) {
        posix_spawn_file_actions_addclose(&actions, to[i]);
        posix_spawn_file_actions_addclose(&actions, from[i]);
    }
    must(posix_spawn(&child.pid, "/proc/self/exe", &actions, NULL, argv, environ) == 0, "spawn");
    posix_spawn_file_actions_destroy(&actions);
    close(to[0]);
    close(from[1]);
    child.in = fdopen(to[1], "w");
    child.out = fdopen(from[0], "r");
    must(child.in != NULL && child.out != NULL, "pipe");
    fcntl(to[1], F_SETFD, FD_CLOEXEC); /* or the next child keeps it open */
    fcntl(from[0], F_SETFD, FD_CLOEXEC);
    return child;
}

static void
read_line(struct child *child, char *line, int len)
{
    must(fgets(line, len, child->out) != NULL, "a child has ended");
}

static void
end(struct child *child)
{
    fclose(child->out);
    waitpid(child->pid, NULL, 0);
}

static void
free_url(char *url, size_t len)
{
    struct sockaddr_in address = {.sin_family = AF_INET};
    socklen_t size = sizeof(address);
    int fd = socket(AF_INET, SOCK_STREAM, 0);

    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    must(fd >= 0 && bind(fd, (struct sockaddr *)&address, sizeof(address)) == 0 &&
             getsockname(fd, (struct sockaddr *)&address, &size) == 0,
         "port");
    snprintf(url, len, "tcp://127.0.0.1:%u", ntohs(address.sin_port));
    close(fd);
}

static void
start_loads(struct child *loads, char *url)
{
    char line[64];

    for (uint32_t i = 0; i < LOADS; i++) {
        char first[16], count[16], program[] = "ef-bench", mode[] = "--load", what[] = "publish";
        char *argv[] = {program, mode, what, url, first, count, NULL};
        snprintf(first, sizeof(first), "%u", i * PUBLISHERS / LOADS);
        snprintf(count, sizeof(count), "%u", PUBLISHERS / LOADS);
        loads[i] = spawn(argv);
    }
    for (uint32_t i = 0; i < LOADS; i++)
        read_line(&loads[i], line, sizeof(line));
    for (uint32_t i = 0; i < LOADS; i++) {
        fputs("go\n", loads[i].in);
        fflush(loads[i].in);
    }
}

struct run {
    double messages, cpu;
};

/* One collector (folder NULL: one that drops) under the whole load. */
static struct run
measure(char *folder)
{
    char url[64], line[128], program[] = "ef-bench", mode[] = "--load";
    char what[] = "collect", drops[] = "drop";
    char *argv[] = {program, mode, folder != NULL ? what : drops, url, folder, NULL};
    struct child loads[LOADS], collector;
    struct run run = {0};

    free_url(url, sizeof(url));
    collector = spawn(argv);
    read_line(&collector, line, sizeof(line));
    start_loads(loads, url);
    for (uint32_t i = 0; i < LOADS; i++) {
        read_line(&loads[i], line, sizeof(line));
        fclose(loads[i].in);
        end(&loads[i]);
    }
    fclose(collector.in);
    read_line(&collector, line, sizeof(line));
    must(sscanf(line, "%lf %lf", &run.messages, &run.cpu) == 2 && run.messages > 0, line);
    end(&collector);
    return run;
}

static int
remove_one(const char *path, const struct stat *stat, int flag, struct FTW *ftw)
{
    (void)stat;
    (void)flag;
    (void)ftw;
    return remove(path);
}

static void
bench_ingest(struct ef_bench_result *ret)
{
    double best = 0, best_drop = 0;

    for (int round = 0; round < ROUNDS; round++) {
        char folder[] = "/tmp/ef-bench-XXXXXX";
        struct run ours, theirs;
        must(mkdtemp(folder) != NULL, "folder");
        ours = measure(folder);
        nftw(folder, remove_one, 16, FTW_DEPTH | FTW_PHYS);
        theirs = measure(NULL);
        if (ours.messages * FRAGMENTS / ours.cpu > best)
            best = ours.messages * FRAGMENTS / ours.cpu;
        if (theirs.messages * FRAGMENTS / theirs.cpu > best_drop)
            best_drop = theirs.messages * FRAGMENTS / theirs.cpu;
    }
    ret->value = best;
    ret->limit = best_drop;
    ret->ratio = best_drop / best; /* CPU of ours by CPU of receiving alone */
}

/* ---- memory ---- */

static double
status_bytes(const char *key)
{
    char line[256];
    double kilobytes = 0;
    FILE *file = fopen("/proc/self/status", "r");

    must(file != NULL, "/proc/self/status");
    while (fgets(line, sizeof(line), file) != NULL) {
        if (strncmp(line, key, strlen(key)) == 0)
            kilobytes = atof(line + strlen(key));
    }
    fclose(file);
    return kilobytes * 1024;
}

/* What 500 publishers send in two flush intervals, without the network. */
static void
apply_load(struct ef_aggregate *aggregate, uint32_t messages)
{
    struct application *app = calloc(1, sizeof(*app));
    struct ef_batch_maker *maker = ef_batch_maker_open();
    int64_t now_ns = ef_wall_now().ns;

    must(app != NULL, "no memory");
    make_application(app, 0);
    for (uint32_t m = 0; m < messages; m++) {
        for (uint32_t p = 0; p < PUBLISHERS; p++) {
            uint8_t id[EF_WIRE_PUBLISHER_BYTES];
            ef_rc rc;
            publisher_id(id, p);
            fill_message(maker, app, p, now_ns);
            rc = ef_aggregate_apply(aggregate, id, 1, m + 1, ef_make_batch(maker), now_ns, NULL);
            must(rc == EF_OK || rc == EF_EEXIST, "apply");
            ef_batch_maker_clear(maker);
        }
        if (m % 15 == 14)
            flush_tick(aggregate);
    }
    ef_batch_maker_free(maker);
    free(app);
}

/* RSS of a process with the RocksDB backend; `flood`: ten times as many stacks as fit. */
static double
resident_bytes(bool flood)
{
    char folder[] = "/tmp/ef-bench-XXXXXX";
    struct ef_store *store;
    struct ef_aggregate *aggregate = NULL;
    uint64_t sequence = 0;
    double bytes;

    must(mkdtemp(folder) != NULL && ef_store_open("rocksdb", folder, NULL, &store, NULL) == EF_OK &&
             ef_aggregate_open(store, NULL, &aggregate, NULL) == EF_OK,
         "open");
    define_all(aggregate, 0, &sequence);
    apply_load(aggregate, 30);
    for (uint32_t salt = 1; flood && salt <= 20; salt++)
        define_all(aggregate, salt, &sequence);
    bytes = status_bytes(flood ? "VmHWM:" : "VmRSS:");
    must(ef_aggregate_bytes(aggregate) <= UINT64_C(48) << 20, "the cap was not kept");
    ef_aggregate_free(aggregate);
    ef_store_close(store);
    nftw(folder, remove_one, 16, FTW_DEPTH | FTW_PHYS);
    return bytes;
}

static void
bench_resident_memory(struct ef_bench_result *ret)
{
    ret->value = resident_bytes(false) / 1048576;
    ret->limit = LIMIT_BYTES / 1048576;
}

static void
bench_resident_memory_flooded(struct ef_bench_result *ret)
{
    ret->value = resident_bytes(true) / 1048576;
    ret->limit = LIMIT_BYTES / 1048576;
}

const struct ef_bench ef_bench_ingest[] = {
    {"ingest", "fragments per CPU-second", bench_ingest},
    {"resident_memory", "MiB", bench_resident_memory},
    {"resident_memory_flooded", "MiB peak", bench_resident_memory_flooded},
    {NULL, NULL, NULL},
};
