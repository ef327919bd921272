/*
 * The two nng sockets of a publisher: PUB for batches, REQ for syncs.
 *
 * Invariants (nng 1.5.2, measured: a receive timeout or a cancelled aio under traffic crashes): no
 * timeout is ever set, no aio cancelled; one request is out at a time, and only closing the socket
 * ends it. Nothing here blocks, except free, which waits for nng to let go. All functions but the
 * wake call are for one thread.
 */
#ifndef SAMPLER_LIB_LINK_H
#define SAMPLER_LIB_LINK_H

#include "proto/base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct ef_link;
/*
 * Connects in the background and for ever. `wake` is called in a thread of nng when ef_link_poll
 * may have something new. batch_bytes_max bounds nng's send queue in bytes. EF_EINVAL: a URL is
 * bad.
 */
EF_MUST_USE ef_rc ef_link_open(const char *ingest_url, const char *sync_url, size_t batch_bytes_max,
                               void (*wake)(void *arg), void *arg, struct ef_link **ret_link,
                               struct ef_err *err);
/*
 * Closes both sockets; no callback comes afterwards. Takes at most 0.7 s: when nng does not let go,
 * a thread is left behind that waits for it. NULL is fine.
 */
void ef_link_free(struct ef_link *link);

/* Sends a batch if anybody is there; copies. What is dropped on the way, the sync finds missing. */
void ef_link_publish(struct ef_link *link, const void *data, size_t len);
/* Messages that nng queues for a slow peer before it drops the oldest. */
size_t ef_link_queue_messages(const struct ef_link *link);

/* Copies. Only when no request is out. */
EF_MUST_USE ef_rc ef_link_request(struct ef_link *link, const void *data, size_t len,
                                  struct ef_err *err);
enum ef_link_event { EF_LINK_NOTHING, EF_LINK_REPLY, EF_LINK_FAILED };
/* What became of the request. A reply is borrowed until the next request. */
enum ef_link_event ef_link_poll(struct ef_link *link, const void **ret_data, size_t *ret_len);
/* Whether the sync socket has a connection now. */
bool ef_link_is_up(const struct ef_link *link);

#endif
