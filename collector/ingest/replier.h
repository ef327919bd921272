/*
 * Sends replies one at a time, and lets no peer hold up the others: who does not take a reply
 * within REPLY_WAIT_MS loses its connection.
 *
 * Neither way that nng offers will do: a send with NNG_FLAG_NONBLOCK is dropped when the peer's
 * next request overtakes the end of the last send (seen in one of some hundred replies), and a
 * timeout cancels an operation, which nng 1.5.2 does not always survive.
 */
#ifndef COLLECTOR_INGEST_REPLIER_H
#define COLLECTOR_INGEST_REPLIER_H

#include <nng/nng.h>

struct ef_replier;
struct ef_replier *ef_replier_open(void); /* NULL: no memory */
/* No send may be under way. NULL is fine. */
void ef_replier_free(struct ef_replier *replier);
/* Takes the message, which is the request with another body. One thread. */
void ef_replier_send(struct ef_replier *replier, nng_socket socket, nng_msg *message);

#endif
