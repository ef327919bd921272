/*
 * Decides when a peer that does not read is let go. Runs in the sync thread; the callback in a
 * thread of nng.
 */
#include "collector/ingest/replier.h"

#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <time.h>

#define REPLY_WAIT_MS 200 /* a peer on the other side of the world has acknowledged by then */

struct ef_replier {
    nng_aio *aio;
    pthread_mutex_t lock; /* guards done */
    pthread_cond_t ended;
    bool done;
};

static void
on_sent(void *arg)
{
    struct ef_replier *replier = arg;

    pthread_mutex_lock(&replier->lock);
    replier->done = true;
    pthread_cond_signal(&replier->ended);
    pthread_mutex_unlock(&replier->lock);
}

struct ef_replier *
ef_replier_open(void)
{
    struct ef_replier *replier = calloc(1, sizeof(*replier));
    pthread_condattr_t attributes;

    if (replier == NULL)
        return NULL;
    pthread_mutex_init(&replier->lock, NULL);
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&replier->ended, &attributes);
    pthread_condattr_destroy(&attributes);
    if (nng_aio_alloc(&replier->aio, on_sent, replier) != 0) {
        replier->aio = NULL;
        ef_replier_free(replier);
        return NULL;
    }
    nng_aio_set_timeout(replier->aio, NNG_DURATION_INFINITE);
    return replier;
}

void
ef_replier_free(struct ef_replier *replier)
{
    if (replier == NULL)
        return;
    if (replier->aio != NULL)
        nng_aio_free(replier->aio);
    pthread_cond_destroy(&replier->ended);
    pthread_mutex_destroy(&replier->lock);
    free(replier);
}

/* False: not sent in time. */
static bool
wait_done(struct ef_replier *replier, const struct timespec *until)
{
    bool done;

    pthread_mutex_lock(&replier->lock);
    while (!replier->done) {
        if (until == NULL)
            pthread_cond_wait(&replier->ended, &replier->lock);
        else if (pthread_cond_timedwait(&replier->ended, &replier->lock, until) == ETIMEDOUT)
            break;
    }
    done = replier->done;
    pthread_mutex_unlock(&replier->lock);
    return done;
}

void
ef_replier_send(struct ef_replier *replier, nng_socket socket, nng_msg *message)
{
    nng_pipe pipe = nng_msg_get_pipe(message);
    struct timespec until;

    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_nsec += REPLY_WAIT_MS * 1000000L;
    if (until.tv_nsec >= 1000000000L) {
        until.tv_nsec -= 1000000000L;
        until.tv_sec++;
    }
    replier->done = false; /* nothing is under way */
    nng_aio_set_msg(replier->aio, message);
    nng_send_aio(socket, replier->aio);
    if (!wait_done(replier, &until)) {
        nng_pipe_close(pipe); /* which ends the send */
        (void)wait_done(replier, NULL);
    }
    nng_aio_wait(replier->aio); /* the callback has returned */
    if (nng_aio_result(replier->aio) != 0)
        nng_msg_free(nng_aio_get_msg(replier->aio));
}
