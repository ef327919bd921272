/*
 * One HTTP request, one reply, with limits on time and size. Used for the target list of V8
 * inspectors and by the command line program. libcurl is included behind this header only.
 *
 * Invariants: only http and https; redirects are not followed (a status is a reply, not an error);
 * a proxy from the environment is used except for loopback addresses; a body never holds more than
 * response_bytes_max bytes. Every error text names method and URL. Any thread; blocks at most
 * timeout_ms.
 */
#ifndef PROTO_HTTP_HTTP_CLIENT_H
#define PROTO_HTTP_HTTP_CLIENT_H

#include "proto/base/buf.h"
#include "proto/base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define EF_HTTP_NO_TIMEOUT                                                                         \
    UINT64_MAX /* for timeout_ms: a stream that lasts as long as it lasts                          \
                */

/* Gets the next piece of a body. Anything but EF_OK ends the request with that code and err. */
typedef ef_rc (*ef_http_write_fn)(void *ctx, const uint8_t *data, size_t len, struct ef_err *err);

/* All borrowed during the call. Zero means the default named. */
struct ef_http_request {
    const char *url;
    const char *method;         /* NULL: POST with a body, otherwise GET */
    const char *const *headers; /* "Name: value" each, no line breaks */
    size_t header_count;
    const void *body;
    size_t body_bytes;
    uint64_t connect_timeout_ms; /* 5000; includes looking up the name */
    uint64_t timeout_ms;         /* 30000, the whole request; EF_HTTP_NO_TIMEOUT */
    size_t response_bytes_max;   /* 16 MiB; with `write`: unlimited, errors' bodies 16 MiB */
    ef_http_write_fn write;      /* gets the body of a 2xx reply instead of ret->body */
    void *write_ctx;
    const char *ca_file;     /* PEM; NULL = the system's */
    bool insecure_no_verify; /* accepts any certificate */
};

struct ef_http_response {
    int status;
    char content_type[128]; /* "" when absent; longer ones are cut */
    struct ef_buf body;     /* always with a NUL after the last byte, not counted in len */
    struct ef_buf headers;  /* as received, NUL-terminated, 64 KiB at most */
};

/*
 * EF_EUNREACH: no such name, refused, or no connection within connect_timeout_ms. EF_ETIMEOUT:
 * connected, but no whole reply in time. EF_ELIMIT: the reply is larger than allowed. EF_ECLOSED:
 * the server closed before the reply was whole. EF_ECORRUPT: the reply is not HTTP. EF_EAUTH: its
 * certificate is not trusted. EF_EINVAL: the URL or a header is not valid.
 * On success *ret is to be released with ef_http_response_fini; on failure it is untouched.
 */
EF_MUST_USE ef_rc ef_http_do(const struct ef_http_request *request, struct ef_http_response *ret,
                             struct ef_err *err);
void ef_http_response_fini(struct ef_http_response *response);

/* Copies the value of a header (name without case), cut to len - 1 bytes; false when absent. */
bool ef_http_header(const struct ef_http_response *response, const char *name, char *value,
                    size_t len);

/* True for "localhost", 127.0.0.0/8 and ::1 (with or without brackets). */
bool ef_http_host_is_loopback(const char *host);

#endif
