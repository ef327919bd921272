/*
 * Decides which connections and requests are let in: Host, Origin, method, sizes, deadlines. The
 * only file that knows libmicrohttpd. Its pool's threads run everything here but open, close, free,
 * and the watch thread, which ends connections that take too long: the library's own timeout is one
 * of inactivity, and a client that sends a byte a second would stay for ever (measured, 0.9.75).
 */
#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <microhttpd.h>

#include "collector/serve/internal.h"
#include "proto/base/limit.h"
#include "proto/base/metric.h"
#include "proto/base/utf8.h"

#define CALL_MAGIC 0x45463148u
/* Bytes of request line and headers of one connection; chosen: 64 versions of 128 bytes,
 * URL-encoded, fit; larger ones get 431. */
#define HEADER_BYTES_MAX (32u << 10)
#define INACTIVE_S 30u /* an idle connection is closed; chosen */
#define WATCH_MS 500   /* how late a deadline may be noticed; chosen */
#define FIRST_BODY_BYTES (64u << 10)

/* One connection; in the list while it is open. */
struct conn {
    struct conn *next, **previous_next;
    int fd;
    ef_mono_ns since; /* connected, or last answered */
};

struct ef_serve_http {
    struct ef_serve *serve;
    struct MHD_Daemon *daemon;
    int listen_fd;
    int port;
    pthread_t watch;
    bool watching, closed;
    pthread_mutex_t lock; /* guards conns and stop; sockets are shut down under it, so that a
                             number is not used again meanwhile */
    pthread_cond_t wake;
    struct conn *conns;
    bool stop;
};

/* One request while it is read and answered. */
struct call {
    uint32_t magic;
    struct ef_request request;
    struct ef_buf texts; /* parameters */
    uint64_t body_bytes; /* booked in serve->body_bytes */
    ef_rc body_rc;       /* why the body is not taken */
    struct ef_err body_err;
};

bool
ef_serve_host_is_loopback(const char *host, size_t len)
{
    char text[64];
    struct in_addr address;

    if (len > 1 && host[0] == '[' && host[len - 1] == ']') {
        host++;
        len -= 2;
    }
    if (len >= sizeof(text))
        return false;
    memcpy(text, host, len);
    text[len] = '\0';
    if (strcasecmp(text, "localhost") == 0 || strcmp(text, "::1") == 0)
        return true;
    return inet_pton(AF_INET, text, &address) == 1 && ntohl(address.s_addr) >> 24 == 127;
}

/* The name without the port. */
static size_t
name_len(const char *host)
{
    const char *end = host[0] == '[' ? strchr(host, ']') : NULL;

    if (end != NULL)
        return (size_t)(end + 1 - host);
    return strcspn(host, ":");
}

static bool
in_hosts(const char *hosts, const char *host, size_t len)
{
    while (*hosts != '\0') {
        size_t one = strcspn(hosts, ",");
        size_t skip = strspn(hosts, " ");
        if (one - (skip < one ? skip : one) == len && strncasecmp(hosts + skip, host, len) == 0)
            return true;
        hosts += one + (hosts[one] == ',');
    }
    return false;
}

bool
ef_serve_host_is_ours(const struct ef_serve *serve, const char *host)
{
    size_t len = name_len(host);

    return len > 0 && (ef_serve_host_is_loopback(host, len) || in_hosts(serve->hosts, host, len));
}

/* "http://127.0.0.1:4680" is the server itself when Host is "127.0.0.1:4680". */
static bool
origin_is_ours(const char *origin, const char *host)
{
    return strncasecmp(origin, "http://", 7) == 0 && strcasecmp(origin + 7, host) == 0;
}

static enum MHD_Result
send_answer(struct MHD_Connection *connection, struct ef_answer *answer, const char *allow)
{
    struct MHD_Response *response;
    enum MHD_Result done;
    char samples[32];
    size_t len = 0;
    uint8_t *data = ef_buf_take(&answer->body, &len);

    response = MHD_create_response_from_buffer(len, data, MHD_RESPMEM_MUST_FREE);
    if (response == NULL) {
        free(data);
        return MHD_NO;
    }
    MHD_add_response_header(response, "Content-Type", answer->content_type);
    MHD_add_response_header(response, "Cache-Control", "no-store");
    MHD_add_response_header(response, "X-Content-Type-Options", "nosniff");
    if (allow != NULL)
        MHD_add_response_header(response, "Allow", allow);
    if (answer->status == 503)
        MHD_add_response_header(response, "Retry-After", "1");
    if (answer->has_samples) {
        snprintf(samples, sizeof(samples), "%llu", (unsigned long long)answer->samples);
        MHD_add_response_header(response, "X-Everflame-Samples", samples);
    }
    done = MHD_queue_response(connection, answer->status, response);
    MHD_destroy_response(response);
    return done;
}

/* Answers with an error; status 0 = the one of the code. */
static enum MHD_Result
refuse(struct MHD_Connection *connection, unsigned status, const char *allow,
       struct ef_answer *answer, const struct ef_err *err)
{
    enum MHD_Result done;

    ef_answer_error(answer, err);
    if (status != 0)
        answer->status = status;
    done = send_answer(connection, answer, allow);
    ef_buf_fini(&answer->body);
    return done;
}

/* A web page must not reach the API: neither by its own name for our address, nor from outside. */
static bool
is_foreign(const struct ef_serve *serve, struct MHD_Connection *connection, struct ef_err *err)
{
    const char *host = MHD_lookup_connection_value(connection, MHD_HEADER_KIND, "Host");
    const char *origin = MHD_lookup_connection_value(connection, MHD_HEADER_KIND, "Origin");
    const char *site = MHD_lookup_connection_value(connection, MHD_HEADER_KIND, "Sec-Fetch-Site");

    if (host == NULL)
        ef_err_set(err, EF_EAUTH, "the request has no Host header");
    else if (!ef_serve_host_is_ours(serve, host))
        ef_err_set(err, EF_EAUTH, "Host '%.100s' is not a name of this server", host);
    else if (origin != NULL && !origin_is_ours(origin, host))
        ef_err_set(err, EF_EAUTH, "Origin '%.100s' is not this server", origin);
    else if (site != NULL && strcmp(site, "cross-site") == 0)
        ef_err_set(err, EF_EAUTH, "a page of another site may not ask");
    else
        return false;
    ef_metric_add(EF_METRIC_http_refused_total, 1);
    return true;
}

static const struct ef_route *
find_route(const char *method, const char *path, unsigned *ret_status, const char **ret_allow,
           struct ef_answer *answer, struct ef_err *err)
{
    const struct ef_route *other, *route = ef_route_find(method, path, &other);
    const char *nearest;

    if (route != NULL)
        return route;
    if (other != NULL) {
        *ret_status = MHD_HTTP_METHOD_NOT_ALLOWED;
        *ret_allow = other->method;
        ef_answer_hint(answer, "use %s", other->method);
        ef_err_set(err, EF_EINVAL, "%.32s is not possible on '%s'", method, other->path);
        ef_metric_add(EF_METRIC_http_refused_total, 1);
        return NULL;
    }
    nearest = ef_route_nearest(path);
    if (nearest != NULL)
        ef_answer_hint(answer, "do you mean '%s'?", nearest);
    else
        ef_answer_hint(answer, "routes begin with /api/v1/; there are /metrics and /healthz too");
    ef_err_set(err, EF_ENOTFOUND, "there is no route '%.100s'", path);
    return NULL;
}

struct param_pass {
    struct call *call;
    struct ef_err err;
};

/* Copies one parameter: the library's text is not ours for long, and may hold NUL or bad UTF-8. */
static enum MHD_Result
take_param(void *arg, enum MHD_ValueKind kind, const char *key, size_t key_len, const char *value,
           size_t value_len)
{
    struct param_pass *pass = arg;
    struct ef_request *request = &pass->call->request;
    struct ef_buf *texts = &pass->call->texts;
    size_t at = texts->len;

    (void)kind;
    if (request->param_count == EF_SERVE_PARAMS_MAX) {
        ef_err_set(&pass->err, EF_ELIMIT, "more than %d parameters", EF_SERVE_PARAMS_MAX);
        return MHD_NO;
    }
    if (!ef_utf8_valid(key, key_len) || (value_len > 0 && !ef_utf8_valid(value, value_len))) {
        ef_err_set(&pass->err, EF_EINVAL, "a parameter is not UTF-8, or holds NUL");
        return MHD_NO;
    }
    ef_buf_append(texts, key, key_len);
    ef_buf_put_u8(texts, 0);
    ef_buf_append(texts, value_len > 0 ? value : "", value_len);
    ef_buf_put_u8(texts, 0);
    if (texts->failed) {
        ef_err_set(&pass->err, EF_ENOMEM, "no memory for parameters");
        return MHD_NO;
    }
    /* Offsets until all are there, for the buffer may move. */
    request->params[request->param_count].name = (const char *)(uintptr_t)at;
    request->params[request->param_count].value = (const char *)(uintptr_t)(at + key_len + 1);
    request->param_count++;
    return MHD_YES;
}

static ef_rc
take_params(struct call *call, struct MHD_Connection *connection, struct ef_err *err)
{
    struct param_pass pass = {call, {0}};
    const char *base;

    MHD_get_connection_values_n(connection, MHD_GET_ARGUMENT_KIND, take_param, &pass);
    if (pass.err.rc != EF_OK) {
        if (err != NULL)
            *err = pass.err;
        return pass.err.rc;
    }
    base = (const char *)call->texts.data;
    for (size_t i = 0; i < call->request.param_count; i++) {
        struct ef_serve_param *param = &call->request.params[i];
        param->name = base + (uintptr_t)param->name;
        param->value = base + (uintptr_t)param->value;
    }
    return EF_OK;
}

static ef_rc
check_length(const struct ef_serve *serve, const struct ef_route *route,
             struct MHD_Connection *connection, struct ef_err *err)
{
    const char *text = MHD_lookup_connection_value(connection, MHD_HEADER_KIND, "Content-Length");
    unsigned long long length = text != NULL ? strtoull(text, NULL, 10) : 0;
    uint64_t most = route->has_body ? serve->options.import_bytes_max : 0;

    if (length > most)
        return ef_err_set(err, EF_ELIMIT, "a body of %llu bytes is too large: at most %llu here",
                          length, (unsigned long long)most);
    return EF_OK;
}

static void
call_free(struct call *call)
{
    if (call == NULL)
        return;
    atomic_fetch_sub(&call->request.serve->body_bytes, call->body_bytes);
    ef_buf_fini(&call->request.body);
    ef_buf_fini(&call->texts);
    free(call);
}

/* The headers are there: lets the request in, or answers at once. */
static enum MHD_Result
begin_call(struct ef_serve *serve, struct MHD_Connection *connection, const char *path,
           const char *method, void **call_at)
{
    struct ef_answer answer = {0};
    struct ef_err err = {0};
    const struct ef_route *route = NULL;
    const char *allow = NULL;
    unsigned status = 0;
    struct call *call;

    ef_buf_init(&answer.body, EF_SERVE_ANSWER_BYTES_MAX);
    if (is_foreign(serve, connection, &err)) {
        ef_answer_hint(&answer, "open http://127.0.0.1:%d/, or name the host in http_hosts",
                       ef_serve_http_port(serve->http));
        return refuse(connection, MHD_HTTP_FORBIDDEN, NULL, &answer, &err);
    }
    route = find_route(method, path, &status, &allow, &answer, &err);
    if (route == NULL || check_length(serve, route, connection, &err) != EF_OK)
        return refuse(connection, status, allow, &answer, &err);
    call = calloc(1, sizeof(*call));
    if (call == NULL)
        return MHD_NO;
    call->magic = CALL_MAGIC;
    call->request.serve = serve;
    call->request.route = route;
    ef_buf_init(&call->request.body, serve->options.import_bytes_max);
    ef_buf_init(&call->texts, 2 * HEADER_BYTES_MAX);
    if (take_params(call, connection, &err) != EF_OK) {
        call_free(call);
        return refuse(connection, 0, NULL, &answer, &err);
    }
    *call_at = call;
    return MHD_YES;
}

/* Books room for all bodies together before the buffer grows. */
static ef_rc
take_body(struct call *call, const char *data, size_t len, struct ef_err *err)
{
    struct ef_serve *serve = call->request.serve;
    uint64_t most = call->request.route->has_body ? serve->options.import_bytes_max : 0;
    struct ef_buf *body = &call->request.body;

    if (len > most || body->len > most - len)
        return ef_err_set(err, EF_ELIMIT, "the body is larger than %llu bytes",
                          (unsigned long long)most);
    if (body->len + len > call->body_bytes) {
        uint64_t wanted = call->body_bytes == 0 ? FIRST_BODY_BYTES : call->body_bytes;
        while (wanted < body->len + len)
            wanted *= 2;
        if (wanted > most)
            wanted = most;
        if (atomic_fetch_add(&serve->body_bytes, wanted - call->body_bytes) + wanted -
                call->body_bytes >
            serve->options.import_bytes_max) {
            atomic_fetch_sub(&serve->body_bytes, wanted - call->body_bytes);
            return ef_err_set(err, EF_EBUSY, "other imports are being received");
        }
        call->body_bytes = wanted;
    }
    if (!ef_buf_append(body, data, len))
        return ef_err_set(err, EF_ENOMEM, "no memory for the body");
    return EF_OK;
}

static enum MHD_Result
end_call(struct call *call, struct MHD_Connection *connection)
{
    struct ef_answer answer = {0};
    enum MHD_Result done;

    ef_buf_init(&answer.body, EF_SERVE_ANSWER_BYTES_MAX);
    if (call->body_rc != EF_OK)
        return refuse(connection, 0, NULL, &answer, &call->body_err);
    ef_answer_make(&call->request, &answer);
    done = send_answer(connection, &answer, NULL);
    ef_buf_fini(&answer.body);
    return done;
}

static enum MHD_Result
on_request(void *arg, struct MHD_Connection *connection, const char *path, const char *method,
           const char *version, const char *data, size_t *data_len, void **call_at)
{
    struct call *call = *call_at;

    (void)version;
    if (call == NULL)
        return begin_call(arg, connection, path, method, call_at);
    EF_ASSERT(call->magic == CALL_MAGIC);
    if (*data_len == 0)
        return end_call(call, connection);
    if (call->body_rc == EF_OK)
        call->body_rc = take_body(call, data, *data_len, &call->body_err);
    *data_len = 0; /* what is refused is read and dropped: the deadline ends it */
    return MHD_YES;
}

static void
on_completed(void *arg, struct MHD_Connection *connection, void **call_at,
             enum MHD_RequestTerminationCode code)
{
    struct ef_serve_http *http = ((struct ef_serve *)arg)->http;
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(connection, MHD_CONNECTION_INFO_SOCKET_CONTEXT);
    struct conn *conn = info != NULL ? info->socket_context : NULL;

    (void)code;
    call_free(*call_at);
    *call_at = NULL;
    if (conn == NULL || http == NULL)
        return;
    pthread_mutex_lock(&http->lock);
    conn->since = ef_mono_now();
    pthread_mutex_unlock(&http->lock);
}

static void
add_conn(struct ef_serve_http *http, struct MHD_Connection *connection, void **conn_at)
{
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CONNECTION_FD);
    struct conn *conn = calloc(1, sizeof(*conn));

    if (conn == NULL || info == NULL) { /* without a deadline; the inactivity timeout remains */
        free(conn);
        return;
    }
    conn->fd = info->connect_fd;
    conn->since = ef_mono_now();
    pthread_mutex_lock(&http->lock);
    conn->next = http->conns;
    conn->previous_next = &http->conns;
    if (conn->next != NULL)
        conn->next->previous_next = &conn->next;
    http->conns = conn;
    pthread_mutex_unlock(&http->lock);
    *conn_at = conn;
}

static void
on_connection(void *arg, struct MHD_Connection *connection, void **conn_at,
              enum MHD_ConnectionNotificationCode code)
{
    struct ef_serve_http *http = arg;
    struct conn *conn = *conn_at;

    if (code == MHD_CONNECTION_NOTIFY_STARTED) {
        add_conn(http, connection, conn_at);
        return;
    }
    if (conn == NULL)
        return;
    pthread_mutex_lock(&http->lock);
    *conn->previous_next = conn->next;
    if (conn->next != NULL)
        conn->next->previous_next = conn->previous_next;
    pthread_mutex_unlock(&http->lock);
    free(conn);
    *conn_at = NULL;
}

static void *
watch(void *arg)
{
    struct ef_serve_http *http = arg;
    int64_t most_ns = (int64_t)http->serve->options.request_ms_max * EF_NS_PER_MS;

    pthread_mutex_lock(&http->lock);
    while (!http->stop) {
        ef_mono_ns now = ef_mono_now();
        struct timespec until;
        for (struct conn *conn = http->conns; conn != NULL; conn = conn->next) {
            if (ef_mono_since(conn->since, now).ns > most_ns)
                shutdown(conn->fd, SHUT_RDWR); /* the pool sees the end and closes it */
        }
        clock_gettime(CLOCK_MONOTONIC, &until);
        until.tv_nsec += WATCH_MS * EF_NS_PER_MS;
        until.tv_sec += until.tv_nsec / EF_NS_PER_S;
        until.tv_nsec %= EF_NS_PER_S;
        pthread_cond_timedwait(&http->wake, &http->lock, &until);
    }
    pthread_mutex_unlock(&http->lock);
    return NULL;
}

union address {
    struct sockaddr any;
    struct sockaddr_in v4;
    struct sockaddr_in6 v6;
};

/* "127.0.0.1:4680" to a socket address. */
static ef_rc
parse_address(const struct ef_serve *serve, union address *ret_address, socklen_t *ret_len,
              struct ef_err *err)
{
    const char *text = serve->options.address, *colon = strrchr(text, ':');
    struct addrinfo hints = {.ai_flags = AI_NUMERICSERV | AI_PASSIVE, .ai_socktype = SOCK_STREAM};
    struct addrinfo *found = NULL;
    char host[256];
    size_t len = colon != NULL ? (size_t)(colon - text) : 0;
    int code;

    if (colon == NULL || len == 0 || len >= sizeof(host))
        return ef_err_set(err, EF_EUSAGE, "'%.100s' is not an address; write 127.0.0.1:4680", text);
    if (!serve->options.insecure && !ef_serve_host_is_loopback(text, len))
        return ef_err_set(err, EF_EUSAGE,
                          "'%.100s' can be reached from other hosts, and HTTP has no tokens yet: "
                          "use a loopback address, or allow it with --insecure",
                          text);
    if (text[0] == '[' && text[len - 1] == ']') {
        text++;
        len -= 2;
    }
    memcpy(host, text, len);
    host[len] = '\0';
    code = getaddrinfo(host, colon + 1, &hints, &found);
    if (code != 0)
        return ef_err_set(err, EF_EUSAGE, "'%.100s' is not an address: %s", serve->options.address,
                          gai_strerror(code));
    EF_ASSERT(found->ai_addrlen <= sizeof(*ret_address)); /* only IPv4 and IPv6 are asked for */
    memcpy(ret_address, found->ai_addr, found->ai_addrlen);
    *ret_len = found->ai_addrlen;
    freeaddrinfo(found);
    return EF_OK;
}

static ef_rc
listen_on(struct ef_serve_http *http, struct ef_err *err)
{
    union address address = {.v6 = {0}};
    socklen_t len = sizeof(address);
    const char *text = http->serve->options.address;
    int on = 1;
    ef_rc rc = parse_address(http->serve, &address, &len, err);

    if (rc != EF_OK)
        return rc;
    http->listen_fd = socket(address.any.sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (http->listen_fd < 0)
        return ef_err_errno(err, "no socket for '%s'", text);
    setsockopt(http->listen_fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
    if (bind(http->listen_fd, &address.any, len) != 0 || listen(http->listen_fd, 256) != 0) {
        if (errno == EADDRINUSE)
            return ef_err_set(err, EF_ECONFLICT, "another program listens on '%s' already", text);
        return ef_err_errno(err, "cannot listen on '%s'", text);
    }
    len = sizeof(address);
    getsockname(http->listen_fd, &address.any, &len);
    http->port =
        ntohs(address.any.sa_family == AF_INET6 ? address.v6.sin6_port : address.v4.sin_port);
    return EF_OK;
}

static ef_rc
start(struct ef_serve_http *http, struct ef_err *err)
{
    struct ef_serve *serve = http->serve;
    int code;

    http->daemon = MHD_start_daemon(
        MHD_USE_EPOLL_INTERNAL_THREAD | MHD_USE_ITC, 0, NULL, NULL, on_request, serve,
        MHD_OPTION_LISTEN_SOCKET, http->listen_fd, MHD_OPTION_THREAD_POOL_SIZE,
        (unsigned)serve->options.threads, MHD_OPTION_CONNECTION_LIMIT,
        (unsigned)serve->options.connections_max, MHD_OPTION_CONNECTION_TIMEOUT, INACTIVE_S,
        MHD_OPTION_CONNECTION_MEMORY_LIMIT, (size_t)HEADER_BYTES_MAX, MHD_OPTION_NOTIFY_COMPLETED,
        on_completed, serve, MHD_OPTION_NOTIFY_CONNECTION, on_connection, http, MHD_OPTION_END);
    if (http->daemon == NULL)
        return ef_err_set(err, EF_EIO, "the HTTP server on '%s' does not start",
                          serve->options.address);
    http->listen_fd = -1; /* the library's now */
    code = pthread_create(&http->watch, NULL, watch, http);
    if (code != 0)
        return ef_err_set(err, EF_ENOMEM, "no thread for HTTP deadlines: %s", strerror(code));
    http->watching = true;
    return EF_OK;
}

ef_rc
ef_serve_http_open(struct ef_serve *serve, struct ef_serve_http **ret_http, struct ef_err *err)
{
    struct ef_serve_http *http = calloc(1, sizeof(*http));
    pthread_condattr_t attr;
    ef_rc rc;

    if (http == NULL)
        return ef_err_set(err, EF_ENOMEM, "no memory for the HTTP server");
    http->serve = serve;
    http->listen_fd = -1;
    pthread_mutex_init(&http->lock, NULL);
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&http->wake, &attr);
    pthread_condattr_destroy(&attr);
    *ret_http = http; /* before the first request: handlers look for it */
    rc = listen_on(http, err);
    if (rc == EF_OK)
        rc = start(http, err);
    if (rc != EF_OK) {
        ef_serve_http_free(http);
        *ret_http = NULL;
    }
    return rc;
}

int
ef_serve_http_port(const struct ef_serve_http *http)
{
    return http->port;
}

void
ef_serve_http_close(struct ef_serve_http *http)
{
    int fd;

    if (http->closed || http->daemon == NULL)
        return;
    http->closed = true;
    fd = MHD_quiesce_daemon(http->daemon);
    if (fd >= 0)
        close(fd);
}

void
ef_serve_http_free(struct ef_serve_http *http)
{
    if (http == NULL)
        return;
    ef_serve_http_close(http);
    if (http->watching) {
        pthread_mutex_lock(&http->lock);
        http->stop = true;
        pthread_cond_signal(&http->wake);
        pthread_mutex_unlock(&http->lock);
        pthread_join(http->watch, NULL);
    }
    if (http->daemon != NULL)
        MHD_stop_daemon(http->daemon); /* waits for handlers */
    if (http->listen_fd >= 0)
        close(http->listen_fd);
    pthread_cond_destroy(&http->wake);
    pthread_mutex_destroy(&http->lock);
    free(http);
}
