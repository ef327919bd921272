/*
 * The HTTP client against a small server that answers each connection with fixed bytes.
 */
#include "tests/support/ef_test.h"

#include "proto/http/http_client.h"

#include <arpa/inet.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum after { AFTER_CLOSE, AFTER_HOLD };

/* Answers one connection; keeps the request it saw. */
struct server {
    int listener;
    int port;
    const char *reply;
    size_t reply_bytes;
    enum after after;
    char request[8192];
    size_t request_bytes;
    pthread_t thread;
    int stop[2];
};

static bool
request_is_whole(const struct server *server)
{
    const char *end = strstr(server->request, "\r\n\r\n");
    const char *length = strcasestr(server->request, "content-length:");

    if (end == NULL)
        return false;
    return length == NULL || server->request_bytes - (size_t)(end + 4 - server->request) >=
                                 (size_t)strtol(length + strlen("content-length:"), NULL, 10);
}

static void *
serve(void *arg)
{
    struct server *server = arg;
    struct pollfd fds[2] = {{server->listener, POLLIN, 0}, {server->stop[0], POLLIN, 0}};
    int fd;

    poll(fds, 2, -1);
    if (fds[0].revents == 0)
        return NULL;
    fd = accept(server->listener, NULL, NULL);
    while (!request_is_whole(server)) {
        ssize_t got = read(fd, server->request + server->request_bytes,
                           sizeof(server->request) - 1 - server->request_bytes);
        if (got <= 0)
            break;
        server->request_bytes += (size_t)got;
    }
    for (size_t sent = 0; sent < server->reply_bytes;) {
        ssize_t put = send(fd, server->reply + sent, server->reply_bytes - sent, MSG_NOSIGNAL);
        if (put <= 0)
            break;
        sent += (size_t)put;
    }
    if (server->after == AFTER_HOLD)
        poll(fds + 1, 1, -1);
    close(fd);
    return NULL;
}

static int
setup(void **state)
{
    struct server *server = calloc(1, sizeof(*server));
    struct sockaddr_in addr = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof(addr);

    server->listener = socket(AF_INET, SOCK_STREAM, 0);
    if (bind(server->listener, (struct sockaddr *)&addr, sizeof(addr)) != 0 ||
        listen(server->listener, 8) != 0 ||
        getsockname(server->listener, (struct sockaddr *)&addr, &len) != 0 ||
        pipe(server->stop) != 0)
        return -1;
    server->port = ntohs(addr.sin_port);
    *state = server;
    return 0;
}

static void
answer(struct server *server, const char *reply, enum after after)
{
    server->reply = reply;
    server->reply_bytes = strlen(reply);
    server->after = after;
    pthread_create(&server->thread, NULL, serve, server);
}

static int
teardown(void **state)
{
    struct server *server = *state;

    if (server->thread != 0) {
        assert_int_equal(write(server->stop[1], "x", 1), 1);
        pthread_join(server->thread, NULL);
    }
    close(server->listener);
    close(server->stop[0]);
    close(server->stop[1]);
    free(server);
    return 0;
}

static ef_rc
get(struct server *server, struct ef_http_request *request, struct ef_http_response *ret,
    struct ef_err *err)
{
    char url[64];
    ef_rc rc;

    snprintf(url, sizeof(url), "http://127.0.0.1:%d/json?x=1", server->port);
    request->url = url;
    rc = ef_http_do(request, ret, err);
    request->url = NULL;
    return rc;
}

static void
get_gives_status_type_headers_and_body(void **state)
{
    struct server *server = *state;
    struct ef_http_request request = {0};
    struct ef_http_response response;
    struct ef_err err = {0};
    char value[16];

    answer(server,
           "HTTP/1.1 429 Slow\r\nContent-Type: application/json\r\nRetry-After: 7\r\n"
           "Empty:\r\nContent-Length: 5\r\n\r\n[\"a\"]",
           AFTER_HOLD);
    assert_int_equal(get(server, &request, &response, &err), EF_OK);
    assert_int_equal(response.status, 429);
    assert_string_equal(response.content_type, "application/json");
    assert_int_equal(response.body.len, 5);
    assert_string_equal((char *)response.body.data, "[\"a\"]");
    assert_true(ef_http_header(&response, "retry-after", value, sizeof(value)));
    assert_string_equal(value, "7");
    assert_true(ef_http_header(&response, "empty", value, sizeof(value)));
    assert_string_equal(value, "");
    assert_true(ef_http_header(&response, "content-type", value, sizeof(value)));
    assert_string_equal(value, "application/jso"); /* cut to the room there is */
    assert_false(ef_http_header(&response, "retry", value, sizeof(value)));
    ef_http_response_fini(&response);
    assert_non_null(strstr(server->request, "GET /json?x=1 HTTP/1.1\r\n"));
}

static void
post_sends_body_headers_and_method(void **state)
{
    struct server *server = *state;
    static const char *const headers[] = {"Authorization: Bearer t", "Content-Type: text/x"};
    struct ef_http_request request = {
        .body = "one\0two", .body_bytes = 7, .headers = headers, .header_count = 2};
    struct ef_http_response response;
    struct ef_err err = {0};

    answer(server, "HTTP/1.1 204 Done\r\n\r\n", AFTER_CLOSE);
    assert_int_equal(get(server, &request, &response, &err), EF_OK);
    assert_int_equal(response.status, 204);
    assert_string_equal(response.content_type, "");
    assert_string_equal((char *)response.body.data, "");
    ef_http_response_fini(&response);
    assert_non_null(strstr(server->request, "POST /json"));
    assert_non_null(strstr(server->request, "Authorization: Bearer t\r\n"));
    assert_non_null(strstr(server->request, "Content-Type: text/x\r\n"));
    assert_null(strstr(server->request, "Expect:"));
    assert_memory_equal(server->request + server->request_bytes - 7, "one\0two", 7);
}

static void
delete_method_is_sent_as_asked(void **state)
{
    struct server *server = *state;
    struct ef_http_request request = {.method = "DELETE"};
    struct ef_http_response response;

    answer(server, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", AFTER_CLOSE);
    assert_int_equal(get(server, &request, &response, NULL), EF_OK);
    ef_http_response_fini(&response);
    assert_int_equal(strncmp(server->request, "DELETE /json", 12), 0);
}

static void
reply_at_the_limit_passes_and_one_byte_more_is_refused(void **state)
{
    struct server *server = *state;
    struct ef_http_request request = {.response_bytes_max = 10};
    struct ef_http_response response = {.status = -1};
    struct ef_err err = {0};

    answer(server, "HTTP/1.1 200 OK\r\n\r\n0123456789", AFTER_CLOSE);
    assert_int_equal(get(server, &request, &response, &err), EF_OK);
    assert_int_equal(response.body.len, 10);
    ef_http_response_fini(&response);
    pthread_join(server->thread, NULL);
    server->request_bytes = 0;
    memset(server->request, 0, sizeof(server->request));
    response.status = -1;
    answer(server, "HTTP/1.1 200 OK\r\n\r\n0123456789a", AFTER_CLOSE);
    assert_int_equal(get(server, &request, &response, &err), EF_ELIMIT);
    assert_non_null(strstr(err.msg, "10 bytes"));
    assert_non_null(strstr(err.msg, "GET http://127.0.0.1:"));
    assert_int_equal(response.status, -1);
}

static void
silent_server_is_a_timeout(void **state)
{
    struct server *server = *state;
    struct ef_http_request request = {.timeout_ms = 100};
    struct ef_http_response response;
    struct ef_err err = {0};

    answer(server, "", AFTER_HOLD);
    assert_int_equal(get(server, &request, &response, &err), EF_ETIMEOUT);
    assert_non_null(strstr(err.msg, "100 ms"));
}

static void
nobody_listening_is_unreachable(void **state)
{
    struct server *server = *state;
    struct ef_http_request request = {0};
    struct ef_http_response response;
    struct ef_err err = {0};

    close(server->listener);
    server->listener = -1;
    assert_int_equal(get(server, &request, &response, &err), EF_EUNREACH);
    assert_non_null(strstr(err.msg, "127.0.0.1"));
}

/* Goal: no connection in time is "cannot be reached". Method: a listener whose queue is full. */
static void
no_connection_in_time_is_unreachable(void **state)
{
    struct server *server = *state;
    struct ef_http_request request = {.connect_timeout_ms = 150};
    struct ef_http_response response;
    struct ef_err err = {0};
    struct sockaddr_in addr = {.sin_family = AF_INET,
                               .sin_port = htons((uint16_t)server->port),
                               .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fds[3];

    listen(server->listener, 0);
    for (size_t i = 0; i < EF_COUNT_OF(fds); i++) {
        fds[i] = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
        if (connect(fds[i], (struct sockaddr *)&addr, sizeof(addr)) == 0)
            continue;
    }
    assert_int_equal(get(server, &request, &response, &err), EF_EUNREACH);
    assert_non_null(strstr(err.msg, "no connection within"));
    for (size_t i = 0; i < EF_COUNT_OF(fds); i++)
        close(fds[i]);
}

static void
early_close_and_garbage_have_their_own_codes(void **state)
{
    struct server *server = *state;
    struct ef_http_request request = {0};
    struct ef_http_response response;
    struct ef_err err = {0};

    answer(server, "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nabc", AFTER_CLOSE);
    assert_int_equal(get(server, &request, &response, &err), EF_ECLOSED);
    pthread_join(server->thread, NULL);
    answer(server, "SSH-2.0-OpenSSH\r\n", AFTER_CLOSE);
    assert_int_equal(get(server, &request, &response, &err), EF_ECORRUPT);
}

static ef_rc
collect(void *ctx, const uint8_t *data, size_t len, struct ef_err *err)
{
    struct ef_buf *buf = ctx;

    return ef_buf_append(buf, data, len) ? EF_OK
                                         : ef_err_set(err, EF_ENOSPC, "the file system is full");
}

static void
write_callback_gets_good_bodies_only_and_can_end_the_request(void **state)
{
    struct server *server = *state;
    struct ef_buf out;
    struct ef_http_request request = {.write = collect, .write_ctx = &out};
    struct ef_http_response response;
    struct ef_err err = {0};

    ef_buf_init(&out, 4);
    answer(server, "HTTP/1.1 200 OK\r\n\r\nabcd", AFTER_CLOSE);
    assert_int_equal(get(server, &request, &response, &err), EF_OK);
    assert_int_equal(out.len, 4);
    assert_int_equal(response.body.len, 0);
    ef_http_response_fini(&response);
    pthread_join(server->thread, NULL);
    server->request_bytes = 0;
    memset(server->request, 0, sizeof(server->request));
    answer(server, "HTTP/1.1 404 No\r\n\r\nnope", AFTER_CLOSE);
    assert_int_equal(get(server, &request, &response, &err), EF_OK);
    assert_string_equal((char *)response.body.data, "nope");
    ef_http_response_fini(&response);
    pthread_join(server->thread, NULL);
    server->request_bytes = 0;
    memset(server->request, 0, sizeof(server->request));
    answer(server, "HTTP/1.1 200 OK\r\n\r\nefgh", AFTER_CLOSE);
    assert_int_equal(get(server, &request, &response, &err), EF_ENOSPC);
    assert_non_null(strstr(err.msg, "the file system is full"));
    ef_buf_fini(&out);
}

static void
bad_urls_and_headers_are_refused(void **state)
{
    static const char *const header[] = {"A: b\r\nInjected: yes"};
    struct ef_http_request request = {.url = "ftp://127.0.0.1/x"};
    struct ef_http_response response;

    (void)state;
    assert_int_equal(ef_http_do(&request, &response, NULL), EF_EINVAL);
    request.url = "http://";
    assert_int_equal(ef_http_do(&request, &response, NULL), EF_EINVAL);
    request = (struct ef_http_request){.url = "http://h/", .headers = header, .header_count = 1};
    assert_int_equal(ef_http_do(&request, &response, NULL), EF_EINVAL);
}

/* Goal: loopback is asked directly. Method: a proxy in the environment that refuses. */
static void
proxy_is_not_used_for_loopback(void **state)
{
    struct server *server = *state;
    struct ef_http_request request = {0};
    struct ef_http_response response;
    struct ef_err err = {0};

    setenv("http_proxy", "http://127.0.0.1:1/", 1);
    answer(server, "HTTP/1.1 200 OK\r\n\r\nx", AFTER_CLOSE);
    assert_int_equal(get(server, &request, &response, &err), EF_OK);
    ef_http_response_fini(&response);
    request.url = "http://example.invalid/"; /* goes to the proxy, which is not there */
    assert_int_equal(ef_http_do(&request, &response, &err), EF_EUNREACH);
    assert_non_null(strstr(err.msg, "127.0.0.1 port 1"));
    unsetenv("http_proxy");
}

static void
loopback_names_are_told_from_others(void **state)
{
    (void)state;
    assert_true(ef_http_host_is_loopback("localhost"));
    assert_true(ef_http_host_is_loopback("127.9.0.1"));
    assert_true(ef_http_host_is_loopback("::1"));
    assert_true(ef_http_host_is_loopback("[::1]"));
    assert_false(ef_http_host_is_loopback("127.0.0.1.example.com"));
    assert_false(ef_http_host_is_loopback("10.0.0.1"));
    assert_false(ef_http_host_is_loopback("[::12]"));
}

int
main(void)
{
#define T(test) cmocka_unit_test_setup_teardown(test, setup, teardown)
    const struct CMUnitTest tests[] = {
        T(get_gives_status_type_headers_and_body),
        T(post_sends_body_headers_and_method),
        T(delete_method_is_sent_as_asked),
        T(reply_at_the_limit_passes_and_one_byte_more_is_refused),
        T(silent_server_is_a_timeout),
        T(nobody_listening_is_unreachable),
        T(no_connection_in_time_is_unreachable),
        T(early_close_and_garbage_have_their_own_codes),
        T(write_callback_gets_good_bodies_only_and_can_end_the_request),
        T(proxy_is_not_used_for_loopback),
        cmocka_unit_test(bad_urls_and_headers_are_refused),
        cmocka_unit_test(loopback_names_are_told_from_others),
    };
    return cmocka_run_group_tests_name("proto/http", tests, NULL, NULL);
}
