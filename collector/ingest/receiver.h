/*
 * Receives one message at a time without ever being inside nng while it waits, so that a thread can
 * leave although nng_close hangs (see closer.h).
 */
#ifndef COLLECTOR_INGEST_RECEIVER_H
#define COLLECTOR_INGEST_RECEIVER_H

#include <nng/nng.h>

struct ef_receiver;
struct ef_receiver *ef_receiver_open(nng_socket socket); /* NULL: no memory */
/* The socket is closed. NULL is fine. */
void ef_receiver_free(struct ef_receiver *receiver);
/* Gives the next message; waits for it. NULL: ef_receiver_close was called, or the socket is
 * closed. One thread. */
nng_msg *ef_receiver_get(struct ef_receiver *receiver);
/* Lets the waiting thread go. Any thread. */
void ef_receiver_close(struct ef_receiver *receiver);

#endif
