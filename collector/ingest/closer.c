/*
 * Decides how long we wait for nng. The work runs in a detached thread, on memory of its own.
 */
#include "collector/ingest/closer.h"

#include <errno.h>
#include <stdlib.h>
#include <time.h>

#define LISTENERS_MAX 4

struct closing {
    struct ef_listener *listeners[LISTENERS_MAX];
    size_t count;
    pthread_mutex_t lock; /* guards done and left */
    pthread_cond_t ended;
    bool done; /* all are closed */
    bool left; /* nobody waits any more: the thread frees this */
};

static void
free_closing(struct closing *closing)
{
    pthread_cond_destroy(&closing->ended);
    pthread_mutex_destroy(&closing->lock);
    free(closing);
}

static void *
close_main(void *arg)
{
    struct closing *closing = arg;
    bool left;

    for (size_t i = 0; i < closing->count; i++)
        ef_listener_close(closing->listeners[i]);
    pthread_mutex_lock(&closing->lock);
    closing->done = true;
    left = closing->left;
    pthread_cond_signal(&closing->ended);
    pthread_mutex_unlock(&closing->lock);
    if (left)
        free_closing(closing);
    return NULL;
}

static struct closing *
open_closing(struct ef_listener *const *listeners, size_t count)
{
    struct closing *closing = calloc(1, sizeof(*closing));
    pthread_condattr_t attributes;

    if (closing == NULL)
        return NULL;
    for (size_t i = 0; i < count && i < LISTENERS_MAX; i++)
        closing->listeners[closing->count++] = listeners[i];
    pthread_mutex_init(&closing->lock, NULL);
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&closing->ended, &attributes);
    pthread_condattr_destroy(&attributes);
    return closing;
}

static bool
wait_closed(struct closing *closing, unsigned wait_ms)
{
    struct timespec until;
    bool done;

    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += (time_t)(wait_ms / 1000);
    until.tv_nsec += (long)(wait_ms % 1000) * 1000000L;
    if (until.tv_nsec >= 1000000000L) {
        until.tv_nsec -= 1000000000L;
        until.tv_sec++;
    }
    pthread_mutex_lock(&closing->lock);
    while (!closing->done &&
           pthread_cond_timedwait(&closing->ended, &closing->lock, &until) != ETIMEDOUT)
        ;
    done = closing->done;
    closing->left = !done;
    pthread_mutex_unlock(&closing->lock);
    return done;
}

bool
ef_close_listeners(struct ef_listener *const *listeners, size_t count, unsigned wait_ms)
{
    struct closing *closing = open_closing(listeners, count);
    pthread_t thread;

    if (closing == NULL)
        return false;
    if (pthread_create(&thread, NULL, close_main, closing) != 0) {
        free_closing(closing);
        return false;
    }
    pthread_detach(thread);
    if (!wait_closed(closing, wait_ms))
        return false;
    free_closing(closing);
    return true;
}
