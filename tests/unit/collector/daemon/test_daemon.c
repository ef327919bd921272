/*
 * Options from all their sources, the division of memory, and a daemon that starts, keeps what it
 * took, and ends.
 */
#include "tests/support/ef_test.h"

#include "collector/daemon/daemon.h"
#include "proto/base/log.h"
#include "proto/http/http_client.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct fixture {
    char *folder;
    char path[600];
    struct ef_daemon_options options;
    struct ef_err err;
};

static int
setup(void **state)
{
    struct fixture *f = calloc(1, sizeof(*f));

    ef_log_set_level(EF_LOG_ERROR);
    f->folder = ef_test_tmpdir();
    ef_option_defaults(ef_daemon_option_table, ef_daemon_option_count, &f->options);
    snprintf(f->options.data, sizeof(f->options.data), "%s/data", f->folder);
    snprintf(f->options.http, sizeof(f->options.http), "127.0.0.1:0");
    snprintf(f->options.ingest, sizeof(f->options.ingest), "tcp://127.0.0.1:0");
    snprintf(f->options.sync, sizeof(f->options.sync), "tcp://127.0.0.1:0");
    *state = f;
    return 0;
}

static int
teardown(void **state)
{
    struct fixture *f = *state;

    unsetenv("EVERFLAME_MEMORY_MAX");
    unsetenv("EVERFLAME_QUERIES_MAX");
    ef_test_tmpdir_remove(f->folder);
    free(f);
    return 0;
}

static void
write_config(struct fixture *f, const char *text)
{
    FILE *file;

    snprintf(f->path, sizeof(f->path), "%s/everflamed.yaml", f->folder);
    file = fopen(f->path, "w");
    assert_non_null(file);
    assert_true(fputs(text, file) >= 0);
    fclose(file);
}

static ef_rc
configure(struct fixture *f, char **argv)
{
    bool help, version;
    int argc = 0;

    while (argv[argc] != NULL)
        argc++;
    return ef_daemon_configure(&argc, argv, &f->options, &help, &version, &f->err);
}

static void
flags_win_over_variables_and_those_over_the_file(void **state)
{
    struct fixture *f = *state;
    char *argv[] = {"everflamed", "--config", f->path, "--flush-interval", "7s", NULL};

    write_config(f, "# sizes\nmemory_max: 200MiB\nqueries_max: 5\nflush_interval_ms: 3s\n"
                    "insecure: true\nhttp_hosts: a.example,b.example\n");
    setenv("EVERFLAME_QUERIES_MAX", "6", 1);
    if (configure(f, argv) != EF_OK)
        fail_msg("configure: %s", f->err.msg);
    assert_int_equal(f->options.memory_max, 200u << 20);
    assert_int_equal(f->options.queries_max, 6);
    assert_int_equal(f->options.flush_interval_ms, 7000);
    assert_true(f->options.insecure);
    assert_string_equal(f->options.http_hosts, "a.example,b.example");
    assert_int_equal(f->options.retention_ms, 3 * 86400 * 1000);
}

static void
configure_refuses_what_is_no_option(void **state)
{
    struct fixture *f = *state;
    struct ef_daemon_options before = f->options;
    char *word[] = {"everflamed", "start", NULL};
    char *typo[] = {"everflamed", "--memory-mux=1GiB", NULL};
    char *file[] = {"everflamed", "--config", f->path, NULL};

    assert_int_equal(configure(f, word), EF_EUSAGE);
    assert_non_null(strstr(f->err.msg, "start"));
    assert_int_equal(configure(f, typo), EF_EUSAGE);
    assert_non_null(strstr(f->err.msg, "--memory-max"));
    write_config(f, "memory_mix: 200MiB\n");
    assert_int_equal(configure(f, file), EF_EUSAGE);
    assert_non_null(strstr(f->err.msg, "memory_mix"));
    write_config(f, "memory_max: 3MiB\n");
    assert_int_equal(configure(f, file), EF_EUSAGE);
    assert_non_null(strstr(f->err.msg, "memory_max"));
    write_config(f, "memory_max: [1, 2\n");
    assert_int_equal(configure(f, file), EF_EUSAGE);
    unlink(f->path);
    assert_int_equal(configure(f, file), EF_EUSAGE);
    assert_non_null(strstr(f->err.msg, f->path));
    setenv("EVERFLAME_MEMORY_MAX", "lots", 1);
    assert_int_equal(configure(f, (char *[]){"everflamed", NULL}), EF_EUSAGE);
    assert_non_null(strstr(f->err.msg, "EVERFLAME_MEMORY_MAX"));
    assert_memory_equal(&before, &f->options, sizeof(before));
}

/* All parts together leave room for the process itself. */
static void
shares_stay_below_the_cap(void **state)
{
    struct fixture *f = *state;

    for (uint64_t mib = 96; mib <= 8192; mib *= 2) {
        struct ef_daemon_shares shares;
        uint64_t sum;
        f->options.memory_max = mib << 20;
        ef_daemon_divide(&f->options, &shares);
        sum = shares.cache_bytes + shares.write_buffer_bytes + shares.queue_bytes +
              shares.aggregate_bytes + shares.definitions_bytes +
              f->options.queries_max * shares.request_bytes;
        assert_true(sum + (UINT64_C(40) << 20) <= f->options.memory_max);
        assert_true(shares.request_bytes >= 3u << 20);
        assert_true(shares.aggregate_bytes >= 16u << 20);
    }
}

static void
references_are_printed_by_name(void **state)
{
    struct fixture *f = *state;
    static const char *const names[] = {"options", "metrics", "events", "errors", "routes"};
    static const char *const parts[] = {"`memory_max`", "everflame_store_flushes_total",
                                        "`STORE_OPENED`", "`EF_EBUSY`", "`GET /api/v1/top`"};
    struct ef_buf out;

    ef_buf_init(&out, 1u << 20);
    for (size_t i = 0; i < EF_COUNT_OF(names); i++) {
        ef_buf_clear(&out);
        assert_int_equal(ef_daemon_print(names[i], &out, &f->err), EF_OK);
        ef_buf_put_u8(&out, 0);
        assert_non_null(strstr((const char *)out.data, parts[i]));
    }
    assert_int_equal(ef_daemon_print("nothing", &out, &f->err), EF_EUSAGE);
    ef_buf_fini(&out);
}

static void
ask(struct ef_daemon *daemon, const char *path, const char *body, struct ef_http_response *ret)
{
    char url[256];
    struct ef_http_request request = {
        .url = url, .body = body, .body_bytes = body != NULL ? strlen(body) : 0};
    struct ef_err err = {0};

    snprintf(url, sizeof(url), "http://127.0.0.1:%d%s", ef_daemon_http_port(daemon), path);
    if (ef_http_do(&request, ret, &err) != EF_OK)
        fail_msg("%s: %s", path, err.msg);
}

/* What was taken is there after an orderly end and a new start. */
static void
daemon_keeps_what_it_took(void **state)
{
    struct fixture *f = *state;
    struct ef_daemon *daemon = NULL, *second = NULL;
    struct ef_http_response response;

    if (ef_daemon_open(&f->options, &daemon, &f->err) != EF_OK)
        fail_msg("open: %s", f->err.msg);
    ask(daemon, "/api/v1/import?worker=shop&version=v1&format=folded", "main;leaf 7\n", &response);
    assert_int_equal(response.status, 200);
    ef_http_response_fini(&response);
    /* The folder is in use; fcntl does not see locks of the own process, so no name here. */
    assert_int_equal(ef_daemon_open(&f->options, &second, &f->err), EF_ECONFLICT);
    assert_null(second);
    assert_int_equal(ef_daemon_stop(daemon, &f->err), EF_OK);
    assert_int_equal(ef_daemon_open(&f->options, &daemon, &f->err), EF_OK);
    ask(daemon, "/api/v1/top?worker=shop", NULL, &response);
    assert_int_equal(response.status, 200);
    assert_non_null(strstr((const char *)response.body.data, "\"samples\":7"));
    ef_http_response_fini(&response);
    assert_int_equal(ef_daemon_stop(daemon, &f->err), EF_OK);
    assert_int_equal(ef_daemon_stop(NULL, NULL), EF_OK);
}

static void
daemon_refuses_open_doors(void **state)
{
    struct fixture *f = *state;
    struct ef_daemon *daemon = NULL;

    snprintf(f->options.http, sizeof(f->options.http), "0.0.0.0:0");
    assert_int_equal(ef_daemon_open(&f->options, &daemon, &f->err), EF_EUSAGE);
    assert_non_null(strstr(f->err.msg, "--insecure"));
    snprintf(f->options.http, sizeof(f->options.http), "127.0.0.1:0");
    snprintf(f->options.ingest, sizeof(f->options.ingest), "tcp://0.0.0.0:0");
    assert_int_equal(ef_daemon_open(&f->options, &daemon, &f->err), EF_EUSAGE);
    assert_non_null(strstr(f->err.msg, "--key-file"));
    f->options.ingest[0] = '\0';
    assert_int_equal(ef_daemon_open(&f->options, &daemon, &f->err), EF_EUSAGE);
    snprintf(f->options.key_file, sizeof(f->options.key_file), "%s/none", f->folder);
    f->options.sync[0] = '\0';
    assert_int_not_equal(ef_daemon_open(&f->options, &daemon, &f->err), EF_OK);
    assert_null(daemon);
    assert_int_not_equal(access(f->options.data, F_OK), 0); /* refused before anything was made */
}

int
main(void)
{
#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        T(flags_win_over_variables_and_those_over_the_file),
        T(configure_refuses_what_is_no_option),
        T(shares_stay_below_the_cap),
        T(references_are_printed_by_name),
        T(daemon_keeps_what_it_took),
        T(daemon_refuses_open_doors),
    };

    return cmocka_run_group_tests_name("daemon", tests, NULL, NULL);
}
