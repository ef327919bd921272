/*
 * Decides limits, proxies and which result code a curl error is. Must not know who asks or what
 * the bodies mean. Runs on the caller's thread; one curl handle per request, nothing is shared.
 */
#include "proto/http/http_client.h"

#include <curl/curl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#define CONNECT_TIMEOUT_MS_DEFAULT 5000
#define TIMEOUT_MS_DEFAULT 30000
#define RESPONSE_BYTES_MAX_DEFAULT ((size_t)16 << 20)
#define HEADER_BYTES_MAX ((size_t)64 << 10) /* chosen: browsers and proxies allow 8 to 64 KiB */

struct transfer {
    const struct ef_http_request *request;
    struct ef_http_response response;
    CURL *curl;
    ef_rc rc;          /* why a callback ended the transfer; EF_OK when none did */
    struct ef_err err; /* of the caller's write callback */
};

static pthread_once_t curl_once = PTHREAD_ONCE_INIT;
static CURLcode curl_ready;

static void
curl_init_once(void)
{
    curl_ready = curl_global_init(CURL_GLOBAL_DEFAULT);
}

bool
ef_http_host_is_loopback(const char *host)
{
    size_t len = strlen(host);

    if (len >= 2 && host[0] == '[' && host[len - 1] == ']')
        return strcmp(host, "[::1]") == 0;
    return strcasecmp(host, "localhost") == 0 || strcmp(host, "::1") == 0 ||
           (strncmp(host, "127.", 4) == 0 && strspn(host, "0123456789.") == len);
}

static bool
url_is_loopback(const char *url)
{
    CURLU *parsed = curl_url();
    char *host = NULL;
    bool loopback = false;

    if (parsed != NULL && curl_url_set(parsed, CURLUPART_URL, url, 0) == CURLUE_OK &&
        curl_url_get(parsed, CURLUPART_HOST, &host, 0) == CURLUE_OK)
        loopback = ef_http_host_is_loopback(host);
    curl_free(host);
    curl_url_cleanup(parsed);
    return loopback;
}

static long
status_of(const struct transfer *transfer)
{
    long status = 0;

    curl_easy_getinfo(transfer->curl, CURLINFO_RESPONSE_CODE, &status);
    return status;
}

static size_t
on_body(char *data, size_t size, size_t count, void *ctx)
{
    struct transfer *transfer = ctx;
    const struct ef_http_request *request = transfer->request;
    size_t len = size * count; /* curl: size is always 1 */
    long status = status_of(transfer);

    if (request->write != NULL && status >= 200 && status < 300) {
        transfer->rc =
            request->write(request->write_ctx, (const uint8_t *)data, len, &transfer->err);
        return transfer->rc == EF_OK ? len : 0;
    }
    if (ef_buf_append(&transfer->response.body, data, len))
        return len;
    transfer->rc = EF_ELIMIT;
    return 0;
}

static size_t
on_header(char *data, size_t size, size_t count, void *ctx)
{
    struct transfer *transfer = ctx;
    size_t len = size * count;

    /* A "100 Continue" or a proxy's reply comes before the real one: only the last one counts. */
    if (len >= 5 && memcmp(data, "HTTP/", 5) == 0)
        ef_buf_clear(&transfer->response.headers);
    if (ef_buf_append(&transfer->response.headers, data, len))
        return len;
    transfer->rc = EF_ELIMIT;
    return 0;
}

/* Appends the headers to *list; false when memory ran out. *list is to be freed in any case. */
static bool
add_headers(const struct ef_http_request *request, struct curl_slist **list)
{
    /* Without this, curl waits a second for "100 Continue" before larger bodies. */
    struct curl_slist *next = curl_slist_append(*list, "Expect:");

    for (size_t i = 0; next != NULL && i < request->header_count; i++) {
        *list = next;
        next = curl_slist_append(*list, request->headers[i]);
    }
    if (next == NULL)
        return false;
    *list = next;
    return true;
}

static ef_rc
check_request(const struct ef_http_request *request, struct ef_err *err)
{
    for (size_t i = 0; i < request->header_count; i++) {
        const char *header = request->headers[i];
        if (strpbrk(header, "\r\n") != NULL || strchr(header, ':') == NULL)
            return ef_err_set(err, EF_EINVAL, "header %zu is not 'Name: value' on one line", i);
    }
    return EF_OK;
}

static void
set_method(CURL *curl, const struct ef_http_request *request)
{
    if (request->body != NULL) {
        curl_easy_setopt(curl, CURLOPT_POST, 1L);
        curl_easy_setopt(curl, CURLOPT_POSTFIELDS, request->body);
        curl_easy_setopt(curl, CURLOPT_POSTFIELDSIZE_LARGE, (curl_off_t)request->body_bytes);
    }
    if (request->method == NULL)
        return;
    if (strcmp(request->method, "HEAD") == 0)
        curl_easy_setopt(curl, CURLOPT_NOBODY, 1L);
    else if (strcmp(request->method, "POST") == 0 && request->body == NULL) {
        curl_easy_setopt(curl, CURLOPT_POST, 1L);
        curl_easy_setopt(curl, CURLOPT_POSTFIELDS, "");
    } else
        curl_easy_setopt(curl, CURLOPT_CUSTOMREQUEST, request->method);
}

static long
timeout_or(uint64_t timeout_ms, long default_ms)
{
    if (timeout_ms == EF_HTTP_NO_TIMEOUT)
        return 0; /* curl: never */
    if (timeout_ms == 0)
        return default_ms;
    return timeout_ms > 1000000000 ? 1000000000L : (long)timeout_ms; /* 11 days fit any long */
}

static void
set_options(struct transfer *transfer, struct curl_slist *headers)
{
    const struct ef_http_request *request = transfer->request;
    CURL *curl = transfer->curl;

    curl_easy_setopt(curl, CURLOPT_URL, request->url);
    curl_easy_setopt(curl, CURLOPT_PROTOCOLS_STR, "http,https");
    curl_easy_setopt(curl, CURLOPT_NOSIGNAL, 1L); /* threads: no SIGALRM for name look-ups */
    curl_easy_setopt(curl, CURLOPT_USERAGENT, "everflame/" EF_VERSION);
    curl_easy_setopt(curl, CURLOPT_HTTPHEADER, headers);
    curl_easy_setopt(curl, CURLOPT_CONNECTTIMEOUT_MS,
                     timeout_or(request->connect_timeout_ms, CONNECT_TIMEOUT_MS_DEFAULT));
    curl_easy_setopt(curl, CURLOPT_TIMEOUT_MS, timeout_or(request->timeout_ms, TIMEOUT_MS_DEFAULT));
    curl_easy_setopt(curl, CURLOPT_WRITEFUNCTION, on_body);
    curl_easy_setopt(curl, CURLOPT_WRITEDATA, transfer);
    curl_easy_setopt(curl, CURLOPT_HEADERFUNCTION, on_header);
    curl_easy_setopt(curl, CURLOPT_HEADERDATA, transfer);
    if (url_is_loopback(request->url))
        curl_easy_setopt(curl, CURLOPT_PROXY, "");
    if (request->ca_file != NULL)
        curl_easy_setopt(curl, CURLOPT_CAINFO, request->ca_file);
    if (request->insecure_no_verify) {
        curl_easy_setopt(curl, CURLOPT_SSL_VERIFYPEER, 0L);
        curl_easy_setopt(curl, CURLOPT_SSL_VERIFYHOST, 0L);
    }
    set_method(curl, request);
}

static ef_rc
timeout_error(const struct transfer *transfer, struct ef_err *err)
{
    const struct ef_http_request *request = transfer->request;
    curl_off_t connect_us = 0, total_us = 0;

    curl_easy_getinfo(transfer->curl, CURLINFO_CONNECT_TIME_T, &connect_us);
    curl_easy_getinfo(transfer->curl, CURLINFO_TOTAL_TIME_T, &total_us);
    if (connect_us == 0)
        return ef_err_set(err, EF_EUNREACH, "no connection within %ld ms", (long)(total_us / 1000));
    return ef_err_set(err, EF_ETIMEOUT, "connected, but no whole reply within %ld ms",
                      timeout_or(request->timeout_ms, TIMEOUT_MS_DEFAULT));
}

/* Sets code and text for a transfer that failed. */
static ef_rc
transfer_error(const struct transfer *transfer, CURLcode code, const char *detail,
               struct ef_err *err)
{
    const char *text = detail[0] != '\0' ? detail : curl_easy_strerror(code);
    size_t bytes_max = transfer->response.body.bytes_max - 1;

    if (transfer->rc == EF_ELIMIT && transfer->err.rc == EF_OK)
        return ef_err_set(err, EF_ELIMIT, "the reply is larger than %zu bytes", bytes_max);
    if (transfer->rc != EF_OK)
        return ef_err_set(err, transfer->rc, "%s", transfer->err.msg);
    switch (code) {
    case CURLE_COULDNT_CONNECT:
    case CURLE_COULDNT_RESOLVE_HOST:
    case CURLE_COULDNT_RESOLVE_PROXY:
        return ef_err_set(err, EF_EUNREACH, "%s", text);
    case CURLE_OPERATION_TIMEDOUT:
        return timeout_error(transfer, err);
    case CURLE_GOT_NOTHING:
    case CURLE_PARTIAL_FILE:
    case CURLE_RECV_ERROR:
    case CURLE_SEND_ERROR:
        return ef_err_set(err, EF_ECLOSED, "the server closed before the reply was whole (%s)",
                          text);
    case CURLE_PEER_FAILED_VERIFICATION:
    case CURLE_SSL_CACERT_BADFILE:
        return ef_err_set(err, EF_EAUTH, "the certificate is not trusted: %s", text);
    case CURLE_OUT_OF_MEMORY:
        return ef_err_set(err, EF_ENOMEM, "out of memory");
    case CURLE_URL_MALFORMAT:
        return ef_err_set(err, EF_EINVAL, "%s", text);
    case CURLE_WEIRD_SERVER_REPLY:
        return ef_err_set(err, EF_ECORRUPT, "the reply is not HTTP: %s", text);
    case CURLE_UNSUPPORTED_PROTOCOL:
        /* curl has one code for "ftp://..." and for a peer that does not speak HTTP. */
        if (strstr(text, "HTTP/0.9") != NULL)
            return ef_err_set(err, EF_ECORRUPT, "the reply is not HTTP");
        return ef_err_set(err, EF_EINVAL, "%s", text);
    default:
        return ef_err_set(err, EF_EIO, "%s", text);
    }
}

static void
init_response(struct transfer *transfer)
{
    const struct ef_http_request *request = transfer->request;
    size_t bytes_max = request->response_bytes_max;

    if (bytes_max == 0 || bytes_max > SIZE_MAX - 1)
        bytes_max = RESPONSE_BYTES_MAX_DEFAULT;
    ef_buf_init(&transfer->response.body, bytes_max + 1); /* + 1: the NUL */
    ef_buf_init(&transfer->response.headers, HEADER_BYTES_MAX);
}

/* Puts a NUL after the last byte without counting it. */
static bool
terminate(struct ef_buf *buf)
{
    if (!ef_buf_reserve(buf, 1))
        return false;
    buf->data[buf->len] = '\0';
    return true;
}

static ef_rc
finish_response(struct transfer *transfer, struct ef_err *err)
{
    struct ef_http_response *response = &transfer->response;
    char *type = NULL;

    /* Exactly at the limit there is no room for the NUL: bytes_max + 1 makes room for the body,
     * and more than bytes_max is over the limit. */
    if (!terminate(&response->body) || !terminate(&response->headers))
        return ef_err_set(err, EF_ELIMIT, "the reply is larger than %zu bytes",
                          response->body.bytes_max - 1);
    response->status = (int)status_of(transfer);
    curl_easy_getinfo(transfer->curl, CURLINFO_CONTENT_TYPE, &type);
    if (type != NULL) {
        size_t len = strnlen(type, sizeof(response->content_type) - 1);
        memcpy(response->content_type, type, len);
        response->content_type[len] = '\0';
    }
    return EF_OK;
}

ef_rc
ef_http_do(const struct ef_http_request *request, struct ef_http_response *ret, struct ef_err *err)
{
    struct transfer transfer = {.request = request};
    struct curl_slist *headers = NULL;
    char detail[CURL_ERROR_SIZE] = "";
    CURLcode code;
    ef_rc rc;

    init_response(&transfer);
    rc = check_request(request, err);
    if (rc != EF_OK)
        goto out;
    pthread_once(&curl_once, curl_init_once);
    transfer.curl = curl_ready == CURLE_OK ? curl_easy_init() : NULL;
    if (transfer.curl == NULL || !add_headers(request, &headers)) {
        rc = ef_err_set(err, EF_ENOMEM, "out of memory");
        goto out;
    }
    set_options(&transfer, headers);
    curl_easy_setopt(transfer.curl, CURLOPT_ERRORBUFFER, detail);
    code = curl_easy_perform(transfer.curl);
    rc = code == CURLE_OK ? finish_response(&transfer, err)
                          : transfer_error(&transfer, code, detail, err);
    if (rc != EF_OK)
        goto out;
    *ret = transfer.response;
    transfer.response = (struct ef_http_response){0}; /* moved to the caller */
out:
    if (rc != EF_OK)
        ef_err_prefix(err, "%s %s",
                      request->method != NULL ? request->method
                      : request->body != NULL ? "POST"
                                              : "GET",
                      request->url);
    curl_easy_cleanup(transfer.curl);
    curl_slist_free_all(headers);
    ef_http_response_fini(&transfer.response);
    return rc;
}

void
ef_http_response_fini(struct ef_http_response *response)
{
    ef_buf_fini(&response->body);
    ef_buf_fini(&response->headers);
}

bool
ef_http_header(const struct ef_http_response *response, const char *name, char *value, size_t len)
{
    size_t name_len = strlen(name);
    const char *line = (const char *)response->headers.data;

    while (line != NULL && *line != '\0') {
        const char *end = line + strcspn(line, "\r\n");
        if (strncasecmp(line, name, name_len) == 0 && line[name_len] == ':') {
            const char *text = line + name_len + 1;
            text += strspn(text, " \t");
            size_t text_len = text < end ? (size_t)(end - text) : 0;
            if (text_len > len - 1)
                text_len = len - 1;
            memcpy(value, text, text_len);
            value[text_len] = '\0';
            return true;
        }
        line = end + strspn(end, "\r\n");
    }
    return false;
}
