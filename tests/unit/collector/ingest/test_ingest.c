/*
 * Both sockets under good, repeated, forged, damaged and foreign traffic, and their end under load.
 */
#include "tests/support/ef_test.h"

#include "collector/ingest/ingest.h"
#include "proto/base/metric.h"
#include "proto/base/time.h"
#include "proto/wire/envelope.h"
#include "tests/support/batch_maker.h"
#include "tests/support/wire_sample.h"

#include <nng/nng.h>
#include <nng/protocol/pubsub0/pub.h>
#include <nng/protocol/reqrep0/req.h>

#include <arpa/inet.h>
#include <netinet/in.h>
#include <nng/supplemental/util/platform.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#define WAIT_MS 10000

struct fixture {
    char *folder;
    struct ef_wire_keys *keys, *other_keys;
    struct ef_store *store;
    struct ef_aggregate *aggregate;
    struct ef_ingest *ingest;
    struct ef_batch_maker *maker;
    nng_socket pub, req;
    _Atomic int dead;
};

static void
on_dead(void *arg, const char *url, ef_rc rc)
{
    struct fixture *f = arg;

    (void)url;
    if (rc == EF_OK)
        f->dead++;
}

static void
open_ingest(struct fixture *f)
{
    struct ef_ingest_options options = {.ingest_url = "tcp://127.0.0.1:0",
                                        .sync_url = "tcp://127.0.0.1:0",
                                        .keys = f->keys,
                                        .probe_interval_ms = 100,
                                        .listener_dead = on_dead,
                                        .arg = f};
    struct ef_err err = {0};

    if (ef_ingest_open(&options, f->aggregate, &f->ingest, &err) != EF_OK)
        fail_msg("%s", err.msg);
}

static int
setup(void **state)
{
    struct fixture *f = calloc(1, sizeof(*f));

    assert_non_null(f);
    f->folder = ef_test_tmpdir();
    f->keys = ef_wire_sample_keys(f->folder, 5, 0x11);
    f->other_keys = ef_wire_sample_keys(f->folder, 5, 0x22);
    assert_int_equal(ef_store_open("memory", "", NULL, &f->store, NULL), EF_OK);
    assert_int_equal(ef_aggregate_open(f->store, NULL, &f->aggregate, NULL), EF_OK);
    f->maker = ef_batch_maker_open();
    open_ingest(f);
    *state = f;
    return 0;
}

static int
teardown(void **state)
{
    struct fixture *f = *state;

    ef_ingest_free(f->ingest);
    ef_aggregate_free(f->aggregate);
    ef_store_close(f->store);
    ef_wire_keys_free(f->keys);
    ef_wire_keys_free(f->other_keys);
    ef_batch_maker_free(f->maker);
    ef_test_tmpdir_remove(f->folder);
    free(f);
    return 0;
}

/* ---- helpers ---- */

static struct ef_ingest_stat
stat_of(struct fixture *f)
{
    struct ef_ingest_stat stat;

    ef_ingest_get_stat(f->ingest, &stat);
    return stat;
}

/* Waits for an event that comes from another thread; fails after WAIT_MS. */
#define WAIT_FOR(condition)                                                                        \
    do {                                                                                           \
        int waited = 0;                                                                            \
        for (; !(condition) && waited < WAIT_MS; waited++)                                         \
            nng_msleep(1);                                                                         \
        assert_true(waited < WAIT_MS);                                                             \
    } while (0)

static nng_socket
open_pub(struct fixture *f)
{
    nng_socket pub;

    assert_int_equal(nng_pub0_open(&pub), 0);
    assert_int_equal(nng_socket_set_int(pub, NNG_OPT_SENDBUF, 4096), 0);
    assert_int_equal(nng_dial(pub, ef_ingest_url(f->ingest), NULL, 0), 0);
    return pub;
}

static nng_socket
open_req(struct fixture *f)
{
    nng_socket req;

    assert_int_equal(nng_req0_open(&req), 0);
    assert_int_equal(nng_dial(req, ef_ingest_sync_url(f->ingest), NULL, 0), 0);
    return req;
}

static void
send_bytes(nng_socket pub, const void *data, size_t len)
{
    assert_int_equal(nng_send(pub, (void *)(uintptr_t)data, len, 0), 0);
}

/* One fragment of 10 samples, as a sealed message. */
static void
make_message(struct fixture *f, const struct ef_wire_keys *keys, uint8_t publisher,
             uint64_t sequence, struct ef_buf *out)
{
    struct ef_wire_header header = {.kind = EF_WIRE_BATCH, .epoch = 1, .sequence = sequence};
    uint32_t source = ef_make_source(f->maker, "shop", "v1", "i1", "");

    header.publisher[0] = publisher;
    ef_make_definition(f->maker, source, "main;work", false);
    ef_make_fragment(f->maker, source, ef_wall_now().ns - EF_NS_PER_S, EF_NS_PER_S);
    ef_make_samples(f->maker, ef_stack_of("main;work"), 10);
    assert_int_equal(ef_wire_encode(keys, &header, &ef_make_batch(f->maker)->base, out, NULL),
                     EF_OK);
    ef_batch_maker_clear(f->maker);
}

static void
send_batch(struct fixture *f, nng_socket pub, uint8_t publisher, uint64_t sequence)
{
    struct ef_buf out;

    ef_buf_init(&out, EF_WIRE_BATCH_BYTES_MAX);
    make_message(f, f->keys, publisher, sequence, &out);
    send_bytes(pub, out.data, out.len);
    ef_buf_fini(&out);
}

/* PUB drops what it sends before it is connected: sends the first batch until it arrives. */
static void
connect_pub(struct fixture *f, nng_socket pub, uint8_t publisher)
{
    uint64_t before = stat_of(f).messages;

    for (int i = 0; i < WAIT_MS && stat_of(f).messages == before; i++) {
        send_batch(f, pub, publisher, 1);
        nng_msleep(1);
    }
    WAIT_FOR(stat_of(f).queue_messages == 0);
    nng_msleep(20); /* stray copies of the first batch */
}

static ef_rc
add_samples(void *arg, int64_t bucket_ns, uint32_t part, const struct ef_store_totals *totals)
{
    uint64_t *samples = arg;

    (void)bucket_ns;
    (void)part;
    *samples += totals->samples;
    return EF_OK;
}

static uint64_t
stored(struct fixture *f)
{
    uint64_t samples = 0;

    assert_int_equal(ef_aggregate_flush(f->aggregate, ef_wall_now().ns, NULL), EF_OK);
    assert_int_equal(
        ef_store_fold_totals(f->store, EF_TIER_10S, 1, 0, INT64_MAX, add_samples, &samples, NULL),
        EF_OK);
    return samples;
}

/* Asks and gives the acknowledged sequence; UINT64_MAX when the reply has no epoch. */
static uint64_t
ask(struct fixture *f, nng_socket req, uint8_t publisher, uint64_t last)
{
    struct ef_wire_header header = {.kind = EF_WIRE_SYNC_REQUEST, .epoch = 1, .sequence = 42};
    Everflame__V1__SyncRequest request = EVERFLAME__V1__SYNC_REQUEST__INIT;
    Everflame__V1__EpochState epoch = EVERFLAME__V1__EPOCH_STATE__INIT, *epochs[] = {&epoch};
    const Everflame__V1__SyncReply *reply;
    const ProtobufCMessage *message;
    struct ef_wire_reader *reader;
    struct ef_buf out;
    uint64_t acknowledged = UINT64_MAX;
    char name[] = "test";
    void *answer;
    size_t len;

    header.publisher[0] = publisher;
    epoch.epoch = 1;
    epoch.first_sequence = 1;
    epoch.last_sequence = last;
    request.epochs = epochs;
    request.n_epochs = 1;
    request.name = name;
    ef_buf_init(&out, 1 << 20);
    assert_int_equal(ef_wire_encode(f->keys, &header, &request.base, &out, NULL), EF_OK);
    send_bytes(req, out.data, out.len);
    assert_int_equal(nng_recv(req, &answer, &len, NNG_FLAG_ALLOC), 0);
    assert_int_equal(ef_wire_reader_open(f->keys, &reader, NULL), EF_OK);
    assert_int_equal(
        ef_wire_decode(reader, EF_WIRE_SYNC_REPLY, answer, len, &header, &message, NULL), EF_OK);
    assert_int_equal(header.sequence, 42);
    assert_int_equal(header.publisher[0], publisher);
    reply = (const Everflame__V1__SyncReply *)message;
    if (reply->n_epochs == 1)
        acknowledged = reply->epochs[0]->acknowledged;
    ef_wire_reader_free(reader);
    nng_free(answer, len);
    ef_buf_fini(&out);
    return acknowledged;
}

/* A TCP connection to an address "tcp://127.0.0.1:port". */
static int
raw_connect(const char *url)
{
    struct sockaddr_in address = {.sin_family = AF_INET};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    address.sin_port = htons((uint16_t)atoi(strrchr(url, ':') + 1));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    assert_true(fd >= 0);
    assert_int_equal(connect(fd, (struct sockaddr *)&address, sizeof(address)), 0);
    return fd;
}

/* ---- tests ---- */

static void
batches_arrive_and_are_acknowledged(void **state)
{
    struct fixture *f = *state;
    nng_socket pub = open_pub(f), req = open_req(f);

    connect_pub(f, pub, 1);
    for (uint64_t i = 2; i <= 100; i++)
        send_batch(f, pub, 1, i);
    WAIT_FOR(stat_of(f).applied == 100);
    assert_int_equal(ask(f, req, 1, 100), 0);
    assert_int_equal(stored(f), 1000);
    assert_int_equal(ask(f, req, 1, 100), 100);
    nng_close(pub);
    nng_close(req);
}

static void
repeated_and_reordered_batches_count_once(void **state)
{
    struct fixture *f = *state;
    nng_socket pub = open_pub(f);
    uint64_t before;

    connect_pub(f, pub, 1);
    before = stat_of(f).duplicate;
    for (int round = 0; round < 2; round++) {
        for (uint64_t i = 50; i >= 2; i--)
            send_batch(f, pub, 1, i);
    }
    WAIT_FOR(stat_of(f).applied == 50 && stat_of(f).duplicate == before + 49);
    assert_int_equal(stored(f), 500);
    nng_close(pub);
}

/* Goal: forged, cut, oversized and foreign messages are refused and counted, and others do not
 * notice. */
static void
bad_messages_are_counted_and_disturb_nobody(void **state)
{
    struct fixture *f = *state;
    nng_socket pub = open_pub(f), bad = open_pub(f);
    struct ef_buf out;
    uint64_t applied;

    connect_pub(f, pub, 1);
    connect_pub(f, bad, 2);
    applied = stat_of(f).applied;
    ef_buf_init(&out, EF_WIRE_BATCH_BYTES_MAX);
    make_message(f, f->other_keys, 3, 1, &out); /* the right key id, another key */
    send_bytes(bad, out.data, out.len);
    WAIT_FOR(stat_of(f).refused_auth == 1);
    make_message(f, f->keys, 3, 1, &out);
    out.data[out.len - 1] ^= 1; /* damaged */
    send_bytes(bad, out.data, out.len);
    WAIT_FOR(stat_of(f).refused_auth == 2);
    out.data[8] = 99; /* unknown key */
    send_bytes(bad, out.data, out.len);
    WAIT_FOR(stat_of(f).refused_auth == 3);
    make_message(f, f->keys, 3, 1, &out);
    send_bytes(bad, out.data, 30); /* cut inside the header */
    send_bytes(bad, "GET / HTTP/1.1\r\n\r\n", 18);
    WAIT_FOR(stat_of(f).refused_malformed == 2);
    out.data[12] = out.data[13] = out.data[14] = out.data[15] = 0xff; /* 4 GiB when unpacked */
    send_bytes(bad, out.data, out.len);
    WAIT_FOR(stat_of(f).refused_oversize == 1);
    for (uint64_t i = 2; i <= 20; i++)
        send_batch(f, pub, 1, i);
    WAIT_FOR(stat_of(f).applied == applied + 19);
    ef_buf_fini(&out);
    nng_close(pub);
    nng_close(bad);
}

static void
raw_garbage_on_both_ports_disturbs_nobody(void **state)
{
    struct fixture *f = *state;
    nng_socket pub = open_pub(f), req = open_req(f);
    uint8_t junk[4096], hello[8] = {0, 'S', 'P', 0, 0, 0x20, 0, 0};
    const uint8_t length[8] = {0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff};

    connect_pub(f, pub, 1);
    memset(junk, 0xa5, sizeof(junk));
    for (int i = 0; i < 50; i++) {
        const char *url = i % 2 == 0 ? ef_ingest_url(f->ingest) : ef_ingest_sync_url(f->ingest);
        int fd = raw_connect(url);
        if (i % 3 == 0) {
            EF_IGNORE(send(fd, junk, sizeof(junk), MSG_NOSIGNAL) < 0, "the peer may have closed");
        } else if (i % 3 == 1) { /* leaves in the middle of the handshake */
            EF_IGNORE(send(fd, hello, 5, MSG_NOSIGNAL) < 0, "the peer may have closed");
        } else { /* a message of 2^64 - 1 bytes */
            hello[5] = i % 2 == 0 ? 0x20 : 0x30;
            EF_IGNORE(send(fd, hello, sizeof(hello), MSG_NOSIGNAL) < 0, "as above");
            EF_IGNORE(send(fd, length, sizeof(length), MSG_NOSIGNAL) < 0, "as above");
        }
        close(fd);
    }
    for (uint64_t i = 2; i <= 20; i++)
        send_batch(f, pub, 1, i);
    WAIT_FOR(stat_of(f).applied == 20);
    assert_int_equal(ask(f, req, 1, 20), 0);
    nng_close(pub);
    nng_close(req);
}

/* Goal: a request that cannot be decoded is answered too, or its sender would hang. */
static void
a_bad_request_gets_an_empty_reply(void **state)
{
    struct fixture *f = *state;
    nng_socket bad = open_req(f), good = open_req(f);
    const ProtobufCMessage *message;
    struct ef_wire_reader *reader;
    struct ef_wire_header header;
    void *answer;
    size_t len;

    send_bytes(bad, "nonsense", 8);
    assert_int_equal(nng_recv(bad, &answer, &len, NNG_FLAG_ALLOC), 0);
    assert_int_equal(ef_wire_reader_open(f->keys, &reader, NULL), EF_OK);
    assert_int_equal(
        ef_wire_decode(reader, EF_WIRE_SYNC_REPLY, answer, len, &header, &message, NULL), EF_OK);
    assert_int_equal(((const Everflame__V1__SyncReply *)message)->n_epochs, 0);
    assert_int_equal(stat_of(f).syncs_refused, 1);
    assert_int_equal(ask(f, good, 1, 5), 0);
    ef_wire_reader_free(reader);
    nng_free(answer, len);
    nng_close(bad);
    nng_close(good);
}

/* Goal: a peer that asks and never reads its replies does not hold up the others. */
static void
a_peer_that_does_not_read_blocks_nobody(void **state)
{
    struct fixture *f = *state;
    nng_socket good = open_req(f);
    const uint8_t hello[8] = {0, 'S', 'P', 0, 0, 0x30, 0, 0};
    uint8_t request[8 + 4 + 100] = {0, 0, 0, 0, 0, 0, 0, 104, 0x80, 0, 0, 1};
    int fd = raw_connect(ef_ingest_sync_url(f->ingest)), small = 1024;

    setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &small, sizeof(small));
    assert_int_equal(send(fd, hello, sizeof(hello), MSG_NOSIGNAL), sizeof(hello));
    for (int i = 0; i < 50000; i++) {
        if (send(fd, request, sizeof(request), MSG_NOSIGNAL | MSG_DONTWAIT) < 0)
            break;
    }
    for (int i = 0; i < 20; i++)
        assert_int_equal(ask(f, good, 1, 5), 0);
    close(fd);
    nng_close(good);
}

/* ---- listener ---- */

/* Kills a listener as the fault does: it goes on existing, and nobody is let in. */
static void
kill_listener(const char *url)
{
    uint16_t port = htons((uint16_t)atoi(strrchr(url, ':') + 1));
    int killed = 0;

    for (int fd = 3; fd < 1024; fd++) {
        struct sockaddr_in address;
        socklen_t len = sizeof(address);
        int listening = 0;
        socklen_t size = sizeof(listening);
        if (getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listening, &size) != 0 || !listening)
            continue;
        if (getsockname(fd, (struct sockaddr *)&address, &len) == 0 && address.sin_port == port)
            killed += shutdown(fd, SHUT_RDWR) == 0;
    }
    assert_int_equal(killed, 1);
}

static void
a_dead_listener_is_found_and_opened_again(void **state)
{
    struct fixture *f = *state;
    nng_socket before = open_pub(f), after, req;

    connect_pub(f, before, 1);
    kill_listener(ef_ingest_url(f->ingest));
    WAIT_FOR(f->dead == 1);
    kill_listener(ef_ingest_sync_url(f->ingest));
    WAIT_FOR(f->dead == 2);
    assert_int_equal(stat_of(f).listeners_restarted, 2);
    after = open_pub(f);
    connect_pub(f, after, 2);
    /* Closing a listener closes its connections too: peers dial again by themselves. */
    for (int i = 0; i < WAIT_MS && stat_of(f).applied < 3; i++) {
        send_batch(f, before, 1, 2);
        nng_msleep(1);
    }
    assert_int_equal(stat_of(f).applied, 3);
    req = open_req(f);
    assert_int_equal(ask(f, req, 1, 2), 0);
    nng_close(before);
    nng_close(after);
    nng_close(req);
}

static void
a_healthy_listener_is_left_alone(void **state)
{
    struct fixture *f = *state;

    nng_msleep(500); /* five probes */
    assert_int_equal(f->dead, 0);
    assert_int_equal(stat_of(f).listeners_restarted, 0);
}

/* ---- life ---- */

/*
 * Closing under traffic is done in processes of their own, as a daemon does it once and ends: nng
 * 1.5.2 sometimes hangs in its one reap thread then (collector/ingest/closer.h), which later
 * sockets of the same process would feel.
 */
static void *
ask_main(void *arg)
{
    nng_socket *req = arg;
    nng_msg *answer;

    while (nng_send(*req, (void *)(uintptr_t) "nonsense", 8, 0) == 0 &&
           nng_recvmsg(*req, &answer, 0) == 0)
        nng_msg_free(answer);
    return NULL;
}

/* Publishes the message of a file and asks nonsense until it is killed. */
static int
run_load(const char *ingest_url, const char *sync_url, const char *path)
{
    nng_socket pub, req;
    pthread_t asker;
    size_t len;
    uint8_t *message = ef_test_read_file(path, &len);

    if (nng_pub0_open(&pub) != 0 || nng_req0_open(&req) != 0 ||
        nng_socket_set_ms(pub, NNG_OPT_RECONNMINT, 10) != 0 ||
        nng_socket_set_ms(req, NNG_OPT_RECONNMINT, 10) != 0 ||
        nng_dial(pub, ingest_url, NULL, NNG_FLAG_NONBLOCK) != 0 ||
        nng_dial(req, sync_url, NULL, NNG_FLAG_NONBLOCK) != 0 ||
        pthread_create(&asker, NULL, ask_main, &req) != 0)
        return 1;
    for (uint64_t i = 0;; i++) {
        nng_send(pub, message, len, 0);
        if (i % 64 == 0)
            nng_msleep(1);
    }
}

/* A collector that stops once traffic flows. Gives 0 when that took less than a second. */
static int
run_collector(const char *ingest_url, const char *sync_url)
{
    struct ef_ingest_options options = {.ingest_url = ingest_url, .sync_url = sync_url};
    struct ef_ingest_stat stat = {0};
    struct ef_wire_keys *keys;
    struct ef_store *store;
    struct ef_aggregate *aggregate;
    struct ef_ingest *ingest;
    ef_mono_ns begin;

    if (ef_wire_keys_open(NULL, &keys, NULL) != EF_OK ||
        ef_store_open("memory", "", NULL, &store, NULL) != EF_OK ||
        ef_aggregate_open(store, NULL, &aggregate, NULL) != EF_OK)
        return 2;
    options.keys = keys;
    if (ef_ingest_open(&options, aggregate, &ingest, NULL) != EF_OK)
        return 3;
    for (int i = 0; i < WAIT_MS && (stat.messages < 50 || stat.syncs_refused < 5); i++) {
        nng_msleep(1);
        ef_ingest_get_stat(ingest, &stat);
    }
    if (stat.messages < 50 || stat.syncs_refused < 5)
        return 4;
    begin = ef_mono_now();
    ef_ingest_close(ingest);
    ef_ingest_close(ingest);
    ef_ingest_stop(ingest);
    ef_ingest_free(ingest);
    ef_aggregate_free(aggregate);
    ef_store_close(store);
    if (ef_mono_since(begin, ef_mono_now()).ns >= EF_NS_PER_S)
        return 5;
    _exit(0); /* a daemon ends so: nothing waits for what nng left behind */
}

static pid_t
spawn_self(const char *mode, const char *ingest_url, const char *sync_url, const char *path)
{
    const char *argv[] = {"/proc/self/exe", mode, ingest_url, sync_url, path, NULL};
    pid_t pid = 0;

    assert_int_equal(
        posix_spawn(&pid, argv[0], NULL, NULL, (char *const *)(uintptr_t)argv, environ), 0);
    return pid;
}

static void
write_message(struct fixture *f, const char *path)
{
    struct ef_wire_keys *zero;
    struct ef_buf out;
    FILE *file = fopen(path, "wb");

    assert_non_null(file);
    assert_int_equal(ef_wire_keys_open(NULL, &zero, NULL), EF_OK);
    ef_buf_init(&out, EF_WIRE_BATCH_BYTES_MAX);
    make_message(f, zero, 1, 1, &out);
    assert_int_equal(fwrite(out.data, 1, out.len, file), out.len);
    assert_int_equal(fclose(file), 0);
    ef_buf_fini(&out);
    ef_wire_keys_free(zero);
}

/* Goal: stopping under traffic ends within a second and never crashes; fifty times. */
static void
it_ends_under_traffic(void **state)
{
    struct fixture *f = *state;
    char path[512], ingest_url[64], sync_url[64];
    pid_t load;

    snprintf(path, sizeof(path), "%s/message", f->folder);
    write_message(f, path);
    snprintf(ingest_url, sizeof(ingest_url), "tcp://127.0.0.1:%d", ef_test_free_port());
    snprintf(sync_url, sizeof(sync_url), "tcp://127.0.0.1:%d", ef_test_free_port());
    load = spawn_self("--load", ingest_url, sync_url, path);
    for (int round = 0; round < 50; round++) {
        pid_t collector = spawn_self("--collector", ingest_url, sync_url, path);
        int status = -1;
        assert_int_equal(waitpid(collector, &status, 0), collector);
        assert_int_equal(status, 0);
    }
    kill(load, SIGKILL);
    waitpid(load, NULL, 0);
    unlink(path);
}

static void
an_address_in_use_is_a_conflict(void **state)
{
    struct fixture *f = *state;
    struct ef_ingest_options options = {
        .ingest_url = ef_ingest_url(f->ingest), .sync_url = "tcp://127.0.0.1:0", .keys = f->keys};
    struct ef_ingest *second = NULL;
    struct ef_err err = {0};

    assert_int_equal(ef_ingest_open(&options, f->aggregate, &second, &err), EF_ECONFLICT);
    assert_null(second);
    assert_non_null(strstr(err.msg, ef_ingest_url(f->ingest)));
    options.ingest_url = "ipc:///tmp/everflame";
    assert_int_equal(ef_ingest_open(&options, f->aggregate, &second, &err), EF_EINVAL);
    options.ingest_url = "tcp://nowhere.invalid.:1";
    assert_int_not_equal(ef_ingest_open(&options, f->aggregate, &second, &err), EF_OK);
    ef_ingest_free(NULL);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int
main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        TEST(batches_arrive_and_are_acknowledged),
        TEST(repeated_and_reordered_batches_count_once),
        TEST(bad_messages_are_counted_and_disturb_nobody),
        TEST(raw_garbage_on_both_ports_disturbs_nobody),
        TEST(a_bad_request_gets_an_empty_reply),
        TEST(a_peer_that_does_not_read_blocks_nobody),
        TEST(a_dead_listener_is_found_and_opened_again),
        TEST(a_healthy_listener_is_left_alone),
        TEST(it_ends_under_traffic),
        TEST(an_address_in_use_is_a_conflict),
    };
    if (argc == 5 && strcmp(argv[1], "--load") == 0)
        return run_load(argv[2], argv[3], argv[4]);
    if (argc == 5 && strcmp(argv[1], "--collector") == 0)
        return run_collector(argv[2], argv[3]);
    return cmocka_run_group_tests_name("ingest", tests, NULL, NULL);
}
