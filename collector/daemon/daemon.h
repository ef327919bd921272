/*
 * The collector as a whole: options, wiring of the stations, shutdown order.
 *
 * Invariants: stations start from the store upwards and end from the sockets downwards; what was
 * taken is flushed before the store closes. Memory is divided at the start: the parts of the store,
 * the aggregate and the queries together with the process's own stay below memory_max, and what
 * the parts cannot see is watched: near the cap new data and queries are refused, visibly.
 */
#ifndef COLLECTOR_DAEMON_DAEMON_H
#define COLLECTOR_DAEMON_DAEMON_H

#include "proto/base/err.h"
#include "proto/base/option.h"

struct ef_daemon_options {
#define X EF_OPTION_FIELD
#include "collector/daemon/options.def"
#undef X
};

extern const struct ef_option ef_daemon_option_table[];
extern const size_t ef_daemon_option_count;

/*
 * Defaults, then the configuration file, then the environment, then the flags. Takes the flags out
 * of argv. EF_EUSAGE for anything that is not an option.
 */
EF_MUST_USE ef_rc ef_daemon_configure(int *argc, char **argv, struct ef_daemon_options *ret_options,
                                      bool *ret_help, bool *ret_version, struct ef_err *err);
/* Reads a flat YAML file into the options. Nothing is changed on failure. */
EF_MUST_USE ef_rc ef_daemon_read_config(const char *path, struct ef_daemon_options *options,
                                        struct ef_err *err);
/* Appends the reference of that name; EF_EUSAGE for an unknown one. */
EF_MUST_USE ef_rc ef_daemon_print(const char *name, struct ef_buf *out, struct ef_err *err);

/* What each part may use of memory_max. */
struct ef_daemon_shares {
    uint64_t cache_bytes, write_buffer_bytes, queue_bytes, aggregate_bytes, definitions_bytes;
    uint64_t request_bytes; /* of one query */
};
void ef_daemon_divide(const struct ef_daemon_options *options, struct ef_daemon_shares *ret_shares);

struct ef_daemon;
/* Starts all stations; on failure those that started are stopped again. */
EF_MUST_USE ef_rc ef_daemon_open(const struct ef_daemon_options *options,
                                 struct ef_daemon **ret_daemon, struct ef_err *err);
int ef_daemon_http_port(const struct ef_daemon *daemon);
/*
 * Stops taking new data, flushes, and closes, in this order. The code is that of the last flush:
 * what could not be written was not acknowledged either. Takes the daemon. NULL is fine.
 */
EF_MUST_USE ef_rc ef_daemon_stop(struct ef_daemon *daemon, struct ef_err *err);

#endif
