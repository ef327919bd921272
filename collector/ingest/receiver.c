/*
 * Decides nothing but when a wait ends. The callback runs in a thread of nng.
 */
#include "collector/ingest/receiver.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>

struct ef_receiver {
    nng_socket socket;
    nng_aio *aio; /* its timeout is infinite: nng 1.5.2 may crash when one ends under traffic */
    pthread_mutex_t lock; /* guards all below */
    pthread_cond_t changed;
    bool under_way, done, closed;
};

static void
on_received(void *arg)
{
    struct ef_receiver *receiver = arg;

    pthread_mutex_lock(&receiver->lock);
    receiver->done = true;
    pthread_cond_signal(&receiver->changed);
    pthread_mutex_unlock(&receiver->lock);
}

struct ef_receiver *
ef_receiver_open(nng_socket socket)
{
    struct ef_receiver *receiver = calloc(1, sizeof(*receiver));

    if (receiver == NULL)
        return NULL;
    receiver->socket = socket;
    pthread_mutex_init(&receiver->lock, NULL);
    pthread_cond_init(&receiver->changed, NULL);
    if (nng_aio_alloc(&receiver->aio, on_received, receiver) != 0) {
        receiver->aio = NULL;
        ef_receiver_free(receiver);
        return NULL;
    }
    nng_aio_set_timeout(receiver->aio, NNG_DURATION_INFINITE);
    return receiver;
}

void
ef_receiver_free(struct ef_receiver *receiver)
{
    if (receiver == NULL)
        return;
    if (receiver->aio != NULL) {
        nng_aio_wait(receiver->aio);
        if (receiver->under_way && nng_aio_result(receiver->aio) == 0)
            nng_msg_free(nng_aio_get_msg(receiver->aio)); /* nobody came for it */
        nng_aio_free(receiver->aio);
    }
    pthread_cond_destroy(&receiver->changed);
    pthread_mutex_destroy(&receiver->lock);
    free(receiver);
}

/* False: closed. The callback takes the lock, so nng is called without it. */
static bool
begin(struct ef_receiver *receiver)
{
    bool start;

    pthread_mutex_lock(&receiver->lock);
    start = !receiver->closed && !receiver->under_way;
    if (start) {
        receiver->under_way = true;
        receiver->done = false;
    }
    pthread_mutex_unlock(&receiver->lock);
    if (start)
        nng_recv_aio(receiver->socket, receiver->aio);
    return start;
}

static bool
wait_done(struct ef_receiver *receiver)
{
    bool done;

    pthread_mutex_lock(&receiver->lock);
    while (!receiver->done && !receiver->closed)
        pthread_cond_wait(&receiver->changed, &receiver->lock);
    done = receiver->done && !receiver->closed;
    if (done)
        receiver->under_way = false;
    pthread_mutex_unlock(&receiver->lock);
    return done;
}

nng_msg *
ef_receiver_get(struct ef_receiver *receiver)
{
    while (begin(receiver) && wait_done(receiver)) {
        int error = nng_aio_result(receiver->aio);
        if (error == 0)
            return nng_aio_get_msg(receiver->aio);
        if (error == NNG_ECLOSED)
            return NULL;
        /* Another error is of one message, or of memory: we go on. */
    }
    return NULL;
}

void
ef_receiver_close(struct ef_receiver *receiver)
{
    pthread_mutex_lock(&receiver->lock);
    receiver->closed = true;
    pthread_cond_signal(&receiver->changed);
    pthread_mutex_unlock(&receiver->lock);
}
