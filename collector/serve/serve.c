/*
 * Decides the life cycle of the HTTP interface and its defaults. The thread that opens it also
 * closes and frees it.
 */
#include "collector/serve/serve.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "collector/serve/internal.h"

static uint32_t
or_default(uint32_t value, uint32_t fallback)
{
    return value != 0 ? value : fallback;
}

/* The names that Host may have besides loopback: those given, and the address itself. */
static ef_rc
set_hosts(struct ef_serve *serve, struct ef_err *err)
{
    const char *address = serve->options.address;
    const char *colon = strrchr(address, ':');
    const char *hosts = serve->options.hosts != NULL ? serve->options.hosts : "";
    int len = snprintf(serve->hosts, sizeof(serve->hosts), "%s,%.*s", hosts,
                       colon != NULL ? (int)(colon - address) : 0, address);

    if (len < 0 || (size_t)len >= sizeof(serve->hosts))
        return ef_err_set(err, EF_EUSAGE, "the list of HTTP host names is longer than %zu bytes",
                          sizeof(serve->hosts));
    return EF_OK;
}

ef_rc
ef_serve_open(const struct ef_serve_parts *parts, const struct ef_serve_options *options,
              struct ef_serve **ret_serve, struct ef_err *err)
{
    struct ef_serve *serve = calloc(1, sizeof(*serve));
    ef_rc rc;

    if (serve == NULL)
        return ef_err_set(err, EF_ENOMEM, "no memory for the HTTP server");
    serve->options = *options;
    serve->parts = *parts;
    serve->started_ns = ef_wall_now().ns;
    serve->options.threads = or_default(options->threads, 4);
    serve->options.connections_max = or_default(options->connections_max, 512);
    serve->options.queries_max = or_default(options->queries_max, 2);
    if (options->request_ms_max == 0)
        serve->options.request_ms_max = 60000;
    if (options->import_bytes_max == 0)
        serve->options.import_bytes_max = 64u << 20;
    pthread_mutex_init(&serve->import_lock, NULL);
    pthread_mutex_init(&serve->density_lock, NULL);
    pthread_mutex_init(&serve->query_lock, NULL);
    pthread_cond_init(&serve->query_ended, NULL);
    ef_serve_load_imported(serve);
    rc = set_hosts(serve, err);
    if (rc == EF_OK)
        rc = ef_serve_http_open(serve, &serve->http, err);
    if (rc != EF_OK) {
        ef_serve_free(serve);
        return rc;
    }
    *ret_serve = serve;
    return EF_OK;
}

int
ef_serve_port(const struct ef_serve *serve)
{
    return ef_serve_http_port(serve->http);
}

void
ef_serve_close(struct ef_serve *serve)
{
    ef_serve_http_close(serve->http);
}

void
ef_serve_free(struct ef_serve *serve)
{
    if (serve == NULL)
        return;
    ef_serve_http_free(serve->http);
    pthread_mutex_destroy(&serve->import_lock);
    pthread_mutex_destroy(&serve->density_lock);
    pthread_mutex_destroy(&serve->query_lock);
    pthread_cond_destroy(&serve->query_ended);
    free(serve);
}
