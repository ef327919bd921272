/*
 * The HTTP interface of API.md.
 *
 * Invariants: a request is answered only when its Host names this server and its Origin, if any, is
 * the server itself: a web page in somebody's browser must not reach the API. Every connection
 * must complete a request within request_ms_max, bodies and their sum are bounded, and at most
 * queries_max queries run at a time (others get EF_EBUSY). Anything but a loopback address needs
 * `insecure`, for there are no tokens yet.
 *
 * Threads: a pool of its own answers; open, close and free from one thread. What it is given must
 * outlive it.
 */
#ifndef COLLECTOR_SERVE_SERVE_H
#define COLLECTOR_SERVE_SERVE_H

#include "collector/aggregate/aggregate.h"
#include "collector/query/query.h"
#include "storage/store.h"

struct ef_serve_options {
    const char *address;       /* "127.0.0.1:4680", "[::1]:4680", port 0 = any free one */
    const char *hosts;         /* further names that Host may have, separated by commas; NULL */
    bool insecure;             /* allows an address that is not loopback */
    uint32_t threads;          /* 0 = 4 */
    uint32_t connections_max;  /* 0 = 512 */
    uint32_t queries_max;      /* at a time; 0 = 2 */
    uint64_t request_ms_max;   /* from connecting or the last answer to the next; 0 = 60,000 */
    uint64_t import_bytes_max; /* a body, and all bodies together; 0 = 64 MiB */
    uint64_t memory_bytes_max; /* cap of the process, for status and for refusing imports; 0 = none
                                */
};

struct ef_serve_parts {
    struct ef_store *store;
    struct ef_query *query;
    struct ef_aggregate *aggregate;
    /* Whether memory is so scarce that large work is refused; NULL = never. */
    bool (*is_scarce)(void *arg);
    void *arg;
};

struct ef_serve;
/* Listens and answers from here on. EF_ECONFLICT when the address is in use. */
EF_MUST_USE ef_rc ef_serve_open(const struct ef_serve_parts *parts,
                                const struct ef_serve_options *options, struct ef_serve **ret_serve,
                                struct ef_err *err);
int ef_serve_port(const struct ef_serve *serve);
/* Accepts no more connections; requests under way go on. */
void ef_serve_close(struct ef_serve *serve);
/* Closes, waits for requests under way, frees. NULL is fine. */
void ef_serve_free(struct ef_serve *serve);
/* Appends the Markdown table of routes. */
void ef_serve_reference(struct ef_buf *out);
/* Whether a host (an address, or "localhost"; with or without brackets) is this machine alone. */
bool ef_serve_host_is_loopback(const char *host, size_t len);
/* Memory of the process that is resident now, from the OS; 0 when it does not say. */
uint64_t ef_serve_resident_bytes(void);

#endif
