/*
 * One socket with one TCP listener, and the probe that finds out whether it still accepts.
 *
 * Why a probe: in nng 1.5.2 a listener can stop for ever without an error (upstream #1518, fixed in
 * 1.6.0; seen with ipc, and the fix also touches tcp.c). Peers that are connected still deliver, so
 * nothing else shows it. With nng 1.6 the probe can go.
 */
#ifndef COLLECTOR_INGEST_LISTENER_H
#define COLLECTOR_INGEST_LISTENER_H

#include "collector/ingest/ingest.h"

#include <nng/nng.h>

#include <pthread.h>

struct ef_listener {
    nng_socket socket;
    nng_listener listener;
    bool open, listening;
    char url[EF_INGEST_URL_MAX];      /* with the real port */
    uint16_t peer_protocol;           /* SP number we show as a peer */
    uint16_t protocol;                /* and what the socket must answer */
    struct sockaddr_storage *address; /* where the probe connects */
    unsigned address_len;
    pthread_mutex_t lock; /* guards socket and listener against close while they are renewed */
};

/* Listens with an opened socket, which it takes. EF_EINVAL, EF_ECONFLICT, EF_EIO. */
EF_MUST_USE ef_rc ef_listener_open(struct ef_listener *listener, nng_socket socket,
                                   uint16_t protocol, uint16_t peer_protocol, const char *url,
                                   struct ef_err *err);
void ef_listener_close(struct ef_listener *listener);
void ef_listener_fini(struct ef_listener *listener);
/* Connects and shakes hands as a peer would. At most a second. */
bool ef_listener_alive(const struct ef_listener *listener);
/* Opens the listener anew on the same port. */
EF_MUST_USE ef_rc ef_listener_renew(struct ef_listener *listener, struct ef_err *err);

#endif
