/*
 * Decides how memory_max is divided. Pure; any thread.
 */
#include "collector/daemon/daemon.h"

/*
 * What the process needs besides the parts: code and data of the libraries, thread stacks,
 * connections, and what malloc holds back. Measured on Debian 12 (x86-64, resident less what the
 * parts say): 18 MiB with an empty store, 22 MiB with 480 connected publishers; the rest is margin
 * for what malloc keeps between bursts.
 */
#define BASE_BYTES (UINT64_C(40) << 20)
/* More cache or write buffer than this was not measured to help (research/c-libs §4). */
#define CACHE_BYTES_MAX (UINT64_C(16) << 20)
#define WRITE_BUFFER_BYTES_MAX (UINT64_C(16) << 20)
#define QUEUE_BYTES_MAX (UINT64_C(16) << 20) /* batches received, not yet applied */

static uint64_t
smaller(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

void
ef_daemon_divide(const struct ef_daemon_options *options, struct ef_daemon_shares *ret_shares)
{
    uint64_t rest = options->memory_max - BASE_BYTES; /* memory_max is at least 96 MiB */
    uint64_t requests;

    ret_shares->cache_bytes = smaller(rest / 8, CACHE_BYTES_MAX);
    ret_shares->write_buffer_bytes = smaller(rest / 6, WRITE_BUFFER_BYTES_MAX);
    ret_shares->queue_bytes = smaller(rest / 12, QUEUE_BYTES_MAX);
    ret_shares->aggregate_bytes = rest / 3;
    ret_shares->definitions_bytes = rest / 12;
    requests = rest - ret_shares->cache_bytes - ret_shares->write_buffer_bytes -
               ret_shares->queue_bytes - ret_shares->aggregate_bytes -
               ret_shares->definitions_bytes;
    ret_shares->request_bytes = options->query_memory_max > 0
                                    ? options->query_memory_max
                                    : smaller(rest / 8, requests / options->queries_max);
}
