/*
 * What the files of serve share: requests, answers, handlers. Not for other folders.
 */
#ifndef COLLECTOR_SERVE_INTERNAL_H
#define COLLECTOR_SERVE_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>

#include "collector/serve/serve.h"
#include "proto/base/buf.h"
#include "proto/base/json.h"
#include "proto/base/time.h"

#define EF_SERVE_PARAMS_MAX 160 /* 64 versions, 64 regions and the rest */
#define EF_SERVE_ANSWER_BYTES_MAX (512u << 20)

struct ef_serve {
    struct ef_serve_options options;
    struct ef_serve_parts parts;
    char hosts[512];
    int64_t started_ns;
    pthread_mutex_t query_lock; /* guards queries */
    pthread_cond_t query_ended;
    unsigned queries;                 /* under way */
    atomic_uint_least64_t body_bytes; /* of all requests being read */
    pthread_mutex_t import_lock;      /* one import at a time: it is the largest memory user */
    /* Ever, as far as the store remembers; written under import_lock. */
    atomic_uint_least64_t imported_profiles, imported_samples;
    struct ef_serve_http *http;
    pthread_mutex_t density_lock; /* guards the two below; nothing is called with it held */
    double bytes_per_sample;
    ef_mono_ns density_at;
};

struct ef_serve_param {
    const char *name, *value; /* borrowed from the request */
};

struct ef_request {
    struct ef_serve *serve;
    const struct ef_route *route;
    struct ef_serve_param params[EF_SERVE_PARAMS_MAX];
    size_t param_count;
    struct ef_buf body;
    int64_t now_ns;
};

struct ef_answer {
    unsigned status;          /* 200 unless the handler says otherwise */
    const char *content_type; /* JSON unless the handler says otherwise */
    struct ef_buf body;
    bool has_samples; /* header X-Everflame-Samples */
    uint64_t samples;
    char hint[256];     /* of an error */
    const char *reason; /* why a result is empty, when that is the error; static */
};

typedef ef_rc (*ef_serve_handler)(struct ef_request *request, struct ef_answer *answer,
                                  struct ef_err *err);

struct ef_route {
    const char *method, *path;
    ef_serve_handler handler;
    bool has_body;
    const char *params; /* names separated by blanks */
    const char *sentence;
};
/* NULL when there is none; *ret_other is one with this path and another method, or NULL. */
const struct ef_route *ef_route_find(const char *method, const char *path,
                                     const struct ef_route **ret_other);
const char *ef_route_nearest(const char *path);
/* EF_EINVAL with the nearest name when the route does not know the parameter. */
EF_MUST_USE ef_rc ef_route_check_param(const struct ef_route *route, const char *name,
                                       struct ef_answer *answer, struct ef_err *err);

#define X(method, path, handler, body, params, sentence)                                           \
    ef_rc handler(struct ef_request *request, struct ef_answer *answer, struct ef_err *err);
#include "collector/serve/routes.def"
#undef X

/* The first value of a parameter, or NULL. */
const char *ef_request_param(const struct ef_request *request, const char *name);
/* EF_EINVAL when it is missing, empty, or no valid name. */
EF_MUST_USE ef_rc ef_request_name(const struct ef_request *request, const char *name,
                                  const char **ret_value, struct ef_answer *answer,
                                  struct ef_err *err);
/* The parameter as a time, or `fallback` when it is not there. */
EF_MUST_USE ef_rc ef_request_time(const struct ef_request *request, const char *name,
                                  const char *fallback, int64_t *ret_ns, struct ef_err *err);
/* Worker, account, versions, regions, type and range. */
EF_MUST_USE ef_rc ef_request_selector(const struct ef_request *request,
                                      struct ef_selector *ret_selector, struct ef_answer *answer,
                                      struct ef_err *err);
/* Reads from the store how much was imported before; missing or damaged counts as nothing. */
void ef_serve_load_imported(struct ef_serve *serve);
void ef_json_time(struct ef_json *json, const char *key, int64_t ns);
void ef_answer_hint(struct ef_answer *answer, const char *fmt, ...) EF_PRINTF(2, 3);
/* Turns an error into the body that API.md promises. */
void ef_answer_error(struct ef_answer *answer, const struct ef_err *err);
/* Runs the handler of a complete request. */
void ef_answer_make(struct ef_request *request, struct ef_answer *answer);

/* The listener, over libmicrohttpd. */
EF_MUST_USE ef_rc ef_serve_http_open(struct ef_serve *serve, struct ef_serve_http **ret_http,
                                     struct ef_err *err);
int ef_serve_http_port(const struct ef_serve_http *http);
void ef_serve_http_close(struct ef_serve_http *http);
void ef_serve_http_free(struct ef_serve_http *http);
/* Whether a Host header names this server; `host` with or without port. */
bool ef_serve_host_is_ours(const struct ef_serve *serve, const char *host);

#endif
