/*
 * The HTTP interface over real sockets: what it answers, and what it does not let in.
 */
#include "tests/support/ef_test.h"

#include "collector/serve/serve.h"
#include "proto/base/time.h"
#include "tests/support/query_store.h"

#include <arpa/inet.h>
#include <poll.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define ANSWER_MAX (1u << 20)

struct fixture {
    struct ef_store *store;
    struct ef_aggregate *aggregate;
    struct ef_query *query;
    struct ef_serve *serve;
    atomic_bool scarce; /* read by the server's threads */
    char *answer;       /* of the last request, with headers */
    struct ef_err err;
};

static bool
is_scarce(void *arg)
{
    return ((struct fixture *)arg)->scarce;
}

static int
setup(void **state)
{
    struct fixture *f = calloc(1, sizeof(*f));
    struct ef_serve_options options = {.address = "127.0.0.1:0",
                                       .hosts = "everflame.example, other.example",
                                       .request_ms_max = 1000,
                                       .import_bytes_max = 100000};
    struct ef_serve_parts parts = {.is_scarce = is_scarce, .arg = f};

    f->answer = calloc(1, ANSWER_MAX);
    assert_int_equal(ef_store_open("memory", NULL, NULL, &f->store, &f->err), EF_OK);
    assert_int_equal(ef_aggregate_open(f->store, NULL, &f->aggregate, &f->err), EF_OK);
    assert_int_equal(ef_query_open(f->store, NULL, &f->query, &f->err), EF_OK);
    parts.store = f->store;
    parts.aggregate = f->aggregate;
    parts.query = f->query;
    if (ef_serve_open(&parts, &options, &f->serve, &f->err) != EF_OK)
        fail_msg("serve: %s", f->err.msg);
    *state = f;
    return 0;
}

static int
teardown(void **state)
{
    struct fixture *f = *state;

    ef_serve_free(f->serve);
    ef_query_free(f->query);
    ef_aggregate_free(f->aggregate);
    ef_store_close(f->store);
    free(f->answer);
    free(f);
    return 0;
}

static int
connect_to(struct fixture *f)
{
    struct sockaddr_in address = {.sin_family = AF_INET,
                                  .sin_addr.s_addr = htonl(INADDR_LOOPBACK),
                                  .sin_port = htons((uint16_t)ef_serve_port(f->serve))};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    assert_true(fd >= 0);
    assert_int_equal(connect(fd, (struct sockaddr *)&address, sizeof(address)), 0);
    return fd;
}

/* Reads until the other side closes, at most `ms`; gives the HTTP status, 0 without an answer. */
static int
read_answer(struct fixture *f, int fd, int ms)
{
    struct pollfd poller = {fd, POLLIN, 0};
    size_t len = 0;
    int status = 0;

    while (len + 1 < ANSWER_MAX && poll(&poller, 1, ms) == 1) {
        ssize_t got = read(fd, f->answer + len, ANSWER_MAX - 1 - len);
        if (got <= 0)
            break;
        len += (size_t)got;
    }
    f->answer[len] = '\0';
    if (sscanf(f->answer, "HTTP/1.1 %d", &status) != 1)
        return 0;
    return status;
}

static int
send_raw(struct fixture *f, const char *text, size_t len)
{
    int fd = connect_to(f), status;

    while (len > 0) {
        ssize_t put = send(fd, text, len, MSG_NOSIGNAL);
        if (put <= 0)
            break; /* refused before all was read, which is an answer too */
        text += put;
        len -= (size_t)put;
    }
    status = read_answer(f, fd, 5000);
    close(fd);
    return status;
}

static int
get(struct fixture *f, const char *path)
{
    char text[2048];

    snprintf(text, sizeof(text), "GET %s HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n",
             path);
    return send_raw(f, text, strlen(text));
}

static int
post(struct fixture *f, const char *path, const char *body)
{
    char text[8192];

    snprintf(text, sizeof(text),
             "POST %s HTTP/1.1\r\nHost: localhost:%d\r\nConnection: close\r\n"
             "Content-Length: %zu\r\n\r\n%s",
             path, ef_serve_port(f->serve), strlen(body), body);
    return send_raw(f, text, strlen(text));
}

static void
expect(struct fixture *f, const char *part)
{
    if (strstr(f->answer, part) == NULL)
        fail_msg("no '%s' in: %s", part, f->answer);
}

#define FOLDED "main;fib;fib 30\nmain;leaf 10\n"
#define IMPORT "/api/v1/import?worker=shop&version=v1&at=2026-12-01T00:00:00Z&format=folded"

static void
import_now(struct fixture *f)
{
    assert_int_equal(post(f, "/api/v1/import?worker=shop&version=v1&format=folded", FOLDED), 200);
    expect(f, "\"samples\":40");
    expect(f, "\"stacks\":2");
    expect(f, "\"profile_type\":\"cpu\"");
    expect(f, "?at= says");
}

static void
import_is_there_at_once_in_every_answer(void **state)
{
    struct fixture *f = *state;

    import_now(f);
    assert_int_equal(get(f, "/api/v1/workers"), 200);
    expect(f, "\"worker\":\"shop\"");
    expect(f, "\"profile_types\":[\"cpu\"]");
    assert_int_equal(get(f, "/api/v1/versions?worker=shop"), 200);
    expect(f, "\"version\":\"v1\"");
    assert_int_equal(get(f, "/api/v1/top?worker=shop"), 200);
    expect(f, "\"samples\":40");
    expect(f, "{\"name\":\"fib\",\"file\":\"\",\"line\":0,\"self\":{\"samples\":30,\"share\":0.75");
    assert_int_equal(get(f, "/api/v1/top?worker=shop&limit=1"), 200);
    expect(f, "\"other\":");
    assert_int_equal(get(f, "/api/v1/timeline?worker=shop&from=now-1m&step=20s"), 200);
    expect(f, "\"points\":[{\"from\":");
    assert_int_equal(get(f, "/api/v1/query?worker=shop&format=folded"), 200);
    expect(f, "X-Everflame-Samples: 40");
    expect(f, "main;fib;fib 30");
    assert_int_equal(get(f, "/api/v1/query?worker=shop"), 200);
    expect(f, "application/octet-stream");
    assert_int_equal(get(f, "/api/v1/status"), 200);
    expect(f, "\"memory\":{\"resident_bytes\":");
    expect(f, "\"disk\":{");
    assert_int_equal(get(f, "/metrics"), 200);
    expect(f, "# TYPE everflame_query_requests_total counter");
    assert_int_equal(get(f, "/healthz"), 200);
    expect(f, "\r\n\r\nok\n");
    assert_int_equal(post(f, "/api/v1/flush", ""), 200);
    expect(f, "{\"flushed\":true}");
}

/* One sync of an agent that has one target, `worker` of version "v9", or none (NULL). */
static void
agent_syncs(struct fixture *f, const char *worker)
{
    static const uint8_t publisher[16] = "agent-of-a-host";
    Everflame__V1__SyncRequest request = EVERFLAME__V1__SYNC_REQUEST__INIT;
    Everflame__V1__TargetStatus target = EVERFLAME__V1__TARGET_STATUS__INIT;
    Everflame__V1__TargetStatus *targets[] = {&target};
    Everflame__V1__Source source = EVERFLAME__V1__SOURCE__INIT;
    Everflame__V1__SyncReply reply;
    struct ef_sync_arena *arena = ef_sync_arena_open();

    source.account = (char *)(uintptr_t) "acct";
    source.worker = (char *)(uintptr_t)worker;
    source.version = (char *)(uintptr_t) "v9";
    target.source = &source;
    request.targets = targets;
    request.n_targets = worker != NULL;
    if (ef_aggregate_sync(f->aggregate, publisher, &request, ef_wall_now().ns, arena, &reply,
                          &f->err) != EF_OK)
        fail_msg("sync: %s", f->err.msg);
    ef_sync_arena_free(arena);
}

/* A worker that nobody has: saying "requested" would have somebody wait for samples in vain. */
static void
collect_says_when_nobody_can_hear_it(void **state)
{
    struct fixture *f = *state;

    assert_int_equal(post(f, "/api/v1/collect?worker=nobody", ""), 200);
    expect(f, "{\"requested\":false,\"reason\":\"no_such_worker\",\"message\":\"nobody samples");
    import_now(f);
    assert_int_equal(post(f, "/api/v1/collect?worker=shop", ""), 200);
    expect(f, "\"reason\":\"no_agent\"");
    agent_syncs(f, NULL);
    assert_int_equal(post(f, "/api/v1/collect?worker=shop", ""), 202);
    expect(f, "{\"requested\":true}");
    assert_int_equal(post(f, "/api/v1/collect?worker=shop&version=v7", ""), 200);
    expect(f, "\"reason\":\"no_such_version\"");
    assert_int_equal(post(f, "/api/v1/collect?worker=shop&version=v7&version=v1", ""), 202);
    assert_int_equal(post(f, "/api/v1/collect?worker=shop&account=other", ""), 200);
    expect(f, "no_such_worker");
}

/* The first profile of a new worker may be minutes away: an agent's target is enough. */
static void
collect_reaches_a_target_that_has_sent_nothing_yet(void **state)
{
    struct fixture *f = *state;

    agent_syncs(f, "fresh");
    assert_int_equal(post(f, "/api/v1/collect?worker=fresh", ""), 202);
    assert_int_equal(post(f, "/api/v1/collect?worker=fresh&version=v9&account=acct", ""), 202);
    assert_int_equal(post(f, "/api/v1/collect?worker=fresh&version=v8", ""), 200);
    expect(f, "no_such_version");
    assert_int_equal(post(f, "/api/v1/collect?worker=fres", ""), 200);
    expect(f, "no_such_worker");
}

/* Imports are no publisher's: they stand beside its sums, also after a restart. */
static void
status_counts_what_was_imported(void **state)
{
    struct fixture *f = *state;
    struct ef_serve_options options = {.address = "127.0.0.1:0"};
    struct ef_serve_parts parts = {.store = f->store, .aggregate = f->aggregate, .query = f->query};

    assert_int_equal(get(f, "/api/v1/status"), 200);
    expect(f, "\"imported\":{\"profiles\":0,\"samples\":0}");
    expect(f, "\"bytes_per_sample\":null");
    import_now(f);
    import_now(f);
    assert_int_equal(post(f, "/api/v1/import?worker=shop&version=v1", "{\"nodes\": 7}"), 422);
    for (int life = 0; life < 2; life++) {
        assert_int_equal(get(f, "/api/v1/status"), 200);
        expect(f, "\"imported\":{\"profiles\":2,\"samples\":80}");
        expect(f, "\"samples\":{\"published\":0,\"stored\":0,\"lost\":0");
        assert_null(strstr(f->answer, "\"bytes_per_sample\":null"));
        ef_serve_free(f->serve);
        f->serve = NULL;
        assert_int_equal(ef_serve_open(&parts, &options, &f->serve, &f->err), EF_OK);
    }
}

/* All or nothing, and one sentence why not. */
static void
import_refuses_what_it_cannot_keep(void **state)
{
    struct fixture *f = *state;

    assert_int_equal(post(f, "/api/v1/import?worker=shop&version=v1", ""), 400);
    expect(f, "the body is empty");
    assert_int_equal(post(f, "/api/v1/import?worker=shop&version=v1", "{\"nodes\": 7}"), 422);
    assert_int_equal(post(f, "/api/v1/import?version=v1", FOLDED), 400);
    expect(f, "'worker' is missing");
    assert_int_equal(post(f, "/api/v1/import?worker=shop", FOLDED), 400);
    assert_int_equal(post(f, "/api/v1/import?worker=shop&version=v1&format=nope", FOLDED), 400);
    assert_int_equal(post(f, "/api/v1/import?worker=shop&version=v1&type=nope", FOLDED), 400);
    assert_int_equal(post(f, "/api/v1/import?worker=shop&version=v1&at=yesterday", FOLDED), 400);
    assert_int_equal(post(f, "/api/v1/import?worker=shop&version=v1&duration=long", FOLDED), 400);
    assert_int_equal(post(f, "/api/v1/import?worker=sh%0Aop&version=v1", FOLDED), 400);
    assert_int_equal(post(f, "/api/v1/import?worker=shop%00&version=v1", FOLDED), 400);
    assert_int_equal(get(f, "/api/v1/workers"), 200);
    expect(f, "\r\n\r\n[]\n");
}

static void
empty_results_say_why(void **state)
{
    struct fixture *f = *state;

    assert_int_equal(get(f, "/api/v1/top?worker=nobody"), 200);
    expect(f, "\"empty\":{\"reason\":\"no_such_worker\"");
    expect(f, "\"functions\":[]");
    assert_int_equal(get(f, "/api/v1/query?worker=nobody"), 404);
    expect(f, "\"reason\":\"no_such_worker\"");
    import_now(f);
    assert_int_equal(get(f, "/api/v1/top?worker=shop&from=0&to=1"), 200);
    expect(f, "before_data");
    assert_int_equal(get(f, "/api/v1/top?worker=shop&type=heap"), 200);
    expect(f, "no_such_type");
    assert_int_equal(get(f, "/api/v1/timeline?worker=shop&version=v7&from=now-1m"), 200);
    expect(f, "no_such_version");
}

static void
bad_parameters_are_named(void **state)
{
    struct fixture *f = *state;

    assert_int_equal(get(f, "/api/v1/top"), 400);
    expect(f, "'worker' is missing");
    assert_int_equal(get(f, "/api/v1/top?wroker=shop"), 400);
    expect(f, "do you mean 'worker'?");
    assert_int_equal(get(f, "/api/v1/top?worker=shop&from=never"), 400);
    expect(f, "parameter 'from'");
    assert_int_equal(get(f, "/api/v1/top?worker=shop&from=now&to=now-1h"), 400);
    expect(f, "later than");
    assert_int_equal(get(f, "/api/v1/top?worker=shop&limit=-1"), 400);
    assert_int_equal(get(f, "/api/v1/top?worker=shop&type=fast"), 400);
    expect(f, "types are cpu");
    assert_int_equal(get(f, "/api/v1/timeline?worker=shop&step=7s"), 400);
    expect(f, "multiple of 10s");
    assert_int_equal(get(f, "/api/v1/query?worker=shop&format=nope"), 400);
    expect(f, "speedscope");
    assert_int_equal(get(f, "/api/v1/top?worker=%ff%fe"), 400);
    expect(f, "UTF-8");
}

static void
unknown_routes_and_methods_get_a_hint(void **state)
{
    struct fixture *f = *state;

    assert_int_equal(get(f, "/api/v1/topp"), 404);
    expect(f, "do you mean '/api/v1/top'?");
    assert_int_equal(get(f, "/"), 404);
    assert_int_equal(post(f, "/api/v1/top?worker=shop", ""), 405);
    expect(f, "Allow: GET");
    assert_int_equal(get(f, "/api/v1/flush"), 405);
    expect(f, "use POST");
}

/* A web page must not reach the API: not through a name of its own, not from another origin. */
static void
foreign_hosts_and_origins_are_refused(void **state)
{
    struct fixture *f = *state;
    static const struct {
        const char *headers;
        int status;
    } cases[] = {
        {"", 403},
        {"Host: evil.example\r\n", 403},
        {"Host: 127.0.0.1.evil.example\r\n", 403},
        {"Host: localhost.evil.example:80\r\n", 403},
        {"Host: 128.0.0.1\r\n", 403},
        {"Host: \r\n", 403},
        {"Host: localhost\r\n", 200},
        {"Host: 127.0.0.1:4680\r\n", 200},
        {"Host: [::1]:4680\r\n", 200},
        {"Host: everflame.example\r\n", 200},
        {"Host: OTHER.example:80\r\n", 200},
        {"Host: localhost:1\r\nOrigin: http://localhost:1\r\n", 200},
        {"Host: localhost:1\r\nOrigin: http://localhost:2\r\n", 403},
        {"Host: localhost\r\nOrigin: http://evil.example\r\n", 403},
        {"Host: localhost\r\nOrigin: null\r\n", 403},
        {"Host: localhost\r\nSec-Fetch-Site: cross-site\r\n", 403},
    };

    for (size_t i = 0; i < EF_COUNT_OF(cases); i++) {
        char text[512];
        int status;
        snprintf(text, sizeof(text), "GET /healthz HTTP/1.1\r\n%sConnection: close\r\n\r\n",
                 cases[i].headers);
        status = send_raw(f, text, strlen(text));
        if (status != cases[i].status)
            fail_msg("%s: %d instead of %d", cases[i].headers, status, cases[i].status);
    }
}

static void
large_headers_and_bodies_are_refused(void **state)
{
    struct fixture *f = *state;
    size_t len = 200000;
    char *text = malloc(len + 512);
    int at;

    at = sprintf(text, "GET /healthz HTTP/1.1\r\nHost: localhost\r\nX: ");
    memset(text + at, 'a', len);
    memcpy(text + at + len, "\r\n\r\n", 4);
    assert_true(send_raw(f, text, (size_t)at + len + 4) >= 400);
    /* Declared. */
    at = sprintf(text, "POST " IMPORT " HTTP/1.1\r\nHost: localhost\r\nContent-Length: "
                       "99999999999\r\n\r\n");
    assert_int_equal(send_raw(f, text, (size_t)at), 413);
    expect(f, "EF_ELIMIT");
    /* Not declared: counted. */
    at = sprintf(text,
                 "POST " IMPORT " HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
                 "Transfer-Encoding: chunked\r\n\r\n%zx\r\n",
                 len);
    memset(text + at, 'a', len);
    memcpy(text + at + len, "\r\n0\r\n\r\n", 7);
    assert_int_equal(send_raw(f, text, (size_t)at + len + 7), 413);
    /* A route without a body. */
    assert_int_equal(post(f, "/api/v1/flush", "hello"), 413);
    free(text);
    assert_int_equal(get(f, "/healthz"), 200);
}

/* A client that sends a byte now and then is ended by the deadline, and stops nobody meanwhile. */
static void
slow_clients_are_ended(void **state)
{
    struct fixture *f = *state;
    const char *text = "GET /healthz HTTP/1.1\r\nHost: localhost\r\nX: aaaaaaaaaaaaaaaaaaaaaaaaaa";
    int fd = connect_to(f);
    ef_mono_ns from = ef_mono_now();
    struct pollfd poller = {fd, POLLIN, 0};
    bool ended = false;

    for (size_t i = 0; !ended && ef_mono_since(from, ef_mono_now()).ns < 8 * EF_NS_PER_S; i++) {
        char byte = i < strlen(text) ? text[i] : 'a';
        ended = send(fd, &byte, 1, MSG_NOSIGNAL) != 1;
        if (i == 3)
            assert_int_equal(get(f, "/healthz"), 200);
        if (poll(&poller, 1, 100) == 1) { /* the pace of the client; the end of the connection */
            char got[256];
            ended = ended || read(fd, got, sizeof(got)) <= 0;
        }
    }
    assert_true(ended);
    assert_true(ef_mono_since(from, ef_mono_now()).ns < 4 * EF_NS_PER_S);
    close(fd);
    assert_int_equal(get(f, "/healthz"), 200);
}

static void
scarce_memory_refuses_queries_and_imports_visibly(void **state)
{
    struct fixture *f = *state;

    f->scarce = true;
    assert_int_equal(get(f, "/api/v1/top?worker=shop"), 503);
    expect(f, "EF_EBUSY");
    expect(f, "Retry-After: 1");
    assert_int_equal(post(f, "/api/v1/import?worker=shop&version=v1", FOLDED), 503);
    assert_int_equal(get(f, "/healthz"), 200);
    f->scarce = false;
    assert_int_equal(get(f, "/api/v1/top?worker=shop"), 200);
}

static void
open_refuses_addresses_that_others_can_reach(void **state)
{
    struct fixture *f = *state;
    struct ef_serve_parts parts = {f->store, f->query, f->aggregate, NULL, NULL};
    struct ef_serve_options options = {.address = "0.0.0.0:0"};
    struct ef_serve *serve = NULL;
    char address[64];

    assert_int_equal(ef_serve_open(&parts, &options, &serve, &f->err), EF_EUSAGE);
    assert_non_null(strstr(f->err.msg, "--insecure"));
    options.address = "localhost";
    assert_int_equal(ef_serve_open(&parts, &options, &serve, &f->err), EF_EUSAGE);
    snprintf(address, sizeof(address), "127.0.0.1:%d", ef_serve_port(f->serve));
    options.address = address;
    assert_int_equal(ef_serve_open(&parts, &options, &serve, &f->err), EF_ECONFLICT);
    assert_null(serve);
    options.address = "0.0.0.0:0";
    options.insecure = true;
    assert_int_equal(ef_serve_open(&parts, &options, &serve, &f->err), EF_OK);
    ef_serve_free(serve);
}

int
main(void)
{
#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        T(import_is_there_at_once_in_every_answer),
        T(collect_says_when_nobody_can_hear_it),
        T(collect_reaches_a_target_that_has_sent_nothing_yet),
        T(status_counts_what_was_imported),
        T(import_refuses_what_it_cannot_keep),
        T(empty_results_say_why),
        T(bad_parameters_are_named),
        T(unknown_routes_and_methods_get_a_hint),
        T(foreign_hosts_and_origins_are_refused),
        T(large_headers_and_bodies_are_refused),
        T(slow_clients_are_ended),
        T(scarce_memory_refuses_queries_and_imports_visibly),
        T(open_refuses_addresses_that_others_can_reach),
    };

    return cmocka_run_group_tests_name("serve", tests, NULL, NULL);
}
